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
	"github.com/hawser-project/hawser/internal/wire"
	"github.com/hawser-project/hawser/provider"
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
	note   // fires after fail, and after the worker changed the links
	e      *Engine
	peer   *Peer
	conn   net.Conn
	dialer bool // we dialed
	state  atomic.Uint32
	ctx    context.Context // ends with the session
	cancel context.CancelFunc
	out    chan []byte             // frames for the writer
	linked atomic.Bool             // our side of all links is up, which is enough to answer a peer that was quicker than our handshake
	prev   atomic.Pointer[session] // the session before, while it is not over; cleared by follow
	silent atomic.Int32            // heart ticks since the peer was heard

	// Fixed once the session is up.
	rp     *rail.Peer
	path   string
	reason string
	links  int

	mu      sync.Mutex
	linkUps int    // links of rp that are up
	fault   string // why a link of rp failed during set-up
	why     error  // of stateDown
	wasUp   bool
	torn    bool // the dispatcher has seen stateDown
	over    bool // fenced, and everything about it has been told
	fencing int  // outcomes that the running attempt still waits for
	proved  int  // links that are fenced
	refused bool // the last attempt had no proof for some link
	wake    chan struct{}
	asked   map[uint64]chan []byte // answers to our questions, by request number
	nextAsk uint64
}

var (
	errFenced  = errors.New("fenced by this side")
	errClosing = errors.New("this engine is closing")
	errBye     = errors.New("peer left")
)

func (e *Engine) newSession(p *Peer, conn net.Conn, dialer bool) *session {
	s := &session{
		e: e, peer: p, conn: conn, dialer: dialer, out: make(chan []byte, outDepth),
		wake: make(chan struct{}), asked: map[uint64]chan []byte{},
	}
	s.target = s
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.resetLinks()
	return s
}

// outDepth is how many control frames may wait for a peer that does not read. One that is full of them fails the session.
const outDepth = 256

// resetLinks starts a new attempt to bring up links.
func (s *session) resetLinks() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.linked.Store(false)
	s.rp = &rail.Peer{Tag: s}
	s.linkUps, s.fault = 0, ""
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

// fail ends the session. kind is the sentinel that users see. Only the first call counts.
func (s *session) fail(kind, cause error) {
	s.mu.Lock()
	if s.state.Load() == stateDown {
		s.mu.Unlock()
		return
	}
	s.why = fmt.Errorf("%w: %w", kind, cause)
	s.state.Store(stateDown)
	s.mu.Unlock()
	s.e.notes.push(&s.note)
}

// linkEvent is called by the worker.
func (s *session) linkEvent(rp *rail.Peer, kind provider.Kind, status provider.Status) {
	s.mu.Lock()
	if rp != s.rp {
		s.mu.Unlock()
		return // of a path that was given up
	}
	switch kind {
	case provider.KindPeerUp:
		s.linkUps++
	case provider.KindPeerDown:
		if s.state.Load() == stateSetup && s.fault == "" {
			s.fault = status.String()
		}
	case provider.KindFenced:
		s.fencing--
		if status == provider.StatusOK {
			s.proved++
		} else {
			s.refused = true
		}
	}
	up := s.state.Load() == stateUp
	s.mu.Unlock()
	if kind == provider.KindPeerDown && up {
		s.fail(ErrPeerDown, fmt.Errorf("its %s connection ended: %s", s.path, status))
		return
	}
	s.e.notes.leave(&s.note)
}

// fire is called by the dispatcher, or by a worker that is idle: it takes a failed session down and wakes who waits for a change.
func (s *session) fire() {
	s.mu.Lock()
	down := s.state.Load() == stateDown
	tear := down && !s.torn
	if tear {
		s.torn = true
		s.startFence()
	}
	fenced := down && s.fencing == 0 && s.fenced() && !s.over
	why, wasUp := s.why, s.wasUp
	s.mu.Unlock()
	if tear {
		s.cancel()
	}
	if tear && wasUp {
		s.e.opts.Log.Info("peer is down", "peer", s.peer.String(), "cause", why)
		s.e.emit(PeerEvent{Peer: s.peer, Kind: PeerDown, Cause: why})
	}
	if fenced && wasUp {
		s.e.emit(PeerEvent{Peer: s.peer, Kind: PeerFenced})
	}
	s.mu.Lock()
	s.over = s.over || fenced
	close(s.wake)
	s.wake = make(chan struct{})
	s.mu.Unlock()
	if tear {
		s.peer.broadcast()
	}
}

// setUp moves the session to stateUp and starts its goroutines; false when it has failed in the meantime.
func (s *session) setUp(name string) bool {
	s.peer.mu.Lock()
	s.peer.name = name
	s.peer.mu.Unlock()
	s.mu.Lock()
	ok := s.state.CompareAndSwap(stateSetup, stateUp)
	s.wasUp = ok
	s.mu.Unlock()
	if !ok {
		return false
	}
	_ = s.conn.SetDeadline(time.Time{})
	s.e.wg.Go(s.write)
	s.e.wg.Go(s.read)
	s.e.opts.Log.Info("peer is up", "peer", s.peer.String(), "path", s.path, "links", s.links, "why", s.reason)
	s.peer.broadcast()
	s.e.emit(PeerEvent{Peer: s.peer, Kind: PeerUp})
	return true
}

