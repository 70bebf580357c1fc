package rail

import (
	"github.com/hawser-project/hawser/internal/invariants"
	"github.com/hawser-project/hawser/provider"
)

// enqueueAll enqueues a chain of operations and returns how many they are.
// hot:
func (g *Group) enqueueAll(op *Op) int {
	n := 0
	for op != nil {
		next := op.Chain // before the operation can end, which gives it back
		op.Chain = nil
		g.enqueue(op)
		op = next
		n++
	}
	return n
}

// enqueue puts an operation at the end of its list.
// hot:
func (g *Group) enqueue(op *Op) {
	if m := op.Src; m != nil {
		m.ops++
	}
	if r := op.Dst; r != nil && r.Hold != nil {
		r.Hold.ops++
	}
	p := op.Peer
	if p == nil { // nothing to do but to end
		g.end(op)
		return
	}
	if op.Kind == Signal || op.Kind == Send || op.ImmLast && op.Parts == 0 {
		op.Parts = 1
	}
	switch {
	case p.down || op.Dst != nil && op.Dst.Peer != p:
		op.fail(provider.StatusFlushed)
	case op.Dst != nil && (op.Dst.closed || op.Dst.Hold != nil && op.Dst.Hold.Revoked()):
		op.fail(provider.StatusAccess)
	case op.Src != nil && op.Src.retired:
		op.fail(provider.StatusLocal)
	}
	if op.Status != provider.StatusOK || op.Kind == Pages && op.Parts == 0 { // failed, or no pages
		g.end(op)
		return
	}
	if !p.queued && op.Parts == 1 && g.placeAtOnce(p, op) {
		return
	}
	op.list().push(op)
	g.queue(p)
}

// end ends an operation: the only way to its Complete.
// hot:
func (g *Group) end(op *Op) {
	if m := op.Src; m != nil {
		m.ops--
	}
	if r := op.Dst; r != nil && r.Hold != nil {
		h := r.Hold
		if h.ops--; h.ops == 0 && h.Revoked() {
			h.Drained()
		}
	}
	op.Owner.Complete(op)
}

// placeAtOnce places an operation of one part that finds nothing before it, without a detour over the lists, and reports whether that is
// all of it. It counts as part of the peer's turn in this Step.
// hot:
func (g *Group) placeAtOnce(p *Peer, op *Op) bool {
	if p.step != g.step {
		p.step, p.atOnce = g.step, 0
	}
	if p.atOnce == turn || g.closed {
		return false
	}
	if op.Kind == Write || op.Kind == Signal {
		if l := g.pickWhole(p, op); l != nil {
			g.placeWhole(l, op)
			p.atOnce++
			return true
		}
	}
	if !g.placePiece(p, op) {
		return false
	}
	p.atOnce++
	return op.placed()
}

// pickWhole is pick for an operation that has not begun and goes as one request; nil: not now, or not so.
// hot:
func (g *Group) pickWhole(p *Peer, op *Op) *link {
	var l *link
	if len(p.links) == 1 && op.Rail == 0 { // mostly there is no choice
		l = p.links[0]
		if l.state != ready || l.outstanding >= l.rail.caps.PeerDepth || op.Len > 0 && !g.covers(op.Dst, l) {
			return nil
		}
	} else if l = g.pick(p, op, &piece{n: op.Len}); l == nil {
		return nil
	}
	if op.Len > l.rail.caps.MaxMsg {
		return nil
	}
	return l
}

// placeWhole is placePiece for what pickWhole has a link for.
// hot:
func (g *Group) placeWhole(l *link, op *Op) {
	r, n := l.rail, op.Len
	l.posted++
	token, f := r.takeOff()
	f.op, f.link, f.src, f.dst, f.n, f.seq = op, l, op.SrcOff, op.DstOff, n, l.posted
	f.imm, f.frag, f.probe, f.send = op.HasImm, false, false, -1
	if op.Stamp != 0 {
		f.sample = r.follow(op)
	}
	wr := r.request()
	wr.Token, wr.Peer, wr.Op, wr.Len = token, l.handle, provider.OpWrite, n
	if n > 0 {
		k, rk := &op.Src.Keys[r.index], &op.Dst.keys[l.index].Key
		wr.LocalKey, wr.LocalAddr = k.ID, k.Base+op.SrcOff
		wr.RemoteKey, wr.RemoteAddr = rk.ID, rk.Base+op.DstOff
		op.Dst.waits = 0
	}
	if op.HasImm {
		wr.Op, wr.Imm = provider.OpWriteImm, op.Imm
		f.ord = l.postedImms
		l.postedImms++
	}
	if invariants.Enabled && (op.cursor != 0 || l.outstanding >= r.caps.PeerDepth) {
		invariants.Broken("part %d placed whole, link %d has %d requests outstanding", op.cursor, l.index, l.outstanding)
	}
	l.outstanding++
	l.load += n + perWR
	r.load += n + perWR
	op.cursor, op.inflight = 1, 1
}

