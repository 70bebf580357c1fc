package proto

import (
	"fmt"

	"github.com/hawser-project/hawser"
)

// startFences asks for a proof of everybody who may yet write here: who was a member and is none any more, who was held missing, and who
// says so. The others have said that they are quiet.
func (g *Group) startFences() {
	for i := range g.seats {
		s := &g.seats[i]
		if s.member && g.heard(s, 0) && s.said[0].Config != g.cfg.Hash() {
			g.stop(fmt.Errorf("%w: rank %d has another configuration", hawser.ErrInvalid, i))
			return
		}
	}
	g.stage = fencing
	for i := range g.seats {
		s := &g.seats[i]
		if i != g.cfg.Rank && g.suspect(i) && s.holds {
			s.fence = true
			g.out.Fence(Member{i, s.holder})
		}
	}
}

func (g *Group) suspect(rank int) bool {
	s := &g.seats[rank]
	if s.holds && (!s.member || s.holder != s.id) {
		return !broken(mutGone)
	}
	for _, l := range g.lanes {
		if missing, _ := l.Held(rank); missing {
			return true
		}
	}
	return s.suspected && !broken(mutListed)
}

// Fenced: the proof is there, or, unfenced, there is none.
func (g *Group) Fenced(m Member, unfenced bool) {
	s := &g.seats[m.Rank]
	if !s.fence || s.holder != m.ID {
		return
	}
	s.fence, s.suspected = false, false
	s.holds = broken(mutFresh)
	g.fresh = g.fresh || unfenced
	if g.stage == fencing {
		g.Progress()
	}
}

func (g *Group) recycle() {
	if g.fresh && g.parked {
		g.stop(fmt.Errorf("%w: regions are set aside already, and another engine cannot be fenced", hawser.ErrLimit))
		return
	}
	g.stage = recycling
	if g.fresh {
		g.parked = true
		for i := range g.seats {
			g.seats[i].holds = false
		}
	}
	for i := range g.lanes {
		g.next[i] = g.states[i].Begun + 1
		for r := range g.seats {
			if s := &g.seats[r]; s.member && s.id != g.id && g.heard(s, 0) && !broken(mutNext) {
				g.next[i] = max(g.next[i], s.said[0].Lanes[i].Begun+1)
			}
		}
	}
	for _, l := range g.lanes {
		l.open, l.active = false, false
	}
	g.out.Recycle(g.epoch, g.fresh)
}

// Recycled: the memory is new, and immediates of the view that is tried count.
func (g *Group) Recycled() {
	if g.stage != recycling {
		return
	}
	g.stage, g.opened = round2, g.epoch
	for i, l := range g.lanes {
		l.Open(g.epoch, g.next[i], func(rank int) bool { return g.seats[rank].member })
	}
	for i := range g.seats {
		if s := &g.seats[i]; g.others(i) {
			if s.given = !s.holds || s.said[0].Has != s.gave; s.given {
				s.gave = g.epoch
			}
			g.send(i, 2)
			s.holds, s.holder = true, s.id
		}
	}
	g.Progress()
}

// tryActive imports what has come, and is active when all has.
func (g *Group) tryActive() {
	for i := range g.seats {
		if s := &g.seats[i]; g.others(i) && g.heard(s, 1) && !s.imports && !s.done {
			s.imports = true
			g.out.Import(Member{i, s.id}, s.said[1].Descriptors)
		}
	}
	if g.any(func(s *seat) bool { return s.member && s.id != g.id && !s.done }) && !broken(mutRound2) {
		return
	}
	a := Activated{Epoch: g.epoch, Next: g.next, Ranks: make([][MaxLanes]LaneState, len(g.seats))}
	for i := range g.seats {
		if s := &g.seats[i]; s.member {
			a.Ranks[i] = s.said[0].Lanes
		}
	}
	a.Ranks[g.cfg.Rank] = g.states
	if err := g.out.Active(a); err != nil {
		g.stop(err)
		return
	}
	g.stage = active
	for _, l := range g.lanes {
		l.Activate()
	}
}

// Imported: writes to this member can begin, or err says why they cannot.
func (g *Group) Imported(m Member, err error) {
	s := &g.seats[m.Rank]
	if g.stage != round2 || !s.imports || s.id != m.ID {
		return
	}
	s.imports = false
	if err != nil {
		g.stop(fmt.Errorf("descriptors of rank %d: %w", m.Rank, err))
		return
	}
	s.done = true
	if len(s.said[1].Descriptors) > 0 {
		s.has = g.epoch
		s.listed = false // it has fenced this engine, or has new regions
	}
	g.Progress()
}
