package kvtest

import (
	"encoding/binary"
	"errors"
	"slices"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv/layout"
	"github.com/hawser-project/hawser/kv/pool"
	"github.com/hawser-project/hawser/kv/proto"
)

// job is a job as the inference engine knows it.
type job struct {
	p       *prefiller
	id      proto.JobID
	q       *asked
	listed  bool // in prefiller.order, or was
	started bool
	stopped bool
	sourced bool // the machine has pages
	waiting bool // for pages
	evicted bool // preempted: the machine gives the pages back
	leases  []pool.Lease
	prefix  pool.Prefix
	pages   [][]uint32 // of each group, by logical page
	gen     uint8
	cached  int
	planned int // tokens that passes have begun with
	done    int // tokens computed in all layers
	tail    []byte
	told    bool // Tail was called

	inPasses    int
	outstanding int // operations
}

// pass is a forward pass.
type pass struct {
	id    proto.PassID
	base  uint64
	spans []chunk
	layer int // computed
}

type chunk struct {
	j    *job
	from int
	to   int
}

func (p *prefiller) job(id proto.JobID, request string) *job {
	j := p.jobs[id]
	if j == nil {
		j = &job{p: p, id: id, q: p.w.byID[request]}
		p.jobs[id] = j
		if j.q == nil {
			p.w.fail("model", "%s: job of request %q, which nobody made", p.name, request)
			j.q = p.w.asked[0]
		}
	}
	return j
}

// enlist is when the machine will call Stop.
func (j *job) enlist() {
	if !j.listed {
		j.listed = true
		j.p.order = append(j.p.order, j)
	}
}

// expect is the prompt that comes to the prefillers by themselves.
func (w *world) expect(q *asked, instance int) {
	for _, addr := range w.addrs(instance) {
		w.after(max(q.Expect, 0), func() {
			p := w.at[addr]
			if p == nil {
				return
			}
			p.run(func() {
				p.expecting = q
				id, err := p.m.Expect(w.now, q.id, proto.Prompt{Tokens: q.Tokens})
				p.expecting = nil
				w.note("%s: expect %s: %v", p.name, q.id, err)
				if err == nil {
					p.job(id, q.id).enlist()
				}
			})
		})
	}
}

func (p *prefiller) Admit(id proto.JobID, info *proto.JobInfo) proto.Admission {
	w := p.w
	j := p.job(id, info.Request)
	if info.Expected {
		j.enlist()
	}
	if ids := info.Prompt.IDs; ids != nil && !slices.Equal(ids, j.q.prompt.ids) || info.Prompt.Tokens != j.q.Tokens {
		w.fail("I5", "%s: job of %s has another prompt", p.name, info.Request)
	}
	switch {
	case info.Prompt.IDs == nil && info.Prompt.Key == "" && !info.Expected:
		return proto.Admission{Verdict: proto.AdmitUnknown}
	case w.chance(w.sc.Engine.Refuse):
		return proto.Admission{Verdict: proto.AdmitRefused, Code: proto.CodeEngine, Text: "no"}
	}
	if src, ok := j.reserve(); ok {
		return proto.Admission{Verdict: proto.AdmitReady, Source: src}
	}
	j.waiting = true
	return proto.Admission{Verdict: proto.AdmitQueued}
}

// reserve gets the pages of a job, if there are enough.
func (j *job) reserve() (proto.SourcePages, bool) {
	p := j.p
	groups := p.mem.of.Groups
	var hashes []pool.Hash
	if len(groups) == 1 && p.w.sc.Engine.Cache {
		hashes = j.hashes()
		j.prefix = p.pools[0].Lookup(hashes)
	}
	j.leases, j.pages = j.leases[:0], nil
	var src proto.SourcePages
	for g := range groups {
		have := j.prefix.Pages
		l, err := p.pools[g].Reserve((j.q.Tokens+groups[g].PageTokens-1)/groups[g].PageTokens - len(have))
		if err != nil {
			j.unlease()
			return src, false
		}
		j.leases = append(j.leases, l)
		j.pages = append(j.pages, append(slices.Clone(have), l.Pages...))
		src.Pages = append(src.Pages, layout.Pages{Index: j.pages[g]})
	}
	p.gen++
	j.gen, j.sourced, j.waiting = p.gen, true, false
	j.cached = len(j.prefix.Pages) * groups[0].PageTokens
	src.Cached = j.cached
	j.planned, j.done = j.cached, j.cached
	return src, true
}

func (j *job) hashes() []pool.Hash {
	return pool.Hashes(pool.Hash{}, j.q.prompt.ids, j.p.mem.of.Groups[0].PageTokens)
}

