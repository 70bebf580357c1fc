package weightbench

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/moe/numeric"
	"github.com/hawser-project/hawser/reshard"
)

var le = binary.LittleEndian

// content says what every element of every tensor is in a version: a formula, so that both sides know it without a word.
type content struct {
	layout *reshard.Layout
	codec  reshard.Codec
	scale  numeric.Scale
	held   []reshard.Held // of one rank
	amax   map[block]float32
	row    []byte
}

// block names one block of one tensor, in blocks of the matrix, matrices one below the other.
type block struct {
	tensor   int
	row, col int64
}

func newContent(l *reshard.Layout, rank int, codec reshard.Codec) (*content, error) {
	held, err := l.Held(rank)
	if err != nil {
		return nil, err
	}
	for i := range held {
		h := &held[i]
		if len(h.Extent) != len(l.Tensors[h.Tensor].Shape) || !h.Scales && h.DType.Size() > 4 {
			return nil, fmt.Errorf("weightbench: %w: %s of %v is no box that the formula knows", hawser.ErrInvalid, l.Tensors[h.Tensor].Name, h.DType)
		}
	}
	return &content{layout: l, codec: codec.Normal(), scale: numeric.Scale{Floor: codec.Floor, E8M0: codec.Scale == reshard.F8E8M0}, held: held}, nil
}

// seed depends on the tensor and on the version.
func (c *content) seed(tensor int, version uint64) uint64 {
	h := version * 0xd6e8feb86659fd93
	for _, b := range []byte(c.layout.Tensors[tensor].Name) {
		h = (h ^ uint64(b)) * 0x100000001b3
	}
	return h
}

// generate fills a row with the elements from first on: BF16 with exponents of usual weights, or F32 of the same values.
func generate(row []byte, size int64, seed uint64, first int64) {
	const step = 0x9e3779b97f4a7c15
	x := seed + uint64(first)*step
	switch size {
	case 2:
		for ; len(row) >= 2; row = row[2:] {
			le.PutUint16(row, uint16(x>>40)&0x81ff|0x3a00)
			x += step
		}
	case 4:
		for ; len(row) >= 4; row = row[4:] {
			le.PutUint32(row, uint32(uint16(x>>40)&0x81ff|0x3a00)<<16)
			x += step
		}
	default:
		for i := range row {
			row[i] = byte(x >> 40)
			x += step
		}
	}
}

// rows calls f for every row of a box: the number of its first element in the whole tensor, and where it lies.
func rows(h *reshard.Held, shape []int64, f func(first, at int64)) {
	n := len(shape)
	if volume(h) == 0 {
		return
	}
	index := make([]int64, n)
	for {
		first, at := int64(0), h.Offset
		for d := range n {
			first = first*shape[d] + h.Lo[d] + index[d]
			at += index[d] * h.Stride[d]
		}
		f(first, at)
		d := n - 2
		for ; d >= 0; d-- {
			if index[d]++; index[d] < h.Extent[d] {
				break
			}
			index[d] = 0
		}
		if d < 0 {
			return
		}
	}
}

// fill gives a source a version.
func (c *content) fill(memory [][]byte, version uint64) {
	for i := range c.held {
		h := &c.held[i]
		size, seed := h.DType.Size(), c.seed(h.Tensor, version)
		rows(h, c.layout.Tensors[h.Tensor].Shape, func(first, at int64) {
			generate(memory[h.Buffer][at:at+h.Extent[len(h.Extent)-1]*size], size, seed, first)
		})
	}
}

// poison overwrites everything that a destination holds.
func (c *content) poison(memory [][]byte) {
	for i := range c.held {
		h := &c.held[i]
		rows(h, c.layout.Tensors[h.Tensor].Shape, func(_, at int64) {
			b := memory[h.Buffer][at : at+h.Extent[len(h.Extent)-1]*h.DType.Size()]
			for k := range b {
				b[k] = 0xa5
			}
		})
	}
}

