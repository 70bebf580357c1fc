package models

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/hawser-project/hawser/reshard"
)

type box struct{ lo, hi []int64 }

func (b box) volume() int64 {
	n := int64(1)
	for d := range b.lo {
		n *= b.hi[d] - b.lo[d]
	}
	return n
}

func (b box) meets(o box) bool {
	for d := range b.lo {
		if max(b.lo[d], o.lo[d]) >= min(b.hi[d], o.hi[d]) {
			return false
		}
	}
	return true
}

// boxes lists the box of each cell of a grid's mesh, by the rule that Grid states, one division after the other.
func boxes(g *reshard.Grid, shape []int64) []box {
	if g.Scales {
		shape = slices.Clone(shape)
		for _, d := range []int{len(shape) - 2, len(shape) - 1} {
			shape[d] = (shape[d] + 127) / 128
		}
	}
	list := make([]box, 0, len(g.Mesh.Ranks))
	for cell := range g.Mesh.Ranks {
		b := box{make([]int64, len(shape)), slices.Clone(shape)}
		under := len(g.Mesh.Ranks)
		for i, size := range g.Mesh.Shape {
			under /= size
			if p := g.Place[i]; p.Kind == "shard" {
				n := b.hi[p.Dim] - b.lo[p.Dim]
				chunk := int64(math.Ceil(float64(n) / float64(size)))
				lo := b.lo[p.Dim] + int64(cell/under%size)*chunk
				b.lo[p.Dim], b.hi[p.Dim] = min(lo, b.hi[p.Dim]), min(lo+chunk, b.hi[p.Dim])
			}
		}
		list = append(list, b)
	}
	return list
}

// count is an oracle of a plan: regions and bytes delivered, without splitting or merging.
type count struct {
	regions int64
	ingress map[int]int64 // bytes by destination rank, with scales
}

func counted(src, dst *reshard.Layout) count {
	from := map[string][]int{}
	for i, g := range src.Grids {
		for _, t := range g.Tensors {
			from[src.Tensors[t].Name] = append(from[src.Tensors[t].Name], i)
		}
	}
	c := count{ingress: map[int]int64{}}
	memo := map[string]int64{}
	for j := range dst.Grids {
		g := &dst.Grids[j]
		shape := dst.Tensors[g.Tensors[0]].Shape
		pieces := boxes(g, shape)
		size := dst.Tensors[g.Tensors[0]].DType.Size()
		if g.Scales {
			size = reshard.F32.Size()
		}
		for i, b := range pieces {
			c.ingress[g.Mesh.Ranks[i]] += b.volume() * size * int64(len(g.Tensors))
		}
		if g.Scales {
			continue
		}
		for _, t := range g.Tensors {
			name := dst.Tensors[t].Name
			key := fmt.Sprint(j, from[name])
			n, ok := memo[key]
			if !ok {
				for _, s := range distinct(src, from[name]) {
					for _, d := range pieces {
						if s.meets(d) {
							n++
						}
					}
				}
				memo[key] = n
			}
			c.regions += n
		}
	}
	return c
}

// distinct lists the boxes of a tensor without replicas.
func distinct(l *reshard.Layout, grids []int) []box {
	var list []box
	seen := map[string]bool{}
	for _, i := range grids {
		for _, b := range boxes(&l.Grids[i], l.Tensors[l.Grids[i].Tensors[0]].Shape) {
			if key := fmt.Sprint(b); !seen[key] {
				seen[key] = true
				list = append(list, b)
			}
		}
	}
	return list
}

