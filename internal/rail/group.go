package rail

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"github.com/hawser-project/hawser/internal/record"
	"github.com/hawser-project/hawser/internal/ring"
	"github.com/hawser-project/hawser/internal/wire"
	"github.com/hawser-project/hawser/mem"
	"github.com/hawser-project/hawser/provider"
)

// Sink is told what happens, on the worker. It must not block.
type Sink interface {
	// Imm: one immediate of p arrived.
	Imm(p *Peer, imm uint32)
	// Message: a message of p lies in m until the sink, or anybody it hands m to, calls Group.Release.
	Message(p *Peer, m *Message)
	// Link: link i of p is in service, or not any more, and why.
	Link(p *Peer, i int, up bool, why string)
	// Tell: n has to reach Notice of the other side, once and in order, as long as the session lasts. Called after Live only.
	Tell(p *Peer, n *wire.LinkNotice)
	// Keys: SetKeys or CloseRemote is to be called with what the owner of r says, soon.
	Keys(r *Remote)
	// GiveUp: the session has to end; the other side broke the protocol, or what went down with a link cannot be settled.
	GiveUp(p *Peer, why string, broke bool)
	// Fenced: the outcome of Fence. proved: nothing that p started can land any more; else Fence may be called again.
	Fenced(p *Peer, proved bool)
	// Dead: a rail cannot be used any more.
	Dead(rail int, err error)
	// Settle: this Step calls no Complete and tells of no immediate any more.
	Settle()
}

// SubmitDepth is how many operations may wait for the worker.
const SubmitDepth = 4096

const (
	pollBatch  = 128 // completions taken from a rail at once
	pollRounds = 4   // batches taken from a rail in one Step
	turn       = 64  // WRs that one peer may post before the next peer has its turn

	recvSlots   = 32                  // messages per rail that may wait for their reader
	sendSlots   = 32                  // send buffers made at once
	maxSendMem  = 64 << 20            // bytes of send buffers at most
	sendsAPeer  = 8                   // messages in flight to one peer, so that a stuck peer cannot hold all buffers
	slotSize    = provider.MinMaxSend // bytes of a message buffer
	minPiece    = 64 << 10            // a plain write is not cut into pieces below this length
	maxPiece    = 4 << 20             // nor left in pieces above it, when there are several rails to share it
	piecesALink = 4                   // pieces per link, so that a faster rail can take more of them
)

// Group is the rails of one device. Owned by its worker; Submit, Call and Release may be called by anyone.
type Group struct {
	// StallTicks is for how many ticks a link may make no progress with writes while the peer is alive otherwise; 0 is for ever. Set
	// before the first Step.
	StallTicks int

	sink  Sink
	rails []*railState
	subs  *ring.Funnel[*Op]
	wake  func() // wakes the worker if it sleeps

	step        uint64           // number of the Step
	queued      record.Histogram // see Queue
	closed      bool             // nothing is placed any more
	first, last *Peer            // peers with queued operations, in turn order
	live        []*Peer
	due         []*link // settled in this Step
	ticked      atomic.Bool
	ticks       uint64
	without     guard // taken away by tests

	sends    []sendSlot // message buffers; free ones are linked by index
	sendFree int32

	released *ring.Queue[*Message] // buffers that their readers gave back

	callMu sync.Mutex
	calls  []func(*Group)
	called atomic.Bool // calls is not empty
	gone   bool        // Close has begun: calls are refused; guarded by callMu

	completions [pollBatch]provider.Completion
}

// railState is one domain and what is in flight on it.
type railState struct {
	index   int
	dom     provider.Domain
	caps    provider.Caps
	dead    bool
	closed  bool
	silent  bool          // closed, and nothing can land over it any more
	load    uint64        // of all its links
	batch   []provider.WR // built in this Step, or refused in the last one
	flights []flight
	free    int32   // first free flight, -1 when none
	total   Totals  // but for what members have counted
	members []*link // of this rail, or were it when their peers went down
	prune   int     // how many members there may be before join looks for those that have ended
	samples samples
	links   []*link // by handle index
	recv    struct {
		span  *mem.Span
		key   provider.Key
		slots []Message
	}
	sendKeys []provider.Key // by chunk of send buffers
}

