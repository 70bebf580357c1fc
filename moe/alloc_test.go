package moe

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

// A step allocates nothing, on either side, with and without chunks of the pool.
func TestStepsAllocateNothing(t *testing.T) {
	for _, first := range []int{0, 4} {
		for _, network := range []string{"shm", "tcp"} {
			c := small(2, 0)
			c.FirstChunk, c.Lanes = first, 1
			ranks := newRanks(t, network, setup{Config: c})
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			works := []*work{dummies(rand.New(rand.NewPCG(1, 7)), ranks[0], 48), dummies(rand.New(rand.NewPCG(2, 7)), ranks[1], 48)}
			var turn, done atomic.Int64
			go func() { // the other rank makes a step for each of this one's
				for n := int64(1); ctx.Err() == nil; n++ {
					for turn.Load() < n && ctx.Err() == nil {
						runtime.Gosched()
					}
					if ctx.Err() == nil {
						if err := ranks[1].step(ctx, 0, works[1], 0); err != nil {
							t.Error(err)
							return
						}
					}
					done.Add(1)
				}
			}()
			step := func() {
				n := turn.Add(1)
				if err := ranks[0].step(ctx, 0, works[0], 0); err != nil {
					t.Fatal(err)
				}
				for done.Load() < n {
					runtime.Gosched()
				}
			}
			for range 50 {
				step()
			}
			if avg := testing.AllocsPerRun(100, step); avg > 0 {
				t.Errorf("%s, %d records with the header: %v allocations in a step of two ranks", network, first, avg)
			}
			works[0].check(t, ranks[0])
			works[1].check(t, ranks[1])
			cancel()
		}
	}
}

// BenchmarkStep: two ranks of one process over shared memory, on tokens that all have their experts at the other rank.
func BenchmarkStep(b *testing.B) {
	for name, bytes := range map[string]int{"1KiB": 1 << 10, "64KiB": 64 << 10, "1MiB": 1 << 20} {
		b.Run(name, func(b *testing.B) {
			c := small(2, 0)
			c.Hidden, c.TopK, c.Experts, c.MaxTokens, c.Lanes, c.FirstChunk, c.ChunkRecords, c.PoolRecords, c.MaxRecv = 256, 1, 2, bytes/1024, 1, 0, 0, 0, 0
			ranks := newRanks(b, "shm", setup{Config: c})
			b.ReportAllocs()
			b.ResetTimer()
			each(b, ranks, func(r *rank) error {
				w := dummies(rand.New(rand.NewPCG(1, 7)), r, 2*bytes/1024)
				for i := range w.in.N {
					le.PutUint32(w.in.IDs.Data[4*i:], uint32(1-r.i))
				}
				for range b.N {
					p, err := r.lanes[0].DispatchSend(context.Background(), &w.in)
					if err != nil {
						return err
					}
					h, err := p.Recv(context.Background(), &w.out)
					if err != nil {
						return err
					}
					s, err := h.CombineSend(context.Background(), w.out.X)
					if err != nil {
						return err
					}
					if err := s.Recv(context.Background(), w.sum, CombineOpts{}); err != nil {
						return err
					}
				}
				return nil
			})
			s := ranks[0].lanes[0].Stats()
			st := &s.Stages
			for name, h := range map[string]time.Duration{
				"dispatch": s.Dispatch.Mean(), "combine": s.Combine.Mean(), "count": st.Count.Mean(), "pack": st.Pack.Mean(), "unpack": st.Unpack.Mean(),
				"arrange": st.Arrange.Mean(), "packY": st.PackCombine.Mean(), "reduce": st.Reduce.Mean(),
			} {
				b.ReportMetric(float64(h.Nanoseconds())/1e3, name+"-us")
			}
		})
	}
}
