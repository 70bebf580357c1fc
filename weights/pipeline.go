package weights

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/reshard"
)

// pipeline pushes the slice of one publisher once. Its steps are goroutines joined by bounded queues: maxima and their exchange,
// staging, writing, collecting ends. run owns and joins them.
type pipeline struct {
	slice   *reshard.Slice // with fused tasks
	buffers []*hawser.Region
	stager  Stager
	reach   reach
	staging *hawser.Region // nil when no task is staged
	arena   *arena
	most    int64                                  // bytes: tasks that need more staging are done in parts
	sum     func(offset int64, data []byte) uint64 // nil: no digests
	ready   *readiness                             // nil: all source bytes are final
	trade   func(ctx context.Context, a *reshard.Amax, maxima []float32) error
	writer  *writer
	spans   *spans // nil: nobody wants to know

	maxima [][]float32     // by stage; nil: no blocks
	amax   []*reshard.Amax // by stage
	shared []bool          // by task: some of its blocks lie in other tasks or sources, too
}

// newPipeline checks the order of the tasks, and fuses those that are faster together.
func newPipeline(slice *reshard.Slice) (*pipeline, error) {
	for i := 1; i < len(slice.Tasks); i++ {
		if slice.Tasks[i].Stage < slice.Tasks[i-1].Stage {
			return nil, fmt.Errorf("plan: %w: task %d is of an earlier stage than the one before", hawser.ErrInvalid, i)
		}
	}
	fused := *slice
	fused.Tasks = fuse(slice)
	p := &pipeline{
		slice: &fused, maxima: make([][]float32, len(slice.Stages)), amax: make([]*reshard.Amax, len(slice.Stages)),
		shared: make([]bool, len(fused.Tasks)),
	}
	for i := range slice.Amax {
		a := &slice.Amax[i]
		p.amax[a.Stage] = a
		p.maxima[a.Stage] = make([]float32, a.Table)
	}
	p.findShared()
	return p, nil
}

// findShared tells tasks that are the only ones with their blocks, whose maxima can be computed just before they are staged.
func (p *pipeline) findShared() {
	holders := make([][]uint8, len(p.amax)) // of each block: tasks, and 2 for a partner
	for s, a := range p.amax {
		if a == nil {
			continue
		}
		holders[s] = make([]uint8, a.Table)
		for _, x := range a.Peers {
			for _, b := range x.Blocks {
				mark(holders[s][b.First:b.First+b.Len], 2)
			}
		}
		for _, same := range a.Own {
			for _, b := range slices.Concat(same.A, same.B) {
				mark(holders[s][b.First:b.First+b.Len], 2)
			}
		}
	}
	for i := range p.slice.Tasks {
		p.blocks(i, func(b []uint8) { mark(b, 1) }, holders)
	}
	for i := range p.slice.Tasks {
		p.blocks(i, func(b []uint8) {
			for _, n := range b {
				p.shared[i] = p.shared[i] || n > 1
			}
		}, holders)
	}
}

// blocks calls f for the blocks of each piece of a task.
func (p *pipeline) blocks(task int, f func([]uint8), holders [][]uint8) {
	t := &p.slice.Tasks[task]
	for i := range t.Pieces {
		x := &t.Pieces[i]
		if n := blocksOf(x); n > 0 && holders[t.Stage] != nil {
			f(holders[t.Stage][x.Maxima : x.Maxima+n])
		}
	}
}

// blocksOf is how many entries of the table of maxima a piece has.
func blocksOf(x *reshard.Piece) int {
	n := x.BlockRows * x.BlockCols
	for _, e := range x.Shape[:max(len(x.Shape)-2, 0)] {
		n *= int(e)
	}
	return n
}

func mark(b []uint8, n uint8) {
	for i := range b {
		b[i] = min(b[i]+n, 2)
	}
}

// reach is how far the other steps may be ahead of the writer.
type reach struct {
	tasks int   // that are ready and not taken
	bytes int64 // that wait for their turn
}

var (
	// far covers the time that a device takes for a task.
	far = reach{16, math.MaxInt64}
	// near has the writer find in the caches what the processor has staged, or hashed.
	near = reach{1, 2 << 20}
)

// run returns when all is written, or after the first failure, and then when nothing is in flight any more.
func (p *pipeline) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	begun, jobs := make(chan int, len(p.slice.Stages)), make(chan *job, p.reach.tasks)
	p.writer.ahead = p.reach.bytes
	var steps sync.WaitGroup
	steps.Go(func() {
		defer close(begun)
		if err := p.prepare(ctx, begun); err != nil {
			cancel(err)
		}
	})
	steps.Go(func() {
		defer close(jobs)
		if err := p.stage(ctx, begun, jobs); err != nil {
			cancel(err)
		}
	})
	err := p.writer.run(ctx, jobs)
	cancel(err)
	for range jobs { // the step before may have made one more
	}
	steps.Wait()
	if err == nil && context.Cause(ctx) != context.Canceled {
		err = context.Cause(ctx)
	}
	return err
}

