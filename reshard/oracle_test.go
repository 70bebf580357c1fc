package reshard

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// The oracle knows layouts element by element, and nothing of the planner.

// place is where one element, or the scale of one block, of a tensor lies.
type spot struct {
	rank, buffer int
	off          int64
	scales       bool
	codec        Codec
}

// elements calls f for every element that the layout has of every tensor. index is that of the element, or of the block.
func elements(l *Layout, f func(tensor int, index []int64, s spot)) {
	for gi := range l.Grids {
		g := &l.Grids[gi]
		for k, t := range g.Tensors {
			shape, size := oracleShape(&l.Tensors[t], g.Codec, g.Scales)
			cells := 1
			for _, n := range g.Mesh.Shape {
				cells *= n
			}
			for c := range cells {
				lo, hi := oracleBox(g, c, shape)
				rank := c
				if g.Mesh.Ranks != nil {
					rank = g.Mesh.Ranks[c]
				}
				strides := g.Strides
				if strides == nil {
					strides = make([]int64, len(shape))
					n := size
					for d := len(shape) - 1; d >= 0; d-- {
						strides[d] = n
						n *= hi[d] - lo[d]
					}
				}
				each(lo, hi, func(x []int64) {
					off := g.Offsets[k]
					for d := range x {
						off += (x[d] - lo[d]) * strides[d]
					}
					f(t, x, spot{rank, g.Buffer, off, g.Scales, g.Codec})
				})
			}
		}
	}
	for fi := range l.Fragments {
		g := &l.Fragments[fi]
		shape, size := oracleShape(&l.Tensors[g.Tensor], g.Codec, g.Scales)
		digits := g.Digits
		if digits == nil {
			n := size
			digits = make([]Digit, len(shape))
			for d := len(shape) - 1; d >= 0; d-- {
				digits[d] = Digit{shape[d], n}
				n *= g.Hi[d] - g.Lo[d]
			}
		}
		each(g.Lo, g.Hi, func(y []int64) {
			off, x, k := g.Offset, make([]int64, len(shape)), 0
			for i := range y {
				off += (y[i] - g.Lo[i]) * digits[i].Stride
			}
			for d, n := range shape {
				prod := int64(1)
				for first := k; k == first || prod < n; k++ {
					x[d] = x[d]*digits[k].Extent + y[k]
					prod *= digits[k].Extent
				}
				if x[d] >= n {
					return
				}
			}
			f(g.Tensor, x, spot{g.Rank, g.Buffer, off, g.Scales, g.Codec})
		})
	}
}

func oracleShape(t *Tensor, c Codec, scales bool) (shape []int64, size int64) {
	shape, size = slices.Clone(t.Shape), t.DType.Size()
	if scales {
		c = c.normal()
		for i := range 2 {
			d := len(shape) - 2 + i
			shape[d] = (shape[d] + int64(c.Block[i]) - 1) / int64(c.Block[i])
		}
		size = c.Scale.Size()
	}
	return shape, size
}

// oracleBox finds a cell's box by cutting lists of indices.
func oracleBox(g *Grid, cell int, shape []int64) (lo, hi []int64) {
	coord := make([]int, len(g.Mesh.Shape))
	for m := len(coord) - 1; m >= 0; m-- {
		coord[m] = cell % g.Mesh.Shape[m]
		cell /= g.Mesh.Shape[m]
	}
	for d, n := range shape {
		have := make([]int64, n)
		for i := range have {
			have[i] = int64(i)
		}
		var order []int
		for _, kind := range []string{"shard", "strided"} {
			for m, p := range g.Place {
				if p.Kind == kind && p.Dim == d {
					order = append(order, m)
				}
			}
		}
		for _, m := range order {
			size := (len(have) + g.Mesh.Shape[m] - 1) / g.Mesh.Shape[m]
			if size == 0 {
				continue
			}
			parts := slices.Collect(slices.Chunk(have, size))
			if coord[m] < len(parts) {
				have = parts[coord[m]]
			} else {
				have = nil
			}
		}
		if len(have) == 0 {
			lo, hi = append(lo, 0), append(hi, 0)
			continue
		}
		lo, hi = append(lo, have[0]), append(hi, have[len(have)-1]+1)
	}
	return lo, hi
}

func each(lo, hi []int64, f func(x []int64)) {
	x := slices.Clone(lo)
	for d := range lo {
		if lo[d] >= hi[d] {
			return
		}
	}
	for {
		f(x)
		d := len(x) - 1
		for ; d >= 0; d-- {
			if x[d]++; x[d] < hi[d] {
				break
			}
			x[d] = lo[d]
		}
		if d < 0 {
			return
		}
	}
}

