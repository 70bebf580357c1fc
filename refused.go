package hawser

import (
	"errors"
	"maps"
	"sync"

	"github.com/hawser-project/hawser/internal/wire"
)

// Reasons for which connections and sessions are closed because of what the other side did, as Stats.Refused counts them.
const (
	RefusedVersion     = "version"     // no common version
	RefusedIdentity    = "identity"    // it wanted another engine, or is this one
	RefusedKey         = "key"         // cluster keys differ
	RefusedCertificate = "certificate" // TLS on one side only, or a certificate that is not accepted
	RefusedPath        = "path"        // no network in common, or none that works
	RefusedDuplicate   = "duplicate"   // another connection of the same pair is kept; no fault of anybody
	RefusedClosing     = "closing"     // this engine is closing
	RefusedBusy        = "busy"        // the session before is not over
	RefusedUser        = "user"        // the unix socket was dialed by another user
	RefusedCrowd       = "crowd"       // too many handshakes at once
	RefusedTimeout     = "timeout"     // a handshake that was not finished in time
	RefusedMalformed   = "malformed"   // bytes that mean nothing
	RefusedProtocol    = "protocol"    // a message that may not come now, or whose type is unknown
	RefusedBulk        = "bulk"        // a bulk transfer against the rules
	RefusedLink        = "link"        // a report about a link that cannot be, or a link that it has cost us again and again
	RefusedLimit       = "limit"       // too many immediates that nobody asked for, or regions taken back at once
	RefusedLost        = "lost"        // a handshake whose connection ended
)

// refused counts by reason. The reasons are the constants above, so it is bounded.
type refused struct {
	mu sync.Mutex
	n  map[string]uint64
}

func (r *refused) add(reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.n == nil {
		r.n = map[string]uint64{}
	}
	r.n[reason]++
}

func (r *refused) snapshot() map[string]uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.n)
}

// handshakeReason is the reason for which a handshake was refused.
func handshakeReason(err error) string {
	var r *refusal
	switch {
	case errors.Is(err, ErrAccess):
		return RefusedUser
	case errors.As(err, &r):
		switch r.code {
		case wire.RefuseVersion:
			return RefusedVersion
		case wire.RefuseIdentity:
			return RefusedIdentity
		case wire.RefuseKey:
			return RefusedKey
		case wire.RefuseCertificate:
			return RefusedCertificate
		case wire.RefusePath:
			return RefusedPath
		case wire.RefuseDuplicate:
			return RefusedDuplicate
		case wire.RefuseClosing:
			return RefusedClosing
		case wire.RefuseBusy:
			return RefusedBusy
		}
		return RefusedProtocol
	case errors.Is(err, wire.ErrMalformed):
		return RefusedMalformed
	case isTimeout(err):
		return RefusedTimeout
	}
	return RefusedLost
}

// messageReason is the reason for which a session ends because of a message of a type.
func messageReason(t wire.Type, err error) string {
	switch {
	case errors.Is(err, wire.ErrMalformed):
		return RefusedMalformed
	case errors.Is(err, ErrLimit):
		return RefusedLimit
	}
	switch t {
	case wire.TypeBulkOffer, wire.TypeBulkChunk, wire.TypeBulkAck, wire.TypeBulkCancel:
		return RefusedBulk
	case wire.TypeLink:
		return RefusedLink
	}
	return RefusedProtocol
}
