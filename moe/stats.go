package moe

import (
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/proto"
)

// LaneStats is what a lane has done since it was made.
type LaneStats struct {
	Steps      uint64 // completed
	Partial    uint64 // of them, without somebody
	Failed     uint64
	Streamed   uint64 // received in chunks
	Overflowed uint64 // that had no room, at first

	Posts          uint64 // to the engine
	Chunks, Grants uint64 // sent
	Overflow       uint64 // records that did not travel with their header
	OverflowPairs  uint64 // pairs of a step and a rank that had such records
	PoolLow        int    // fewest free chunks of the pool

	Dispatch hawser.Histogram // from DispatchSend until all rows were there
	Combine  hawser.Histogram // from CombineSend until the sums were
	Stages   Stages
	Peers    []PeerStats // by rank
	Rows     []uint64    // received, by local expert
}

// Stages are how long the backend worked, by step and call.
type Stages struct{ Count, Pack, Unpack, Arrange, PackCombine, Reduce hawser.Histogram }

// PeerStats is what a lane has sent to a rank, and how long it waited for it.
type PeerStats struct {
	Bytes, Records uint64           // sent
	Head           hawser.Histogram // from DispatchSend until its header came
	Results        hawser.Histogram // from CombineSend until something of its results came
}

// laneCounts are what LaneStats is made of. Who drives the lane writes, anybody reads.
type laneCounts struct {
	steps, partial, failed, streamed, overflowed         atomic.Uint64
	posts, grants, chunks, overflow, overflowPairs       atomic.Uint64
	poolLow                                              atomic.Int64
	dispatch, combine                                    histogram
	count, pack, unpack, arrange, packCombine, reduction histogram
	peers                                                []peerCounts
	rows                                                 []atomic.Uint64
}

type peerCounts struct {
	bytes, records atomic.Uint64
	head, results  histogram
}

func (c *laneCounts) init(l *proto.Layout) {
	c.peers, c.rows = make([]peerCounts, l.MaxRanks), make([]atomic.Uint64, l.Local)
	c.poolLow.Store(int64(l.PoolChunks))
}

// hot:
func (c *laneCounts) sent(rank int, n int64) { c.peers[rank].bytes.Add(uint64(n)) }

// hot:
func (c *laneCounts) wrote(op proto.Op, rank int, n int64) {
	c.sent(rank, n)
	switch op {
	case proto.OpGrant:
		c.grants.Add(1)
	case proto.OpChunk:
		c.chunks.Add(1)
	case proto.OpHead, proto.OpComb, proto.OpCancel:
	}
}

// Stats is what the lane has done. Anybody may call it at any time.
func (l *Lane) Stats() LaneStats {
	c := &l.counts
	s := LaneStats{
		Steps: c.steps.Load(), Partial: c.partial.Load(), Failed: c.failed.Load(), Streamed: c.streamed.Load(), Overflowed: c.overflowed.Load(),
		Posts: c.posts.Load(), Chunks: c.chunks.Load(), Grants: c.grants.Load(), Overflow: c.overflow.Load(), OverflowPairs: c.overflowPairs.Load(),
		PoolLow: int(c.poolLow.Load()), Dispatch: c.dispatch.snapshot(), Combine: c.combine.snapshot(),
		Stages: Stages{
			Count: c.count.snapshot(), Pack: c.pack.snapshot(), Unpack: c.unpack.snapshot(), Arrange: c.arrange.snapshot(),
			PackCombine: c.packCombine.snapshot(), Reduce: c.reduction.snapshot(),
		},
	}
	for i := range c.peers {
		p := &c.peers[i]
		s.Peers = append(s.Peers, PeerStats{p.bytes.Load(), p.records.Load(), p.head.snapshot(), p.results.snapshot()})
	}
	for i := range c.rows {
		s.Rows = append(s.Rows, c.rows[i].Load())
	}
	return s
}

// marks are when the step in progress began, and its second half.
type marks struct{ dispatched, combined proto.Time }

