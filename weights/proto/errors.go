package proto

import (
	"errors"
	"fmt"
)

// How a push, or an operation of a controller, ends other than well. hawser.ErrBusy and hawser.ErrStale are used as well.
var (
	// ErrAborted: the epoch ended without a commit.
	ErrAborted = errors.New("aborted")
	// ErrInDoubt: whether the epoch committed is not known here.
	ErrInDoubt = errors.New("in doubt")
	// ErrSuspended: a rank of an instance is suspended.
	ErrSuspended = errors.New("suspended")
	// ErrVersion: nobody has this version, or it means nothing.
	ErrVersion = errors.New("no such version")
	// ErrNoReplica: what a lost publisher held is nowhere else.
	ErrNoReplica = errors.New("no replica")
	// ErrLog: the decision log could not be written: what it says is known only after a restart.
	ErrLog = errors.New("decision log failed")
)

// EpochError says which epoch ended an operation, and who is to blame.
type EpochError struct {
	Version Version
	Epoch   Key
	Member  string // "receiver 17", or empty
	Code    Code
	Text    string
	Err     error // ErrAborted, ErrInDoubt, ...
}

func (e *EpochError) Error() string {
	who := ""
	if e.Member != "" {
		who = e.Member + ": "
	}
	text := fmt.Sprintf("push v%d e%d: %s%v", e.Version, e.Epoch.Number, who, e.Code)
	if e.Text != "" {
		text += ": " + e.Text
	}
	return text + ": " + e.Err.Error()
}

// Unwrap gives access to the kind of end.
func (e *EpochError) Unwrap() error { return e.Err }
