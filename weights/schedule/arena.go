package schedule

import "slices"

// Align keeps pieces of an Arena on cache lines of their own, bytes.
const Align = 64

// Arena lends pieces of staging memory, which may come back in any order. Each piece is as near to the beginning as there is room, so that
// memory that was used a moment ago, and may still be in a cache, is used first. Its size is the publisher's watermark: what is in flight
// never exceeds it.
type Arena struct {
	size  int64
	lent  []loan // by place
	inUse int64
	peak  int64
}

// loan is a piece that is lent.
type loan struct{ off, len int64 }

// NewArena lends pieces of [0, size).
func NewArena(size int64) *Arena { return &Arena{size: size / Align * Align} }

// Size is how many bytes the largest piece may have.
func (a *Arena) Size() int64 { return a.size }

// Take lends n bytes, of which there is at least one. ok is false if there is no room for them now; for a piece that is larger than the arena
// there never is.
func (a *Arena) Take(n int64) (off int64, ok bool) {
	n = (max(n, 1) + Align - 1) / Align * Align
	at := 0
	for ; at < len(a.lent) && a.lent[at].off-off < n; at++ {
		off = a.lent[at].off + a.lent[at].len
	}
	if a.size-off < n {
		return 0, false
	}
	a.lent = slices.Insert(a.lent, at, loan{off, n})
	a.inUse += n
	a.peak = max(a.peak, a.inUse)
	return off, true
}

// Give takes back the piece at off.
func (a *Arena) Give(off int64) {
	for i := range a.lent {
		if a.lent[i].off == off {
			a.inUse -= a.lent[i].len
			a.lent = slices.Delete(a.lent, i, i+1)
			return
		}
	}
}

// Peak is the largest number of bytes that were in use at once.
func (a *Arena) Peak() int64 { return a.peak }
