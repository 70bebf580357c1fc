package reshard

import (
	"cmp"
	"slices"
)

// class is a set of links that differ in names and offsets only: what is planned for one holds for all. All boxes are in the index space
// of the destination's tensor.
type class struct {
	from, to DType
	codec    Codec
	link     link // the first one
	members  []link
	src, dst []cell
	pairs    []pair // by destination cell, then by box
	scales   []holder
	bySrc    [][]int32 // pairs of each source cell
	byDst    []int32   // pairs of destination cell d: [byDst[d], byDst[d+1])
	shared   []straddle
	choice   []uint16 // of pairs with several sources: which of them, by member and holder
}

// cell is a box, and who holds it.
type cell struct {
	lo, hi  []int64
	holders []holder // sorted by rank, unit
}

// pair is what one source cell gives to one destination cell.
type pair struct {
	src, dst int32
	lo, hi   []int64
	bytes    int64 // that each holder of the destination's cell receives
	first    int   // in class.choice; -1: there is one source
}

func compareBoxes(alo, ahi, blo, bhi []int64) int {
	if c := slices.Compare(alo, blo); c != 0 {
		return c
	}
	return slices.Compare(ahi, bhi)
}

// cells groups placements by box. It sorts them.
func cells(p []placement) []cell {
	slices.SortFunc(p, func(a, b placement) int {
		if c := compareBoxes(a.lo, a.hi, b.lo, b.hi); c != 0 {
			return c
		}
		return cmp.Or(a.rank-b.rank, a.unit-b.unit)
	})
	n := 0
	for i := range p {
		if i == 0 || compareBoxes(p[i].lo, p[i].hi, p[i-1].lo, p[i-1].hi) != 0 {
			n++
		}
	}
	out, holders, first := make([]cell, 0, n), make([]holder, len(p)), 0
	for i := range p {
		holders[i] = p[i].holder
		if i == 0 || compareBoxes(p[i].lo, p[i].hi, p[i-1].lo, p[i-1].hi) != 0 {
			out = append(out, cell{lo: p[i].lo, hi: p[i].hi})
			first = i
		}
		out[len(out)-1].holders = holders[first : i+1 : i+1]
	}
	for i := range out {
		variants(out[i].holders)
	}
	return out
}

// variants numbers the different axes of a cell's holders.
func variants(h []holder) {
	n := 0
	for i := range h {
		h[i].variant = -1
		for j := range h[:i] {
			if sameAxes(h[i].axes, h[j].axes) {
				h[i].variant = h[j].variant
				break
			}
		}
		if h[i].variant < 0 {
			h[i].variant = n
			n++
		}
	}
}

func sameAxes(a, b []axis) bool {
	for d := range a {
		if &a[d][0] != &b[d][0] && !slices.Equal(a[d], b[d]) {
			return false
		}
	}
	return true
}

// apply takes placements of a source tensor into the destination's index space.
func (l *link) apply(p []placement, shape, view []int64) ([]placement, error) {
	switch l.how {
	case insert:
		for i := range p {
			p[i].lo, p[i].hi = append([]int64{l.index}, p[i].lo...), append([]int64{l.index + 1}, p[i].hi...)
			p[i].axes = append([]axis{{{Extent: 1}}}, p[i].axes...)
		}
	case pick:
		p = window(p, l.index)
		for i := range p {
			p[i].bias += p[i].axes[0].at(l.index)
			p[i].lo, p[i].hi, p[i].axes = p[i].lo[1:], p[i].hi[1:], p[i].axes[1:]
		}
	case reshape:
		return reshapeAll(p, shape, view)
	}
	return p, nil
}

// window leaves what has index i in the first dimension, and only that of it.
func window(p []placement, i int64) []placement {
	out := p[:0]
	for _, x := range p {
		if x.lo[0] <= i && i < x.hi[0] {
			x.lo, x.hi = append([]int64{i}, x.lo[1:]...), append([]int64{i + 1}, x.hi[1:]...)
			out = append(out, x)
		}
	}
	return out
}

// overlaps finds all pairs of boxes that meet, by destination, then by the box. Sources are indexed in the dimension in which they have
// most cuts: sorted by lower bound, with the greatest upper bound so far, so that a search begins where the first may reach.
type overlaps struct {
	src   []cell
	dim   int
	order []int32
	reach []int64
}

func newOverlaps(src []cell, dims int) *overlaps {
	o := &overlaps{src: src, order: make([]int32, len(src)), reach: make([]int64, len(src))}
	most := 0
	cuts := make([]int64, len(src))
	for d := range dims {
		for i := range src {
			cuts[i] = src[i].lo[d]
		}
		slices.Sort(cuts)
		if n := len(slices.Compact(cuts)); n > most {
			most, o.dim = n, d
		}
	}
	for i := range o.order {
		o.order[i] = int32(i)
	}
	if dims == 0 {
		return o
	}
	slices.SortStableFunc(o.order, func(a, b int32) int { return cmp.Compare(src[a].lo[o.dim], src[b].lo[o.dim]) })
	for k, i := range o.order {
		o.reach[k] = src[i].hi[o.dim]
		if k > 0 {
			o.reach[k] = max(o.reach[k], o.reach[k-1])
		}
	}
	return o
}

