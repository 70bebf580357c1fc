package hawser

import (
	"errors"
	"fmt"

	"github.com/hawser-project/hawser/mem"
	"github.com/hawser-project/hawser/provider"
)

// Errors to branch on with errors.Is. They come wrapped with the call and the object.
var (
	// ErrClosed: the engine, or the object, is closed.
	ErrClosed = provider.ErrClosed
	// ErrUnavailable: a network cannot be used here; the text says what is missing.
	ErrUnavailable = provider.ErrUnavailable
	// ErrUnsupported: the network of this peer cannot do that.
	ErrUnsupported = provider.ErrUnsupported
	// ErrInvalid: an argument is wrong; the text names it and its bounds.
	ErrInvalid = provider.ErrInvalid
	// ErrBusy: something is still in use.
	ErrBusy = provider.ErrBusy
	// ErrLimit: a limit is reached; the text names it.
	ErrLimit = provider.ErrLimit
	// ErrStale: the object belongs to a session, a region or an identity that has ended.
	ErrStale = provider.ErrStale
	// ErrMemory: the machine does not have that much memory.
	ErrMemory = mem.ErrMemory
	// ErrPeerDown: the peer died, closed, or was silent for too long.
	ErrPeerDown = errors.New("peer is down")
	// ErrAccess: the owner of the memory refused: forged descriptor, missing right, range outside of it.
	ErrAccess = errors.New("access refused")
	// ErrRefused: the other side did not accept the connection; the text says which check failed.
	ErrRefused = errors.New("refused")
	// ErrUnfenced: bytes of an operation that failed may still land. Fence the writer before the memory is used again.
	ErrUnfenced = errors.New("not known to be quiet")
)

// MemlockError: networks that pin memory would pin more than RLIMIT_MEMLOCK allows; the text has the remedy.
type MemlockError = mem.MemlockError

// OpError says which operation failed, and at which peer.
type OpError struct {
	Op   string // "write", "write pages", "signal", "send", "send bulk"
	Peer *Peer
	Err  error

	log *flightLog // nil: see Err
}

func (e *OpError) Error() string {
	return fmt.Sprintf("%s to %s: %v%s", e.Op, e.Peer, e.Err, e.log.hint())
}

// Flight returns the last events of the peer before the failure, oldest first. See FlightOf.
func (e *OpError) Flight() []Event {
	if e.log == nil {
		return FlightOf(e.Err)
	}
	return e.log.list()
}

// Unwrap gives access to the sentinels.
func (e *OpError) Unwrap() error { return e.Err }

// statusError turns the first bad status of an operation into an error.
func statusError(st provider.Status, cause error) error {
	switch st {
	case provider.StatusOK:
		return nil
	case provider.StatusAccess:
		return ErrAccess
	case provider.StatusFlushed:
		if cause == nil {
			return fmt.Errorf("a link failed, and its network cannot tell which of several operations had arrived: its bytes at the peer are %w", ErrUnfenced)
		}
		// What was in flight may have been placed, or may be placed yet.
		return fmt.Errorf("%w: its bytes at the peer are %w", cause, ErrUnfenced)
	}
	return fmt.Errorf("%w: refused by the network: %s", ErrInvalid, st)
}
