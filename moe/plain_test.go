package moe

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/internal/exec"
	"github.com/hawser-project/hawser/moe/proto"
)

// plain is a backend of float32 rows that does everything at once and in the simplest way: what it does is what others are compared with.
type plain struct {
	backend.Lane
	cfg   *proto.Layout
	mem   exec.Memory
	batch int // rows of an expert, if batched
	plan  backend.Plan
	flags backend.Flags
}

var le = binary.LittleEndian

func newPlain(cfg *proto.Layout, mem exec.Memory, batch int) *plain {
	return &plain{cfg: cfg, mem: mem, batch: batch, plan: backend.Plan{Records: make([]uint32, cfg.MaxRanks), Base: make([]uint32, cfg.MaxRanks)}}
}

func (p *plain) Plan() *backend.Plan   { return &p.plan }
func (p *plain) Flags() *backend.Flags { return &p.flags }

func (p *plain) Count(_ backend.Queue, seq uint64, in *backend.Input, _ bool) error {
	l, n := p.cfg, in.N*p.cfg.TopK
	pl := &p.plan
	pl.Tokens, pl.Counts, pl.Slot, pl.Token = in.N, make([]uint32, l.MaxRanks*l.Local), make([]uint32, n), nil
	for e := range l.MaxRanks * l.Local {
		if e%l.Local == 0 {
			pl.Base[e/l.Local], pl.Records[e/l.Local] = uint32(len(pl.Token)), 0
		}
		for i := range n {
			id := int32(le.Uint32(in.IDs.Data[4*i:]))
			if id >= int32(l.Experts) {
				return fmt.Errorf("no expert %d", id)
			}
			if id < 0 {
				pl.Slot[i] = backend.NoSlot
			}
			if int(id) == e {
				pl.Slot[i] = uint32(len(pl.Token))
				pl.Token = append(pl.Token, uint32(i/l.TopK))
				pl.Counts[e]++
				pl.Records[e/l.Local]++
			}
		}
	}
	p.flags.Counted.Store(seq)
	return nil
}

func (p *plain) Pack(_ backend.Queue, seq uint64, in *backend.Input, _ backend.Quantize, h proto.Header) error {
	l := p.cfg
	at := 0
	slot := 0
	for r := range l.MaxRanks {
		h.Records, h.Base = p.plan.Records[r], p.plan.Base[r]
		l.PutHeader(p.mem[exec.Send][at:], &h, p.plan.Counts[r*l.Local:(r+1)*l.Local])
		at += l.HeadBytes
		for range h.Records {
			copy(p.mem[exec.Send][at:at+l.Dispatch], in.X.Data[int(p.plan.Token[slot])*4*l.Hidden:][:4*l.Hidden])
			slot, at = slot+1, at+l.Dispatch
		}
	}
	p.flags.Packed.Store(seq)
	return nil
}

func (p *plain) row(local, row int) int {
	if p.batch > 0 {
		row += local * p.batch
	}
	return row * 4 * p.cfg.Hidden
}

func (p *plain) Unpack(_ backend.Queue, seq uint64, runs []backend.Run, out *backend.Output) error {
	for _, r := range runs {
		for i := range r.N {
			copy(out.X.Data[p.row(r.Local, r.Row+i):][:4*p.cfg.Hidden], r.From[i*p.cfg.Dispatch:])
		}
	}
	p.flags.Unpacked.Store(seq)
	return nil
}

func (p *plain) Arrange(_ backend.Queue, seq uint64, moves []backend.Move, _, _ []uint32, out *backend.Output) error {
	for _, m := range moves {
		n := m.N * 4 * p.cfg.Hidden
		copy(out.X.Data[p.row(m.Local, m.To):][:n], out.X.Data[p.row(m.Local, m.From):][:n])
	}
	p.flags.Arranged.Store(seq)
	return nil
}

func (p *plain) PackCombine(_ backend.Queue, seq uint64, y backend.Tensor, runs []backend.Back) error {
	for _, r := range runs {
		to := p.mem[exec.Y]
		if r.Own {
			to = p.mem[exec.Results]
		}
		for i := range r.N {
			copy(to[(r.Slot+i)*p.cfg.Combine:][:4*p.cfg.Hidden], y.Data[p.row(r.Local, r.Row+i):])
		}
	}
	p.flags.YPacked.Store(seq)
	return nil
}

func (p *plain) Reduce(_ backend.Queue, seq uint64, r *backend.Reduction) error {
	l := p.cfg
	for t := range p.plan.Tokens {
		for h := range l.Hidden {
			acc := float32(0)
			for j := range l.TopK {
				slot := p.plan.Slot[t*l.TopK+j]
				if slot == backend.NoSlot || gone(p.plan, r.Gone, slot) {
					continue
				}
				acc += float32(math.Float32frombits(le.Uint32(r.Weights.Data[4*(t*l.TopK+j):])) * math.Float32frombits(le.Uint32(p.mem[exec.Results][int(slot)*l.Combine+4*h:])))
			}
			le.PutUint32(r.Out.Data[4*(t*l.Hidden+h):], math.Float32bits(acc))
		}
	}
	p.flags.Reduced.Store(seq)
	return nil
}

func gone(p backend.Plan, set []uint64, slot uint32) bool {
	for r := range p.Base {
		if slot >= p.Base[r] && slot < p.Base[r]+p.Records[r] {
			return set[r/64]>>(r%64)&1 != 0
		}
	}
	return false
}

func (p *plain) Rebase(backend.Memory, backend.Placement) error { return nil }
