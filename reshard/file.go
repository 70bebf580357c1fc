package reshard

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
)

// A plan file is what the plan was computed from: a plan is a function of it, and smaller files could not be checked. Magic, version, id,
// length of the rest, the rest, SHA-256 of all before.

const (
	// PlanMagic is how a plan in a file begins.
	PlanMagic   = "HWSRPLAN"
	planVersion = 1
	maxPlan     = 1 << 30 // bytes of a plan file
)

// WriteTo writes the plan as ReadPlan reads it.
func (p *Plan) WriteTo(w io.Writer) (int64, error) {
	body := p.inputs()
	body = appendBool(body, p.gone != nil)
	if p.gone != nil {
		body = p.repairs(body)
	}
	b := binary.LittleEndian.AppendUint32([]byte(PlanMagic), planVersion)
	b = append(b, p.id[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(body)))
	b = append(b, body...)
	sum := sha256.Sum256(b)
	n, err := w.Write(append(b, sum[:]...))
	if err != nil {
		err = fmt.Errorf("write plan: %w", err)
	}
	return int64(n), err
}

const planHead = len(PlanMagic) + 4 + sha256.Size + 8

// ReadPlan reads what WriteTo wrote, plans again, and compares ids. Bytes that are no plan are ErrFormat, before anything large is allocated
// for them; a plan whose layouts are wrong fails as Compute does.
func ReadPlan(r io.Reader) (*Plan, error) {
	head := make([]byte, planHead)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, fmt.Errorf("%w: read plan: the head of %d bytes: %v", ErrFormat, planHead, err)
	}
	rest := head[len(PlanMagic):]
	if string(head[:len(PlanMagic)]) != PlanMagic {
		return nil, fmt.Errorf("%w: read plan: it begins with %q, not with %q", ErrFormat, head[:len(PlanMagic)], PlanMagic)
	}
	if v := binary.LittleEndian.Uint32(rest); v != planVersion {
		return nil, fmt.Errorf("%w: read plan: version %d, this program reads %d", ErrFormat, v, planVersion)
	}
	id, n := ID(rest[4:]), binary.LittleEndian.Uint64(rest[4+sha256.Size:])
	if n > maxPlan {
		return nil, fmt.Errorf("%w: read plan: %d bytes, at most %d", ErrFormat, n, maxPlan)
	}
	var body bytes.Buffer // grows with what is there, not with what is claimed
	if got, err := io.CopyN(&body, r, int64(n)+sha256.Size); err != nil {
		return nil, fmt.Errorf("%w: read plan: %d of %d bytes: %v", ErrFormat, got, n+sha256.Size, err)
	}
	b := body.Bytes()
	h := sha256.New()
	h.Write(head)
	h.Write(b[:n])
	if !bytes.Equal(h.Sum(nil), b[n:]) {
		return nil, fmt.Errorf("%w: read plan: the checksum is wrong: the file is damaged", ErrFormat)
	}
	return parsePlan(b[:n], id)
}

// parsePlan plans what the body says.
func parsePlan(b []byte, id ID) (*Plan, error) {
	r := &reader{b: b}
	src, dst := r.layout(), r.layout()
	rules, o := r.rules(), r.options()
	var gone, skip []bool
	if r.bool() {
		r.want('r')
		gone, skip = r.bits(), r.bits()
	}
	if r.err == nil && len(r.b) > 0 {
		r.fail("something comes after the plan")
	}
	if r.err != nil {
		return nil, fmt.Errorf("read plan: %w", r.err)
	}
	p, err := Compute(context.Background(), src, dst, rules, o)
	if err != nil {
		return nil, fmt.Errorf("read plan: %w", err)
	}
	if gone != nil {
		if len(gone) != len(src.Buffers) || len(skip) != len(dst.Buffers)*len(p.stages) {
			return nil, fmt.Errorf("%w: read plan: repaired for %d ranks and %d stages of ranks", ErrFormat, len(gone), len(skip))
		}
		var lost []int
		for i, g := range gone {
			if g {
				lost = append(lost, i)
			}
		}
		if p, err = p.Repair(lost, func(dst, stage int) bool { return skip[dst*len(p.stages)+stage] }); err != nil {
			return nil, fmt.Errorf("read plan: %w", err)
		}
	}
	if p.id != id {
		return nil, fmt.Errorf("%w: read plan: it has id %x, its contents make %x", ErrFormat, id[:8], p.id[:8])
	}
	return p, nil
}

