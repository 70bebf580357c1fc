package hawser

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hawser-project/hawser/internal/rail"
	"github.com/hawser-project/hawser/internal/record"
	"github.com/hawser-project/hawser/provider"
)

// Stats is a snapshot of an engine.
type Stats struct {
	Rails    []RailStats
	LeftOut  map[string]string // networks, or devices of them (provider/device), that Options.Rails does not list and that cannot be used here: why
	Peers    []PeerStats
	Inflight int64 // operations submitted and not ended
	Counters int   // immediates that have a counter

	StaleImms uint64 // arrivals at managed values that were not open; see Imms
	Watchers  int    // words that are watched

	Callbacks CallbackStats // of OnPeer and the like, and lines of the log
	Watches   CallbackStats // of Watch

	// Refused counts connections and sessions that were closed because of what the other side did, by reason: see RefusedVersion.
	Refused map[string]uint64

	Ops          OpStats
	Latency      Latency
	TraceDropped uint64 // operations and refusals that Options.Trace was not told, because it is too slow
}

// OpStats are about operations that have ended. A Scatter is one, but its targets fail one by one.
type OpStats struct {
	Ended  uint64
	Errors map[string]uint64 // those that failed, by cause: "flushed" (their connection ended), "access", "local" (the network refused them)
}

// Latency is where the time of operations goes. One of 64 is followed with the clock on its way, and one wake of 16.
type Latency struct {
	Queue  Histogram // from the submit to the network
	Post   Histogram // in the network's driver, for the batch that it was in
	Wire   Histogram // from there to the completion: of the first part, when it ends well
	Notify Histogram // from the completion, or the last count, until those who wait are woken and callbacks are handed over; not of those who look themselves
}

// CallbackStats are about users' functions that the engine runs one after the other.
type CallbackStats struct {
	Run     uint64        // how many have ended
	Panics  uint64        // how many of them by a panic; each is logged
	Slowest time.Duration // the longest run: those behind it waited as long
}

// Traffic is what went over a link, to a peer or over a rail.
type Traffic struct {
	TxBytes, TxWrites              uint64 // writes and messages that have ended; bytes of those without error
	TxImms, TxMessages             uint64 // that the other side is known to have counted, and taken
	RxImms, RxImmBytes, RxMessages uint64
	RxRefused                      uint64 // writes with immediates that were refused here, where the network tells
	Resent                         uint64 // writes and messages that went down with a connection and were sent again
	Losses                         uint64 // connections that failed while they were in service
	Denials                        uint64 // connections that a refused write has ended, of either side, on networks where it does (provider.Caps.AccessEnds)
}

// RailStats describes an open rail, and what went over it since it was opened.
type RailStats struct {
	Provider, Device string
	LinkBits         uint64 // bits per second, 0 when unknown
	Dead             bool   // it cannot be used any more

	Traffic
	Outstanding int               // writes and messages that its network has
	Held        int               // requests that its network had no room for yet
	Batches     uint64            // that its network was given
	Short       uint64            // of which it did not take all; the rest is given again
	Errors      map[string]uint64 // writes and messages that did not end well, by how; those that are sent again, too
	Share       float64           // bytes sent, in relation to what is fair by speed among the rails of its provider: 1 is fair, 0 idle
	Post, Wire  Histogram         // as in Latency
}

// LinkStats describes one link of a session.
type LinkStats struct {
	Rail             int // of this side, as in Stats.Rails
	Provider, Device string
	Standby          uint8  // 0: of the path; higher: it stands by, in this order
	Ready            bool   // in service
	Epoch            uint32 // connections so far
	Outstanding      int    // writes and messages that its network has

	Traffic
}

// PeerStats describes the session with a peer, the latest one when it is down.
type PeerStats struct {
	ID     ID
	Name   string
	Up     bool
	Path   string // provider
	Reason string // why this path
	Links  int    // of the path
	Down   error  // why it is down

	Degraded  string      // what of the path does not work now, though the peer is up; empty: nothing
	Waiting   int         // operations with parts that no link has taken yet
	Imbalance float64     // of the links in service: how much more the busiest has sent than is fair by speed; 1 is fair, 0 unknown
	PerLink   []LinkStats // those that stand by, too

	ConnectTime time.Duration // from the dial, or the other side's, until it was up

	Reconnecting   bool   // a lost session is being set up again
	ReconnectTries int    // dials for that, since a session last lasted
	ReconnectErr   error  // of the last one, or why it was given up
	Reconnects     uint64 // how often the peer came back by itself

	Traffic
	RxStale uint64 // immediates that were stale, in all sessions
}

