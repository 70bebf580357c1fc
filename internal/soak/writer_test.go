//go:build soak

package soak

import (
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/hawser-project/hawser"
)

// maxCount is the most immediates of one lease.
const maxCount = 16

// asked is an ask that waits for its answer.
type asked struct {
	to string
	ch chan *grant // capacity 1
}

// imported is a region of another engine.
type imported struct {
	desc string
	rem  *hawser.Remote
}

// actor is one of those who use an engine.
type actor struct {
	*node
	place int
	rng   *rand.Rand
	q     *hawser.Queue
}

func (n *node) act(rng *rand.Rand, place int) {
	a := &actor{node: n, place: place, rng: rng, q: n.e.NewQueue(1)}
	for n.gate.enter() {
		if o, ok := a.other(); ok {
			a.operate(o)
		} else {
			time.Sleep(10 * time.Millisecond) // nobody is there
		}
		n.gate.leave()
	}
}

func (a *actor) other() (entry, bool) {
	all := a.m.others()
	if len(all) == 0 {
		return entry{}, false
	}
	least := all[0] // in an order that does not depend on the map's
	k := a.rng.IntN(len(all))
	for range k + 1 {
		least = entry{}
		for _, e := range all {
			if e.ID != "" && (least.ID == "" || e.ID < least.ID) {
				least = e
			}
		}
		for i := range all {
			if all[i] == least {
				all[i] = entry{}
			}
		}
	}
	return least, true
}

func (a *actor) operate(to entry) {
	switch k := a.rng.IntN(100); {
	case k < 70:
		a.write(to)
	case k < 80:
		a.scatter()
	case k < 88:
		a.signal(to)
	case k < 98:
		a.talk(to)
	default:
		a.connect(to)
	}
}

// lease asks an owner for a lease.
func (a *actor) lease(to entry, cell bool) *grant {
	ch := make(chan *grant, 1)
	a.mu.Lock()
	if a.ending || !a.m.knows(to.ID) {
		a.mu.Unlock()
		return nil
	}
	a.asking++
	n := a.asking
	a.asks[n] = asked{to.ID, ch}
	a.mu.Unlock()
	a.route(packet{To: to.ID, Ask: &ask{N: n, Cell: cell}})
	g := <-ch
	if g == nil || g.Token == 0 {
		return nil
	}
	return g
}

func (n *node) granted(g *grant) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if a, ok := n.asks[g.N]; ok {
		delete(n.asks, g.N)
		a.ch <- g
	}
}

// dropAsks ends the waits for an engine that is gone, or all when it is our own.
func (n *node) dropAsks(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ending = n.ending || id == "" // others may be stopped: nobody waits for them any more
	for k, a := range n.asks {
		if id == "" || a.to == id {
			delete(n.asks, k)
			a.ch <- nil
		}
	}
}

// remote imports the region of a grant, or finds it imported; nil when that did not work.
func (a *actor) remote(to entry, g *grant) *hawser.Remote {
	var d hawser.Descriptor
	if err := d.UnmarshalText([]byte(g.Desc)); err != nil {
		a.m.wrong("descriptor: %v", err)
		return nil
	}
	a.mu.Lock()
	im := a.known[to.ID][g.Field]
	a.mu.Unlock()
	if im.desc == g.Desc {
		return im.rem
	}
	ctx, cancel := patience()
	defer cancel()
	rem, err := a.e.Import(ctx, d)
	if err != nil {
		a.failed("import", err)
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.known[to.ID] == nil {
		a.known[to.ID] = map[int]imported{}
	}
	a.known[to.ID][g.Field] = imported{g.Desc, rem}
	return rem
}

// forget drops imports that do not work any more.
func (a *actor) forget(to entry) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.known, to.ID)
}

// forgetAll drops all imports: everybody was fenced.
func (n *node) forgetAll() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.known)
}

// source is the actor's place, filled as the lease wants it.
func (a *actor) source(owner string, g *grant) (s hawser.Slice, ok bool) {
	return a.src.Slice(uint64(a.place)*maxCell, g.Len), a.fill(owner, g, 0)
}

// fill fills the actor's place from an offset on.
func (a *actor) fill(owner string, g *grant, at uint64) bool {
	a.memory.RLock()
	defer a.memory.RUnlock()
	if a.closed {
		return false
	}
	contents(owner, g.Token, a.src.Bytes()[uint64(a.place)*maxCell+at:][:min(g.Len, maxCell-at)])
	return true
}

// spoil makes sure that bytes that are read too late are noticed.
func (a *actor) spoil(s hawser.Slice) {
	a.memory.RLock()
	defer a.memory.RUnlock()
	if !a.closed {
		b := a.src.Bytes()[s.Off:][:s.Len]
		for i := range b {
			b[i] = spoiled
		}
	}
}

