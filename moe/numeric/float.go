package numeric

import "math"

// Bits of a float32.
const (
	signBit = 1 << 31
	absBits = 1<<31 - 1
	infBits = 0xff << 23 // above are NaN, once the sign is off
)

// BF16 rounds f to bfloat16. A NaN keeps its sign and the upper bits of its payload, and is quiet.
func BF16(f float32) uint16 {
	u := math.Float32bits(f)
	if u&absBits > infBits {
		return uint16(u>>16) | 0x40
	}
	return uint16((u + 0x7fff + u>>16&1) >> 16)
}

// FromBF16 is exact.
func FromBF16(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// F16 rounds f to IEEE half precision; 65520 and more become infinite. NaN as in [BF16].
func F16(f float32) uint16 {
	u := math.Float32bits(f)
	sign, abs := uint16(u>>16&0x8000), u&absBits
	switch {
	case abs > infBits:
		return sign | 0x7e00 | uint16(abs>>13&0x3ff)
	case abs >= (127+16)<<23:
		return sign | 0x7c00
	case abs >= (127-14)<<23: // normal: rounding may carry into the exponent, up to infinity, and that is right
		return sign | uint16((abs+0xfff+abs>>13&1)>>13-(127-15)<<10)
	}
	return sign | uint16(math.Float32bits(math.Float32frombits(abs)+0.5)-math.Float32bits(0.5)) // one step of 0.5 is one of f16
}

// FromF16 is exact; a NaN becomes quiet.
func FromF16(h uint16) float32 {
	sign, abs := uint32(h&0x8000)<<16, uint32(h&0x7fff)
	switch {
	case abs > 0x7c00:
		return math.Float32frombits(sign | infBits | 1<<22 | abs<<13)
	case abs == 0x7c00:
		return math.Float32frombits(sign | infBits)
	case abs >= 0x400:
		return math.Float32frombits(sign | (abs<<13 + (127-15)<<23))
	}
	return math.Float32frombits(sign | math.Float32bits(float32(abs)*0x1p-24))
}

// MaxE4M3 is the largest value of e4m3fn.
const MaxE4M3 = 448

const maxE4M3Bits = 0x43e00000 // of 448

// E4M3 rounds f to e4m3fn. It saturates: what is above 448, infinity too, becomes 448. NaN becomes 0x7f or, with its sign, 0xff.
func E4M3(f float32) uint8 {
	u := math.Float32bits(f)
	sign, abs := uint8(u>>24&0x80), u&absBits
	switch {
	case abs > infBits:
		return sign | 0x7f
	case abs >= maxE4M3Bits:
		return sign | 0x7e
	case abs >= (127-6)<<23:
		return sign | uint8((abs+0x7ffff+abs>>20&1)>>20-(127-7)<<3)
	}
	return sign | uint8(math.Float32bits(math.Float32frombits(abs)+0x1p14)-math.Float32bits(0x1p14))
}

// FromE4M3 is exact; 0x7f and 0xff are NaN.
func FromE4M3(b uint8) float32 { return e4m3[b] }

var e4m3 = func() (t [256]float32) {
	for i := range t {
		abs, f := i&0x7f, 0.0
		switch {
		case abs == 0x7f:
			f = math.NaN()
		case abs >= 8:
			f = math.Ldexp(float64(8+abs&7), abs>>3-10)
		default:
			f = math.Ldexp(float64(abs), -9)
		}
		t[i] = float32(math.Copysign(f, float64(0x7f-i)))
	}
	return t
}()

// E5M2 rounds f to e5m2, which has infinities: 61440 and more become infinite. A NaN keeps its sign and is quiet.
func E5M2(f float32) uint8 {
	u := math.Float32bits(f)
	sign, abs := uint8(u>>24&0x80), u&absBits
	switch {
	case abs > infBits:
		return sign | 0x7e | uint8(abs>>21&3)
	case abs >= (127+16)<<23:
		return sign | 0x7c
	case abs >= (127-14)<<23:
		return sign | uint8((abs+0xfffff+abs>>21&1)>>21-(127-15)<<2)
	}
	return sign | uint8(math.Float32bits(math.Float32frombits(abs)+0x1p7)-math.Float32bits(0x1p7))
}

// FromE5M2 is exact.
func FromE5M2(b uint8) float32 { return e5m2[b] }

// e5m2 is the upper half of f16.
var e5m2 = func() (t [256]float32) {
	for i := range t {
		t[i] = FromF16(uint16(i) << 8)
	}
	return t
}()

// CeilE8M0 is the least power of two that is f or more, as ue8m0: 2^(b-127). Negative numbers and zero give the least, 2^-127, what is
// above 2^127 gives 2^127, infinity and NaN give 255, which is NaN.
func CeilE8M0(f float32) uint8 {
	u := math.Float32bits(f)
	switch exp, mantissa := u>>23&0xff, u&(1<<23-1); {
	case exp == 0xff:
		return 255
	case u&signBit != 0:
		return 0
	case exp == 0 && mantissa <= 1<<22: // 2^-127 is subnormal
		return 0
	case mantissa == 0:
		return uint8(exp)
	default:
		return uint8(min(exp+1, 254))
	}
}

// FromE8M0 is exact; 255 is NaN.
func FromE8M0(b uint8) float32 {
	switch b {
	case 0:
		return 0x1p-127
	case 255:
		return float32(math.NaN())
	}
	return math.Float32frombits(uint32(b) << 23)
}
