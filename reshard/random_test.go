package reshard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func testContext(any) context.Context { return context.Background() }

// packer lays pieces out one after the other in the buffers of a layout.
type packer struct {
	l   *Layout
	end []int64 // of buffer 0, by rank
}

func newPacker(side string, ranks int, tensors []Tensor) *packer {
	return &packer{&Layout{Side: side, Tensors: tensors}, make([]int64, ranks)}
}

// grid places tensors by a mesh: every piece begins at the same offset on all ranks of the mesh.
func (p *packer) grid(g Grid) {
	for _, t := range g.Tensors {
		shape, size := oracleShape(&p.l.Tensors[t], g.Codec, g.Scales)
		at, most := int64(0), int64(0)
		var ranks []int
		for c := range g.Mesh.cells() {
			lo, hi := oracleBox(&g, c, shape)
			n := size
			for d := range lo {
				n *= hi[d] - lo[d]
			}
			most = max(most, n)
			ranks = append(ranks, g.Mesh.rank(c))
			at = max(at, p.end[g.Mesh.rank(c)])
		}
		at = (at + 7) / 8 * 8
		g.Offsets = append(g.Offsets, at)
		for _, r := range ranks {
			p.end[r] = at + most
		}
	}
	p.l.Grids = append(p.l.Grids, g)
}

// fragment places a box behind everything else on its rank; with digits, their strides are those of order.
func (p *packer) fragment(f Fragment, order []int) {
	shape, size := oracleShape(&p.l.Tensors[f.Tensor], f.Codec, f.Scales)
	_ = shape
	f.Offset = (p.end[f.Rank] + 7) / 8 * 8
	n := size
	if f.Digits == nil {
		for d := range f.Lo {
			n *= f.Hi[d] - f.Lo[d]
		}
	}
	for _, k := range order {
		f.Digits[k].Stride = n
		n *= f.Hi[k] - f.Lo[k]
	}
	p.end[f.Rank] = f.Offset + n
	p.l.Fragments = append(p.l.Fragments, f)
}

func (p *packer) layout() *Layout {
	for _, n := range p.end {
		p.l.Buffers = append(p.l.Buffers, []int64{n})
	}
	return p.l
}

// drawMesh draws a mesh of at most three dimensions, and a permutation of its ranks.
func drawMesh(t *rapid.T, name string) Mesh {
	m := Mesh{Shape: rapid.SliceOfN(rapid.IntRange(1, 4), 1, 3).Draw(t, name)}
	ranks := make([]int, m.cells())
	for i := range ranks {
		ranks[i] = i
	}
	m.Ranks = rapid.Permutation(ranks).Draw(t, name+" ranks")
	return m
}

func drawPlace(t *rapid.T, m Mesh, dims int, kinds []string, name string) []Placement {
	var out []Placement
	for range m.Shape {
		p := Placement{Kind: rapid.SampledFrom(kinds).Draw(t, name)}
		if p.Kind != "replicate" {
			p.Dim = rapid.IntRange(0, dims-1).Draw(t, name+" dim")
		}
		out = append(out, p)
	}
	return out
}

// fillFragments cuts a tensor's box at random into boxes, each on a random rank, some on two, some with digits.
func drawFragments(t *rapid.T, p *packer, tensor, ranks int, twice bool, codec Codec, label string) {
	shape := p.l.Tensors[tensor].Shape
	boxes := []box{{make([]int64, len(shape)), slices.Clone(shape)}}
	for range rapid.IntRange(0, 4).Draw(t, label+" cuts") {
		i := rapid.IntRange(0, len(boxes)-1).Draw(t, label+" box")
		d := rapid.IntRange(0, len(shape)-1).Draw(t, label+" dim")
		b := boxes[i]
		at := rapid.Int64Range(b.lo[d], b.hi[d]).Draw(t, label+" at")
		x, y := box{b.lo, slices.Clone(b.hi)}, box{slices.Clone(b.lo), b.hi}
		x.hi[d], y.lo[d] = at, at
		boxes[i] = x
		boxes = append(boxes, y)
	}
	for _, b := range boxes {
		n := 1
		if twice {
			n = rapid.IntRange(1, 2).Draw(t, label+" copies")
		}
		for range n {
			f := Fragment{Tensor: tensor, Lo: b.lo, Hi: b.hi, Rank: rapid.IntRange(0, ranks-1).Draw(t, label+" rank"), Codec: codec}
			var order []int
			if rapid.Bool().Draw(t, label+" digits") && !empty(b.lo, b.hi) {
				f, order = drawDigits(t, f, shape, label)
			}
			p.fragment(f, order)
		}
	}
}

