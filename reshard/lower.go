package reshard

import (
	"cmp"
	"slices"
)

// mold is what a pair of a class becomes for holders of one variant: pieces that fill staging, and the ranges of the destination that
// they end in. Places are relative to index 0 of the tensor on either side: holders with equal axes share a mold.
type mold struct {
	pieces []moldPiece
	blocks int // entries in the table of maxima
}

// moldPiece is a box that one piece stages. Lists are by loop, in the order of the tensor's dimensions.
type moldPiece struct {
	lo, hi  []int64
	extent  []int64
	src     []int64 // strides in the source
	from    int64   // source: of the first element
	values  lay
	direct  bool // the source has the bytes of each span in one piece, as they are
	maxima  int  // first entry in the table of the pair
	rows    int  // of blocks
	cols    int
	scaleLo [2]int
	scaleHi [2]int
	scales  lay
}

// lay is how a box is packed in staging, in the order of the destination, and where its ranges go.
type lay struct {
	stride []int64
	size   int64
	spans  []span
}

// span is a range of the destination, relative to index 0, and where it is in the staging of its piece or, direct, in the source.
type span struct {
	to, n  int64
	at     int64
	source int64 // relative to index 0
}

// mold of a pair for two of its holders.
func (p *Plan) mold(c *class, x *pair, from, to *holder) *mold {
	m := &mold{}
	var scale *holder
	if to.scale >= 0 {
		scale = &c.scales[to.scale]
	}
	for _, b := range p.chunks(c, x, to) {
		m.box(c, b, from, to, scale)
	}
	if c.codec.Kind == fp8Kind {
		m.tables(c, x)
	}
	return m
}

// tables gives each piece its place in the table of the pair: matrix by matrix, row by row.
func (m *mold) tables(c *class, x *pair) {
	n := len(x.lo) - 2
	r, s := int64(c.codec.Block[0]), int64(c.codec.Block[1])
	rows, cols := ceil(x.hi[n], r)-x.lo[n]/r, ceil(x.hi[n+1], s)-x.lo[n+1]/s
	matrices := boxVolume(x.lo[:n], x.hi[:n])
	m.blocks = int(matrices * rows * cols)
	for i := range m.pieces {
		q := &m.pieces[i]
		at := int64(0)
		for d := range n {
			at = at*(x.hi[d]-x.lo[d]) + q.lo[d] - x.lo[d]
		}
		q.maxima = int((at*rows+q.lo[n]/r-x.lo[n]/r)*cols + q.lo[n+1]/s - x.lo[n+1]/s)
	}
}

// chunks cuts a region into boxes of at most MaxWrite bytes, and at every gap in the destination that follows a long range: then each box is
// one range. Boxes with blocks are cut between blocks only.
func (p *Plan) chunks(c *class, x *pair, to *holder) []box {
	out := []box{{x.lo, x.hi}}
	size := c.to.Size()
	for d := 0; d < len(x.lo); d++ {
		inner := size
		for k := d + 1; k < len(x.lo); k++ {
			inner *= x.hi[k] - x.lo[k]
		}
		align := int64(1)
		if i := d - (len(x.lo) - 2); c.codec.Kind == fp8Kind && i >= 0 {
			align = int64(c.codec.Block[i])
		}
		step := x.hi[d] - x.lo[d]
		if gap := len(to.axes[d]) == 1 && to.axes[d][0].Stride > inner; gap && inner >= p.opts.SmallTensor {
			step = 1
		}
		if step*inner > p.opts.MaxWrite {
			step = max(p.opts.MaxWrite/inner, 1)
		}
		several := align > 1 && x.lo[d]/align != (x.hi[d]-1)/align // rows or columns of blocks
		if step < x.hi[d]-x.lo[d] {
			step = ceil(step, align) * align
			out = cutBoxes(out, d, step)
			several = false // or step is more than one row of blocks
		}
		if several || step > align || step*inner <= p.opts.MaxWrite && step*inner < p.opts.SmallTensor {
			return out // what is inside has no long ranges with gaps, or several rows of blocks, which are not cut inside
		}
	}
	return out
}