const (
	sliceMagic   = "HWSRSLCE"
	sliceVersion = 1
)

// Name is the SHA-256 of the slice's encoding: slices of equal contents have equal names.
func (s *Slice) Name() ID { return sha256.Sum256(s.Append(nil)) }

// Append encodes the slice. ParseSlice is the inverse.
func (s *Slice) Append(b []byte) []byte {
	b = append(append(b, sliceMagic...), sliceVersion)
	b = appendBool(append(b, s.Plan[:]...), s.Source)
	b = binary.AppendVarint(b, int64(s.Rank))
	b = appendStrings(appendInts(appendStrings(b, s.Stages), s.Buffers), s.Tensors)
	b = binary.AppendUvarint(b, uint64(len(s.Codecs)))
	for _, c := range s.Codecs {
		b = c.key(b)
	}
	b = binary.AppendUvarint(b, uint64(len(s.Tasks)))
	for i := range s.Tasks {
		b = s.Tasks[i].append(b)
	}
	b = binary.AppendUvarint(b, uint64(len(s.Amax)))
	for i := range s.Amax {
		b = s.Amax[i].append(b)
	}
	b = appendRuns(b, s.Runs)
	b = binary.AppendUvarint(b, uint64(len(s.Pads)))
	for _, r := range s.Pads {
		b = appendInts(b, []int64{int64(r.Rank), int64(r.Buffer), r.Offset, r.Len})
	}
	return b
}

func appendRuns(b []byte, runs []Run) []byte {
	b = binary.AppendUvarint(b, uint64(len(runs)))
	for i := range runs {
		r := &runs[i]
		for _, v := range [...]int64{int64(r.Peer), int64(r.Stage), int64(r.Buffer), r.Offset, r.Len, r.From} {
			b = binary.AppendVarint(b, v)
		}
	}
	return b
}

func (t *Task) append(b []byte) []byte {
	b = binary.AppendVarint(binary.AppendVarint(binary.AppendVarint(b, int64(t.Stage)), t.Size), int64(t.Buffer))
	b = binary.AppendUvarint(b, uint64(len(t.Pieces)))
	for i := range t.Pieces {
		p := &t.Pieces[i]
		b = append(b, byte(p.From), byte(p.To))
		for _, v := range [...]int64{int64(p.Codec), int64(p.Tensor), int64(p.Buffer), p.Offset, p.Dst} {
			b = binary.AppendVarint(b, v)
		}
		b = appendInts(appendInts(appendInts(appendInts(b, p.Shape), p.SrcStride), p.DstStride), p.Origin)
		b = appendInts(b, []int{p.Maxima, p.BlockRows, p.BlockCols, p.ScaleLo[0], p.ScaleLo[1], p.ScaleHi[0], p.ScaleHi[1]})
		b = appendInts(binary.AppendVarint(b, p.Scale), p.ScaleStride)
	}
	return appendRuns(b, t.Runs)
}

func (a *Amax) append(b []byte) []byte {
	b = binary.AppendVarint(binary.AppendVarint(b, int64(a.Stage)), int64(a.Table))
	b = binary.AppendUvarint(b, uint64(len(a.Own)))
	for _, s := range a.Own {
		b = appendBlocks(appendBlocks(b, s.A), s.B)
	}
	b = binary.AppendUvarint(b, uint64(len(a.Peers)))
	for _, x := range a.Peers {
		b = appendBlocks(binary.AppendVarint(b, int64(x.Rank)), x.Blocks)
		b = binary.AppendVarint(binary.AppendVarint(b, x.Inbox), x.Answer)
	}
	return b
}

