package hawser

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser/internal/rail"
	"github.com/hawser-project/hawser/internal/record"
	"github.com/hawser-project/hawser/internal/wire"
)

// Session states. A session only moves forward.
//
//	stateSetup ──► stateUp ──► stateDown ──► fenced
//	     └───────────────────────▲
const (
	stateSetup uint32 = iota
	stateUp
	stateDown
)

// session is one connection with a peer: the control connection and the links over the rails.
//
// A handshake goroutine owns it until it is up; then its reader and its writer run until it is down. fail may be called by
// anyone, the worker included.
type session struct {
	note      // fires after fail, and after the worker changed the links
	e         *Engine
	peer      *Peer
	number    uint64 // among the sessions with the peer, from 1, in the order of being the latest; set by claim
	conn      net.Conn
	dialer    bool      // we dialed
	addr      string    // what we dialed; set before the session is up
	begun     time.Time // when that, or the handshake, began; as addr
	state     atomic.Uint32
	ctx       context.Context // ends with the session
	cancel    context.CancelFunc
	out       chan []byte               // frames for the writer: beats, answers, farewells
	questions chan []byte               // frames for the writer from callers who wait for each other: it has no places
	links     atomic.Pointer[rail.Peer] // of the path that is tried, or that works; set by begin
	rails     atomic.Uint64             // rails of ours that links use, or used, a bit each (wire.MaxRails is 64)
	linked    atomic.Bool               // our side of all links is up, which is enough to answer a peer that was quicker than our handshake
	prev      atomic.Pointer[session]   // the session before, while it is not over; cleared by follow
	pulse     pulse
	bulk      bulk
	log       atomic.Pointer[flightLog] // what happened before the session failed
	logged    chan struct{}             // closed when log is there
	lent      lent
	over      atomic.Bool // proved, and everything about the session has been told

	inService   atomic.Int32  // links that carry operations
	alone       atomic.Int32  // heart ticks without one
	slots       []rail.Slot   // what setSlots says; before the session is up
	posted      chan struct{} // capacity 1: posts is not empty
	questioning pacer         // frames that the peer sends

	mu           sync.Mutex
	posts        [][]byte // frames that must not be lost
	path, reason string   // set by begin, so fixed once the session is up
	want         int      // links of the path
	told         uint64   // those that came up or failed before the session was up, a bit each
	fault        string   // why one failed
	why          error    // of stateDown
	wasUp        bool
	upAt         time.Time // guarded as wasUp
	torn         bool      // fire has seen stateDown
	fencing      bool      // an attempt to fence the links is under way
	proved       bool      // nothing that came over the links can land any more
	wake         chan struct{}
	asked        map[uint64]func(payload []byte) error // what to do with the answers to our questions, by request number
	nextAsk      uint64
}

var (
	errFenced  = errors.New("fenced by this side")
	errClosing = errors.New("this engine is closing")
	errBye     = errors.New("peer left")
	errBroken  = errors.New("peer broke the protocol")
)

func (e *Engine) newSession(p *Peer, conn net.Conn, dialer bool) *session {
	s := &session{
		e: e, peer: p, conn: conn, dialer: dialer, out: make(chan []byte, outDepth), questions: make(chan []byte),
		wake: make(chan struct{}), asked: map[uint64]func([]byte) error{}, posted: make(chan struct{}, 1), logged: make(chan struct{}),
	}
	s.target = s
	s.pulse.watch = int(watchTime / heartTick)
	s.bulk.init()
	s.lent.asked = make(chan struct{}, wire.MaxRevokes)
	s.questioning.rate, s.questioning.burst = questionRate, questionBurst
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.links.Store(&rail.Peer{Tag: s, Number: s.peer.number, Allowed: e.allowed()})
	return s
}

// outDepth is how many control frames may wait for the writer.
const outDepth = 16

// begin gives up the links of the path before and starts with those of another one. A session that has failed gets none: what it
// has is being fenced.
func (s *session) begin(path, reason string, links int) (*rail.Peer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.why != nil {
		return nil, s.why
	}
	s.path, s.reason, s.want, s.told, s.fault = path, reason, links, 0, ""
	s.inService.Store(0)
	s.linked.Store(false)
	rp := &rail.Peer{Tag: s, Number: s.peer.number, Allowed: s.e.allowed()}
	old := s.links.Swap(rp)
	s.e.worker.group.Call(func(g *rail.Group) { g.Disconnect(old) })
	return rp, nil
}

// usable reports why the session cannot carry operations.
// hot:
func (s *session) usable() error {
	if st := s.state.Load(); st == stateUp || st == stateSetup && s.linked.Load() {
		return nil
	}
	return s.unusable()
}

func (s *session) unusable() error {
	if cur := s.peer.cur.Load(); cur != s && cur != nil && cur.state.Load() == stateUp {
		return fmt.Errorf("peer %s: %w: it has reconnected since: import again", s.peer, ErrStale)
	}
	cause := s.cause()
	if cause == nil {
		cause = fmt.Errorf("%w: still connecting", ErrPeerDown)
	}
	return fmt.Errorf("peer %s: %w", s.peer, cause)
}

// cause is why the session is down, nil while it is not.
func (s *session) cause() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.why
}

// fail ends the session. kind is the sentinel that users see. Only the first call counts, and reports true.
func (s *session) fail(kind, cause error) bool { return s.part(kind, cause, "") }

