package stage

import (
	"slices"

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

// mover does the codecs raw and cast for one piece, row by row: bytes as they are, or rounded to another type.
type mover struct {
	walk                    walk
	n, srcStride, dstStride int64 // of a row
	from, to                int64 // bytes of an element
	a, b                    numeric.Type
	dense, cast             bool
	over                    bool // every row is moved
}

func (m *mover) init(p *reshard.Piece) {
	m.from, m.to = p.From.Size(), p.To.Size()
	m.a, m.cast = numbers(p.From)
	m.b, _ = numbers(p.To)
	m.cast = m.cast && p.From != p.To
	m.walk, m.n, m.srcStride, m.dstStride = rows(p)
	m.dense = m.srcStride == m.from && m.dstStride == m.to
}

// row moves one row, and reports whether there are more.
//
// hot: no allocation.
func (m *mover) row(src, dst []byte) bool {
	s, d, n := src[m.walk.at[0]:], dst[m.walk.at[1]:], m.n
	switch {
	case m.dense && m.cast:
		numeric.Convert(d[:n*m.to], m.b, s[:n*m.from], m.a)
	case m.dense:
		copy(d[:n*m.to], s[:n*m.from])
	case m.cast:
		castApart(d, m.b, m.dstStride, s, m.a, m.srcStride, n)
	default:
		copyApart(d, m.dstStride, s, m.srcStride, n, m.from)
	}
	return m.walk.next()
}

// maxBeside is how many pieces are moved at the same time.
const maxBeside = 8

// besides counts the pieces, from the first on, that are beside it.
func besides(pieces []reshard.Piece) int {
	n := 1
	for n < min(len(pieces), maxBeside) && Beside(&pieces[0], &pieces[n]) {
		n++
	}
	return n
}

// Beside reports whether two pieces are different columns of the same rows. Staged one behind the other in the same task they are read a row at a
// time.
func Beside(p, q *reshard.Piece) bool {
	k := len(p.Shape) - 1
	if p.Tensor != q.Tensor || p.Codec != q.Codec || p.Buffer != q.Buffer || len(q.Shape) != k+1 || len(p.Origin) != k+1 || len(q.Origin) != k+1 {
		return false
	}
	return slices.Equal(p.Shape[:k], q.Shape[:k]) && slices.Equal(p.Origin[:k], q.Origin[:k]) && slices.Equal(p.SrcStride, q.SrcStride)
}

// move moves pieces that are beside each other, a row of each in turn. So the source is read from its beginning to its end, which with memory
// that is in no cache is twice as fast as piece by piece.
//
// hot: no allocation.
func move(pieces []reshard.Piece, src, dst []byte) {
	var all [maxBeside]mover
	for i := range pieces {
		all[i].init(&pieces[i])
	}
	for left := len(pieces); left > 0; {
		left = 0
		for i := range pieces {
			if m := &all[i]; !m.over {
				if m.over = !m.row(src, dst); !m.over {
					left++
				}
			}
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
