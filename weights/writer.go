package weights

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/weights/schedule"
)

// target is a receiver as a publisher of one epoch sees it.
type target struct {
	rank    int
	peer    *hawser.Peer
	remotes []*hawser.Remote // by buffer; nil where the plan writes nothing
	base    []int64          // by buffer: where the granted range begins
	imms    []uint32         // by stage

	stages []sent // by stage: the writer's
	lost   error  // the writer's: why nothing more is written to it
}

// sent is what is written to one receiver in one stage.
type sent struct {
	left   int // runs that have not been placed
	runs   int
	bytes  int64
	digest uint64
}

// pending is a run that may be written: its bytes are ready.
type pending struct {
	job *job
	run *reshard.Run
}

// job is a task in the pipeline: its bytes are ready when the writer gets it, and are free again when left is 0.
type job struct {
	task *reshard.Task
	off  int64         // in staging; direct: unused
	sums []uint64      // the digest of each run; nil: none
	left int           // runs that have not ended; the writer's
	part bool          // its runs are portions of others, and not the last ones
	over chan struct{} // closed when left is 0; nil: nobody waits
}

// flight is a write that has not ended.
type flight struct {
	pending
	target int
}

// writer is the last step of a push: it owns the runs whose bytes are ready, and what is in flight. Everything is touched by the one
// goroutine that runs it. The failure of one target ends nothing for the others.
type writer struct {
	slice   *reshard.Slice
	buffers []*hawser.Region // the trainer's
	staging *hawser.Region
	arena   *arena // of staging; nil: nothing is staged
	ahead   int64  // bytes that may wait before no further job is taken
	queue   *hawser.Queue
	targets []*target
	byRank  map[int]int                // index in targets
	windows *schedule.Windows[pending] // by index in targets
	waiting int64                      // bytes in windows
	flights []flight
	unused  []uint32 // of flights
	drops   chan int // targets, by rank, that are to be written to no more

	// Called by the writer's goroutine.
	placed func(t *target, stage int, s sent) // a stage is with this receiver, as a whole
	failed func(t *target, err error)         // nothing more is written to this receiver; once

	stopped error                  // nothing more is submitted
	loud    map[*hawser.Peer]error // peers that are not known to be quiet
	stats   writeStats

	first, last time.Time   // when writes were placed
	begun       []time.Time // by stage: when its first bytes were ready
}

// writeStats is what a push has written.
type writeStats struct {
	Writes, Bytes, Failed uint64
}

func newWriter(slice *reshard.Slice, queue *hawser.Queue, targets []*target, l schedule.Limits) *writer {
	w := &writer{
		slice: slice, queue: queue, targets: targets, byRank: make(map[int]int, len(targets)), flights: make([]flight, l.Window*l.PerDest),
		loud: map[*hawser.Peer]error{}, drops: make(chan int, len(targets)), begun: make([]time.Time, len(slice.Stages)),
	}
	for i, t := range targets {
		w.byRank[t.rank] = i
		t.stages = make([]sent, len(slice.Stages))
	}
	for i := range slice.Tasks {
		for _, r := range slice.Tasks[i].Runs {
			s := &targets[w.byRank[r.Peer]].stages[r.Stage]
			s.left, s.runs, s.bytes = s.left+1, s.runs+1, s.bytes+r.Len
		}
	}
	w.windows = schedule.NewWindows[pending](len(targets), l)
	for i, t := range targets {
		if t.peer != nil && !t.peer.Ordered() {
			w.windows.Single(i, len(slice.Stages))
		}
	}
	for i := range w.flights {
		w.unused = append(w.unused, uint32(i))
	}
	return w
}

// run takes jobs until there are no more, and returns when nothing is in flight any more. ctx ends the submitting, not the waiting: source
// bytes are read until the engine says otherwise. The error is that of ctx: those of targets go to failed.
func (w *writer) run(ctx context.Context, jobs <-chan *job) error {
	ends, join := w.collect()
	defer join()
	done := ctx.Done()
	for jobs != nil || w.windows.Flying() > 0 || w.windows.Waiting() > 0 {
		w.submit()
		from := jobs
		if !w.wants() {
			from = nil
		}
		select {
		case j, ok := <-from:
			if !ok {
				jobs = nil
				break
			}
			w.add(j)
		case batch := <-ends:
			for i := range batch.n {
				w.ended(&batch.done[i])
			}
			if w.last = time.Now(); w.first.IsZero() {
				w.first = w.last
			}
			batch.again <- batch
		case rank := <-w.drops:
			if d, ok := w.byRank[rank]; ok {
				w.lose(d, errDropped)
			}
		case <-done:
			done = nil
			w.stop(context.Cause(ctx))
		}
	}
	return w.stopped
}

// errDropped: the controller has taken the receiver out of the epoch.
var errDropped = errors.New("it is no part of the epoch any more")

// maxWaiting is how many runs may wait before no further job is taken: enough that no target idles.
const maxWaiting = 1024

// wants reports whether another job is to be taken.
func (w *writer) wants() bool { return w.windows.Waiting() <= maxWaiting && w.waiting < w.ahead }