func TestReferenceCases(t *testing.T) {
	for _, want := range []struct {
		name, model string
		src, dst    int // ranks
		entries     int64
		regions     int64
		ingress     float64 // GB of the rank that gets most
	}{
		{"k2", "", 256, 128, 1_035, 967_680, 45.96},
		{"k2-split", "", 256, 128, 69_975, 855*8*128 + 69_120*4, 45.96},
		{"k2-rows", "", 256, 128, 69_975, 855*8*128 + 69_120*16*4, 45.96},
		{"k2-tp8", "", 256, 128, 1_035, 747_264, 34.60},
		{"q235", "", 128, 32, 1_131, 3_621_888, 37.69},
		{"q235-tp8", "", 128, 32, 1_131, 2_700_288, 29.69},
		{"q235-rows", "", 128, 32, 36_945, 21_958_656, 37.69},
		{"l70", "", 64, 32, 723, 758_272 + 64*32, 17.64},
		{"dsv3", "", 256, 128, 0, 0, 0},
		{"q30", "", 8, 4, 0, 0, 0},
		{"oss", "", 8, 4, 687, 0, 0},
		{"small", "Qwen3-0.6B", 4, 2, 310, 1_916, 1.192230912 / 2},
		{"small", "Qwen3-8B", 4, 2, 399, 0, 0},
		{"small", "Llama-3-8B", 4, 2, 291, 0, 0},
	} {
		c, err := Reference(want.model, want.name)
		if err != nil {
			t.Fatal(err)
		}
		src, dst, err := c.Layouts(false)
		if err != nil {
			t.Fatalf("%s: %v", want.name, err)
		}
		checkMemory(t, src)
		checkMemory(t, dst)
		if len(src.Buffers) != want.src || len(dst.Buffers) != want.dst {
			t.Errorf("%s: %d and %d ranks, want %d and %d", want.name, len(src.Buffers), len(dst.Buffers), want.src, want.dst)
		}
		got := counted(src, dst)
		most := int64(0)
		for _, n := range got.ingress {
			most = max(most, n)
		}
		if want.regions != 0 && got.regions != want.regions || want.entries != 0 && int64(len(dst.Tensors)) != want.entries {
			t.Errorf("%s: %d entries, %d regions, want %d, %d", want.name, len(dst.Tensors), got.regions, want.entries, want.regions)
		}
		if want.ingress != 0 && math.Abs(float64(most)/1e9-want.ingress) > 0.005 {
			t.Errorf("%s: %d bytes, want %.2f GB", want.name, most, want.ingress)
		}
	}
}

// checkMemory looks for pieces that overlap or leave their buffer, and, with pads, for bytes of nobody.
func checkMemory(t *testing.T, l *reshard.Layout) {
	t.Helper()
	for _, rank := range []int{0, len(l.Buffers) / 2, len(l.Buffers) - 1} {
		var used [][2]int64 // of the rank
		add := func(at, n int64) {
			if n > 0 {
				used = append(used, [2]int64{at, at + n})
			}
		}
		for i := range l.Grids {
			g := &l.Grids[i]
			cell := slices.Index(g.Mesh.Ranks, rank)
			if cell < 0 {
				continue
			}
			tensor := l.Tensors[g.Tensors[0]]
			b := boxes(g, tensor.Shape)[cell]
			size := tensor.DType.Size()
			if g.Scales {
				size = 4
			}
			for _, at := range g.Offsets {
				if g.Strides == nil {
					add(at, b.volume()*size)
					continue
				}
				inner := b.volume() / (b.hi[0] - b.lo[0]) * size
				for e := range b.hi[0] - b.lo[0] {
					add(at+e*g.Strides[0], inner)
				}
			}
		}
		for _, p := range l.Pads {
			if p.Rank == rank {
				add(p.Offset, p.Len)
			}
		}
		slices.SortFunc(used, func(a, b [2]int64) int { return cmp.Compare(a[0], b[0]) })
		end := int64(0)
		for _, u := range used {
			if u[0] < end || len(l.Pads) > 0 && u[0] != end {
				t.Fatalf("%s rank %d: bytes [%d,%d) after %d", l.Side, rank, u[0], u[1], end)
			}
			end = u[1]
		}
		if end > l.Buffers[rank][0] {
			t.Fatalf("%s rank %d: %d bytes in a buffer of %d", l.Side, rank, end, l.Buffers[rank][0])
		}
	}
}
