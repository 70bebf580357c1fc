package reshard

import (
	"cmp"
	"encoding/binary"
	"slices"
)

// footprint is the bytes that a box takes in a buffer, or a pad: all within [lo, hi).
type footprint struct {
	buffer int
	lo, hi int64
	tensor int // -1: a pad
	place  *placement
	off    int64
	size   int64
}

// Bounds of the search for overlaps.
const (
	maxRuns      = 1 << 22 // ranges of footprints that lie between each other
	maxBoxesEach = 1 << 12 // overlaps that are looked at before the rest of a rank is left
)

// disjoint notes bytes that belong to two tensors, or twice to one. Ranks with the same pieces at the same offsets are looked at once.
func (l *Layout) disjoint(f *Fault) {
	keys := make([][]byte, len(l.Buffers))
	perGrid := make([][]placement, len(l.Grids))
	for i := range l.Grids {
		g := &l.Grids[i]
		if len(g.Tensors) == 0 {
			continue
		}
		shape, size := l.stored(g.Tensors[0], g.Codec, g.Scales)
		perGrid[i] = g.placements(shape, size, 0)
		for k := range perGrid[i] {
			p := &perGrid[i][k]
			keys[p.rank] = binary.AppendUvarint(keys[p.rank], uint64(i))
			for d := range p.lo {
				keys[p.rank] = binary.AppendUvarint(keys[p.rank], uint64(p.hi[d]-p.lo[d]))
			}
		}
	}
	for i := range l.Fragments {
		f := l.Fragments[i]
		r := f.Rank
		f.Rank = 0
		keys[r] = f.key(binary.AppendVarint(binary.AppendUvarint(keys[r], uint64(f.Tensor)), f.Offset))
	}
	for _, p := range l.Pads {
		keys[p.Rank] = appendInts(append(keys[p.Rank], 'p'), []int64{int64(p.Buffer), p.Offset, p.Len})
	}
	seen := map[string]bool{}
	for r := range l.Buffers {
		if k := string(keys[r]); !seen[k] {
			seen[k] = true
			l.disjointOn(r, l.footprints(r, perGrid), f)
		}
	}
}

// stored is the shape in which a tensor, or its scales, lies, and the bytes of an element.
func (l *Layout) stored(tensor int, c Codec, scales bool) (shape []int64, size int64) {
	t := &l.Tensors[tensor]
	if scales {
		return blocks(t.Shape, c), c.scale().Size()
	}
	return t.Shape, t.DType.Size()
}

// footprints of a rank. Tensors that are another name of one that is there take no bytes of their own.
func (l *Layout) footprints(rank int, perGrid [][]placement) (out []footprint) {
	add := func(tensor int, p *placement, off, size int64) {
		if _, alias := l.Aliases[l.Tensors[tensor].Name]; alias {
			return
		}
		x := footprint{buffer: p.buffer, tensor: tensor, place: p, off: off + p.bias, size: size}
		x.lo, x.hi = x.off, x.off+size
		for d, a := range p.axes {
			least, most := a.span(p.lo[d], p.hi[d])
			x.lo, x.hi = x.lo+least, x.hi+most
		}
		out = append(out, x)
	}
	for i, places := range perGrid {
		g := &l.Grids[i]
		for k := range places {
			if places[k].rank != rank {
				continue
			}
			_, size := l.stored(g.Tensors[0], g.Codec, g.Scales)
			for n, t := range g.Tensors {
				add(t, &places[k], g.Offsets[n], size)
			}
		}
	}
	for i := range l.Fragments {
		if x := &l.Fragments[i]; x.Rank == rank {
			shape, size := l.stored(x.Tensor, x.Codec, x.Scales)
			places, _ := x.placements(shape, size, 0) // valid: it was checked
			for k := range places {
				add(x.Tensor, &places[k], x.Offset, size)
			}
		}
	}
	for _, p := range l.Pads {
		if p.Rank == rank && p.Len > 0 {
			out = append(out, footprint{buffer: p.Buffer, lo: p.Offset, hi: p.Offset + p.Len, tensor: -1})
		}
	}
	return out
}

// disjointOn sweeps over the footprints of a rank: those whose hulls meet are compared range by range.
func (l *Layout) disjointOn(rank int, prints []footprint, f *Fault) {
	slices.SortFunc(prints, func(a, b footprint) int {
		return cmp.Or(cmp.Compare(a.buffer, b.buffer), cmp.Compare(a.lo, b.lo), cmp.Compare(a.tensor, b.tensor))
	})
	for i := 0; i < len(prints); {
		n, end := i+1, prints[i].hi
		for n < len(prints) && prints[n].buffer == prints[i].buffer && prints[n].lo < end {
			end = max(end, prints[n].hi)
			n++
		}
		if n > i+1 || !prints[i].dense() {
			l.compare(rank, prints[i:n], f)
		}
		i = n
	}
}

// dense says that a footprint has as many bytes as its hull, or at least that its strides nest, so that no byte is in it twice.
func (x *footprint) dense() bool {
	if x.place == nil {
		return true
	}
	type step struct{ n, stride int64 }
	var steps []step
	for d, a := range x.place.axes {
		if len(a) > 1 {
			for _, g := range a {
				steps = append(steps, step{g.Extent, g.Stride})
			}
			continue
		}
		steps = append(steps, step{x.place.hi[d] - x.place.lo[d], a[0].Stride})
	}
	slices.SortFunc(steps, func(a, b step) int { return cmp.Compare(a.stride, b.stride) })
	reach := x.size
	for _, s := range steps {
		if s.n > 1 && s.stride < reach {
			return false
		}
		if s.n > 1 {
			reach = s.stride * s.n
		}
	}
	return true
}

// piece is one range of a footprint.
type piece struct {
	lo, hi int64
	of     *footprint
}

func (l *Layout) compare(rank int, prints []footprint, f *Fault) {
	var all []piece
	for i := range prints {
		x := &prints[i]
		if x.place == nil {
			all = append(all, piece{x.lo, x.hi, x})
			continue
		}
		eachLoops(x.place.lo, x.place.hi, x.place.axes, x.place.axes, func(loops []loop, _, off int64, _, _ []int64) {
			y, _ := pack(loops, x.size, off+x.off, 0)
			for _, s := range y.spans {
				all = append(all, piece{s.to, s.to + s.n, x})
			}
		})
		if len(all) > maxRuns {
			f.add("%s: rank %d buffer %d: tensors that lie between each other have more than %d ranges; describe them with fewer", l.nameOf(x), rank, x.buffer, maxRuns)
			return
		}
	}
	slices.SortStableFunc(all, func(a, b piece) int { return cmp.Compare(a.lo, b.lo) })
	last, found := 0, 0 // last: the one that reaches farthest
	for i := 1; i < len(all) && found < maxBoxesEach; i++ {
		if a, b := &all[last], &all[i]; b.lo < a.hi {
			found++
			f.add("%s and %s: rank %d buffer %d bytes [%d,%d) belong to both; only aliases may share bytes", l.nameOf(a.of), l.nameOf(b.of), rank, b.of.buffer,
				b.lo, min(a.hi, b.hi))
		}
		if all[i].hi > all[last].hi {
			last = i
		}
	}
}

func (l *Layout) nameOf(x *footprint) string {
	if x.tensor < 0 {
		return "a pad"
	}
	return l.Tensors[x.tensor].Name
}