// unlease gives the pages back to the pools.
func (j *job) unlease() {
	p := j.p
	for g, l := range j.leases {
		for _, page := range l.Pages {
			if n := p.reading[g][page]; n > 0 {
				p.w.fail("I2", "%s: page %d of group %d is free, and %d writes still read it", p.name, page, g, n)
			}
		}
		if len(j.pages) == 1 && p.w.sc.Engine.Cache && j.done > j.cached {
			full := j.done / p.mem.of.Groups[0].PageTokens
			if err := p.pools[g].Publish(l, j.hashes()[len(j.prefix.Pages):full]); err != nil {
				p.w.fail("model", "%s: %v", p.name, err)
			}
		}
		if err := p.pools[g].Drop(l, pool.OwnerRequest); err != nil {
			p.w.fail("model", "%s: %v", p.name, err)
		}
	}
	if err := p.pools[0].Unpin(j.prefix); err != nil {
		p.w.fail("model", "%s: %v", p.name, err)
	}
	j.leases, j.prefix = nil, pool.Prefix{}
}

func (p *prefiller) Start(id proto.JobID) {
	j := p.jobs[id]
	if j == nil || j.started {
		p.w.fail("model", "%s: Start of job %d, which is not admitted or was started", p.name, id)
		return
	}
	j.started = true
	j.enlist()
	p.wake()
}

func (p *prefiller) Stop(id proto.JobID) {
	j := p.jobs[id]
	if p.expecting != nil && (j == nil || !j.listed) { // before Expect returns
		p.job(id, p.expecting.id).enlist()
		j = p.jobs[id]
	}
	if j == nil || j.stopped || !j.listed {
		p.w.fail("I3", "%s: Stop of job %d, which is not there or was stopped", p.name, id)
		return
	}
	p.w.note("%s: job of %s stops", p.name, j.q.id)
	j.stopped, j.waiting = true, false
	p.settle(j)
}

func (p *prefiller) Unpin(id proto.JobID) {
	j := p.jobs[id]
	switch {
	case j == nil || !j.sourced:
		p.w.fail("I2", "%s: Unpin of job %d, which has no pages", p.name, id)
		return
	case j.outstanding > 0:
		p.w.fail("I2", "%s: Unpin of job %d, which has %d operations outstanding", p.name, id, j.outstanding)
	}
	j.sourced = false
	p.settle(j)
}

// settle takes what is no more needed from a job.
func (p *prefiller) settle(j *job) {
	if j.sourced || j.inPasses > 0 || !j.stopped && !j.evicted {
		p.wake()
		return
	}
	if j.leases != nil {
		j.unlease()
	}
	if j.stopped {
		p.order = slices.DeleteFunc(p.order, func(o *job) bool { return o == j })
	} else {
		j.evicted, j.waiting = false, true
	}
	p.wake()
}

// wake lets the scheduler run soon.
func (p *prefiller) wake() {
	if p.begins {
		return
	}
	p.begins = true
	p.do(p.w.quick(), func() {
		p.begins = false
		p.schedule()
	})
}

// schedule gives pages to jobs that wait, and begins passes.
func (p *prefiller) schedule() {
	w, e := p.w, &p.w.sc.Engine
	for _, j := range slices.Clone(p.order) {
		if !j.waiting || !j.started {
			continue
		}
		src, ok := j.reserve()
		if !ok {
			break
		}
		if err := p.m.Sourced(w.now, j.id, src); err != nil {
			w.fail("model", "%s: Sourced of job %d: %v", p.name, j.id, err)
		}
	}
	for _, j := range slices.Clone(p.order) {
		if !j.started || j.stopped || !j.sourced || j.evicted || j.inPasses > 0 {
			continue
		}
		switch {
		case w.chance(e.Preempt):
			w.note("%s: preempt %s", p.name, j.q.id)
			j.evicted, j.told = true, false
			p.m.Preempt(w.now, j.id)
		case w.chance(e.Fail):
			w.note("%s: fail %s", p.name, j.q.id)
			p.m.Fail(w.now, j.id, proto.CodeEngine, "broken")
		case j.done == j.q.Tokens:
			p.finish(j)
		}
	}
	for len(p.passes) < e.Ahead && p.beginPass() {
	}
	p.compute()
}

// finish is for a job that is computed.
func (p *prefiller) finish(j *job) {
	if j.told || p.w.shape.src.TailWriter() != p.member {
		return
	}
	j.told = true
	if j.tail == nil {
		j.tail = binary.LittleEndian.AppendUint32(nil, j.q.prompt.tail())
	}
	if err := p.m.Tail(p.w.now, j.id); err != nil {
		p.w.fail("model", "%s: Tail of job %d: %v", p.name, j.id, err)
	}
}

