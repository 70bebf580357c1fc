package reshard

import (
	"fmt"
	"slices"
)

// holder is a place where a box lies: the bytes of index x are at offset + bias + the sum of the axes.
type holder struct {
	rank, buffer int
	unit         int   // of the tensor: which of its offsets
	bias         int64 // makes the first index of the fragment lie at the offset
	axes         []axis
	variant      int // of the cell: holders with equal axes have equal variants
	scale        int // destinations with fp8block: index in class.scales; -1
	codec        Codec
}

// placement is a box of a tensor in the memory of one rank. Boxes are in the dimensions of the tensor; a box with cut inner digits has
// become several.
type placement struct {
	lo, hi []int64
	holder
}

// mesh strides and lengths.
func (m *Mesh) cells() int {
	n := 1
	for _, s := range m.Shape {
		n *= s
	}
	return n
}

func (m *Mesh) rank(cell int) int {
	if m.Ranks == nil {
		return cell
	}
	return m.Ranks[cell]
}

// chunk is piece i of p of [lo, hi) by the rule of torch.chunk.
func chunk(lo, hi int64, i, p int) (int64, int64) {
	c := (hi - lo + int64(p) - 1) / int64(p)
	a := min(lo+int64(i)*c, hi)
	return a, min(a+c, hi)
}

// box is what a cell of the grid's mesh has of a tensor. Shards cut from left to right; strided ones cut after all plain ones, as an FSDP
// dimension that comes before the TP dimension in the mesh but cuts what TP left.
func (g *Grid) box(cell int, shape, lo, hi []int64) {
	for d := range shape {
		lo[d], hi[d] = 0, shape[d]
	}
	for _, kind := range [...]string{"shard", "strided"} {
		rest := cell
		for m := range g.Place {
			inner := 1
			for _, s := range g.Mesh.Shape[m+1:] {
				inner *= s
			}
			i := rest / inner
			rest %= inner
			if p := &g.Place[m]; p.Kind == kind {
				lo[p.Dim], hi[p.Dim] = chunk(lo[p.Dim], hi[p.Dim], i, g.Mesh.Shape[m])
			}
		}
	}
}

// rowMajor are the strides of a piece without gaps.
func rowMajor(extent []int64, size int64) []int64 {
	s := make([]int64, len(extent))
	for d := len(extent) - 1; d >= 0; d-- {
		s[d] = size
		size *= extent[d]
	}
	return s
}

func plain(strides []int64) []axis {
	axes := make([]axis, len(strides))
	digits := make([]Digit, len(strides))
	for d, s := range strides {
		digits[d] = Digit{Stride: s}
		axes[d] = digits[d : d+1 : d+1]
	}
	return axes
}

// bias makes lo lie at 0.
func bias(axes []axis, lo []int64) (b int64) {
	for d, a := range axes {
		b -= a.at(lo[d])
	}
	return b
}

func empty(lo, hi []int64) bool {
	for d := range lo {
		if lo[d] >= hi[d] {
			return true
		}
	}
	return false
}

// placements of a grid, in the order of the mesh. Empty boxes are left out.
func (g *Grid) placements(shape []int64, size int64, unit int) []placement {
	n, dims := g.Mesh.cells(), len(shape)
	out := make([]placement, 0, n)
	flat, extent := make([]int64, 2*n*dims), make([]int64, dims)
	var last []axis // axes of lastExtent
	var lastExtent []int64
	for c := range n {
		lo, hi := flat[:dims:dims], flat[dims:2*dims:2*dims]
		flat = flat[2*dims:]
		g.box(c, shape, lo, hi)
		if empty(lo, hi) {
			continue
		}
		for d := range extent {
			extent[d] = hi[d] - lo[d]
		}
		switch {
		case last == nil && g.Strides != nil:
			last = plain(g.Strides)
		case g.Strides == nil && (last == nil || !slices.Equal(extent, lastExtent)):
			last, lastExtent = plain(rowMajor(extent, size)), slices.Clone(extent)
		}
		out = append(out, placement{lo, hi, holder{rank: g.Mesh.rank(c), buffer: g.Buffer, unit: unit, bias: bias(last, lo), axes: last, scale: -1, codec: g.Codec}})
	}
	return out
}

// placements of a fragment: one, unless inner digits are cut.
func (f *Fragment) placements(shape []int64, size int64, unit int) ([]placement, error) {
	h := holder{rank: f.Rank, buffer: f.Buffer, unit: unit, scale: -1, codec: f.Codec}
	if f.Digits == nil {
		if empty(f.Lo, f.Hi) {
			return nil, nil
		}
		extent := make([]int64, len(f.Lo))
		for d := range extent {
			extent[d] = f.Hi[d] - f.Lo[d]
		}
		h.axes = plain(rowMajor(extent, size))
		h.bias = bias(h.axes, f.Lo)
		return []placement{{f.Lo, f.Hi, h}}, nil
	}
	if empty(f.Lo, f.Hi) {
		return nil, nil
	}
	axes, err := group(shape, f.Digits)
	if err != nil {
		return nil, err
	}
	h.axes = axes
	for k, d := range f.Digits {
		h.bias -= f.Lo[k] * d.Stride
	}
	boxes := [][2][]int64{{nil, nil}}
	k := 0
	for d, a := range axes {
		parts := intervals(a, f.Lo[k:k+len(a)], f.Hi[k:k+len(a)], shape[d])
		k += len(a)
		if len(boxes)*len(parts) > maxBoxes {
			return nil, fmt.Errorf("its digits cut it into more than %d boxes", maxBoxes)
		}
		var next [][2][]int64
		for _, b := range boxes {
			for _, p := range parts {
				next = append(next, [2][]int64{append(slices.Clone(b[0]), p[0]), append(slices.Clone(b[1]), p[1])})
			}
		}
		boxes = next
	}
	var out []placement
	for _, b := range boxes {
		out = append(out, placement{b[0], b[1], h})
	}
	return out, nil
}

// maxBoxes is how many boxes one fragment may become.
const maxBoxes = 1 << 16

// intervals of indices that the box [lo, hi) in the digits of a dimension has, of those below n.
func intervals(a axis, lo, hi []int64, n int64) [][2]int64 {
	whole, inner := len(a), int64(1) // digits from whole on are not cut
	for whole > 1 && lo[whole-1] == 0 && hi[whole-1] == a[whole-1].Extent {
		whole--
		inner *= a[whole].Extent
	}
	var out [][2]int64
	var walk func(k int, at int64)
	walk = func(k int, at int64) {
		if k == whole-1 {
			first, end := min((at+lo[k])*inner, n), min((at+hi[k])*inner, n)
			if m := len(out); m > 0 && out[m-1][1] == first {
				out[m-1][1] = end
			} else if first < end {
				out = append(out, [2]int64{first, end})
			}
			return
		}
		for x := lo[k]; x < hi[k] && len(out) <= maxBoxes; x++ {
			walk(k+1, (at+x)*a[k+1].Extent)
		}
	}
	walk(0, 0)
	return out
}
