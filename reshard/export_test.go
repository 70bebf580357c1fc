package reshard

import "io"

// ParseSmallLayout is ParseLayout with a limit that keeps fuzzing fast.
func ParseSmallLayout(r io.Reader) (*Layout, []Rule, error) { return parseLayout(r, 1<<12) }

// Loads is the part of Stats that needs no lowering.
func (p *Plan) Loads() Stats { return p.loads() }

// GridBytes is the bytes of all pieces of a grid.
func GridBytes(l *Layout, grid int) (n int64) {
	g := &l.Grids[grid]
	shape, size := l.stored(g.Tensors[0], g.Codec, g.Scales)
	lo, hi := make([]int64, len(shape)), make([]int64, len(shape))
	for c := range g.Mesh.cells() {
		g.box(c, shape, lo, hi)
		n += boxVolume(lo, hi) * size
	}
	return n * int64(len(g.Tensors))
}
