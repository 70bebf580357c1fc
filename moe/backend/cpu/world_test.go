package cpu

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/numeric"
	"github.com/hawser-project/hawser/moe/proto"
)

// shape is what a world is made of.
type shape struct {
	ranks, tokens, hidden, topK, experts int
	in, wire, out                        backend.DType
	x                                    backend.DType // of the input: in, unless it is quantized
	scale                                backend.Scaling
	floor                                float32
	meta, batched, columns               bool // columns: scales lie column by column
	align                                int
	place                                backend.Placement
	ids                                  backend.DType
	accumulate, rescale                  bool
	bias                                 int
	gone                                 []uint64
	procs                                int
	special                              bool // input has infinities and NaN
}

// tb is a test, or one of rapid's.
type tb interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// world is lanes of all ranks, whose regions are copied by hand.
type world struct {
	shape
	t     tb
	rng   *rand.Rand
	b     *Backend
	cfg   []proto.Layout
	lanes []*Lane
	mem   []backend.Memory
	ins   []backend.Input
	outs  []backend.Output
	y     []backend.Tensor
	rows  [][][]origin // [rank][local]: what is expected there
	base  [][]int      // [rank][local]: first row
}

// origin is where a row comes from.
type origin struct{ rank, token, column, slot int }

func (s shape) config() proto.Config {
	c := proto.Config{
		MaxRanks: s.ranks, MaxTokens: s.tokens, Hidden: s.hidden, TopK: s.topK, Experts: s.experts,
		InBytes: sizeOf(s.in), WireBytes: sizeOf(s.wire), ScaleBlock: scalings[s.scale].block, ScaleBytes: scalings[s.scale].bytes, Meta: s.meta,
	}
	return c
}

func newWorld(t tb, s shape, seed uint64) *world {
	w := &world{shape: s, t: t, rng: rand.New(rand.NewPCG(seed, 7))}
	if w.align == 0 {
		w.align = 1
	}
	b, err := New(max(s.procs, 1))
	if err != nil {
		t.Fatal(err)
	}
	w.b = b
	w.cfg = make([]proto.Layout, s.ranks)
	for r := range s.ranks {
		c := s.config()
		c.Rank = r
		if w.cfg[r], err = proto.NewLayout(c); err != nil {
			t.Fatal(err)
		}
		l := &w.cfg[r]
		w.mem = append(w.mem, backend.Memory{
			Send:    w.noise(l.MaxRanks*l.HeadBytes + l.Records()*l.Dispatch),
			Results: w.noise(l.Records() * l.Combine),
			Y:       w.noise(l.YRows * l.Combine),
		})
		lane, err := b.NewLane(backend.Spec{Layout: l, In: s.in, Wire: s.wire, Scale: s.scale, Place: s.place, Memory: w.mem[r]})
		if err != nil {
			t.Fatal(err)
		}
		w.lanes = append(w.lanes, lane.(*Lane))
		w.ins = append(w.ins, w.input(l))
	}
	return w
}

func (w *world) close() {
	if err := w.b.Close(); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) noise(n int) []byte {
	b := make([]byte, (n+7)&^7)
	for i := 0; i < n; i += 8 {
		le.PutUint64(b[i:], w.rng.Uint64())
	}
	return b[:n]
}

// numbers are n of a type; special ones have a NaN, infinities and zeros now and then.
func (w *world) numbers(t backend.DType, n int) []byte {
	typ, ok := number(t)
	if !ok {
		return w.noise(n * sizeOf(t))
	}
	row := make([]byte, 4*n)
	for i := range n {
		f := float32(w.rng.NormFloat64() * float64(uint64(1)<<w.rng.IntN(12)) / 64)
		if w.special && w.rng.IntN(9) == 0 {
			f = []float32{0, float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()), -float32(math.NaN()), 1e-40, float32(math.Copysign(0, -1)), 3e38}[w.rng.IntN(8)]
		}
		binary.LittleEndian.PutUint32(row[4*i:], math.Float32bits(f))
	}
	dst := make([]byte, n*typ.Size())
	numeric.Convert(dst, typ, row, numeric.TypeF32)
	return dst
}

