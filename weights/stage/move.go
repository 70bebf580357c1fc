package stage

import (
	"github.com/hawser-project/hawser/moe/numeric"
	"github.com/hawser-project/hawser/reshard"
)

// numbers is the type of rows that a type of tensors is.
func numbers(t reshard.DType) (numeric.Type, bool) {
	switch t {
	case reshard.F32:
		return numeric.TypeF32, true
	case reshard.F16:
		return numeric.TypeF16, true
	case reshard.BF16:
		return numeric.TypeBF16, true
	}
	return 0, false
}

// rows splits a piece into rows, as long as they are contiguous on both sides, and a walk over where they begin. A row of elements that
// are apart has their distances.
func rows(p *reshard.Piece) (w walk, n, srcStride, dstStride int64) {
	n, srcStride, dstStride = 1, p.From.Size(), p.To.Size()
	from, to := srcStride, dstStride // bytes that the row covers
	var outer [MaxDims]int           // dimensions outside the row, innermost first
	dims := 0
	for d := len(p.Shape) - 1; d >= 0; d-- {
		switch e, a, b := p.Shape[d], p.SrcStride[d], p.DstStride[d]; {
		case e == 1:
		case dims == 0 && n == 1:
			n, srcStride, dstStride, from, to = e, a, b, e*a, e*b
		case dims == 0 && a == from && b == to:
			n, from, to = n*e, from*e, to*e
		default:
			outer[dims] = d
			dims++
		}
	}
	for i := dims - 1; i >= 0; i-- {
		d := outer[i]
		w.push(p.Shape[d], p.SrcStride[d], p.DstStride[d], 0)
	}
	w.at = [3]int64{p.Offset, p.Dst, 0}
	return w, n, srcStride, dstStride
}

// move does the codecs raw and cast: bytes as they are, or rounded to another type.
//
// hot: no allocation.
func move(p *reshard.Piece, src, dst []byte) {
	from, to := p.From.Size(), p.To.Size()
	a, cast := numbers(p.From)
	b, _ := numbers(p.To)
	cast = cast && p.From != p.To
	w, n, srcStride, dstStride := rows(p)
	dense := srcStride == from && dstStride == to
	for more := true; more; more = w.next() {
		s, d := src[w.at[0]:], dst[w.at[1]:]
		switch {
		case dense && cast:
			numeric.Convert(d[:n*to], b, s[:n*from], a)
		case dense:
			copy(d[:n*to], s[:n*from])
		case cast:
			castApart(d, b, dstStride, s, a, srcStride, n)
		default:
			copyApart(d, dstStride, s, srcStride, n, from)
		}
	}
}

// copyApart copies n elements that are apart on at least one side.
func copyApart(dst []byte, dstStride int64, src []byte, srcStride, n, size int64) {
	for i := range n {
		a, b := i*srcStride, i*dstStride
		copy(dst[b:b+size], src[a:a+size])
	}
}

// chunk is how many elements that lie apart are brought together at once.
const chunk = 128

// castApart rounds n elements that are apart on at least one side.
func castApart(dst []byte, to numeric.Type, dstStride int64, src []byte, from numeric.Type, srcStride, n int64) {
	var a, b [4 * chunk]byte
	for at := int64(0); at < n; at += chunk {
		k := int(min(chunk, n-at))
		x, y := a[:k*from.Size()], b[:k*to.Size()]
		gather(x, src[at*srcStride:], k, srcStride, int64(from.Size()))
		numeric.Convert(y, to, x, from)
		scatter(dst[at*dstStride:], y, k, dstStride, int64(to.Size()))
	}
}