// look is what the worker knows, at one moment.
type look struct {
	rails  []rail.Info
	peers  []peerLook
	queue  record.Histogram
	ended  uint64
	failed [statuses]uint64
}

type peerLook struct {
	links   []rail.LinkInfo
	waiting int
	class   uint8
}

// look asks the worker. When the engine is closed, everything is 0.
func (w *worker) look(sessions []*session) look {
	out := look{rails: make([]rail.Info, len(w.e.rails)), peers: make([]peerLook, len(sessions))}
	_ = w.do(func(g *rail.Group) error {
		for i := range out.rails {
			out.rails[i] = g.Info(i)
		}
		for i, s := range sessions {
			rp := s.links.Load()
			out.peers[i] = peerLook{links: g.Links(rp), waiting: g.Waiting(rp), class: rp.Class()}
		}
		out.queue, out.failed, out.ended = g.Queue(), w.failed, w.recorder.Count()-w.targets
		return nil
	})
	return out
}

// Stats takes a snapshot. Everything that the worker counts is of one moment. Counts of an engine that is closed are 0.
// It asks the worker, so it is for people and monitors, not for hot paths.
func (e *Engine) Stats() Stats {
	st := Stats{
		LeftOut:  maps.Clone(e.leftOut),
		Inflight: e.inflight.Load(), Counters: e.imms.Len(), StaleImms: e.managed.stale.count.Load(),
		Watchers: len(*e.watches.list.Load()), Callbacks: e.calls.ran.stats(), Watches: e.watches.ran.stats(),
	}
	st.Refused = e.refused.snapshot()
	if e.tracer != nil {
		st.TraceDropped = e.tracer.dropped.Load()
	}
	sessions := slices.DeleteFunc(e.sessions(nil), func(s *session) bool { return s.peer.cur.Load() != s })
	l := e.worker.look(sessions)
	st.Ops = OpStats{Ended: l.ended, Errors: byStatus(&l.failed)}
	st.Latency.Queue, st.Latency.Notify = Histogram(l.queue), Histogram(e.notes.latency())
	var post, wire record.Histogram
	for i := range l.rails {
		st.Rails = append(st.Rails, e.railStats(i, &l.rails[i]))
		post.Merge(&l.rails[i].Post)
		wire.Merge(&l.rails[i].Wire)
	}
	st.Latency.Post, st.Latency.Wire = Histogram(post), Histogram(wire)
	shares(st.Rails)
	for i, s := range sessions {
		st.Peers = append(st.Peers, s.stats(st.Rails, &l.peers[i]))
	}
	return st
}

func (e *Engine) railStats(i int, in *rail.Info) RailStats {
	d := &e.rails[i]
	return RailStats{
		Provider: d.Provider, Device: d.Name, LinkBits: d.LinkBits, Dead: e.deadRails[i].Load(),
		Traffic: Traffic(in.Counts), Outstanding: in.Outstanding, Held: in.Held, Batches: in.Posts, Short: in.Short,
		Errors: byStatus(&in.Failed), Post: Histogram(in.Post), Wire: Histogram(in.Wire),
	}
}

