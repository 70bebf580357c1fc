package layout

// maxFold keeps the folded index of any page within 32 bits.
const maxFold = (1 << 32) / MaxPages

// flow is what one source rank writes to one destination rank of one range of heads with one pair of strides. Its lanes are the
// layers and planes for which this is so.
type flow struct {
	src, dst int // numbers of the ranks, over all members
	group    int
	lanes    int // how many share it

	// The source rank is number of so many that hold the heads; shift is the index of the destination rank.
	replicas, number, shift int

	// The index of a page is multiplied by fold, its stride divided: so that a unit is the number of its page plus that within
	// its page, and all units have the same offset. 1: a page has one unit, or its units have entries of their own.
	srcFold, dstFold int

	entries []Entry // one per unit of a period; a single one stands for all units
}

// Entry is the writes of one unit in a pattern that repeats: Len bytes, Dims[0].N times Dims[1].N of them.
type Entry struct {
	Len            int64
	SrcOff, DstOff int64 // of the first, from the page's beginning
	Dims           [2]Dim
}

// Dim is a dimension of a box that one write cannot cover, N times a step on each side.
type Dim struct {
	N        int
	Src, Dst int64 // bytes
}

// Repeat is the number of writes per unit.
func (e *Entry) Repeat() int { return e.Dims[0].N * e.Dims[1].N }

// at is the offsets of one write of the entry.
func (e *Entry) at(rep int) (src, dst int64) {
	i, j := int64(rep%e.Dims[0].N), int64(rep/e.Dims[0].N)
	return e.SrcOff + i*e.Dims[0].Src + j*e.Dims[1].Src, e.DstOff + i*e.Dims[0].Dst + j*e.Dims[1].Dst
}

// newEntry merges what is contiguous on both sides.
func newEntry(elem int64, tokens, heads Dim) Entry {
	e := Entry{Len: elem, Dims: [2]Dim{tokens, heads}}
	for range e.Dims { // the second time, what the other dimension has made contiguous
		for i, d := range e.Dims {
			switch {
			case d.N == 1:
				e.Dims[i] = Dim{N: 1}
			case d.Src == e.Len && d.Dst == e.Len:
				e.Len *= int64(d.N)
				e.Dims[i] = Dim{N: 1}
			}
		}
	}
	return e
}

// box is the heads that a flow moves, by the strides of its two views.
type box struct {
	heads            int
	srcHead, dstHead int // first of them, within the rank
	src, dst         Strides
}

// fill makes the entries of f.
func (f *flow) fill(g Group, gr *grid, b *box) {
	f.srcFold, f.dstFold = 1, 1
	src, okSrc := b.src.fold(gr, gr.srcPage)
	dst, okDst := b.dst.fold(gr, gr.dstPage)
	cells := gr.cells
	if okSrc && okDst {
		f.srcFold, f.dstFold = src, dst
		cells = cells[:1]
	}
	for _, c := range cells {
		e := newEntry(g.HeadBytes(), Dim{c.tokens, b.src.Token, b.dst.Token}, Dim{b.heads, b.src.Head, b.dst.Head})
		e.SrcOff = int64(b.srcHead)*b.src.Head + int64(c.src.off)*b.src.Token
		e.DstOff = int64(b.dstHead)*b.dst.Head + int64(c.dst.off)*b.dst.Token
		f.entries = append(f.entries, e)
	}
}

// fold is by how much a page of so many tokens is to be folded, if the units of gr are equal and lie at multiples of a part of
// the stride.
func (s Strides) fold(gr *grid, page int) (int, bool) {
	unit := gr.cells[0].tokens
	step := int64(unit) * s.Token
	switch {
	case !gr.uniform:
		return 1, len(gr.cells) == 1
	case page == unit:
		return 1, true
	case s.Page%step != 0 || s.Page/step > maxFold:
		return 1, false
	}
	return int(s.Page / step), true
}

// turn is the residue, modulo replicas, of the units that f writes.
func (f *flow) turn(seq uint64) int {
	r := uint64(f.replicas)
	return int((uint64(f.number) + 2*r - uint64(f.shift)%r - seq%r) % r)
}

// align is the first unit at or after from of which f has the given entry, and the step to the next. It reports false when there
// is none.
func (f *flow) align(from, entry, turn int) (unit, step int, ok bool) {
	n, r := len(f.entries), f.replicas
	unit = from + (entry-from%n+n)%n
	for range r {
		if unit%r == turn {
			return unit, lcm(n, r), true
		}
		unit += n
	}
	return 0, 0, false
}

// count is the writes and bytes of one lane for units [from, to).
func (f *flow) count(from, to int, turn int) (writes, bytes uint64) {
	for i := range f.entries {
		unit, step, ok := f.align(from, i, turn)
		if !ok || unit >= to {
			continue
		}
		n := uint64((to-unit+step-1)/step) * uint64(f.entries[i].Repeat())
		writes += n
		bytes += n * uint64(f.entries[i].Len)
	}
	return writes, bytes
}
