package stage

import (
	"encoding/binary"
	"math"

	"github.com/hawser-project/hawser/moe/numeric"
	"github.com/hawser-project/hawser/reshard"
)

// panel is how many blocks side by side are done together: their rows are read one after the other, twice, the second time from the
// processor's second cache.
const panel = 8

// quantizer does the codec fp8block for one piece. It lives on the stack of one call.
type quantizer struct {
	p     *reshard.Piece
	codec *reshard.Codec
	names []string
	allow bool // what is no number, too
	from  numeric.Type
	scale numeric.Scale
	src   []byte
	dst   []byte

	rows, cols   int64 // of a matrix
	br, bc       int64 // of a block
	top, left    int64 // rows and columns of the first block that lie before the piece
	rowIn, colIn int64 // strides of the source
	rowTo, colTo int64 // strides of staging
	scaleRow     int64
	scaleCol     int64
	outer        walk // over the matrices: source, staging, scales
	row          [4 * chunk]byte
	out          [chunk]byte
}

func (q *quantizer) init(c *CPU, s *reshard.Slice, p *reshard.Piece, src, dst []byte) {
	q.p, q.codec, q.names, q.allow, q.src, q.dst = p, &s.Codecs[p.Codec], s.Tensors, c.AllowNonFinite, src, dst
	q.from, _ = numbers(p.From)
	q.scale = numeric.Scale{Floor: q.codec.Floor, E8M0: q.codec.Scale == reshard.F8E8M0}
	q.br, q.bc = blockOf(q.codec)
	q.outer.at = [3]int64{p.Offset, p.Dst, p.Scale}
	q.rows = 1
	n := len(p.Shape)
	q.cols, q.colIn, q.colTo, q.scaleCol = p.Shape[n-1], p.SrcStride[n-1], stride(p.DstStride, n-1), stride(p.ScaleStride, n-1)
	q.left = p.Origin[n-1] % q.bc
	if n == 1 {
		return
	}
	q.rows, q.rowIn, q.rowTo, q.scaleRow = p.Shape[n-2], p.SrcStride[n-2], stride(p.DstStride, n-2), stride(p.ScaleStride, n-2)
	q.top = p.Origin[n-2] % q.br
	for d := range n - 2 {
		q.outer.push(p.Shape[d], p.SrcStride[d], stride(p.DstStride, d), stride(p.ScaleStride, d))
	}
}

// blockOf is the rows and columns of a block.
func blockOf(c *reshard.Codec) (rows, cols int64) {
	rows, cols = int64(c.Block[0]), int64(c.Block[1])
	if rows == 0 {
		rows = 128
	}
	if cols == 0 {
		cols = 128
	}
	return rows, cols
}

// stride is that of a dimension; pieces without values, or without scales, may have none.
func stride(s []int64, d int) int64 {
	if d < len(s) {
		return s[d]
	}
	return 0
}

// span is what block i of a dimension covers of the piece's n elements, when the piece begins skipped elements into the first block.
func span(i, block, skipped, n int64) (lo, hi int64) {
	return max(0, i*block-skipped), min(n, (i+1)*block-skipped)
}

// amax raises the table's entries to the largest absolute values of the piece.
func (q *quantizer) amax(table []float32) error {
	return q.panels(func(matrix, i, first, last int64) error {
		return q.maxima(i, first, last, table[q.entry(matrix, i, first):])
	})
}

// fill writes values and scales. Without a table all blocks are whole, and it finds their maxima itself.
func (q *quantizer) fill(table []float32) error {
	return q.panels(func(matrix, i, first, last int64) error {
		var own [panel]float32
		maxima := own[:]
		if table != nil {
			maxima = table[q.entry(matrix, i, first):]
		} else if err := q.maxima(i, first, last, maxima); err != nil {
			return err
		}
		var scales [panel]float32
		for j := range last - first {
			if scales[j] = q.scale.Of(maxima[j]); !(maxima[j] <= math.MaxFloat32) && !q.allow {
				return q.nonFinite(i, first+j) // of a partner
			}
		}
		q.sendScales(i, first, last, &scales)
		if q.p.Dst >= 0 {
			q.values(i, first, last, &scales)
		}
		return nil
	})
}

// entry is where the table has the maximum of a block.
func (q *quantizer) entry(matrix, i, j int64) int64 {
	return int64(q.p.Maxima) + (matrix*int64(q.p.BlockRows)+i)*int64(q.p.BlockCols) + j
}

