package reshard

import (
	"fmt"
	"slices"
	"strings"
)

// place finds, for each holder of values, where on the same rank their scales go, and checks that blocks are whole.
func (c *class) place(scales []placement, p *Plan, f *faults) {
	name, shape := p.dst.Tensors[c.link.dst].Name, p.dst.Tensors[c.link.dst].Shape
	taken := make([]int64, len(scales)) // blocks of values that are with them
	refused := false
	for i := range c.dst {
		d := &c.dst[i]
		lo, hi, ok := c.blockBox(d.lo, d.hi, shape)
		if !ok && !refused {
			refused = c.refuse(p, f)
		}
		if !ok {
			if !refused {
				f.layout.add("%s %s: its border cuts a block of %dx%d", name, boxText(d.lo, d.hi, shape), c.codec.Block[0], c.codec.Block[1])
			}
			continue
		}
		for k := range d.holders {
			h := &d.holders[k]
			for s := range scales {
				x := &scales[s]
				if x.rank == h.rank && inside(lo, hi, x.lo, x.hi) && taken[s]+boxVolume(lo, hi) <= boxVolume(x.lo, x.hi) {
					h.scale = s
					taken[s] += boxVolume(lo, hi)
					break
				}
			}
			if h.scale < 0 {
				f.layout.add("%s %s: rank %d has the values and no place for their scales; add a grid or a fragment with Scales", name, boxText(d.lo, d.hi, shape), h.rank)
			}
		}
	}
	for s := range scales {
		if slices.ContainsFunc(scales[s].axes, func(a axis) bool { return len(a) > 1 }) {
			f.layout.add("%s: rank %d: scales in digits are not planned; give them strides", name, scales[s].rank)
		}
		c.scales = append(c.scales, scales[s].holder)
		if n := boxVolume(scales[s].lo, scales[s].hi); taken[s] != n {
			f.layout.add("%s: rank %d has a place for the scales of blocks %s, and the values of %d of these %d blocks", name, scales[s].rank,
				boxIntervals(scales[s].lo, scales[s].hi, shape), taken[s], n)
		}
	}
	variants(c.scales)
}

func inside(alo, ahi, blo, bhi []int64) bool {
	for d := range alo {
		if alo[d] < blo[d] || ahi[d] > bhi[d] {
			return false
		}
	}
	return true
}

// blockBox is the box in blocks of a box of values, and whether it has only whole ones.
func (c *class) blockBox(lo, hi, shape []int64) (blo, bhi []int64, whole bool) {
	blo, bhi, whole = append(blo, lo...), append(bhi, hi...), true
	for i, d := 0, len(lo)-2; i < 2; i, d = i+1, d+1 {
		b := int64(c.codec.Block[i])
		whole = whole && lo[d]%b == 0 && (hi[d]%b == 0 || hi[d] == shape[d])
		blo[d], bhi[d] = lo[d]/b, ceil(hi[d], b)
	}
	return blo, bhi, whole
}

// refuse explains cuts through blocks by the grids that make them, with the number of shards that would not; false if none does.
func (c *class) refuse(p *Plan, f *faults) (found bool) {
	way := &p.dst.ways[p.dst.way[c.link.dst]]
	for i := range way.units {
		g := way.units[i].grid
		if g == nil || way.units[i].scales {
			continue
		}
		for k, unit := range [...]string{"row", "column"} {
			d := len(way.shape) - 2 + k
			n, block, shards := way.shape[d], int64(c.codec.Block[k]), int64(1)
			for m, x := range g.Place {
				if x.Kind != "replicate" && x.Dim == d {
					shards *= int64(g.Mesh.Shape[m])
				}
			}
			size := ceil(n, shards)
			if size%block == 0 || size == n {
				continue
			}
			fits := shards
			for fits > 1 && (shards%fits != 0 || ceil(n, fits)%block != 0) {
				fits--
			}
			f.refuse(genericName(p.dst.Tensors[c.link.dst].Name), shards, size, unit, block, fits)
			found = true
		}
	}
	return found
}

// refuse says once for all layers and experts that shards cut blocks.
func (f *faults) refuse(name string, shards, size int64, unit string, block, fits int64) {
	text := fmt.Sprintf("%s: TP%d leaves %d-%s shards, fp8 blocks need multiples of %d; use TP<=%d", name, shards, size, unit, block, fits)
	if !f.said[text] {
		f.said[text] = true
		f.layout.add("%s", text)
	}
}

// genericName has {layer} and {expert} where a name has numbers.
func genericName(name string) string {
	parts := strings.Split(name, ".")
	for i, word := range parts {
		if _, number := decimal(word); number && i > 0 {
			switch parts[i-1] {
			case "experts":
				parts[i] = expertMark
			default:
				parts[i] = layerMark
			}
		}
	}
	return strings.Join(parts, ".")
}