// flight is a WR that a domain has accepted or is about to: the meaning of its token. The link is nil when it is free.
type flight struct {
	op          *Op
	link        *link
	src, dst, n uint64 // see piece
	seq         uint64 // number among the WRs of the connection
	ord         uint64 // number among its immediates
	gen         uint32
	next        int32 // next free flight
	send        int32 // send buffer, -1 when none
	imm, frag   bool
	probe       bool
	sample      uint8 // see samples
}

// Message is a received message in its buffer.
type Message struct {
	Data []byte
	Peer *Peer
	rail *railState
	slot int
}

// newBuffers and freeBuffers get memory for messages. Simulations, which make thousands of groups, use theirs again.
var (
	newBuffers  = func(n uint64) (*mem.Span, error) { return mem.New(n, mem.Private) }
	freeBuffers = (*mem.Span).Free
)

// New makes a group over domains that are open, and posts their receives. The group owns the domains from then on. wake is
// called by Submit, Call and Release when the worker may be asleep.
func New(domains []provider.Domain, sink Sink, wake func()) (*Group, error) {
	g := &Group{
		sink: sink, wake: wake, sendFree: -1,
		subs:     ring.NewFunnel[*Op](SubmitDepth),
		released: ring.NewQueue[*Message](recvSlots * max(len(domains), 1)),
	}
	for i, d := range domains {
		r := &railState{index: i, dom: d, caps: d.Caps(), free: -1}
		r.samples.free = math.MaxUint16
		g.rails = append(g.rails, r)
	}
	for _, r := range g.rails {
		if err := r.openReceives(); err != nil {
			return nil, errors.Join(err, g.Close())
		}
	}
	if err := g.moreSends(); err != nil { // now, because a message that has to wait for its buffer needs one to come back
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

// Rails is the number of rails.
func (g *Group) Rails() int { return len(g.rails) }

// Caps are those of rail i.
func (g *Group) Caps(i int) provider.Caps { return g.rails[i].caps }

// Submit hands an operation, and those chained to it, to the worker. False: too many are waiting; the caller keeps them.
// hot:
func (g *Group) Submit(op *Op) bool {
	if !g.subs.Push(op) {
		return false
	}
	g.wake()
	return true
}

// Call runs f on the worker, in its next Step. It reports false when the group is closed.
func (g *Group) Call(f func(*Group)) bool {
	g.callMu.Lock()
	if g.gone {
		g.callMu.Unlock()
		return false
	}
	g.calls = append(g.calls, f)
	g.called.Store(true)
	g.callMu.Unlock()
	g.wake()
	return true
}

// Release gives the buffer of a message back to its rail.
func (g *Group) Release(m *Message) {
	g.released.Push(m) // never full: it holds every buffer there is
	g.wake()
}

// Step does a bounded amount of everything that can be done now and returns how much that was: 0 means that nothing
// moved and the worker may think of sleeping.
// hot:
func (g *Group) Step() int {
	n := 0
	g.step++
	if g.called.Load() {
		n += g.runCalls()
	}
	if g.ticked.Load() {
		g.ticked.Store(false)
		g.tickAll()
	}
	for !g.released.Empty() {
		m, ok := g.released.Pop()
		if !ok {
			break
		}
		n += m.rail.postReceive(m.slot)
	}
	if !g.subs.Empty() {
		for range SubmitDepth {
			op, ok := g.subs.Pop()
			if !ok {
				break
			}
			n += g.enqueueAll(op)
		}
	}
	if g.first != nil {
		n += g.place()
	}
	for _, r := range g.rails {
		if !r.dead {
			n += g.post(r)
		}
		if !r.dead {
			n += g.poll(r)
		}
	}
	for _, l := range g.due { // after the polls: a domain may give the place of a handle away whose last completion waits in our hands
		if l.state == idle {
			g.relink(l)
		}
	}
	g.due = g.due[:0]
	g.sink.Settle()
	return n
}

// Arm prepares for sleep; true means that there is work and the worker must not sleep.
func (g *Group) Arm() bool {
	if g.called.Load() || g.ticked.Load() || !g.subs.Empty() || !g.released.Empty() {
		return true
	}
	for _, r := range g.rails {
		if !r.dead && r.dom.Arm() {
			return true
		}
	}
	return false
}

func (g *Group) runCalls() int {
	g.callMu.Lock()
	calls := g.calls
	g.calls = nil
	g.called.Store(false)
	g.callMu.Unlock()
	for _, f := range calls {
		f(g)
	}
	return len(calls)
}

// Close closes the domains and frees the message buffers. Everything unfinished completes as flushed. The worker calls
// it after its last Step. A second call does nothing.
func (g *Group) Close() error {
	g.callMu.Lock()
	again := g.gone
	g.gone = true
	g.callMu.Unlock()
	if again {
		return nil
	}
	g.runCalls()
	var errs []error
	for len(g.live) > 0 {
		g.FailPeer(g.live[0])
	}
	for _, r := range g.rails {
		for _, l := range r.links {
			if l != nil && !l.peer.down { // its session is being set up
				g.FailPeer(l.peer)
			}
		}
		if err := r.close(); err != nil {
			errs = append(errs, err)
		}
		for i := range r.flights {
			if r.flights[i].link != nil {
				g.land(r, uint32(i), provider.StatusFlushed)
			}
		}
		if r.recv.span != nil {
			errs = append(errs, freeBuffers(r.recv.span))
		}
	}
	g.closed = true
	g.Flush()
	for i := 0; i < len(g.sends); i += sendSlots {
		errs = append(errs, freeBuffers(g.sends[i].span))
	}
	return errors.Join(errs...)
}

// close closes the domain of a rail, once.
func (r *railState) close() error {
	if r.closed {
		return nil
	}
	r.dead, r.closed = true, true
	if err := r.dom.Close(); err != nil {
		return fmt.Errorf("close rail %d: %w", r.index, err)
	}
	r.silent = !r.caps.PeerCopies // a writer that copies into our memory by itself may be stopped in the middle of that
	return nil
}

// Flush ends operations that were submitted to a group that is closed. The worker calls it, after Close.
func (g *Group) Flush() {
	g.takeIn()
	for p := g.first; p != nil; p = g.first {
		g.FailPeer(p)
	}
	g.sink.Settle()
}

// Register registers memory on every rail, all or nothing.
func (g *Group) Register(m provider.Memory, acc provider.Access) (*Memory, error) {
	pins := uint64(0)
	for _, r := range g.rails {
		if r.caps.PinsMemory {
			pins += m.Len()
		}
	}
	if err := mem.CheckLock(pins); pins > 0 && err != nil {
		return nil, fmt.Errorf("register %d bytes on %d rails: %w", m.Len(), len(g.rails), err)
	}
	mr := &Memory{}
	for i, r := range g.rails {
		k, err := r.dom.Register(m, acc)
		if err != nil {
			err = fmt.Errorf("register %d bytes on rail %d: %w", m.Len(), i, err)
			return nil, errors.Join(err, g.Deregister(mr))
		}
		mr.Keys = append(mr.Keys, k)
	}
	return mr, nil
}

// Deregister undoes Register.
func (g *Group) Deregister(m *Memory) error {
	var errs []error
	for i, k := range m.Keys {
		if !g.rails[i].dead {
			errs = append(errs, g.rails[i].dom.Deregister(k))
		}
	}
	return errors.Join(errs...)
}
