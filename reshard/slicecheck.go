package reshard

import (
	"errors"
	"fmt"
)

// check says whether whoever carries the slice out stays inside its memory.
func (s *Slice) check() error {
	if s.Rank < 0 {
		return fmt.Errorf("rank %d", s.Rank)
	}
	for i, n := range s.Buffers {
		if n < 0 || n > maxElements {
			return fmt.Errorf("buffer %d has %d bytes", i, n)
		}
	}
	if s.Source && (len(s.Runs) > 0 || len(s.Pads) > 0) || !s.Source && (len(s.Tasks) > 0 || len(s.Amax) > 0) {
		return errors.New("a source has tasks, a destination runs")
	}
	tables := make([]int, len(s.Stages))
	for i := range s.Amax {
		if err := s.checkAmax(&s.Amax[i], tables); err != nil {
			return fmt.Errorf("maxima %d: %w", i, err)
		}
	}
	for i := range s.Tasks {
		if err := s.checkTask(&s.Tasks[i], tables); err != nil {
			return fmt.Errorf("task %d: %w", i, err)
		}
		if i > 0 && s.Tasks[i].Stage < s.Tasks[i-1].Stage {
			return fmt.Errorf("task %d is of an earlier stage than the one before", i)
		}
	}
	for i := range s.Runs {
		r := &s.Runs[i]
		if err := s.checkRun(r); err != nil {
			return fmt.Errorf("run %d: %w", i, err)
		}
		if !s.has(r.Buffer, r.Offset, r.Len) {
			return fmt.Errorf("run %d: buffer %d [%d,+%d)", i, r.Buffer, r.Offset, r.Len)
		}
	}
	for i, r := range s.Pads {
		if !s.has(r.Buffer, r.Offset, r.Len) {
			return fmt.Errorf("pad %d: buffer %d [%d,+%d)", i, r.Buffer, r.Offset, r.Len)
		}
	}
	return nil
}

// has says that a range lies in a buffer.
func (s *Slice) has(buffer int, off, n int64) bool {
	return buffer >= 0 && buffer < len(s.Buffers) && fits(off, n, s.Buffers[buffer])
}

func fits(off, n, size int64) bool {
	return off >= 0 && n >= 0 && n <= size && off <= size-n
}

func (s *Slice) checkRun(r *Run) error {
	if r.Peer < 0 || r.Peer >= maxRanks || r.Stage < 0 || r.Stage >= len(s.Stages) || r.Buffer < 0 || r.Offset < 0 || r.Len < 1 || r.Len > maxElements ||
		r.Offset > maxElements {
		return fmt.Errorf("%+v", *r)
	}
	return nil
}

func (s *Slice) checkAmax(a *Amax, tables []int) error {
	if a.Stage < 0 || a.Stage >= len(tables) || a.Table < 1 || tables[a.Stage] != 0 {
		return fmt.Errorf("stage %d, %d entries", a.Stage, a.Table)
	}
	tables[a.Stage] = a.Table
	for _, x := range a.Own {
		m, err := entries(x.A, a.Table)
		n, err2 := entries(x.B, a.Table)
		if err != nil || err2 != nil || m != n {
			return fmt.Errorf("own blocks: %d and %d: %w", m, n, errors.Join(err, err2))
		}
	}
	for i, x := range a.Peers {
		n, err := entries(x.Blocks, a.Table)
		if err != nil || n == 0 || x.Rank < 0 || x.Rank >= maxRanks || x.Rank == s.Rank || i > 0 && x.Rank <= a.Peers[i-1].Rank ||
			!fits(x.Inbox, 4*n, maxElements) || !fits(x.Answer, 4*n, maxElements) {
			return fmt.Errorf("rank %d, %d blocks, inbox %d, answer %d: %w", x.Rank, n, x.Inbox, x.Answer, err)
		}
	}
	return nil
}

// entries is how many a list of ranges has, all of them in a table.
func entries(list []BlockRange, table int) (n int64, err error) {
	for _, r := range list {
		if r.Len < 1 || !fits(int64(r.First), int64(r.Len), int64(table)) {
			return n, fmt.Errorf("[%d,+%d) of %d", r.First, r.Len, table)
		}
		n += int64(r.Len)
	}
	return n, nil
}

func (s *Slice) checkTask(t *Task, tables []int) error {
	if t.Stage < 0 || t.Stage >= len(s.Stages) || t.Size < 0 || t.Size > maxElements || t.Size == 0 && len(t.Pieces) > 0 {
		return fmt.Errorf("stage %d, %d bytes, %d pieces", t.Stage, t.Size, len(t.Pieces))
	}
	for i := range t.Pieces {
		if err := s.checkPiece(&t.Pieces[i], t.Size, tables[t.Stage]); err != nil {
			return fmt.Errorf("piece %d: %w", i, err)
		}
	}
	for i := range t.Runs {
		r := &t.Runs[i]
		ok := fits(r.From, r.Len, t.Size)
		if t.Size == 0 {
			ok = s.has(t.Buffer, r.From, r.Len)
		}
		if err := s.checkRun(r); err != nil || !ok || r.Stage != t.Stage {
			return fmt.Errorf("run %d: %+v", i, *r)
		}
	}
	return nil
}

