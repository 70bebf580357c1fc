package proto

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Errors of a request on D, beside those of the engine (hawser.ErrPeerDown, ErrUnfenced, ErrLimit, ErrClosed, ErrInvalid). Those of a
// request that was dispatched arrive in an *AttemptError.
var (
	// ErrCancelled: the caller cancelled the request.
	ErrCancelled = errors.New("cancelled")
	// ErrStalled: a peer is up, but neither a write nor an answer came from it for Stall.
	ErrStalled = errors.New("stalled")
	// ErrDeadline: the request was not ready within its deadline.
	ErrDeadline = errors.New("deadline exceeded")
	// ErrDraining: the decoder takes no new requests.
	ErrDraining = errors.New("draining")
	// ErrCorrupt: what landed is not what was sent.
	ErrCorrupt = errors.New("corrupt")
)

// RejectedError: the prefiller did not take the request. It wrote nothing.
type RejectedError struct {
	Code       Code
	Text       string
	RetryAfter time.Duration // 0: it does not say
}

func (e *RejectedError) Error() string { return fmt.Sprintf("rejected, %s: %s", e.Code, e.Text) }

// Is: whose clock says first that the deadline is over makes no difference to the caller.
func (e *RejectedError) Is(target error) bool { return e.Code == CodeLate && target == ErrDeadline }

// FailedError: the prefiller took the request and ended it.
type FailedError struct {
	Code Code
	Text string
}

func (e *FailedError) Error() string { return fmt.Sprintf("failed there, %s: %s", e.Code, e.Text) }

// Is is as RejectedError.Is.
func (e *FailedError) Is(target error) bool { return e.Code == CodeLate && target == ErrDeadline }

// MismatchError: the two sides of a link do not have the same cache. Here and There are as D sees them.
type MismatchError struct {
	Code               Code
	Field, Here, There string
	Text               string
}

func (e *MismatchError) Error() string {
	if e.Field == "" {
		return fmt.Sprintf("hello refused, %s: %s", e.Code, e.Text)
	}
	return fmt.Sprintf("%s there %s, here %s: both sides must have the same", e.Field, e.There, e.Here)
}

// Owed is what one prefiller has delivered of an attempt.
type Owed struct {
	Addr             string
	Peer             Peer
	Landed, Expected uint64
	State            string // of the writer
}

// AttemptError says which attempt ended a request, how far it had come, and who owes what.
type AttemptError struct {
	Request string
	Attempt uint64 // its seq
	Try     int
	Pages   int // that were to be filled
	Owes    []Owed
	Err     error
}

func (e *AttemptError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "kv: request %s attempt %d (try %d): %v", e.Request, e.Attempt, e.Try, e.Err)
	for i, o := range e.Owes {
		sep := ", "
		if i == 0 {
			sep = "; "
		}
		fmt.Fprintf(&b, "%s%s owes %d of %d immediates", sep, short(o.Addr), o.Expected-min(o.Landed, o.Expected), o.Expected)
	}
	return b.String()
}

// Unwrap gives access to the cause.
func (e *AttemptError) Unwrap() error { return e.Err }

// short is an address as people want to see it in an error.
func short(addr string) string {
	const most = 32
	if len(addr) <= most {
		return addr
	}
	return addr[:most] + "..."
}
