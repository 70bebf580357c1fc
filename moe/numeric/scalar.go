package numeric

import (
	"encoding/binary"
	"math"
)

// The scalar forms of the functions on rows: the whole of them where there is no faster form, else the last few numbers, and what the
// faster forms are tested against.

func convertScalar(dst []byte, to Type, src []byte, from Type) {
	for i := range len(src) / from.Size() {
		f := At(src, from, i)
		switch to {
		case TypeF32:
			binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(f))
		case TypeF16:
			binary.LittleEndian.PutUint16(dst[2*i:], F16(f))
		default:
			binary.LittleEndian.PutUint16(dst[2*i:], BF16(f))
		}
	}
}

// maxAbsScalar compares bits: without the sign they are ordered as the numbers are, infinity and NaN above all.
func maxAbsScalar(src []byte, t Type) float32 {
	if t == TypeF32 {
		m := uint32(0)
		for ; len(src) >= 4; src = src[4:] {
			m = max(m, binary.LittleEndian.Uint32(src)&absBits)
		}
		return math.Float32frombits(m)
	}
	m := uint16(0)
	for ; len(src) >= 2; src = src[2:] {
		m = max(m, binary.LittleEndian.Uint16(src)&0x7fff)
	}
	return widen16(m, t)
}

// widen16 is the value of the bits of a 16-bit type.
func widen16(m uint16, t Type) float32 {
	if t == TypeF16 {
		return FromF16(m)
	}
	return FromBF16(m)
}

func divScalar(dst, src []byte, from Type, s float32) {
	if from == TypeBF16 { // the usual one, without the branches of At
		for i := range dst {
			x := FromBF16(binary.LittleEndian.Uint16(src[2*i:]))
			dst[i] = e4m3Of(x/s, x)
		}
		return
	}
	for i := range dst {
		x := At(src, from, i)
		dst[i] = e4m3Of(x/s, x)
	}
}

func mulScalar(dst, src []byte, from Type, r float32) {
	for i := range dst {
		x := At(src, from, i)
		dst[i] = e4m3Of(float32(x*r), x) // the conversion keeps the product from being fused
	}
}

// e4m3Of is E4M3 of f with the sign of x: that of a NaN that comes of infinities differs between machines.
func e4m3Of(f, x float32) uint8 { return E4M3(f)&0x7f | uint8(math.Float32bits(x)>>24&0x80) }

// weighScalar is Weigh of one row.
func weighScalar(acc, row []byte, t Type, w float32) {
	size := t.Size()
	for ; len(acc) >= 4 && len(row) >= size; acc, row = acc[4:], row[size:] {
		a := math.Float32frombits(binary.LittleEndian.Uint32(acc))
		a += float32(w * At(row, t, 0)) // the conversion keeps the product from being fused
		binary.LittleEndian.PutUint32(acc, math.Float32bits(a))
	}
}

func fromSumsScalar(dst []byte, to Type, acc []byte) {
	for i := range len(acc) / 4 {
		f := At(acc, TypeF32, i)
		if f != f {
			f = quiet
		}
		switch to {
		case TypeF32:
			binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(f))
		case TypeF16:
			binary.LittleEndian.PutUint16(dst[2*i:], F16(f))
		default:
			binary.LittleEndian.PutUint16(dst[2*i:], BF16(f))
		}
	}
}

// quiet is the NaN of sums.
var quiet = math.Float32frombits(infBits | 1<<22)
