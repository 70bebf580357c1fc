package models

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hawser-project/hawser/reshard"
)

// axis is a dimension of a grid's mesh: size ranks that are stride apart.
type axis struct {
	name         string
	size, stride int
	place        reshard.Placement
}

// describe adds a tensor that lies at an offset of the buffers of a stage to the layout. Strides are nil where its pieces have no gaps;
// outer is the distance of its experts, if it has any.
func (g *generator) describe(m *member, stage int, at int64, strides []int64, outer int64, scales bool) {
	base := 0
	if pp := g.spec.dim("pp"); pp >= 0 {
		base = stage * g.stride(pp)
	}
	if !g.spec.Split || m.Expert == nil {
		i := g.tensor(m.name, m.shape, g.dtype(m.tensor))
		if m.pad > 0 {
			g.padded(m, i, base, at)
			return
		}
		g.grid(m, i, base, g.axes(m, 0), at, strides, scales)
		return
	}
	prefix, suffix, _ := strings.Cut(m.Name, "{expert}")
	prefix = strings.ReplaceAll(prefix, "{layer}", fmt.Sprint(m.layer))
	axes := g.axes(m, 1)
	for first, owner := range g.owners(m) {
		for e := owner.lo; e < owner.hi; e++ {
			i := g.tensor(fmt.Sprint(prefix, e, suffix), m.shape[1:], g.dtype(m.tensor))
			g.grid(m, i, base+first, axes, at+(e-owner.lo)*outer, nil, scales)
		}
	}
}

// axes is the mesh of a tensor of which the first dimensions, skip of them, are not cut in this grid: copies first, then the cuts in order.
func (g *generator) axes(m *member, skip int) []axis {
	var list []axis
	for i, d := range g.spec.Dims {
		used := d.Name == "pp" || slices.ContainsFunc(m.cuts, func(c step) bool { return c.mesh == i })
		if !used {
			list = append(list, axis{d.Name, d.Size, g.stride(i), reshard.Placement{Kind: "replicate"}})
		}
	}
	for _, c := range m.cuts {
		if c.copies > 1 {
			list = append(list, axis{g.spec.Dims[c.mesh].Name + " copies", c.copies, g.stride(c.mesh), reshard.Placement{Kind: "replicate"}})
		}
	}
	for _, c := range m.cuts {
		if c.dim >= skip {
			p := reshard.Placement{Kind: "shard", Dim: c.dim - skip}
			list = append(list, axis{g.spec.Dims[c.mesh].Name, c.size, g.stride(c.mesh) * c.copies, p})
		}
	}
	if len(list) == 0 {
		list = []axis{{"rank", 1, 1, reshard.Placement{Kind: "replicate"}}}
	}
	return list
}

// stride is the distance of ranks that are neighbours in a dimension of the mesh.
func (g *generator) stride(dim int) int {
	n := 1
	for _, d := range g.spec.Dims[dim+1:] {
		n *= d.Size
	}
	return n
}

type interval struct{ lo, hi int64 }

// owners yields, for each combination of ranks over which the experts of a tensor are cut, the first of its ranks, from 0, and the experts
// that they have.
func (g *generator) owners(m *member) func(yield func(int, interval) bool) {
	return func(yield func(int, interval) bool) {
		var walk func(cuts []step, first int, lo, hi int64) bool
		walk = func(cuts []step, first int, lo, hi int64) bool {
			for len(cuts) > 0 && cuts[0].dim != 0 {
				cuts = cuts[1:]
			}
			if len(cuts) == 0 {
				return yield(first, interval{lo, hi})
			}
			c := cuts[0]
			for i := range c.size {
				l, h := piece(lo, hi, i, c.size)
				if !walk(cuts[1:], first+i*g.stride(c.mesh), l, h) {
					return false
				}
			}
			return true
		}
		walk(m.cuts, 0, 0, m.shape[0])
	}
}

// tensor is the index of a tensor of the layout, which is new unless its values have been described already.
func (g *generator) tensor(name string, shape []int64, dtype reshard.DType) int {
	i, ok := g.index[name]
	if !ok {
		i = len(g.layout.Tensors)
		g.index[name] = i
		g.layout.Tensors = append(g.layout.Tensors, reshard.Tensor{Name: name, Shape: shape, DType: dtype})
	}
	return i
}

// grid adds a tensor to the grid that cuts such tensors so.
func (g *generator) grid(m *member, tensor, base int, axes []axis, at int64, strides []int64, scales bool) {
	t := &g.layout.Tensors[tensor]
	key := fmt.Sprint(t.Shape, t.DType, base, axes, strides, scales)
	i, ok := g.grids[key]
	if !ok {
		i = len(g.layout.Grids)
		g.grids[key] = i
		grid := reshard.Grid{Strides: strides, Scales: scales, Mesh: reshard.Mesh{Ranks: ranksOf(base, axes)}}
		if g.quantized(m.tensor) {
			grid.Codec = g.spec.Codec
		}
		for _, a := range axes {
			grid.Mesh.Dims = append(grid.Mesh.Dims, a.name)
			grid.Mesh.Shape = append(grid.Mesh.Shape, a.size)
			grid.Place = append(grid.Place, a.place)
		}
		g.layout.Grids = append(g.layout.Grids, grid)
	}
	grid := &g.layout.Grids[i]
	grid.Tensors = append(grid.Tensors, tensor)
	grid.Offsets = append(grid.Offsets, at)
}

// ranksOf lists the ranks of a mesh, row major.
func ranksOf(base int, axes []axis) []int {
	ranks := []int{base}
	for _, a := range axes {
		next := make([]int, 0, len(ranks)*a.size)
		for _, r := range ranks {
			for i := range a.size {
				next = append(next, r+i*a.stride)
			}
		}
		ranks = next
	}
	return ranks
}

// padded adds a vocabulary with padded rows: every rank has as many, the last ones are pads.
func (g *generator) padded(m *member, tensor, base int, at int64) {
	axes := g.axes(m, 0)
	row := product(m.shape[1:]) * g.dtype(m.tensor).Size()
	for cell, rank := range ranksOf(base, axes) {
		n := 1 // pieces of rows, and which one this is: the cuts are the last dimensions of the mesh
		for _, c := range m.cuts {
			n *= c.size
		}
		lo := min(m.shape[0], int64(cell%n)*m.local[0])
		hi := min(m.shape[0], lo+m.local[0])
		f := reshard.Fragment{Tensor: tensor, Rank: rank, Offset: at, Lo: make([]int64, len(m.shape)), Hi: slices.Clone(m.shape)}
		f.Lo[0], f.Hi[0] = lo, hi
		g.layout.Fragments = append(g.layout.Fragments, f)
		if short := m.local[0] - (hi - lo); short > 0 && g.pads {
			g.layout.Pads = append(g.layout.Pads, reshard.Range{Rank: rank, Offset: at + (hi-lo)*row, Len: short * row})
		}
	}
}