func (w *world) tensor(t backend.DType, shape ...int) backend.Tensor {
	n := 1
	for _, d := range shape {
		n *= d
	}
	out := backend.Tensor{Type: t, Data: w.numbers(t, n)}
	copy(out.Shape[3-len(shape):], shape)
	return out
}

// input has gaps between rows.
func (w *world) input(l *proto.Layout) backend.Input {
	n := w.rng.IntN(w.tokens + 1)
	if w.rng.IntN(4) > 0 {
		n = w.tokens
	}
	gap := w.tensor(w.x, max(n, 1), w.hidden+3)
	gap.Stride = [3]int{0, (w.hidden + 3) * sizeOf(w.x), sizeOf(w.x)}
	gap.Shape = [3]int{0, n, w.hidden}
	in := backend.Input{N: n, X: gap, Weights: w.tensor(backend.F32, n, w.topK)}
	ids := w.ids
	if ids == backend.None {
		ids = backend.I32
	}
	in.IDs = w.tensor(ids, n, w.topK)
	for i := range n * w.topK {
		id := int64(w.rng.IntN(w.place.Experts(l)))
		if w.rng.IntN(8) == 0 {
			id = -1
		}
		if ids == backend.I64 {
			le.PutUint64(in.IDs.Data[8*i:], uint64(id))
		} else {
			le.PutUint32(in.IDs.Data[4*i:], uint32(id))
		}
	}
	if l.ScaleBlock > 0 && w.x == w.in {
		in.XScale = w.scales(n, false)
	}
	return in
}

// blocks are the scales of a row.
func (w *world) blocks() int {
	return (w.hidden + scalings[w.scale].block - 1) / scalings[w.scale].block
}

// scales are for n rows, of words if there are exponents, and column by column or not.
func (w *world) scales(n int, columns bool) backend.Tensor {
	typ, cols := backend.F32, w.blocks()
	if w.scale != backend.F32x128 {
		typ, cols = backend.U32, (w.blocks()+3)/4
	}
	t := backend.Tensor{Type: typ, Shape: [3]int{0, n, cols}, Data: w.noise(4 * cols * (n + 1))}
	if columns {
		t.Stride = [3]int{0, 4, 4 * (n + 1)}
	}
	return t
}

func (w *world) id(rank, token, j int) int64 {
	ids := &w.ins[rank].IDs
	i := token*w.topK + j
	if ids.Type == backend.I64 {
		return int64(le.Uint64(ids.Data[8*i:]))
	}
	return int64(int32(le.Uint32(ids.Data[4*i:])))
}

