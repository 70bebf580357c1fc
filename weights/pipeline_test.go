package weights

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"sync"
	"testing"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/weights/schedule"
)

// stripes are slices made by hand: each source has stripes of every destination's buffer, some direct, some packed into staging, and the same
// bytes of a source go to two destinations. They are what a plan for a simple layout looks like.
type stripes struct {
	sources, dests, stages int
	unit                   int64 // bytes of a stripe
	staged                 bool
	task                   int // stripes in a task
	src, dst               []*reshard.Slice
}

// newStripes gives every destination all stripes of all sources.
func newStripes(x stripes) *stripes {
	const perStage = 8 // stripes of a source
	names := make([]string, x.stages)
	for i := range names {
		names[i] = fmt.Sprint("layer-", i)
	}
	for d := range x.dests {
		x.dst = append(x.dst, &reshard.Slice{Rank: d, Stages: names, Buffers: []int64{int64(x.sources*x.stages*perStage) * x.unit}})
	}
	for s := range x.sources {
		slice := &reshard.Slice{
			Source: true, Rank: s, Stages: names, Buffers: []int64{int64(x.stages*perStage) * x.unit}, Tensors: []string{"t"}, Codecs: []reshard.Codec{{}},
		}
		for stage := range x.stages {
			for first := 0; first < perStage; first += x.task {
				slice.Tasks = append(slice.Tasks, x.newTask(s, stage, stage*perStage+first))
			}
		}
		x.src = append(x.src, slice)
	}
	for stage := range x.stages {
		for d := range x.dests {
			for s := range x.sources {
				for i := range perStage {
					k := stage*perStage + i
					x.dst[d].Runs = append(x.dst[d].Runs, reshard.Run{Peer: s, Stage: stage, Offset: int64(k*x.sources+s) * x.unit, Len: x.unit})
				}
			}
		}
	}
	return &x
}

func (x *stripes) newTask(source, stage, first int) reshard.Task {
	t := reshard.Task{Stage: stage}
	for i := range x.task {
		k, from := first+i, int64(first+i)*x.unit
		if x.staged {
			from = int64(i) * x.unit
			t.Size += x.unit
			t.Pieces = append(t.Pieces, reshard.Piece{
				From: reshard.U8, To: reshard.U8, Shape: []int64{x.unit}, Offset: int64(k) * x.unit, SrcStride: []int64{1}, Dst: from, DstStride: []int64{1},
			})
		}
		for d := range x.dests {
			t.Runs = append(t.Runs, reshard.Run{
				Peer: (d + source) % x.dests, Stage: stage, Offset: int64(k*x.sources+source) * x.unit, Len: x.unit, From: from,
			})
		}
	}
	return t
}

// copier is a Stager for pieces of bytes.
type copier struct{}

func (copier) Amax(context.Context, *Task, []float32) error { return errors.New("there are no blocks") }

func (copier) Stage(_ context.Context, t *Task, _ []float32, dst hawser.Slice) error {
	for _, p := range t.Pieces {
		copy(dst.Region.Bytes()[int64(dst.Off)+p.Dst:][:p.Shape[0]], t.Buffers[p.Buffer].Bytes()[p.Offset:])
	}
	return nil
}

func crcSum(offset int64, b []byte) uint64 {
	return mix(uint64(crc32.ChecksumIEEE(b)) ^ mix(uint64(offset)))
}

// flow is the two sides of an epoch without a protocol: what the grants would say is passed in memory.
type flow struct {
	t        testing.TB
	x        *stripes
	pubs     []*hawser.Engine
	recs     []*hawser.Engine
	src, dst [][]*hawser.Region
	in       []*inbound
	pipes    []*pipeline

	mu     sync.Mutex
	stages [][]map[int]sent // by destination and stage: of each source
	failed map[int]error    // receivers that a publisher gave up
}

