package kv

import (
	"context"
	"fmt"
	"maps"

	"github.com/hawser-project/hawser"
)

// serveLink is the Prefiller's side of a link to one decoder: one epoch. Guarded by Prefiller.mu, but for the fields that say
// otherwise.
type serveLink struct {
	peer     *hawser.Peer // set once
	epoch    uint64       // D's number of the link; set once
	ticket   uint64       // ours; set once
	stop     func()       // ends the import of views
	views    []remoteView // set when up
	up       bool
	ended    bool
	lowWater uint64
	jobs     map[uint64]*Job      // by attempt, ended ones too until the decoder forgets them
	partial  map[uint64]*assembly // Dispatches of which parts are missing
	buffered int                  // extents in partial

	work     []work // waits for room in the window, oldest first
	inFlight int    // writes posted and not completed
}

// remoteView is a view of the decoder.
type remoteView struct {
	remote *hawser.Remote
	base   uint64
	stride uint64
	pages  uint32
}

// work is a run of logical pages of one view of a job.
type work struct {
	job         *Job
	view        int
	first, last uint32
}

// assembly collects the parts of a Dispatch. They may come repeated and in any order.
type assembly struct {
	first *dispatch
	parts [][]extent
	need  int // parts
	pages int // in the extents so far
}

// Bounds of what one decoder may make us keep.
const (
	maxPartial  = 64       // Dispatches of which parts are missing
	maxBuffered = MaxPages // extents in them
)

// hello answers a Hello. Needs mu.
func (p *Prefiller) hello(from *hawser.Peer, epoch uint64, m *hello) {
	old := p.links[from]
	switch {
	case old != nil && epoch < old.epoch:
		return
	case old != nil && epoch == old.epoch:
		if old.up {
			p.send(old, &helloAck{})
		}
		return
	case p.closing:
		p.tell(from, head{epoch: epoch}, &helloReject{text: "prefiller is closing"})
		return
	}
	if x := p.cfg.Geometry.mismatch(m.geometry); x != nil {
		p.log.Warn("hello refused", "peer", from, "err", x)
		p.tell(from, head{epoch: epoch}, &helloReject{field: x.Field, here: x.Here, there: x.There})
		return
	}
	if old != nil {
		p.endLink(old, "a newer hello")
	}
	if p.importing[from] {
		return // for a link that has ended, so not for long: the decoder says hello again
	}
	delete(p.complained, from)
	ctx, stop := context.WithTimeout(p.ctx, linkLimit)
	l := &serveLink{
		peer: from, epoch: epoch, ticket: mint(), stop: stop,
		jobs: map[uint64]*Job{}, partial: map[uint64]*assembly{},
	}
	p.links[from], p.importing[from] = l, true
	p.wg.Go(func() { p.importViews(ctx, l, m) })
}

// importViews makes a link usable. It has a goroutine of its own: a slow decoder holds up nobody else.
func (p *Prefiller) importViews(ctx context.Context, l *serveLink, m *hello) {
	views, err := p.resolve(ctx, l, m)
	l.stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.importing, l.peer)
	switch {
	case l.ended:
	case err != nil:
		p.log.Warn("hello refused", "peer", l.peer, "err", err)
		p.send(l, &helloReject{text: err.Error()})
		p.endLink(l, "its memory cannot be used")
	default:
		l.views, l.up = views, true
		p.log.Info("link up", "peer", l.peer, "epoch", l.epoch, "path", l.peer.Path())
		p.send(l, &helloAck{})
	}
}

func (p *Prefiller) resolve(ctx context.Context, l *serveLink, m *hello) ([]remoteView, error) {
	type region struct {
		remote *hawser.Remote
		bytes  uint64
	}
	regions := make([]region, len(m.descriptors))
	for i, b := range m.descriptors {
		remote, bytes, err := p.net.Import(ctx, l.peer, b)
		if err != nil {
			return nil, fmt.Errorf("region %d: %w", i, err)
		}
		regions[i] = region{remote, bytes}
	}
	views := make([]remoteView, len(m.views))
	size := p.cfg.Geometry.Group.PageBytes()
	for i, v := range m.views {
		r := regions[v.region]
		if v.stride < size || !fits(v.base, v.stride, uint64(v.pages), size, r.bytes) {
			return nil, fmt.Errorf("view %d: %w: %d pages from %d, %d bytes apart, do not end inside the region's %d bytes",
				i, hawser.ErrInvalid, v.pages, v.base, v.stride, r.bytes)
		}
		views[i] = remoteView{r.remote, v.base, v.stride, v.pages}
	}
	return views, nil
}

