package hawser

import (
	"slices"
	"time"

	"github.com/hawser-project/hawser/internal/rail"
)

// Stats is a snapshot of an engine.
type Stats struct {
	Rails    []RailStats
	Peers    []PeerStats
	Inflight int64 // operations submitted and not ended
	Counters int   // immediates that have a counter

	StaleImms uint64 // arrivals at managed values that were not open; see Imms
	Watchers  int    // words that are watched

	Callbacks CallbackStats // of OnPeer and the like, and lines of the log
	Watches   CallbackStats // of Watch

	// Refused counts connections and sessions that were closed because of what the other side did, by reason: see RefusedVersion.
	Refused map[string]uint64
}

// CallbackStats are about users' functions that the engine runs one after the other.
type CallbackStats struct {
	Run     uint64        // how many have ended
	Panics  uint64        // how many of them by a panic; each is logged
	Slowest time.Duration // the longest run: those behind it waited as long
}

// RailStats describes an open rail.
type RailStats struct {
	Provider, Device string
	LinkBits         uint64 // bits per second, 0 when unknown
}

// PeerStats describes the session with a peer, the latest one when it is down.
type PeerStats struct {
	ID     ID
	Name   string
	Up     bool
	Path   string // provider
	Reason string // why this path
	Links  int
	Down   error // why it is down

	ConnectTime time.Duration // from the dial, or the other side's, until it was up

	Reconnecting   bool   // a lost session is being set up again
	ReconnectTries int    // dials for that, since a session last lasted
	ReconnectErr   error  // of the last one, or why it was given up
	Reconnects     uint64 // how often the peer came back by itself

	TxBytes, TxWrites              uint64 // writes and messages that have ended; bytes of those without error
	RxImms, RxImmBytes, RxMessages uint64
	RxStale                        uint64 // immediates that were stale, in all sessions
}

// Stats takes a snapshot.
func (e *Engine) Stats() Stats {
	st := Stats{
		Inflight: e.inflight.Load(), Counters: e.imms.Len(), StaleImms: e.managed.stale.count.Load(),
		Watchers: len(*e.watches.list.Load()), Callbacks: e.calls.ran.stats(), Watches: e.watches.ran.stats(),
	}
	st.Refused = e.refused.snapshot()
	for _, d := range e.rails {
		st.Rails = append(st.Rails, RailStats{Provider: d.Provider, Device: d.Name, LinkBits: d.LinkBits})
	}
	sessions := slices.DeleteFunc(e.sessions(nil), func(s *session) bool { return s.peer.cur.Load() != s })
	counts := make([]rail.Counts, len(sessions))
	_ = e.worker.do(func(g *rail.Group) error { // fails when the engine is closed: then the counts are 0
		for i, s := range sessions {
			for _, l := range g.Links(s.links.Load()) {
				counts[i].Add(l.Counts)
			}
		}
		return nil
	})
	for i, s := range sessions {
		c := counts[i]
		ps := PeerStats{
			ID: s.peer.id, Name: s.peer.Name(), Up: s.state.Load() == stateUp, Down: s.cause(),
			TxBytes: c.TxBytes, TxWrites: c.TxWrites, RxImms: c.RxImms, RxImmBytes: c.RxImmBytes, RxMessages: c.RxMessages, RxStale: s.peer.source.Stale(),
		}
		s.peer.redialStats(&ps)
		if s.state.Load() != stateSetup {
			s.mu.Lock()
			ps.Path, ps.Reason, ps.Links = s.path, s.reason, s.want
			if s.wasUp {
				ps.ConnectTime = s.upAt.Sub(s.begun)
			}
			s.mu.Unlock()
		}
		st.Peers = append(st.Peers, ps)
	}
	return st
}
