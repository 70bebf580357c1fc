package moebench

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"time"

	"github.com/hawser-project/hawser/moe"
	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/moetest"
	"github.com/hawser-project/hawser/moe/numeric"
	"github.com/hawser-project/hawser/moe/proto"
)

var le = binary.LittleEndian

// scaleBlock is how many elements of fp8 share a scale.
const scaleBlock = 128

// work is what a rank sends in each step, where it receives it, and what must come of it. Experts do nothing: y = x, in the type of results.
// As rows are the same in every step, so is y, which is made once.
type work struct {
	in   moe.Input
	out  moe.Output
	y    moe.Tensor
	sum  moe.Tensor
	want []byte // sum
	rows []byte // out.X, of the first step, which is known to be good if the sums are
}

func tensor(t backend.DType, size, rows, cols int) moe.Tensor {
	return moe.Tensor{Data: make([]byte, rows*cols*size), Type: t, Shape: [3]int{0, rows, cols}}
}

func newWork(r *moetest.Routing, c moe.Config, l *proto.Layout, rows int) *work {
	n, h := r.N[l.Rank], l.Hidden
	w := &work{
		in: moe.Input{N: n, X: tensor(c.In, l.InBytes, n, h), IDs: tensor(backend.I32, 4, n, l.TopK), Weights: tensor(backend.F32, 4, n, l.TopK)},
		y:  tensor(backend.BF16, 2, rows, h), sum: tensor(backend.BF16, 2, n, h),
	}
	w.out.X = tensor(c.In, l.InBytes, rows, h)
	if c.Scale != backend.NoScale {
		blocks := (h + scaleBlock - 1) / scaleBlock
		w.in.XScale, w.out.XScale = tensor(backend.F32, 4, n, blocks), tensor(backend.F32, 4, rows, blocks)
	}
	ids, weights := r.Row(l.Rank)
	for i := range ids {
		le.PutUint32(w.in.IDs.Data[4*i:], uint32(ids[i]))
		le.PutUint32(w.in.Weights.Data[4*i:], math.Float32bits(weights[i]))
	}
	w.fill(rand.New(rand.NewPCG(r.Seed, uint64(l.Rank))))
	w.expect(ids, weights, l)
	return w
}

// fill makes rows of numbers between 1/4 and 2, with either sign.
func (w *work) fill(rng *rand.Rand) {
	x := w.in.X.Data
	for i := 0; i < len(x); i += w.in.X.Shape[2] * w.size() {
		row := x[i:][:w.in.X.Shape[2]*w.size()]
		for k := 0; k < len(row); k += w.size() {
			f := float32(1+rng.IntN(7))/4 - 2*float32(rng.IntN(2))
			if w.in.X.Type == backend.E4M3 {
				row[k] = numeric.E4M3(f)
			} else {
				le.PutUint16(row[k:], numeric.BF16(f))
			}
		}
	}
	for i := 0; i < len(w.in.XScale.Data); i += 4 {
		le.PutUint32(w.in.XScale.Data[i:], math.Float32bits(float32(1+rng.IntN(4))/2))
	}
}

func (w *work) size() int {
	if w.in.X.Type == backend.E4M3 {
		return 1
	}
	return 2
}

// number is what element i of a row of x stands for, as a result has it.
func number(x, scale *moe.Tensor, row, i int) uint16 {
	cols := x.Shape[2]
	if x.Type == backend.BF16 {
		return le.Uint16(x.Data[2*(row*cols+i):])
	}
	s := math.Float32frombits(le.Uint32(scale.Data[4*(row*scale.Shape[2]+i/scaleBlock):]))
	return numeric.BF16(numeric.FromE4M3(x.Data[row*cols+i]) * s)
}

// expect computes the sums: column by column, as the contract has it.
func (w *work) expect(ids []int32, weights []float32, l *proto.Layout) {
	w.want = make([]byte, len(w.sum.Data))
	for t := range w.in.N {
		for i := range l.Hidden {
			y := numeric.FromBF16(number(&w.in.X, &w.in.XScale, t, i))
			acc := float32(0)
			for j := range l.TopK {
				if ids[t*l.TopK+j] >= 0 {
					acc += float32(weights[t*l.TopK+j] * y)
				}
			}
			le.PutUint16(w.want[2*(t*l.Hidden+i):], numeric.BF16(acc))
		}
	}
}

// experts makes y of the rows that the first step has brought.
func (w *work) experts(l *proto.Layout) {
	for row := range w.out.X.Shape[1] {
		for i := range l.Hidden {
			le.PutUint16(w.y.Data[2*(row*l.Hidden+i):], number(&w.out.X, &w.out.XScale, row, i))
		}
	}
	w.rows = append([]byte(nil), w.out.X.Data...)
}

// poison overwrites all that a step writes.
func (w *work) poison() {
	fill(w.out.X.Data)
	fill(w.out.XScale.Data)
	fill(w.sum.Data)
}

// wrong counts bytes that are not what they must be.
func (w *work) wrong() int64 { return differ(w.sum.Data, w.want) + differ(w.out.X.Data, w.rows) }

func differ(a, b []byte) (n int64) {
	for i := range a {
		if a[i] != b[i] {
			n++
		}
	}
	return n
}

// floor copies as many bytes as a step of this rank must: rows to where they are sent from, rows that come from others, rows to where the
// experts read them; and the same back, where the sum reads each result.
type floor struct {
	src, dst          []byte
	dispatch, combine []int
}

func newFloor(l *load, c *proto.Layout) floor {
	rank := c.Rank
	sent := l.out[rank] + l.own[rank]
	f := floor{
		dispatch: []int{sent * c.Dispatch, l.in[rank] * c.Dispatch, l.all[rank] * c.Dispatch},
		combine:  []int{l.all[rank] * c.Combine, l.out[rank] * c.Combine, sent * c.Combine},
	}
	most := max(sent, l.all[rank]) * max(c.Combine, c.Dispatch)
	f.src, f.dst = make([]byte, most), make([]byte, most)
	fill(f.src)
	fill(f.dst)
	return f
}

func (f *floor) copy() (dispatch, combine time.Duration, err error) {
	began := time.Now()
	for _, n := range f.dispatch {
		copy(f.dst[:n], f.src[:n])
	}
	between := time.Now()
	for _, n := range f.combine {
		copy(f.dst[:n], f.src[:n])
	}
	return between.Sub(began), time.Since(between), nil
}
