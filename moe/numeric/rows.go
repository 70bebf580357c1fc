package numeric

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Type is the type of the numbers of a row.
type Type uint8

// The types of rows.
const (
	TypeF32 Type = iota
	TypeF16
	TypeBF16
)

// Size is bytes.
func (t Type) Size() int {
	if t == TypeF32 {
		return 4
	}
	return 2
}

func (t Type) String() string {
	switch t {
	case TypeF32:
		return "F32"
	case TypeF16:
		return "F16"
	case TypeBF16:
		return "BF16"
	}
	return fmt.Sprintf("Type(%d)", t)
}

// At is the number with index i of a row.
//
// hot: no allocation.
func At(row []byte, t Type, i int) float32 {
	switch t {
	case TypeF32:
		return math.Float32frombits(binary.LittleEndian.Uint32(row[4*i:]))
	case TypeF16:
		return FromF16(binary.LittleEndian.Uint16(row[2*i:]))
	default:
		return FromBF16(binary.LittleEndian.Uint16(row[2*i:]))
	}
}

// Convert rounds the n = len(src)/from.Size() numbers of src to another type. It panics if dst is too short. The same type is a copy,
// which leaves even signalling NaN as they are.
//
// hot: no allocation.
func Convert(dst []byte, to Type, src []byte, from Type) {
	n := len(src) / from.Size()
	dst, src = dst[:n*to.Size()], src[:n*from.Size()]
	if from == to {
		copy(dst, src)
		return
	}
	done := convertFast(dst, to, src, from)
	convertScalar(dst[done*to.Size():], to, src[done*from.Size():], from)
}

// MaxAbs is the largest absolute value of a row, 0 of an empty one. It is infinite or NaN exactly if something in the row is: then
// [NonFinite] finds it.
//
// hot: no allocation.
func MaxAbs(src []byte, t Type) float32 {
	done, m := maxAbsFast(src, t)
	return max(m, maxAbsScalar(src[done*t.Size():], t))
}

// MaxAbsNumber is MaxAbs of what is not NaN.
//
// hot: no allocation.
func MaxAbsNumber(src []byte, t Type) float32 {
	done, m := maxNumberFast(src, t)
	for i := done; i < len(src)/t.Size(); i++ {
		if v := math.Float32frombits(math.Float32bits(At(src, t, i)) & absBits); v > m {
			m = v
		}
	}
	return m
}

// NonFinite is the index of the first infinity or NaN of a row, -1 without.
func NonFinite(src []byte, t Type) int {
	for i := range len(src) / t.Size() {
		if math.Float32bits(At(src, t, i))&absBits >= infBits {
			return i
		}
	}
	return -1
}

// DivE4M3 sets dst[i] to E4M3(src[i] / s), for s > 0. It panics if dst is too short.
//
// hot: no allocation.
func DivE4M3(dst, src []byte, from Type, s float32) {
	n := len(src) / from.Size()
	dst, src = dst[:n], src[:n*from.Size()]
	done := divFast(dst, src, from, s)
	divScalar(dst[done:], src[done*from.Size():], from, s)
}

// MulE4M3 sets dst[i] to E4M3(src[i] * r), for r > 0. It panics if dst is too short.
//
// hot: no allocation.
func MulE4M3(dst, src []byte, from Type, r float32) {
	n := len(src) / from.Size()
	dst, src = dst[:n], src[:n*from.Size()]
	done := mulFast(dst, src, from, r)
	mulScalar(dst[done:], src[done*from.Size():], from, r)
}
