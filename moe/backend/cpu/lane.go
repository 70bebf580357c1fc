package cpu

import (
	"fmt"
	"sync/atomic"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/proto"
)

// Lane is one of the backend's. Owned by its caller, but for aborted.
type Lane struct {
	pool     *pool
	cfg      *proto.Layout
	in, wire backend.DType
	scale    backend.Scaling
	mem      backend.Memory
	place    backend.Placement
	row      int // bytes of the elements of a record
	result   int // and of a result
	scaleAt  int // where its scales begin
	metaAt   int // where they end, and what is said of its token begins
	blocks   int // scales of a record
	experts  int // that ids name

	plan           backend.Plan
	keys, nextKeys []uint32 // [token*TopK + column]: place of the expert, or NoSlot
	cursor         []uint32
	flags          backend.Flags
	aborted        atomic.Pointer[error]

	job     job
	scratch *scratch // the caller's
	doing   doing
}

// doing is what the parts of the job in progress need to know.
type doing struct {
	op   op
	step int // items of a part
	ends []int
	pack packing
	out  unpacking
	back combining
	sum  reducing
}

// op is what a part does.
type op uint8

const (
	opPack op = iota
	opUnpack
	opPad
	opPackCombine
	opReduce
)

// Plan is what the last Count found.
func (l *Lane) Plan() *backend.Plan { return &l.plan }

// Flags say what is finished.
func (l *Lane) Flags() *backend.Flags { return &l.flags }

// Rebase gives the lane other memory and another placement. The plan is void.
func (l *Lane) Rebase(m backend.Memory, p backend.Placement) error {
	c := l.cfg
	for _, f := range []struct {
		name       string
		have, want int
	}{
		{"Send", len(m.Send), c.MaxRanks*c.HeadBytes + c.Records()*c.Dispatch},
		{"Results", len(m.Results), c.Records() * c.Combine},
		{"Y", len(m.Y), c.YRows * c.Combine},
	} {
		if f.have < f.want {
			return fmt.Errorf("rebase lane: %w: %s has %d bytes, want %d", hawser.ErrInvalid, f.name, f.have, f.want)
		}
	}
	if err := p.Check(c); err != nil {
		return fmt.Errorf("rebase lane: %w", err)
	}
	l.mem, l.place, l.experts = m, p, p.Experts(c)
	l.plan.Tokens = -1
	l.aborted.Store(nil)
	return nil
}

// Abort makes the method in progress, and all that follow until Rebase, return an error that wraps cause. It returns at once, the
// method when those parts are done that were begun, of a few rows each.
func (l *Lane) Abort(cause error) {
	err := fmt.Errorf("aborted: %w", cause)
	l.aborted.CompareAndSwap(nil, &err)
}

// Close has nothing to give back.
func (l *Lane) Close() error { return nil }

// ready says why nothing may begin.
func (l *Lane) ready() error {
	if err := l.aborted.Load(); err != nil {
		return *err
	}
	if l.pool.closed.Load() {
		return fmt.Errorf("cpu backend: %w", hawser.ErrClosed)
	}
	return nil
}

// run does n items, of size bytes each on average, in parts of a multiple of unit items, and sets the flag.
//
// hot: no allocation.
func (l *Lane) run(o op, n, size, unit int, f *backend.Flag, seq uint64) error {
	l.doing.op = o
	l.doing.step = (max(partBytes/max(size, 1), 1) + unit - 1) / unit * unit
	parts := (n + l.doing.step - 1) / l.doing.step
	l.pool.run(&l.job, parts, n*size/inlineBytes, l.scratch)
	if err := l.aborted.Load(); err != nil {
		return *err
	}
	f.Store(seq)
	return nil
}

// part does a part of the job: it is called by several workers at once, with different parts.
//
// hot: no allocation.
func (l *Lane) part(i int, s *scratch) {
	lo := i * l.doing.step
	switch hi := lo + l.doing.step; l.doing.op {
	case opPack:
		l.packTokens(lo, min(hi, l.plan.Tokens))
	case opUnpack:
		l.unpackRows(lo, hi)
	case opPad:
		l.padRows(lo, hi)
	case opPackCombine:
		l.combineRows(lo, hi)
	case opReduce:
		l.reduceTokens(lo, min(hi, l.plan.Tokens), s)
	}
}

// stopped: the work is to end.
func (l *Lane) stopped() bool { return l.aborted.Load() != nil }