// send counts and packs on every rank, and works out what is to arrive where: expert by expert, in the order of sources, tokens, columns.
func (w *world) send(seq uint64, reuse bool) {
	t := w.t
	t.Helper()
	l := &w.cfg[0]
	w.rows, w.base = make([][][]origin, w.ranks), make([][]int, w.ranks)
	for r := range w.ranks {
		w.rows[r], w.base[r] = make([][]origin, l.Local), make([]int, l.Local)
	}
	for r := range w.ranks {
		lane, in := w.lanes[r], &w.ins[r]
		if err := lane.Count(0, seq, in, reuse); err != nil {
			t.Fatal(err)
		}
		h := proto.Header{View: 3, Step: seq, Source: r, Tokens: uint32(in.N)}
		if w.meta {
			h.Flags = proto.FlagMeta
		}
		if err := lane.Pack(0, seq, in, backend.Quantize{On: w.x != w.in, Floor: w.floor}, h); err != nil {
			t.Fatal(err)
		}
		if f := lane.Flags(); f.Counted.Load() != seq || f.Packed.Load() != seq {
			t.Fatalf("flags %d, %d after step %d", f.Counted.Load(), f.Packed.Load(), seq)
		}
		slot := 0
		for place := range w.ranks * l.Local {
			for token := range in.N {
				for j := range w.topK {
					if id := w.id(r, token, j); id >= 0 && w.where(r, token, int(id)) == place {
						x := &w.rows[place/l.Local][place%l.Local]
						*x = append(*x, origin{r, token, j, slot})
						if got := lane.plan.Slot[token*w.topK+j]; int(got) != slot {
							t.Fatalf("rank %d, token %d, column %d: slot %d, want %d", r, token, j, got, slot)
						}
						if int(lane.plan.Token[slot]) != token || int(lane.plan.Column[slot]) != j {
							t.Fatalf("slot %d: token %d, column %d, want %d, %d", slot, lane.plan.Token[slot], lane.plan.Column[slot], token, j)
						}
						slot++
					} else if id < 0 && lane.plan.Slot[token*w.topK+j] != backend.NoSlot {
						t.Fatalf("no expert, but slot %d", lane.plan.Slot[token*w.topK+j])
					}
				}
			}
		}
		if len(lane.plan.Token) != slot {
			t.Fatalf("%d records, want %d", len(lane.plan.Token), slot)
		}
	}
}

func (w *world) where(rank, token, id int) int {
	if w.place.Of == nil {
		return id
	}
	return int(w.place.Pick(&w.cfg[rank], token, id))
}

// runs are all records for a rank, from where the sources packed them, and where their rows go.
func (w *world) runs(rank int) (runs []backend.Run, counts, offsets []uint32) {
	l := &w.cfg[rank]
	at := 0
	for x := range l.Local {
		n := len(w.rows[rank][x])
		counts, offsets = append(counts, uint32(n)), append(offsets, uint32(at))
		w.base[rank][x] = at
		row := at
		if w.batched {
			row, w.base[rank][x] = 0, 0
		}
		for src := range w.ranks {
			p := w.lanes[src].Plan()
			head := w.mem[src].Send[rank*l.HeadBytes+int(p.Base[rank])*l.Dispatch:]
			h, err := l.ParseHeader(head[:l.HeadBytes])
			if err != nil || h.Records != p.Records[rank] || h.Base != p.Base[rank] || h.Source != src || h.RouteHash != p.RouteHash || h.View != 3 {
				w.t.Fatalf("rank %d reads header %+v of rank %d: %v", rank, h, src, err)
			}
			skip := 0
			for y := range x {
				skip += int(proto.Count(head, y))
			}
			c := int(proto.Count(head, x))
			for from := head[l.HeadBytes+skip*l.Dispatch:]; c > 0; { // in two pieces if possible
				k := (c + 1) / 2
				runs = append(runs, backend.Run{From: from[:k*l.Dispatch], Row: row, Local: x, N: k, Src: src})
				from, row, c = from[k*l.Dispatch:], row+k, c-k
			}
		}
		at = (at + n + w.align - 1) / w.align * w.align
	}
	w.rng.Shuffle(len(runs), func(i, j int) { runs[i], runs[j] = runs[j], runs[i] })
	return runs, counts, append(offsets, uint32(at))
}