// fenced reports whether every link is proved silent. Needs mu.
func (s *session) fenced() bool { return s.proved == s.links }

// startFence starts an attempt to fence the links that are not proved yet. Needs mu, and no attempt under way.
func (s *session) startFence() {
	s.fencing, s.refused = s.links-s.proved, false
	rp := s.rp
	if !s.e.worker.group.Call(func(g *rail.Group) { g.Fence(rp) }) {
		s.fencing = 0 // the engine is closed: its domains are, too
	}
}

// retryFence is called by the heart.
func (s *session) retryFence() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.torn && s.fencing == 0 && !s.fenced() {
		s.startFence()
	}
}

// waitFenced waits for the outcome of the attempt under way, or of a new one. The session is failing or down.
func (s *session) waitFenced(ctx context.Context) error {
	s.retryFence()
	for {
		s.mu.Lock()
		ended, fenced, wake := s.torn && s.fencing == 0, s.fenced(), s.wake
		s.mu.Unlock()
		switch {
		case ended && fenced:
			return nil
		case ended:
			return fmt.Errorf("provider %s: writer stopped in mid-copy: its memory is %w", s.path, ErrUnfenced)
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
		over, wake := s.over, s.wake
		s.mu.Unlock()
		if over {
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

// send queues a control frame. m may be nil.
func (s *session) send(t wire.Type, request uint64, m wire.Message) {
	s.enqueue(wire.AppendFrame(nil, t, request, m))
}

// enqueue hands a frame to the writer.
func (s *session) enqueue(frame []byte) {
	select {
	case s.out <- frame:
	case <-s.ctx.Done():
	default:
		s.fail(ErrPeerDown, fmt.Errorf("%d control messages wait: it does not read", outDepth))
	}
}

// bye tells the peer that we leave. It is a courtesy: the closed connection says the same.
func (s *session) bye(reason string) {
	if s.state.Load() == stateUp {
		s.send(wire.TypeBye, 0, &wire.Bye{Reason: reason})
	}
}

// write is the writer goroutine. It closes the connection when the session ends, after what was queued before.
func (s *session) write() {
	defer func() { _ = s.conn.Close() }() // nothing depends on how a connection that has ended closes
	for {
		select {
		case f := <-s.out:
			if _, err := s.conn.Write(f); err != nil {
				s.fail(ErrPeerDown, fmt.Errorf("control connection: %w", err))
				return
			}
		case <-s.ctx.Done():
			_ = s.conn.SetWriteDeadline(time.Now().Add(flushTime))
			for {
				select {
				case f := <-s.out:
					if _, err := s.conn.Write(f); err != nil {
						return
					}
				default:
					return
				}
			}
		}
	}
}

// flushTime bounds the last words to a peer.
const flushTime = 100 * time.Millisecond

// read is the reader goroutine.
func (s *session) read() {
	buf := make([]byte, 4096)
	for {
		f, err := wire.ReadFrame(s.conn, buf)
		if err != nil {
			s.fail(ErrPeerDown, fmt.Errorf("control connection: %w", err))
			return
		}
		s.silent.Store(0)
		if err := s.handle(f); err != nil {
			s.fail(ErrPeerDown, err)
			return
		}
	}
}

// handle acts on one control message of a session that is up.
func (s *session) handle(f wire.Frame) error {
	switch f.Type {
	case wire.TypeBeat:
	case wire.TypeBye:
		var m wire.Bye
		if err := wire.Parse(f.Payload, &m); err != nil {
			return err
		}
		return fmt.Errorf("%w: %s", errBye, m.Reason)
	case wire.TypeResolve:
		var m wire.Resolve
		if err := wire.Parse(f.Payload, &m); err != nil {
			return err
		}
		s.send(wire.TypeResolved, f.Request, s.resolve(&m.Descriptor))
	case wire.TypeResolved:
		s.answer(f)
	default:
		if f.Flags&wire.FlagOptional == 0 {
			return fmt.Errorf("control message of unknown type %d", f.Type)
		}
	}
	return nil
}

// ask sends a question and waits for the answer.
func (s *session) ask(ctx context.Context, t wire.Type, q, a wire.Message) error {
	ch := make(chan []byte, 1)
	s.mu.Lock()
	s.nextAsk++
	n := s.nextAsk
	s.asked[n] = ch
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.asked, n)
		s.mu.Unlock()
	}()
	s.send(t, n, q)
	select {
	case b := <-ch:
		if err := wire.Parse(b, a); err != nil {
			s.fail(ErrPeerDown, err)
			return err
		}
		return nil
	case <-s.ctx.Done():
		return s.cause()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// answer hands an answer to its question, or drops it when nobody waits any more.
func (s *session) answer(f wire.Frame) {
	s.mu.Lock()
	ch := s.asked[f.Request]
	delete(s.asked, f.Request)
	s.mu.Unlock()
	if ch != nil {
		ch <- append([]byte(nil), f.Payload...)
	}
}