func appendBlocks(b []byte, list []BlockRange) []byte {
	b = binary.AppendUvarint(b, uint64(len(list)))
	for _, r := range list {
		b = binary.AppendVarint(binary.AppendVarint(b, int64(r.First)), int64(r.Len))
	}
	return b
}

// ParseSlice decodes what Append made, and checks that every index and range is inside what the slice says it has: those in buffers and
// tables of this rank, and in staging. Buffers of other ranks it does not know. Errors are ErrFormat.
func ParseSlice(b []byte) (*Slice, error) {
	r := &reader{b: b}
	s := r.slice()
	if r.err == nil && len(r.b) > 0 {
		r.fail("something comes after the slice")
	}
	if r.err != nil {
		return nil, fmt.Errorf("parse slice: %w", r.err)
	}
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("parse slice: %w: %v", ErrFormat, err)
	}
	return s, nil
}

func (r *reader) slice() *Slice {
	for i := range len(sliceMagic) {
		r.want(sliceMagic[i])
	}
	r.want(sliceVersion)
	s := &Slice{}
	for i := range s.Plan {
		s.Plan[i] = r.byte()
	}
	s.Source, s.Rank = r.bool(), r.small()
	s.Stages, s.Buffers, s.Tensors = r.strings(), r.int64s(), r.strings()
	for range r.count(9) {
		s.Codecs = append(s.Codecs, r.codec())
	}
	for range r.count(5) {
		s.Tasks = append(s.Tasks, r.task())
	}
	for range r.count(4) {
		s.Amax = append(s.Amax, r.amax())
	}
	s.Runs = r.runs()
	for range r.count(5) {
		if x := r.int64s(); len(x) == 4 {
			s.Pads = append(s.Pads, Range{int(x[0]), int(x[1]), x[2], x[3]})
		} else {
			r.fail("a pad has no four numbers")
		}
	}
	return s
}

func (r *reader) runs() []Run {
	out := make([]Run, r.count(6))
	for i := range out {
		out[i] = Run{Peer: r.small(), Stage: r.small(), Buffer: r.small(), Offset: r.int(), Len: r.int(), From: r.int()}
	}
	return slices.Clip(out)
}

func (r *reader) task() (t Task) {
	t.Stage, t.Size, t.Buffer = r.small(), r.int(), r.small()
	for range r.count(13) {
		p := Piece{From: DType(r.byte()), To: DType(r.byte()), Codec: r.small(), Tensor: r.small(), Buffer: r.small(), Offset: r.int(), Dst: r.int()}
		p.Shape, p.SrcStride, p.DstStride, p.Origin = r.int64s(), r.int64s(), r.int64s(), r.int64s()
		x := r.ints()
		if len(x) != 7 {
			r.fail("a piece has no seven numbers of blocks")
			return t
		}
		p.Maxima, p.BlockRows, p.BlockCols, p.ScaleLo, p.ScaleHi = x[0], x[1], x[2], [2]int{x[3], x[4]}, [2]int{x[5], x[6]}
		p.Scale, p.ScaleStride = r.int(), r.int64s()
		t.Pieces = append(t.Pieces, p)
	}
	t.Runs = r.runs()
	return t
}

func (r *reader) amax() (a Amax) {
	a.Stage, a.Table = r.small(), r.small()
	for range r.count(2) {
		a.Own = append(a.Own, Same{r.blocks(), r.blocks()})
	}
	for range r.count(4) {
		x := Exchange{Rank: r.small(), Blocks: r.blocks()}
		x.Inbox, x.Answer = r.int(), r.int()
		a.Peers = append(a.Peers, x)
	}
	return a
}

func (r *reader) blocks() (out []BlockRange) {
	for range r.count(2) {
		out = append(out, BlockRange{r.small(), r.small()})
	}
	return out
}