// world is memory of both sides, and the values of all tensors.
type world struct {
	src, dst *Layout
	values   [][]float32               // by source tensor, whole
	from, to [][][]byte                // by rank, buffer
	written  [][][]byte                // how often each byte of a destination was
	keep     func(dst, stage int) bool // execute: only what is kept; nil: all
}

func newBuffers(l *Layout, fill byte) [][][]byte {
	out := make([][][]byte, len(l.Buffers))
	for r, sizes := range l.Buffers {
		for _, n := range sizes {
			b := make([]byte, n)
			for i := range b {
				b[i] = fill
			}
			out[r] = append(out[r], b)
		}
	}
	return out
}

// newWorld fills the sources with numbers that their type holds exactly.
func newWorld(src, dst *Layout, seed uint64) *world {
	w := &world{src: src, dst: dst, from: newBuffers(src, 0xEE), to: newBuffers(dst, 0xDD), written: newBuffers(dst, 0)}
	rnd := rand.New(rand.NewPCG(seed, 1))
	for i := range src.Tensors {
		n := int64(1)
		for _, e := range src.Tensors[i].Shape {
			n *= e
		}
		v := make([]float32, n)
		for k := range v {
			v[k] = testValue(src.Tensors[i].DType, rnd)
		}
		w.values = append(w.values, v)
	}
	elements(src, func(t int, x []int64, s spot) {
		put(w.from[s.rank][s.buffer][s.off:], src.Tensors[t].DType, w.values[t][flat(x, src.Tensors[t].Shape)])
	})
	return w
}

func testValue(d DType, rnd *rand.Rand) float32 {
	if d.Size() == 1 {
		return float32(rnd.IntN(256))
	}
	return math.Float32frombits(math.Float32bits(float32(rnd.NormFloat64())) &^ 0xFFFF) // exact in BF16
}

func flat(x, shape []int64) (i int64) {
	for d := range x {
		i = i*shape[d] + x[d]
	}
	return i
}

// put and get move one element. Types of one byte are numbers from 0 to 255.
func put(b []byte, d DType, v float32) {
	switch d {
	case BF16:
		binary.LittleEndian.PutUint16(b, uint16(math.Float32bits(v)>>16))
	case F32:
		binary.LittleEndian.PutUint32(b, math.Float32bits(v))
	default:
		if d.Size() != 1 {
			panic("no such type in tests: " + d.String())
		}
		b[0] = byte(v)
	}
}

func get(b []byte, d DType) float32 {
	switch d {
	case BF16:
		return math.Float32frombits(uint32(binary.LittleEndian.Uint16(b)) << 16)
	case F32:
		return math.Float32frombits(binary.LittleEndian.Uint32(b))
	}
	return float32(b[0])
}

// quant stands for the real quantization: a byte that depends on the value and on the block's maximum.
func quant(v, amax float32) byte {
	return byte(math.Round(float64(v/amax)*100) + 128)
}

// expect computes what the destinations must hold from whole tensors, and checks it. find says which source tensor, and which index of
// it, an element of a destination tensor is.
func (w *world) expect(find func(tensor int, x []int64) (int, int64)) error {
	maxima := map[string]float32{}
	amax := func(t int, x []int64, c Codec) float32 {
		c = c.normal()
		shape := w.dst.Tensors[t].Shape
		lo, hi := slices.Clone(x), slices.Clone(x)
		for d := range x {
			hi[d]++
			if i := d - (len(x) - 2); i >= 0 {
				lo[d] = x[d] / int64(c.Block[i]) * int64(c.Block[i])
				hi[d] = min(lo[d]+int64(c.Block[i]), shape[d])
			}
		}
		key := fmt.Sprint(t, lo)
		m, ok := maxima[key]
		if !ok {
			each(lo, hi, func(y []int64) {
				s, i := find(t, y)
				m = max(m, float32(math.Abs(float64(w.values[s][i]))))
			})
			maxima[key] = m
		}
		return m
	}
	var err error
	elements(w.dst, func(t int, x []int64, s spot) {
		d := w.dst.Tensors[t].DType
		want := make([]byte, 8)
		c := s.codec.normal()
		n := d.Size()
		switch {
		case s.scales:
			n = c.Scale.Size()
			y := slices.Clone(x)
			for i := range 2 {
				y[len(y)-2+i] *= int64(c.Block[i])
			}
			put(want, c.Scale, amax(t, y, c))
		case c.Kind == "fp8block":
			s, i := find(t, x)
			want[0] = quant(w.values[s][i], amax(t, x, c))
		default:
			s, i := find(t, x)
			put(want, d, w.values[s][i])
		}
		got := w.to[s.rank][s.buffer][s.off : s.off+n]
		if !slices.Equal(got, want[:n]) && err == nil {
			err = fmt.Errorf("rank %d buffer %d offset %d: %s %v (scales %v): %x, want %x", s.rank, s.buffer, s.off, w.dst.Tensors[t].Name, x, s.scales, got, want[:n])
		}
		for i := range n {
			if k := w.written[s.rank][s.buffer][s.off+i]; k != 1 && err == nil {
				err = fmt.Errorf("rank %d buffer %d offset %d: %s %v: written %d times", s.rank, s.buffer, s.off, w.dst.Tensors[t].Name, x, k)
			}
			w.written[s.rank][s.buffer][s.off+i] = 1 | 0x80
		}
	})
	for r := range w.written {
		for b := range w.written[r] {
			for i, k := range w.written[r][b] {
				if k != 0 && k != 1|0x80 && err == nil {
					err = fmt.Errorf("rank %d buffer %d offset %d: written, and no tensor is there", r, b, i)
				}
			}
		}
	}
	return err
}