// receive unpacks on every rank.
func (w *world) receive(seq uint64, zero bool) {
	t := w.t
	t.Helper()
	w.outs = w.outs[:0]
	for r := range w.ranks {
		l := &w.cfg[r]
		runs, counts, offsets := w.runs(r)
		rows := max(int(offsets[l.Local]), 1)
		dims, grid := []int{rows}, []int{rows}
		if w.batched {
			rows = l.MaxRanks * l.MaxTokens * l.TopK
			dims, grid = []int{l.Local, rows}, []int{l.Local, rows}
		}
		out := backend.Output{
			X: w.tensor(w.in, append(grid, w.hidden)...), Counts: w.tensor(backend.I32, l.Local), Offsets: w.tensor(backend.I32, l.Local+1),
			SrcRank: w.tensor(backend.I32, dims...), ZeroPadding: zero,
		}
		if w.meta {
			out.SrcToken, out.Weights = w.tensor(backend.I32, dims...), w.tensor(backend.F32, dims...)
		}
		if w.scale != backend.NoScale {
			out.XScale = w.scales(rows*max(out.X.Shape[0], 1), w.columns)
			if s := &out.XScale; w.batched {
				s.Shape[0], s.Shape[1] = l.Local, rows
				if w.columns {
					s.Stride[0] = 4 * rows
				}
			}
		}
		before := bytes.Clone(out.X.Data)
		lane := w.lanes[r]
		if err := lane.Unpack(0, seq, runs, &out); err != nil {
			t.Fatal(err)
		}
		if err := lane.Arrange(0, seq, nil, counts, offsets, &out); err != nil {
			t.Fatal(err)
		}
		if f := lane.Flags(); f.Unpacked.Load() != seq || f.Arranged.Load() != seq {
			t.Fatalf("flags %d, %d after step %d", f.Unpacked.Load(), f.Arranged.Load(), seq)
		}
		w.outs = append(w.outs, out)
		for x := range l.Local {
			if le.Uint32(out.Counts.Data[4*x:]) != counts[x] || le.Uint32(out.Offsets.Data[4*x:]) != offsets[x] {
				t.Fatalf("expert %d: %d rows from %d", x, le.Uint32(out.Counts.Data[4*x:]), le.Uint32(out.Offsets.Data[4*x:]))
			}
			for i, o := range w.rows[r][x] {
				w.checkRow(r, x, w.base[r][x]+i, o)
			}
			end := rows
			if !w.batched {
				end = int(offsets[x+1])
			}
			for row := w.base[r][x] + int(counts[x]); row < end; row++ {
				at := w.rowAt(&out.X, x, row, w.hidden*sizeOf(w.shape.in))
				want := before[at:][:w.hidden*sizeOf(w.shape.in)]
				if zero {
					want = make([]byte, len(want))
				}
				if !bytes.Equal(out.X.Data[at:][:len(want)], want) {
					t.Fatalf("rank %d, expert %d: padding row %d is %x, want %x", r, x, row, out.X.Data[at:][:8], want[:8])
				}
			}
		}
	}
}

// rowAt is where a row of a packed tensor begins.
func (w *world) rowAt(t *backend.Tensor, local, row, bytes int) int {
	if w.batched {
		row += local * t.Shape[1]
	}
	return row * bytes
}

