package moetest

import (
	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/internal/exec"
	"github.com/hawser-project/hawser/moe/proto"
)

// watch is a backend that looks at what its lane reads and writes, and does it some time later, as one of a device would.
type watch struct {
	backend.Lane
	n     *node
	tasks []func() error
}

// later queues work. It is done in order, when the schedule says so.
func (b *watch) later(f func() error) error {
	b.tasks = append(b.tasks, f)
	b.n.w.add(event{kind: task, node: b.n, watch: b})
	return nil
}

// next does what is queued first.
func (b *watch) next() {
	if len(b.tasks) == 0 { // a view ended
		return
	}
	f := b.tasks[0]
	b.tasks = b.tasks[1:]
	if err := f(); err != nil {
		b.n.w.fault("rank %d: backend: %v", b.n.rank, err)
	}
	b.n.exec.Run()
	b.n.after()
}

// Pack implements backend.Lane: no Transfer may read Send.
func (b *watch) Pack(q backend.Queue, seq uint64, in *backend.Input, quantize backend.Quantize, h proto.Header) error {
	return b.later(func() error {
		b.unread(exec.Send, 0, len(b.n.store.areas[exec.Send]))
		return b.Lane.Pack(q, seq, in, quantize, h)
	})
}

// unread: no Transfer that has not ended reads a part of an area.
func (b *watch) unread(a exec.Area, from, to int) {
	for _, p := range b.n.w.parts {
		if p.from == b.n && !p.ended && p.post.From == a && int(p.post.Src) < to && from < int(p.post.Src+p.post.Len) {
			b.n.w.fault("rank %d writes bytes %d .. %d of area %d, which %v still reads", b.n.rank, from, to, a, p)
			return
		}
	}
}

// Unpack implements backend.Lane: it reads only what was counted, and what is read is free then.
func (b *watch) Unpack(q backend.Queue, seq uint64, runs []backend.Run, out *backend.Output) error {
	return b.later(func() error {
		for _, r := range runs {
			b.readable(&r)
		}
		if err := b.Lane.Unpack(q, seq, runs, out); err != nil {
			return err
		}
		for _, r := range runs {
			b.taken(&r)
		}
		return nil
	})
}

// place is the slot that a run is read from. own: it never travelled.
func (b *watch) place(r *backend.Run) (t *slot, area exec.Area, at int, own bool) {
	n, s := b.n, b.n.store
	area, at, ok := s.locate(r.From)
	switch {
	case ok && area == exec.Send && r.Src == n.rank:
		return nil, area, at, true
	case ok && area == exec.Pool:
		return &s.chunks[at/(n.cfg.ChunkRecords*n.cfg.Dispatch)], area, at, false
	case ok && area == exec.Blocks:
		return &s.heads[at/int(exec.PlacesOf(&n.cfg).Block())], area, at, false
	}
	n.w.fault("rank %d reads records of rank %d from an area that has none", n.rank, r.Src)
	return nil, area, at, true
}

func (b *watch) readable(r *backend.Run) {
	if t, _, at, own := b.place(r); !own && (t.state != written || t.from != r.Src) {
		b.n.w.fault("rank %d reads records of rank %d at byte %d, which is %s (of rank %d)", b.n.rank, r.Src, at, stateNames[t.state], t.from)
	}
}

// taken: a run was read. When all runs of its place were, the place is free.
func (b *watch) taken(r *backend.Run) {
	t, area, at, own := b.place(r)
	if own || t.part == nil {
		return
	}
	n, c := b.n, &b.n.cfg
	Poison(r.From)
	records := int(t.part.post.Len) / c.Dispatch
	if area == exec.Blocks {
		records = (int(t.part.post.Len) - c.HeadBytes) / c.Dispatch
	}
	n.read[t] += r.N
	if n.read[t] < records {
		return
	}
	delete(n.read, t)
	if area == exec.Blocks {
		n.store.take(t, n.head(r.Src))
	} else {
		first := at / (c.ChunkRecords * c.Dispatch) * c.ChunkRecords * c.Dispatch
		n.store.take(t, n.store.areas[exec.Pool][first:first+c.ChunkRecords*c.Dispatch])
	}
}

// head is what a source writes first: header and records.
func (n *node) head(rank int) []byte {
	block := int(exec.PlacesOf(&n.cfg).Block())
	return n.store.areas[exec.Blocks][rank*block:][:n.cfg.HeadBytes+n.cfg.FirstChunk*n.cfg.Dispatch]
}

// Arrange implements backend.Lane.
func (b *watch) Arrange(q backend.Queue, seq uint64, moves []backend.Move, counts, offsets []uint32, out *backend.Output) error {
	return b.later(func() error { return b.Lane.Arrange(q, seq, moves, counts, offsets, out) })
}

// PackCombine implements backend.Lane: no Transfer may read where it writes.
func (b *watch) PackCombine(q backend.Queue, seq uint64, y backend.Tensor, runs []backend.Back) error {
	return b.later(func() error {
		sc := b.n.cfg.Combine
		for _, r := range runs {
			if !r.Own {
				b.unread(exec.Y, r.Slot*sc, (r.Slot+r.N)*sc)
				continue
			}
			for i := r.Slot; i < r.Slot+r.N; i++ {
				if t := &b.n.store.results[i]; t.state != free {
					b.n.w.fault("rank %d writes an own result to place %d, which is %s", b.n.rank, i, stateNames[t.state])
				}
				b.n.store.results[i] = slot{state: written, from: b.n.rank}
			}
		}
		return b.Lane.PackCombine(q, seq, y, runs)
	})
}

// Reduce implements backend.Lane: it reads only results that were counted, but those of who is gone.
func (b *watch) Reduce(q backend.Queue, seq uint64, r *backend.Reduction) error {
	return b.later(func() error {
		n, plan := b.n, b.Plan()
		for i, at := range plan.Slot {
			if at == backend.NoSlot || isGone(r.Gone, n.owner(at)) {
				continue
			}
			if t := &n.store.results[at]; t.state != written || t.from != n.owner(at) {
				n.w.fault("rank %d sums the result of token %d, column %d, which is %s", n.rank, i/n.cfg.TopK, i%n.cfg.TopK, stateNames[t.state])
			}
		}
		if err := b.Lane.Reduce(q, seq, r); err != nil {
			return err
		}
		for i := range n.store.results {
			if t := &n.store.results[i]; t.state == written {
				n.store.take(t, n.store.areas[exec.Results][i*n.cfg.Combine:(i+1)*n.cfg.Combine])
			}
		}
		return nil
	})
}

// owner is the rank that a slot's result comes from.
func (n *node) owner(at uint32) int {
	p := n.watch.Plan()
	for rank := range p.Base {
		if at >= p.Base[rank] && at < p.Base[rank]+p.Records[rank] {
			return rank
		}
	}
	return -1
}

func isGone(set []uint64, rank int) bool { return set[rank/64]>>(rank%64)&1 != 0 }
