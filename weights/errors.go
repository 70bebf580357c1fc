package weights

import "errors"

// ErrDigest: what a receiver has is not what the publishers sent.
var ErrDigest = errors.New("digest mismatch")