// cutBoxes cuts boxes in a dimension at multiples of step.
func cutBoxes(boxes []box, d int, step int64) []box {
	var out []box
	for _, b := range boxes {
		for at := b.lo[d]; at < b.hi[d]; {
			end := min((at/step+1)*step, b.hi[d])
			lo, hi := slices.Clone(b.lo), slices.Clone(b.hi)
			lo[d], hi[d] = at, end
			out = append(out, box{lo, hi})
			at = end
		}
	}
	return out
}

// loop is one dimension of a piece: a digit of the index.
type loop struct {
	n        int64
	src, dst int64 // strides
}

// box appends the pieces of a box: one, unless the digits of either side cut it.
func (m *mold) box(c *class, b box, from, to *holder, scale *holder) {
	parts := splitBox(b.lo, b.hi, from.axes, to.axes)
	if c.codec.Kind == fp8Kind {
		c.flat(parts, from, to)
	}
	eachPart(parts, func(loops []loop, src, dst int64, lo, hi []int64) {
		if len(loops) == 0 { // a scalar
			loops = []loop{{1, c.from.Size(), c.to.Size()}}
		}
		q := moldPiece{lo: slices.Clone(lo), hi: slices.Clone(hi), from: src}
		q.values, q.direct = pack(loops, c.to.Size(), dst, src)
		q.direct = q.direct && c.codec.Kind == rawKind
		for _, l := range loops {
			q.extent, q.src = append(q.extent, l.n), append(q.src, l.src)
		}
		if c.codec.Kind == fp8Kind {
			q.quantized(c, scale)
		}
		m.pieces = append(m.pieces, q)
	})
}

func splitBox(lo, hi []int64, a, b []axis) [][]segment {
	parts := make([][]segment, len(lo))
	for d := range parts {
		parts[d] = split(lo[d], hi[d], a[d], b[d])
	}
	return parts
}

// eachLoops calls f for the parts of a box on which both sides are affine.
func eachLoops(lo, hi []int64, a, b []axis, f func(loops []loop, a, b int64, lo, hi []int64)) {
	eachPart(splitBox(lo, hi, a, b), f)
}

// eachPart calls f for each choice of one segment in every dimension: its loops, the offsets of its first index, its box. f keeps none of
// the slices.
func eachPart(parts [][]segment, f func(loops []loop, a, b int64, lo, hi []int64)) {
	pick := make([]int, len(parts))
	lo, hi := make([]int64, len(parts)), make([]int64, len(parts))
	var loops []loop
	for {
		loops = loops[:0]
		a, b := int64(0), int64(0)
		for d := range parts {
			s := &parts[d][pick[d]]
			lo[d], hi[d] = s.lo, s.hi
			a, b = a+s.a, b+s.b
			for k, n := range s.extent {
				loops = append(loops, loop{n, s.sa[k], s.sb[k]})
			}
		}
		f(loops, a, b, lo, hi)
		d := len(pick) - 1
		for ; d >= 0 && pick[d] == len(parts[d])-1; d-- {
			pick[d] = 0
		}
		if d < 0 {
			return
		}
		pick[d]++
	}
}

// flat leaves one loop in each dimension, as blocks need. Where digits cut rows or columns, it also cuts between blocks and matrices, so that
// the maxima of a piece lie together in the table of the pair.
func (c *class) flat(parts [][]segment, from, to *holder) {
	n := len(parts) - 2
	for d := range parts {
		parts[d] = unnest(parts[d], from.axes[d], to.axes[d])
	}
	if len(parts[n+1]) > 1 {
		parts[n] = cutSegments(parts[n], int64(c.codec.Block[0]))
	}
	if len(parts[n+1]) > 1 || len(parts[n]) > 1 {
		for d := range n {
			parts[d] = cutSegments(parts[d], 1)
		}
	}
}

