package moe

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/internal/exec"
	"github.com/hawser-project/hawser/moe/proto"
)

// Lane is one ordered sequence of steps. Its calls are for one goroutine at a time; lanes are independent of each other.
//
// A step is DispatchSend, Pending.Recv (or Chunks), Handle.CombineSend, PendingCombine.Recv, in this order. Everybody in the view makes
// every step, with no tokens if need be. Who calls Recv does the lane's work while it waits; between calls a goroutine of the lane grants
// what the peers need. What the calls return is the lane's and changes with its next step.
type Lane struct {
	index   int
	cfg     *proto.Layout
	policy  Policy
	meta    bool
	bell    *hawser.Bell
	origin  time.Time
	stopped func(from *Lane, why proto.Code) // the group must have a new view: no lane begins a step
	moved   func()                           // something has changed, while a view does
	counts  laneCounts
	mail    mailbox
	inside  atomic.Bool // a call drives

	mu       sync.Mutex // of who drives; held while it waits
	exec     *exec.Exec
	backend  backend.Lane
	wire     wire
	seen     uint64 // rings that were heard
	cause    error  // of the last cancel
	closed   bool   // it does nothing any more
	changing bool   // the view does: its own goroutine serves the lane

	stage   stage
	in      Input
	out     Output
	r       backend.Reduction
	sent    bool // weights were
	pending Pending
	handle  Handle
	sums    PendingCombine
	chunk   Chunk
	plan    uint64 // number of the plan that the backend has: steps without Reuse
	marks   marks

	called  chan struct{} // capacity 1: something has come while nobody was inside
	closing chan struct{}
	served  sync.WaitGroup
}

// stage is which call is next.
type stage uint8

const (
	toDispatch stage = iota
	toReceive
	toStream // Recv has said ErrLimit, or Chunks has begun
	toCombine
	toSum
)

// laneConfig is what a group makes a lane of.
type laneConfig struct {
	index   int
	layout  *proto.Layout
	options exec.Options
	policy  Policy
	values  proto.Values
	imms    *hawser.Reserved // of the group, of blocks of blockBits
	backend backend.Lane
	memory  *memory
	origin  time.Time
	stopped func(from *Lane, why proto.Code)
	moved   func() // see Lane; nil if views do not change
}

// newLane makes a lane that takes part in no view. It runs a goroutine until close.
func newLane(e *hawser.Engine, c laneConfig) *Lane {
	l := &Lane{
		index: c.index, cfg: c.layout, policy: c.policy, meta: c.layout.Meta, origin: c.origin, stopped: c.stopped, moved: c.moved,
		backend: c.backend, called: make(chan struct{}, 1), closing: make(chan struct{}),
	}
	l.counts.init(c.layout)
	l.wire = newWire(e, l, c.values, c.imms)
	l.bell = l.wire.bell
	l.exec = exec.New(c.layout, &timed{c.backend, l}, &l.wire, c.memory.bytes(), c.options)
	l.pending.lane, l.handle.lane, l.sums.lane, l.chunk.lane = l, l, l, l
	l.served.Go(l.serve)
	return l
}

// proto is the lane's part of a proto.Group.
func (l *Lane) proto() *proto.Lane { return l.exec.Lane() }

// recycle is called when nothing of the last view can land any more: immediates of the next one count from now on, in memory that may be
// another. Needs mu.
func (l *Lane) recycle(view uint32, m *memory, place backend.Placement) error {
	l.wire.closeView()
	for i := range l.wire.peers {
		l.wire.peers[i].session = noSession
	}
	l.exec.Rebase(m.bytes())
	if err := l.backend.Rebase(m.ofBackend(), place); err != nil {
		return fmt.Errorf("lane %d: memory of view %d: %w", l.index, view, err)
	}
	return l.wire.openView(view)
}

// opened is called once the protocol's lane has opened the view. Needs mu.
func (l *Lane) opened(view uint32, member func(rank int) bool) {
	l.exec.Open(view, member)
	l.stage, l.cause = toDispatch, nil
	l.plan++
}

// bind is called when the remotes of all members are there, before steps begin. Needs mu.
func (l *Lane) bind(e *hawser.Engine, m *memory) error {
	if err := l.wire.bind(e, m); err != nil {
		return fmt.Errorf("lane %d: %w", l.index, err)
	}
	return nil
}

// Opt changes one dispatch.
type Opt struct {
	reuse    *Handle
	quantize *Quantize
	weights  bool
}