func (w *world) checkRow(rank, local, row int, o origin) {
	w.t.Helper()
	out, in := &w.outs[rank], &w.ins[o.rank]
	x := in.X.Data[o.token*in.X.Stride[1]:][:w.hidden*sizeOf(w.x)]
	got := out.X.Data[w.rowAt(&out.X, local, row, w.hidden*sizeOf(w.shape.in)):][:w.hidden*sizeOf(w.shape.in)]
	vec := w.rowAt(&backend.Tensor{Shape: [3]int{0, out.X.Shape[1]}}, local, row, 4)
	if src := le.Uint32(out.SrcRank.Data[vec:]); int(src) != o.rank {
		w.t.Fatalf("rank %d, expert %d, row %d comes from rank %d, want %+v", rank, local, row, src, o)
	}
	if w.meta {
		weight := in.Weights.Data[4*(o.token*w.topK+o.column):][:4]
		if int(le.Uint32(out.SrcToken.Data[vec:])) != o.token || !bytes.Equal(out.Weights.Data[vec:][:4], weight) {
			w.t.Fatalf("rank %d, expert %d, row %d is token %d, weight %x, want %+v, %x", rank, local, row, le.Uint32(out.SrcToken.Data[vec:]), out.Weights.Data[vec:][:4], o, weight)
		}
	}
	if w.x == w.in {
		if !bytes.Equal(got, x) {
			w.t.Fatalf("rank %d, expert %d, row %d is %x, want %x of %+v", rank, local, row, got[:min(8, len(got))], x[:min(8, len(x))], o)
		}
		for b := range w.blocks0() {
			if g, want := w.scaleAt(&out.XScale, local, row, b), w.scaleAt(&in.XScale, 0, o.token, b); g != want {
				w.t.Fatalf("rank %d, expert %d, row %d, scale %d is %x, want %x of %+v", rank, local, row, b, g, want, o)
			}
		}
		return
	}
	typ, _ := number(w.x)
	for b := range w.blocks() {
		block := scalings[w.scale].block
		lo, hi := b*block, min((b+1)*block, w.hidden)
		q, scale := naiveQuantize(x[lo*typ.Size():hi*typ.Size()], typ, w.scale, w.floor)
		if !bytes.Equal(got[lo:hi], q) || w.scaleAt(&out.XScale, local, row, b) != scale {
			w.t.Fatalf("rank %d, expert %d, row %d, block %d: %x by %x, want %x by %x", rank, local, row, b, got[lo:hi], w.scaleAt(&out.XScale, local, row, b), q, scale)
		}
	}
}

func (w *world) blocks0() int {
	if w.scale == backend.NoScale {
		return 0
	}
	return w.blocks()
}

// scaleAt are the bits of a scale.
func (w *world) scaleAt(t *backend.Tensor, local, row, b int) uint32 {
	s := t.Stride
	if s == [3]int{} {
		s = [3]int{4 * t.Shape[1] * t.Shape[2], 4 * t.Shape[2], 4}
	}
	at := local*s[0]*min(t.Shape[0], 1) + row*s[1]
	if w.scale == backend.F32x128 {
		return le.Uint32(t.Data[at+b*s[2]:])
	}
	return uint32(t.Data[at+b/4*s[2]+b%4])
}

// naiveQuantize is the declared rule in float64, rounded to float32 after each operation.
func naiveQuantize(x []byte, t numeric.Type, scale backend.Scaling, floor float32) (q []byte, bits uint32) {
	if floor == 0 {
		floor = 1e-4
	}
	amax := floor
	n := len(x) / t.Size()
	for i := range n {
		if v := float32(math.Abs(float64(numeric.At(x, t, i)))); v > amax {
			amax = v
		}
	}
	var r float32
	if scale == backend.F32x128 {
		bits = math.Float32bits(float32(float64(amax) / 448))
		r = float32(448 / float64(amax))
	} else {
		e := math.Ceil(math.Log2(float64(amax) / 448))
		r, bits = float32(math.Ldexp(1, int(-e))), uint32(e+127)
		if math.IsInf(float64(amax), 0) {
			r, bits = float32(math.NaN()), 255
		}
	}
	for i := range n {
		v := numeric.At(x, t, i)
		q = append(q, numeric.E4M3(float32(float64(v)*float64(r)))&0x7f|byte(math.Float32bits(v)>>24&0x80))
	}
	return q, bits
}

