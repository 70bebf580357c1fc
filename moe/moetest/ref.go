package moetest

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/numeric"
)

var le = binary.LittleEndian

// Ref says of every byte of a step what it must be, by the declared order and nothing else: expert e makes a*x + b of x, in float32. What
// goes in are numbers that tell rank, token and element, so that one in a wrong place tells where it belongs.
type Ref struct {
	Shape

	Hidden int
	Align  int           // rows of an expert begin at multiples of it; 0: 1
	In     backend.DType // F32 or BF16: of what is dispatched
	Wire   backend.DType // F32, BF16 or F16: of results
	Out    backend.DType // likewise, of sums

	row []byte
	acc []float32
}

// codes are the numbers that payloads tell: in sign, lowest bit of the exponent, and mantissa of a float32 from 1 to 4.
const (
	codeBits = 25
	spread   = 0x1935_7a5 | 1 // odd, so there is a way back; neighbours differ in high bits, which no sum hides
)

// payload is the element h of a token.
func (f *Ref) payload(step uint64, rank, token, h int) float32 {
	return f.code(uint32(f.place(step, rank, token) + uint64(h)))
}

// place numbers the first element of a token.
func (f *Ref) place(step uint64, rank, token int) uint64 {
	return ((step*uint64(f.Ranks)+uint64(rank))*uint64(f.Tokens) + uint64(token)) * uint64(f.Hidden)
}

func (f *Ref) code(place uint32) float32 {
	c := place * spread & (1<<codeBits - 1)
	v := 0x3f80_0000 + c&0xff_ffff | c>>24<<31
	if f.In == backend.BF16 {
		v &= 0xffff_0000
	}
	return math.Float32frombits(v)
}

// Tell says what a number stands for, if it is a payload.
func (f *Ref) Tell(x float32) string {
	place, world, ok := f.find(x)
	if !ok {
		return fmt.Sprint(x)
	}
	step := place / world
	place %= world
	h, t := place%uint64(f.Hidden), place/uint64(f.Hidden)
	return fmt.Sprintf("%v: rank %d, token %d, element %d, of a step that is %d modulo %d", x, t/uint64(f.Tokens), t%uint64(f.Tokens), h, step, (1<<codeBits)/world)
}

// find is the way back from a payload to its place, modulo as many as there are codes; world is how many places a step has.
func (f *Ref) find(x float32) (place, world uint64, ok bool) {
	v := math.Float32bits(x)
	c := v&0x7fff_ffff - 0x3f80_0000
	world = uint64(f.Ranks) * uint64(f.Tokens) * uint64(f.Hidden)
	if c > 0xff_ffff || f.In != backend.F32 || world > 1<<codeBits {
		return 0, world, false
	}
	inverse := uint32(1)
	for range 5 { // Newton: each turn doubles the bits that are right
		inverse *= 2 - spread*inverse
	}
	return uint64((c | v>>31<<24) * inverse & (1<<codeBits - 1)), world, true
}

// Expert is what expert e makes of a number.
func Expert(e int, x float32) float32 {
	a, b := coefficients(e)
	return float32(a*x) + b
}

func coefficients(e int) (a, b float32) {
	return 0.5 + float32(e%97)/64, float32(e%61) / 32
}

func size(t backend.DType) int {
	if t == backend.F32 {
		return 4
	}
	return 2
}

func kindOf(t backend.DType) numeric.Type {
	switch t {
	case backend.BF16:
		return numeric.TypeBF16
	case backend.F16:
		return numeric.TypeF16
	default:
		return numeric.TypeF32
	}
}

// Input writes the rows that a rank dispatches: those of the tokens that it has.
func (f *Ref) Input(r *Routing, step uint64, rank int, x []byte) {
	for t := range r.N[rank] {
		f.putRow(x[t*f.Hidden*size(f.In):], step, rank, t)
	}
}

func (f *Ref) putRow(b []byte, step uint64, rank, token int) {
	place := uint32(f.place(step, rank, token))
	if f.In == backend.BF16 {
		for h := range f.Hidden {
			le.PutUint16(b[2*h:], uint16(math.Float32bits(f.code(place+uint32(h)))>>16))
		}
		return
	}
	for h := range f.Hidden {
		le.PutUint32(b[4*h:], math.Float32bits(f.code(place+uint32(h))))
	}
}

