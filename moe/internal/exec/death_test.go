package exec

import (
	"math"
	"slices"
	"testing"

	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/proto"
)

// kill ends a rank. What it has under way arrives, or does not.
func (n *net) kill(i int) {
	n.ranks[i].dead = true
	kept := n.parts[:0]
	for _, f := range n.parts {
		if f.from != i || n.rng.IntN(2) == 0 {
			kept = append(kept, f)
		}
	}
	n.parts = kept
}

// TestDeath: one rank dies at any event of a step. The others end it, blame nobody else, and every token that they do not name has its
// whole sum; so rows that came after those of the dead rank are where the counts say.
func TestDeath(t *testing.T) {
	partial, whole, moved, streamed := 0, 0, 0, 0
	for seed := range uint64(2000) {
		ranks := 2 + int(seed)%3
		c, rows := small(ranks, seed), ranks*6*2
		if seed%2 == 1 { // streamed, if much comes
			c.MaxRecv, c.StreamRows, c.FirstChunk = 4, 4, 1+int(seed)%3
			rows = 4
		}
		n := newNet(t, seed, c, 0)
		var works []*work
		for _, r := range n.ranks {
			w := n.newWork(r.e.cfg, rows+3*r.e.cfg.Local)
			works = append(works, w)
			if err := r.e.Begin(0, &w.in, backend.Quantize{}, false); err != nil {
				t.Fatal(err)
			}
			r.e.Receive(&w.out)
		}
		victim, events, told, down := n.rng.IntN(ranks), n.rng.IntN(20*ranks), n.rng.IntN(10), make([]bool, ranks)
		asked := make([]bool, ranks)
		for turns, busy := 0, true; busy; turns++ {
			if turns > 10_000 {
				t.Fatalf("seed %d: it does not end", seed)
			}
			busy = n.step()
			if events--; events == 0 {
				n.kill(victim)
			}
			for i, r := range n.ranks {
				if r.dead {
					continue
				}
				if r.e.Limit() != nil && !r.e.streamed && r.e.Stream(&works[i].out) == nil {
					busy, streamed = true, streamed+1
				}
				for r.e.streamed && n.rng.IntN(2) == 0 && r.e.Chunk() && r.e.HalfFree() {
					r.compute(works[i], 0)
					if err := r.e.CombineChunk(works[i].y); err != nil {
						t.Fatal(err)
					}
					busy = true
				}
				failed, _, _, _ := r.e.Failed()
				busy = busy || !failed && r.e.streamed && r.e.st.more(r.e)
				if !failed && r.e.Received() && !asked[i] {
					asked[i], busy = true, true
					moved += len(r.e.moves)
					if !r.e.streamed {
						r.counted(t)
						r.compute(works[i], 0)
					}
					if err := r.e.Combine(0, works[i].y); err != nil {
						t.Fatal(err)
					}
					r.e.Reduce(&works[i].sum)
				}
				if !down[i] && (events < -told*i || !busy) && n.ranks[victim].dead {
					r.e.PeerDown(victim)
					down[i], busy = true, true
				}
			}
			if !busy && !n.ranks[victim].dead && events > 0 {
				break // the step was over before
			}
		}
		for i, r := range n.ranks {
			if r.dead {
				continue
			}
			failed, why, blamed, err := r.e.Failed()
			if failed && why == proto.CodePool {
				continue // here or elsewhere all chunks were lent to it
			}
			if failed || !r.e.Summed() {
				t.Fatalf("seed %d: rank %d: failed %v: %v (rank %d), %v; received %v, summed %v", seed, i, failed, why, blamed, err, r.e.Received(), r.e.Summed())
			}
			p := r.e.PartialError()
			if p == nil {
				p = &proto.PartialError{Tokens: make(proto.Bitmap, 1)}
				whole++
			} else {
				partial++
				if !slices.Equal(p.Missing, []int{victim}) {
					t.Fatalf("seed %d: rank %d misses %v, rank %d died", seed, i, p.Missing, victim)
				}
			}
			for k, want := range works[i].want {
				if token := k / r.e.cfg.Hidden; !p.Tokens.Has(token) {
					if got := math.Float32frombits(le.Uint32(works[i].sum.Out.Data[4*k:])); got != want {
						t.Fatalf("seed %d: rank %d, token %d: %v, want %v", seed, i, token, got, want)
					}
				}
			}
		}
	}
	if partial < 500 || whole < 100 || moved < 20 || streamed < 100 {
		t.Errorf("%d ranks had a partial step, %d a whole one, %d runs of rows moved, %d were streamed: too few to say anything", partial, whole, moved, streamed)
	}
}

// counted: the rows are those of all who are not missing.
func (r *rank) counted(t testing.TB) {
	t.Helper()
	want, got := r.e.b.Plan().Records[r.i], uint32(0)
	for i := range r.n.ranks {
		want += r.e.Lane().Records(i)
	}
	for _, c := range r.e.Counts() {
		got += c
	}
	if got != want {
		t.Fatalf("rank %d: %d rows, %d records came of who is not missing", r.i, got, want)
	}
}
