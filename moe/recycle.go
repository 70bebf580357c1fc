package moe

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/moe/proto"
)

// Fence implements proto.GroupOut.
func (g *Group) Fence(m proto.Member) {
	a, p := g.attempt, g.eng.Peer(hawser.ID(m.ID))
	if p == nil { // it was never here, or is long forgotten
		g.after = append(g.after, func() { g.core.Fenced(m, false) })
		return
	}
	g.stats.Fences++
	a.unfenced[p] = true // before the proof is sought, which may be told at any time
	g.wg.Go(func() {
		err := g.fence(a.ctx, p)
		g.event(func() {
			unfenced := errors.Is(err, hawser.ErrUnfenced)
			if !unfenced {
				g.proven(p)
			}
			switch {
			case g.attempt != a: // the next one asks again
			case err == nil || unfenced:
				g.core.Fenced(m, unfenced)
			default:
				g.abandon(err)
			}
		})
	})
}

// proven: memory that was set aside is free once everybody who may have written it is fenced.
func (g *Group) proven(p *hawser.Peer) {
	if g.attempt != nil {
		delete(g.attempt.unfenced, p)
	}
	delete(g.keepers, p)
	g.unpark()
}

func (g *Group) unpark() {
	if len(g.keepers) == 0 && g.stats.Parked > 0 {
		g.stats.Parked = 0
		g.core.Unparked()
	}
}

// Recycle implements proto.GroupOut.
func (g *Group) Recycle(epoch uint32, fresh bool) {
	g.after = append(g.after, func() {
		if err := g.recycle(epoch, fresh); err != nil {
			g.core.Abandon(err)
			return
		}
		g.core.Recycled()
	})
}

func (g *Group) recycle(epoch uint32, fresh bool) error {
	v := &g.attempt.view
	for i, l := range g.lanes {
		m := g.mems[i]
		if m.unfenced = m.unfenced || fresh; m.unfenced {
			if err := g.setAside(m); err != nil {
				return err
			}
		}
		for r := range m.remotes {
			if !v.has(r) {
				m.remotes[r] = remotes{}
			}
		}
		if err := l.recycle(epoch, m, g.attempt.served); err != nil {
			return err
		}
		l.opened(epoch, v.has)
	}
	g.unpark() // they may have been fenced meanwhile
	return nil
}

// setAside gives a lane other regions for what peers write, because one of them may yet write. The old ones are closed; the machine has
// their memory back when who stands in the middle of a copy into them goes on, or dies.
func (g *Group) setAside(m *memory) error {
	old, err := m.renew(g.eng, g.layout)
	if err != nil {
		return err
	}
	m.unfenced = false
	maps.Copy(g.keepers, g.attempt.unfenced)
	for _, r := range old {
		g.stats.Parked += int64(r.Len())
	}
	g.wg.Go(func() {
		for _, r := range old {
			if err := r.Close(); err != nil {
				g.mu.Lock()
				g.aside = append(g.aside, r)
				g.mu.Unlock()
			}
		}
	})
	return nil
}

// Descriptors implements proto.GroupOut.
func (g *Group) Descriptors(m proto.Member) (b []byte) {
	for _, mem := range g.mems {
		b = mem.describe(b, g.layout, m.Rank)
	}
	return b
}

// Import implements proto.GroupOut.
func (g *Group) Import(m proto.Member, descriptors []byte) {
	a, s := g.attempt, &g.seats[m.Rank]
	answer := func(err error) { g.after = append(g.after, func() { g.core.Imported(m, err) }) }
	switch {
	case len(descriptors) > 0:
		lent, err := parseDescriptors(descriptors, g.layout, m)
		if err != nil {
			answer(err)
			return
		}
		s.lent = lent
	case s.lent == nil:
		answer(fmt.Errorf("%w: none", proto.ErrCorrupt))
		return
	case s.peer != nil && s.peer.Up() && s.peer.Session() == s.imported:
		answer(nil)
		return
	}
	addr, lent := s.addr, s.lent
	g.wg.Go(func() {
		r, session, err := g.importFrom(a.ctx, addr, lent)
		g.event(func() {
			if g.attempt != a {
				return
			}
			if err == nil {
				s := &g.seats[m.Rank]
				for i, mem := range g.mems {
					mem.remotes[m.Rank] = r[i]
				}
				s.peer, s.imported = r[0].peer, session
			}
			g.core.Imported(m, err)
		})
	})
}

// importTries is how often a session may end while descriptors are resolved.
const importTries = 5

// importFrom resolves descriptors, all in one session.
func (g *Group) importFrom(ctx context.Context, addr string, lent []hawser.Descriptor) (r []remotes, session uint64, err error) {
	for range importTries {
		p, cerr := g.eng.Connect(ctx, addr)
		if cerr != nil {
			return nil, 0, cerr
		}
		session = p.Session()
		r, err = importAll(ctx, g.eng, lent)
		if p.Session() == session && p.Up() {
			return r, session, err
		}
	}
	return nil, 0, fmt.Errorf("%w: its sessions end again and again: %w", hawser.ErrPeerDown, err)
}

// Active implements proto.GroupOut.
func (g *Group) Active(p proto.Activated) error {
	for i, l := range g.lanes {
		if err := l.bind(g.eng, g.mems[i]); err != nil {
			return err
		}
	}
	a := g.attempt
	a.result = Activated{Epoch: p.Epoch, Next: p.Next[:g.layout.Lanes:g.layout.Lanes], Ranks: make([][]LaneState, len(p.Ranks)), Unserved: a.unserved}
	for r := range p.Ranks {
		if a.view.has(r) {
			a.result.Ranks[r] = p.Ranks[r][:g.layout.Lanes:g.layout.Lanes]
		}
	}
	g.view = a.view
	g.stats.Views++
	g.finish(nil)
	return nil
}

// Inactive implements proto.GroupOut.
func (g *Group) Inactive(err error) {
	g.stats.Failed++
	g.after = nil
	g.finish(err)
}