// readiness knows which stages have their final bytes. It outlives pipelines, which use it one after the other: what was ready stays so.
type readiness struct {
	more  <-chan int
	final map[int]bool
}

// wait waits for a stage.
func (r *readiness) wait(ctx context.Context, stage int) error {
	for r != nil && !r.final[stage] {
		select {
		case i, ok := <-r.more:
			if !ok {
				return fmt.Errorf("%w: the channel of ready stages was closed before", hawser.ErrInvalid)
			}
			r.final[i] = true
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// prepare begins one stage after the other, when its source bytes are final and its blocks have their maxima.
func (p *pipeline) prepare(ctx context.Context, begun chan<- int) error {
	for s, name := range p.slice.Stages {
		if err := p.ready.wait(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := p.agree(ctx, s); err != nil {
			return fmt.Errorf("%s: maxima: %w", name, err)
		}
		begun <- s // has room for all
	}
	return nil
}

// agree computes the maxima of shared blocks of a stage, and makes those of blocks that straddle sources the same on all of them.
func (p *pipeline) agree(ctx context.Context, stage int) error {
	a := p.amax[stage]
	if a == nil {
		return nil
	}
	clear(p.maxima[stage])
	for i := range p.slice.Tasks {
		if t := &p.slice.Tasks[i]; t.Stage == stage && p.shared[i] {
			if err := p.stager.Amax(ctx, p.task(t), p.maxima[stage]); err != nil {
				return err
			}
		}
	}
	for i := range a.Own {
		join(p.maxima[stage], &a.Own[i])
	}
	if len(a.Peers) == 0 {
		return nil
	}
	return p.trade(ctx, a, p.maxima[stage])
}

func (p *pipeline) task(t *reshard.Task) *Task {
	return &Task{Task: t, Slice: p.slice, Buffers: p.buffers}
}

// stage makes the bytes of one task after the other ready.
func (p *pipeline) stage(ctx context.Context, begun <-chan int, jobs chan<- *job) error {
	next := 0
	for s := range begun {
		began, staged := time.Now(), false
		for ; next < len(p.slice.Tasks) && p.slice.Tasks[next].Stage == s; next++ {
			staged = staged || p.slice.Tasks[next].Size > 0
			if p.slice.Tasks[next].Size > p.most {
				if err := p.fillParts(ctx, next, jobs); err != nil {
					return fmt.Errorf("%s: %w", p.slice.Stages[s], err)
				}
				continue
			}
			j, err := p.fill(ctx, next)
			if err != nil {
				return fmt.Errorf("%s: %w", p.slice.Stages[s], err)
			}
			select {
			case jobs <- j:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		if staged && p.spans != nil {
			p.spans.note("stage", p.slice.Stages[s], began)
		}
	}
	return nil
}

// fill stages a task, and takes digests while its bytes are in the caches.
func (p *pipeline) fill(ctx context.Context, task int) (*job, error) {
	t := &p.slice.Tasks[task]
	return p.fillTask(ctx, t, p.tableOf(task))
}

// tableOf are the maxima of a task; nil: the stager finds them on the way.
func (p *pipeline) tableOf(task int) []float32 {
	if !p.shared[task] {
		return nil
	}
	return p.maxima[p.slice.Tasks[task].Stage]
}

// fillParts stages a task that is too large part by part. A part begins when the one before is written: the last portion of a run carries
// the immediate.
func (p *pipeline) fillParts(ctx context.Context, task int, jobs chan<- *job) error {
	parts, err := cut(p.slice, &p.slice.Tasks[task], p.tableOf(task), p.most)
	if err != nil {
		return err
	}
	for i := range parts {
		j, err := p.fillTask(ctx, &parts[i].task, parts[i].maxima)
		if err != nil {
			return err
		}
		j.part, j.over = !parts[i].last, make(chan struct{})
		select {
		case jobs <- j:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		select {
		case <-j.over:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func (p *pipeline) fillTask(ctx context.Context, t *reshard.Task, maxima []float32) (*job, error) {
	j := &job{task: t}
	if t.Size > 0 {
		var err error
		if j.off, err = p.arena.take(ctx, t.Size); err != nil {
			return nil, err
		}
		if err := p.stager.Stage(ctx, p.task(t), maxima, p.staging.Slice(uint64(j.off), uint64(t.Size))); err != nil {
			return nil, err
		}
	}
	if p.sum == nil {
		return j, nil
	}
	j.sums = make([]uint64, len(t.Runs))
	for i := range t.Runs {
		s := p.writer.source(j, &t.Runs[i])
		j.sums[i] = p.sum(t.Runs[i].Offset, s.Region.Bytes()[s.Off:s.Off+s.Len])
	}
	return j, nil
}