// panels calls f for every row of blocks of every matrix, some blocks side by side at a time.
func (q *quantizer) panels(f func(matrix, i, first, last int64) error) error {
	matrix := int64(0)
	for more := true; more; more = q.outer.next() {
		for i := range int64(q.p.BlockRows) {
			for j := int64(0); j < int64(q.p.BlockCols); j += panel {
				if err := f(matrix, i, j, min(j+panel, int64(q.p.BlockCols))); err != nil {
					return err
				}
			}
		}
		matrix++
	}
	return nil
}

// maxima raises out[0 ...] to the largest absolute values of the blocks first .. last of row i of blocks.
//
// hot: no allocation.
func (q *quantizer) maxima(i, first, last int64, out []float32) error {
	out = out[:last-first]
	lo, hi := span(i, q.br, q.top, q.rows)
	for r := lo; r < hi; r++ {
		for j := range out {
			a, b := span(first+int64(j), q.bc, q.left, q.cols)
			for ; a < b; a += chunk {
				row := q.read(r, a, min(b, a+chunk))
				m := numeric.MaxAbs(row, q.from)
				if q.allow && m != m {
					m = numeric.MaxAbsNumber(row, q.from)
				}
				out[j] = max(out[j], m)
			}
		}
	}
	for j := range out {
		if !q.allow && !(out[j] <= math.MaxFloat32) {
			return q.nonFinite(i, first+int64(j))
		}
	}
	return nil
}

// read returns the elements [a, b) of row r of the matrix, as a row; at most chunk where they are apart.
func (q *quantizer) read(r, a, b int64) []byte {
	size := int64(q.from.Size())
	at := q.outer.at[0] + r*q.rowIn + a*q.colIn
	if q.colIn == size {
		return q.src[at : at+(b-a)*size]
	}
	row := q.row[:(b-a)*size]
	gather(row, q.src[at:], int(b-a), q.colIn, size)
	return row
}

// values quantizes the blocks first .. last of row i of blocks.
//
// hot: no allocation.
func (q *quantizer) values(i, first, last int64, scales *[panel]float32) {
	factor := *scales
	if q.codec.Recip {
		for j := range factor {
			factor[j] = 1 / factor[j]
		}
	}
	lo, hi := span(i, q.br, q.top, q.rows)
	for r := lo; r < hi; r++ {
		for j := first; j < last; j++ {
			a, b := span(j, q.bc, q.left, q.cols)
			for ; a < b; a += chunk {
				q.encode(r, a, min(b, a+chunk), factor[j-first])
			}
		}
	}
}

// encode quantizes the elements [a, b) of row r.
func (q *quantizer) encode(r, a, b int64, factor float32) {
	row := q.read(r, a, b)
	at := q.outer.at[1] + r*q.rowTo + a*q.colTo
	out := q.out[:b-a]
	if q.colTo == 1 {
		out = q.dst[at : at+b-a]
	}
	if q.codec.Recip {
		numeric.MulE4M3(out, row, q.from, factor)
	} else {
		numeric.DivE4M3(out, row, q.from, factor)
	}
	if q.colTo != 1 {
		scatter(q.dst[at:], out, len(out), q.colTo, 1)
	}
}

// sendScales writes those scales of the blocks first .. last of row i that this source sends.
func (q *quantizer) sendScales(i, first, last int64, scales *[panel]float32) {
	lo, hi := &q.p.ScaleLo, &q.p.ScaleHi
	if i < int64(lo[0]) || i >= int64(hi[0]) {
		return
	}
	for j := max(first, int64(lo[1])); j < min(last, int64(hi[1])); j++ {
		at := q.outer.at[2] + (i-int64(lo[0]))*q.scaleRow + (j-int64(lo[1]))*q.scaleCol
		s := scales[j-first]
		if q.scale.E8M0 {
			q.dst[at] = numeric.CeilE8M0(s)
		} else {
			binary.LittleEndian.PutUint32(q.dst[at:], math.Float32bits(s))
		}
	}
}

// nonFinite names what is no number in a block.
func (q *quantizer) nonFinite(i, j int64) error {
	e := &NonFiniteError{Tensor: q.names[q.p.Tensor], Index: append([]int64(nil), q.p.Origin...), Value: float32(math.NaN())}
	n := len(e.Index)
	for d := range q.outer.dims {
		e.Index[d] += q.outer.index[d]
	}
	lo, hi := span(i, q.br, q.top, q.rows)
	a, b := span(j, q.bc, q.left, q.cols)
	for r := lo; r < hi; r++ {
		for c := a; c < b; c += chunk {
			row := q.read(r, c, min(b, c+chunk))
			if k := numeric.NonFinite(row, q.from); k >= 0 {
				e.Index[n-1] += c + int64(k)
				if n > 1 {
					e.Index[n-2] += r
				}
				e.Value = numeric.At(row, q.from, k)
				return e
			}
		}
	}
	return e
}