// ends are ends of writes on their way from the collector; again takes them back.
type ends struct {
	done  [64]hawser.Done
	n     int
	again chan *ends
}

// collect starts the step that polls the queue. join ends it.
func (w *writer) collect() (out chan *ends, join func()) {
	ctx, cancel := context.WithCancel(context.Background())
	out, over := make(chan *ends), make(chan struct{})
	again := make(chan *ends, 2)
	for range cap(again) {
		again <- &ends{again: again}
	}
	go func() {
		defer close(over)
		for b := range again {
			n, err := w.queue.Wait(ctx, b.done[:])
			if err != nil {
				return
			}
			b.n = n
			select {
			case out <- b:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, func() { cancel(); close(again); <-over }
}

// add makes the runs of a job pending.
func (w *writer) add(j *job) {
	if at := &w.begun[j.task.Stage]; at.IsZero() {
		*at = time.Now()
	}
	j.left = len(j.task.Runs)
	if j.left == 0 {
		w.release(j)
		return
	}
	for i := range j.task.Runs {
		r := &j.task.Runs[i]
		d := w.byRank[r.Peer]
		if j.sums != nil {
			w.targets[d].stages[r.Stage].digest += j.sums[i]
		}
		if w.stopped != nil || w.targets[d].lost != nil {
			w.settle(pending{j, r})
			continue
		}
		w.waiting += r.Len
		w.windows.Add(d, r.Stage, pending{j, r})
	}
}

// without gives a receiver up before the first write.
func (w *writer) without(rank int, err error) {
	if d, ok := w.byRank[rank]; ok && w.targets[d].lost == nil {
		w.targets[d].lost = err
	}
}

// submit writes what may be written.
// hot:
func (w *writer) submit() {
	for w.stopped == nil {
		d, p, ok := w.windows.Next()
		if !ok {
			return
		}
		w.waiting -= p.run.Len
		w.write(d, p)
	}
}

// write submits a run of target d.
// hot:
func (w *writer) write(d int, p pending) {
	t := w.targets[d]
	slot := w.unused[len(w.unused)-1]
	x := hawser.Write{Src: w.source(p.job, p.run), Dst: t.remotes[p.run.Buffer].Slice(uint64(p.run.Offset-t.base[p.run.Buffer]), uint64(p.run.Len))}
	if !p.job.part {
		x.Imm, x.Parts = hawser.Imm(t.imms[p.run.Stage]), 1
	}
	err := w.queue.Write(x, uint64(slot))
	if err != nil {
		w.windows.Ended(d, p.run.Stage)
		w.settle(p)
		w.wrong(d, p.run, err)
		return
	}
	w.unused = w.unused[:len(w.unused)-1]
	w.flights[slot] = flight{p, d}
	w.stats.Writes++
	w.stats.Bytes += uint64(p.run.Len)
}

// source is where the bytes of a run are.
// hot:
func (w *writer) source(j *job, r *reshard.Run) hawser.Slice {
	if j.task.Size == 0 {
		return w.buffers[j.task.Buffer].Slice(uint64(r.From), uint64(r.Len))
	}
	return w.staging.Slice(uint64(j.off+r.From), uint64(r.Len))
}

// ended takes the end of a write.
// hot:
func (w *writer) ended(e *hawser.Done) {
	f := w.flights[e.Cookie]
	w.flights[e.Cookie] = flight{}
	w.unused = append(w.unused, uint32(e.Cookie))
	w.windows.Ended(f.target, f.run.Stage)
	w.settle(f.pending)
	if e.Err != nil {
		w.wrong(f.target, f.run, e.Err)
		return
	}
	if f.job.part {
		return
	}
	t := w.targets[f.target]
	s := &t.stages[f.run.Stage]
	s.left--
	if s.left == 0 {
		w.placed(t, f.run.Stage, *s)
	}
}

// settle ends a run, whatever became of it: its bytes are not read any more.
// hot:
func (w *writer) settle(p pending) {
	p.job.left--
	if p.job.left == 0 {
		w.release(p.job)
	}
}

// drop ends a run that was not submitted.
func (w *writer) drop(p pending) {
	w.waiting -= p.run.Len
	w.settle(p)
}

// wrong gives up a target to which a write has failed.
func (w *writer) wrong(d int, r *reshard.Run, err error) {
	w.stats.Failed++
	if t := w.targets[d]; errors.Is(err, hawser.ErrUnfenced) {
		w.loud[t.peer] = err
	}
	w.lose(d, fmt.Errorf("%s: %d bytes: %w", w.slice.Stages[r.Stage], r.Len, err))
}

func (w *writer) lose(d int, err error) {
	t := w.targets[d]
	if t.lost != nil {
		return
	}
	t.lost = err
	w.windows.Clear(d, w.drop)
	w.failed(t, err)
}

// release frees the staging of a job whose bytes nobody reads any more.
func (w *writer) release(j *job) {
	if j.task.Size > 0 {
		w.arena.give(j.off)
	}
	if j.over != nil {
		close(j.over)
	}
}

func (w *writer) stop(err error) {
	if w.stopped == nil {
		w.stopped = err
		for d := range w.targets {
			w.windows.Clear(d, w.drop)
		}
	}
}
