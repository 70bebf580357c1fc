package reshard

import "fmt"

// axis says where the indices of one dimension lie, relative to index 0: digits of the index, outermost first, each with its stride. One
// digit is a plain dimension; its extent is then of no interest.
type axis []Digit

// at is the byte offset of index x.
func (a axis) at(x int64) (off int64) {
	for k := len(a) - 1; k > 0; k-- {
		off += x % a[k].Extent * a[k].Stride
		x /= a[k].Extent
	}
	return off + x*a[0].Stride
}

// span is the least and greatest offset of the indices [lo, hi), which are not none.
func (a axis) span(lo, hi int64) (least, most int64) {
	if len(a) == 1 {
		least, most = a.at(lo), a.at(hi-1)
		return min(least, most), max(least, most)
	}
	for i, s := range split(lo, hi, a, a) {
		l, m := s.a, s.a
		for k, e := range s.extent {
			if d := (e - 1) * s.sa[k]; d < 0 {
				l += d
			} else {
				m += d
			}
		}
		if i == 0 {
			least, most = l, m
		}
		least, most = min(least, l), max(most, m)
	}
	return least, most
}

// group assigns digits to the dimensions of a shape: each takes digits until they hold its extent. Only the outermost digit of a
// dimension may be ragged, that is hold more than the dimension has.
func group(shape []int64, digits []Digit) ([]axis, error) {
	axes, next := make([]axis, len(shape)), 0
	for d, n := range shape {
		first, prod := next, int64(1)
		for next < len(digits) && (next == first || prod < n) {
			if e := digits[next].Extent; e < 0 || e > 0 && prod > maxElements/e {
				return nil, fmt.Errorf("digit %d has extent %d", next, e)
			}
			prod *= digits[next].Extent
			next++
		}
		for d == len(shape)-1 && next < len(digits) && digits[next].Extent == 1 {
			next++
		}
		if first == next || prod < n {
			return nil, fmt.Errorf("the digits hold %d of the %d indices of dimension %d", prod, n, d)
		}
		if outer := digits[first].Extent; outer > 0 && prod/outer*(outer-1) >= max(n, 1) {
			return nil, fmt.Errorf("the digits of dimension %d hold %d indices, it has %d: only the outermost may be ragged", d, prod, n)
		}
		axes[d] = axis(digits[first:next])
	}
	if next != len(digits) {
		return nil, fmt.Errorf("%d digits are left over after the last dimension", len(digits)-next)
	}
	return axes, nil
}

// maxElements bounds products of extents, so that byte offsets fit an int64.
const maxElements = int64(1) << 56

// segment is a part of an interval of indices on which two axes are affine: nested digits with a stride in each.
type segment struct {
	lo, hi int64 // indices
	a, b   int64 // offsets of lo
	extent []int64
	sa, sb []int64
}

// split cuts [lo, hi) into the fewest segments that follow from the digits of both axes, in the order of the indices.
func split(lo, hi int64, a, b axis) []segment {
	if len(a) == 1 && len(b) == 1 {
		return []segment{{lo: lo, hi: hi, a: a[0].Stride * lo, b: b[0].Stride * lo, extent: []int64{hi - lo}, sa: []int64{a[0].Stride}, sb: []int64{b[0].Stride}}}
	}
	inner := radices(a, b)
	var out []segment
	if inner == nil {
		for x := lo; x < hi; x++ {
			out = append(out, affine(x, x+1, []int64{1}, a, b))
		}
		return out
	}
	var cut func(lo, hi int64, level int)
	cut = func(lo, hi int64, level int) {
		if lo >= hi {
			return
		}
		p := inner[level]
		up, down := (lo+p-1)/p*p, hi/p*p
		if up > down { // inside one value of this digit
			cut(lo, hi, level+1)
			return
		}
		cut(lo, up, level+1)
		if up < down {
			out = append(out, affine(up, down, inner[level:], a, b))
		}
		cut(down, hi, level+1)
	}
	cut(lo, hi, 0)
	return out
}

// radices are the sizes of one step of each digit of a common refinement of two axes, outermost first; the last is 1. Digits that have
// none, as 3 x 4 and 2 x 6, give nil.
func radices(a, b axis) []int64 {
	inner := []int64{1}
	na, nb := int64(1), int64(1)
	ka, kb := len(a)-1, len(b)-1
	for ka > 0 || kb > 0 {
		if ka > 0 && (kb == 0 || na*a[ka].Extent <= nb*b[kb].Extent) {
			na *= a[ka].Extent
			ka--
			inner = append(inner, na)
		} else {
			nb *= b[kb].Extent
			kb--
			inner = append(inner, nb)
		}
	}
	out := make([]int64, 0, len(inner))
	for k := len(inner) - 1; k >= 0; k-- {
		if n := len(out); n > 0 && out[n-1] == inner[k] {
			continue
		} else if n > 0 && out[n-1]%inner[k] != 0 {
			return nil
		}
		out = append(out, inner[k])
	}
	return out
}

// affine is the segment [lo, hi), which is aligned to inner[0].
func affine(lo, hi int64, inner []int64, a, b axis) segment {
	s := segment{lo: lo, hi: hi, a: a.at(lo), b: b.at(lo)}
	n := (hi - lo) / inner[0]
	for k, p := range inner {
		if k > 0 {
			n = inner[k-1] / p
		}
		if n > 1 || k == len(inner)-1 && len(s.extent) == 0 {
			s.extent = append(s.extent, n)
			s.sa = append(s.sa, a.at(lo+p*min(n-1, 1))-s.a)
			s.sb = append(s.sb, b.at(lo+p*min(n-1, 1))-s.b)
		}
	}
	return s
}
