package kv

import (
	"errors"
	"fmt"
)

// Errors of a request, beside those of the engine (hawser.ErrPeerDown, ErrUnfenced, ErrLimit, ErrClosed, ...). All arrive wrapped in
// an *AttemptError that says which request, which peer, and how much had arrived.
var (
	// ErrCancelled: the caller cancelled the request, or its context ended.
	ErrCancelled = errors.New("cancelled")
	// ErrStalled: the peer is up, but neither a write nor an answer came for Stall.
	ErrStalled = errors.New("stalled")
	// ErrDeadline: the request was not ready within its deadline.
	ErrDeadline = errors.New("deadline exceeded")
	// ErrProtocol: the peer sent what it must not. The link to it ends.
	ErrProtocol = errors.New("protocol error")
)

// AttemptError says which attempt ended, and how far it had come.
type AttemptError struct {
	Request  string
	Attempt  uint64 // number of the attempt in this Decoder
	Peer     string
	Arrived  uint64 // writes that are here
	Expected uint64
	Err      error
}

func (e *AttemptError) Error() string {
	return fmt.Sprintf("kv: request %s attempt %d: %s owes %d of %d writes: %v",
		e.Request, e.Attempt, e.Peer, e.Expected-min(e.Arrived, e.Expected), e.Expected, e.Err)
}

func (e *AttemptError) Unwrap() error { return e.Err }

// Code says why a prefiller refused or ended an attempt.
type Code uint8

// The codes. They travel between processes: a number keeps its meaning.
const (
	CodeBusy       Code = 1 + iota // its queue is full
	CodeInfeasible                 // the request can never be served there
	CodeInvalid                    // the request contradicts itself or the link
	CodeClosed                     // the prefiller is closing
	CodeTransfer                   // a write failed
	CodeEngine                     // the inference engine gave up
)

func (c Code) String() string {
	names := [...]string{CodeBusy: "busy", CodeInfeasible: "infeasible", CodeInvalid: "invalid", CodeClosed: "closed", CodeTransfer: "transfer", CodeEngine: "engine"}
	if int(c) < len(names) && names[c] != "" {
		return names[c]
	}
	return fmt.Sprintf("code %d", uint8(c))
}

// RejectedError: the prefiller did not take the request. It wrote nothing.
type RejectedError struct {
	Code Code
	Text string
}

func (e *RejectedError) Error() string { return fmt.Sprintf("rejected, %s: %s", e.Code, e.Text) }

// FailedError: the prefiller took the request and ended it.
type FailedError struct {
	Code Code
	Text string
}

func (e *FailedError) Error() string { return fmt.Sprintf("failed there, %s: %s", e.Code, e.Text) }

// MismatchError: the two sides of a link do not have the same cache.
type MismatchError struct {
	Field, Here, There string
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("%s there %q, here %q: both sides must have the same", e.Field, e.There, e.Here)
}