// Compute is all experts of a rank: y of each row that counts and offsets name.
func (f *Ref) Compute(rank int, counts, offsets []uint32, x, y []byte) {
	for local, n := range counts {
		a, b := coefficients(rank*f.Local() + local)
		for i := int(offsets[local]) * f.Hidden; i < int(offsets[local]+n)*f.Hidden; i++ {
			var v float32
			if f.In == backend.BF16 {
				v = numeric.FromBF16(le.Uint16(x[2*i:]))
			} else {
				v = math.Float32frombits(le.Uint32(x[4*i:]))
			}
			put(y, f.Wire, i, float32(a*v)+b)
		}
	}
}

func put(b []byte, t backend.DType, i int, v float32) {
	switch t {
	case backend.BF16:
		le.PutUint16(b[2*i:], numeric.BF16(v))
	case backend.F16:
		le.PutUint16(b[2*i:], numeric.F16(v))
	default:
		le.PutUint32(b[4*i:], math.Float32bits(v))
	}
}

// Wrong is what differed.
type Wrong struct {
	Bytes int
	First string // where, and what should be there; empty if nothing differed
}

func (w *Wrong) note(bytes int, format string, args ...any) {
	if w.Bytes += bytes; w.First == "" {
		w.First = fmt.Sprintf(format, args...)
	}
}

// differ compares bytes.
func differ(got, want []byte) (n, first int) {
	first = -1
	for i := range want {
		if got[i] != want[i] {
			if n++; first < 0 {
				first = i
			}
		}
	}
	return n, first
}

// Gone says which ranks do not take part, or are missing; nil: none.
type Gone func(rank int) bool

func (g Gone) has(rank int) bool { return g != nil && g(rank) }

// Received are the rows for the experts of a rank, counted, and where they begin.
func (f *Ref) Received(r *Routing, rank int, gone Gone) (counts, offsets []uint32) {
	counts = make([]uint32, f.Local())
	for src := range f.Ranks {
		if gone.has(src) {
			continue
		}
		ids, _ := r.Row(src)
		for _, e := range ids {
			if e >= 0 && r.RankOf(int(e)) == rank {
				counts[int(e)-rank*f.Local()]++
			}
		}
	}
	return counts, f.offsets(counts)
}

func (f *Ref) offsets(counts []uint32) []uint32 {
	offsets := make([]uint32, len(counts)+1)
	align := uint32(max(f.Align, 1))
	for i, n := range counts {
		offsets[i+1] = offsets[i] + (n+align-1)/align*align
	}
	return offsets
}

// CheckDispatch compares what a rank received with what it must have: counts, offsets, and each byte of each row, by expert, source,
// token and column. outside: these are no members. Rows of who is missing are there, if it went missing after they came, or are not.
func (f *Ref) CheckDispatch(r *Routing, step uint64, rank int, counts, offsets []uint32, x []byte, outside Gone, missing []int) (first Wrong) {
	for set := range 1 << len(missing) {
		w := f.checkRows(r, step, rank, counts, offsets, x, func(src int) bool {
			i := slices.Index(missing, src)
			return outside.has(src) || i >= 0 && set>>i&1 == 0
		})
		if w.Bytes == 0 {
			return w
		}
		if set == 0 {
			first = w
		}
	}
	return first
}

func (f *Ref) checkRows(r *Routing, step uint64, rank int, counts, offsets []uint32, x []byte, gone Gone) (w Wrong) {
	wantCounts, wantOffsets := f.Received(r, rank, gone)
	for i, n := range wantCounts {
		if counts[i] != n || offsets[i] != wantOffsets[i] {
			w.note(8, "dispatch of step %d: rank %d: expert %d has %d rows from row %d on, want %d from %d on",
				step, rank, rank*f.Local()+i, counts[i], offsets[i], n, wantOffsets[i])
		}
	}
	if w.Bytes > 0 {
		return w
	}
	next := append([]uint32(nil), wantOffsets...)
	f.grow()
	for src := range f.Ranks {
		ids, _ := r.Row(src)
		for i, e := range ids {
			if e < 0 || gone.has(src) || r.RankOf(int(e)) != rank {
				continue
			}
			local := int(e) - rank*f.Local()
			f.checkRow(&w, step, src, i/f.TopK, int(e), int(next[local]), x)
			next[local]++
		}
	}
	return w
}

