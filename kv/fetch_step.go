package kv

import (
	"errors"
	"fmt"
)

// fetchStep is the state machine of one attempt on D. It is pure: no clock, no lock, no I/O; the Decoder feeds it and carries
// its effects out.
//
//	asked ──accept──► active ──all here──► ready ──release──► released
//	  │                 │
//	  ├──── cancel ─────┴──► stopping ──answer──► settling ──► released
//	  │                                                │
//	  └──── link ended, or an answer that is not exact ┴──► fencing ──► ready, released
//	                                                           └──► quarantined ──fenced──► released
//
// The caller is told at most once: that the pages are ready, or why not. Pages are freed only when no write can land on them.
type fetchStep struct {
	state    fetchState
	expected uint64 // writes that make the request ready
	settle   uint64 // settling: writes that will have landed
	told     bool   // the caller has its answer; never ready after that
	cause    error  // why it ends; known before the caller is told, because the last writes may still make it ready
}

type fetchState uint8

const (
	fetchAsked       fetchState = iota // Dispatch is out
	fetchActive                        // P has accepted
	fetchReady                         // every write has landed; the pages are the caller's until it releases them
	fetchStopping                      // Cancel is out
	fetchSettling                      // P has ended the attempt; its last writes are on their way
	fetchFencing                       // only a fence can tell what has landed
	fetchQuarantined                   // the fence has no proof yet
	fetchReleased                      // the pages are free
)

func (s fetchState) String() string {
	return [...]string{"asked", "active", "ready", "stopping", "settling", "fencing", "quarantined", "released"}[s]
}

// writing reports whether writes may still land.
func (s fetchState) writing() bool { return s != fetchReady && s != fetchReleased }

type fetchEventKind uint8

const (
	evAccept    fetchEventKind = iota // P took it
	evAnswer                          // Reject, Failed or CancelAck: P has ended it
	evCount                           // the counter moved
	evCancel                          // caller, deadline, stall, Close: cause says which
	evLinkEnded                       // peer down, Bye, protocol error, or a fence for another attempt's sake
	evUnsure                          // no answer to Cancel, or the last writes do not come, although the peer is up
	evFenced                          // nothing can land any more and the count is final
	evUnfenced                        // the fence has no proof
	evRelease                         // the caller gives the pages back
)

func (k fetchEventKind) String() string {
	return [...]string{"accept", "answer", "count", "cancel", "link-ended", "unsure", "fenced", "unfenced", "release"}[k]
}

// fetchEvent carries the count of writes landed (from) with every kind that needs it.
type fetchEvent struct {
	kind   fetchEventKind
	from   uint64
	posted uint64 // answer: writes that P completed
	exact  bool   // answer: no write of P ended with an error
	cause  error  // answer, cancel, link-ended, unsure
}

// fetchEffect is what the Decoder does after a step; several at once, in this order.
type fetchEffect uint8

const (
	fxReady      fetchEffect = 1 << iota // tell the caller that the pages are ready
	fxTell                               // tell the caller the cause
	fxCancel                             // send Cancel, repeat it until the state changes
	fxFence                              // end the link and fence the peer
	fxQuarantine                         // the pages are out of service
	fxQuiet                              // nothing can land any more: the immediate may be reused
	fxFree                               // free the pages
)

// step returns the next state and what to do. ok is false when the event means nothing in this state: then nothing changes.
func (a fetchStep) step(e fetchEvent) (next fetchStep, fx fetchEffect, ok bool) {
	switch e.kind {
	case evAccept:
		if a.state == fetchAsked {
			a.state = fetchActive
			return a, 0, true
		}
		// The answers to a repeated Dispatch, and one that a Cancel has overtaken.
		return a, 0, a.state.writing() || a.state == fetchReady
	case evCount:
		return a.count(e.from)
	case evAnswer:
		return a.answer(e)
	case evCancel:
		return a.cancel(e.cause)
	case evLinkEnded, evUnsure:
		switch a.state {
		case fetchAsked, fetchActive, fetchStopping, fetchSettling:
			return a.fence(e.cause)
		}
		return a, 0, a.state.writing()
	case evFenced:
		return a.fenced(e.from)
	case evUnfenced:
		switch a.state {
		case fetchFencing:
			a.state = fetchQuarantined
			a, fx = a.tell(a.cause)
			return a, fx | fxQuarantine, true
		case fetchQuarantined:
			return a, 0, true
		}
	case evRelease:
		if a.state == fetchReady {
			a.state = fetchReleased
			return a, fxFree, true
		}
	}
	return a, 0, false
}

