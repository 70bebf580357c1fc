//go:build !race && !purego

package numeric

import (
	"math"

	"golang.org/x/sys/cpu"
)

// fast: the processor has what the assembly uses. Tests clear it.
var fast = cpu.X86.HasAVX2 && hasF16C()

// fastStep is how many numbers one turn of the assembly's loops takes.
const fastStep = 32

// whole is the largest multiple of fastStep that is not above n, 0 if the assembly cannot run.
func whole(n int) int {
	if !fast {
		return 0
	}
	return n &^ (fastStep - 1)
}

// convertFast converts the first numbers of src, and returns how many.
func convertFast(dst []byte, to Type, src []byte, from Type) int {
	n := whole(len(src) / from.Size())
	if n == 0 {
		return 0
	}
	switch {
	case from == TypeF32 && to == TypeF16:
		f32ToF16(&dst[0], &src[0], n)
	case from == TypeF32 && to == TypeBF16:
		f32ToBF16(&dst[0], &src[0], n)
	case from == TypeF16 && to == TypeF32:
		f16ToF32(&dst[0], &src[0], n)
	case from == TypeF16 && to == TypeBF16:
		f16ToBF16(&dst[0], &src[0], n)
	case from == TypeBF16 && to == TypeF32:
		bf16ToF32(&dst[0], &src[0], n)
	case from == TypeBF16 && to == TypeF16:
		bf16ToF16(&dst[0], &src[0], n)
	default:
		return 0
	}
	return n
}

// maxAbsFast is MaxAbs of the first numbers of src, and how many.
func maxAbsFast(src []byte, t Type) (int, float32) {
	n := whole(len(src) / t.Size())
	switch {
	case n == 0:
		return 0, 0
	case t == TypeF32:
		return n, math.Float32frombits(maxAbs32(&src[0], n))
	default:
		return n, widen16(uint16(maxAbs16(&src[0], n)), t)
	}
}

// divFast does the first numbers of DivE4M3, and returns how many.
func divFast(dst, src []byte, from Type, s float32) int {
	n := whole(len(dst))
	switch {
	case n == 0:
	case from == TypeF32:
		divF32(&dst[0], &src[0], n, s)
	case from == TypeF16:
		divF16(&dst[0], &src[0], n, s)
	default:
		divBF16(&dst[0], &src[0], n, s)
	}
	return n
}

// mulFast does the first numbers of MulE4M3, and returns how many.
func mulFast(dst, src []byte, from Type, r float32) int {
	n := whole(len(dst))
	switch {
	case n == 0:
	case from == TypeF32:
		mulF32(&dst[0], &src[0], n, r)
	case from == TypeF16:
		mulF16(&dst[0], &src[0], n, r)
	default:
		mulBF16(&dst[0], &src[0], n, r)
	}
	return n
}

// maxNumberFast is MaxAbsNumber of the first numbers of src, and how many.
func maxNumberFast(src []byte, t Type) (int, float32) {
	n := whole(len(src) / t.Size())
	switch {
	case n == 0:
		return 0, 0
	case t == TypeF32:
		return n, math.Float32frombits(maxNumber32(&src[0], n))
	case t == TypeF16:
		return n, FromF16(uint16(maxNumber16(&src[0], n, 0x7c00)))
	default:
		return n, FromBF16(uint16(maxNumber16(&src[0], n, infBits>>16)))
	}
}

// weighFast does the first numbers of Weigh, and returns how many.
func weighFast(acc, rows []byte, t Type, at []int, w []float32) int {
	n, k := whole(len(acc)/4), len(at)
	switch {
	case n == 0 || k == 0:
	case t == TypeF32:
		weighF32(&acc[0], &rows[0], &at[0], &w[0], k, n)
	case t == TypeF16:
		weighF16(&acc[0], &rows[0], &at[0], &w[0], k, n)
	default:
		weighBF16(&acc[0], &rows[0], &at[0], &w[0], k, n)
	}
	return n
}

// fromSumsFast does the first numbers of FromSums, and returns how many.
func fromSumsFast(dst []byte, to Type, acc []byte) int {
	n := whole(len(acc) / 4)
	switch {
	case n == 0:
	case to == TypeF32:
		sumsToF32(&dst[0], &acc[0], n)
	case to == TypeF16:
		sumsToF16(&dst[0], &acc[0], n)
	default:
		sumsToBF16(&dst[0], &acc[0], n)
	}
	return n
}

// In fast_amd64.s. n is more than 0 and a multiple of fastStep.

func hasF16C() bool

//go:noescape
func f32ToF16(dst, src *byte, n int)

//go:noescape
func f32ToBF16(dst, src *byte, n int)

//go:noescape
func f16ToF32(dst, src *byte, n int)

//go:noescape
func f16ToBF16(dst, src *byte, n int)

//go:noescape
func bf16ToF32(dst, src *byte, n int)

//go:noescape
func bf16ToF16(dst, src *byte, n int)

//go:noescape
func maxAbs16(src *byte, n int) uint32

//go:noescape
func maxAbs32(src *byte, n int) uint32

//go:noescape
func divF32(dst, src *byte, n int, s float32)

//go:noescape
func divF16(dst, src *byte, n int, s float32)

//go:noescape
func divBF16(dst, src *byte, n int, s float32)

//go:noescape
func mulF32(dst, src *byte, n int, s float32)

//go:noescape
func mulF16(dst, src *byte, n int, s float32)

//go:noescape
func mulBF16(dst, src *byte, n int, s float32)

//go:noescape
func maxNumber16(src *byte, n int, inf uint32) uint32

//go:noescape
func maxNumber32(src *byte, n int) uint32

//go:noescape
func weighF32(acc, rows *byte, at *int, w *float32, k, n int)

//go:noescape
func weighF16(acc, rows *byte, at *int, w *float32, k, n int)

//go:noescape
func weighBF16(acc, rows *byte, at *int, w *float32, k, n int)

//go:noescape
func sumsToF32(dst, src *byte, n int)

//go:noescape
func sumsToF16(dst, src *byte, n int)

//go:noescape
func sumsToBF16(dst, src *byte, n int)