func (f *Ref) grow() {
	if n := 4 * f.Hidden; len(f.row) < n {
		f.row, f.acc = make([]byte, n), make([]float32, f.Hidden)
	}
}

func (f *Ref) checkRow(w *Wrong, step uint64, src, token, e, row int, x []byte) {
	n := f.Hidden * size(f.In)
	want := f.row[:n]
	f.putRow(want, step, src, token)
	got := x[row*n : (row+1)*n]
	if bad, at := differ(got, want); bad > 0 {
		h := at / size(f.In)
		w.note(bad, "dispatch of step %d: row %d, of expert %d: element %d is %s; want %s", step, row, e, h,
			f.Tell(f.get(got, h)), f.Tell(f.get(want, h)))
	}
}

func (f *Ref) get(b []byte, h int) float32 { return numeric.At(b, kindOf(f.In), h) }

// Sum is what a combine adds beside results. It changes from step to step.
type Sum struct {
	Accumulate bool
	Bias       bool
}

// SumOf is that of a step.
func SumOf(step uint64) Sum { return Sum{Accumulate: step%3 == 1, Bias: step%4 == 2} }

// Before is what the rows of the sum hold before, and Bias what is added: payloads, of steps that do not come.
func (f *Ref) Before(step uint64, rank, tokens int, out []byte) { f.fill(^step, rank, tokens, out) }

// Bias writes the rows of the bias, of the type Out.
func (f *Ref) Bias(step uint64, rank, tokens int, bias []byte) {
	f.fill(^step^1<<40, rank, tokens, bias)
}

func (f *Ref) fill(step uint64, rank, tokens int, b []byte) {
	for t := range tokens {
		for h := range f.Hidden {
			put(b, f.Out, t*f.Hidden+h, f.payload(step, rank, t, h))
		}
	}
}

func (f *Ref) stored(v float32, t backend.DType) float32 {
	switch t {
	case backend.BF16:
		return numeric.FromBF16(numeric.BF16(v))
	case backend.F16:
		return numeric.FromF16(numeric.F16(v))
	default:
		return v
	}
}

// CheckCombine compares the sums of a rank with what they must be: those of all columns whose ranks are not gone. but: these tokens are
// not looked at; nil: all are.
func (f *Ref) CheckCombine(r *Routing, step uint64, rank int, out []byte, gone Gone, but func(token int) bool) (w Wrong) {
	f.grow()
	n := f.Hidden * size(f.Out)
	for t := range r.N[rank] {
		if but != nil && but(t) {
			continue
		}
		f.sum(r, step, rank, t, gone)
		want := f.row[:n]
		for h, v := range f.acc[:f.Hidden] {
			put(want, f.Out, h, v)
		}
		if bad, at := differ(out[t*n:(t+1)*n], want); bad > 0 {
			h := at / size(f.Out)
			w.note(bad, "combine of step %d: rank %d, token %d, element %d is %v, want %v", step, rank, t, h,
				numeric.At(out[t*n:], kindOf(f.Out), h), numeric.At(want, kindOf(f.Out), h))
		}
	}
	return w
}

// sum is the declared order: what was there, columns, bias, each product and each sum rounded.
func (f *Ref) sum(r *Routing, step uint64, rank, token int, gone Gone) {
	s := SumOf(step)
	acc := f.acc[:f.Hidden]
	for h := range acc {
		acc[h] = 0
		if s.Accumulate {
			acc[h] = f.stored(f.payload(^step, rank, token, h), f.Out)
		}
	}
	place := uint32(f.place(step, rank, token))
	for j := range f.TopK {
		e := r.ID(rank, token, j)
		if e < 0 || gone.has(r.RankOf(e)) {
			continue
		}
		g := r.Weight(rank, token, j)
		a, b := coefficients(e)
		for h := range acc {
			y := float32(a*f.code(place+uint32(h))) + b
			if f.Wire != backend.F32 {
				y = f.stored(y, f.Wire)
			}
			acc[h] += float32(g * y)
		}
	}
	if s.Bias {
		for h := range acc {
			acc[h] += f.stored(f.payload(^step^1<<40, rank, token, h), f.Out)
		}
	}
}

func putWeights(b []byte, weights []float32) {
	for i, g := range weights {
		le.PutUint32(b[4*i:], math.Float32bits(g))
	}
}