// awaited is the count that the Decoder waits for, 0 when it waits for none.
func (a fetchStep) awaited() uint64 {
	switch a.state {
	case fetchAsked, fetchActive, fetchStopping:
		return a.expected
	case fetchSettling:
		return a.settle
	}
	return 0
}

func (a fetchStep) count(from uint64) (fetchStep, fetchEffect, bool) {
	want := a.awaited()
	switch {
	case want == 0 && a.state != fetchSettling:
		return a, 0, a.state.writing() // fencing: only the final count matters
	case from < want:
		return a, 0, true
	case from > want:
		return a.overrun(from, want)
	case want == a.expected && !a.told:
		a.state, a.told = fetchReady, true
		return a, fxReady | fxQuiet, true
	}
	return a.release()
}

// answer: P has ended the attempt and says how much it wrote.
func (a fetchStep) answer(e fetchEvent) (fetchStep, fetchEffect, bool) {
	switch a.state {
	case fetchAsked, fetchActive, fetchStopping:
	case fetchReady, fetchReleased: // the answer to a Cancel that the last write has overtaken
		return a, 0, true
	default: // settling, fencing: a repeated answer
		return a, 0, a.state.writing()
	}
	if !e.exact {
		return a.fence(e.cause)
	}
	if e.posted > a.expected {
		return a.overrun(e.posted, a.expected)
	}
	a.state, a.settle = fetchSettling, e.posted
	var fx fetchEffect
	if e.posted < a.expected {
		a, fx = a.tell(e.cause)
	} else if a.cause == nil {
		a.cause = e.cause
	}
	next, more, _ := a.count(e.from)
	return next, fx | more, true
}

func (a fetchStep) cancel(cause error) (fetchStep, fetchEffect, bool) {
	var fx fetchEffect
	switch a.state {
	case fetchAsked, fetchActive:
		a.state = fetchStopping
		a, fx = a.tell(cause)
		return a, fx | fxCancel, true
	case fetchSettling, fetchFencing:
		a, fx = a.tell(cause)
		return a, fx, true
	}
	return a, 0, true // too late, or said before
}

func (a fetchStep) fenced(from uint64) (fetchStep, fetchEffect, bool) {
	switch {
	case a.state != fetchFencing && a.state != fetchQuarantined:
		return a, 0, false
	case from == a.expected && !a.told:
		a.state, a.told = fetchReady, true // all bytes are here: the loss of the link costs nothing
		return a, fxReady | fxQuiet, true
	}
	return a.release()
}

// fence keeps the first cause: the caller is told only if the fence shows that something is missing.
func (a fetchStep) fence(cause error) (fetchStep, fetchEffect, bool) {
	a.state = fetchFencing
	if a.cause == nil {
		a.cause = cause
	}
	return a, fxFence, true
}

// overrun: a peer that wrote more than it was asked for may write anywhere.
func (a fetchStep) overrun(got, want uint64) (fetchStep, fetchEffect, bool) {
	a, fx := a.tell(fmt.Errorf("%w: %d writes, %d asked for", ErrProtocol, got, want))
	a, more, ok := a.fence(nil)
	return a, fx | more, ok
}

func (a fetchStep) release() (fetchStep, fetchEffect, bool) {
	a, fx := a.tell(a.cause)
	a.state = fetchReleased
	return a, fx | fxQuiet | fxFree, true
}

func (a fetchStep) tell(cause error) (fetchStep, fetchEffect) {
	if a.told {
		return a, 0
	}
	if cause == nil {
		cause = errors.New("no cause given")
	}
	a.told, a.cause = true, cause
	return a, fxTell
}