// Reuse says that the ids are those of the step of h, which must be the lane's last or one that reused it: nothing is counted and
// sorted again. ErrStale: a dispatch with other ids, or another view, has come since.
func Reuse(h *Handle) Opt { return Opt{reuse: h} }

// Quantized encodes rows as E4M3 with the scales that Config names, of which Input.XScale has none then.
func Quantized(q *Quantize) Opt { return Opt{quantize: q} }

// SendWeights says that the experts apply the weights, which travel with the records (Config.Meta): sums are without.
func SendWeights() Opt { return Opt{weights: true} }

// DispatchSend begins a step: it sends the tokens of in to the ranks of their experts. in, and the memory that it names, is the lane's
// until Recv has returned or Chunks has ended; Weights until the sum was received. ErrBusy: the last step is not complete; ErrStale: the
// group needs a new view; ErrInvalid: an id is no expert.
//
// hot:
func (l *Lane) DispatchSend(ctx context.Context, in *Input, opts ...Opt) (*Pending, error) {
	if err := l.enter(ctx); err != nil {
		return nil, fmt.Errorf("dispatch: %w", err)
	}
	err := l.dispatch(in, opts)
	l.leave()
	if err != nil {
		return nil, err
	}
	return &l.pending, nil
}

func (l *Lane) dispatch(in *Input, opts []Opt) error {
	if failed, _, _, _ := l.exec.Failed(); failed {
		l.stage = toDispatch // Begin says why there is none
	}
	if l.stage != toDispatch {
		return fmt.Errorf("dispatch: %w: the last step is not complete", hawser.ErrBusy)
	}
	q, reuse := Quantize{}, false
	l.sent = false
	for i := range opts {
		o := &opts[i]
		l.sent = l.sent || o.weights
		if o.quantize != nil {
			q = *o.quantize
			q.On = true
		}
		if o.reuse != nil {
			if reuse = true; o.reuse.lane != l || o.reuse.plan != l.plan {
				return fmt.Errorf("dispatch: handle: %w: of another lane, of a view that ended, or of other ids than those of the last step", hawser.ErrStale)
			}
		}
	}
	if l.sent && !l.meta {
		return fmt.Errorf("dispatch: weights: %w: records have no room for them (Config.Meta)", hawser.ErrInvalid)
	}
	if !reuse {
		l.plan++
	}
	l.in = *in
	now := l.now()
	if err := l.exec.Begin(now, &l.in, q, reuse); err != nil {
		return err
	}
	l.stage = toReceive
	l.dispatched(now)
	l.handle.plan, l.handle.step, l.handle.streamed = l.plan, l.proto().Step(), false
	return nil
}

// Cancel ends the step in progress, here and at all peers, and the lane's part in the view: the group needs a new one. Anybody may call
// it at any time. cause is what calls return; nil: hawser.ErrClosed.
func (l *Lane) Cancel(cause error) {
	if cause == nil {
		cause = hawser.ErrClosed
	}
	l.mail.cancel(cause, proto.CodeCanceled)
	l.handled()
}

// now is the time of the protocol.
func (l *Lane) now() proto.Time { return time.Since(l.origin) }

// StepError: a step ended early. The group needs a new view. errors.Is finds what it is about: ErrLimit, ErrPeerDown, ErrUnfenced, ErrCorrupt,
// ErrClosed, or the cause of the context or of Cancel.
type StepError struct {
	View uint32
	Step uint64
	Lane int
	Code proto.Code
	Rank int // whose doing it was
	Err  error
}

func (e *StepError) Error() string {
	return fmt.Sprintf("step %d of view %d, lane %d: %v (rank %d): %v: activate a new view", e.Step, e.View, e.Lane, e.Code, e.Rank, e.Err)
}

// Unwrap is what it is about.
func (e *StepError) Unwrap() error { return e.Err }

// ErrCanceled: a rank has given up a step.
var ErrCanceled = errors.New("step canceled")

// reason is what a code is about.
func reason(c proto.Code) error {
	switch c {
	case proto.CodeLimit, proto.CodePool:
		return hawser.ErrLimit
	case proto.CodeMissing, proto.CodeDown, proto.CodeLate:
		return hawser.ErrPeerDown
	case proto.CodeUnfenced:
		return hawser.ErrUnfenced
	case proto.CodeCorrupt:
		return proto.ErrCorrupt
	case proto.CodeClosed:
		return hawser.ErrClosed
	case proto.CodeView:
		return hawser.ErrStale
	default:
		return ErrCanceled
	}
}

// Next is the number of the step that DispatchSend begins next. It is for who makes the lane's calls, between steps.
func (l *Lane) Next() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.proto().Step() + 1
}
