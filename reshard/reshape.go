package reshard

import (
	"fmt"
	"slices"
)

// reshapeAll takes placements from the index space of shape into that of view, which has as many elements in the same row-major order. Dimensions
// are split or joined; what would do both at once is refused.
func reshapeAll(p []placement, shape, view []int64) ([]placement, error) {
	if volume(shape) == 0 {
		return nil, nil
	}
	groups, err := regroup(shape, view)
	if err != nil {
		return nil, err
	}
	var out []placement
	for i := range p {
		boxes := []box{{}}
		axes := make([]axis, 0, len(view))
		for _, g := range groups {
			parts, a, err := g.turn(&p[i], shape, view)
			if err != nil {
				return nil, err
			}
			axes = append(axes, a...)
			var next []box
			for _, b := range boxes {
				for _, q := range parts {
					next = append(next, box{slices.Concat(b.lo, q.lo), slices.Concat(b.hi, q.hi)})
				}
			}
			if boxes = next; len(boxes) > maxBoxes {
				return nil, fmt.Errorf("view %v of %v cuts a piece into more than %d boxes", view, shape, maxBoxes)
			}
		}
		for _, b := range boxes {
			h := p[i].holder
			h.axes = axes
			out = append(out, placement{b.lo, b.hi, h})
		}
	}
	return out, nil
}

// dims says that dimensions [s0, s1) of a shape are dimensions [v0, v1) of a view.
type dims struct{ s0, s1, v0, v1 int }

// regroup finds the smallest groups of dimensions with equal products.
func regroup(shape, view []int64) (out []dims, err error) {
	var g dims
	for g.s0 < len(shape) || g.v0 < len(view) {
		g.s1, g.v1 = g.s0, g.v0
		a, b := int64(1), int64(1)
		for first := true; first || a != b; first = false {
			switch {
			case g.s1 < len(shape) && (a <= b || g.v1 == len(view)):
				a *= shape[g.s1]
				g.s1++
			case g.v1 < len(view):
				b *= view[g.v1]
				g.v1++
			default:
				return nil, fmt.Errorf("view %v has not the elements of %v", view, shape)
			}
		}
		if g.s1-g.s0 > 1 && g.v1-g.v0 > 1 {
			return nil, fmt.Errorf("view %v of %v splits and joins dimensions %d to %d at once; use two names", view, shape, g.s0, g.s1-1)
		}
		out = append(out, g)
		g.s0, g.v0 = g.s1, g.v1
	}
	return out, nil
}

// turn gives the boxes and axes of a placement in the view's dimensions of a group.
func (g *dims) turn(p *placement, shape, view []int64) ([]box, []axis, error) {
	if g.s1-g.s0 == 1 && g.v1-g.v0 >= 1 {
		return g.divide(p, view)
	}
	var joined axis
	for d := g.s0; d < g.s1; d++ {
		for k, x := range p.axes[d] {
			if k == 0 {
				x.Extent = shape[d]
				for _, inner := range p.axes[d][1:] {
					x.Extent = ceil(x.Extent, inner.Extent)
				}
			}
			joined = append(joined, x)
		}
		if n := p.axes[d]; len(n) > 1 && shape[d]%digitsIn(n[1:]) != 0 {
			return nil, nil, fmt.Errorf("view %v of %v joins a dimension with ragged digits", view, shape)
		}
	}
	if g.v1 == g.v0 { // dimensions of one element vanish
		return []box{{}}, nil, nil
	}
	extents := make(axis, 0, g.s1-g.s0)
	for d := g.s0; d < g.s1; d++ {
		extents = append(extents, Digit{Extent: shape[d]})
	}
	var out []box
	if len(extents) == 0 { // a dimension of one element appears
		return []box{{[]int64{0}, []int64{1}}}, []axis{{{Extent: 1}}}, nil
	}
	for _, x := range intervals(extents, p.lo[g.s0:g.s1], p.hi[g.s0:g.s1], view[g.v0]) {
		out = append(out, box{[]int64{x[0]}, []int64{x[1]}})
	}
	return out, []axis{joined}, nil
}

func digitsIn(a axis) int64 {
	n := int64(1)
	for _, d := range a {
		n *= d.Extent
	}
	return n
}

// divide makes several dimensions of one.
func (g *dims) divide(p *placement, view []int64) ([]box, []axis, error) {
	a, digits := p.axes[g.s0], 0
	axes := make([]axis, g.v1-g.v0)
	inner := int64(1)
	for v := g.v1 - 1; v >= g.v0; v-- { // digits of the dimension belong to dimensions of the view, from the innermost
		var mine axis
		for have := int64(1); have < view[v] || mine == nil; {
			k := len(a) - 1 - digits
			if k <= 0 {
				if inner*have%digitsIn(a[1:]) != 0 {
					return nil, nil, fmt.Errorf("view %v cuts through the digits of dimension %d", view, g.s0)
				}
				mine = slices.Insert(mine, 0, Digit{Extent: ceil(view[v], have), Stride: a[0].Stride * (inner * have / digitsIn(a[1:]))})
				break
			}
			mine = slices.Insert(mine, 0, a[k])
			have *= a[k].Extent
			digits++
			if have > view[v] {
				return nil, nil, fmt.Errorf("view %v cuts through the digits of dimension %d", view, g.s0)
			}
		}
		axes[v-g.v0] = mine
		inner *= view[v]
	}
	var out []box
	var walk func(v int, lo, hi int64, at []int64)
	put := func(at []int64, lo, hi int64, rest []int64) { // single indices, then [lo, hi), then all of the rest
		b := box{append(slices.Clone(at), lo), make([]int64, 0, len(axes))}
		for _, x := range at {
			b.hi = append(b.hi, x+1)
		}
		b.hi = append(b.hi, hi)
		for _, n := range rest {
			b.lo, b.hi = append(b.lo, 0), append(b.hi, n)
		}
		out = append(out, b)
	}
	walk = func(v int, lo, hi int64, at []int64) { // [lo, hi) within the dimensions from v on
		if v == g.v1-1 {
			put(at, lo, hi, nil)
			return
		}
		step := volume(view[v+1 : g.v1])
		up, down := ceil(lo, step), hi/step
		if up > down {
			walk(v+1, lo-down*step, hi-down*step, append(slices.Clone(at), down))
			return
		}
		if lo < up*step {
			walk(v+1, lo-(up-1)*step, step, append(slices.Clone(at), up-1))
		}
		if up < down {
			put(at, up, down, view[v+1:g.v1])
		}
		if down*step < hi {
			walk(v+1, 0, hi-down*step, append(slices.Clone(at), down))
		}
	}
	walk(g.v0, p.lo[g.s0], p.hi[g.s0], nil)
	return out, axes, nil
}
