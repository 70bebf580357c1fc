package weights

import (
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/weights/proto"
	"github.com/hawser-project/hawser/weights/stage"
)

// machine is what the protocol's machines have in common.
type machine interface {
	Message(now proto.Time, from proto.ID, data []byte)
	PeerDown(now proto.Time, p proto.ID)
	Blob(now proto.Time, h proto.Hash)
	Tick(now proto.Time)
	Next() (proto.Time, bool)
}

// station runs a machine over an engine: it owns the lock that serializes all calls of the machine, its clock, the connections to its
// peers, and what is too large for a message. A Publisher, a Receiver and a Controller are one each.
type station struct {
	eng    *hawser.Engine
	log    *slog.Logger
	origin time.Time // of the machine's clock

	ctx  context.Context // ends in Close
	stop context.CancelFunc
	// tap sees each message before it is sent, and decides whether it is; nil but in tests. Guarded by mu.
	tap func(data []byte) bool
	// other takes messages that are not the protocol's; nil: there are none.
	other func(from *hawser.Peer, data []byte) bool
	deaf  func()        // ends the calls of peerEvent
	kick  chan struct{} // capacity 1: the machine's next deadline may have come nearer
	wg    sync.WaitGroup

	mu       sync.Mutex // guards the machine and everything below
	m        machine
	due      proto.Time // when timers will look again
	peers    map[proto.ID]*peer
	blobs    map[proto.Hash][]byte
	order    []proto.Hash // of blobs that came: the oldest first
	messages uint64       // that were sent
}

// peer is an engine at the other end.
type peer struct {
	p       *hawser.Peer    // nil until it was met; it may be down
	addr    string          // empty: it connects
	session uint64          // that the machine knows of: the end of one before says nothing
	dialing bool            // somebody connects
	waiting [][]byte        // messages for it meanwhile
	streams map[uint64]bool // messages and blobs that are under way as streams, by a hash of their bytes
}

// maxWaitingMessages bounds what is kept for a peer that is being connected: the machines repeat what matters.
const maxWaitingMessages = 64

// keptBlobs is how many blobs of others are kept: layouts, and slices of the last epochs.
const keptBlobs = 64

func newStation(eng *hawser.Engine, log *slog.Logger) station {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	ctx, stop := context.WithCancel(context.Background())
	return station{
		eng: eng, log: log, origin: time.Now(), ctx: ctx, stop: stop, kick: make(chan struct{}, 1), due: math.MaxInt64,
		peers: map[proto.ID]*peer{}, blobs: map[proto.Hash][]byte{},
	}
}

