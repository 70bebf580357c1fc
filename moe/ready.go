package moe

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/moe/proto"
)

// seat is what a group knows of the engine of a rank. Guarded by the group's mu.
type seat struct {
	id       proto.ID
	addr     string
	peer     *hawser.Peer        // nil until it was met; it may be down
	lent     []hawser.Descriptor // its latest, of all lanes
	imported uint64              // session in which the remotes of the lanes were imported; 0: none
	sent     [2]uint64           // session in which it was told a round of the view that is tried; 0: it was not
	dialing  bool
	tries    int   // attempts to reach it since it was reached
	refused  int   // of them, that it or its host refused
	lost     error // why it cannot be reached
}

// Send implements proto.GroupOut.
func (g *Group) Send(to proto.Member, epoch uint32, round int, message []byte) {
	s := &g.seats[to.Rank]
	if s.peer == nil || !s.peer.Up() {
		g.after = append(g.after, func() { g.unsent(to, epoch, round) })
		return
	}
	s.sent[round-1] = s.peer.Session()
	tr, err := g.eng.Send(s.peer, append(appendFrame(nil, g.number), message...))
	if err != nil {
		g.after = append(g.after, func() { g.unsent(to, epoch, round) })
		return
	}
	g.wg.Go(func() {
		if err := tr.Wait(g.ctx); err != nil && g.ctx.Err() == nil {
			g.event(func() { g.unsent(to, epoch, round) })
		}
	})
}

// unsent: a message may not have arrived. It is sent again when the member was reached, after a while.
func (g *Group) unsent(to proto.Member, epoch uint32, round int) {
	g.core.Unsent(to, epoch, round)
	g.reach(to)
}

// again says what is to be said again, as soon as the member is reached.
func (g *Group) again(m proto.Member) {
	if s := &g.seats[m.Rank]; s.id == m.ID && s.peer != nil && s.peer.Up() {
		g.core.Again(m.Rank)
	} else {
		g.reach(m)
	}
}

// reach connects to a member, while a view changes: after that, a member that has not heard everything connects.
func (g *Group) reach(m proto.Member) {
	s := &g.seats[m.Rank]
	up := s.peer != nil && s.peer.Up()
	if g.attempt == nil && !up || s.id != m.ID || s.dialing || s.lost != nil || g.ctx.Err() != nil {
		return
	}
	s.dialing = true
	addr, rest := s.addr, time.Duration(0)
	if s.tries > 0 {
		rest = dialRest << min(s.tries, maxDouble)
	}
	s.tries++
	g.wg.Go(func() {
		p, err := g.dial(addr, rest)
		g.event(func() { g.reached(m, p, err) })
	})
}

// A member that refuses so often is lost: nobody listens any more where it was. One that does not answer may be stopped for a while.
const (
	maxRefused = 5
	dialRest   = 5 * time.Millisecond // after an attempt; doubled with each
	maxDouble  = 6
)

func (g *Group) dial(addr string, rest time.Duration) (*hawser.Peer, error) {
	if rest > 0 {
		t := time.NewTimer(rest)
		defer t.Stop()
		select {
		case <-t.C:
		case <-g.ctx.Done():
			return nil, context.Cause(g.ctx)
		}
	}
	return g.eng.Connect(g.ctx, addr)
}

// reached ends an attempt to connect.
func (g *Group) reached(m proto.Member, p *hawser.Peer, err error) {
	s := &g.seats[m.Rank]
	if s.id != m.ID {
		return // another engine has the rank by now
	}
	s.dialing = false
	if err == nil {
		s.peer, s.refused = p, 0
		g.repeat(m, p.Session()-1)
		return
	}
	if errors.Is(err, hawser.ErrRefused) || errors.Is(err, syscall.ECONNREFUSED) {
		if s.refused++; s.refused >= maxRefused {
			s.lost = err
		}
	}
	g.reach(m)
	g.checkLost()
}

// checkLost gives a change of view up that a member takes no part in any more. It waits for what is found out about others, so that
// all of them are named.
func (g *Group) checkLost() {
	if g.attempt == nil {
		return
	}
	var lost []int
	var cause error
	for _, m := range g.attempt.view.Members {
		s := &g.seats[m.Rank]
		if m.Rank == g.cfg.Rank {
			continue
		}
		if s.lost != nil {
			lost, cause = append(lost, m.Rank), s.lost
		} else if s.dialing && s.refused > 0 {
			return
		}
	}
	if cause != nil {
		g.core.Abandon(&ActivateError{lost, cause})
	}
}

// repeat says again what was said in sessions up to one that has ended: it may not have arrived.
func (g *Group) repeat(m proto.Member, ended uint64) {
	for r, session := range g.seats[m.Rank].sent {
		if session > 0 && session <= ended {
			g.core.Unsent(m, g.core.Epoch(), r+1)
		}
	}
	g.again(m)
}

// peerEvent is called by the engine.
func (g *Group) peerEvent(e hawser.PeerEvent) {
	id := proto.ID(e.Peer.ID())
	g.event(func() {
		if e.Kind == hawser.PeerFenced {
			g.proven(e.Peer)
		}
		rank := slices.IndexFunc(g.seats, func(s seat) bool { return s.id == id })
		if rank < 0 {
			return
		}
		g.seats[rank].peer = e.Peer
		switch m := (proto.Member{Rank: rank, ID: id}); e.Kind {
		case hawser.PeerUp:
			g.repeat(m, e.Session-1)
		case hawser.PeerDown:
			for _, l := range g.lanes {
				l.peerDown(rank, e.Session)
			}
			g.repeat(m, e.Session)
		case hawser.PeerFenced, hawser.PeerReplaced:
		}
	})
}

// message takes a message of the group.
func (g *Group) message(m hawser.Message) {
	g.event(func() {
		if err := g.core.Message(proto.ID(m.From.ID()), m.Data[frameBytes:]); err != nil {
			g.stats.Refused++
		}
	})
}
