package proto

import "fmt"

// writerStep is the state machine of one writer on D: a prefill member that owes writes to an attempt. It is pure.
//
//	asked ──accept──► accepted
//	  └───────┬──────────┘
//	          ├── all counted ──────────────────────────► complete
//	          ├── answer ──► settling ── all counted ───► complete, ended
//	          │                 │
//	          └── link ended, not exact, no answer ──► fencing ── fenced ──► complete, ended
//	                                                     └── unfenced ──► stuck ── fenced ──► ended
//
// The attempt hears of a loss at most once.
type writerStep struct {
	state    writerState
	lost     bool   // the attempt was told
	expected uint64 // writes that it owes
	settle   uint64 // settling: writes that will have landed
	cause    error  // why it came to fencing; the attempt is told when the fence shows that something is missing
}

type writerState uint8

const (
	writerAsked    writerState = iota // Dispatch is out
	writerAccepted                    // P has it in its queue, or further
	writerSettling                    // P has ended it; its last writes are on their way
	writerFencing                     // only a fence can tell what has landed
	writerStuck                       // the fence has no proof yet
	writerComplete                    // all has landed
	writerEnded                       // nothing can land any more, and something is missing
	writerStates
)

func (s writerState) String() string {
	return [...]string{"asked", "accepted", "settling", "fencing", "stuck", "complete", "ended"}[s]
}

// settled: nothing can land any more.
func (s writerState) settled() bool { return s == writerComplete || s == writerEnded }

// open: P may still be writing, as far as D knows.
func (s writerState) open() bool { return s == writerAsked || s == writerAccepted }

type writerEventKind uint8

const (
	evAccept     writerEventKind = iota
	evReject                     // P did not take it: nothing was written
	evAnswer                     // Failed, CancelAck, or State of a tomb: P has ended it
	evCount                      // writes were counted
	evLinkEnded                  // peer down, Bye, replaced, or fenced for another's sake
	evUnanswered                 // no answer to Cancel although the peer is up
	evUnsettled                  // the last writes do not come
	evFenced                     // nothing can land any more and the count is final
	evUnfenced                   // the fence has no proof
	writerEvents
)

func (k writerEventKind) String() string {
	return [...]string{"accept", "reject", "answer", "count", "link-ended", "unanswered", "unsettled", "fenced", "unfenced"}[k]
}

// writerEvent carries the count of writes landed (from) with every kind that needs it.
type writerEvent struct {
	kind   writerEventKind
	exact  bool   // answer: no write of P ended with an error
	from   uint64 // reject, answer, count, fenced
	posted uint64 // answer: writes that P completed
	cause  error  // reject, answer, link-ended, unanswered, unsettled
}

// writerEffect is what the machine does after a step; several at once, in this order.
type writerEffect uint8

const (
	fxFenceLink writerEffect = 1 << iota // end the link and fence the peer
	fxLost                               // tell the attempt that this writer will not complete, and why: cause
	fxOverrun                            // the peer wrote more than it was asked for, or said that it had
	fxChanged                            // the state is another one: look at the attempt
)

// step returns the next state and what to do. ok is false when the event means nothing in this state: then nothing changes.
func (w writerStep) step(e writerEvent) (next writerStep, fx writerEffect, ok bool) {
	switch e.kind {
	case evAccept:
		if w.state == writerAsked {
			w.state = writerAccepted
			return w, fxChanged, true
		}
		return w, 0, w.state != writerFencing && w.state != writerStuck // of a repeated Dispatch, or overtaken by the last write
	case evReject:
		switch {
		case w.state == writerAsked && e.from > 0:
			return w.overrun(e.from, 0)
		case w.state == writerAsked:
			w.state = writerEnded
			w, fx = w.lose(e.cause)
			return w, fx | fxChanged, true
		}
		return w, 0, w.state == writerEnded // of a repeated Dispatch
	case evAnswer:
		return w.answer(e)
	case evCount:
		return w.count(e.from)
	case evLinkEnded:
		if w.state.open() || w.state == writerSettling {
			return w.fence(e.cause)
		}
		return w, 0, true
	case evUnanswered:
		if w.state.open() {
			return w.fence(e.cause)
		}
	case evUnsettled:
		if w.state == writerSettling {
			return w.fence(e.cause)
		}
	case evFenced:
		return w.fenced(e.from)
	case evUnfenced:
		switch w.state {
		case writerFencing:
			w.state = writerStuck
			w, fx = w.lose(w.cause)
			return w, fx | fxChanged, true
		case writerStuck:
			return w, 0, true
		}
	}
	return w, 0, false
}