// each calls f for the sources that meet the box [lo, hi).
func (o *overlaps) each(lo, hi []int64, f func(src int32)) {
	if len(lo) == 0 {
		for _, i := range o.order {
			f(i)
		}
		return
	}
	k, _ := slices.BinarySearchFunc(o.reach, lo[o.dim], func(r, x int64) int {
		if r <= x {
			return -1
		}
		return 1
	})
	for ; k < len(o.order); k++ {
		s := &o.src[o.order[k]]
		if s.lo[o.dim] >= hi[o.dim] {
			return
		}
		if meets(s.lo, s.hi, lo, hi) {
			f(o.order[k])
		}
	}
}

func meets(alo, ahi, blo, bhi []int64) bool {
	for d := range alo {
		if alo[d] >= bhi[d] || blo[d] >= ahi[d] {
			return false
		}
	}
	return true
}

func intersect(alo, ahi, blo, bhi []int64) (lo, hi []int64) {
	both := make([]int64, 2*len(alo))
	lo, hi = both[:len(alo):len(alo)], both[len(alo):]
	for d := range alo {
		lo[d], hi[d] = max(alo[d], blo[d]), min(ahi[d], bhi[d])
	}
	return lo, hi
}

func boxVolume(lo, hi []int64) int64 {
	n := int64(1)
	for d := range lo {
		n *= hi[d] - lo[d]
	}
	return n
}

// disjoint says that no element lies in two source cells.
func (o *overlaps) disjoint() bool {
	for i := range o.src {
		alone := true
		o.each(o.src[i].lo, o.src[i].hi, func(j int32) { alone = alone && int(j) == i })
		if !alone {
			return false
		}
	}
	return true
}

// cover fills the pairs. It returns the boxes that no source has, with their cells of the destination.
func (c *class) cover() (gaps []gap) {
	dims := 0
	if len(c.dst) > 0 {
		dims = len(c.dst[0].lo)
	}
	o := newOverlaps(c.src, dims)
	apart := o.disjoint()
	c.byDst = make([]int32, 1, len(c.dst)+1)
	for d := range c.dst {
		t := &c.dst[d]
		from := len(c.pairs)
		rest := boxVolume(t.lo, t.hi)
		left := []box{{t.lo, t.hi}}
		o.each(t.lo, t.hi, func(s int32) {
			if apart {
				lo, hi := intersect(c.src[s].lo, c.src[s].hi, t.lo, t.hi)
				c.pairs = append(c.pairs, pair{src: s, dst: int32(d), lo: lo, hi: hi})
				rest -= boxVolume(lo, hi)
				return
			}
			left = c.take(s, int32(d), left)
		})
		if !apart {
			gaps = addGaps(gaps, d, left)
		} else if rest > 0 { // seldom: subtract to find where
			for _, p := range c.pairs[from:] {
				left = subtract(left, p.lo, p.hi)
			}
			gaps = addGaps(gaps, d, left)
		}
		slices.SortFunc(c.pairs[from:], func(a, b pair) int { return compareBoxes(a.lo, a.hi, b.lo, b.hi) })
		c.byDst = append(c.byDst, int32(len(c.pairs)))
	}
	return gaps
}

type box struct{ lo, hi []int64 }

// gap is a box of a destination cell that no source has.
type gap struct {
	dst int
	box
}

func addGaps(gaps []gap, dst int, left []box) []gap {
	for _, b := range left {
		gaps = append(gaps, gap{dst, b})
	}
	return gaps
}

// take makes pairs of what source cell s has of the boxes that are left, and returns what is left then.
func (c *class) take(s, d int32, left []box) []box {
	from := &c.src[s]
	for _, b := range left {
		if meets(from.lo, from.hi, b.lo, b.hi) {
			lo, hi := intersect(from.lo, from.hi, b.lo, b.hi)
			c.pairs = append(c.pairs, pair{src: s, dst: d, lo: lo, hi: hi})
		}
	}
	return subtract(left, from.lo, from.hi)
}

// subtract cuts [lo, hi) out of disjoint boxes.
func subtract(boxes []box, lo, hi []int64) []box {
	var out []box
	for _, b := range boxes {
		if !meets(b.lo, b.hi, lo, hi) {
			out = append(out, b)
			continue
		}
		rest := box{slices.Clone(b.lo), slices.Clone(b.hi)}
		for d := range lo {
			if rest.lo[d] < lo[d] {
				cut := box{slices.Clone(rest.lo), slices.Clone(rest.hi)}
				cut.hi[d] = lo[d]
				out, rest.lo[d] = append(out, cut), lo[d]
			}
			if rest.hi[d] > hi[d] {
				cut := box{slices.Clone(rest.lo), slices.Clone(rest.hi)}
				cut.lo[d] = hi[d]
				out, rest.hi[d] = append(out, cut), hi[d]
			}
		}
	}
	return out
}
