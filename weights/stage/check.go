package stage

import (
	"errors"
	"fmt"
	"math"

	"github.com/hawser-project/hawser/reshard"
)

// ErrInvalid: a slice that cannot be staged, whatever the bytes.
var ErrInvalid = errors.New("invalid slice")

// Check checks everything that staging takes for granted of a source's slice: that pieces and runs lie in their buffers and in staging,
// that codecs fit types, and that tables are long enough. It is done once for each slice, which came from another machine.
func Check(s *reshard.Slice) error {
	tables := map[int]int{}
	for i := range s.Amax {
		a := &s.Amax[i]
		tables[a.Stage] = a.Table
		for _, x := range a.Peers {
			for _, b := range x.Blocks {
				if b.First < 0 || b.Len < 0 || b.First > a.Table-b.Len {
					return fmt.Errorf("%w: maxima of stage %d: blocks %d + %d for source %d, the table has %d", ErrInvalid, a.Stage, b.First, b.Len, x.Rank, a.Table)
				}
			}
		}
	}
	for i := range s.Tasks {
		t := &s.Tasks[i]
		table, ok := tables[t.Stage]
		if !ok {
			table = math.MaxInt // nobody shares maxima, there is none
		}
		if err := checkTask(s, t, table); err != nil {
			return fmt.Errorf("%w: task %d of %d: %w", ErrInvalid, i, len(s.Tasks), err)
		}
	}
	return nil
}

func checkTask(s *reshard.Slice, t *reshard.Task, table int) error {
	size := t.Size
	if size == 0 && len(t.Pieces) == 0 {
		if t.Buffer < 0 || t.Buffer >= len(s.Buffers) {
			return fmt.Errorf("buffer %d of %d", t.Buffer, len(s.Buffers))
		}
		size = s.Buffers[t.Buffer]
	}
	for i := range t.Runs {
		if r := &t.Runs[i]; r.From < 0 || r.Len < 0 || r.From > size-r.Len {
			return fmt.Errorf("run %d reads [%d, +%d) of %d bytes", i, r.From, r.Len, size)
		}
	}
	for i := range t.Pieces {
		if err := checkPiece(s, &t.Pieces[i], t.Size, table); err != nil {
			return fmt.Errorf("piece %d: %w", i, err)
		}
	}
	return nil
}

func checkPiece(s *reshard.Slice, p *reshard.Piece, size int64, table int) error {
	switch {
	case p.Codec < 0 || p.Codec >= len(s.Codecs):
		return fmt.Errorf("codec %d of %d", p.Codec, len(s.Codecs))
	case p.Tensor < 0 || p.Tensor >= len(s.Tensors):
		return fmt.Errorf("tensor %d of %d", p.Tensor, len(s.Tensors))
	case p.Buffer < 0 || p.Buffer >= len(s.Buffers):
		return fmt.Errorf("buffer %d of %d", p.Buffer, len(s.Buffers))
	case len(p.Shape) == 0 || len(p.Shape) > MaxDims || len(p.SrcStride) != len(p.Shape):
		return fmt.Errorf("%d dimensions, %d strides; 1 .. %d can be", len(p.Shape), len(p.SrcStride), MaxDims)
	}
	for _, n := range p.Shape {
		if n < 1 {
			return fmt.Errorf("shape %v", p.Shape)
		}
	}
	if err := inside(p.Offset, p.Shape, p.SrcStride, p.From.Size(), s.Buffers[p.Buffer]); err != nil {
		return fmt.Errorf("source: %w", err)
	}
	codec := &s.Codecs[p.Codec]
	if err := checkCodec(codec, p); err != nil {
		return err
	}
	if p.Dst >= 0 || codec.Kind != fp8 {
		if len(p.DstStride) != len(p.Shape) {
			return fmt.Errorf("%d strides of staging for %d dimensions", len(p.DstStride), len(p.Shape))
		}
		if err := inside(p.Dst, p.Shape, p.DstStride, p.To.Size(), size); err != nil {
			return fmt.Errorf("staging: %w", err)
		}
	}
	if codec.Kind == fp8 {
		return checkBlocks(codec, p, size, table)
	}
	return nil
}

