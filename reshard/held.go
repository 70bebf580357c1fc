package reshard

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Held is a box of a tensor in the memory of one rank, as loops: index i of loop k is Stride[k] bytes further on. Loops are in the order of the tensor, so going
// through them visits its elements row by row.
type Held struct {
	Tensor int   // index in Layout.Tensors
	Scales bool  // the scales of the tensor's codec, not its values
	DType  DType // of what lies here
	Buffer int
	Offset int64 // of the first element
	Extent []int64
	Stride []int64
	Lo     []int64 // of the box: in elements, or of scales in blocks
}

// Held returns everything that a rank has, by name, then values before scales, then by box. Ranks that hold equal boxes of equal tensors have equal
// lists, but for buffers, offsets and strides.
func (l *Layout) Held(rank int) ([]Held, error) {
	if rank < 0 || rank >= len(l.Buffers) {
		return nil, layoutFault("rank %d of %d", rank, len(l.Buffers))
	}
	s := newSide(l)
	known := make([][]placement, 2*len(s.ways)) // of this rank
	done := make([]bool, 2*len(s.ways))
	var out []Held
	for t := range l.Tensors {
		if s.way[t] < 0 {
			continue
		}
		w := &s.ways[s.way[t]]
		for scales := range 2 {
			k := 2*s.way[t] + scales
			if !done[k] {
				all, err := w.placements(scales == 1)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", l.Tensors[t].Name, err)
				}
				known[k], done[k] = slices.DeleteFunc(all, func(p placement) bool { return p.rank != rank }), true
			}
			for i := range known[k] {
				out = append(out, s.held(t, w, &known[k][i], scales == 1)...)
			}
		}
	}
	slices.SortStableFunc(out, func(a, b Held) int {
		return cmp.Or(strings.Compare(l.Tensors[a.Tensor].Name, l.Tensors[b.Tensor].Name), cmpBool(a.Scales, b.Scales), slices.Compare(a.Lo, b.Lo))
	})
	return out, nil
}

func cmpBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// held makes boxes of a placement: one, unless the digits of a dimension are cut.
func (s *side) held(tensor int, w *way, p *placement, scales bool) (out []Held) {
	h := Held{Tensor: tensor, Scales: scales, DType: w.dtype, Buffer: p.buffer, Offset: s.offsets(tensor)[p.unit] + p.bias}
	if scales {
		h.DType = p.codec.scale()
	}
	out = []Held{h}
	for d := range p.lo {
		var next []Held
		for _, part := range split(p.lo[d], p.hi[d], p.axes[d], p.axes[d]) {
			for _, x := range out {
				x.Offset += part.a
				x.Extent = append(slices.Clip(x.Extent), part.extent...)
				x.Stride = append(slices.Clip(x.Stride), part.sa...)
				x.Lo = append(slices.Clip(x.Lo), part.lo)
				next = append(next, x)
			}
		}
		out = next
	}
	return out
}

// Spans calls f for the ranges of bytes of the box, in the order of the tensor, until f returns false. Ranges that touch are one.
func (h *Held) Spans(f func(off, n int64) bool) {
	n, inner := h.DType.Size(), len(h.Extent) // loops from inner on are one range of n bytes
	for inner > 0 && (h.Stride[inner-1] == n || h.Extent[inner-1] == 1) {
		inner--
		n *= h.Extent[inner]
	}
	if n == 0 {
		return
	}
	index, off := make([]int64, inner), h.Offset
	for {
		if !f(off, n) {
			return
		}
		k := inner - 1
		for ; k >= 0; k-- {
			off += h.Stride[k]
			if index[k]++; index[k] < h.Extent[k] {
				break
			}
			off -= h.Stride[k] * h.Extent[k]
			index[k] = 0
		}
		if k < 0 {
			return
		}
	}
}
