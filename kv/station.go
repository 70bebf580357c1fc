package kv

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv/proto"
)

// machine is what both of the protocol's machines have in common.
type machine interface {
	Message(now proto.Time, from proto.Peer, data []byte)
	Tick(now proto.Time)
	Next() (proto.Time, bool)
	Knows(p proto.Peer) bool
	Pair(data []byte) *proto.Pairing // without the lock
	Paired(x *proto.Pairing)
}

// station runs a machine over an engine: it owns the lock that serializes all calls of the machine, its clock, and the numbers by which
// it knows the engine's peers. A Decoder and a Prefiller are one each.
type station struct {
	eng    *hawser.Engine
	log    *slog.Logger
	origin time.Time // of the machine's clock

	ctx  context.Context // ends in Close
	stop context.CancelFunc
	deaf func()        // ends the calls of peerEvent
	kick chan struct{} // capacity 1: the machine's next deadline may have come nearer
	wg   sync.WaitGroup

	mu      sync.Mutex // guards the machine and everything below
	m       machine    // set once, as down
	down    func(now proto.Time, p proto.Peer, cause error)
	due     proto.Time // when timers will look again
	peers   []peer     // by number, from 1
	numbers map[*hawser.Peer]proto.Peer
	sweepAt int                 // numbers
	bulks   map[bulkKey]bool    // streams that are under way; peer.streams has their bytes
	rest    func()              // before what is due late; sleep, but in tests. Called without mu
	pairing map[proto.Peer]bool // peers of which a Hello, or its answer, is worked on
}

// peer is an engine at the other end. session is that in which the machine's link to it began: the end of one before says
// nothing.
type peer struct {
	p       *hawser.Peer
	session uint64
	streams int // bytes
}

// maxStreams bounds the bytes of the streams to a peer that are under way: it may not take what it has asked for. What is beyond is lost.
const maxStreams = 4 * proto.MaxMessage

// bulkKey tells repetitions of a message: a stream is not begun again while it is under way.
type bulkKey struct {
	to    proto.Peer
	kind  proto.Kind
	about uint64 // see proto.Peek
}

func newStation(eng *hawser.Engine, log *slog.Logger) station {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	ctx, stop := context.WithCancel(context.Background())
	return station{
		eng: eng, log: log, origin: time.Now(), ctx: ctx, stop: stop, kick: make(chan struct{}, 1), due: math.MaxInt64,
		peers: make([]peer, 1), numbers: map[*hawser.Peer]proto.Peer{}, sweepAt: sweepFirst,
		bulks: map[bulkKey]bool{}, pairing: map[proto.Peer]bool{},
	}
}

// begin starts to listen.
func (s *station) begin(m machine, down func(proto.Time, proto.Peer, error)) {
	s.m, s.down = m, down
	if s.rest == nil {
		s.rest = s.sleep
	}
	s.deaf = s.eng.OnPeer(s.peerEvent)
	s.wg.Go(s.receive)
	s.wg.Go(s.timers)
}

// end stops listening and joins all goroutines.
func (s *station) end() {
	s.deaf()
	s.stop()
	s.wg.Wait()
}

func (s *station) now() proto.Time { return time.Since(s.origin) }

// time is a time of the machine on the wall clock.
func (s *station) time(t proto.Time) time.Time { return s.origin.Add(t) }

// unlock ends a call of the machine, which may have set an earlier deadline.
func (s *station) unlock() {
	if next, ok := s.m.Next(); ok && next < s.due {
		s.due = next
		signal(s.kick)
	}
	s.mu.Unlock()
}

// timers tells the machine when something is due.
func (s *station) timers() {
	t := time.NewTimer(time.Hour)
	defer t.Stop()
	rested := false
	for {
		s.mu.Lock()
		now := s.now()
		next, ok := s.m.Next()
		if ok && now-next > lateLimit && !rested {
			s.mu.Unlock()
			s.rest()
			rested = true
			continue
		}
		rested = false
		if ok && next <= now {
			s.m.Tick(now)
			next, ok = s.m.Next()
		}
		if !ok {
			next = now + time.Hour
		}
		s.due = next
		s.mu.Unlock()
		t.Reset(max(next-now, minWait))
		select {
		case <-t.C:
		case <-s.kick:
		case <-s.ctx.Done():
			return
		}
	}
}

// A timer that is later than lateLimit says that this process was stopped, or got hardly any processor time. What peers sent meanwhile is
// here and was not taken, so that their silence is no news: it is taken first, for restTime.
const (
	lateLimit = 500 * time.Millisecond
	restTime  = 100 * time.Millisecond
)

func (s *station) sleep() {
	select {
	case <-time.After(restTime):
	case <-s.ctx.Done():
	}
}

// minWait bounds how often the machine is told that something is due.
const minWait = 100 * time.Microsecond

