package record

import "math/bits"

// Buckets is how many buckets a Histogram has: the last one is for what takes longer than 2^38 ns, 4.6 minutes.
const Buckets = 40

// Histogram counts durations by their magnitude: bucket i those below 2^i ns that no bucket before it has. The zero value is empty.
type Histogram struct {
	Count   uint64
	Sum     uint64 // nanoseconds
	Buckets [Buckets]uint64
}

// Add counts a duration in nanoseconds. A negative one is counted as 0.
// hot:
func (h *Histogram) Add(ns int64) {
	n := uint64(max(ns, 0))
	h.Count++
	h.Sum += n
	h.Buckets[min(bits.Len64(n), Buckets-1)]++
}

// Merge adds what o has counted.
func (h *Histogram) Merge(o *Histogram) {
	h.Count += o.Count
	h.Sum += o.Sum
	for i, n := range o.Buckets {
		h.Buckets[i] += n
	}
}