// write writes to a cell of another engine.
func (a *actor) write(to entry) {
	g := a.lease(to, true)
	if g == nil {
		a.m.counts.add("nothing to lease", 1)
		return
	}
	o := &outcome{Token: g.Token}
	defer func() { a.route(packet{To: to.ID, Report: o}) }()
	rem := a.remote(to, g)
	if rem == nil {
		return
	}
	src, ok := a.source(to.ID, g)
	if !ok {
		return
	}
	defer a.spoil(src)
	a.finish(to, o, "write", a.submit(src, rem.Slice(g.Off, g.Len), g.Imm, o))
}

// submit writes src to dst in one of many ways, and says in o what it will be. It returns how to submit.
func (a *actor) submit(src hawser.Slice, dst hawser.RemoteSlice, imm uint32, o *outcome) operation {
	length := uint64(a.rng.Int64N(int64(src.Len) + 1))
	if a.rng.IntN(8) == 0 {
		length = uint64(a.rng.IntN(100))
	}
	o.Pages, o.PageLen, o.Step = 1, length, length
	src.Len, dst.Len = length, length
	w := hawser.Write{Src: src, Dst: dst, Pin: a.pin(dst.Remote.Peer())}
	switch a.rng.IntN(4) {
	case 0:
		a.m.counts.add("writes", 1)
	case 1:
		a.m.counts.add("writes in parts", 1)
		w.Imm, w.Parts = hawser.Imm(imm), 1+a.rng.IntN(maxCount)
		o.Count = uint64(w.Parts)
	case 2:
		a.m.counts.add("writes with an immediate", 1)
		w.Imm = hawser.Imm(imm)
		o.Count = 1
	default:
		return a.pages(src, dst, imm, o)
	}
	return operation{
		submit:  func() (*hawser.Transfer, error) { return a.e.Write(w) },
		queue:   func() error { return a.q.Write(w, o.Token) },
		prepare: func() (*hawser.Template, error) { return a.e.Prepare(w) },
	}
}

// pin restricts some operations to one rail: over a network that has several, and to none otherwise.
func (a *actor) pin(p *hawser.Peer) (r hawser.OptRail) {
	if p.Path() == "tcp" && a.rng.IntN(4) == 0 {
		a.m.counts.add("pinned operations", 1)
		r = hawser.OnRail(a.m.tcpRail() + a.rng.IntN(len(a.m.Rails)))
	}
	return r
}

// pages writes every page, or every second one, of a cell, in any order, with immediates or without.
func (a *actor) pages(src hawser.Slice, dst hawser.RemoteSlice, imm uint32, o *outcome) operation {
	a.m.counts.add("writes of pages", 1)
	n, gap := 1+a.rng.IntN(maxCount), uint64(1+a.rng.IntN(2))
	o.Pages, o.PageLen = uint64(n), src.Len/(uint64(n)*gap)
	o.Step = o.PageLen * gap
	idx := make([]uint32, n)
	for i, k := range a.rng.Perm(n) {
		idx[i] = uint32(k)
	}
	w := hawser.WritePages{
		PageLen: o.PageLen,
		Src:     hawser.Pages{Region: src.Region, Indices: idx, Stride: o.Step, Offset: src.Off},
		Dst:     hawser.RemotePages{Remote: dst.Remote, Indices: idx, Stride: o.Step, Offset: dst.Off},
	}
	if a.rng.IntN(3) > 0 {
		w.Imm = hawser.Imm(imm)
		o.Count = uint64(n)
		if w.Pin = a.pin(dst.Remote.Peer()); w.Pin != (hawser.OptRail{}) { // it keeps the order of writes
			w.ImmLast, o.Count = true, 1
		}
	}
	return operation{
		submit:  func() (*hawser.Transfer, error) { return a.e.WritePages(w) },
		queue:   func() error { return a.q.WritePages(w, o.Token) },
		prepare: func() (*hawser.Template, error) { return a.e.Prepare(w) },
	}
}

// operation is one that can be submitted in several ways; prepare may be nil.
type operation struct {
	submit  func() (*hawser.Transfer, error)
	queue   func() error
	prepare func() (*hawser.Template, error)
}

// finish submits an operation, waits for its end, and says in o what has become of it.
func (a *actor) finish(to entry, o *outcome, what string, op operation) {
	sent, err := a.run(op, o.Token)
	o.Sent, o.OK = sent, err == nil
	if err != nil {
		a.failed(what, err)
		a.forget(to)
	}
}