// answer packs a result for every row on every rank, a function of its origin, and copies Y to where the sources wait for it.
func (w *world) answer(seq uint64, from backend.DType) {
	t := w.t
	t.Helper()
	w.y = w.y[:0]
	for r := range w.ranks {
		l := &w.cfg[r]
		y := backend.Tensor{Type: from, Shape: w.outs[r].X.Shape, Data: w.numbers(from, max(w.outs[r].X.Shape[0], 1)*w.outs[r].X.Shape[1]*w.hidden)}
		w.y = append(w.y, y)
		var runs []backend.Back
		type piece struct{ src, slot, at, n int }
		var pieces []piece
		at := 0
		for x := range l.Local {
			for i, o := range w.rows[r][x] {
				b := backend.Back{Row: w.base[r][x] + i, Local: x, N: 1, Slot: at, Own: o.rank == r}
				if b.Own {
					b.Slot = o.slot
				} else {
					pieces = append(pieces, piece{o.rank, o.slot, at, 1})
					at++
				}
				if n := len(runs); n > 0 && runs[n-1].Local == x && runs[n-1].Own == b.Own && runs[n-1].Row+runs[n-1].N == b.Row && runs[n-1].Slot+runs[n-1].N == b.Slot {
					runs[n-1].N++
				} else {
					runs = append(runs, b)
				}
			}
		}
		if err := w.lanes[r].PackCombine(0, seq, y, runs); err != nil {
			t.Fatal(err)
		}
		if w.lanes[r].Flags().YPacked.Load() != seq {
			t.Fatal("flag YPacked")
		}
		for _, p := range pieces {
			copy(w.mem[p.src].Results[p.slot*l.Combine:], w.mem[r].Y[p.at*l.Combine:][:p.n*l.Combine])
		}
	}
}

// reduce sums on every rank, and compares with a sum in the declared order, and with one in float64.
func (w *world) reduce(seq uint64) {
	t := w.t
	t.Helper()
	for r := range w.ranks {
		in, lane := &w.ins[r], w.lanes[r]
		out := w.tensor(w.shape.out, in.N, w.hidden)
		red := backend.Reduction{Out: out, Weights: in.Weights, Accumulate: w.accumulate, Rescale: w.rescale, Gone: w.gone}
		for range w.shape.bias {
			red.Bias = append(red.Bias, w.tensor(w.shape.out, in.N, w.hidden))
		}
		prior := bytes.Clone(out.Data)
		if err := lane.Reduce(0, seq, &red); err != nil {
			t.Fatal(err)
		}
		if lane.Flags().Reduced.Load() != seq {
			t.Fatal("flag Reduced")
		}
		typ, _ := number(w.shape.out)
		for token := range in.N {
			terms := w.terms(r, token)
			for col := range w.hidden {
				i := token*w.hidden + col
				want, exact, bound := w.naiveSum(r, i, col, terms, prior, &red)
				got := out.Data[i*typ.Size():][:typ.Size()]
				wantBytes := make([]byte, typ.Size())
				numeric.Convert(wantBytes, typ, le.AppendUint32(nil, math.Float32bits(want)), numeric.TypeF32)
				if w.accumulate && len(terms)+len(red.Bias) == 0 {
					copy(wantBytes, prior[i*typ.Size():]) // untouched
				}
				if !bytes.Equal(got, wantBytes) {
					t.Fatalf("rank %d, token %d, column %d: %x, want %x", r, token, col, got, wantBytes)
				}
				v := float64(numeric.At(got, typ, 0))
				if !w.special && !(typ == numeric.TypeF16 && math.Abs(exact) > 65000) && math.Abs(v-exact) > bound+halfUlp(typ, exact) {
					t.Fatalf("rank %d, token %d, column %d: %v, exactly %v, off by more than %v", r, token, col, v, exact, bound)
				}
			}
		}
	}
}

// halfUlp bounds what rounding to a type adds.
func halfUlp(t numeric.Type, v float64) float64 {
	least, part := 0x1p-150, 0x1p-24
	switch t {
	case numeric.TypeF16:
		least, part = 0x1p-25, 0x1p-11
	case numeric.TypeBF16:
		least, part = 0x1p-134, 0x1p-8
	}
	return max(least, math.Abs(v)*part*(1+0x1p-10))
}

// term is a result that a token's sum has, and its weight.
type term struct {
	slot int
	w    float32
}

