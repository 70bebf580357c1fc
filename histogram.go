package hawser

import (
	"fmt"
	"math"
	"time"

	"github.com/hawser-project/hawser/internal/record"
)

// HistogramBuckets is how many buckets a Histogram has.
const HistogramBuckets = record.Buckets

// Histogram counts durations by their magnitude. Bucket i has those below 2^i ns and not below half of that; the last one has all
// longer ones, too. It is a copy and plain data, so it can be kept, compared and encoded.
type Histogram struct {
	Count   uint64
	Sum     uint64 // nanoseconds
	Buckets [HistogramBuckets]uint64
}

// Mean is 0 when nothing was counted.
func (h *Histogram) Mean() time.Duration {
	if h.Count == 0 {
		return 0
	}
	return time.Duration(h.Sum / h.Count)
}

// Quantile estimates the duration that a part q of all, from 0 to 1, does not exceed. It assumes that a bucket is evenly filled, so it is off by
// less than a factor of 2. 0 when nothing was counted.
func (h *Histogram) Quantile(q float64) time.Duration {
	rank := math.Ceil(min(max(q, 0), 1) * float64(h.Count))
	below := 0.0
	for i, n := range h.Buckets {
		if n > 0 && below+float64(n) >= rank {
			low, high := bucketBounds(i)
			return time.Duration(low + (high-low)*(rank-below)/float64(n))
		}
		below += float64(n)
	}
	return 0
}

// bucketBounds are where bucket i begins and ends, in nanoseconds.
func bucketBounds(i int) (low, high float64) {
	if i == 0 {
		return 0, 0
	}
	return math.Ldexp(1, i-1), math.Ldexp(1, i)
}

// Since is what h has counted after before, an earlier snapshot of the same histogram.
func (h *Histogram) Since(before *Histogram) Histogram {
	out := Histogram{Count: h.Count - before.Count, Sum: h.Sum - before.Sum}
	for i := range out.Buckets {
		out.Buckets[i] = h.Buckets[i] - before.Buckets[i]
	}
	return out
}

// String is the median, the 99th percentile and the count.
func (h Histogram) String() string {
	if h.Count == 0 {
		return "none"
	}
	return fmt.Sprintf("p50 %v, p99 %v of %d", short(h.Quantile(0.5)), short(h.Quantile(0.99)), h.Count)
}

// short is d with two or three digits.
func short(d time.Duration) time.Duration {
	unit := time.Duration(1)
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit)
}
