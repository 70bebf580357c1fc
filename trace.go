package hawser

import (
	"net"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser/internal/ring"
)

// Trace are functions that the engine calls when something happens; each may be nil. They run on the goroutine of the engine that runs
// all callbacks, one at a time: a slow one delays other callbacks and nothing else, and one that panics is logged and counted
// (Stats.Callbacks). Operations and refusals, which others can make faster than a function can take them, wait in a queue of 4096; those
// that find it full are not told, but counted (Stats.TraceDropped). They are told in order, and Peer, Link and Rail are, but the two
// are not in order with each other.
type Trace struct {
	Submitted func(TraceOp)     // an operation was handed to the worker; not told when the call itself fails
	Ended     func(TraceOp)     // it has ended, and it was told that it was submitted, unless that was dropped
	Peer      func(PeerEvent)   // as OnPeer
	Link      func(LinkEvent)   // a link of a session that is up
	Rail      func(RailEvent)   // a rail cannot be used any more
	Refused   func(RefusedPeer) // this side has refused a connection
}

// TraceOp is an operation, by any of the methods that submit one.
type TraceOp struct {
	ID     uint64 // of this engine's operations, from 1
	Op     string // as OpError.Op
	Peer   *Peer  // nil for a scatter
	Len    uint64 // bytes: of all, of each page, of a message; 0 for a scatter
	Parts  int    // 0 when the engine decides; targets of a scatter
	Imm    OptImm
	Cookie uint64 // of a Queue
	Time   time.Time

	// The rest is for Ended.

	Took time.Duration // since Submitted
	Err  error
}

// LinkEvent tells about a link.
type LinkEvent struct {
	Peer *Peer
	Link int // of the session
	Rail int // of this engine, as in Stats
	Up   bool
	Why  string // it failed
}

// RailEvent tells about a rail.
type RailEvent struct {
	Rail             int
	Provider, Device string
	Err              error
}

// RefusedPeer tells about a connection that this side has refused.
type RefusedPeer struct {
	From   string // network address
	Reason string // a key of Stats.Refused
	Err    error
}

// traceDepth is how many operations and refusals may wait to be told.
const traceDepth = 4096

// tracer tells Options.Trace about operations and refusals. Anybody may hand it some; the callbacks goroutine tells them.
type tracer struct {
	note    // told has something to do
	t       *Trace
	calls   *callbacks
	notes   *dispatcher
	queue   *ring.Queue[traced]
	ids     atomic.Uint64
	dropped atomic.Uint64
}

// traced is one of three.
type traced struct {
	op        TraceOp
	refused   *RefusedPeer
	submitted bool
}

func newTracer(e *Engine) *tracer {
	t := &tracer{t: e.opts.Trace, calls: e.calls, notes: e.notes, queue: ring.NewQueue[traced](traceDepth)}
	t.target = t
	return t
}

// put queues x. wake: nobody who fires notes is going to look soon.
func (t *tracer) put(x traced, wake bool) {
	if !t.queue.Push(x) {
		t.dropped.Add(1)
		return
	}
	t.notes.leave(&t.note)
	if wake {
		t.notes.wake()
	}
}

func (t *tracer) fire() { t.calls.add(t.tell) }

// tell tells what is queued now; what comes meanwhile has a note of its own.
func (t *tracer) tell() {
	for range traceDepth {
		x, ok := t.queue.Pop()
		if !ok {
			return
		}
		f := t.t.Ended
		switch {
		case x.refused != nil:
			if t.t.Refused != nil {
				t.t.Refused(*x.refused)
			}
			continue
		case x.submitted:
			f = t.t.Submitted
		}
		if f != nil {
			f(x.op)
		}
	}
}

// begin tells about an operation that is about to be handed over, and gives it its number.
func (t *tracer) begin(op TraceOp) TraceOp {
	op.ID, op.Time = t.ids.Add(1), time.Now()
	t.put(traced{op: op, submitted: true}, true)
	return op
}

// end tells that it has ended, or that it could not be handed over.
func (t *tracer) end(op TraceOp, err error) {
	now := time.Now()
	op.Took, op.Time, op.Err = now.Sub(op.Time), now, err
	t.put(traced{op: op}, false)
}

// refuse counts, logs and traces a connection that is closed for a reason of Stats.Refused.
func (e *Engine) refuse(reason string, from net.Addr, err error) {
	e.refused.add(reason)
	e.opts.Log.Warn("connection refused", "from", from.String(), "reason", reason, "err", err)
	if e.tracer != nil {
		e.tracer.put(traced{refused: &RefusedPeer{From: from.String(), Reason: reason, Err: err}}, true)
	}
}

// traceOp describes o.
func (o *op) traceOp() TraceOp {
	t := TraceOp{Op: o.name, Peer: o.sess.peer, Len: o.Len, Parts: o.Parts, Cookie: o.Cookie}
	if o.HasImm {
		t.Imm = Imm(o.Imm)
	}
	return t
}