func newFlow(t testing.TB, open network, x *stripes, watermark int64, window, perDest int) *flow {
	f := &flow{t: t, x: x, failed: map[int]error{}}
	for s, slice := range x.src {
		f.pubs = append(f.pubs, open(t, fmt.Sprint("p", s)))
		f.src = append(f.src, alloc(t, f.pubs[s], slice.Buffers...))
		noise(f.src[s][0].Bytes(), uint64(s))
	}
	for d, slice := range x.dst {
		f.recs = append(f.recs, open(t, fmt.Sprint("r", d)))
		f.dst = append(f.dst, alloc(t, f.recs[d], slice.Buffers...))
		in, err := newInbound(f.recs[d], slice, f.dst[d], func(int) bool { return false })
		if err != nil {
			t.Fatal(err)
		}
		f.in = append(f.in, in)
		f.stages = append(f.stages, make([]map[int]sent, x.stages))
	}
	for s := range x.src {
		f.pipes = append(f.pipes, f.newPipe(s, watermark, window, perDest))
	}
	return f
}

func (f *flow) newPipe(s int, watermark int64, window, perDest int) *pipeline {
	f.t.Helper()
	slice, eng := f.x.src[s], f.pubs[s]
	var targets []*target
	for d, in := range f.in {
		h := hulls(f.x.dst[d].Runs, func(r *reshard.Run) bool { return r.Peer == s })[0]
		rem, err := eng.Import(limit(f.t), f.dst[d][0].Descriptor(f.dst[d][0].Slice(uint64(h.lo), uint64(h.hi-h.lo)), hawser.RightWrite))
		if err != nil {
			f.t.Fatal(err)
		}
		targets = append(targets, &target{
			rank: d, peer: rem.Peer(), remotes: []*hawser.Remote{rem}, base: []int64{h.lo}, imms: in.imms(),
		})
		if in.peers[s], err = f.recs[d].Connect(limit(f.t), eng.Addr()); err != nil {
			f.t.Fatal(err)
		}
	}
	p, err := newPipeline(slice)
	if err != nil {
		f.t.Fatal(err)
	}
	p.buffers, p.stager, p.sum = f.src[s], copier{}, crcSum
	p.reach = near
	p.staging, p.arena, p.most = alloc(f.t, eng, watermark)[0], newArena(watermark), watermark
	p.writer = newWriter(slice, eng.NewQueue(window*perDest), targets, schedule.Limits{Window: window, PerDest: perDest})
	p.writer.buffers, p.writer.staging, p.writer.arena = p.buffers, p.staging, p.arena
	p.writer.placed = func(t *target, stage int, x sent) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.stages[t.rank][stage] == nil {
			f.stages[t.rank][stage] = map[int]sent{}
		}
		f.stages[t.rank][stage][s] = x
	}
	p.writer.failed = func(t *target, err error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.failed[t.rank] = err
	}
	return p
}

// push runs all pipelines, while the receivers count.
func (f *flow) push() {
	f.t.Helper()
	var wg sync.WaitGroup
	for s, p := range f.pipes {
		wg.Go(func() {
			if err := p.run(limit(f.t)); err != nil {
				f.t.Errorf("publisher %d: %v", s, err)
			}
		})
	}
	for d, in := range f.in {
		for stage := range f.x.stages {
			if err := in.wait(limit(f.t), stage); err != nil {
				f.t.Errorf("receiver %d: %v", d, err)
			}
		}
	}
	wg.Wait()
}

// check compares every byte, and the digests.
func (f *flow) check() {
	f.t.Helper()
	for d, in := range f.in {
		want := make([]byte, f.x.dst[d].Buffers[0])
		for _, r := range f.x.dst[d].Runs {
			k := (r.Offset/f.x.unit - int64(r.Peer)) / int64(f.x.sources)
			copy(want[r.Offset:r.Offset+r.Len], f.src[r.Peer][0].Bytes()[k*f.x.unit:])
		}
		if err := firstWrong(f.dst[d][0].Bytes(), want); err != nil {
			f.t.Errorf("receiver %d: %v", d, err)
		}
		for stage := range f.x.stages {
			for s := range f.x.src {
				x := f.stages[d][stage][s]
				if got := in.digest(stage, s, crcSum); x.digest != got || x.runs != len(in.runs[stage][s]) {
					f.t.Errorf("receiver %d stage %d publisher %d: digest %x of %d runs, here %x", d, stage, s, x.digest, x.runs, got)
				}
			}
			if err := in.exact(stage); err != nil {
				f.t.Error(err)
			}
		}
		in.put()
	}
}

