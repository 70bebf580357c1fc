package reshard

// OnRank lists what a layout has on a rank, one fragment for each box of a tensor, in the order of grids and then fragments. Boxes that
// are empty are left out. Fragments share memory with the layout and with each other: do not change them.
func (l *Layout) OnRank(rank int) []Fragment {
	var out []Fragment
	for i := range l.Grids {
		g := &l.Grids[i]
		for cell := range g.Mesh.cells() {
			if g.Mesh.rank(cell) == rank && len(g.Tensors) > 0 {
				out = l.onCell(out, g, cell)
			}
		}
	}
	for _, f := range l.Fragments {
		if f.Rank == rank && !empty(f.Lo, f.Hi) {
			out = append(out, f)
		}
	}
	return out
}

// onCell appends the pieces that a cell of a grid's mesh has of the grid's tensors. They differ in tensor and offset only.
func (l *Layout) onCell(out []Fragment, g *Grid, cell int) []Fragment {
	shape := l.Tensors[g.Tensors[0]].Shape
	if g.Scales {
		shape = blocks(shape, g.Codec)
	}
	f := Fragment{Lo: make([]int64, len(shape)), Hi: make([]int64, len(shape)), Rank: g.Mesh.rank(cell), Buffer: g.Buffer, Codec: g.Codec, Scales: g.Scales}
	g.box(cell, shape, f.Lo, f.Hi)
	if empty(f.Lo, f.Hi) {
		return out
	}
	for d, s := range g.Strides {
		f.Digits = append(f.Digits, Digit{Extent: shape[d], Stride: s})
	}
	for i, t := range g.Tensors {
		f.Tensor, f.Offset = t, g.Offsets[i]
		out = append(out, f)
	}
	return out
}

// Blocks is the index space of a tensor's scales: its shape with the last two dimensions in blocks.
func (c Codec) Blocks(shape []int64) []int64 { return blocks(shape, c) }

// Normal is the codec with its defaults filled in.
func (c Codec) Normal() Codec { return c.normal() }

// Each calls visit for every element of a fragment of a tensor, or of its scales, of this index space: its index there and its byte in the
// buffer. It is slow, and right for refined dimensions too.
func (f *Fragment) Each(shape []int64, elem int64, visit func(index []int64, at int64)) error {
	if empty(f.Lo, f.Hi) {
		return nil
	}
	digits := f.Digits
	if digits == nil {
		extent := make([]int64, len(f.Lo))
		for d := range extent {
			extent[d] = f.Hi[d] - f.Lo[d]
		}
		for d, s := range rowMajor(extent, elem) {
			digits = append(digits, Digit{Extent: shape[d], Stride: s})
		}
	}
	axes, err := group(shape, digits)
	if err != nil {
		return err
	}
	x := append([]int64(nil), f.Lo...)
	index := make([]int64, len(shape))
	for {
		at, k, inside := f.Offset, 0, true
		for d, a := range axes {
			index[d] = 0
			for i := range a {
				index[d] = index[d]*a[i].Extent + x[k]
				at += (x[k] - f.Lo[k]) * a[i].Stride
				k++
			}
			inside = inside && index[d] < shape[d] // the outermost digit may be ragged
		}
		if inside {
			visit(index, at)
		}
		d := len(x) - 1
		for ; d >= 0; d-- {
			if x[d]++; x[d] < f.Hi[d] {
				break
			}
			x[d] = f.Lo[d]
		}
		if d < 0 {
			return nil
		}
	}
}