// begin starts to listen.
func (s *station) begin(m machine) {
	s.m = m
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

// unlock ends a call of the machine, which may have set an earlier deadline.
func (s *station) unlock() {
	if next, ok := s.m.Next(); ok && next < s.due {
		s.due = next
		signal(s.kick)
	}
	s.mu.Unlock()
}

// event calls f, which tells the machine something, unless the station has ended.
func (s *station) event(f func(now proto.Time)) {
	s.mu.Lock()
	defer s.unlock()
	if s.ctx.Err() == nil {
		f(s.now())
	}
}

// do runs work that may block on a goroutine of its own, then tells the machine what became of it.
func (s *station) do(work func(ctx context.Context) (answer func(now proto.Time))) {
	if s.ctx.Err() != nil {
		return
	}
	s.wg.Go(func() {
		if answer := work(s.ctx); answer != nil {
			s.event(answer)
		}
	})
}

// minWait bounds how often the machine is told that something is due.
const minWait = 100 * time.Microsecond

// timers tells the machine when something is due.
func (s *station) timers() {
	t := time.NewTimer(time.Hour)
	defer t.Stop()
	for {
		s.mu.Lock()
		now := s.now()
		next, ok := s.m.Next()
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

// Messages that begin with blobMagic are blobs, in full. The protocol's begin with another one.
const blobMagic = "hwB1"

// receive takes the engine's messages.
func (s *station) receive() {
	for {
		m, err := s.eng.Receive(s.ctx)
		if err != nil {
			return // closing: the engine or the station
		}
		if len(m.Data) >= len(blobMagic) && string(m.Data[:len(blobMagic)]) == blobMagic {
			blob := m.Data[len(blobMagic):]
			h := proto.Hash(sha256.Sum256(blob))
			s.event(func(now proto.Time) {
				s.keep(h, blob)
				s.m.Blob(now, h)
			})
			continue
		}
		if s.other != nil && s.other(m.From, m.Data) {
			continue
		}
		s.event(func(now proto.Time) {
			s.met(m.From)
			s.m.Message(now, m.From.ID(), m.Data)
		})
	}
}

// keep keeps a blob, and drops old ones. Needs mu.
func (s *station) keep(h proto.Hash, blob []byte) {
	if _, ok := s.blobs[h]; ok {
		return
	}
	s.blobs[h] = blob
	s.order = append(s.order, h)
	if len(s.order) > keptBlobs {
		delete(s.blobs, s.order[0])
		s.order = s.order[1:]
	}
}

// known returns the entry of a peer. Needs mu.
func (s *station) known(id proto.ID) *peer {
	x := s.peers[id]
	if x == nil {
		x = &peer{streams: map[uint64]bool{}}
		s.peers[id] = x
	}
	return x
}

// met notes that a peer is there, in the session that it has now. Needs mu.
func (s *station) met(p *hawser.Peer) {
	x := s.known(p.ID())
	x.p = p
	x.session = max(x.session, p.Session())
}

// Meet notes where a peer is. Needs mu.
func (s *station) Meet(id proto.ID, addr string) {
	if id != s.eng.ID() {
		s.known(id).addr = addr
	}
}

// Has reports whether a blob is here. Needs mu.
func (s *station) Has(h proto.Hash) bool {
	_, ok := s.blobs[h]
	return ok
}

// peerEvent is called by the engine.
func (s *station) peerEvent(e hawser.PeerEvent) {
	if e.Kind != hawser.PeerDown {
		return
	}
	s.event(func(now proto.Time) {
		x := s.peers[e.Peer.ID()]
		if x == nil || e.Session < x.session {
			return // a session before the one that the machine uses
		}
		s.log.Info("peer down", "peer", e.Peer, "why", e.Cause)
		s.m.PeerDown(now, e.Peer.ID())
	})
}

// connectLimit bounds one attempt to connect; the machines repeat what matters.
const connectLimit = 5 * time.Second

// Send sends a message, or loses it: the machines repeat what they wait for. Needs mu.
func (s *station) Send(to proto.ID, data []byte) {
	if s.ctx.Err() != nil {
		return // a station that has ended says nothing more
	}
	if s.tap != nil && !s.tap(data) {
		return
	}
	s.messages++
	x := s.known(to)
	switch {
	case x.p != nil && x.p.Up():
		s.deliver(x, data)
	case x.addr == "" || len(x.waiting) == maxWaitingMessages:
	default:
		x.waiting = append(x.waiting, data)
		if !x.dialing {
			x.dialing = true
			s.wg.Go(func() { s.dial(x, to) })
		}
	}
}

func (s *station) dial(x *peer, to proto.ID) {
	ctx, cancel := context.WithTimeout(s.ctx, connectLimit)
	defer cancel()
	p, err := s.eng.Connect(ctx, x.addr)
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting := x.waiting
	x.waiting, x.dialing = nil, false
	if err == nil && p.ID() != to {
		err = errors.New("another engine answers at its address")
	}
	if err != nil {
		s.log.Debug("messages lost", "to", to, "n", len(waiting), "err", err)
		return
	}
	s.met(p)
	for _, data := range waiting {
		s.deliver(x, data)
	}
}

// deliver sends to a peer that is connected. Needs mu.
func (s *station) deliver(x *peer, data []byte) {
	if len(data) <= hawser.MaxMessage {
		if _, err := s.eng.Send(x.p, data); err != nil {
			s.log.Debug("message lost", "peer", x.p, "err", err)
		}
		return
	}
	s.stream(x, data)
}

// stream sends what is long, unless the same is under way already. Needs mu.
func (s *station) stream(x *peer, data []byte) {
	key := sumOf(data)
	if x.streams[key] || s.ctx.Err() != nil {
		return
	}
	x.streams[key] = true
	p := x.p
	s.wg.Go(func() {
		err := s.eng.SendBulk(s.ctx, p, data, nil)
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(x.streams, key)
		if err != nil {
			s.log.Debug("message lost", "peer", p, "bytes", len(data), "err", err)
		}
	})
}

// SendBlob sends a blob that is here. Needs mu.
func (s *station) SendBlob(to proto.ID, h proto.Hash) {
	if blob, ok := s.blobs[h]; ok {
		s.Send(to, append([]byte(blobMagic), blob...))
	}
}

// sumOf is a hash of bytes, for telling whether the same is under way.
func sumOf(b []byte) uint64 { return stage.Digest(stage.All, 0, 0, b) }
