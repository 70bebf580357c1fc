package numeric

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"testing"
)

var types = []Type{TypeF32, TypeF16, TypeBF16}

// put appends the bits u to a row of t.
func put(row []byte, t Type, u uint32) []byte {
	if t == TypeF32 {
		return binary.LittleEndian.AppendUint32(row, u)
	}
	return binary.LittleEndian.AppendUint16(row, uint16(u))
}

// everything is a row of all numbers of a 16-bit type, and for float32 one with all boundaries of all formats.
func everything(t Type) (row []byte) {
	if t != TypeF32 {
		for u := range uint32(1 << 16) {
			row = put(row, t, u)
		}
		return row
	}
	for _, f := range formats() {
		f.boundaries(func(u uint32) { row = put(row, t, u) })
	}
	return row
}

// scales are ordinary, powers of two, least and largest, and such that quotients are subnormal or overflow.
var scales = []float32{1, 0.37, 3.1e-5, 0x1p-20, 1e-10 / 448, 0x1p-126, 0x1p127, 7777.77, float32(math.Inf(1))}

// eachRow calls do with rows of the whole, of every short length, and off alignment.
func eachRow(t Type, do func(row []byte)) {
	all := everything(t)
	do(all)
	for n := range 100 {
		do(all[n*97*t.Size()%4096:][:n*t.Size()])
	}
	do(append(make([]byte, 1, 4097*t.Size()), all[:4096*t.Size()]...)[1:])
}

func TestConvert(t *testing.T) {
	for _, from := range types {
		for _, to := range types {
			eachRow(from, func(row []byte) {
				n := len(row) / from.Size()
				dst := bytes.Repeat([]byte{0xaa}, n*to.Size()+8)
				Convert(dst[:n*to.Size()], to, row, from)
				for i := range n {
					want := put(nil, to, bitsAs(to, At(row, from, i)))
					if from == to {
						want = row[i*from.Size():][:from.Size()]
					}
					if got := dst[i*to.Size():][:to.Size()]; !bytes.Equal(got, want) {
						t.Fatalf("%v %x to %v: %x, want %x (number %d of %d)", from, row[i*from.Size():][:from.Size()], to, got, want, i, n)
					}
				}
				unharmed(t, dst[n*to.Size():])
			})
		}
	}
}

func bitsAs(t Type, f float32) uint32 {
	switch t {
	case TypeF32:
		return math.Float32bits(f)
	case TypeF16:
		return uint32(F16(f))
	}
	return uint32(BF16(f))
}

// unharmed fails if anything was written behind the end.
func unharmed(t *testing.T, rest []byte) {
	t.Helper()
	if !bytes.Equal(rest, bytes.Repeat([]byte{0xaa}, len(rest))) {
		t.Fatalf("written behind the end: %x", rest)
	}
}

// Every number of every type, by scales: the quotient and the product are rounded once to float32, and then to e4m3.
func TestQuantize(t *testing.T) {
	e4m3 := formats()[2]
	for _, from := range types {
		for _, s := range scales {
			eachRow(from, func(row []byte) {
				n := len(row) / from.Size()
				for name, op := range map[string]func(dst, src []byte, from Type, s float32){"/": DivE4M3, "*": MulE4M3} {
					dst := bytes.Repeat([]byte{0xaa}, n+8)
					op(dst[:n], row, from, s)
					for i := range n {
						x := At(row, from, i)
						q := float64(x) / float64(s) // rounding twice is harmless: 53 bits are more than twice 24, and 2
						if name == "*" {
							q = float64(x) * float64(s)
						}
						want := uint8(e4m3.round(float32(q))&0x7f | math.Float32bits(x)>>24&0x80)
						if dst[i] != want {
							t.Fatalf("%v %v %s %v: %#x, want %#x (number %d of %d)", from, x, name, s, dst[i], want, i, n)
						}
					}
					unharmed(t, dst[n:])
				}
			})
		}
	}
}

func TestMaxAbs(t *testing.T) {
	for _, typ := range types {
		for n := range 140 {
			for at := range n {
				row := make([]byte, 0, n*typ.Size())
				for i := range n {
					row = put(row, typ, bitsAs(typ, float32(i%7)*1e-3))
				}
				for _, x := range []float32{-3.5, 17, float32(math.Inf(-1)), float32(math.NaN())} {
					copy(row[at*typ.Size():], put(nil, typ, bitsAs(typ, x)))
					got := MaxAbs(row, typ)
					finite := !math.IsInf(float64(x), 0) && x == x
					if want := float32(math.Abs(float64(x))); got != want && (got == got || x == x) {
						t.Fatalf("%v, %v at %d of %d: %v", typ, x, at, n, got)
					}
					if first := NonFinite(row, typ); finite != (first < 0) || !finite && first != at {
						t.Fatalf("%v, %v at %d of %d: first non-finite is %d", typ, x, at, n, first)
					}
					if x != x && MaxAbsNumber(row, typ) > 0.0061 || x == x && MaxAbsNumber(row, typ) != got {
						t.Fatalf("%v, %v at %d of %d: %v without NaN", typ, x, at, n, MaxAbsNumber(row, typ))
					}
				}
			}
		}
		if m := MaxAbs(nil, typ); m != 0 {
			t.Fatalf("%v: %v of nothing", typ, m)
		}
	}
}