// beginPass begins a pass with what there is to compute.
func (p *prefiller) beginPass() bool {
	w := p.w
	room := w.sc.Engine.Chunk
	var spans []chunk
	for _, j := range p.order {
		if !j.started || j.stopped || !j.sourced || j.evicted {
			continue
		}
		n := min(j.q.Tokens-j.planned, room)
		if j.planned+n == j.q.Tokens-1 {
			n-- // without a tail the last page is sent whole when all tokens but the last one are there: that must not follow
		}
		if n > 0 {
			spans = append(spans, chunk{j, j.planned, j.planned + n})
			room -= n
		}
	}
	if spans == nil {
		return false
	}
	call := make([]proto.PassSpan, len(spans))
	for i, c := range spans {
		call[i] = proto.PassSpan{Job: c.j.id, Span: proto.Span{First: c.from, N: c.to}}
	}
	id, base, err := p.m.Begin(w.now, call)
	if errors.Is(err, hawser.ErrBusy) {
		return false // the ends of passes are on their way
	}
	if err != nil {
		w.fail("model", "%s: Begin: %v", p.name, err)
		return false
	}
	for _, c := range spans {
		c.j.planned = c.to
		c.j.inPasses++
	}
	p.passes = append(p.passes, &pass{id: id, base: base, spans: spans})
	return true
}

// compute lets the device run, whether the host is frozen or not.
func (p *prefiller) compute() {
	if p.running || len(p.passes) == 0 {
		return
	}
	p.running = true
	w := p.w
	w.after(w.sc.Engine.Layer/2+w.upTo(w.sc.Engine.Layer), func() {
		if p.dead {
			return
		}
		s := p.passes[0]
		if w.chance(w.sc.Engine.Abort / 4) {
			p.do(w.quick(), p.abort) // the device stands still until then
			return
		}
		p.running = false
		p.layer(s)
		if s.layer < p.layers() {
			p.compute()
			return
		}
		p.callAt = max(p.callAt, w.now+w.quick())
		p.passes = p.passes[1:]
		p.do(p.callAt-w.now+1, func() { p.ended(s) })
		p.compute()
	})
}

// layers is how many layers the ranks of this member have at most.
func (p *prefiller) layers() int {
	n := 0
	for i := range p.mem.of.Ranks {
		n = max(n, p.mem.of.Ranks[i].Layers)
	}
	return n
}

// layer computes the next layer of a pass on all ranks, and tells.
func (p *prefiller) layer(s *pass) {
	l, w := s.layer, p.w
	s.layer++
	for _, c := range s.spans {
		g := p.mem.of.GroupOf(p.mem.of.Ranks[0].LayerFirst + l)
		p.mem.fill(c.j.q.prompt, p.mem.of.Ranks[0].LayerFirst+l, c.from, c.to, c.j.pages[g], c.j.gen)
	}
	for r := range p.words {
		p.words[r] = s.base + uint64(l) + 1
		if !w.sc.Engine.Words {
			p.callAt = max(p.callAt, w.now+w.quick())
			p.do(p.callAt-w.now, func() { p.m.LayerReady(w.now, s.id, r, l) })
			continue
		}
		if p.woken[r] && !w.chance(0.1) {
			continue
		}
		p.woken[r] = true
		p.do(w.delay(), func() {
			p.woken[r] = false
			p.m.Progress(w.now, r, p.words[r])
		})
	}
}

// ended is when the host sees that a pass is through.
func (p *prefiller) ended(s *pass) {
	p.m.PassEnd(p.w.now, s.id)
	for _, c := range s.spans {
		c.j.inPasses--
		c.j.done = max(c.j.done, c.to)
		p.settle(c.j)
	}
	p.wake()
}

// abort gives up the pass that runs and those begun after it.
func (p *prefiller) abort() {
	w := p.w
	for _, s := range slices.Backward(p.passes) {
		w.note("%s: abort pass %d", p.name, s.id)
		w.Aborts++
		p.m.PassAbort(w.now, s.id)
		for _, c := range s.spans {
			c.j.inPasses--
			c.j.planned = min(c.j.planned, c.from)
			p.settle(c.j)
		}
	}
	p.passes, p.running = nil, false
	p.wake()
}

// idle reports whether the engine has nothing to do and all its pages are free or cached.
func (p *prefiller) idle() bool {
	if len(p.order) > 0 || len(p.passes) > 0 {
		return false
	}
	for _, pl := range p.pools {
		if c := pl.Counts(); c.Leased+c.Pinned > 0 {
			return false
		}
	}
	return true
}
