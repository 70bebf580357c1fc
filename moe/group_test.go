package moe

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/backend/cpu"
)

// team is a group whose ranks are engines of one process. There may be more engines than ranks.
type team struct {
	testing.TB
	engines []*hawser.Engine
	backend backend.Backend
	cfg     Config
	desk    *Local
	ranks   []*rank // nil: none
	rng     *rand.Rand
}

func tiny(ranks int) Config {
	return Config{
		MaxRanks: ranks, MaxTokens: 12, Hidden: 8, TopK: 2, Experts: 2 * ranks, In: backend.F32, Wire: backend.F32,
		FirstChunk: 3, ChunkRecords: 2, PoolRecords: 6, StepTimeout: 10 * time.Second,
	}
}

func newBackend(t testing.TB) backend.Backend {
	t.Helper()
	b, err := cpu.New(1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// newTeam makes a group of all ranks.
func newTeam(t testing.TB, network string, c Config, spare int) *team {
	t.Helper()
	return teamOf(t, engines(t, network, c.MaxRanks+spare), c)
}

func teamOf(t testing.TB, engines []*hawser.Engine, c Config) *team {
	t.Helper()
	x := &team{
		TB: t, engines: engines, backend: newBackend(t), cfg: c, desk: &Local{Ranks: c.MaxRanks},
		ranks: make([]*rank, c.MaxRanks), rng: rand.New(rand.NewPCG(1, 2)),
	}
	var wg sync.WaitGroup
	for i := range x.ranks {
		wg.Go(func() {
			if err := x.join(i, x.engines[i]); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return x
}

// join makes a rank of an engine.
func (x *team) join(i int, e *hawser.Engine) error {
	c := x.cfg
	c.Rank = i
	g, err := New(within(x), e, x.backend, x.desk, c)
	if err != nil {
		return err
	}
	x.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), hang)
		defer cancel()
		if err := g.Close(ctx); err != nil && x.ranks[i] != nil && x.ranks[i].g == g {
			x.Error(err)
		}
	})
	x.ranks[i] = &rank{i: i, e: e, cfg: g.layout, mems: g.mems, lanes: g.lanes, g: g}
	return nil
}

// there are the ranks that there are.
func (x *team) there() (all []*rank) {
	for _, r := range x.ranks {
		if r != nil {
			all = append(all, r)
		}
	}
	return all
}

// view is one of these ranks.
func (x *team) view(epoch uint32, ranks ...int) View {
	v := View{Epoch: epoch}
	for _, i := range ranks {
		v.Members = append(v.Members, Member{i, x.ranks[i].e.Addr()})
	}
	return v
}

// steps makes good steps on all lanes.
func (x *team) steps(n int) {
	x.Helper()
	seed := x.rng.Uint64()
	each(x, x.there(), func(r *rank) error {
		rng := rand.New(rand.NewPCG(seed, uint64(r.i)))
		for s := range n {
			for lane := range r.lanes {
				w := newWork(rng, r.cfg, r.cfg.Full)
				x.serve(r, w)
				if err := r.step(within(x), lane, w, 0); err != nil {
					return fmt.Errorf("step %d of lane %d: %w", s, lane, err)
				}
				w.check(x, r)
			}
		}
		return nil
	})
}

// serve takes from what is expected what nobody computes in the view of a rank.
func (x *team) serve(r *rank, w *work) {
	v, weights := r.g.View(), slices.Clone(w.in.Weights.Data)
	for i := range w.in.N * r.cfg.TopK {
		if id := int(int32(le.Uint32(w.in.IDs.Data[4*i:]))); id >= 0 && !v.has(id/r.cfg.Local) {
			put(w.in.Weights, i, 0)
		}
	}
	w.expect(r.cfg)
	copy(w.in.Weights.Data, weights)
}

// TestGroup: ranks meet and make steps, over every network, with any number of ranks.
func TestGroup(t *testing.T) {
	for _, network := range []string{"sim", "shm", "tcp"} {
		for n := 1; n <= 4; n++ {
			t.Run(fmt.Sprint(network, n), func(t *testing.T) {
				x := newTeam(t, network, tiny(n), 0)
				x.steps(5)
			})
		}
	}
}
