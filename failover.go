package hawser

import (
	"fmt"

	"github.com/hawser-project/hawser/internal/rail"
	"github.com/hawser-project/hawser/internal/wire"
)

// What a session does for its links once it is up. The rails decide everything (internal/rail); the session carries what the two
// sides have to say to each other, and ends when no link has been left for a while.

// linkless is how many ticks of the heart a session may be without a link in service. Its control connection is alive then, so the
// peer is, too; most likely it has lost all of its network but that.
const linkless = 50

// linkEvent is called by the worker.
func (s *session) linkEvent(rp *rail.Peer, i int, up bool, why string) {
	s.mu.Lock()
	if rp != s.links.Load() {
		s.mu.Unlock()
		return // of a path that was given up
	}
	s.inService.Store(int32(rp.Ready()))
	if up {
		s.rails.Or(1 << rp.Rail(i)) // one that stood by, maybe
	}
	if s.state.Load() == stateSetup {
		s.told |= 1 << i
		if !up {
			s.fault = why
		}
		s.mu.Unlock()
		s.e.notes.leave(&s.note)
		return
	}
	s.mu.Unlock()
	t, r := s.e.opts.Trace, rp.Rail(i)
	s.e.calls.add(func() {
		if t != nil && t.Link != nil {
			t.Link(LinkEvent{Peer: s.peer, Link: i, Rail: r, Up: up, Why: why})
		}
		if up {
			s.e.opts.Log.Info("link is back", "peer", s.peer.String(), "link", i)
		} else {
			s.e.opts.Log.Warn("link failed", "peer", s.peer.String(), "link", i, "why", why)
		}
	})
}

// setSlots notes which links the session may have: those of the path that works, and those of the ways after it, which stand by.
func (s *session) setSlots(ways []plan) {
	for class, way := range ways {
		for _, pair := range way.pairs {
			if len(s.slots) == wire.MaxRails {
				return
			}
			s.slots = append(s.slots, rail.Slot{Local: int(pair.Answerer), Remote: pair.dialers, Class: uint8(class)})
		}
	}
}

// allowed is which rails of ours connections may use.
func (e *Engine) allowed() []bool {
	if e.opts.Require == "" {
		return nil
	}
	out := make([]bool, len(e.rails))
	for i, d := range e.rails {
		out[i] = serves(d.Provider, e.opts.Require)
	}
	return out
}

// tellLink is called by the worker.
func (s *session) tellLink(n *wire.LinkNotice) {
	s.post(wire.AppendFrame(nil, wire.TypeLink, 0, n))
}

// heard is called by the reader.
func (s *session) heard(f wire.Frame) error {
	n := new(wire.LinkNotice)
	if err := wire.Parse(f.Payload, n); err != nil {
		return err
	}
	rp := s.links.Load()
	s.e.worker.group.Call(func(g *rail.Group) { g.Notice(rp, n) })
	return nil
}

// askKeys is called by the worker: a link came up after r was made. The answer comes to the reader.
func (s *session) askKeys(r *Remote) {
	s.mu.Lock()
	s.nextAsk++
	n := s.nextAsk
	s.asked[n] = func(payload []byte) error {
		var res wire.Resolved
		if err := wire.Parse(payload, &res); err != nil {
			return err
		}
		keys, closed := railKeys(res.Keys), res.Fault != wire.FaultNone && res.Fault != wire.FaultInternal
		s.e.worker.group.Call(func(g *rail.Group) {
			if closed {
				g.CloseRemote(&r.rr)
			} else {
				g.SetKeys(&r.rr, keys)
			}
		})
		return nil
	}
	s.mu.Unlock()
	s.post(wire.AppendFrame(nil, wire.TypeResolve, n, &wire.Resolve{Descriptor: r.d}))
}

func railKeys(keys []wire.Key) []rail.LinkKey {
	out := make([]rail.LinkKey, len(keys))
	for i, k := range keys {
		out[i] = rail.LinkKey{Link: int(k.Link), Epoch: k.Epoch}
		out[i].Key.ID, out[i].Key.Base = k.ID, k.Base
	}
	return out
}

// checkLinkless is called by the heart at each tick.
func (s *session) checkLinkless() {
	if s.inService.Load() > 0 {
		s.alone.Store(0)
		return
	}
	if s.alone.Add(1) > linkless {
		s.fail(ErrPeerDown, fmt.Errorf("no link to it has worked for %v", linkless*heartTick))
	}
}
