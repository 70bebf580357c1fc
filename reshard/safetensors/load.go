package safetensors

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"

	"github.com/hawser-project/hawser/moe/numeric"
	"github.com/hawser-project/hawser/reshard"
)

// Load fills the memory of one rank of a layout from the checkpoint: memory[i] is its buffer i. It knows no plan: every piece is read by
// its logical indices, cast, or quantized from the whole matrix. So it is what a push is compared with.
//
// Tensors that have all experts of a layer come from the checkpoint's tensors of single experts, where it has those.
func (c *Checkpoint) Load(l *reshard.Layout, rank int, memory [][]byte) error {
	x := &loader{c: c, l: l}
	for _, f := range l.OnRank(rank) {
		t := &l.Tensors[f.Tensor]
		if f.Buffer >= len(memory) {
			return fmt.Errorf("checkpoint: load rank %d: %s is in buffer %d of %d", rank, t.Name, f.Buffer, len(memory))
		}
		if err := x.fragment(t, f, memory[f.Buffer]); err != nil {
			return fmt.Errorf("checkpoint: load rank %d: %s: %w", rank, t.Name, err)
		}
	}
	return nil
}

// loader loads one rank; owned by Load. It keeps the last quantized matrix, because its scales and other boxes follow.
type loader struct {
	c      *Checkpoint
	l      *reshard.Layout
	name   string // of the matrix
	codec  reshard.Codec
	values []byte
	scales []byte
	row    []byte
}

// fragment loads a piece of a tensor.
func (x *loader) fragment(t *reshard.Tensor, f reshard.Fragment, memory []byte) error {
	name, stacked, err := x.find(t)
	if err != nil {
		return err
	}
	shape, elem := t.Shape, t.DType.Size()
	if f.Scales {
		shape, elem = f.Codec.Blocks(shape), f.Codec.Normal().Scale.Size()
	}
	if len(f.Digits) > len(shape) {
		return x.refined(name, stacked, t, f, shape, elem, memory)
	}
	strides := make([]int64, len(shape))
	run := elem
	for d := len(shape) - 1; d >= 0; d-- {
		strides[d] = run
		run *= f.Hi[d] - f.Lo[d]
	}
	for d := range f.Digits {
		strides[d] = f.Digits[d].Stride
	}
	if !stacked {
		return x.box(name, t.DType, shape, elem, f, strides, memory)
	}
	one := f
	one.Lo, one.Hi = f.Lo[1:], f.Hi[1:]
	for e := f.Lo[0]; e < f.Hi[0]; e++ {
		one.Offset = f.Offset + (e-f.Lo[0])*strides[0]
		if err := x.box(expert(name, e), t.DType, shape[1:], elem, one, strides[1:], memory); err != nil {
			return err
		}
	}
	return nil
}

// find is the name of a tensor in the checkpoint, and whether each expert is a tensor of its own there: expert has their names.
func (x *loader) find(t *reshard.Tensor) (name string, stacked bool, err error) {
	name = t.Name
	for range len(x.l.Aliases) + 1 {
		if e, ok := x.c.Tensor(name); ok {
			return name, false, same(e.Shape, t.Shape, name)
		}
		if e, ok := x.c.Tensor(expert(name, 0)); ok && len(t.Shape) > 0 {
			return name, true, same(e.Shape, t.Shape[1:], expert(name, 0))
		}
		next, ok := x.l.Aliases[name]
		if !ok {
			break
		}
		name = next
	}
	return "", false, fmt.Errorf("the checkpoint has no such tensor, and none for each expert")
}

func same(got, want []int64, name string) error {
	if fmt.Sprint(got) != fmt.Sprint(want) {
		return fmt.Errorf("%s has shape %v in the checkpoint, want %v", name, got, want)
	}
	return nil
}

func expert(name string, e int64) string {
	return strings.Replace(name, ".experts.", fmt.Sprintf(".experts.%d.", e), 1)
}

// box copies a box of a tensor, or of its scales, run by run.
func (x *loader) box(name string, to reshard.DType, shape []int64, elem int64, f reshard.Fragment, strides []int64, memory []byte) error {
	read, err := x.reader(name, to, shape, f.Codec, f.Scales)
	if err != nil {
		return err
	}
	// A run is contiguous in the checkpoint and in memory: dimensions from inner on.
	inner, run := len(shape), elem
	for inner > 0 && strides[inner-1] == run && (inner == len(shape) || f.Hi[inner]-f.Lo[inner] == shape[inner]) {
		inner--
		run *= f.Hi[inner] - f.Lo[inner]
	}
	at := append([]int64(nil), f.Lo...)
	for {
		from, to := int64(0), f.Offset
		for d := range shape {
			from = from*shape[d] + at[d]
			to += (at[d] - f.Lo[d]) * strides[d]
		}
		if to < 0 || to > int64(len(memory)) || run > int64(len(memory))-to {
			return fmt.Errorf("bytes [%d,%d) of a buffer of %d", to, to+run, len(memory))
		}
		if err := read(memory[to:to+run], from); err != nil {
			return err
		}
		d := inner - 1
		for ; d >= 0; d-- {
			if at[d]++; at[d] < f.Hi[d] {
				break
			}
			at[d] = f.Lo[d]
		}
		if d < 0 {
			return nil
		}
	}
}