// endLink stops every job of a link without an answer. Needs mu.
func (p *Prefiller) endLink(l *serveLink, why string) {
	if l.ended {
		return
	}
	l.ended = true
	l.stop()
	if p.links[l.peer] == l {
		delete(p.links, l.peer)
	}
	p.log.Info("link ended", "peer", l.peer, "epoch", l.epoch, "why", why)
	l.partial, l.work = nil, nil
	for _, j := range l.jobs {
		if j.step.state.live() {
			p.step(j, serveEvent{kind: svLinkEnded})
		}
	}
}

// send sends a message, or loses it: the decoder repeats what it waits for. Needs mu.
func (p *Prefiller) send(l *serveLink, b body) {
	p.tell(l.peer, head{epoch: l.epoch, ticket: l.ticket}, b)
}

func (p *Prefiller) tell(to *hawser.Peer, h head, b body) {
	if _, err := p.net.Send(to, encode(h, b)); err != nil {
		p.log.Debug("message lost", "kind", b.kind(), "peer", to, "err", err)
	}
}

// receive takes the engine's messages.
func (p *Prefiller) receive() {
	for {
		m, err := p.net.Receive(p.ctx)
		if err != nil {
			return // closing: the engine or the Prefiller
		}
		h, b, err := decode(m.Data)
		p.mu.Lock()
		if err == nil {
			err = p.handle(m.From, h, b)
		}
		if err != nil {
			p.complain(m.From, err)
		}
		p.mu.Unlock()
	}
}

// complain ends the link of a peer that speaks garbage and tells it why, once. Needs mu.
func (p *Prefiller) complain(from *hawser.Peer, err error) {
	p.stats.Unexpected++
	var h head
	if l := p.links[from]; l != nil {
		h.epoch = l.epoch
		p.endLink(l, err.Error())
	}
	if p.complained[from] || !p.net.Up(from) { // one that is not up hears nothing, and there may be no event that forgets it
		return
	}
	p.complained[from] = true
	p.log.Warn("peer is refused", "peer", from, "err", err)
	p.tell(from, h, &bye{err.Error()})
}

// peerEvent is called by the engine. A PeerDown that comes when the peer is up is about a session before, because a callback of
// somebody else took its time: the link is of the new session, or a newer Hello will end it.
func (p *Prefiller) peerEvent(e hawser.PeerEvent) {
	if e.Kind != hawser.PeerDown || p.net.Up(e.Peer) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.complained, e.Peer)
	if l := p.links[e.Peer]; l != nil {
		p.endLink(l, "peer is down")
	}
}

// handle takes one message. The error is the sender's fault and costs it the link. Needs mu.
func (p *Prefiller) handle(from *hawser.Peer, h head, b body) error {
	if m, ok := b.(*hello); ok {
		p.hello(from, h.epoch, m)
		return nil
	}
	l := p.links[from]
	switch {
	case l == nil, !l.up, h.ticket != l.ticket:
		// Of a link that has ended. If the decoder still believes in it, the answer tells it.
		p.stats.Unexpected++
		if b.kind() != kindBye {
			p.tell(from, head{epoch: h.epoch}, &bye{"there is no such link"})
		}
		return nil
	}
	l.forget(h.lowWater)
	switch m := b.(type) {
	case *dispatch:
		if m.seq < l.lowWater {
			return nil
		}
		if m.seq >= h.next || m.seq-l.lowWater >= maxSeqWindow {
			return fmt.Errorf("%w: dispatch of attempt %d, want %d .. %d", ErrProtocol, m.seq, l.lowWater, min(h.next, l.lowWater+maxSeqWindow)-1)
		}
		return p.dispatch(l, m)
	case *cancel:
		if m.seq < l.lowWater {
			return nil
		}
		if m.seq >= h.next || m.seq-l.lowWater >= maxSeqWindow {
			return fmt.Errorf("%w: cancel of attempt %d, want %d .. %d", ErrProtocol, m.seq, l.lowWater, min(h.next, l.lowWater+maxSeqWindow)-1)
		}
		l.discard(m.seq)
		p.step(l.job(p, m.seq), serveEvent{kind: svCancel})
		return nil
	case *bye:
		p.endLink(l, "decoder says: "+m.text)
		return nil
	}
	return fmt.Errorf("%w: %v message from a decoder", ErrProtocol, b.kind())
}

