package weights

import (
	"slices"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/reshard"
)

// signal fills a channel of capacity 1.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// hull is the smallest range of a buffer that holds all runs of one peer, or of all.
type hull struct {
	buffer int
	lo, hi int64
}

// hulls are those of the runs for which use is true, by rising buffer.
func hulls(runs []reshard.Run, use func(*reshard.Run) bool) (h []hull) {
	for i := range runs {
		r := &runs[i]
		if !use(r) || r.Len == 0 {
			continue
		}
		k, ok := slices.BinarySearchFunc(h, r.Buffer, func(h hull, b int) int { return h.buffer - b })
		if !ok {
			h = slices.Insert(h, k, hull{r.Buffer, r.Offset, r.Offset + r.Len})
		}
		h[k].lo, h[k].hi = min(h[k].lo, r.Offset), max(h[k].hi, r.Offset+r.Len)
	}
	return h
}

// fill writes a pattern of two bytes to everything that publishers write: the low byte at even offsets.
func fill(s *reshard.Slice, memory []*hawser.Region, pattern uint16) {
	for i := range s.Runs {
		r := &s.Runs[i]
		b := memory[r.Buffer].Bytes()
		for k := r.Offset; k < r.Offset+r.Len; k++ {
			b[k] = byte(pattern >> (k % 2 * 8))
		}
	}
}