func (w *world) terms(rank, token int) (terms []term) {
	all, have, lacks := float32(0), float32(0), false
	for j := range w.topK {
		id := w.id(rank, token, j)
		if id < 0 {
			continue
		}
		x := numeric.At(w.ins[rank].Weights.Data, numeric.TypeF32, token*w.topK+j)
		all += x
		place := w.where(rank, token, int(id))
		if len(w.gone) > 0 && w.gone[0]>>(place/w.cfg[0].Local)&1 != 0 {
			lacks = true
			continue
		}
		have += x
		terms = append(terms, term{int(w.lanes[rank].plan.Slot[token*w.topK+j]), x})
	}
	if lacks && w.rescale && have != 0 {
		for i := range terms {
			terms[i].w *= float32(all / have)
		}
	}
	return terms
}

// naiveSum is the sum of element i, in its declared order, and in float64, and how far these may be apart.
func (w *world) naiveSum(rank, i, col int, terms []term, prior []byte, red *backend.Reduction) (sum float32, exact, bound float64) {
	typ, _ := number(w.shape.out)
	wire, _ := number(w.wire)
	if red.Accumulate {
		sum = numeric.At(prior, typ, i)
		exact = float64(sum)
	}
	abs := math.Abs(exact)
	for _, x := range terms {
		y := numeric.At(w.mem[rank].Results[x.slot*w.cfg[rank].Combine:], wire, col)
		sum += float32(x.w * y)
		exact += float64(x.w) * float64(y)
		abs += math.Abs(float64(x.w) * float64(y))
	}
	for k := range red.Bias {
		b := numeric.At(red.Bias[k].Data, typ, i)
		sum += b
		exact += float64(b)
		abs += math.Abs(float64(b))
	}
	if sum != sum {
		sum = math.Float32frombits(0x7fc00000)
	}
	return sum, exact, float64(len(terms)+1+len(red.Bias)) * 0x1p-23 * abs // a product, a sum, of 2^-24 each
}

func (s shape) String() string {
	return fmt.Sprintf("ranks %d tokens %d hidden %d k %d experts %d in %d x %d scale %d wire %d out %d meta %v batched %v align %d gone %v procs %d",
		s.ranks, s.tokens, s.hidden, s.topK, s.experts, s.in, s.x, s.scale, s.wire, s.out, s.meta, s.batched, s.align, s.gone, s.procs)
}

func (w *world) step(seq uint64) {
	w.t.Helper()
	w.send(seq, false)
	w.receive(seq, seq%2 == 0)
	w.answer(seq, w.wire)
	w.reduce(seq)
}

