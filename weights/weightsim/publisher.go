package weightsim

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/hawser-project/hawser/internal/rail"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/weights/proto"
	"github.com/hawser-project/hawser/weights/schedule"
)

// copyAhead is how many tasks may have been copied and not been staged yet.
const copyAhead = 2

// publisher pushes the slice of one trainer in one epoch: the steps of weights.Publisher, each of which is busy with one task at a time.
type publisher struct {
	h       *host
	slice   *reshard.Slice
	epoch   uint32
	e       *proto.Epoch // once it may write
	dests   []*destination
	byRank  map[int]int // in dests
	windows *schedule.Windows[pending]
	arena   *schedule.Arena
	maxima  maxima

	started bool
	stopped bool
	next    int // task that is copied next
	copied  []*job
	copying bool
	staging bool
	open    int // jobs that have not ended
	free    []*write
	ended   bool // the machine was told that nothing is in flight any more

	times Publisher
	marks []marks // by stage, of a trace
}

// destination is a receiver as a publisher sees it.
type destination struct {
	h       *host
	peer    *rail.Peer
	remotes []*rail.Remote // by buffer
	member  int            // index in the epoch
	stages  []sent
}

// sent is what is written to a destination in a stage.
type sent struct {
	left, runs int32 // left have not ended
	bytes      int64
}

// job is a task on its way.
type job struct {
	task *reshard.Task
	read int64 // source bytes of its pieces
	off  int64 // in staging
	left int   // runs that have not ended
}

// pending is a run whose bytes are ready.
type pending struct {
	job *job
	run *reshard.Run
}

// write is a run in flight, pooled.
type write struct {
	rail.Op
	p    *publisher
	job  *job
	run  *reshard.Run
	dest int
}

func newPublisher(h *host, s *reshard.Slice, epoch uint32, o *Options) *publisher {
	if o.Same {
		unrotate(s)
	}
	p := &publisher{h: h, slice: s, epoch: epoch, byRank: map[int]int{}, maxima: newMaxima(s)}
	largest := int64(0)
	for i := range s.Tasks {
		largest = max(largest, s.Tasks[i].Size)
	}
	p.arena = schedule.NewArena(max(o.Watermark, 2*largest+schedule.Align))
	p.times.Rank = s.Rank
	if o.Trace {
		p.marks = make([]marks, len(s.Stages))
	}
	return p
}

// unrotate has the tasks of each stage, and the runs of each task, in the order of their receivers: the same for every publisher.
func unrotate(s *reshard.Slice) {
	for i := range s.Tasks {
		slices.SortStableFunc(s.Tasks[i].Runs, func(a, b reshard.Run) int { return a.Peer - b.Peer })
	}
	first := func(t *reshard.Task) int {
		if len(t.Runs) == 0 {
			return -1
		}
		return t.Runs[0].Peer
	}
	slices.SortStableFunc(s.Tasks, func(a, b reshard.Task) int {
		return cmp.Or(a.Stage-b.Stage, first(&a)-first(&b))
	})
}

// start is START: it connects where a repair needs it, imports what was granted, and begins.
func (p *publisher) start(e *proto.Epoch) {
	w := p.h.w
	p.e = e
	member := map[proto.ID]int{}
	for i := range e.Members {
		member[e.Members[i].ID] = i
	}
	for _, rank := range destinations(p.slice) {
		d := &destination{h: w.byName[fmt.Sprintf("infer-%d", rank)], stages: make([]sent, len(p.slice.Stages))}
		d.member = member[d.h.node.id]
		p.byRank[rank] = len(p.dests)
		p.dests = append(p.dests, d)
		if p.h.peers[d.h.index] == nil {
			w.check(w.offer(p.h, d.h))
		}
	}
	for i := range p.slice.Tasks {
		for k := range p.slice.Tasks[i].Runs {
			r := &p.slice.Tasks[i].Runs[k]
			s := &p.dests[p.byRank[r.Peer]].stages[r.Stage]
			s.left, s.runs, s.bytes = s.left+1, s.runs+1, s.bytes+r.Len
		}
	}
	p.connected()
}

