package rail

import (
	"fmt"

	"github.com/hawser-project/hawser/provider"
)

// Peer is one session with another engine, as the worker sees it. Owned by the worker, except Tag, which is immutable.
type Peer struct {
	Tag any // the sink's

	links    []*link
	ops      opList // writes and signals that have parts to post
	messages opList // messages to post: a peer that does not read them must not hold up its writes
	sends    int    // messages in flight
	queued   bool
	down     bool
	fencing  int   // outcomes of the running Fence that are not there yet
	unproved bool  // one of them was that there is no proof
	next     *Peer // in the group's turn order

	Counts Counts
}

// Counts are what went over all links of a peer. Owned by the worker.
type Counts struct {
	TxBytes, TxWrites              uint64 // of WRs that have ended; bytes of those without error
	RxImms, RxImmBytes, RxMessages uint64
}

// link is one connection of a peer over one rail.
type link struct {
	peer        *Peer
	index       int
	rail        *railState
	handle      provider.Peer // 0 once it is proved silent
	up          bool
	fencing     bool
	outstanding int    // WRs
	load        uint64 // bytes, plus perWR for each WR
}

// perWR is what a write costs beside its bytes, expressed in bytes, so that placement spreads small writes too.
const perWR = 512

// Offer reserves link number len(links) of p on a rail and returns the address for the other side. A peer that has failed gets
// no more links: its fence would not cover them.
func (g *Group) Offer(p *Peer, rail int) (provider.Addr, error) {
	r := g.rails[rail]
	if p.down || r.dead {
		return nil, fmt.Errorf("offer on rail %d: %w", rail, provider.ErrClosed)
	}
	h, addr, err := r.dom.Offer()
	if err != nil {
		return nil, fmt.Errorf("offer on rail %d: %w", rail, err)
	}
	l := &link{peer: p, index: len(p.links), rail: r, handle: h}
	p.links = append(p.links, l)
	for len(r.links) <= h.Index() {
		r.links = append(r.links, nil)
	}
	r.links[h.Index()] = l
	return addr, nil
}

// Connect connects link i of p. The outcome comes as Sink.Link.
func (g *Group) Connect(p *Peer, i int, remote provider.Addr, active bool) error {
	l := p.links[i]
	if err := l.rail.dom.Connect(l.handle, remote, active); err != nil {
		return fmt.Errorf("connect link %d over rail %d: %w", i, l.rail.index, err)
	}
	return nil
}

// Grant returns the keys under which p may write to [off, off+n) of m, by link of p. ErrBusy: call again after a Step.
func (g *Group) Grant(m *Memory, p *Peer, off, n uint64) ([]provider.Key, error) {
	keys := make([]provider.Key, len(p.links))
	for i, l := range p.links {
		k, err := l.rail.dom.Grant(m.Keys[l.rail.index], l.handle, off, n)
		if err != nil {
			return nil, fmt.Errorf("grant over rail %d: %w", l.rail.index, err)
		}
		keys[i] = k
	}
	return keys, nil
}

// FailPeer ends all operations of p: what is queued completes now, what is in flight when its domain has let go of it. Later
// operations complete at once.
func (g *Group) FailPeer(p *Peer) {
	p.down = true
	g.failList(&p.ops)
	g.failList(&p.messages)
	g.unqueue(p)
}

func (g *Group) failList(l *opList) {
	for op := l.head; op != nil; op = l.head {
		l.remove(op)
		op.fail(provider.StatusFlushed)
		if op.inflight == 0 {
			op.Owner.Complete(op)
		}
	}
}

// Fence fails p and fences those of its links that are not proved silent yet. The outcome comes as Sink.Fenced; until then it must
// not be called again.
func (g *Group) Fence(p *Peer) {
	g.FailPeer(p)
	p.fencing, p.unproved = 1, false // one for this call
	for _, l := range p.links {
		if l.handle == 0 {
			continue // proved before
		}
		p.fencing++
		l.fencing = true
		if l.rail.dead || l.rail.dom.Fence(l.handle) != nil {
			g.outcome(l, false)
		}
	}
	g.fenceEnds(p)
}

// outcome ends the fence of one link.
func (g *Group) outcome(l *link, proved bool) {
	if !l.fencing {
		return
	}
	l.fencing = false
	l.peer.unproved = l.peer.unproved || !proved
	g.fenceEnds(l.peer)
}

func (g *Group) fenceEnds(p *Peer) {
	if p.fencing--; p.fencing == 0 {
		g.sink.Fenced(p, !p.unproved)
	}
}

// Disconnect gives up the links of a peer that never came up, so that the next path can be tried.
func (g *Group) Disconnect(p *Peer) {
	g.FailPeer(p)
	for _, l := range p.links {
		if l.handle != 0 && !l.rail.dead {
			_ = l.rail.dom.Disconnect(l.handle) // a stale handle is as good as a closed one
		}
	}
}

// fail makes the operation post nothing more and end with st, unless it failed before.
func (o *Op) fail(st provider.Status) {
	if o.Status == provider.StatusOK {
		o.Status = st
	}
	o.cursor = o.Parts
	if o.Parts == 0 { // a plain write that was never placed
		o.Parts, o.cursor = 1, 1
	}
}

// linkEvent updates a link and tells the sink.
func (g *Group) linkEvent(r *railState, c *provider.Completion) {
	l := r.link(c.Peer)
	if l == nil {
		return // a handle that was given up
	}
	switch c.Kind {
	case provider.KindPeerUp:
		l.up = true
		g.sink.Link(l.peer, true, c.Status)
	case provider.KindPeerDown:
		l.up = false
		g.sink.Link(l.peer, false, c.Status)
	case provider.KindFenced:
		if c.Status == provider.StatusOK {
			r.links[l.handle.Index()] = nil
			l.handle = 0
		}
		g.outcome(l, c.Status == provider.StatusOK)
	}
}

// link returns the link of a handle, nil when it is stale.
// hot:
func (r *railState) link(h provider.Peer) *link {
	if i := h.Index(); i < len(r.links) {
		if l := r.links[i]; l != nil && l.handle == h {
			return l
		}
	}
	return nil
}
