package rail

import (
	"fmt"

	"github.com/hawser-project/hawser/provider"
)

// Peer is one session with another engine, as the worker sees it. Owned by the worker, except Tag, which is immutable.
type Peer struct {
	Tag any // the sink's

	links      []*link
	head, tail *Op // operations that have parts to post, oldest first
	sends      int // messages in flight
	queued     bool
	down       bool
	next       *Peer // in the group's turn order

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
	handle      provider.Peer
	up          bool
	outstanding int    // WRs
	load        uint64 // bytes, plus perWR for each WR
}

// perWR is what a write costs beside its bytes, expressed in bytes, so that placement spreads small writes too.
const perWR = 512

// Offer reserves link number len(links) of p on a rail and returns the address for the other side.
func (g *Group) Offer(p *Peer, rail int) (provider.Addr, error) {
	r := g.rails[rail]
	if r.dead {
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
	for op := p.head; op != nil; {
		next := op.next
		op.next = nil
		op.fail(provider.StatusFlushed)
		if op.inflight == 0 {
			op.Owner.Complete(op)
		}
		op = next
	}
	p.head, p.tail = nil, nil
	g.unqueue(p)
}

// Fence fails p and fences those of its links that are not proved silent yet. Each outcome comes as Sink.Link with KindFenced.
func (g *Group) Fence(p *Peer) {
	g.FailPeer(p)
	for i, l := range p.links {
		if l.handle == 0 {
			continue // proved before
		}
		if l.rail.dead || l.rail.dom.Fence(l.handle) != nil {
			g.sink.Link(p, i, provider.KindFenced, provider.StatusUnfenced)
		}
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
	case provider.KindPeerDown:
		l.up = false
	case provider.KindFenced:
		if c.Status == provider.StatusOK {
			r.links[l.handle.Index()] = nil
			l.handle = 0
		}
	}
	g.sink.Link(l.peer, l.index, c.Kind, c.Status)
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
