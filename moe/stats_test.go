package moe

import (
	"math/rand/v2"
	"testing"
)

// What a lane says of itself is what happened.
func TestStats(t *testing.T) {
	c := small(2, 0)
	c.FirstChunk, c.ChunkRecords, c.Lanes = 4, 2, 1
	ranks := newRanks(t, "sim", setup{Config: c})
	const steps = 3
	each(t, ranks, func(r *rank) error {
		for range steps {
			w := dummies(rand.New(rand.NewPCG(1, 7)), r, 48)
			for i := range w.in.N * r.cfg.TopK { // 24 records to rank 0, of either
				le.PutUint32(w.in.IDs.Data[4*i:], 0)
			}
			w.expect(r.cfg)
			if err := r.step(within(t), 0, w, 0); err != nil {
				return err
			}
			w.check(t, r)
		}
		return nil
	})
	a, b, cfg := ranks[0].lanes[0].Stats(), ranks[1].lanes[0].Stats(), ranks[0].cfg
	if a.Steps != steps || b.Steps != steps || a.Failed+a.Partial+a.Streamed+a.Overflowed != 0 {
		t.Errorf("steps: %+v, %+v", a, b)
	}
	if a.Rows[0] != 48*steps || b.Rows[0] != 0 || b.Peers[0].Records != 24*steps || a.Peers[1].Records != 0 {
		t.Errorf("rows %v, %v, records %d, %d", a.Rows, b.Rows, b.Peers[0].Records, a.Peers[1].Records)
	}
	if b.Overflow != 20*steps || b.OverflowPairs != steps || b.Chunks != 10*steps || a.Grants != 10*steps || a.Overflow != 0 {
		t.Errorf("overflow %d of %d pairs, %d chunks, %d grants", b.Overflow, b.OverflowPairs, b.Chunks, a.Grants)
	}
	heads, records := uint64(steps*cfg.HeadBytes), uint64(24*steps)
	if want := heads + records*uint64(cfg.Combine) + 10*steps*16; a.Peers[1].Bytes != want {
		t.Errorf("rank 0 sent %d bytes, want %d", a.Peers[1].Bytes, want)
	}
	if want := heads + records*uint64(cfg.Dispatch); b.Peers[0].Bytes != want {
		t.Errorf("rank 1 sent %d bytes, want %d", b.Peers[0].Bytes, want)
	}
	if a.Posts != steps*(2+10) || b.Posts != steps*(2+10) {
		t.Errorf("%d and %d posts, want %d", a.Posts, b.Posts, steps*12)
	}
	if a.PoolLow < 0 || a.PoolLow > 2 {
		t.Errorf("pool low %d of %d, want all but those of a window in use", a.PoolLow, cfg.PoolChunks)
	}
	for name, h := range map[string]uint64{
		"dispatch": a.Dispatch.Count, "combine": a.Combine.Count, "count": a.Stages.Count.Count, "pack": a.Stages.Pack.Count, "reduce": a.Stages.Reduce.Count,
		"head": a.Peers[1].Head.Count + 0*a.Peers[1].Results.Count,
	} {
		if h == 0 || h > steps {
			t.Errorf("%s: %d measured in %d steps", name, h, steps)
		}
	}
}