// drawDigits refines dimensions whose cuts allow it, and shuffles the digits.
func drawDigits(t *rapid.T, f Fragment, shape []int64, label string) (Fragment, []int) {
	var lo, hi []int64
	for d, n := range shape {
		inner := int64(1)
		for _, k := range []int64{2, 3, 4} {
			if f.Lo[d]%k == 0 && (f.Hi[d]%k == 0) && n >= k && rapid.Bool().Draw(t, label+" refine") {
				inner = k
				break
			}
		}
		if inner == 1 {
			f.Digits = append(f.Digits, Digit{Extent: n})
			lo, hi = append(lo, f.Lo[d]), append(hi, f.Hi[d])
			continue
		}
		f.Digits = append(f.Digits, Digit{Extent: ceil(n, inner)}, Digit{Extent: inner})
		lo, hi = append(lo, f.Lo[d]/inner, 0), append(hi, f.Hi[d]/inner, inner)
	}
	f.Lo, f.Hi = lo, hi
	order := make([]int, len(lo))
	for i := range order {
		order[i] = i
	}
	return f, rapid.Permutation(order).Draw(t, label+" order")
}

// TestReshardRandom plans random pairs of layouts, carries the plans out, and compares every byte with an oracle that knows layouts
// element by element.
func TestReshardRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tensors []Tensor
		for i := range rapid.IntRange(1, 3).Draw(t, "tensors") {
			shape := rapid.SliceOfN(rapid.Int64Range(0, 13), 1, 3).Draw(t, "shape")
			tensors = append(tensors, Tensor{fmt.Sprintf("layers.%d.w%d", i%2, i), shape, rapid.SampledFrom([]DType{BF16, F32}).Draw(t, "type")})
		}
		into := slices.Clone(tensors)
		for i := range into {
			into[i].DType = rapid.SampledFrom([]DType{BF16, F32}).Draw(t, "into")
		}
		src, dst := drawLayout(t, "train", tensors), drawLayout(t, "infer", into)
		check(t, src, dst, nil, drawOptions(t), nil)
	})
}

func drawOptions(t *rapid.T) Options {
	return Options{
		MaxWrite: rapid.Int64Range(1, 200).Draw(t, "max write"), SmallTensor: rapid.Int64Range(1, 100).Draw(t, "small"),
		Split: rapid.Bool().Draw(t, "split"), Seed: rapid.Uint64Range(0, 9).Draw(t, "seed"),
	}
}

// drawLayout places each tensor by a grid or by fragments.
func drawLayout(t *rapid.T, side string, tensors []Tensor) *Layout {
	mesh := drawMesh(t, side)
	ranks := mesh.cells()
	p := newPacker(side, ranks, tensors)
	for i := range tensors {
		if rapid.IntRange(0, 2).Draw(t, side+" kind") == 0 {
			drawFragments(t, p, i, ranks, true, Codec{}, side)
			if side != "train" || rapid.Bool().Draw(t, "once") {
				continue
			} // else boxes of a source overlap in part
		}
		kinds := []string{"shard", "strided", "replicate"}
		p.grid(Grid{Tensors: []int{i}, Mesh: mesh, Place: drawPlace(t, mesh, len(tensors[i].Shape), kinds, side+" place")})
	}
	return p.layout()
}