func (s *session) stats(rails []RailStats, l *peerLook) PeerStats {
	ps := PeerStats{
		ID: s.peer.id, Name: s.peer.Name(), Up: s.state.Load() == stateUp, Down: s.cause(), Waiting: l.waiting, RxStale: s.peer.source.Stale(),
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
	var sum rail.Counts
	for i := range l.links {
		in := &l.links[i]
		sum.Add(in.Counts)
		ps.PerLink = append(ps.PerLink, LinkStats{
			Rail: in.Rail, Provider: rails[in.Rail].Provider, Device: rails[in.Rail].Device, Standby: in.Class, Ready: in.Ready,
			Epoch: in.Epoch, Outstanding: in.Load, Traffic: Traffic(in.Counts),
		})
	}
	ps.Traffic = Traffic(sum)
	ps.Imbalance = imbalance(ps.PerLink, l.class, rails)
	if ps.Up {
		ps.Degraded = degraded(ps.PerLink, l.class, ps.Links)
	}
	return ps
}

// degraded says what of a path of so many links does not work.
func degraded(links []LinkStats, class uint8, want int) string {
	ready := 0
	var by string
	for i := range links {
		if l := &links[i]; l.Ready && l.Standby == class {
			ready++
			by = l.Provider
		}
	}
	switch {
	case ready == 0:
		return "no link is in service"
	case class > 0:
		return fmt.Sprintf("%s stands in for it", by)
	case ready < want:
		return fmt.Sprintf("%d of %d links are in service", ready, want)
	}
	return ""
}

// imbalance is the largest share of a link in service, where a fair one is 1.
func imbalance(links []LinkStats, class uint8, rails []RailStats) float64 {
	var bytes, speed, most float64
	for i := range links {
		if l := &links[i]; l.Ready && l.Standby == class {
			bytes += float64(l.TxBytes)
			speed += speedOf(rails[l.Rail].LinkBits)
		}
	}
	if bytes == 0 {
		return 0
	}
	for i := range links {
		if l := &links[i]; l.Ready && l.Standby == class {
			most = max(most, float64(l.TxBytes)/bytes*speed/speedOf(rails[l.Rail].LinkBits))
		}
	}
	return most
}

// shares fills RailStats.Share.
func shares(rails []RailStats) {
	bytes, speed := map[string]float64{}, map[string]float64{}
	for i := range rails {
		bytes[rails[i].Provider] += float64(rails[i].TxBytes)
		speed[rails[i].Provider] += speedOf(rails[i].LinkBits)
	}
	for i := range rails {
		r := &rails[i]
		if b := bytes[r.Provider]; b > 0 {
			r.Share = float64(r.TxBytes) / b * speed[r.Provider] / speedOf(r.LinkBits)
		}
	}
}

// speedOf makes rails of unknown speed equal, as placement does.
func speedOf(speed uint64) float64 { return float64(max(speed, 1)) }

// byStatus names what was counted by provider.Status; nil when nothing was.
func byStatus(counts *[statuses]uint64) map[string]uint64 {
	var out map[string]uint64
	for st, n := range counts {
		if n == 0 {
			continue
		}
		if out == nil {
			out = map[string]uint64{}
		}
		out[provider.Status(st).String()] = n
	}
	return out
}

// statuses is more than there are values of provider.Status.
const statuses = 16

// MarshalJSON writes errors as their texts.
func (p PeerStats) MarshalJSON() ([]byte, error) {
	type plain PeerStats // without this method
	return json.Marshal(struct {
		plain
		Down         string `json:",omitempty"`
		ReconnectErr string `json:",omitempty"`
	}{plain(p), text(p.Down), text(p.ReconnectErr)})
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// String is a table for people: the engine, its rails, its peers and their links.
func (s Stats) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d operations ended, %d under way, errors %v, refused %v\n", s.Ops.Ended, s.Inflight, s.Ops.Errors, s.Refused)
	fmt.Fprintf(&b, "queue %s; post %s; wire %s; notify %s\n", s.Latency.Queue, s.Latency.Post, s.Latency.Wire, s.Latency.Notify)
	for i := range s.Rails {
		r := &s.Rails[i]
		state := ""
		if r.Dead {
			state = ", dead"
		}
		fmt.Fprintf(&b, "rail %d %s/%s%s: %s, share %.2f, %d outstanding, %d held, errors %v\n", i, r.Provider, r.Device, state, r.Traffic.text(), r.Share, r.Outstanding, r.Held, r.Errors)
	}
	for i := range s.Peers {
		p := &s.Peers[i]
		state := "up over " + p.Path
		switch {
		case !p.Up && p.Down == nil:
			state = "connecting"
		case !p.Up:
			state = "down: " + p.Down.Error()
		case p.Degraded != "":
			state += ", degraded: " + p.Degraded
		}
		fmt.Fprintf(&b, "peer %s %s: %s, %d waiting, imbalance %.2f\n", cmp.Or(p.Name, p.ID.String()[:8]), state, p.Traffic.text(), p.Waiting, p.Imbalance)
		for k := range p.PerLink {
			l := &p.PerLink[k]
			state := "out of service"
			if l.Ready {
				state = "ready"
			}
			fmt.Fprintf(&b, "  link %d %s/%s %s, connection %d: %s, %d outstanding\n", k, l.Provider, l.Device, state, l.Epoch, l.Traffic.text(), l.Outstanding)
		}
	}
	return b.String()
}

// text is for Stats.String. A method String would be that of everything that embeds a Traffic.
func (t *Traffic) text() string {
	s := fmt.Sprintf("sent %d bytes in %d writes, %d immediates, %d messages; got %d immediates, %d messages", t.TxBytes, t.TxWrites, t.TxImms, t.TxMessages, t.RxImms, t.RxMessages)
	if t.Losses > 0 || t.Resent > 0 || t.RxRefused > 0 {
		s += fmt.Sprintf("; lost %d times, %d sent again, %d refused", t.Losses, t.Resent, t.RxRefused)
	}
	return s
}