// connected waits for new sessions.
func (p *publisher) connected() {
	w := p.h.w
	if p.stopped || p.h.dead {
		return
	}
	for _, d := range p.dests {
		a, b := p.h.peers[d.h.index], d.h.peers[p.h.index]
		if links := max(p.h.g.Rails(), d.h.g.Rails()); a.Ready() < links || b.Ready() < links {
			w.after(w.o.Control, p.connected)
			return
		}
	}
	for _, d := range p.dests {
		if err := p.bind(d); err != nil {
			w.fail("%s to %s: %w", p.h.name, d.h.name, err)
			return
		}
	}
	p.aim(w.o)
	p.begin()
}

// bind imports what a destination has granted.
func (p *publisher) bind(d *destination) error {
	if err := p.h.w.live(p.h, d.h); err != nil {
		return err
	}
	d.peer = p.h.peers[d.h.index]
	for k, n := range d.h.rcv.buffers {
		keys, err := d.h.g.Grant(d.h.regions[k], d.h.peers[p.h.index], 0, n)
		if err != nil {
			return err
		}
		r := &rail.Remote{}
		r.Init(d.peer, k, keys)
		d.remotes = append(d.remotes, r)
	}
	return nil
}

// aim makes the windows, once the destinations are known.
func (p *publisher) aim(o *Options) {
	p.windows = schedule.NewWindows[pending](len(p.dests), o.Limits)
	for i, d := range p.dests {
		if !p.h.g.Caps(0).Ordered || !d.h.g.Caps(0).Ordered {
			p.windows.Single(i, len(p.slice.Stages))
		}
	}
}

// begin begins to write.
func (p *publisher) begin() {
	p.started = true
	w := p.h.w
	p.times.Start = w.now()
	if p.e.Since != p.e.Key {
		w.repaired = max(w.repaired, w.now())
	}
	p.maxima.begin(p)
	p.advance()
}

// advance does what can be done now: begins a copy, begins to stage, writes.
func (p *publisher) advance() {
	if !p.started {
		return
	}
	p.copy()
	p.stage()
	p.submit()
	over := p.stopped || p.open == 0 && p.next == len(p.slice.Tasks)
	if over && p.windows.Flying() == 0 && !p.ended {
		p.ended = true
		p.times.End = p.h.w.now()
		n, k := p.h.node, p.e.Key
		n.later(func(now proto.Time) { n.p.Wrote(now, k, nil, nil, nil) })
	}
}

// copy begins to copy the next task from host memory.
func (p *publisher) copy() {
	o := p.h.w.o
	for !p.copying && !p.stopped && p.next < len(p.slice.Tasks) && p.mayCopy(&p.slice.Tasks[p.next]) {
		j := &job{task: &p.slice.Tasks[p.next], read: sourceBytes(&p.slice.Tasks[p.next])}
		p.next++
		p.open++
		if o.CopyRate < 0 || j.read == 0 {
			p.arrived(j)
			continue
		}
		p.copying = true
		p.times.Copied += j.read
		p.times.Copies++
		p.busy(&p.times.Copy, stepCopy, j.task.Stage, took(j.read, o.CopyRate)+o.CopyCost, func() {
			p.copying = false
			p.arrived(j)
		})
	}
}

// mayCopy keeps copies a little ahead of staging. Where maxima have to be known before a stage can be staged, that is all of it, and of
// the next one.
func (p *publisher) mayCopy(t *reshard.Task) bool {
	if len(p.copied) < copyAhead {
		return true
	}
	return p.maxima.needed(t.Stage) && t.Stage <= p.copied[0].task.Stage+1
}

// arrived: the source bytes of a task are on the GPU.
func (p *publisher) arrived(j *job) {
	p.copied = append(p.copied, j)
	if s := j.task.Stage; p.maxima.needed(s) && (p.next == len(p.slice.Tasks) || p.slice.Tasks[p.next].Stage != s) {
		p.maxima.compute(p, s)
	}
}

// sourceBytes is what the pieces of a task read.
func sourceBytes(t *reshard.Task) (n int64) {
	for i := range t.Pieces {
		x := &t.Pieces[i]
		b := int64(x.From.Size())
		for _, e := range x.Shape {
			b *= e
		}
		n += b
	}
	return n
}

// stage begins to stage the first task that was copied, when there is room.
func (p *publisher) stage() {
	o := p.h.w.o
	for !p.staging && !p.stopped && len(p.copied) > 0 && p.maxima.agreed(p.copied[0].task.Stage) {
		j := p.copied[0]
		if j.task.Size == 0 { // written from where it is
			p.copied = p.copied[1:]
			p.ready(j)
			continue
		}
		off, ok := p.arena.Take(j.task.Size)
		if !ok {
			return // until a Give
		}
		p.copied = p.copied[1:]
		j.off = off
		p.staging = true
		p.times.Stages++
		p.busy(&p.times.Stage, stepStage, j.task.Stage, took(j.read, o.StageRate)+o.TaskCost, func() {
			p.staging = false
			p.ready(j)
		})
		p.copy()
	}
}