// TestReshardBlocks does the same for block quantization: sources cut anywhere, destinations between blocks. A cut through a block must
// be refused.
func TestReshardBlocks(t *testing.T) {
	refused := 0
	rapid.Check(t, func(t *rapid.T) {
		codec := Codec{Kind: "fp8block", Block: [2]int{rapid.IntRange(1, 4).Draw(t, "rows"), rapid.IntRange(1, 4).Draw(t, "cols")}}
		var tensors []Tensor
		for i := range rapid.IntRange(1, 3).Draw(t, "tensors") {
			shape := rapid.SliceOfN(rapid.Int64Range(1, 13), 2, 3).Draw(t, "shape")
			tensors = append(tensors, Tensor{fmt.Sprintf("layers.%d.w%d", i%2, i), shape, rapid.SampledFrom([]DType{BF16, F32}).Draw(t, "type")})
		}
		into := slices.Clone(tensors)
		for i := range into {
			into[i].DType = F8E4M3
		}
		src := drawLayout(t, "train", tensors)
		mesh := drawMesh(t, "infer")
		p := newPacker("infer", mesh.cells(), into)
		whole := true
		for i := range into {
			place := drawPlace(t, mesh, len(into[i].Shape), []string{"shard", "replicate", "replicate"}, "place")
			values := Grid{Tensors: []int{i}, Mesh: mesh, Place: place, Codec: codec}
			scales := Grid{Tensors: []int{i}, Mesh: mesh, Place: place, Codec: codec, Scales: true}
			whole = whole && aligned(&values, &scales, into[i].Shape)
			p.grid(values)
			p.grid(scales)
		}
		dst := p.layout()
		if !whole {
			if _, err := Compute(context.Background(), src, dst, nil, Options{}); !errors.Is(err, ErrLayout) {
				t.Fatalf("cuts through blocks: %v, want ErrLayout", err)
			}
			refused++
			return
		}
		check(t, src, dst, nil, drawOptions(t), nil)
	})
	t.Logf("%d refused", refused)
}

// aligned says that each cell has whole blocks, and their scales.
func aligned(values, scales *Grid, shape []int64) bool {
	for c := range values.Mesh.cells() {
		lo, hi := oracleBox(values, c, shape)
		sshape, _ := oracleShape(&Tensor{Shape: shape, DType: F8E4M3}, values.Codec, true)
		slo, shi := oracleBox(scales, c, sshape)
		if empty(lo, hi) != empty(slo, shi) {
			return false
		}
		if empty(lo, hi) {
			continue
		}
		for d := range shape {
			b := int64(1)
			if i := d - (len(shape) - 2); i >= 0 {
				b = int64(values.Codec.Block[i])
			}
			if lo[d]%b != 0 || hi[d]%b != 0 && hi[d] != shape[d] || lo[d]/b != slo[d] || ceil(hi[d], b) != shi[d] {
				return false
			}
		}
	}
	return true
}

