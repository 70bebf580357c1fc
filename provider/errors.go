package provider

import "errors"

// Errors of every provider, wrapped with the call and the object. The hawser package re-exports them where users meet them.
var (
	// ErrUnavailable: the network cannot be used here; the text says what is missing.
	ErrUnavailable = errors.New("unavailable")
	// ErrUnsupported: this network cannot do that.
	ErrUnsupported = errors.New("unsupported")
	// ErrInvalid: an argument is out of range or malformed.
	ErrInvalid = errors.New("invalid")
	// ErrBusy: not now; try again after Poll.
	ErrBusy = errors.New("busy")
	// ErrLimit: a limit of the Config or of the operating system is reached.
	ErrLimit = errors.New("limit reached")
	// ErrStale: the handle or key belongs to something that has ended.
	ErrStale = errors.New("stale")
	// ErrClosed: the Domain is closed.
	ErrClosed = errors.New("closed")
)