// busy has a step busy for a time, and then goes on.
func (p *publisher) busy(sum *time.Duration, step, stage int, d time.Duration, then func()) {
	*sum += d
	p.mark(step, stage, d)
	p.h.w.after(d, func() {
		if p.h.dead {
			return
		}
		then()
		p.advance()
	})
}

// ready queues the runs of a task whose bytes are ready.
func (p *publisher) ready(j *job) {
	if p.stopped {
		return
	}
	j.left = len(j.task.Runs)
	for i := range j.task.Runs {
		r := &j.task.Runs[i]
		p.windows.Add(p.byRank[r.Peer], r.Stage, pending{j, r})
	}
	if j.left == 0 {
		p.release(j)
	}
}

func (p *publisher) release(j *job) {
	p.open--
	if j.task.Size > 0 {
		p.arena.Give(j.off)
	}
}

// submit writes what may be written.
func (p *publisher) submit() {
	for {
		d, x, ok := p.windows.Next()
		if !ok {
			return
		}
		w := p.fill(d, x)
		if p.times.Writes == 0 {
			p.times.First = p.h.w.now()
		}
		if p.marks != nil {
			p.marks[x.run.Stage].post(p.h.w.now(), x.run.Peer)
		}
		p.times.Writes++
		p.times.Bytes += x.run.Len
		if !p.h.g.Submit(&w.Op) {
			p.h.w.fail("%s: the worker is %d operations behind", p.h.name, rail.SubmitDepth)
			return
		}
	}
}

// fill is the operation of a run.
func (p *publisher) fill(d int, x pending) *write {
	var w *write
	if n := len(p.free) - 1; n >= 0 {
		w, p.free = p.free[n], p.free[:n]
	} else {
		w = &write{p: p}
	}
	w.job, w.run, w.dest = x.job, x.run, d
	to := p.dests[d]
	w.Kind, w.Owner, w.Peer, w.Src, w.Dst = rail.Write, w, to.peer, p.h.source(x.job), to.remotes[x.run.Buffer]
	w.SrcOff, w.DstOff, w.Len = uint64(x.run.From+x.job.off), uint64(x.run.Offset), uint64(x.run.Len)
	w.HasImm, w.Imm, w.Parts = true, immOf(p.epoch, x.run.Stage), 1
	return w
}

// source is the memory that the runs of a task are read from.
func (h *host) source(j *job) *rail.Memory {
	if j.task.Size > 0 {
		return h.regions[len(h.regions)-1]
	}
	return h.regions[j.task.Buffer]
}

// Complete is called by the group when a write has ended.
func (w *write) Complete(*rail.Op) {
	p, j, r, d, st := w.p, w.job, w.run, w.dest, w.Status
	w.Reset()
	w.job, w.run = nil, nil
	p.free = append(p.free, w)
	p.windows.Ended(d, r.Stage)
	if p.h.dead {
		return
	}
	if st != provider.StatusOK {
		p.h.w.fail("a write of %s to %s ends with %v", p.h.name, p.dests[d].h.name, st)
		return
	}
	p.h.w.landed += r.Len
	if p.marks != nil {
		p.marks[r.Stage].wrote = p.h.w.now()
	}
	p.placed(p.dests[d], r.Stage)
	if j.left--; j.left == 0 && !p.stopped {
		p.release(j)
	}
	p.advance()
}

// placed tells the machine of a stage that a destination has as a whole.
func (p *publisher) placed(d *destination, stage int) {
	s := &d.stages[stage]
	if s.left--; s.left == 0 {
		n, k := p.h.node, p.e.Key
		sum := proto.StageSum{To: d.member, Stage: stage, Runs: uint64(s.runs), Bytes: uint64(s.bytes)}
		n.later(func(now proto.Time) { n.p.Staged(now, k, []proto.StageSum{sum}) })
	}
}

// stop ends the submitting. Nothing is in flight if it has not begun.
func (p *publisher) stop() {
	if p.stopped = true; p.windows == nil {
		p.aim(p.h.w.o)
	}
	p.started = true
	p.windows.Drop()
}