// wrong counts the bytes of a destination that are not those of a version.
func (c *content) wrong(memory [][]byte, version uint64) (n int64) {
	c.amax = map[block]float32{}
	for i := range c.held {
		h := &c.held[i]
		shape := c.layout.Tensors[h.Tensor].Shape
		seed, width := c.seed(h.Tensor, version), h.Extent[len(h.Extent)-1]
		switch {
		case h.Scales:
			n += c.wrongScales(h, memory[h.Buffer], seed)
		case h.DType == reshard.F8E4M3:
			n += c.wrongBlocks(h, memory[h.Buffer], seed)
		default:
			size := h.DType.Size()
			want := make([]byte, width*size)
			rows(h, shape, func(first, at int64) {
				generate(want, size, seed, first)
				n += differing(memory[h.Buffer][at:at+width*size], want)
			})
		}
	}
	return n
}

func differing(got, want []byte) (n int64) {
	if bytes.Equal(got, want) {
		return 0
	}
	for i := range want {
		if got[i] != want[i] {
			n++
		}
	}
	return n
}

// wrongBlocks compares quantized values: each row is generated anew, and quantized by the scales of whole blocks.
func (c *content) wrongBlocks(h *reshard.Held, memory []byte, seed uint64) (n int64) {
	shape := c.layout.Tensors[h.Tensor].Shape
	d := len(shape)
	width, bc := h.Extent[d-1], int64(c.codec.Block[1])
	row, want := make([]byte, 2*width), make([]byte, width)
	rows(h, shape, func(first, at int64) {
		generate(row, 2, seed, first)
		for col := int64(0); col < width; col += bc {
			end := min(width, col+bc)
			s := c.scaleOf(h.Tensor, seed, first/shape[d-1], (h.Lo[d-1]+col)/bc)
			numeric.DivE4M3(want[col:end], row[2*col:2*end], numeric.TypeBF16, s)
		}
		n += differing(memory[at:at+width], want)
	})
	return n
}

// scaleOf is the scale of the block with a row of the tensor, rows counted through all matrices, and a column of blocks.
func (c *content) scaleOf(tensor int, seed uint64, row, col int64) float32 {
	shape := c.layout.Tensors[tensor].Shape
	d := len(shape)
	br, bc := int64(c.codec.Block[0]), int64(c.codec.Block[1])
	matrix, top := row/shape[d-2], row%shape[d-2]/br*br
	b := block{tensor, matrix*shape[d-2] + top, col}
	m, ok := c.amax[b]
	if !ok {
		left := col * bc
		if int64(len(c.row)) < 2*bc {
			c.row = make([]byte, 2*bc)
		}
		x := c.row[:2*(min(left+bc, shape[d-1])-left)]
		for r := top; r < min(top+br, shape[d-2]); r++ {
			generate(x, 2, seed, (matrix*shape[d-2]+r)*shape[d-1]+left)
			m = max(m, numeric.MaxAbs(x, numeric.TypeBF16))
		}
		c.amax[b] = m
	}
	return c.scale.Of(m)
}

func (c *content) wrongScales(h *reshard.Held, memory []byte, seed uint64) (n int64) {
	tensor := c.layout.Tensors[h.Tensor].Shape
	blocks := c.codec.Blocks(tensor)
	d := len(blocks)
	want := make([]byte, 4)
	rows(h, blocks, func(first, at int64) {
		row := first / blocks[d-1]
		matrix, i := row/blocks[d-2], row%blocks[d-2]
		for j := range h.Extent[d-1] {
			s := c.scaleOf(h.Tensor, seed, matrix*tensor[d-2]+i*int64(c.codec.Block[0]), h.Lo[d-1]+j)
			le.PutUint32(want, math.Float32bits(s))
			x := at + j*h.Stride[d-1]
			n += differing(memory[x:x+4], want)
		}
	})
	return n
}