// part is fail that tells the peer why, when there is something to tell and the session was up. It is a courtesy: the closed connection
// says that something has ended. The word goes after the cause is set, because the peer's answer to it is the end of the connection,
// and before anybody takes the session down, which closes the writer.
func (s *session) part(kind, cause error, word string) bool {
	s.mu.Lock()
	if s.why != nil {
		s.mu.Unlock()
		return false
	}
	s.why = &downError{fmt.Errorf("%w: %w", kind, cause), s}
	before := s.state.Swap(stateDown)
	s.mu.Unlock()
	if word != "" && before == stateUp {
		s.tell(wire.TypeBye, &wire.Bye{Reason: word})
	}
	s.e.notes.push(&s.note)
	return true
}

// broken ends the session because of what the peer has sent. The peer is told, so that it knows why, and does not come back with the
// same.
func (s *session) broken(reason string, err error) {
	if s.part(ErrPeerDown, fmt.Errorf("%w: %w", errBroken, err), err.Error()) {
		s.e.refused.add(reason)
		s.e.newcomers.take(offenceCost)
	}
}

// fireState is what fire has to do.
func (s *session) fireState() (tear, over, wasUp bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if tear = s.why != nil && !s.torn; tear {
		s.torn = true
		s.startFence()
	}
	return tear, s.proved && !s.over.Load(), s.wasUp
}

// fire is called by the dispatcher, or by a worker that is idle: it takes a failed session down and wakes who waits for a change.
func (s *session) fire() {
	tear, over, wasUp := s.fireState()
	if tear {
		s.cancel()
		s.bulk.end(s)
		_ = s.conn.SetReadDeadline(time.Now()) // nobody stays in a call on the connection
		_ = s.conn.SetWriteDeadline(time.Now().Add(flushTime))
	}
	if tear && wasUp {
		why := s.cause()
		s.e.calls.add(func() { s.e.opts.Log.Info("peer is down", "peer", s.peer.String(), "cause", why) })
		s.e.emit(PeerEvent{Peer: s.peer, Kind: PeerDown, Session: s.number, Cause: why})
	}
	if over && wasUp {
		s.e.emit(PeerEvent{Peer: s.peer, Kind: PeerFenced, Session: s.number})
	}
	if over {
		s.e.imms.Detach(&s.peer.source)
		s.over.Store(true)
	}
	if tear && wasUp {
		s.e.lost(s)
	}
	s.mu.Lock()
	close(s.wake)
	s.wake = make(chan struct{})
	s.mu.Unlock()
	if tear {
		s.peer.broadcast()
	}
	if s.state.Load() == stateDown { // fire has run with it
		s.e.creditors.tell()
	}
}

// setUp moves the session to stateUp and starts its goroutines.
func (s *session) setUp(name string) error {
	s.peer.setName(name)
	_ = s.conn.SetDeadline(time.Time{}) // before the session is up: then it is up to fire
	if err := s.rise(); err != nil {
		return err
	}
	rp, lead, slots := s.links.Load(), !s.dialer, s.slots
	s.e.worker.group.Call(func(g *rail.Group) {
		s.e.worker.note(record.PeerUp, s.peer, -1, -1, s.path)
		g.Live(rp, lead, slots)
	})
	if s.e.ctx.Err() != nil {
		s.fail(ErrClosed, errClosing) // Close told the sessions that were there before it could see this one
	}
	s.e.wg.Go(s.write)
	s.e.wg.Go(s.read)
	s.peer.broadcast()
	s.e.opts.Log.Info("peer is up", "peer", s.peer.String(), "path", s.path, "links", s.want, "why", s.reason)
	return nil
}

// rise is the step to stateUp, unless the session has failed in the meantime. The event is told before anybody can tell the next.
func (s *session) rise() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.why != nil:
		return s.why
	case s.want > 0 && s.inService.Load() == 0:
		return fmt.Errorf("%w: its %s connection ended during the handshake: %s", ErrPeerDown, s.path, s.fault)
	}
	s.state.Store(stateUp)
	s.wasUp, s.upAt = true, time.Now()
	s.e.emit(PeerEvent{Peer: s.peer, Kind: PeerUp, Session: s.number})
	return nil
}

// startFence starts an attempt to fence the links. Needs mu, and no attempt under way.
func (s *session) startFence() {
	rp, why := s.links.Load(), s.why.Error()
	s.fencing = s.e.worker.group.Call(func(g *rail.Group) {
		s.writeDown(why)
		g.Fence(rp)
	})
}

// fenced is called by the worker with the outcome of an attempt.
func (s *session) fenced(proved bool) {
	s.mu.Lock()
	s.fencing, s.proved = false, proved
	s.mu.Unlock()
	s.e.notes.leave(&s.note)
}

// retryFence is called by the heart.
func (s *session) retryFence() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.torn && !s.fencing && !s.proved {
		s.startFence()
	}
}

// waitFenced waits for the outcome of the attempt under way, or of a new one. The session is failing or down.
func (s *session) waitFenced(ctx context.Context) error {
	s.retryFence()
	for {
		s.mu.Lock()
		ended, proved, path, wake := s.torn && !s.fencing, s.proved, s.path, s.wake
		s.mu.Unlock()
		switch {
		case proved:
			return nil
		case ended && s.e.closing.Load():
			return fmt.Errorf("engine: %w", ErrClosed)
		case ended:
			return fmt.Errorf("no proof over %s, whose writer may be stopped in mid-copy: its memory is %w", path, ErrUnfenced)
		}
		if err := s.await(ctx, wake); err != nil {
			return err
		}
	}
}

// waitOver waits until the session, which is failing or down, is over.
func (s *session) waitOver(ctx context.Context) error {
	for {
		s.mu.Lock()
		wake := s.wake
		s.mu.Unlock()
		if s.over.Load() {
			return nil
		}
		if err := s.await(ctx, wake); err != nil {
			return err
		}
	}
}

func (s *session) await(ctx context.Context, wake <-chan struct{}) error {
	select {
	case <-wake:
		return nil
	case <-s.e.done:
		return ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
