package schedule_test

import (
	"context"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/weights/schedule"
)

// kimiWrites is how many writes a trainer of the reference case k2 posts.
const kimiWrites = 3824

// BenchmarkPosting is what a trainer of k2 needs to post its writes: the next run, and a Write with its own immediate through a Queue. The
// writes are short, so that the copies of shm take no time; waiting for their ends is not counted. It prints the time of all of them, which
// has a budget of 4 ms, 1 µs each.
func BenchmarkPosting(b *testing.B) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	open := func() *hawser.Engine {
		e, err := hawser.Open(ctx, hawser.Options{Rails: []hawser.Rail{{Provider: "shm"}}})
		if err != nil {
			b.Skip(err)
		}
		b.Cleanup(func() { e.Close(ctx) })
		return e
	}
	alloc := func(e *hawser.Engine) *hawser.Region {
		r, err := e.Alloc(1<<20, hawser.MemOptions{})
		if err != nil {
			b.Fatal(err)
		}
		return r
	}
	const dests = 8
	sender := open()
	src := alloc(sender)
	var remotes []*hawser.Remote
	for range dests {
		r := alloc(open())
		rem, err := sender.Import(ctx, r.Descriptor(r.All(), hawser.RightWrite))
		if err != nil {
			b.Fatal(err)
		}
		remotes = append(remotes, rem)
	}
	limits := schedule.Limits{}.WithDefaults()
	q, ends := sender.NewQueue(limits.Window*limits.PerDest), make([]hawser.Done, 64)
	w := schedule.NewWindows[uint64](dests, limits)
	var each []time.Duration
	for b.Loop() {
		for i := range uint64(kimiWrites) {
			w.Add(int(i%dests), 0, i)
		}
		took := time.Duration(0)
		for w.Waiting()+w.Flying() > 0 {
			begin := time.Now()
			for d, i, ok := w.Next(); ok; d, i, ok = w.Next() {
				err := q.Write(hawser.Write{Src: src.Slice(i*8, 8), Dst: remotes[d].Slice(i*8, 8), Imm: hawser.Imm(1), Parts: 1}, uint64(d))
				if err != nil {
					b.Fatal(err)
				}
			}
			took += time.Since(begin)
			n := q.Poll(ends)
			for _, e := range ends[:n] {
				if e.Err != nil {
					b.Fatal(e.Err)
				}
				w.Ended(int(e.Cookie), 0)
			}
			if n == 0 {
				runtime.Gosched()
			}
		}
		each = append(each, took)
	}
	slices.Sort(each)
	median := each[len(each)/2]
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(median)/kimiWrites, "ns/write")
	b.ReportMetric(float64(median)/1e6, "ms/push")
}
