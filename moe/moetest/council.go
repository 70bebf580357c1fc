package moetest

import (
	"bytes"

	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/proto"
)

// council is a node in changes of view: what its group wants is done some time later, unless another view is tried by then.
type council node

func (c *council) later(f func()) {
	n, epoch := (*node)(c), c.group.Epoch()
	c.anyTime(func() {
		if n.group.Epoch() == epoch {
			f()
		}
	})
}

// anyTime is the same, whatever view is tried by then.
func (c *council) anyTime(f func()) {
	n := (*node)(c)
	c.w.add(event{kind: call, node: n, f: func() {
		if !n.dead {
			f()
			n.exec.Run()
			n.after()
		}
	}})
}

// who is the node with an identity, nil if it is dead.
func (c *council) who(m proto.Member) *node {
	if n := c.w.nodes[m.Rank]; n.id == m.ID && !n.dead {
		return n
	}
	return nil
}

// Send implements proto.GroupOut. A message may be lost, which is told and said again; it may come twice.
func (c *council) Send(to proto.Member, epoch uint32, round int, message []byte) {
	n, b := (*node)(c), bytes.Clone(message)
	deliver := func() {
		if o := c.who(to); o != nil {
			if err := o.group.Message(n.id, b); err != nil {
				c.w.fault("message of rank %d to rank %d: %v", n.rank, to.Rank, err)
			}
			o.exec.Run()
			o.after()
		} else {
			n.group.Unsent(to, epoch, round)
		}
	}
	switch c.w.rng.IntN(8) {
	case 0:
		c.anyTime(func() {
			n.group.Unsent(to, epoch, round)
			c.anyTime(func() {
				if c.who(to) != nil {
					n.group.Again(to.Rank)
				}
			})
		})
	case 1:
		c.anyTime(deliver)
		c.anyTime(deliver)
	default:
		c.anyTime(deliver)
	}
}

// Fence implements proto.GroupOut: nothing that an engine has begun lands any more, unless it is frozen.
func (c *council) Fence(m proto.Member) {
	n := (*node)(c)
	c.later(func() {
		unfenced := c.w.frozen[m.ID]
		delete(c.w.frozen, m.ID)
		for _, p := range c.w.parts {
			if p.to == n && p.from.id == m.ID && !unfenced {
				c.w.fail(p, false)
				p.void = true
			}
		}
		n.store.valid[m.ID] = false
		n.group.Fenced(m, unfenced)
	})
}

// Recycle implements proto.GroupOut.
func (c *council) Recycle(epoch uint32, fresh bool) {
	n := (*node)(c)
	c.later(func() {
		if fresh {
			n.parked, n.store = n.store, newStore(n)
			c.w.report.Parked++
		}
		n.store.canaries()
		n.store.recycle(epoch)
		clear(n.read)
		n.watch.tasks = nil
		clear(n.totals)
		if err := n.watch.Rebase(n.memory(), backend.Placement{}); err != nil {
			c.w.fault("rank %d: %v", n.rank, err)
		}
		n.exec.Rebase(n.store.areas)
		n.exec.Open(epoch, func(rank int) bool { return n.member[rank] })
		n.stage = toBegin
		n.group.Recycled()
	})
}

// Descriptors implements proto.GroupOut.
func (c *council) Descriptors(m proto.Member) []byte {
	c.store.valid[m.ID] = true
	c.w.given = append(c.w.given, c.store)
	return le.AppendUint32(nil, uint32(len(c.w.given)-1))
}

// Import implements proto.GroupOut.
func (c *council) Import(m proto.Member, descriptors []byte) {
	n := (*node)(c)
	c.later(func() {
		if len(descriptors) > 0 {
			n.remote[m.Rank] = c.w.given[le.Uint32(descriptors)]
		}
		n.group.Imported(m, nil)
	})
}

// Active implements proto.GroupOut.
func (c *council) Active(a proto.Activated) error {
	clear(c.cut)
	c.stale, c.refused, c.failed, c.entered = false, false, false, a.Epoch
	c.w.last = max(c.w.last, a.Next[0])
	return nil
}

// Inactive implements proto.GroupOut.
func (c *council) Inactive(error) { c.failed = true }