// refined loads a piece whose dimensions are refined, element by element.
func (x *loader) refined(name string, stacked bool, t *reshard.Tensor, f reshard.Fragment, shape []int64, elem int64, memory []byte) error {
	var failed error
	err := f.Each(shape, elem, func(index []int64, at int64) {
		if failed != nil {
			return
		}
		from, dims, n := name, shape, index
		if stacked {
			from, dims, n = expert(name, index[0]), shape[1:], index[1:]
		}
		read, err := x.reader(from, t.DType, dims, f.Codec, f.Scales)
		flat := int64(0)
		for d := range dims {
			flat = flat*dims[d] + n[d]
		}
		if err == nil && (at < 0 || at > int64(len(memory))-elem) {
			err = fmt.Errorf("byte %d of a buffer of %d", at, len(memory))
		}
		if err == nil {
			err = read(memory[at:at+elem], flat)
		}
		failed = err
	})
	if err == nil {
		err = failed
	}
	return err
}

// reader reads elements of a tensor, from an index of the flat tensor on, as the layout has them.
func (x *loader) reader(name string, to reshard.DType, shape []int64, codec reshard.Codec, scales bool) (func(b []byte, from int64) error, error) {
	t, ok := x.c.Tensor(name)
	if !ok {
		return nil, fmt.Errorf("the checkpoint has no %s", name)
	}
	in, known := numberType(t.DType)
	switch {
	case codec.Kind == "fp8block" && t.DType != reshard.F8E4M3:
		if !known {
			return nil, fmt.Errorf("%s is %v: fp8block wants F32, F16 or BF16", name, t.DType)
		}
		if err := x.quantize(name, t, in, codec.Normal()); err != nil {
			return nil, err
		}
		from, elem := x.values, int64(1)
		if scales {
			from, elem = x.scales, codec.Normal().Scale.Size()
		}
		return func(b []byte, i int64) error { copy(b, from[i*elem:]); return nil }, nil
	case codec.Kind == "fp8block" && scales:
		return func(b []byte, i int64) error { return x.c.ReadAt(b, name+"_scale_inv", i*4) }, nil
	case t.DType == to:
		return func(b []byte, i int64) error { return x.c.ReadAt(b, name, i*to.Size()) }, nil
	}
	out, castable := numberType(to)
	if !known || !castable {
		return nil, fmt.Errorf("%s is %v in the checkpoint, and nothing makes %v of it", name, t.DType, to)
	}
	return func(b []byte, i int64) error {
		n := len(b) / out.Size() * in.Size()
		if cap(x.row) < n {
			x.row = make([]byte, n)
		}
		row := x.row[:n]
		if err := x.c.ReadAt(row, name, i*int64(in.Size())); err != nil {
			return err
		}
		numeric.Convert(b, out, row, in)
		return nil
	}, nil
}

func numberType(d reshard.DType) (numeric.Type, bool) {
	switch d {
	case reshard.F32:
		return numeric.TypeF32, true
	case reshard.BF16:
		return numeric.TypeBF16, true
	case reshard.F16:
		return numeric.TypeF16, true
	}
	return 0, false
}

// quantize makes values and scales of a whole matrix, or of a stack of them.
func (x *loader) quantize(name string, t Tensor, in numeric.Type, codec reshard.Codec) error {
	if x.name == name && x.codec == codec {
		return nil
	}
	data := make([]byte, t.End-t.Begin)
	if err := x.c.ReadAt(data, name, 0); err != nil {
		return err
	}
	n := len(t.Shape)
	if n < 2 {
		return fmt.Errorf("%s %v has no blocks", name, t.Shape)
	}
	rows, cols := t.Shape[n-2], t.Shape[n-1]
	blocks := codec.Blocks(t.Shape)
	x.name, x.codec = name, codec
	x.values = make([]byte, len(data)/in.Size())
	x.scales = x.scales[:0]
	matrix := rows * cols
	for m := int64(0); m*matrix < int64(len(x.values)); m++ {
		for i := range blocks[n-2] {
			for j := range blocks[n-1] {
				q := quantized{in: in, codec: codec, cols: cols, at: m * matrix, data: data, values: x.values}
				q.lo = [2]int64{i * int64(codec.Block[0]), j * int64(codec.Block[1])}
				q.hi = [2]int64{min(rows, q.lo[0]+int64(codec.Block[0])), min(cols, q.lo[1]+int64(codec.Block[1]))}
				x.scales = q.block(x.scales)
			}
		}
	}
	return nil
}

// quantized is one block of a matrix.
type quantized struct {
	in     numeric.Type
	codec  reshard.Codec
	cols   int64
	at     int64 // index of the matrix's first element
	lo, hi [2]int64
	data   []byte
	values []byte
}

// block quantizes and appends the scale.
func (q *quantized) block(scales []byte) []byte {
	amax := float32(0)
	q.each(func(i int64, v float32) { amax = max(amax, float32(math.Abs(float64(v)))) })
	amax = max(amax, q.codec.Floor)
	s := amax / numeric.MaxE4M3
	if q.codec.Scale == reshard.F8E8M0 {
		code := numeric.CeilE8M0(s)
		s = numeric.FromE8M0(code)
		scales = append(scales, code)
	} else {
		scales = binary.LittleEndian.AppendUint32(scales, math.Float32bits(s))
	}
	q.each(func(i int64, v float32) {
		y := v / s
		if q.codec.Recip {
			y = v * (1 / s)
		}
		q.values[i] = numeric.E4M3(min(max(y, -numeric.MaxE4M3), numeric.MaxE4M3))
	})
	return scales
}

func (q *quantized) each(f func(i int64, v float32)) {
	for r := q.lo[0]; r < q.hi[0]; r++ {
		row := q.data[(q.at+r*q.cols)*int64(q.in.Size()):]
		for c := q.lo[1]; c < q.hi[1]; c++ {
			f(q.at+r*q.cols+c, numeric.At(row, q.in, int(c)))
		}
	}
}
