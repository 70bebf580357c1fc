package moesim

import (
	"time"

	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/proto"
)

// phantom is a GPU that has no rows: it counts ids, writes headers, and lets the time pass that the rest would take, one thing after the
// other.
type phantom struct {
	r     *rank
	ids   []int32 // of the next Count
	plan  backend.Plan
	flags backend.Flags
	free  time.Duration // when it is done with all that it was asked
}

func newPhantom(r *rank) *phantom {
	l := r.cfg
	return &phantom{r: r, plan: backend.Plan{
		Records: make([]uint32, l.MaxRanks), Base: make([]uint32, l.MaxRanks), Counts: make([]uint32, l.MaxRanks*l.Local),
	}}
}

// Count counts.
func (b *phantom) Count(_ backend.Queue, seq uint64, in *backend.Input, _ bool) error {
	l, p := b.r.cfg, &b.plan
	clear(p.Counts)
	for _, e := range b.ids {
		if e >= 0 {
			p.Counts[e]++ // of expert e, which is number e mod Local of rank e / Local
		}
	}
	base := uint32(0)
	for rank := range l.MaxRanks {
		n := uint32(0)
		for _, c := range p.Counts[rank*l.Local:][:l.Local] {
			n += c
		}
		p.Records[rank], p.Base[rank] = n, base
		base += n
	}
	p.Tokens = in.N
	b.flags.Counted.Store(seq)
	return nil
}

// Plan is that of the last Count, without what only rows need.
func (b *phantom) Plan() *backend.Plan { return &b.plan }

// Pack writes headers.
func (b *phantom) Pack(_ backend.Queue, seq uint64, in *backend.Input, _ backend.Quantize, h proto.Header) error {
	l, p := b.r.cfg, &b.plan
	rows := 0
	for rank, n := range p.Records {
		h.Records, h.Base = n, p.Base[rank]
		at := rank*l.HeadBytes + int(h.Base)*l.Dispatch
		l.PutHeader(b.r.send[at:], &h, p.Counts[rank*l.Local:][:l.Local])
		rows += int(n)
	}
	c := &b.r.w.o.Costs
	b.work(c.Launch+c.Count+c.Signal, in.N*l.Hidden*l.WireBytes+rows*l.Dispatch, &b.flags.Packed, seq)
	return nil
}

// Unpack takes time.
func (b *phantom) Unpack(_ backend.Queue, seq uint64, runs []backend.Run, _ *backend.Output) error {
	rows := 0
	for i := range runs {
		rows += runs[i].N
	}
	b.work(2*b.r.w.o.Costs.Signal, 2*rows*b.r.cfg.Dispatch, &b.flags.Unpacked, seq)
	return nil
}

// Arrange is part of the kernel that unpacks.
func (b *phantom) Arrange(_ backend.Queue, seq uint64, _ []backend.Move, _, _ []uint32, _ *backend.Output) error {
	b.flags.Arranged.Store(seq)
	return nil
}

// PackCombine takes time.
func (b *phantom) PackCombine(_ backend.Queue, seq uint64, _ backend.Tensor, runs []backend.Back) error {
	rows := 0
	for i := range runs {
		rows += runs[i].N
	}
	c := &b.r.w.o.Costs
	b.work(c.Launch+c.Signal, 2*rows*b.r.cfg.Combine, &b.flags.YPacked, seq)
	return nil
}

// Reduce takes time.
func (b *phantom) Reduce(_ backend.Queue, seq uint64, _ *backend.Reduction) error {
	l, rows := b.r.cfg, 0
	for _, n := range b.plan.Records {
		rows += int(n)
	}
	b.work(2*b.r.w.o.Costs.Signal, rows*l.Combine+b.plan.Tokens*l.Combine, &b.flags.Reduced, seq)
	return nil
}

// work raises a flag after a fixed time and that of so many bytes.
func (b *phantom) work(fixed time.Duration, bytes int, f *backend.Flag, seq uint64) {
	w := b.r.w
	now := w.f.Now()
	b.free = max(b.free, now) + fixed + time.Duration(float64(bytes)/w.o.Costs.Rate*1e9)
	w.after(b.free-now, func() {
		f.Store(seq)
		b.r.e.Run()
		b.r.look()
	})
}

// Flags are those of this lane.
func (b *phantom) Flags() *backend.Flags { return &b.flags }

// Rebase, Abort and Close have nothing to do: there is one view.
func (b *phantom) Rebase(backend.Memory, backend.Placement) error { return nil }

// Abort has nothing to do.
func (b *phantom) Abort(error) {}

// Close has nothing to do.
func (b *phantom) Close() error { return nil }
