package numeric

import (
	"math"
	"sort"
	"testing"
)

// format describes a narrow format for a slow oracle that has nothing in common with the code: a table of all values, and a search.
type format struct {
	name           string
	mantissa, bias int
	finite         int  // the largest code of a finite number without sign
	infinite       bool // there is an infinity, one above finite; else it saturates
	sign           uint32
	nan            func(u uint32) uint32 // what a float32 NaN becomes, without its sign
	encode         func(float32) uint32
	decode         func(uint32) float32

	values []float64 // of the codes 0 .. finite
}

func formats() []*format {
	all := []*format{
		{
			name: "bf16", mantissa: 7, bias: 127, finite: 0x7f7f, infinite: true, sign: 0x8000,
			nan:    func(u uint32) uint32 { return u>>16&0x7fff | 0x40 },
			encode: func(f float32) uint32 { return uint32(BF16(f)) }, decode: func(c uint32) float32 { return FromBF16(uint16(c)) },
		},
		{
			name: "f16", mantissa: 10, bias: 15, finite: 0x7bff, infinite: true, sign: 0x8000,
			nan:    func(u uint32) uint32 { return 0x7e00 | u>>13&0x1ff },
			encode: func(f float32) uint32 { return uint32(F16(f)) }, decode: func(c uint32) float32 { return FromF16(uint16(c)) },
		},
		{
			name: "e4m3", mantissa: 3, bias: 7, finite: 0x7e, sign: 0x80,
			nan:    func(uint32) uint32 { return 0x7f },
			encode: func(f float32) uint32 { return uint32(E4M3(f)) }, decode: func(c uint32) float32 { return FromE4M3(uint8(c)) },
		},
		{
			name: "e5m2", mantissa: 2, bias: 15, finite: 0x7b, infinite: true, sign: 0x80,
			nan:    func(u uint32) uint32 { return 0x7e | u>>21&1 },
			encode: func(f float32) uint32 { return uint32(E5M2(f)) }, decode: func(c uint32) float32 { return FromE5M2(uint8(c)) },
		},
	}
	for _, f := range all {
		for code := 0; code <= f.finite+1; code++ { // one more: where infinity would be if it were a number
			m, e := code&(1<<f.mantissa-1), code>>f.mantissa
			if e > 0 {
				m |= 1 << f.mantissa
			} else {
				e = 1
			}
			f.values = append(f.values, math.Ldexp(float64(m), e-f.bias-f.mantissa))
		}
	}
	return all
}

// round is the oracle. Midpoints of neighbouring values are exact in float64.
func (f *format) round(x float32) uint32 {
	u := math.Float32bits(x)
	sign := uint32(0)
	if u>>31 != 0 {
		sign = f.sign
	}
	if x != x {
		return sign | f.nan(u)
	}
	abs := math.Abs(float64(x))
	code := sort.SearchFloat64s(f.values, abs) // the first value that is not below
	switch {
	case code > f.finite+1:
		code = f.finite + 1
	case f.values[code] > abs:
		mid := (f.values[code-1] + f.values[code]) / 2
		if abs < mid || abs == mid && code%2 == 1 {
			code--
		}
	}
	if !f.infinite {
		code = min(code, f.finite)
	}
	return sign | uint32(code)
}

func (f *format) check(t *testing.T, u uint32) {
	t.Helper()
	x := math.Float32frombits(u)
	if got, want := f.encode(x), f.round(x); got != want {
		t.Fatalf("%s of %v (%08x): %#x, want %#x", f.name, x, u, got, want)
	}
}

// boundaries calls do with every float32 at which the result of a rounding to f may change, and its neighbours.
func (f *format) boundaries(do func(u uint32)) {
	around := func(x float64) {
		u := math.Float32bits(float32(x))
		for d := -2; d <= 2; d++ {
			do(u + uint32(d))
			do(u + uint32(d) ^ signBit)
		}
	}
	for i, v := range f.values[:len(f.values)-1] {
		around(v)
		around((v + f.values[i+1]) / 2)
	}
	around(f.values[len(f.values)-1])
	for _, u := range []uint32{infBits, infBits + 1, absBits, infBits | 1<<22, infBits | 0x2345, infBits | 0x7abcde} {
		do(u)
		do(u | signBit)
	}
}

// A rounding is monotonic, so that it is right everywhere if it is right on both sides of each boundary.
func TestEncodeBoundaries(t *testing.T) {
	for _, f := range formats() {
		f.boundaries(func(u uint32) { f.check(t, u) })
	}
}

// TestEncodeStride goes through all float32 in steps; with the tag soak in steps of one.
func TestEncodeStride(t *testing.T) {
	for _, f := range formats() {
		for u := uint64(0); u < 1<<32; u += stride {
			f.check(t, uint32(u))
		}
	}
}

func TestDecodeAll(t *testing.T) {
	for _, f := range formats() {
		for code := uint32(0); code < f.sign; code++ {
			for _, c := range []uint32{code, code | f.sign} {
				got := f.decode(c)
				want := float32(math.Inf(1))
				switch {
				case code <= uint32(f.finite):
					want = float32(f.values[code])
				case code > uint32(f.finite)+1 || !f.infinite:
					want = float32(math.NaN())
				}
				if c&f.sign != 0 {
					want = -want
				}
				if want != want {
					if got == got {
						t.Fatalf("%s %#x: %v, want NaN", f.name, c, got)
					}
					continue
				}
				if math.Float32bits(got) != math.Float32bits(want) {
					t.Fatalf("%s %#x: %v, want %v", f.name, c, got, want)
				}
				if back := f.encode(got); back != c && (code <= uint32(f.finite) || f.infinite) {
					t.Fatalf("%s %#x: %#x there and back", f.name, c, back)
				}
			}
		}
	}
}

func TestE8M0(t *testing.T) {
	for b := range 255 {
		if got, want := float64(FromE8M0(uint8(b))), math.Ldexp(1, b-127); got != want {
			t.Fatalf("%d: %g, want %g", b, got, want)
		}
	}
	if f := FromE8M0(255); f == f {
		t.Fatalf("255: %v, want NaN", f)
	}
	for exp := range uint32(256) {
		for _, m := range []uint32{0, 1, 2, 1<<22 - 1, 1 << 22, 1<<22 + 1, 1<<23 - 1} {
			for _, sign := range []uint32{0, signBit} {
				x := math.Float32frombits(sign | exp<<23 | m)
				want := 0
				switch {
				case x != x || math.IsInf(float64(x), 0):
					want = 255
				default:
					for want < 254 && math.Ldexp(1, want-127) < float64(x) {
						want++
					}
				}
				if got := CeilE8M0(x); int(got) != want {
					t.Fatalf("%v: %d, want %d", x, got, want)
				}
			}
		}
	}
}