// forget drops what the decoder will not ask about again.
func (l *serveLink) forget(lowWater uint64) {
	if lowWater <= l.lowWater {
		return
	}
	gone := func(seq uint64, j *Job) bool { return j != nil && seq < lowWater && !j.step.state.live() }
	if lowWater-l.lowWater < uint64(len(l.jobs)) { // as always, but for a decoder with many links
		for seq := l.lowWater; seq < lowWater; seq++ {
			if gone(seq, l.jobs[seq]) {
				delete(l.jobs, seq)
			}
		}
	} else {
		maps.DeleteFunc(l.jobs, gone)
	}
	l.lowWater = lowWater
	for seq := range l.partial {
		if seq < lowWater {
			l.discard(seq)
		}
	}
}

// job returns the job of an attempt, a new one in state new if there is none.
func (l *serveLink) job(p *Prefiller, seq uint64) *Job {
	j := l.jobs[seq]
	if j == nil {
		j = &Job{p: p, link: l, seq: seq}
		l.jobs[seq] = j
	}
	return j
}

func (l *serveLink) discard(seq uint64) {
	if a := l.partial[seq]; a != nil {
		for _, extents := range a.parts {
			l.buffered -= len(extents)
		}
		delete(l.partial, seq)
	}
}

// dispatch takes one part of a Dispatch. Needs mu.
func (p *Prefiller) dispatch(l *serveLink, m *dispatch) error {
	if j := l.jobs[m.seq]; j != nil { // a repetition: answered once, not for each part
		if m.part == 0 {
			p.step(j, serveEvent{kind: svDispatch})
		}
		return nil
	}
	a := l.partial[m.seq]
	if a == nil {
		if code, text := p.refusal(m); code != 0 {
			p.refuse(l, m, code, text)
			return nil
		}
		if len(l.partial) >= maxPartial {
			p.refuse(l, m, CodeBusy, "too many dispatches in parts")
			return nil
		}
		a = &assembly{first: m, parts: make([][]extent, m.parts), need: m.parts}
		l.partial[m.seq] = a
	}
	f := a.first
	if m.id != f.id || m.imm != f.imm || m.tokens != f.tokens || m.expected != f.expected || m.parts != f.parts {
		return fmt.Errorf("%w: the parts of dispatch of attempt %d differ", ErrProtocol, m.seq)
	}
	if a.parts[m.part] != nil {
		return nil
	}
	a.parts[m.part] = m.extents
	a.need--
	l.buffered += len(m.extents)
	for _, e := range m.extents {
		a.pages += int(e.n)
	}
	switch pages := p.cfg.Geometry.Pages(m.tokens); {
	case a.pages > pages || a.need == 0 && a.pages < pages:
		p.refuse(l, m, CodeInvalid, fmt.Sprintf("%d pages are listed, %d tokens need %d", a.pages, m.tokens, pages))
	case a.need == 0:
		l.discard(m.seq)
		p.accept(l, a)
	case l.buffered > maxBuffered:
		p.refuse(l, m, CodeBusy, "too many dispatches in parts")
	}
	return nil
}

// refusal says why a Dispatch is refused whatever pages it lists; the code is 0 when it is not. Needs mu.
func (p *Prefiller) refusal(m *dispatch) (Code, string) {
	g := p.cfg.Geometry
	switch {
	case p.closing:
		return CodeClosed, "prefiller is closing"
	case p.live >= p.cfg.Jobs:
		return CodeBusy, fmt.Sprintf("%d jobs are queued", p.live)
	case g.Pages(m.tokens) > p.pages:
		return CodeInfeasible, fmt.Sprintf("prompt needs %d pages, the prefiller has %d", g.Pages(m.tokens), p.pages)
	case m.expected != g.Writes(m.tokens):
		return CodeInvalid, fmt.Sprintf("%d writes expected there for %d tokens, %d here", m.expected, m.tokens, g.Writes(m.tokens))
	}
	return 0, ""
}