// execute carries a plan out: tables of maxima, exchange, staging, runs; and checks that what destinations expect is what sources send.
func (w *world) execute(p *Plan) error {
	sources := make([]*Slice, len(w.src.Buffers))
	for r := range sources {
		sources[r] = p.Source(r)
	}
	tables := w.exchange(sources)
	sent := make([]map[Run]int, len(w.dst.Buffers))
	for r := range sent {
		sent[r] = map[Run]int{}
	}
	for rank, s := range sources {
		stage := 0
		for ti := range s.Tasks {
			t := &s.Tasks[ti]
			if t.Stage < stage {
				return fmt.Errorf("source %d: stage %d after %d", rank, t.Stage, stage)
			}
			stage = t.Stage
			var bytes []byte
			if t.Size == 0 {
				bytes = w.from[rank][t.Buffer]
			} else {
				bytes = make([]byte, t.Size)
				for i := range t.Pieces {
					w.stage(rank, s, &t.Pieces[i], tables[[2]int{rank, t.Stage}], bytes)
				}
			}
			for _, r := range t.Runs {
				if w.keep != nil && !w.keep(r.Peer, r.Stage) {
					continue
				}
				copy(w.to[r.Peer][r.Buffer][r.Offset:r.Offset+r.Len], bytes[r.From:r.From+r.Len])
				for i := range r.Len {
					w.written[r.Peer][r.Buffer][r.Offset+i]++
				}
				sent[r.Peer][Run{Peer: rank, Stage: r.Stage, Buffer: r.Buffer, Offset: r.Offset, Len: r.Len}]++
			}
		}
	}
	for rank := range w.dst.Buffers {
		d := p.Dest(rank)
		for _, r := range d.Runs {
			if w.keep != nil && !w.keep(rank, r.Stage) {
				continue
			}
			if sent[rank][r] != 1 {
				return fmt.Errorf("destination %d expects %+v, sent %d times", rank, r, sent[rank][r])
			}
			delete(sent[rank], r)
		}
		if len(sent[rank]) > 0 {
			return fmt.Errorf("destination %d: unexpected %+v", rank, sent[rank])
		}
	}
	return nil
}

// exchange fills the tables of maxima of all sources and stages, and trades them through inboxes.
func (w *world) exchange(sources []*Slice) map[[2]int][]float32 {
	tables, inbox := map[[2]int][]float32{}, map[[2]int]map[int64]float32{}
	for rank, s := range sources {
		for i := range s.Amax {
			tables[[2]int{rank, s.Amax[i].Stage}] = make([]float32, s.Amax[i].Table)
			inbox[[2]int{rank, s.Amax[i].Stage}] = map[int64]float32{}
		}
		for ti := range s.Tasks {
			for i := range s.Tasks[ti].Pieces {
				w.maxima(rank, s, &s.Tasks[ti].Pieces[i], tables[[2]int{rank, s.Tasks[ti].Stage}])
			}
		}
	}
	for rank, s := range sources {
		for i := range s.Amax {
			a := &s.Amax[i]
			for _, same := range a.Own {
				ownMaxima(tables[[2]int{rank, a.Stage}], same)
			}
			for _, x := range a.Peers {
				at := x.Inbox
				for _, b := range x.Blocks {
					for k := range b.Len {
						if _, twice := inbox[[2]int{x.Rank, a.Stage}][at]; twice {
							panic(fmt.Sprintf("source %d stage %d: inbox %d of %d is written twice", rank, a.Stage, at, x.Rank))
						}
						inbox[[2]int{x.Rank, a.Stage}][at] = tables[[2]int{rank, a.Stage}][b.First+k]
						at += 4
					}
				}
			}
		}
	}
	for rank, s := range sources {
		for i := range s.Amax {
			a := &s.Amax[i]
			for _, x := range a.Peers {
				at := x.Answer
				for _, b := range x.Blocks {
					for k := range b.Len {
						v, ok := inbox[[2]int{rank, a.Stage}][at]
						if !ok {
							panic(fmt.Sprintf("source %d stage %d: nobody wrote inbox %d", rank, a.Stage, at))
						}
						t := tables[[2]int{rank, a.Stage}]
						t[b.First+k] = max(t[b.First+k], v)
						at += 4
					}
				}
			}
		}
	}
	return tables
}

