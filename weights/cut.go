package weights

import (
	"fmt"
	"slices"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/reshard"
)

// Tasks that staging has no room for are done in parts: each stages the rows, or rows of blocks, that one portion of a run is made of. What
// both sides have agreed on stays: a run has one immediate, which comes with its last portion when all others are there, and its
// digest is that of the whole, as portions begin where cells do.

// cellBytes is where portions of a run may begin: digests are sums over cells of it.
const cellBytes = 64 << 10

// part is a portion of a run, or of several that carry the same bytes away.
type part struct {
	task   reshard.Task
	maxima []float32 // nil: as for the whole task
	last   bool      // the portion is the end of its runs
}

// cut makes parts of at most limit bytes of staging. maxima are those of the stage, nil when blocks are not shared.
func cut(s *reshard.Slice, t *reshard.Task, maxima []float32, limit int64) (parts []part, err error) {
	type reach struct{ from, n int64 }
	same := map[reach][]reshard.Run{}
	var order []reach
	for _, r := range t.Runs {
		k := reach{r.From, r.Len}
		if same[k] == nil {
			order = append(order, k)
		}
		same[k] = append(same[k], r)
	}
	for _, k := range order {
		for at := int64(0); at < k.n; {
			p, n, err := portion(s, t, maxima, k.from+at, k.n-at, limit)
			if err != nil {
				return nil, err
			}
			for _, r := range same[k] {
				p.task.Runs = append(p.task.Runs, reshard.Run{
					Peer: r.Peer, Stage: r.Stage, Buffer: r.Buffer, Offset: r.Offset + at, Len: n, From: k.from + at - p.base,
				})
			}
			at += n
			p.last = at == k.n
			parts = append(parts, p.part)
		}
	}
	return parts, nil
}

// based is a part whose staging begins at base of the task's.
type based struct {
	part
	base int64
}

// portion makes a part of the longest beginning of [from, from+left) of a task's staging that there is room for.
func portion(s *reshard.Slice, t *reshard.Task, maxima []float32, from, left, limit int64) (p based, n int64, err error) {
	for n = min(left, max(limit/cellBytes*cellBytes, cellBytes)); ; n = max((n/2+cellBytes-1)/cellBytes*cellBytes, cellBytes) {
		if p = cover(s, t, maxima, from, from+n); p.task.Size <= limit {
			return p, n, nil
		}
		if n <= cellBytes {
			return p, 0, fmt.Errorf("%w: %d bytes of %s cannot be staged in less than %d, the watermark has room for %d: raise it",
				hawser.ErrLimit, n, s.Stages[t.Stage], p.task.Size, limit)
		}
	}
}

// cover stages [lo, hi) of a task, and what is around it because rows and blocks are whole.
func cover(s *reshard.Slice, t *reshard.Task, maxima []float32, lo, hi int64) based {
	b := based{part: part{task: reshard.Task{Stage: t.Stage}}, base: lo}
	end := hi
	grow := func(from, to int64) { b.base, end = min(b.base, from), max(end, to) }
	for i := range t.Pieces {
		x := &t.Pieces[i]
		codec := &s.Codecs[x.Codec]
		if x.Dst >= 0 && x.Dst < hi && x.Dst+covered(x.Shape, x.DstStride, x.To.Size()) > lo {
			if q, ok := narrow(x, codec, lo, hi); ok {
				b.add(x, q, codec, maxima)
				grow(q.Dst, q.Dst+covered(q.Shape, q.DstStride, q.To.Size()))
			}
		}
		if n := scaleExtent(x, codec); n > 0 && x.Scale < hi && x.Scale+n > lo {
			q := *x // scales are few: those of a piece are whole
			q.Dst, q.DstStride = -1, nil
			b.add(x, q, codec, maxima)
			grow(x.Scale, x.Scale+n)
		}
	}
	for i := range b.task.Pieces {
		q := &b.task.Pieces[i]
		if q.Dst >= 0 {
			q.Dst -= b.base
		} else {
			q.Scale -= b.base
		}
	}
	b.task.Size = end - b.base
	return b
}

// add adds a piece that is a part of x, with the maxima of its blocks.
func (b *based) add(x *reshard.Piece, q reshard.Piece, c *reshard.Codec, maxima []float32) {
	if c.Kind == "fp8block" && maxima != nil {
		first := len(b.maxima)
		b.maxima = append(b.maxima, maximaOf(x, &q, c, maxima)...)
		q.Maxima = first
	}
	b.task.Pieces = append(b.task.Pieces, q)
}