// TestPipelineDelivers: what the slices say is what lands, for direct and staged tasks, over networks with and without order.
func TestPipelineDelivers(t *testing.T) {
	for _, x := range []stripes{
		{sources: 3, dests: 2, stages: 4, unit: 4096, task: 8},
		{sources: 3, dests: 2, stages: 4, unit: 5000, task: 2, staged: true},
	} {
		t.Run(fmt.Sprint("staged=", x.staged), func(t *testing.T) {
			onNetworks(t, func(t *testing.T, open network) {
				f := newFlow(t, open, newStripes(x), 64<<10, 4, 2)
				f.push()
				f.check()
			})
		})
	}
}

// TestPipelineWatermark: staging in flight never exceeds the watermark, which holds two tasks, with one destination and one write at a
// time.
func TestPipelineWatermark(t *testing.T) {
	onNetworks(t, func(t *testing.T, open network) {
		x := newStripes(stripes{sources: 2, dests: 3, stages: 3, unit: 4096, task: 2, staged: true})
		f := newFlow(t, open, x, 4*4096, 1, 1)
		f.push()
		f.check()
		for _, p := range f.pipes {
			if got := p.arena.most(); got > 4*4096 || got < 2*4096 {
				t.Errorf("%d bytes of staging at once, the watermark is %d", got, 4*4096)
			}
		}
	})
}

// Staging is not further ahead of the writes than is told, however much memory there is for it: bytes that wait leave the caches.
func TestPipelineStaysNear(t *testing.T) {
	onNetworks(t, func(t *testing.T, open network) {
		const unit, task = 4096, 2 * 4096
		x := newStripes(stripes{sources: 1, dests: 1, stages: 20, unit: unit, task: 2, staged: true})
		f := newFlow(t, open, x, 1<<20, 1, 1)
		f.pipes[0].reach = reach{tasks: 1, bytes: 2 * task}
		f.push()
		f.check()
		// One is being written, up to three wait or are about to (the last one taken when a byte was free), one is ready and one is being staged.
		if got := f.pipes[0].arena.most(); got > 6*task {
			t.Errorf("%d bytes of staging at once, the limit is %d that wait", got, 2*task)
		}
	})
}

// TestPipelineStops: a push that is stopped submits nothing more, and returns when nothing is in flight.
func TestPipelineStops(t *testing.T) {
	onNetworks(t, func(t *testing.T, open network) {
		x := newStripes(stripes{sources: 1, dests: 2, stages: 50, unit: 4096, task: 2, staged: true})
		f := newFlow(t, open, x, 64<<10, 2, 2)
		ctx, cancel := context.WithCancelCause(t.Context())
		cause := errors.New("enough")
		f.pipes[0].writer.placed = func(_ *target, stage int, _ sent) {
			if stage == 3 {
				cancel(cause)
			}
		}
		if err := f.pipes[0].run(ctx); !errors.Is(err, cause) {
			t.Errorf("a push that was stopped ends with %v", err)
		}
		w := f.pipes[0].writer
		if w.windows.Flying() != 0 || w.stats.Writes == 0 || w.stats.Bytes == uint64(50*8*2*4096) {
			t.Errorf("%d writes in flight, %d written", w.windows.Flying(), w.stats.Writes)
		}
		if n := f.pubs[0].Stats().Inflight; n != 0 {
			t.Errorf("%d operations in flight", n)
		}
	})
}

// TestPipelineLosesOne: a receiver that goes away is given up, with its part of the staging, and the others get everything.
func TestPipelineLosesOne(t *testing.T) {
	onNetworks(t, func(t *testing.T, open network) {
		x := newStripes(stripes{sources: 1, dests: 3, stages: 20, unit: 4096, task: 2, staged: true})
		f := newFlow(t, open, x, 4*4096, 2, 2)
		next := f.pipes[0].writer.placed
		f.pipes[0].writer.placed = func(t *target, stage int, s sent) {
			if next(t, stage, s); t.rank == 0 && stage == 2 {
				_ = f.dst[1][0].Revoke(context.Background(), f.in[1].peers[0])
			}
		}
		if err := f.pipes[0].run(limit(t)); err != nil {
			t.Fatal(err)
		}
		if len(f.failed) != 1 || !errors.Is(f.failed[1], hawser.ErrStale) {
			t.Errorf("given up: %v", f.failed)
		}
		for _, d := range []int{0, 2} {
			for stage := range x.stages {
				if err := f.in[d].wait(limit(t), stage); err != nil {
					t.Error(err)
				}
			}
		}
	})
}