// request adds a request to the batch, to be filled in place.
// hot:
func (r *railState) request() *provider.WR {
	n := len(r.batch)
	if n < cap(r.batch) {
		r.batch = r.batch[:n+1]
		r.batch[n] = provider.WR{}
	} else {
		r.batch = append(r.batch, provider.WR{})
	}
	return &r.batch[n]
}

// queue gives p a turn.
// hot:
func (g *Group) queue(p *Peer) {
	if p.queued {
		return
	}
	p.queued, p.next = true, nil
	if g.last == nil {
		g.first = p
	} else {
		g.last.next = p
	}
	g.last = p
}

// unqueue takes p out of the turn order.
func (g *Group) unqueue(p *Peer) {
	if !p.queued {
		return
	}
	p.queued = false
	var prev *Peer
	for q := g.first; q != nil; prev, q = q, q.next {
		if q != p {
			continue
		}
		if prev == nil {
			g.first = q.next
		} else {
			prev.next = q.next
		}
		if g.last == q {
			g.last = prev
		}
		return
	}
}

// place gives each peer with queued operations one turn.
// hot:
func (g *Group) place() int {
	n := 0
	end := g.last
	for p := g.first; p != nil; p = g.first {
		g.first = p.next
		if g.first == nil {
			g.last = nil
		}
		p.queued = false
		n += g.placePeer(p)
		if p.ops.head != nil || p.messages.head != nil {
			g.queue(p)
		}
		if p == end {
			break
		}
	}
	return n
}

// placePeer gives p its turn. Messages go first: they are few at a time, and writes would leave them no room.
// hot:
func (g *Group) placePeer(p *Peer) int {
	limit := turn
	if p.step == g.step {
		limit -= p.atOnce
	}
	n := g.placeList(p, &p.messages, limit)
	return n + g.placeList(p, &p.ops, limit-n)
}

// placeList posts up to limit parts of the oldest operations of a list, as long as links have room.
// hot:
func (g *Group) placeList(p *Peer, l *opList, limit int) int {
	n := 0
	for l.head != nil && n < limit {
		op := l.head
		if op.Parts == 0 {
			op.Parts = pieces(op.Len, p.ready)
		}
		if !g.placePiece(p, op) {
			break
		}
		n++
		if op.placed() {
			l.remove(op)
		}
	}
	return n
}

// pieces is into how many parts a plain write is cut: enough to share it between the links.
func pieces(length uint64, links int) int {
	if links < 2 || length == 0 {
		return 1
	}
	piece := min(max(length/uint64(links*piecesALink), minPiece), maxPiece)
	return int((length-1)/piece) + 1
}

// placePiece puts the next piece of op, or a fragment of it, into the batch of the best link. False: not now.
// hot:
func (g *Group) placePiece(p *Peer, op *Op) bool {
	pc := op.piece()
	l := g.pick(p, op, pc)
	if l == nil {
		return false
	}
	r := l.rail
	n := pc.n
	if op.Kind != Send { // a message has a limit of its own
		n = min(n, r.caps.MaxMsg)
	}
	whole := n == pc.n
	imm := pc.imm && whole
	if imm && (op.frags > 0 || op.strict && op.inflight > 0) && g.without&guardLast == 0 {
		return false // it goes with the last fragment, once the others have landed
	}
	send := int32(-1)
	if op.Kind == Send {
		if send = g.takeSend(p, l, op.Data); send < 0 {
			return false
		}
	}
	l.posted++
	token, f := r.takeOff() // filled in place, like the request: to build it first and then copy it takes longer than all the rest
	f.op, f.link, f.src, f.dst, f.n, f.seq = op, l, pc.src, pc.dst, n, l.posted
	f.imm, f.frag, f.probe, f.send = imm, pc.frag || pc.imm && !whole, false, send
	if op.Stamp != 0 {
		f.sample = r.follow(op)
	}
	if f.frag {
		op.frags++
	}
	wr := r.request()
	wr.Token, wr.Peer, wr.Op, wr.Len = token, l.handle, provider.OpWrite, n
	switch {
	case op.Kind == Send:
		wr.Op = provider.OpSend
		k := &r.sendKeys[send/sendSlots]
		wr.LocalKey, wr.LocalAddr = k.ID, k.Base+uint64(send%sendSlots)*slotSize
	case n > 0:
		k, rk := &op.Src.Keys[r.index], &op.Dst.keys[l.index].Key
		wr.LocalKey, wr.LocalAddr = k.ID, k.Base+pc.src
		wr.RemoteKey, wr.RemoteAddr = rk.ID, rk.Base+pc.dst
		op.Dst.waits = 0
	}
	if imm {
		wr.Op, wr.Imm = provider.OpWriteImm, op.Imm
		f.ord = l.postedImms
		l.postedImms++
	}
	if invariants.Enabled && l.outstanding >= r.caps.PeerDepth {
		invariants.Broken("link %d has %d requests outstanding already", l.index, l.outstanding)
	}
	l.outstanding++
	l.load += n + perWR
	r.load += n + perWR
	op.inflight++
	op.consumed(pc, n)
	return true
}