// awaited is the count that ends the state, and whether there is one.
func (w writerStep) awaited() (uint64, bool) {
	switch {
	case w.state.open():
		return w.expected, true
	case w.state == writerSettling:
		return w.settle, true
	}
	return 0, false
}

func (w writerStep) count(from uint64) (writerStep, writerEffect, bool) {
	switch w.state {
	case writerAsked, writerAccepted:
		switch {
		case from > w.expected:
			return w.overrun(from, w.expected)
		case from == w.expected:
			w.state = writerComplete
			return w, fxChanged, true
		}
	case writerSettling:
		switch {
		case from > w.settle:
			return w.overrun(from, w.settle)
		case from < w.settle && !broken(mutSettle):
		case w.settle == w.expected:
			w.state = writerComplete
			return w, fxChanged, true
		default:
			w.state = writerEnded
			return w, fxChanged, true
		}
	case writerComplete, writerFencing, writerStuck:
		if from > w.expected {
			return w.overrun(from, w.expected)
		}
	}
	return w, 0, true
}

// answer: P has ended the attempt and says how much it wrote.
func (w writerStep) answer(e writerEvent) (writerStep, writerEffect, bool) {
	switch {
	case w.state == writerFencing || w.state == writerStuck:
		return w, 0, false // of a link that has ended
	case !w.state.open():
		return w, 0, true // repeated, or the last write was faster
	case !e.exact:
		return w.fence(e.cause)
	case e.posted > w.expected:
		return w.overrun(e.posted, w.expected)
	}
	w.state, w.settle = writerSettling, e.posted
	fx := fxChanged
	if e.posted < w.expected {
		var lost writerEffect
		w, lost = w.lose(e.cause)
		fx |= lost
	}
	next, more, _ := w.count(e.from)
	return next, fx | more, true
}

func (w writerStep) fenced(from uint64) (writerStep, writerEffect, bool) {
	switch {
	case w.state != writerFencing && w.state != writerStuck:
		return w, 0, false
	case from == w.expected && !w.lost && !broken(mutRecheck):
		w.state = writerComplete // all bytes are here: the loss of the link costs nothing
		return w, fxChanged, true
	case from > w.expected && !w.lost:
		w.cause = overrunError(from, w.expected)
	}
	w.state = writerEnded
	w, fx := w.lose(w.cause)
	return w, fx | fxChanged, true
}

func (w writerStep) fence(cause error) (writerStep, writerEffect, bool) {
	w.state = writerFencing
	if w.cause == nil {
		w.cause = cause
	}
	if broken(mutFence) {
		w.state = writerEnded
		w, fx := w.lose(cause)
		return w, fx | fxChanged, true
	}
	return w, fxFenceLink | fxChanged, true
}

// overrun: a peer that wrote more than it was asked for may write anywhere.
func (w writerStep) overrun(got, want uint64) (writerStep, writerEffect, bool) {
	fx := fxOverrun
	if w.lost && (w.state == writerFencing || w.state == writerStuck) {
		return w, 0, true // said before
	}
	cause := overrunError(got, want)
	w, lost := w.lose(cause)
	fx |= lost
	if w.state == writerFencing || w.state == writerStuck {
		return w, fx, true
	}
	w, fence, _ := w.fence(cause)
	return w, fx | fence, true
}

func overrunError(got, want uint64) error {
	return fmt.Errorf("%w: %d immediates, %d were to come", ErrProtocol, got, want)
}

func (w writerStep) lose(cause error) (writerStep, writerEffect) {
	if w.lost {
		return w, 0
	}
	w.lost, w.cause = true, cause
	return w, fxLost
}
