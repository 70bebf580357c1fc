package rail

import (
	"errors"
	"fmt"

	"github.com/hawser-project/hawser/provider"
)

// Revoke ends the grants of m to p at once, on those networks that can.
func (g *Group) Revoke(m *Memory, p *Peer) error {
	var errs []error
	for _, l := range p.links {
		d, ok := l.rail.dom.(provider.Revoker)
		if !ok || l.handle == 0 || l.rail.dead {
			continue
		}
		err := d.Revoke(m.Keys[l.rail.index], l.handle)
		if err != nil && !errors.Is(err, provider.ErrStale) && !errors.Is(err, provider.ErrUnsupported) { // nothing is granted, or it cannot
			errs = append(errs, fmt.Errorf("revoke over rail %d: %w", l.rail.index, err))
		}
	}
	return errors.Join(errs...)
}

// Withdraw fails those operations on p that match with StatusAccess. What of them is in flight already ends as it ends.
func (g *Group) Withdraw(p *Peer, match func(*Op) bool) {
	g.takeIn()
	for op := p.ops.head; op != nil; {
		next := op.next
		if match(op) {
			p.ops.remove(op)
			op.fail(provider.StatusAccess)
			if op.inflight == 0 {
				g.end(op)
			}
		}
		op = next
	}
}

// Drain ends, of the operations of p on holds that are revoked, those that are not in flight. Each hold says when the others have ended.
func (g *Group) Drain(p *Peer, holds []*Hold) {
	g.Withdraw(p, func(op *Op) bool { return op.Dst != nil && op.Dst.Hold != nil && op.Dst.Hold.Revoked() })
	for _, h := range holds {
		if h.ops == 0 {
			h.Drained()
		}
	}
}

// Retire ends the use of m, unless operations read from it, of which it returns the number. What is submitted later fails with
// StatusLocal.
func (g *Group) Retire(m *Memory) int {
	g.takeIn()
	m.retired = m.ops == 0
	return m.ops
}

// takeIn enqueues what was submitted until now.
func (g *Group) takeIn() {
	for op, ok := g.subs.Pop(); ok; op, ok = g.subs.Pop() {
		g.enqueueAll(op)
	}
}
