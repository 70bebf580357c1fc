package hawser

import (
	"context"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/hawser-project/hawser/internal/imm"
)

// Peer is another engine: one identity, from its Open to its Close or death. There is one *Peer per identity, so peers can be
// compared and used as map keys. A restarted process is another peer.
type Peer struct {
	e      *Engine
	id     ID
	number uint32 // of this engine's peers, for the flight recorder
	source imm.Source

	cur atomic.Pointer[session] // the latest session, whatever its state; set under mu

	mu     sync.Mutex
	name   string // guarded by mu
	redial redial // guarded by mu
	// unwanted is the session after which the peer is not to be brought back, because it was fenced; guarded by mu.
	unwanted *session
	changed  chan struct{} // closed and replaced when the state of cur changes; guarded by mu
}

// peer returns the peer with an identity.
func (e *Engine) peer(id ID) *Peer {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.peers[id]
	if p == nil {
		e.lastPeer++
		p = &Peer{e: e, id: id, number: e.lastPeer, changed: make(chan struct{})}
		e.forget()
		e.peers[id] = p
	}
	return p
}

// Peer returns the peer with an identity, whoever connected, up or down; nil when it never was here, or so long ago that it was forgotten.
func (e *Engine) Peer(id ID) *Peer { return e.known(id) }

// known is peer for an identity that may never have been here: nil then.
func (e *Engine) known(id ID) *Peer {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.peers[id]
}

// maxGone is how many peers are known before those that are gone are forgotten. A server lives longer than its clients, and
// anybody who may connect can do so under one identity after the other.
const maxGone = 4096

// forget makes room for a peer by dropping one that is gone, if there is one. Needs mu.
func (e *Engine) forget() {
	if len(e.peers) < maxGone {
		return
	}
	for id, p := range e.peers {
		if s := p.cur.Load(); s == nil || s.prev.Load() == nil && s.over.Load() {
			delete(e.peers, id)
			p.source.Leave()
			return
		}
	}
}

// staleSerial is the serial of the last descriptor that is stale for a peer because it was fenced after that.
func (e *Engine) staleSerial(id ID) uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.fenced[id]
}

// ID is the peer's identity.
func (p *Peer) ID() ID { return p.id }

// Name is what the peer calls itself, empty when it has no name.
func (p *Peer) Name() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.name
}

func (p *Peer) setName(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.name = name
}

// String is the name, if there is one, and the beginning of the identity.
func (p *Peer) String() string {
	if n := p.Name(); n != "" {
		return n + "/" + p.id.String()[:8]
	}
	return p.id.String()[:8]
}

// Up reports whether the peer can be written to now.
func (p *Peer) Up() bool {
	s := p.cur.Load()
	return s != nil && s.state.Load() == stateUp
}

// Ordered reports whether every network that carries writes to the peer makes them visible in the order in which they were posted. Where
// not, a failed rail is replaced without a loss only if what is in flight with one immediate belongs to one Transfer.
func (p *Peer) Ordered() bool {
	s := p.cur.Load()
	if s == nil {
		return false
	}
	rails := s.rails.Load()
	for ; rails != 0; rails &= rails - 1 {
		if !p.e.worker.group.Caps(bits.TrailingZeros64(rails)).Ordered {
			return false
		}
	}
	return true
}

// Session is the number of the latest session with the peer, 0 when there was none. It grows. Whoever uses a
// peer's session compares it with PeerEvent.Session, to tell the end of this session from that of one before.
func (p *Peer) Session() uint64 {
	if s := p.cur.Load(); s != nil {
		return s.number
	}
	return 0
}

// Path is the provider that carries data to the peer, empty when it is down.
func (p *Peer) Path() string {
	if s := p.cur.Load(); s != nil && s.state.Load() == stateUp {
		return s.path
	}
	return ""
}

// latest is the latest session, nil when there is none, or no peer.
func (p *Peer) latest() *session {
	if p == nil {
		return nil
	}
	return p.cur.Load()
}

// session is the current session if it is up.
// hot:
func (p *Peer) session() (*session, error) {
	s := p.cur.Load()
	if s == nil {
		return nil, fmt.Errorf("peer %s: %w: never connected", p, ErrPeerDown)
	}
	return s, s.usable()
}

// change returns a channel that is closed at the next change of state.
func (p *Peer) change() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}

func (p *Peer) broadcast() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.changed)
	p.changed = make(chan struct{})
}

// PeerEventKind is what happened to a peer.
type PeerEventKind uint8

const (
	// PeerUp: the peer can be written to.
	PeerUp PeerEventKind = iota + 1
	// PeerDown: the session has ended. What was in flight fails; what the peer had started may still land until PeerFenced.
	PeerDown
	// PeerFenced: nothing that the peer started in that session can land any more, and counts from it are final.
	PeerFenced
	// PeerReplaced: while the engine tried to bring a lost peer back, another engine of the same Name answered at its address: the
	// process has restarted. It is another peer; connect to it.
	PeerReplaced
)

func (k PeerEventKind) String() string {
	return [...]string{"unknown", "up", "down", "fenced", "replaced"}[k%(PeerReplaced+1)]
}

// PeerEvent tells about a peer.
type PeerEvent struct {
	Peer      *Peer
	Kind      PeerEventKind
	Session   uint64 // that it is about (Peer.Session); 0 for PeerReplaced
	Cause     error  // of PeerDown and PeerReplaced
	Successor ID     // of PeerReplaced: who answers now
}

// OnPeer calls f for every event from now on, one at a time, on a goroutine of the engine. A slow f delays other callbacks and
// nothing else; one that panics is logged and counted (Stats.Callbacks). stop ends it; a call may be under way when stop returns.
func (e *Engine) OnPeer(f func(PeerEvent)) (stop func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.nextObs++
	n := e.nextObs
	e.observers[n] = f
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.observers, n)
	}
}

func (e *Engine) emit(ev PeerEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if t := e.opts.Trace; t != nil && t.Peer != nil {
		e.calls.add(func() { t.Peer(ev) })
	}
	for _, f := range e.observers {
		e.calls.add(func() { f(ev) })
	}
}

// Fence ends the session with p, if there is one, and proves that nothing which p started can land any more: after nil, counts
// from p are final and every descriptor issued so far is stale for p, also when it is alive and reconnects. ErrUnfenced: there
// is no proof yet, because p is stopped in the middle of a copy; the proof is sought again every second (PeerFenced tells),
// and by the next call.
func (e *Engine) Fence(ctx context.Context, p *Peer) error {
	if p == nil || p.e != e {
		return fmt.Errorf("fence: peer: %w: none, or of another engine", ErrInvalid)
	}
	e.mu.Lock()
	e.fenced[p.id] = e.serial.Load()
	e.mu.Unlock()
	p.leaveDown()
	for s := p.cur.Load(); s != nil; s = s.prev.Load() { // a session that comes later finds those descriptors stale
		s.part(ErrPeerDown, errFenced, "fenced by the other side") // so that it does not come back by itself
		if err := s.waitFenced(ctx); err != nil {
			return fmt.Errorf("fence %s: %w", p, err)
		}
	}
	return nil
}

// leave ends the session in peace when the engine closes.
func (p *Peer) leave() {
	if s := p.cur.Load(); s != nil {
		s.part(ErrClosed, errClosing, "engine closed")
	}
}
