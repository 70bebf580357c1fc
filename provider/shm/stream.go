package shm

import "unsafe"

// Writes go past the caches when their destination is not in them: a store into memory that is not cached first reads the line
// that it is about to overwrite. Measured with pages at random places of 512 MiB, GB/s, on Zen 5:
//
//	                            4 KiB  64 KiB  1 MiB
//	copy                           10    16.5     26  (from 1 MiB on it goes past the caches, too)
//	memcpy of glibc                12      20     20
//	past the caches                12      21     26
//	the same, looking ahead        20      24     27
//
// Looking ahead is what a copy of one block cannot do: the processor fetches the first lines of the next source, and the
// translation of its address, while it copies this one. Where the destination is cached, copy is faster (58 against 40): see warmth.
const (
	// streamMin is the shortest write that may go past the caches, bytes.
	streamMin = 4 << 10

	// streamStep is what stream copies at once, bytes: two cache lines.
	streamStep = 128

	// aheadBytes is how far stream looks ahead; one page, which is as far as the processor looks by itself.
	aheadBytes = pageSize

	// aheadMax is the longest write in whose own source stream looks ahead. Farther on the processor has found the pattern, and
	// help costs more than it brings (22 against 26 GB/s).
	aheadMax = 128 << 10

	// cachedMax is what is copied at once into cached memory, bytes: Go's copy goes past the caches from 1 MiB on.
	cachedMax = 512 << 10
)

// place copies src to dst, which have equal lengths. next is the source of the next call, as far as it is known. What
// it wrote is in no order with later stores until settle.
// hot:
func (d *domain) place(dst, src, next []byte) {
	if !canStream || len(src) < streamMin {
		copy(dst, src)
		return
	}
	if d.warmth.cached(dst) {
		for len(src) > cachedMax {
			n := copy(dst, src[:cachedMax])
			dst, src = dst[n:], src[n:]
		}
		copy(dst, src)
		return
	}
	d.streamed = true
	// safe: the address is only looked at.
	head := int(-uintptr(unsafe.Pointer(&dst[0])) % lineSize)
	copy(dst[:head], src[:head])
	dst, src = dst[head:], src[head:]
	body := len(src) &^ (streamStep - 1)
	last := min(body, aheadBytes)
	if first := body - last; first > 0 {
		var own *byte
		if len(src) <= aheadMax {
			own = &src[last]
		}
		// safe: both have first bytes and more, dst begins with a line, and first is a multiple of streamStep. What lies at own is not
		// read, only fetched.
		stream(&dst[0], &src[0], own, uintptr(first))
		dst, src, body = dst[first:], src[first:], last
	}
	var other *byte
	if len(next) >= aheadBytes {
		other = &next[0]
	}
	stream(&dst[0], &src[0], other, uintptr(body)) // safe: as above
	copy(dst[body:], src[body:])
}

// settle orders what was placed before all later stores.
// hot:
func (d *domain) settle() {
	if d.streamed {
		d.streamed = false
		storeFence()
	}
}

// lineSize is that of a cache, bytes. A line that is written in part does not go past the caches.
const lineSize = 64

const (
	// warmBytes is how much is written until what was written before has left the caches, bytes: a quarter of a large last-level
	// cache, because sources take as much of it as destinations, and there are two processes. With 16 MiB both ways are equal.
	warmBytes = 8 << 20

	// warmPlaces is the number of pages of warmBytes.
	warmPlaces = warmBytes / pageSize
)

// warmth knows which destinations were written a short time ago. It guesses by the place where a write begins, and forgets a
// place for another one that is a multiple of warmBytes away: what it says decides only about speed.
type warmth struct {
	written uint64 // bytes
	places  [warmPlaces]struct {
		at      uintptr // address of a write
		written uint64  // when it was made
	}
}

// cached reports whether dst is likely to be in a cache, and notes that it will be written now.
// hot:
func (w *warmth) cached(dst []byte) bool {
	// safe: the address is only compared.
	at := uintptr(unsafe.Pointer(&dst[0]))
	p := &w.places[at/pageSize%warmPlaces]
	cached := p.at == at && w.written-p.written <= warmBytes
	p.at, p.written = at, w.written
	w.written += uint64(len(dst))
	return cached
}
