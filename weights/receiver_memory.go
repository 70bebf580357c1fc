package weights

import (
	"fmt"
	"slices"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/reshard"
)

// extent is a range of bytes of a buffer.
type extent struct {
	buffer  int
	off, ln int64
}

// extents of what a layout puts on a rank: sorted, and those that touch or overlap (aliases) are one.
func extents(held []reshard.Held) []extent {
	var all []extent
	for i := range held {
		held[i].Spans(func(off, n int64) bool {
			if k := len(all) - 1; k >= 0 && all[k].buffer == held[i].Buffer && all[k].off+all[k].ln == off {
				all[k].ln += n
			} else {
				all = append(all, extent{held[i].Buffer, off, n})
			}
			return true
		})
	}
	slices.SortFunc(all, compareExtents)
	return merge(all)
}

func compareExtents(a, b extent) int {
	if a.buffer != b.buffer {
		return a.buffer - b.buffer
	}
	return int(max(-1, min(1, a.off-b.off)))
}

func merge(all []extent) []extent {
	out := all[:0]
	for _, x := range all {
		if k := len(out) - 1; k >= 0 && out[k].buffer == x.buffer && x.off <= out[k].off+out[k].ln {
			out[k].ln = max(out[k].ln, x.off+x.ln-out[k].off)
			continue
		}
		out = append(out, x)
	}
	return out
}

func total(all []extent) (n int64) {
	for _, x := range all {
		n += x.ln
	}
	return n
}

// inside checks that the runs of a slice do not overlap and lie in what the layout puts here.
func inside(s *reshard.Slice, held []extent) error {
	runs := make([]extent, 0, len(s.Runs))
	for _, r := range s.Runs {
		if r.Stage < 0 || r.Stage >= len(s.Stages) || r.Len < 0 {
			return fmt.Errorf("%w: a run of %d bytes in stage %d", hawser.ErrInvalid, r.Len, r.Stage)
		}
		if r.Len > 0 {
			runs = append(runs, extent{r.Buffer, r.Offset, r.Len})
		}
	}
	slices.SortFunc(runs, compareExtents)
	k := 0
	for i, r := range runs {
		if i > 0 && runs[i-1].buffer == r.buffer && runs[i-1].off+runs[i-1].ln > r.off {
			return fmt.Errorf("%w: buffer %d byte %d is written twice", hawser.ErrInvalid, r.buffer, r.off)
		}
		for k < len(held) && (held[k].buffer < r.buffer || held[k].buffer == r.buffer && held[k].off+held[k].ln <= r.off) {
			k++
		}
		if k == len(held) || held[k].buffer != r.buffer || held[k].off > r.off || held[k].off+held[k].ln < r.off+r.ln {
			return fmt.Errorf("%w: buffer %d bytes [%d, %d) are not of the layout", hawser.ErrInvalid, r.buffer, r.off, r.off+r.ln)
		}
	}
	return nil
}

// complete checks that a slice whose runs are inside writes everything that the layout puts here.
func (r *Receiver) complete(s *reshard.Slice) error {
	n := int64(0)
	for i := range s.Runs {
		n += s.Runs[i].Len
	}
	if want := total(r.extents); n != want {
		return fmt.Errorf("%w: the plan writes %d bytes here, the layout has %d", hawser.ErrInvalid, n, want)
	}
	return nil
}

// hulls are the ranges that are granted: of each buffer of both copies.
func (r *Receiver) hulls() (h []hull) {
	for c := range r.copies {
		if r.copies[c] == nil {
			continue
		}
		for _, x := range r.extents {
			b := x.buffer + c*len(r.copies[0])
			if k := len(h) - 1; k >= 0 && h[k].buffer == b {
				h[k].hi = x.off + x.ln
				continue
			}
			h = append(h, hull{b, x.off, x.off + x.ln})
		}
	}
	return h
}

// poison fills what is to come with a pattern.
func (r *Receiver) poison(x *reception) {
	if r.o.Poison != 0 {
		fill(x.in.slice, x.memory, r.o.Poison)
	}
}