// TestSplit cuts a region that one rank would send whole across all that hold it.
func TestSplit(t *testing.T) {
	for _, codec := range []Codec{{}, {Kind: fp8Kind, Block: [2]int{4, 4}}} {
		tensors := []Tensor{{"embed", []int64{60, 8}, BF16}}
		p := newPacker("train", 4, tensors)
		all := []Placement{{Kind: "replicate"}}
		p.grid(Grid{Tensors: []int{0}, Mesh: Mesh{Shape: []int{4}}, Place: all})
		into := slices.Clone(tensors)
		g := Grid{Tensors: []int{0}, Mesh: Mesh{Shape: []int{1}}, Place: all, Codec: codec}
		if codec.Kind != "" {
			into[0].DType = F8E4M3
		}
		q := newPacker("infer", 1, into)
		q.grid(g)
		if codec.Kind != "" {
			g.Scales = true
			q.grid(g)
		}
		src, dst := p.layout(), q.layout()
		if s := check(t, src, dst, nil, Options{}, nil).Loads(); s.Egress.MaxOverAvg != 4 || s.Regions != 1 {
			t.Errorf("whole: %d regions, %v", s.Regions, s.Egress)
		}
		p4 := check(t, src, dst, nil, Options{Split: true}, nil)
		if s := p4.Loads(); s.Egress.MaxOverAvg > 1.1 || s.Regions != 4 {
			t.Errorf("split: %d regions, %v", s.Regions, s.Egress)
		}
		for _, a := range p4.Source(0).Amax {
			if len(a.Peers) > 0 {
				t.Errorf("a split through a block: %+v", a)
			}
		}
	}
}

// TestNearHoldersFirst has every destination find a holder on its node, or else on its rail.
func TestNearHoldersFirst(t *testing.T) {
	tensors := []Tensor{{"a", []int64{8}, BF16}, {"b", []int64{8}, BF16}, {"c", []int64{8}, BF16}}
	build := func(side string, n int, topo Topology) *Layout {
		p := newPacker(side, n, tensors)
		p.grid(Grid{Tensors: []int{0, 1, 2}, Mesh: Mesh{Shape: []int{n}}, Place: []Placement{{Kind: "replicate"}}})
		l := p.layout()
		l.Topo = topo
		return l
	}
	src := build("train", 4, Topology{Node: []int{0, 1, 2, 3}, Rail: []int{0, 1, 2, 3}})
	dst := build("infer", 4, Topology{Node: []int{3, 9, 1, 9}, Rail: []int{0, 2, 0, 0}})
	p := check(t, src, dst, nil, Options{}, nil)
	want := []int{3, 2, 1, 0} // by node, rail, node, rail
	for r := range dst.Buffers {
		for _, run := range p.Dest(r).Runs {
			if run.Peer != want[r] {
				t.Errorf("destination %d is served by %d, want %d", r, run.Peer, want[r])
			}
		}
	}
}

// TestTasksStaySmall joins neighbours up to MaxWrite, and no farther.
func TestTasksStaySmall(t *testing.T) {
	var from, into []Tensor
	for i := range 64 {
		from = append(from, Tensor{fmt.Sprintf("layers.0.%d", i), []int64{16}, BF16})
		into = append(into, Tensor{from[i].Name, from[i].Shape, F32})
	}
	const most = 256 // four tensors
	p := check(t, whole("train", from...), whole("infer", into...), nil, Options{MaxWrite: most, SmallTensor: 64}, nil)
	s := p.Source(0)
	for _, task := range s.Tasks {
		if task.Size != most || len(task.Runs) != 1 || task.Runs[0].Len != most || len(task.Pieces) != 4 {
			t.Errorf("%d bytes, %d pieces, runs %+v", task.Size, len(task.Pieces), task.Runs)
		}
	}
	if len(s.Tasks) != 16 {
		t.Errorf("%d tasks", len(s.Tasks))
	}
}

// TestDigitsWithoutRefinement moves 3 x 4 digits to 4 x 3: no common digits, so single rows.
func TestDigitsWithoutRefinement(t *testing.T) {
	tensors := []Tensor{{"a", []int64{12, 2}, BF16}}
	side := func(name string, outer, inner int64) *Layout {
		p := newPacker(name, 1, tensors)
		f := Fragment{Tensor: 0, Lo: []int64{0, 0, 0}, Hi: []int64{outer, inner, 2}, Digits: []Digit{{Extent: outer}, {Extent: inner}, {Extent: 2}}}
		p.fragment(f, []int{2, 0, 1})
		return p.layout()
	}
	check(t, side("train", 3, 4), side("infer", 4, 3), nil, Options{}, nil)
}