// unnest cuts segments of several loops into those of the innermost.
func unnest(parts []segment, a, b axis) (out []segment) {
	for _, s := range parts {
		k := len(s.extent) - 1
		for x := s.lo; x < s.hi; x += s.extent[k] {
			out = append(out, segment{lo: x, hi: x + s.extent[k], a: a.at(x), b: b.at(x), extent: s.extent[k:], sa: s.sa[k:], sb: s.sb[k:]})
		}
	}
	return out
}

// cutSegments cuts segments of one loop at multiples of step.
func cutSegments(parts []segment, step int64) (out []segment) {
	for _, s := range parts {
		for x := s.lo; x < s.hi; {
			end := min((x/step+1)*step, s.hi)
			out = append(out, segment{lo: x, hi: end, a: s.a + (x-s.lo)*s.sa[0], b: s.b + (x-s.lo)*s.sb[0], extent: []int64{end - x}, sa: s.sa, sb: s.sb})
			x = end
		}
	}
	return out
}

// pack lays loops out in the order of the destination. whole says that each span is one range in the source too.
func pack(loops []loop, size, off, from int64) (y lay, whole bool) {
	order := make([]int, len(loops))
	for k := range order {
		order[k] = k
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(loops[b].dst, loops[a].dst) })
	y.stride = make([]int64, len(loops))
	y.size = size
	inner, whole := len(order), true // loops from inner on are one range
	for k := len(order) - 1; k >= 0; k-- {
		l := loops[order[k]]
		y.stride[order[k]] = y.size
		if inner == k+1 && (l.dst == y.size || l.n == 1) {
			whole = whole && (l.src == y.size || l.n == 1)
			inner = k
		}
		y.size *= l.n
	}
	n := y.size
	outer := make([]loop, inner)
	staged := make([]int64, inner)
	for k := range outer {
		outer[k], staged[k] = loops[order[k]], y.stride[order[k]]
		n /= outer[k].n
	}
	y.spans = spansOf(outer, staged, off, from, n)
	return y, whole
}

// quantized fills in blocks and scales of a piece.
func (q *moldPiece) quantized(c *class, scale *holder) {
	n := len(q.lo) - 2
	slo, shi := slices.Clone(q.lo), slices.Clone(q.hi)
	loops := make([]loop, 0, len(q.lo))
	var first [2]int64
	for i := range 2 {
		d, e := n+i, int64(c.codec.Block[i])
		first[i] = q.lo[d] / e
		slo[d], shi[d] = ceil(q.lo[d], e), ceil(q.hi[d], e)
		q.scaleLo[i], q.scaleHi[i] = int(slo[d]-first[i]), int(shi[d]-first[i])
	}
	q.rows, q.cols = int(shi[n]-first[0]), int(shi[n+1]-first[1])
	if boxVolume(slo, shi) == 0 {
		q.scaleLo, q.scaleHi = [2]int{}, [2]int{}
		return
	}
	off := int64(0)
	for d := range slo {
		stride := scale.axes[d][0].Stride
		off += stride * slo[d]
		loops = append(loops, loop{n: shi[d] - slo[d], dst: stride})
	}
	q.scales, _ = pack(loops, c.codec.Scale.Size(), off, 0)
}

// spansOf enumerates ranges of n bytes: one for each index of the loops.
func spansOf(loops []loop, staged []int64, to, source, n int64) []span {
	count := int64(1)
	for _, l := range loops {
		count *= l.n
	}
	out := make([]span, 0, count)
	index := make([]int64, len(loops))
	s := span{to: to, n: n, source: source}
	for {
		out = append(out, s)
		k := len(loops) - 1
		for ; k >= 0; k-- {
			s.to += loops[k].dst
			s.source += loops[k].src
			s.at += staged[k]
			if index[k]++; index[k] < loops[k].n {
				break
			}
			s.to -= loops[k].dst * loops[k].n
			s.source -= loops[k].src * loops[k].n
			s.at -= staged[k] * loops[k].n
			index[k] = 0
		}
		if k < 0 {
			return out
		}
	}
}
