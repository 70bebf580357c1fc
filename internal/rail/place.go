package rail

import (
	"github.com/hawser-project/hawser/internal/invariants"
	"github.com/hawser-project/hawser/provider"
)

// enqueue puts an operation at the end of its list.
// hot:
func (g *Group) enqueue(op *Op) {
	p := op.Peer
	if op.Kind == Signal || op.Kind == Send {
		op.Parts = 1
	}
	if p.down || (op.Dst != nil && op.Dst.Peer != p) {
		op.fail(provider.StatusFlushed)
	}
	if op.cursor == op.Parts && op.Parts > 0 || op.Kind == Pages && op.Parts == 0 { // failed, or no pages
		op.Owner.Complete(op)
		return
	}
	op.list().push(op)
	g.queue(p)
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
	n := g.placeList(p, &p.messages, turn)
	return n + g.placeList(p, &p.ops, turn-n)
}

// placeList posts up to limit parts of the oldest operations of a list, as long as links have room.
// hot:
func (g *Group) placeList(p *Peer, l *opList, limit int) int {
	n := 0
	for l.head != nil && n < limit {
		op := l.head
		if op.Parts == 0 {
			op.Parts = pieces(op.Len, len(p.links))
		}
		if !g.placePart(p, op) {
			break
		}
		n++
		if op.cursor == op.Parts {
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

// placePart puts the next part of op, or its next fragment, into the batch of the best link. False: not now.
// hot:
func (g *Group) placePart(p *Peer, op *Op) bool {
	src, dst, n := op.part(op.cursor)
	if op.Kind == Send {
		n = uint64(len(op.Data))
	}
	l := p.best(n - op.fragOff)
	if l == nil {
		return false
	}
	frag := n-op.fragOff > l.rail.caps.MaxMsg
	if !frag && op.fragOff > 0 && op.frags > 0 && op.HasImm {
		return false // the immediate goes with the last fragment, once the others have landed
	}
	wr := provider.WR{Peer: l.handle, Op: provider.OpWrite}
	send := int32(-1)
	switch {
	case op.Kind == Send:
		if p.sends >= min(sendsAPeer, max(1, l.rail.caps.PeerDepth/2)) {
			return false
		}
		if send = g.sendBuffer(op.Data); send < 0 {
			return false
		}
		p.sends++
		wr.Op, wr.Len = provider.OpSend, n
		k := l.rail.sendKeys[send/sendSlots]
		wr.LocalKey, wr.LocalAddr = k.ID, k.Base+uint64(send%sendSlots)*slotSize
	default:
		wr.Len = min(n-op.fragOff, l.rail.caps.MaxMsg)
		if op.HasImm && !frag {
			wr.Op, wr.Imm = provider.OpWriteImm, op.Imm
		}
		if wr.Len > 0 {
			k, rk := op.Src.Keys[l.rail.index], op.Dst.Keys[l.index]
			wr.LocalKey, wr.LocalAddr = k.ID, k.Base+src+op.fragOff
			wr.RemoteKey, wr.RemoteAddr = rk.ID, rk.Base+dst+op.fragOff
		}
	}
	wr.Token = l.rail.takeOff(flight{op: op, link: l, len: wr.Len, frag: frag, send: send})
	l.rail.batch = append(l.rail.batch, wr)
	if invariants.Enabled && l.outstanding >= l.rail.caps.PeerDepth {
		invariants.Broken("link %d has %d requests outstanding already", l.index, l.outstanding)
	}
	l.outstanding++
	l.load += wr.Len + perWR
	op.inflight++
	if frag {
		op.frags++
		op.fragOff += wr.Len
	} else {
		op.cursor++
		op.fragOff = 0
	}
	return true
}

// best is the link of p that would be done first with n more bytes, nil when none has room.
// hot:
func (p *Peer) best(n uint64) *link {
	var best *link
	var bestTime float64
	for _, l := range p.links {
		if !l.up || l.rail.dead || l.outstanding >= l.rail.caps.PeerDepth {
			continue
		}
		t := float64(l.load+n+perWR) / float64(max(l.rail.caps.LinkBits, 1))
		if best == nil || t < bestTime {
			best, bestTime = l, t
		}
	}
	return best
}

// takeOff stores what a token will mean and returns the token.
// hot:
func (r *railState) takeOff(f flight) uint64 {
	i := r.free
	if i < 0 {
		i = int32(len(r.flights))
		r.flights = append(r.flights, flight{next: -1})
	}
	old := &r.flights[i]
	r.free = old.next
	f.gen = old.gen + 1
	*old = f
	return uint64(f.gen)<<32 | uint64(i)
}

// post hands the batch of a rail to its domain.
// hot:
func (g *Group) post(r *railState) int {
	if len(r.batch) == 0 {
		return 0
	}
	n, err := r.dom.Post(r.batch)
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

// railDead takes a rail out of service: what was in flight on it has ended, its links are down.
func (g *Group) railDead(r *railState, err error) {
	r.dead = true
	r.batch = r.batch[:0]
	for i := range r.flights {
		if r.flights[i].op != nil {
			g.land(r, uint32(i), provider.StatusFlushed)
		}
	}
	g.sink.Dead(r.index, err)
	for _, l := range r.links {
		if l != nil {
			l.up = false
			g.sink.Link(l.peer, false, provider.StatusFlushed)
			g.outcome(l, false)
		}
	}
}

// complete handles one completion.
// hot:
func (g *Group) complete(r *railState, c *provider.Completion) {
	switch c.Kind {
	case provider.KindImm:
		if l := r.link(c.Peer); l != nil {
			l.peer.Counts.RxImms++
			l.peer.Counts.RxImmBytes += c.Len
			g.sink.Imm(l.peer, c.Imm)
		}
	case provider.KindWrite, provider.KindSend:
		i := uint32(c.Token)
		if int(i) < len(r.flights) && r.flights[i].gen == uint32(c.Token>>32) && r.flights[i].op != nil {
			g.land(r, i, c.Status)
		}
	case provider.KindRecv:
		g.received(r, c)
	case provider.KindPeerUp, provider.KindPeerDown, provider.KindFenced:
		g.linkEvent(r, c)
	}
}

// land ends a flight, and its operation when that was the last one.
// hot:
func (g *Group) land(r *railState, i uint32, st provider.Status) {
	f := &r.flights[i]
	op, l := f.op, f.link
	f.op, f.next, r.free = nil, r.free, int32(i)
	l.outstanding--
	l.load -= f.len + perWR
	if f.send >= 0 {
		g.freeSend(f.send)
		l.peer.sends--
	}
	if f.frag {
		op.frags--
	}
	op.inflight--
	l.peer.Counts.TxWrites++
	if st == provider.StatusOK {
		l.peer.Counts.TxBytes += f.len
	} else {
		if op.cursor < op.Parts {
			op.list().remove(op)
		}
		op.fail(st)
	}
	if invariants.Enabled && (op.inflight < 0 || op.frags < 0 || l.outstanding < 0 || l.peer.sends < 0) {
		invariants.Broken("negative count: op %+v, link %+v", op, l)
	}
	if op.inflight == 0 && op.cursor == op.Parts {
		op.Owner.Complete(op)
	}
}