func TestSteps(t *testing.T) {
	base := shape{ranks: 3, tokens: 9, hidden: 200, topK: 3, experts: 7, in: backend.BF16, x: backend.BF16, wire: backend.BF16, out: backend.BF16}
	with := func(f func(*shape)) shape {
		s := base
		f(&s)
		return s
	}
	for name, s := range map[string]shape{
		"plain":        base,
		"one rank":     with(func(s *shape) { s.ranks = 1 }),
		"one element":  with(func(s *shape) { s.hidden = 1 }),
		"one token":    with(func(s *shape) { s.tokens, s.topK = 1, 1 }),
		"bytes":        with(func(s *shape) { s.in, s.x = backend.Bytes, backend.Bytes }),
		"f32":          with(func(s *shape) { s.in, s.x, s.wire, s.out = backend.F32, backend.F32, backend.F32, backend.F32 }),
		"f16":          with(func(s *shape) { s.wire, s.out = backend.F16, backend.F16 }),
		"mixed":        with(func(s *shape) { s.wire, s.out = backend.BF16, backend.F32 }),
		"batched":      with(func(s *shape) { s.batched, s.meta = true, true }),
		"aligned":      with(func(s *shape) { s.align, s.meta = 8, true }),
		"u32":          with(func(s *shape) { s.ids = backend.U32 }),
		"i64":          with(func(s *shape) { s.ids = backend.I64 }),
		"scales":       with(func(s *shape) { s.in, s.x, s.scale, s.meta = backend.E4M3, backend.E4M3, backend.F32x128, true }),
		"columns":      with(func(s *shape) { s.in, s.x, s.scale, s.columns = backend.E4M3, backend.BF16, backend.F32x128, true }),
		"exponents":    with(func(s *shape) { s.in, s.x, s.scale = backend.E4M3, backend.E4M3, backend.UE8M0x32 }),
		"quantized":    with(func(s *shape) { s.in, s.scale, s.floor = backend.E4M3, backend.F32x128, 1e-3 }),
		"quantized 32": with(func(s *shape) { s.in, s.scale, s.columns, s.batched = backend.E4M3, backend.UE8M0x32, true, true }),
		"quantized e8": with(func(s *shape) { s.in, s.x, s.scale, s.meta = backend.E4M3, backend.F32, backend.UE8M0x128, true }),
		"quantize NaN": with(func(s *shape) { s.in, s.x, s.scale, s.special = backend.E4M3, backend.F32, backend.F32x128, true }),
		"quantize Inf": with(func(s *shape) { s.in, s.x, s.scale, s.special = backend.E4M3, backend.F16, backend.UE8M0x32, true }),
		"NaN": with(func(s *shape) {
			s.special, s.in, s.x, s.wire, s.out = true, backend.F32, backend.F32, backend.F32, backend.F32
		}),
		"NaN bf16":   with(func(s *shape) { s.special, s.accumulate, s.bias = true, true, 1 }),
		"accumulate": with(func(s *shape) { s.accumulate, s.bias = true, 2 }),
		"unchanged":  with(func(s *shape) { s.accumulate, s.topK, s.special = true, 1, true }),
		"gone":       with(func(s *shape) { s.gone = []uint64{0b101} }),
		"rescaled":   with(func(s *shape) { s.gone, s.rescale, s.wire, s.out = []uint64{0b010}, true, backend.F32, backend.F32 }),
		"wide":       with(func(s *shape) { s.hidden, s.topK, s.experts, s.tokens = 1100, 70, 90, 1 }),
		"replicas": with(func(s *shape) {
			s.experts, s.tokens = 9, 40
			s.place = backend.Placement{Of: []uint32{8, 0, 3, 7, 1, 2, 4, 5}, First: []uint32{0, 1, 4, 5, 8}}
		}),
		"moved": with(func(s *shape) { s.place = backend.Placement{Of: []uint32{6, 5, 4, 3, 2, 1, 0}} }),
	} {
		for procs := 1; procs <= 3; procs += 2 {
			s.procs = procs
			if procs > 1 {
				s.tokens *= 6 // so that there is something to share
			}
			t.Run(fmt.Sprintf("%s/%d", name, procs), func(t *testing.T) {
				w := newWorld(t, s, 1)
				w.step(1)
				w.step(2)
				w.close()
			})
		}
	}
}

// Results are converted to the type that travels.
func TestConvertsResults(t *testing.T) {
	w := newWorld(t, shape{ranks: 2, tokens: 5, hidden: 33, topK: 2, experts: 4, in: backend.F32, x: backend.F32, wire: backend.BF16, out: backend.F32}, 1)
	defer w.close()
	w.send(1, false)
	w.receive(1, false)
	w.answer(1, backend.F32)
	for r := range w.ranks {
		for x := range w.rows[r] {
			for i, o := range w.rows[r][x] {
				for h := range w.hidden {
					y := numeric.At(w.y[r].Data, numeric.TypeF32, (w.base[r][x]+i)*w.hidden+h)
					got := le.Uint16(w.mem[o.rank].Results[o.slot*w.cfg[0].Combine+2*h:])
					if got != numeric.BF16(y) {
						t.Fatalf("rank %d, %+v, column %d: %#x, want %#x of %v", r, o, h, got, numeric.BF16(y), y)
					}
				}
			}
		}
	}
	w.reduce(1)
}
