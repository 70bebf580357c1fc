package stage

import (
	"encoding/binary"
	"math"
	"math/rand/v2"

	"github.com/hawser-project/hawser/moe/numeric"
	"github.com/hawser-project/hawser/reshard"
)

var le = binary.LittleEndian

// tensor is a whole tensor as numbers, row major.
type tensor struct {
	shape  []int64
	values []float32
}

func (t *tensor) elements() int64 { return product(t.shape) }

func product(shape []int64) int64 {
	n := int64(1)
	for _, e := range shape {
		n *= e
	}
	return n
}

// at is the number at an index.
func (t *tensor) at(index []int64) float32 {
	k := int64(0)
	for d, i := range index {
		k = k*t.shape[d] + i
	}
	return t.values[k]
}

// put writes x as an element of a type, rounded the slow way.
func put(b []byte, typ reshard.DType, x float32) {
	switch typ {
	case reshard.F32:
		le.PutUint32(b, math.Float32bits(x))
	case reshard.F16:
		le.PutUint16(b, numeric.F16(x))
	case reshard.BF16:
		le.PutUint16(b, numeric.BF16(x))
	}
}

func get(b []byte, typ reshard.DType) float32 {
	switch typ {
	case reshard.F32:
		return math.Float32frombits(le.Uint32(b))
	case reshard.F16:
		return numeric.FromF16(le.Uint16(b))
	}
	return numeric.FromBF16(le.Uint16(b))
}

// hardValues are what goes wrong first: zeros of both signs, subnormals, ties, the ends of e4m3.
func hardValues(r *rand.Rand, n int64, typ reshard.DType) []float32 {
	special := []float32{0, float32(math.Copysign(0, -1)), 0x1p-133, -0x1p-140, 448, -448, 1e-10, 0x1p-9, 464, 3e38, 6e4}
	values := make([]float32, n)
	for i := range values {
		switch r.IntN(6) {
		case 0:
			values[i] = special[r.IntN(len(special))]
		case 1:
			values[i] = float32(r.NormFloat64() * math.Exp2(float64(r.IntN(40)-30)))
		default:
			values[i] = float32(r.NormFloat64() * 0.02)
		}
		var b [4]byte // as the source holds it, finite
		if put(b[:], typ, values[i]); math.IsInf(float64(get(b[:], typ)), 0) {
			values[i] = 1
			put(b[:], typ, 1)
		}
		values[i] = get(b[:], typ)
	}
	return values
}

// oracle is fp8block of a whole tensor, in the plainest way: each element finds its block's maximum anew from a table that is filled element
// by element, and each quotient is rounded by looking at all values of e4m3.
type oracle struct {
	t     *tensor
	codec reshard.Codec
	amax  map[[3]int64]float32 // matrix, row and column of the block
}

func newOracle(t *tensor, codec reshard.Codec) *oracle {
	o := &oracle{t: t, codec: codec, amax: map[[3]int64]float32{}}
	for k := range t.elements() {
		b := o.block(k)
		o.amax[b] = max(o.amax[b], float32(math.Abs(float64(t.values[k]))))
	}
	return o
}

func (o *oracle) block(k int64) [3]int64 {
	n := len(o.t.shape)
	cols, rows := o.t.shape[n-1], int64(1)
	if n > 1 {
		rows = o.t.shape[n-2]
	}
	return [3]int64{k / (rows * cols), k / cols % rows / int64(o.codec.Block[0]), k % cols / int64(o.codec.Block[1])}
}

// scale is that of a block.
func (o *oracle) scale(b [3]int64) float32 {
	floor := o.codec.Floor
	if floor == 0 {
		floor = 1e-10
	}
	s := max(o.amax[b], floor) / 448
	if o.codec.Scale == reshard.F8E8M0 {
		return float32(math.Exp2(math.Ceil(math.Log2(float64(s))))) // exact enough: tests use no scales next to powers of two
	}
	return s
}

var e4m3 = func() (v []float64) {
	for b := range 0x7f {
		v = append(v, float64(numeric.FromE4M3(uint8(b))))
	}
	return v
}()

// value is the byte of element k.
func (o *oracle) value(k int64) byte {
	x, s := o.t.values[k], o.scale(o.block(k))
	q := x / s
	if o.codec.Recip {
		r := 1 / s
		q = x * r
	}
	abs := min(math.Abs(float64(q)), 448)
	best := 0
	for i, v := range e4m3 {
		d, least := math.Abs(v-abs), math.Abs(e4m3[best]-abs)
		if d < least || d == least && i%2 == 0 {
			best = i
		}
	}
	if math.Signbit(float64(x)) {
		best |= 0x80
	}
	return byte(best)
}

// dense is the strides of a row-major box.
func dense(shape []int64, size int64) []int64 {
	s := make([]int64, len(shape))
	for d := len(shape) - 1; d >= 0; d-- {
		s[d], size = size, size*shape[d]
	}
	return s
}

// shuffled is the strides of a box whose dimensions lie in a random order, with gaps sometimes, and how many bytes it takes.
func shuffled(r *rand.Rand, shape []int64, size int64) ([]int64, int64) {
	s := make([]int64, len(shape))
	order := r.Perm(len(shape))
	if r.IntN(2) == 0 {
		for i := range order { // row major
			order[i] = len(shape) - 1 - i
		}
	}
	for _, d := range order {
		s[d], size = size, size*shape[d]
		if r.IntN(3) == 0 {
			size += s[d]
		}
	}
	return s, size
}

// each calls f with every index of a box, row major.
func each(shape []int64, f func(index []int64)) {
	index := make([]int64, len(shape))
	for k := range product(shape) {
		for d := len(shape) - 1; d >= 0; d-- {
			index[d], k = k%shape[d], k/shape[d]
		}
		f(index)
	}
}

func dot(index, stride []int64) (sum int64) {
	for d := range index {
		sum += index[d] * stride[d]
	}
	return sum
}