// run submits an operation in one of several ways and waits for its end.
func (a *actor) run(op operation, cookie uint64) (sent bool, err error) {
	ctx, cancel := patience()
	defer cancel()
	if op.prepare != nil && a.rng.IntN(4) == 0 {
		t, err := op.prepare()
		if err != nil {
			return false, err
		}
		a.m.counts.add("prepared operations", 1)
		op.submit = func() (*hawser.Transfer, error) { return t.Submit(t.Args()) }
		op.queue = func() error { return a.q.Submit(t, t.Args(), cookie) }
	}
	if a.rng.IntN(2) == 0 {
		tr, err := op.submit()
		if err != nil {
			return false, err
		}
		return true, tr.Wait(ctx)
	}
	if err := op.queue(); err != nil {
		return false, err
	}
	var done [1]hawser.Done
	if _, err := a.q.Wait(ctx, done[:]); err != nil {
		return true, err
	}
	if done[0].Cookie != cookie {
		a.m.wrong("the end of operation %d, want %d", done[0].Cookie, cookie)
	}
	return true, done[0].Err
}

// scatterPart is the most that a scatter writes to one target.
const scatterPart = maxCell / 4

// scatter writes to several cells, of the same engine or of others, at once.
func (a *actor) scatter() {
	s := hawser.Scatter{Src: a.src.Slice(uint64(a.place)*maxCell, maxCell)}
	var tos []entry
	var outs []*outcome
	defer func() {
		for i, o := range outs {
			a.route(packet{To: tos[i].ID, Report: o})
		}
	}()
	defer a.spoil(s.Src)
	for range 1 + a.rng.IntN(maxCell/scatterPart) {
		to, ok := a.other()
		if !ok {
			return
		}
		g := a.lease(to, true)
		if g == nil {
			continue
		}
		tos, outs = append(tos, to), append(outs, &outcome{Token: g.Token})
		rem := a.remote(to, g)
		if rem == nil {
			return
		}
		at := uint64(len(outs)-1) * scatterPart
		if !a.fill(to.ID, g, at) {
			return
		}
		s.Targets = append(s.Targets, a.targetOf(rem, g, at, outs[len(outs)-1]))
	}
	if len(outs) == 0 {
		return
	}
	a.m.counts.add("scatters", 1)
	sent, err := a.run(operation{
		submit:  func() (*hawser.Transfer, error) { return a.e.Scatter(s) },
		queue:   func() error { return a.q.Scatter(s, 1) },
		prepare: func() (*hawser.Template, error) { return a.e.Prepare(s) },
	}, 1)
	for i, o := range outs {
		o.Sent, o.OK = sent, err == nil
		if sent && err != nil {
			o.OK = !failedTarget(err, i)
		}
	}
	if err != nil {
		a.failed("scatter", err)
		for _, to := range tos {
			a.forget(to)
		}
	}
}

// targetOf is a part of a scatter, and says in o what it will be.
func (a *actor) targetOf(rem *hawser.Remote, g *grant, at uint64, o *outcome) hawser.Target {
	n := uint64(a.rng.Int64N(int64(min(g.Len, scatterPart)) + 1))
	o.Pages, o.PageLen, o.Step = 1, n, n
	t := hawser.Target{Dst: rem.Slice(g.Off, g.Len), SrcOff: at, Len: n}
	if a.rng.IntN(3) > 0 {
		t.Imm, t.Parts = hawser.Imm(g.Imm), 1+a.rng.IntN(maxCount)
		o.Count = uint64(t.Parts)
	}
	return t
}

// failedTarget reports whether a target of a scatter has failed: all have when the error is not about targets.
func failedTarget(err error, i int) bool {
	var s *hawser.ScatterError
	return !errors.As(err, &s) || slices.ContainsFunc(s.Failed, func(f hawser.TargetError) bool { return f.Index == i })
}

// signal sends immediates without data.
func (a *actor) signal(to entry) {
	p := a.connect(to)
	if p == nil {
		return
	}
	g := a.lease(to, false)
	if g == nil {
		return
	}
	a.m.counts.add("signals", 1)
	o := &outcome{Token: g.Token, Count: 1}
	defer func() { a.route(packet{To: to.ID, Report: o}) }()
	s := hawser.Signal{To: p, Imm: g.Imm}
	a.finish(to, o, "signal", operation{
		submit: func() (*hawser.Transfer, error) { return a.e.Signal(s) },
		queue:  func() error { return a.q.Signal(s, o.Token) },
	})
}

// connect returns the peer, nil when it cannot be reached.
func (a *actor) connect(to entry) *hawser.Peer {
	ctx, cancel := patience()
	defer cancel()
	p, err := a.e.Connect(ctx, to.Addr)
	if err != nil {
		a.failed("connect", err)
		return nil
	}
	if id := p.ID().String(); id != to.ID {
		a.m.wrong("connected to %s, want %s", id, to.ID)
	}
	return p
}