// dispatched counts a step that has begun at a time.
func (l *Lane) dispatched(at proto.Time) {
	l.marks.dispatched = at
	for rank, n := range l.backend.Plan().Records {
		if rank == l.cfg.Rank || n == 0 {
			continue
		}
		l.counts.peers[rank].records.Add(uint64(n))
		if more := int(n) - l.cfg.FirstChunk; more > 0 {
			l.counts.overflow.Add(uint64(more))
			l.counts.overflowPairs.Add(1)
		}
	}
}

// rowsIn counts rows that were received.
func (l *Lane) rowsIn() {
	for x, n := range l.exec.Counts() {
		l.counts.rows[x].Add(uint64(n))
	}
}

// completed counts a step that is.
func (l *Lane) completed() {
	l.counts.combine.add(l.now() - l.marks.combined)
	l.counts.steps.Add(1)
	if l.proto().Partial() {
		l.counts.partial.Add(1)
	}
}

// came counts how long an immediate was waited for.
//
// hot:
func (l *Lane) came(rank int, k proto.Kind, now proto.Time) {
	switch {
	case k == proto.KindHead && l.stage == toReceive:
		l.counts.peers[rank].head.add(now - l.marks.dispatched)
	case k == proto.KindComb && l.stage == toSum:
		l.counts.peers[rank].results.add(now - l.marks.combined)
	}
}

// histogram is a hawser.Histogram that is being written.
type histogram struct {
	count, sum atomic.Uint64
	buckets    [hawser.HistogramBuckets]atomic.Uint64
}

// hot:
func (h *histogram) add(d time.Duration) {
	d = max(d, 0)
	h.count.Add(1)
	h.sum.Add(uint64(d))
	h.buckets[min(bits.Len64(uint64(d)), len(h.buckets)-1)].Add(1)
}

func (h *histogram) snapshot() hawser.Histogram {
	s := hawser.Histogram{Count: h.count.Load(), Sum: h.sum.Load()}
	for i := range h.buckets {
		s.Buckets[i] = h.buckets[i].Load()
	}
	return s
}

// timed is a backend's lane whose calls are timed: on the CPU they return when their work is done.
type timed struct {
	backend.Lane
	l *Lane
}

// hot:
func (t *timed) Count(q Queue, seq uint64, in *Input, reuse bool) error {
	start := t.l.now()
	err := t.Lane.Count(q, seq, in, reuse)
	t.l.counts.count.add(t.l.now() - start)
	return err
}

// hot:
func (t *timed) Pack(q Queue, seq uint64, in *Input, z Quantize, h proto.Header) error {
	start := t.l.now()
	err := t.Lane.Pack(q, seq, in, z, h)
	t.l.counts.pack.add(t.l.now() - start)
	return err
}

// hot:
func (t *timed) Unpack(q Queue, seq uint64, runs []backend.Run, out *Output) error {
	start := t.l.now()
	err := t.Lane.Unpack(q, seq, runs, out)
	t.l.counts.unpack.add(t.l.now() - start)
	return err
}

// hot:
func (t *timed) Arrange(q Queue, seq uint64, moves []backend.Move, counts, offsets []uint32, out *Output) error {
	start := t.l.now()
	err := t.Lane.Arrange(q, seq, moves, counts, offsets, out)
	t.l.counts.arrange.add(t.l.now() - start)
	return err
}

// hot:
func (t *timed) PackCombine(q Queue, seq uint64, y Tensor, backs []backend.Back) error {
	start := t.l.now()
	err := t.Lane.PackCombine(q, seq, y, backs)
	t.l.counts.packCombine.add(t.l.now() - start)
	return err
}

// hot:
func (t *timed) Reduce(q Queue, seq uint64, r *backend.Reduction) error {
	start := t.l.now()
	err := t.Lane.Reduce(q, seq, r)
	t.l.counts.reduction.add(t.l.now() - start)
	return err
}