// takeSend copies a message into a buffer; -1: not now.
// hot:
func (g *Group) takeSend(p *Peer, l *link, data []byte) int32 {
	if p.sends >= min(sendsAPeer, max(1, l.rail.caps.PeerDepth/2)) {
		return -1
	}
	i := g.sendBuffer(data)
	if i >= 0 {
		p.sends++
		l.sends++
	}
	return i
}

// pick is the link of p that would be done first with a piece of op, nil when none can take it now.
// hot:
func (g *Group) pick(p *Peer, op *Op, pc *piece) *link {
	if op.only != nil {
		if l := op.only; !op.strict && l.state == ready && l.epoch == op.epoch {
			if l.outstanding < l.rail.caps.PeerDepth && (pc.n == 0 || g.covers(op.Dst, l)) {
				return l
			}
			return nil
		}
		op.strict = true
	}
	rail := op.Rail - 1
	if rail >= 0 && !p.onRail(rail) {
		rail = -1
	}
	var best *link
	for _, l := range p.links {
		if l.state != ready || rail >= 0 && l.rail.index != rail || rail < 0 && l.class != p.class {
			continue
		}
		if op.Dst != nil && pc.n > 0 && !g.covers(op.Dst, l) || l.outstanding >= l.rail.caps.PeerDepth {
			continue
		}
		if best == nil || l.sooner(best, pc.n) {
			best = l
		}
	}
	if op.ImmLast && op.only == nil && best != nil {
		op.only, op.epoch = best, best.epoch
		op.strict = !best.rail.caps.Ordered
	}
	return best
}

// sooner reports whether l would be done before m with n bytes more. Links to a peer for which little is under way are equal in that, and
// then it is for the rail that has less to do for all peers: else the first rail had the first write to every peer.
// hot:
func (l *link) sooner(m *link, n uint64) bool {
	if a, b := l.time(n), m.time(n); a != b {
		return a < b
	}
	return l.rail.time() < m.rail.time()
}

// time is how long the rail takes for what it has, in the same unit as that of links.
// hot:
func (r *railState) time() float64 { return float64(r.load) / float64(max(r.caps.LinkBits, 1)) }

// time is how long l would take for what it has and n bytes more, in no unit.
// hot:
func (l *link) time(n uint64) float64 {
	return float64(l.load+n+perWR) / float64(max(l.rail.caps.LinkBits, 1))
}

// onRail reports whether a link of p over a rail is in service.
// hot:
func (p *Peer) onRail(rail int) bool {
	for _, l := range p.links {
		if l.state == ready && l.rail.index == rail {
			return true
		}
	}
	return false
}

// takeOff returns a token, and where to store what it will mean.
// hot:
func (r *railState) takeOff() (uint64, *flight) {
	i := r.free
	if i < 0 {
		i = int32(len(r.flights))
		r.flights = append(r.flights, flight{next: -1})
	}
	f := &r.flights[i]
	r.free = f.next
	f.gen++
	return uint64(f.gen)<<32 | uint64(i), f
}

// post hands the batch of a rail to its domain.
// hot:
func (g *Group) post(r *railState) int {
	if len(r.batch) == 0 {
		return 0
	}
	var n int
	var err error
	if r.samples.held == 0 {
		n, err = r.dom.Post(r.batch)
	} else {
		n, err = g.postTimed(r)
	}
	r.total.Posts++
	if n < len(r.batch) {
		r.total.Short++
	}
	r.batch = r.batch[:copy(r.batch, r.batch[n:])]
	if err != nil {
		g.railDead(r, err)
	}
	return n
}

// poll takes completions from a rail.
// hot:
func (g *Group) poll(r *railState) int {
	total := 0
	for range pollRounds {
		n, err := r.dom.Poll(g.completions[:])
		for i := range n {
			g.complete(r, &g.completions[i])
		}
		total += n
		if err != nil {
			g.railDead(r, err)
			break
		}
		if n < len(g.completions) {
			break
		}
	}
	return total
}