// The scale follows exact arithmetic: one rounding of the quotient, and for ue8m0 the least power of two that is not below the exact one.
func TestScale(t *testing.T) {
	check := func(amax float32) {
		exact := new(big.Float).SetPrec(200).Quo(big.NewFloat(float64(max(amax, DefaultFloor))), big.NewFloat(448))
		want, _ := new(big.Float).SetPrec(24).SetMode(big.ToNearestEven).Set(exact).Float32()
		if got := (Scale{}).Of(amax); got != want {
			t.Fatalf("scale of %v: %v, want %v", amax, got, want)
		}
		power := new(big.Float).SetMantExp(big.NewFloat(1), exact.MantExp(nil)-1)
		if power.Cmp(exact) < 0 {
			power.SetMantExp(big.NewFloat(1), exact.MantExp(nil))
		}
		if got, _ := power.Float32(); (Scale{E8M0: true}).Of(amax) != got {
			t.Fatalf("ue8m0 scale of %v: %v, want %v", amax, (Scale{E8M0: true}).Of(amax), got)
		}
	}
	for exp := uint32(0); exp < 255; exp++ {
		for _, m := range []uint32{0, 1, 1<<23 - 1, 0x5fffff, 0x600000, 0x600001} { // 448 is 1.75 * 2^8
			check(math.Float32frombits(exp<<23 | m))
		}
	}
	for u := uint32(0); u < infBits; u += 65521 {
		check(math.Float32frombits(u))
	}
	if got := (Scale{Floor: 1}).Of(0.5); got != float32(1.0)/448 {
		t.Fatalf("floor 1: %v", got)
	}
}

// What is decoded differs from what was there by half a step at most.
func TestQuantizeError(t *testing.T) {
	row := make([]byte, 0, 4*4096)
	for i := range 4096 {
		row = put(row, TypeF32, math.Float32bits(float32(math.Sin(float64(i)*0.7)*math.Exp(-float64(i%23)))))
	}
	for _, e8m0 := range []bool{false, true} {
		s := Scale{E8M0: e8m0}.Of(MaxAbs(row, TypeF32))
		dst := make([]byte, 4096)
		DivE4M3(dst, row, TypeF32, s)
		for i, q := range dst {
			x := float64(At(row, TypeF32, i))
			err := math.Abs(x - float64(FromE4M3(q))*float64(s))
			if bound := (1 + 0x1p-20) * max(math.Abs(x)*0x1p-4, float64(s)*0x1p-10); err > bound {
				t.Fatalf("number %d, %g: off by %g, more than %g", i, x, err, bound)
			}
		}
	}
}

func TestRowsDoNotAllocate(t *testing.T) {
	src, dst := make([]byte, 4*1000), make([]byte, 4*1000)
	at, w := [2]int{}, [2]float32{1, 2}
	for _, from := range types {
		row := src[:1000*from.Size()]
		if n := testing.AllocsPerRun(100, func() {
			s := Scale{}.Of(MaxAbs(row, from))
			DivE4M3(dst, row, from, s)
			MulE4M3(dst, row, from, 1/s)
			Convert(dst, TypeF32, row, from)
			Convert(dst, TypeBF16, row, from)
			MaxAbsNumber(row, from)
			Weigh(dst, row, from, at[:], w[:])
			FromSums(row, from, dst)
		}); n != 0 {
			t.Fatalf("%v: %v allocations", from, n)
		}
	}
}

func BenchmarkRows(b *testing.B) {
	src, dst := make([]byte, 4*128), make([]byte, 4*128)
	for i := range 128 {
		copy(src[4*i:], put(nil, TypeF32, math.Float32bits(float32(i)/100)))
	}
	run := func(name string, f func()) {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				f()
			}
			b.ReportMetric(float64(b.N)*128/b.Elapsed().Seconds()/1e6, "M/s")
		})
	}
	at, w := [8]int{}, [8]float32{1, 2, 3, 4, 5, 6, 7, 8}
	for _, from := range types {
		row := src[:128*from.Size()]
		run(fmt.Sprintf("maxabs/%v", from), func() { MaxAbs(row, from) })
		run(fmt.Sprintf("div/%v", from), func() { DivE4M3(dst, row, from, 0.01) })
		run(fmt.Sprintf("mul/%v", from), func() { MulE4M3(dst, row, from, 100) })
		run(fmt.Sprintf("bf16/%v", from), func() { Convert(dst, TypeBF16, row, from) })
		run(fmt.Sprintf("maxnumber/%v", from), func() { MaxAbsNumber(row, from) })
		run(fmt.Sprintf("weigh8/%v", from), func() { Weigh(dst, row, from, at[:], w[:]) })
		run(fmt.Sprintf("sums/%v", from), func() { FromSums(row, from, dst) })
	}
	row := src[:256]
	run("scalar/div/BF16", func() { divScalar(dst[:128], row, TypeBF16, 0.01) })
	run("scalar/maxabs/BF16", func() { maxAbsScalar(row, TypeBF16) })
}
