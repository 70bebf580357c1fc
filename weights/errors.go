package weights

import (
	"errors"
	"fmt"

	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/weights/proto"
	"github.com/hawser-project/hawser/weights/stage"
)

// Errors to branch on with errors.Is, beside those of the engine. They come wrapped with the epoch, and who is to blame: see EpochError.
var (
	// ErrDigest: what a receiver has is not what the publishers sent. It is a stage.ErrCorrupt.
	ErrDigest = fmt.Errorf("digest mismatch: %w", stage.ErrCorrupt)
	// ErrAborted: the epoch ended without a commit.
	ErrAborted = proto.ErrAborted
	// ErrInDoubt: whether the epoch committed is not known here.
	ErrInDoubt = proto.ErrInDoubt
	// ErrSuspended: a rank of an instance is suspended; nobody was stopped.
	ErrSuspended = proto.ErrSuspended
	// ErrVersion: nobody has this version.
	ErrVersion = proto.ErrVersion
	// ErrNoReplica: what a lost publisher held is held by nobody else.
	ErrNoReplica = proto.ErrNoReplica
	// ErrCoverage: no publisher has what a receiver needs.
	ErrCoverage = reshard.ErrCoverage
	// ErrLayout: a layout that makes no sense, or not with the other side's.
	ErrLayout = reshard.ErrLayout
)

// EpochError says which epoch ended an operation, and who is to blame.
type EpochError = proto.EpochError

// kindError is an error that is also of another kind.
type kindError struct{ error, kind error }

func (e *kindError) Error() string   { return e.error.Error() }
func (e *kindError) Unwrap() []error { return []error{e.error, e.kind} }

// typed gives errors of the protocol, in which causes are codes, the kinds that callers branch on.
func typed(err error) error {
	var e *proto.EpochError
	if !errors.As(err, &e) {
		return err
	}
	switch e.Code {
	case proto.CodeDigest:
		return &kindError{err, ErrDigest}
	case proto.CodeReplica:
		return &kindError{err, ErrNoReplica}
	}
	return err
}