// covered is how many bytes a box covers from its first element on.
func covered(shape, strides []int64, element int64) int64 {
	for d, n := range shape {
		element += (n - 1) * strides[d]
	}
	return element
}

// scaleExtent is the same of the scales of a piece; 0: it sends none.
func scaleExtent(x *reshard.Piece, c *reshard.Codec) int64 {
	rows, cols := int64(x.ScaleHi[0]-x.ScaleLo[0]), int64(x.ScaleHi[1]-x.ScaleLo[1])
	if c.Kind != "fp8block" || rows <= 0 || cols <= 0 {
		return 0
	}
	shape, n := slices.Clone(x.Shape), len(x.Shape)
	if shape[n-1] = cols; n > 1 {
		shape[n-2] = rows
	}
	size := int64(4)
	if c.Scale == reshard.F8E8M0 {
		size = 1
	}
	return covered(shape, x.ScaleStride, size)
}

// narrow is the smallest part of a piece with all that it puts into [lo, hi): rows of the dimension that is outermost in staging, and of the
// next one as long as that is a single one. Blocks stay whole. false: it puts nothing there.
func narrow(x *reshard.Piece, c *reshard.Codec, lo, hi int64) (reshard.Piece, bool) {
	q := *x
	q.Shape, q.Origin = slices.Clone(x.Shape), slices.Clone(x.Origin)
	q.ScaleLo, q.ScaleHi, q.ScaleStride = [2]int{}, [2]int{}, nil
	dims := make([]int, len(q.Shape))
	for d := range dims {
		dims[d] = d
	}
	slices.SortStableFunc(dims, func(a, b int) int { return int(q.DstStride[b] - q.DstStride[a]) })
	for k, d := range dims {
		step, block := q.DstStride[d], blockOf(c, d-len(q.Shape))
		inner := q.To.Size()
		for _, e := range dims[k+1:] {
			inner += (q.Shape[e] - 1) * q.DstStride[e]
		}
		if q.Shape[d] == 1 {
			continue
		}
		if inner > step {
			break // rows that lie in each other
		}
		first, end := max((lo-q.Dst-inner)/step+1, 0), min((hi-q.Dst+step-1)/step, q.Shape[d])
		if lo-q.Dst < inner {
			first = 0
		}
		if first >= end {
			return q, false // the range is between two rows
		}
		if block > 1 {
			at := q.Origin[d]
			first = max((at+first)/block*block-at, 0)
			end = min((at+end+block-1)/block*block-at, q.Shape[d])
		}
		q.Shape[d], q.Offset, q.Dst = end-first, q.Offset+first*q.SrcStride[d], q.Dst+first*step
		if len(q.Origin) > 0 {
			q.Origin[d] += first
		}
		if end-first > 1 {
			break
		}
	}
	if c.Kind == "fp8block" {
		q.BlockRows, q.BlockCols = blocksIn(&q, c, -2), blocksIn(&q, c, -1)
	}
	return q, true
}

// blockOf is how many elements of a dimension, counted from the end, a block has.
func blockOf(c *reshard.Codec, d int) int64 {
	if c.Kind != "fp8block" || d < -2 {
		return 1
	}
	if n := c.Block[d+2]; n > 0 {
		return int64(n)
	}
	return 128
}

func blocksIn(x *reshard.Piece, c *reshard.Codec, d int) int {
	i := len(x.Shape) + d
	if i < 0 {
		return 1
	}
	n := blockOf(c, d)
	return int((x.Origin[i]%n + x.Shape[i] + n - 1) / n)
}

// maximaOf are the entries of the blocks of q, which is a part of x.
func maximaOf(x, q *reshard.Piece, c *reshard.Codec, table []float32) (out []float32) {
	n := len(x.Shape)
	first := func(d int) int { // of q's blocks among those of x
		i := n + d
		if i < 0 {
			return 0
		}
		b := blockOf(c, d)
		return int(q.Origin[i]/b - x.Origin[i]/b)
	}
	index := make([]int64, max(n-2, 0)) // of a matrix of q
	for {
		at := int64(0)
		for d := range index {
			at = at*x.Shape[d] + q.Origin[d] - x.Origin[d] + index[d]
		}
		for r := range q.BlockRows {
			row := x.Maxima + (int(at)*x.BlockRows+first(-2)+r)*x.BlockCols + first(-1)
			out = append(out, table[row:row+q.BlockCols]...)
		}
		d := len(index) - 1
		for ; d >= 0; d-- {
			if index[d]++; index[d] < q.Shape[d] {
				break
			}
			index[d] = 0
		}
		if d < 0 {
			return out
		}
	}
}