func checkCodec(c *reshard.Codec, p *reshard.Piece) error {
	_, from := numbers(p.From)
	_, to := numbers(p.To)
	fits := false
	switch c.Kind {
	case "", "raw":
		fits = p.From.Size() == p.To.Size() && p.From.Size() > 0 && (p.From == p.To || !from || !to)
	case "cast":
		fits = from && to
	case fp8:
		fits = from && p.To == reshard.F8E4M3 && (c.Scale == reshard.Invalid || c.Scale == reshard.F32 || c.Scale == reshard.F8E8M0)
		if c.Floor < 0 || c.Floor > 0 && c.Floor < 0x1p-117 || c.Floor != c.Floor {
			return fmt.Errorf("floor %g: 2^-117 is the least", c.Floor)
		}
	}
	if !fits {
		return fmt.Errorf("codec %q cannot turn %v into %v", c.Kind, p.From, p.To)
	}
	return nil
}

func checkBlocks(c *reshard.Codec, p *reshard.Piece, size int64, table int) error {
	br, bc := blockOf(c)
	n := len(p.Shape)
	if len(p.Origin) != n || br < 0 || bc < 0 {
		return fmt.Errorf("origin %v of %d dimensions, blocks of %v", p.Origin, n, c.Block)
	}
	matrices, rows, row := int64(1), int64(1), int64(0)
	for _, e := range p.Shape[:max(n-2, 0)] {
		matrices *= e // a box that lies in a buffer has no more elements than an int64
	}
	if n > 1 {
		rows, row = p.Shape[n-2], p.Origin[n-2]
	}
	if row < 0 || p.Origin[n-1] < 0 {
		return fmt.Errorf("origin %v", p.Origin)
	}
	wantRows, wantCols := (row%br+rows+br-1)/br, (p.Origin[n-1]%bc+p.Shape[n-1]+bc-1)/bc
	if n == 1 {
		wantRows = 1
	}
	if int64(p.BlockRows) != wantRows || int64(p.BlockCols) != wantCols {
		return fmt.Errorf("%d x %d blocks, the piece has %d x %d", p.BlockRows, p.BlockCols, wantRows, wantCols)
	}
	if p.Maxima < 0 || int64(p.Maxima) > int64(table)-matrices*wantRows*wantCols {
		return fmt.Errorf("maxima from %d on, the table has %d", p.Maxima, table)
	}
	return checkScales(c, p, size)
}

func checkScales(c *reshard.Codec, p *reshard.Piece, size int64) error {
	lo, hi := p.ScaleLo, p.ScaleHi
	if hi[0] <= lo[0] || hi[1] <= lo[1] {
		return nil
	}
	n := len(p.Shape)
	if lo[0] < 0 || lo[1] < 0 || hi[0] > p.BlockRows || hi[1] > p.BlockCols || len(p.ScaleStride) != n {
		return fmt.Errorf("scales %v .. %v of %d x %d blocks, %d strides", lo, hi, p.BlockRows, p.BlockCols, len(p.ScaleStride))
	}
	shape := append([]int64(nil), p.Shape...)
	shape[n-1] = int64(hi[1] - lo[1])
	if n > 1 {
		shape[n-2] = int64(hi[0] - lo[0])
	}
	bytes := int64(4)
	if c.Scale == reshard.F8E8M0 {
		bytes = 1
	}
	if err := inside(p.Scale, shape, p.ScaleStride, bytes, size); err != nil {
		return fmt.Errorf("scales: %w", err)
	}
	return nil
}

// inside checks that a box of elements lies in size bytes, and has no more elements than fit there.
func inside(offset int64, shape, strides []int64, element, size int64) error {
	if offset < 0 || element <= 0 || offset > size-element {
		return fmt.Errorf("%d bytes at %d of %d", element, offset, size)
	}
	end, room := offset+element, size/element
	for d, n := range shape {
		if n == 1 {
			continue
		}
		if s := strides[d]; s < 1 || s > (size-end)/(n-1) || n > room {
			return fmt.Errorf("shape %v with strides %v at %d is beyond %d bytes", shape, strides, offset, size)
		}
		end, room = end+strides[d]*(n-1), room/n
	}
	return nil
}
