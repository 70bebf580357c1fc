package bench

import (
	"context"
	"time"

	"github.com/hawser-project/hawser"
)

// flow submits operations, at most a window of them at a time. Owned by the goroutine that measures.
type flow struct {
	queue    *hawser.Queue
	done     []hawser.Done
	inFlight int

	// One in every operations is timed, none when it is 0.
	every     int
	submitted int
	starts    []time.Time // of those that are timed
	lat       *trips
}

// sampledOps is about how many operations of a sample are timed: enough for the tail, few enough that the clock does not count.
const sampledOps = 2_000

func newFlow(eng *engine, depth int) *flow {
	return &flow{queue: eng.NewQueue(depth), done: make([]hawser.Done, depth)}
}

// begin prepares for a sample of ops operations, whose latencies go to lat unless it is nil.
func (f *flow) begin(ops int, lat *trips) {
	f.every, f.submitted, f.starts, f.lat = 0, 0, f.starts[:0], lat
	if lat != nil {
		f.every = max(ops/sampledOps, 1)
	}
}

// slot waits until one more operation may be submitted, and returns its cookie.
func (f *flow) slot(ctx context.Context) (cookie uint64, err error) {
	for f.inFlight >= len(f.done) {
		if err := f.reap(ctx); err != nil {
			return 0, err
		}
	}
	f.inFlight++
	f.submitted++
	if f.every == 0 || f.submitted%f.every != 0 {
		return 0, nil
	}
	f.starts = append(f.starts, time.Now())
	return uint64(len(f.starts)), nil
}

func (f *flow) reap(ctx context.Context) error {
	n, err := f.queue.Wait(ctx, f.done)
	if err != nil {
		return err
	}
	return f.take(n)
}

func (f *flow) take(n int) error {
	f.inFlight -= n
	var now time.Time
	for _, d := range f.done[:n] {
		if d.Err != nil {
			return d.Err
		}
		if d.Cookie == 0 {
			continue
		}
		if now.IsZero() {
			now = time.Now()
		}
		f.lat.add(now.Sub(f.starts[d.Cookie-1]))
	}
	return nil
}

// poll takes the ends that are there, without waiting.
func (f *flow) poll() error { return f.take(f.queue.Poll(f.done)) }

// drain waits for all.
func (f *flow) drain(ctx context.Context) error {
	for f.inFlight > 0 {
		if err := f.reap(ctx); err != nil {
			return err
		}
	}
	return nil
}