func (s *Slice) checkPiece(p *Piece, size int64, table int) error {
	n := len(p.Shape)
	if n == 0 || n > maxDigits || len(p.SrcStride) != n || p.Tensor < 0 || p.Tensor >= len(s.Tensors) || p.Codec < 0 || p.Codec >= len(s.Codecs) {
		return fmt.Errorf("shape %v, strides %v, tensor %d, codec %d", p.Shape, p.SrcStride, p.Tensor, p.Codec)
	}
	c := s.Codecs[p.Codec]
	if b, ok := bridge(c, p.From, p.To); !ok || b.Kind != c.Kind || p.From.Size() == 0 || p.To.Size() == 0 {
		return fmt.Errorf("codec %q from %v to %v", c.Kind, p.From, p.To)
	}
	if p.Buffer < 0 || p.Buffer >= len(s.Buffers) || !strided(p.Offset, p.From.Size(), p.Shape, p.SrcStride, s.Buffers[p.Buffer]) {
		return fmt.Errorf("source: buffer %d offset %d shape %v strides %v", p.Buffer, p.Offset, p.Shape, p.SrcStride)
	}
	if p.Dst != -1 && (len(p.DstStride) != n || !strided(p.Dst, p.To.Size(), p.Shape, p.DstStride, size)) {
		return fmt.Errorf("staging of %d bytes: offset %d shape %v strides %v", size, p.Dst, p.Shape, p.DstStride)
	}
	if c.Kind != fp8Kind {
		if p.Dst == -1 {
			return errors.New("it moves nothing")
		}
		return nil
	}
	return checkBlocks(p, c, size, table)
}

// checkBlocks checks what only fp8block uses.
func checkBlocks(p *Piece, c Codec, size int64, table int) error {
	n := len(p.Shape)
	if n < 2 || len(p.Origin) != n {
		return fmt.Errorf("blocks of shape %v at %v", p.Shape, p.Origin)
	}
	blocks := [2]int{p.BlockRows, p.BlockCols}
	for i := range 2 {
		b, at := int64(c.Block[i]), p.Origin[n-2+i]
		if at < 0 || at > maxElements || int64(blocks[i]) != ceil(at+p.Shape[n-2+i], b)-at/b {
			return fmt.Errorf("%d and %d blocks of %v for shape %v at %v", p.BlockRows, p.BlockCols, c.Block, p.Shape, p.Origin)
		}
		if p.ScaleLo[i] < 0 || p.ScaleLo[i] > p.ScaleHi[i] || p.ScaleHi[i] > blocks[i] {
			return fmt.Errorf("scales [%v,%v) of %d and %d blocks", p.ScaleLo, p.ScaleHi, p.BlockRows, p.BlockCols)
		}
	}
	matrices := int64(1)
	for _, e := range p.Shape[:n-2] {
		matrices *= e
	}
	if matrices > maxElements/max(int64(p.BlockRows), 1)/max(int64(p.BlockCols), 1) ||
		!fits(int64(p.Maxima), matrices*int64(p.BlockRows)*int64(p.BlockCols), int64(table)) {
		return fmt.Errorf("maxima %d of %d matrices of %d by %d blocks in a table of %d", p.Maxima, matrices, p.BlockRows, p.BlockCols, table)
	}
	if p.ScaleLo[0] == p.ScaleHi[0] || p.ScaleLo[1] == p.ScaleHi[1] {
		return nil
	}
	shape := append([]int64(nil), p.Shape...)
	for i := range 2 {
		shape[n-2+i] = int64(p.ScaleHi[i] - p.ScaleLo[i])
	}
	if len(p.ScaleStride) != n || !strided(p.Scale, c.scale().Size(), shape, p.ScaleStride, size) {
		return fmt.Errorf("scales in staging of %d bytes: offset %d shape %v strides %v", size, p.Scale, shape, p.ScaleStride)
	}
	return nil
}

// strided says that a box of elements lies in size bytes.
func strided(off, element int64, shape, strides []int64, size int64) bool {
	if off < 0 || off > size {
		return false
	}
	lo, hi := off, off
	for d, n := range shape {
		if n < 1 || n > maxElements {
			return false
		}
		s := strides[d]
		if s < -maxElements || s > maxElements || n > 1 && max(s, -s) > maxElements/(n-1) {
			return false
		}
		if d := (n - 1) * s; d < 0 {
			lo += d
		} else {
			hi += d
		}
		if lo < 0 || hi > size {
			return false
		}
	}
	return hi+element <= size
}
