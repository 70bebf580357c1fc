package schedule

// Align keeps pieces of an Arena on cache lines of their own, bytes.
const Align = 64

// Arena lends pieces of staging memory in the order in which they are asked for. They may come back in any order; memory is free again
// when all that was lent before it has come back. Its size is the publisher's watermark: what is in flight never exceeds it.
type Arena struct {
	size  int64
	lent  []loan // oldest first
	head  int64  // where the next piece begins
	inUse int64  // with what is lost at the end of the memory
	peak  int64
}

// loan is a piece that is lent, or given back behind one that is not.
type loan struct {
	off, len int64
	skipped  int64 // bytes before it that are lost: the end of the memory was too short
	back     bool
}

// NewArena lends pieces of [0, size).
func NewArena(size int64) *Arena { return &Arena{size: size / Align * Align} }

// Size is how many bytes the largest piece may have.
func (a *Arena) Size() int64 { return a.size }

// Take lends n bytes. ok is false if they are not free now; a piece that is larger than the arena never is.
func (a *Arena) Take(n int64) (off int64, ok bool) {
	n = (n + Align - 1) / Align * Align
	if len(a.lent) == 0 {
		a.head = 0
	}
	l := loan{off: a.head, len: n}
	if l.off+n > a.size { // a piece is in one place
		l.skipped, l.off = a.size-l.off, 0
	}
	if a.inUse+l.skipped+n > a.size {
		return 0, false
	}
	a.lent = append(a.lent, l)
	a.head = l.off + n
	a.inUse += l.skipped + n
	a.peak = max(a.peak, a.inUse)
	return l.off, true
}

// Give takes back the piece at off.
func (a *Arena) Give(off int64) {
	for i := range a.lent {
		if l := &a.lent[i]; l.off == off && !l.back {
			l.back = true
			break
		}
	}
	n := 0
	for n < len(a.lent) && a.lent[n].back {
		a.inUse -= a.lent[n].skipped + a.lent[n].len
		n++
	}
	a.lent = append(a.lent[:0], a.lent[n:]...)
}

// Peak is the largest number of bytes that were in use at once.
func (a *Arena) Peak() int64 { return a.peak }
