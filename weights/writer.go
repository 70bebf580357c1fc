package weights

import (
	"context"
	"errors"
	"fmt"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/weights/schedule"
)

// Target is a receiver as a publisher of one epoch sees it.
type target struct {
	rank    int
	peer    *hawser.Peer
	remotes []*hawser.Remote // by buffer; nil where the plan writes nothing
	base    []int64          // by buffer: where the granted range begins
	imms    []uint32         // by stage
	single  bool             // its network keeps no order: one write per immediate at a time
}

// pending is a run that may be written: its bytes are ready.
type pending struct {
	job *job
	run *reshard.Run
}

// job is a task in the pipeline: its bytes are ready when the writer gets it, and are free again when left is 0.
type job struct {
	task *reshard.Task
	off  int64    // in staging; direct: unused
	sums []uint64 // the digest of each run; nil: none
	left int      // runs that have not ended; owned by the writer
}

// flight is a write that has not ended.
type flight struct {
	pending
	target int
}

// writer is the last step of a push: it owns the runs whose bytes are ready, and what is in flight. Everything is touched by the one
// goroutine that runs it.
type writer struct {
	slice   *reshard.Slice
	buffers []*hawser.Region // the trainer's
	staging *hawser.Region
	free    func(off int64)
	queue   *hawser.Queue
	targets []*target
	byRank  map[int]int                // index in targets
	windows *schedule.Windows[pending] // by index in targets
	flights []flight
	unused  []uint32 // of flights

	tally   *tally
	stopped error                  // nothing more is submitted
	loud    map[*hawser.Peer]error // peers that are not known to be quiet
	stats   writeStats
}

// writeStats is what a push has written.
type writeStats struct {
	Writes uint64
	Bytes  uint64
	Failed uint64
}

func newWriter(slice *reshard.Slice, queue *hawser.Queue, targets []*target, window, perDest int) *writer {
	w := &writer{
		slice: slice, queue: queue, targets: targets, byRank: make(map[int]int, len(targets)),
		flights: make([]flight, window*perDest), loud: map[*hawser.Peer]error{},
	}
	for i, t := range targets {
		w.byRank[t.rank] = i
	}
	w.windows = schedule.NewWindows[pending](len(targets), w.firstTarget(), schedule.Limits{Window: window, PerDest: perDest})
	for i, t := range targets {
		if t.single {
			w.windows.Single(i, len(slice.Stages))
		}
	}
	for i := range w.flights {
		w.unused = append(w.unused, uint32(i))
	}
	return w
}

// firstTarget is where the plan has this source begin: others begin elsewhere.
func (w *writer) firstTarget() int {
	for i := range w.slice.Tasks {
		if runs := w.slice.Tasks[i].Runs; len(runs) > 0 {
			return w.byRank[runs[0].Peer]
		}
	}
	return 0
}

// run takes jobs until there are no more, and returns when nothing is in flight any more. ctx ends the submitting, not the waiting: source
// bytes are read until the engine says otherwise.
func (w *writer) run(ctx context.Context, jobs <-chan *job) error {
	ends, join := w.collect()
	defer join()
	done := ctx.Done()
	for jobs != nil || w.windows.Flying() > 0 || (w.windows.Waiting() > 0 && w.stopped == nil) {
		w.submit()
		from := jobs
		if w.windows.Waiting() > maxWaiting {
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
			batch.again <- batch
		case <-done:
			done = nil
			w.stop(context.Cause(ctx))
		}
	}
	return w.stopped
}

// maxWaiting is how many runs may wait before no further job is taken: enough that no target idles.
const maxWaiting = 1024

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
	return out, func() { cancel(); <-over }
}

// add makes the runs of a job pending.
func (w *writer) add(j *job) {
	j.left = len(j.task.Runs)
	if j.left == 0 {
		w.release(j)
		return
	}
	if w.stopped != nil {
		return
	}
	for i := range j.task.Runs {
		r := &j.task.Runs[i]
		w.windows.Add(w.byRank[r.Peer], r.Stage, pending{j, r})
		if j.sums != nil {
			w.tally.sum(r, j.sums[i])
		}
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
		w.write(d, p)
	}
}

// write submits a run of target d.
// hot:
func (w *writer) write(d int, p pending) {
	t := w.targets[d]
	slot := w.unused[len(w.unused)-1]
	err := w.queue.Write(hawser.Write{
		Src: w.source(p.job, p.run), Dst: t.remotes[p.run.Buffer].Slice(uint64(p.run.Offset-t.base[p.run.Buffer]), uint64(p.run.Len)),
		Imm: hawser.Imm(t.imms[p.run.Stage]), Parts: 1,
	}, uint64(slot))
	if err != nil {
		w.windows.Ended(d, p.run.Stage)
		w.refused(t, p.run, err)
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

// refused ends the push: the engine did not take a write.
func (w *writer) refused(t *target, r *reshard.Run, err error) {
	w.stop(fmt.Errorf("write %d bytes to receiver %d, %s: %w", r.Len, t.rank, w.slice.Stages[r.Stage], err))
}

// ended takes the end of a write.
// hot:
func (w *writer) ended(d *hawser.Done) {
	f := w.flights[d.Cookie]
	w.flights[d.Cookie] = flight{}
	w.unused = append(w.unused, uint32(d.Cookie))
	w.windows.Ended(f.target, f.run.Stage)
	if d.Err != nil {
		w.failed(w.targets[f.target], f.run, d.Err)
		return
	}
	f.job.left--
	if f.job.left == 0 {
		w.release(f.job)
	}
	w.tally.ended(f.run)
}

// failed notes what went wrong. The epoch cannot end well; what is in flight ends by itself.
func (w *writer) failed(t *target, r *reshard.Run, err error) {
	w.stats.Failed++
	if errors.Is(err, hawser.ErrUnfenced) {
		w.loud[t.peer] = err
	}
	w.stop(fmt.Errorf("receiver %d, %s: %w", t.rank, w.slice.Stages[r.Stage], err))
}

// release frees the staging of a job whose bytes nobody reads any more.
func (w *writer) release(j *job) {
	if j.task.Size > 0 {
		w.free(j.off)
	}
}

func (w *writer) stop(err error) {
	if w.stopped == nil {
		w.stopped = err
	}
}
