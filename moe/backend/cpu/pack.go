package cpu

import (
	"fmt"
	"math"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/numeric"
	"github.com/hawser-project/hawser/moe/proto"
)

// What a record says of its token, behind its scales: token u32, column u16, two bytes of zero, weight f32, four bytes of zero.
const (
	metaBytes  = 16
	metaColumn = 4
	metaWeight = 8
)

// packing is the job of Pack.
type packing struct {
	x, scale, weights view
	from              numeric.Type // of x, if it is quantized
	quantize          bool
	floor             float32
}

const (
	defaultFloor = 1e-4
	leastFloor   = 0x1p-117 // below, scales would be subnormal and lose bits
)

// Pack writes headers and records. A token is read, and quantized, once, and copied to all its slots.
//
// hot: no allocation.
func (l *Lane) Pack(_ backend.Queue, seq uint64, in *backend.Input, q backend.Quantize, h proto.Header) error {
	if err := l.ready(); err != nil {
		return err
	}
	if in.N != l.plan.Tokens {
		return fmt.Errorf("%w: pack %d tokens, but the plan is of %d", hawser.ErrInvalid, in.N, l.plan.Tokens)
	}
	if err := l.lookInput(in, q); err != nil {
		return fmt.Errorf("pack: %w", err)
	}
	c := l.cfg
	h.RouteHash = l.plan.RouteHash
	for r := range c.MaxRanks {
		h.Records, h.Base = l.plan.Records[r], l.plan.Base[r]
		c.PutHeader(l.mem.Send[r*c.HeadBytes+int(h.Base)*c.Dispatch:], &h, l.plan.Counts[r*c.Local:(r+1)*c.Local])
	}
	return l.run(opPack, in.N, c.TopK*c.Dispatch, 1, &l.flags.Packed, seq)
}

// lookInput checks the tensors of a step with tokens.
func (l *Lane) lookInput(in *backend.Input, q backend.Quantize) (err error) {
	p := &l.doing.pack
	*p = packing{quantize: q.On, floor: q.Floor}
	if in.N == 0 {
		return nil
	}
	size := l.cfg.InBytes
	if q.On {
		var ok bool
		if p.from, ok = number(in.X.Type); !ok || l.scale == backend.NoScale || l.in != backend.E4M3 {
			return wrongType("X to be quantized", in.X.Type)
		}
		if p.floor == 0 {
			p.floor = defaultFloor
		}
		if !(p.floor >= leastFloor && p.floor <= math.MaxFloat32) {
			return fmt.Errorf("%w: floor %v of quantized blocks, want %v or more", hawser.ErrInvalid, q.Floor, leastFloor)
		}
		size = p.from.Size()
	} else if in.X.Type != l.in {
		return wrongType("X", in.X.Type)
	}
	if p.x, err = lookRows("X", &in.X, 2, l.cfg.Hidden, size); err != nil {
		return err
	}
	if l.scale != backend.NoScale && !q.On {
		if p.scale, err = l.lookScales(&in.XScale, 2); err != nil {
			return err
		}
	}
	if l.cfg.Meta {
		if in.Weights.Type != backend.F32 {
			return wrongType("Weights", in.Weights.Type)
		}
		if p.weights, err = look("Weights", &in.Weights, 2, l.cfg.TopK, 4); err != nil {
			return err
		}
	}
	for _, v := range []*view{&p.x, &p.scale, &p.weights} {
		if v.there() && v.n[1] < in.N {
			return fmt.Errorf("%w: a tensor has %d tokens, want %d", hawser.ErrInvalid, v.n[1], in.N)
		}
	}
	return nil
}

// lookScales is look for the scales of rows. Packed exponents are looked at as words.
func (l *Lane) lookScales(t *backend.Tensor, dims int) (view, error) {
	switch {
	case t.Type == backend.U32 && l.scale >= backend.UE8M0x128:
		return look("XScale", t, dims, (l.blocks+3)/4, 4)
	case t.Type == backend.F32 && l.scale == backend.F32x128:
		return look("XScale", t, dims, l.blocks, 4)
	case t.Type == backend.E8M0 && l.scale >= backend.UE8M0x128:
		return look("XScale", t, dims, l.blocks, 1)
	}
	return view{}, wrongType("XScale", t.Type)
}

// record is that of a slot, which is of the rank.
func (l *Lane) record(rank int, slot uint32) []byte {
	c := l.cfg
	at := (rank+1)*c.HeadBytes + int(slot)*c.Dispatch
	return l.mem.Send[at : at+c.Dispatch]
}

// packTokens writes the records of tokens lo .. hi-1.
//
// hot: no allocation.
func (l *Lane) packTokens(lo, hi int) {
	p, k := &l.doing.pack, l.cfg.TopK
	for token := lo; token < hi; token++ {
		var first []byte
		for i := token * k; i < (token+1)*k; i++ {
			slot := l.plan.Slot[i]
			if slot == backend.NoSlot {
				continue
			}
			b := l.record(int(l.keys[i])/l.cfg.Local, slot)
			if first == nil {
				first = b
				l.encode(b, token)
			} else {
				copy(b[:l.metaAt], first)
			}
			if l.cfg.Meta {
				m := b[l.metaAt:]
				le.PutUint32(m, uint32(token))
				le.PutUint32(m[metaColumn:], uint32(i-token*k))
				at := p.weights.at(0, token, i-token*k)
				le.PutUint64(m[metaWeight:], uint64(le.Uint32(p.weights.data[at:])))
			}
		}
	}
}

// encode writes a record up to what it says of its token.
//
// hot: no allocation.
func (l *Lane) encode(b []byte, token int) {
	p := &l.doing.pack
	x, scales := p.x.row(0, token), b[l.scaleAt:l.metaAt]
	clear(b[l.row:l.scaleAt])
	switch {
	case p.quantize:
		l.quantize(b[:l.row], scales, x)
	case l.blocks > 0:
		copy(b, x)
		n := l.blocks * l.cfg.ScaleBytes
		gather(scales[:n], &p.scale, token)
		clear(scales[n:])
	default:
		copy(b, x)
	}
}

// gather copies the scales of a token.
func gather(dst []byte, v *view, token int) {
	at := v.at(0, token, 0)
	if v.s[2] == v.size {
		copy(dst, v.data[at:at+v.n[2]*v.size])
		return
	}
	for len(dst) > 0 {
		n := copy(dst, v.data[at:at+v.size])
		dst = dst[n:]
		at += v.s[2]
	}
}

// quantize encodes a row to E4M3, and clears what is behind its scales.
//
// hot: no allocation.
func (l *Lane) quantize(dst, scales, x []byte) {
	p := &l.doing.pack
	block, size := l.cfg.ScaleBlock, p.from.Size()
	for i := range l.blocks {
		lo, hi := i*block, min((i+1)*block, l.cfg.Hidden)
		src := x[lo*size : hi*size]
		amax := max(numeric.MaxAbsNumber(src, p.from), p.floor)
		r := float32(0)
		if l.scale == backend.F32x128 {
			le.PutUint32(scales[4*i:], math.Float32bits(amax/numeric.MaxE4M3))
			r = numeric.MaxE4M3 / amax
		} else {
			e := numeric.CeilE8M0(amax / numeric.MaxE4M3)
			scales[i] = e
			r = 1 / numeric.FromE8M0(e)
		}
		numeric.MulE4M3(dst[lo:hi], src, p.from, r)
	}
	clear(scales[l.blocks*l.cfg.ScaleBytes:])
}