// ownMaxima gives two entries of each block the larger value of both.
func ownMaxima(table []float32, s Same) {
	var a, b []int
	for _, r := range s.A {
		for k := range r.Len {
			a = append(a, r.First+k)
		}
	}
	for _, r := range s.B {
		for k := range r.Len {
			b = append(b, r.First+k)
		}
	}
	if len(a) != len(b) {
		panic(fmt.Sprintf("%d entries and %d for the same blocks", len(a), len(b)))
	}
	for i := range a {
		m := max(table[a[i]], table[b[i]])
		table[a[i]], table[b[i]] = m, m
	}
}

// blockOf is the entry of the table for an element of a piece.
func blockOf(s *Slice, p *Piece, x []int64) int {
	c := s.Codecs[p.Codec]
	n := len(x) - 2
	k := 0
	for d := range n {
		k = k*int(p.Shape[d]) + int(x[d])
	}
	at := [2]int{}
	for i := range 2 {
		b := int64(c.Block[i])
		at[i] = int((p.Origin[n+i]+x[n+i])/b - p.Origin[n+i]/b)
	}
	return p.Maxima + (k*p.BlockRows+at[0])*p.BlockCols + at[1]
}

func (w *world) maxima(rank int, s *Slice, p *Piece, table []float32) {
	if s.Codecs[p.Codec].Kind != "fp8block" {
		return
	}
	each(make([]int64, len(p.Shape)), p.Shape, func(x []int64) {
		v := float32(math.Abs(float64(get(w.element(rank, p, x), p.From))))
		table[blockOf(s, p, x)] = max(table[blockOf(s, p, x)], v)
	})
}

func (w *world) element(rank int, p *Piece, x []int64) []byte {
	off := p.Offset
	for d := range x {
		off += x[d] * p.SrcStride[d]
	}
	return w.from[rank][p.Buffer][off:]
}

func (w *world) stage(rank int, s *Slice, p *Piece, table []float32, staging []byte) {
	fp8 := s.Codecs[p.Codec].Kind == "fp8block"
	each(make([]int64, len(p.Shape)), p.Shape, func(x []int64) {
		at := p.Dst
		for d := range x {
			at += x[d] * p.DstStride[d]
		}
		v := get(w.element(rank, p, x), p.From)
		if fp8 {
			staging[at] = quant(v, table[blockOf(s, p, x)])
		} else if s.Codecs[p.Codec].Kind == "raw" {
			copy(staging[at:at+p.From.Size()], w.element(rank, p, x))
		} else {
			put(staging[at:], p.To, v)
		}
	})
	if !fp8 || p.ScaleLo == p.ScaleHi {
		return
	}
	n := len(p.Shape) - 2
	lo, hi := make([]int64, n+2), slices.Clone(p.Shape)
	for i := range 2 {
		lo[n+i], hi[n+i] = int64(p.ScaleLo[i]), int64(p.ScaleHi[i])
	}
	each(lo, hi, func(x []int64) {
		at, k := p.Scale, 0
		for d := range x {
			at += (x[d] - lo[d]) * p.ScaleStride[d]
			if d < n {
				k = k*int(p.Shape[d]) + int(x[d])
			}
		}
		put(staging[at:], s.Codecs[p.Codec].Scale, table[p.Maxima+(k*p.BlockRows+int(x[n]))*p.BlockCols+int(x[n+1])])
	})
}

// byName is a find for layouts with equal names and shapes.
func byName(src, dst *Layout) func(int, []int64) (int, int64) {
	index := map[string]int{}
	for i := range src.Tensors {
		index[src.Tensors[i].Name] = i
	}
	return func(t int, x []int64) (int, int64) {
		s := index[dst.Tensors[t].Name]
		return s, flat(x, src.Tensors[s].Shape)
	}
}

// check plans, executes and compares.
func check(t interface{ Fatalf(string, ...any) }, src, dst *Layout, rules []Rule, o Options, find func(int, []int64) (int, int64)) *Plan {
	if h, ok := t.(interface{ Helper() }); ok {
		h.Helper()
	}
	p, err := Compute(testContext(t), src, dst, rules, o)
	if err != nil {
		t.Fatalf("Compute: %v", err)
	}
	w := newWorld(src, dst, o.Seed)
	if err := w.execute(p); err != nil {
		t.Fatalf("execute: %v", err)
	}
	if find == nil {
		find = byName(src, dst)
	}
	if err := w.expect(find); err != nil {
		t.Fatalf("oracle: %v", err)
	}
	return p
}