// receive takes the engine's messages.
func (s *station) receive() {
	for {
		m, err := s.eng.Receive(s.ctx)
		if err != nil {
			return // closing: the engine or the station
		}
		kind, _ := proto.Peek(m.Data)
		s.mu.Lock()
		from := s.number(m.From)
		if kind == proto.KindHello {
			s.met(from) // it may come a moment before the session is up here
		}
		if kind == proto.KindHello || kind == proto.KindHelloAck {
			s.introduce(from, m.Data)
		} else {
			s.m.Message(s.now(), from, m.Data)
		}
		s.unlock()
	}
}

// introduce takes a Hello or its answer, in a goroutine of its own: to compare topologies takes long, and holds up nobody. Of those that
// come meanwhile from the same peer nothing is lost that is not said again. Needs mu.
func (s *station) introduce(from proto.Peer, data []byte) {
	if s.pairing[from] || s.ctx.Err() != nil {
		return
	}
	s.pairing[from] = true
	s.wg.Go(func() {
		x := s.m.Pair(data)
		s.mu.Lock()
		defer s.unlock()
		delete(s.pairing, from)
		if x != nil {
			s.m.Paired(x)
		}
		s.m.Message(s.now(), from, data)
	})
}

// peerEvent is called by the engine.
func (s *station) peerEvent(e hawser.PeerEvent) {
	if e.Kind != hawser.PeerDown {
		return
	}
	s.mu.Lock()
	defer s.unlock()
	n, ok := s.numbers[e.Peer]
	if !ok || e.Session < s.peers[n].session || s.ctx.Err() != nil {
		return // a session before the one that the machine uses
	}
	s.down(s.now(), n, peerDown(e))
}

// peerDown is the cause of a peer-down event; it always is an ErrPeerDown.
func peerDown(e hawser.PeerEvent) error {
	switch {
	case e.Cause == nil:
		return hawser.ErrPeerDown
	case errors.Is(e.Cause, hawser.ErrPeerDown):
		return e.Cause
	}
	return &downError{e.Cause}
}

// downError is an ErrPeerDown with a cause that does not say so.
type downError struct{ cause error }

func (e *downError) Error() string   { return hawser.ErrPeerDown.Error() + ": " + e.cause.Error() }
func (e *downError) Unwrap() []error { return []error{hawser.ErrPeerDown, e.cause} }

// number returns the machine's number of a peer. Needs mu.
func (s *station) number(p *hawser.Peer) proto.Peer {
	n, ok := s.numbers[p]
	if !ok {
		if len(s.numbers) >= s.sweepAt {
			s.sweep()
		}
		n = proto.Peer(len(s.peers))
		s.numbers[p] = n
		s.peers = append(s.peers, peer{p: p})
	}
	return n
}

// sweep gives up the numbers of peers that are down and mean nothing to the machine: peers come and go while the station stays. Needs mu.
func (s *station) sweep() {
	for p, n := range s.numbers {
		if !p.Up() && s.peers[n].streams == 0 && !s.pairing[n] && !s.m.Knows(n) {
			delete(s.numbers, p)
			s.peers[n] = peer{}
		}
	}
	s.sweepAt = 2*len(s.numbers) + sweepFirst
}

// sweepFirst is how many peers there are at the first sweep.
const sweepFirst = 64

// met notes that a link begins in the session that the peer has now: the end of one before says nothing about it. It reports
// whether that session is up: the end of one that was may have been told already, and nobody would tell the machine again. Needs mu.
func (s *station) met(n proto.Peer) bool {
	p := &s.peers[n]
	p.session = max(p.session, p.p.Session())
	return p.p.Up()
}

// peer is the engine's peer of a number. Needs mu.
func (s *station) peer(n proto.Peer) *hawser.Peer { return s.peers[n].p }

// Send sends a message, or loses it: the machines repeat what they wait for. Needs mu.
func (s *station) Send(to proto.Peer, data []byte) {
	p := s.peer(to)
	kind, about := proto.Peek(data)
	if len(data) <= hawser.MaxMessage {
		if _, err := s.eng.Send(p, data); err != nil {
			s.log.Debug("message lost", "kind", kind, "peer", p, "err", err)
		}
		return
	}
	key := bulkKey{to, kind, about}
	if s.bulks[key] || s.peers[to].streams+len(data) > maxStreams || s.ctx.Err() != nil {
		return
	}
	s.bulks[key] = true
	s.peers[to].streams += len(data)
	s.wg.Go(func() {
		err := s.eng.SendBulk(s.ctx, p, data, nil)
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.bulks, key)
		s.peers[to].streams -= len(data)
		if err != nil {
			s.log.Debug("message lost", "kind", kind, "peer", p, "bytes", len(data), "err", err)
		}
	})
}

// descriptor describes a whole region, for writing.
func descriptor(r *hawser.Region) ([]byte, error) {
	return r.Descriptor(r.All(), hawser.RightWrite).MarshalBinary()
}

// signal fills a channel of capacity 1.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
