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
	for op, ok := g.subs.Pop(); ok; op, ok = g.subs.Pop() {
		g.enqueueAll(op)
	}
	for op := p.ops.head; op != nil; {
		next := op.next
		if match(op) {
			p.ops.remove(op)
			op.fail(provider.StatusAccess)
			if op.inflight == 0 {
				op.Owner.Complete(op)
			}
		}
		op = next
	}
}