// accept makes a job of a Dispatch that is complete, or refuses it. Needs mu.
func (p *Prefiller) accept(l *serveLink, a *assembly) {
	m := a.first
	if code, text := p.refusal(m); code != 0 { // since the first part
		p.refuse(l, m, code, text)
		return
	}
	dst, err := l.place(a.parts, p.cfg.Geometry.Pages(m.tokens))
	if err != nil {
		p.refuse(l, m, CodeInvalid, err.Error())
		return
	}
	j := l.job(p, m.seq)
	j.id, j.tokens, j.imm, j.dst = m.id, m.tokens, m.imm, dst
	if err := p.handler.Admit(j); err != nil {
		p.refuse(l, m, CodeInfeasible, err.Error())
		return
	}
	p.live++
	p.stats.Accepted++
	p.step(j, serveEvent{kind: svDispatch, n: m.expected})
}

func (p *Prefiller) refuse(l *serveLink, m *dispatch, code Code, text string) {
	l.discard(m.seq)
	j := l.job(p, m.seq)
	j.code, j.text = code, text
	p.stats.Rejected++
	p.step(j, serveEvent{kind: svRefuse})
}

// place puts extents in the order of logical pages: each of them exactly once, on a page that every view of the decoder has.
func (l *serveLink) place(parts [][]extent, pages int) ([]uint32, error) {
	const missing = ^uint32(0)
	most := uint32(MaxPages)
	for _, v := range l.views {
		most = min(most, v.pages)
	}
	dst := make([]uint32, pages)
	for i := range dst {
		dst[i] = missing
	}
	for _, extents := range parts {
		for _, e := range extents {
			// No sum overflows: each term is at most MaxPages.
			if int(e.logical+e.n) > pages || e.physical+e.n > most {
				return nil, fmt.Errorf("pages %d..%d at %d..%d: the prompt has %d pages, a view %d",
					e.logical, e.logical+e.n-1, e.physical, e.physical+e.n-1, pages, most)
			}
			for i := range e.n {
				if dst[e.logical+i] != missing {
					return nil, fmt.Errorf("page %d is listed twice", e.logical+i)
				}
				dst[e.logical+i] = e.physical + i
			}
		}
	}
	for i, page := range dst {
		if page == missing {
			return nil, fmt.Errorf("page %d of %d is not listed", i, pages)
		}
	}
	return dst, nil
}

// step feeds one event to a job and carries the effects out. Needs mu.
func (p *Prefiller) step(j *Job, e serveEvent) {
	next, fx, ok := j.step.step(e)
	if !ok {
		p.stats.Unexpected++
		p.log.Debug("unexpected event", "attempt", j.seq, "state", j.step.state, "event", e.kind)
	}
	before := j.step
	j.step = next
	if next.state != before.state {
		p.log.Debug("job", "request", j.id, "attempt", j.seq, "from", before.state, "event", e.kind, "to", next.state)
	}
	if fx&fxAccept != 0 {
		p.send(j.link, &accept{j.seq})
	}
	if fx&fxReject != 0 {
		p.send(j.link, &reject{j.seq, j.code, j.text})
	}
	if fx&fxTiming != 0 {
		p.send(j.link, &timing{j.seq, hostID(), j.begun.UnixNano(), j.computed.UnixNano(), j.layers, j.late})
	}
	if next.state == serveTomb {
		j.src, j.dst, j.complete = nil, nil, nil // a tomb is kept for its answer only
		if j.seq < j.link.lowWater {
			delete(j.link.jobs, j.seq) // and not even for that
		}
	}
	if fx&fxUnpin != 0 {
		p.live--
		if next.left == 0 && next.exact {
			p.stats.Done++
		}
		p.handler.Stop(j)
		if p.live == 0 && p.closing {
			p.rest()
		}
	}
	if fx&fxCancelAck != 0 {
		p.send(j.link, &cancelAck{j.seq, next.posted, next.exact})
	}
	if fx&fxFailed != 0 {
		p.send(j.link, &failed{cancelAck{j.seq, next.posted, next.exact}, j.code, j.text})
	}
}
