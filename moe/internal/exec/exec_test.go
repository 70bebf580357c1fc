package exec

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/proto"
)

// net is all ranks of a test and what is under way between them. Everything that can happen next happens in an order of the seed's choosing.
type net struct {
	rng   *rand.Rand
	ranks []*rank
	parts []flying
	open  map[*transfer]int // parts of Transfers that are not complete
}

type flying struct {
	from int
	p    Post
	data []byte
	tr   *transfer
}

type transfer struct {
	from int
	id   proto.Transfer
}

type rank struct {
	n      *net
	i      int
	e      *Exec
	mem    Memory
	totals [][proto.Kinds]uint64
	dead   bool
}

func (r *rank) Scatter(op proto.Op, posts []Post) {
	r.post(posts, proto.Transfer{Op: op, Rank: proto.All})
}

func (r *rank) Write(op proto.Op, p Post) {
	r.post([]Post{p}, proto.Transfer{Op: op, Rank: p.Rank, Kind: p.Kind})
}

func (r *rank) post(posts []Post, id proto.Transfer) {
	tr := &transfer{r.i, id}
	for _, p := range posts {
		r.n.open[tr]++
		r.n.parts = append(r.n.parts, flying{r.i, p, slices.Clone(r.mem[p.From][p.Src : p.Src+p.Len]), tr})
	}
}

// step lets something happen.
func (n *net) step() bool {
	if len(n.parts) == 0 {
		return false
	}
	i := n.rng.IntN(len(n.parts))
	f := n.parts[i]
	n.parts = slices.Delete(n.parts, i, i+1)
	if to := n.ranks[f.p.Rank]; !to.dead {
		at := f.p.Dst
		if f.p.To == Blocks {
			at += int64(f.from) * to.e.places.Block()
		}
		copy(to.mem[f.p.To][at:], f.data)
		to.totals[f.from][f.p.Kind]++
		to.e.Counted(f.from, f.p.Kind, to.totals[f.from][f.p.Kind])
	}
	if n.open[f.tr]--; n.open[f.tr] == 0 {
		delete(n.open, f.tr)
		if !n.ranks[f.tr.from].dead {
			n.ranks[f.tr.from].e.Ended(f.tr.id)
		}
	}
	return true
}

func newNet(t testing.TB, seed uint64, c proto.Config, batch int) *net {
	n := &net{rng: rand.New(rand.NewPCG(seed, 1)), open: map[*transfer]int{}}
	for i := range c.MaxRanks {
		c.Rank = i
		cfg, err := proto.NewLayout(c)
		if err != nil {
			t.Fatal(err)
		}
		r := &rank{n: n, i: i, totals: make([][proto.Kinds]uint64, c.MaxRanks)}
		for a := range Areas {
			r.mem[a] = make([]byte, PlacesOf(&cfg).Bytes(a))
		}
		r.e = New(&cfg, newPlain(&cfg, r.mem, batch), r, r.mem, Options{ExpertAlign: 1 + int(seed)%3, Batched: batch > 0, BatchCap: batch})
		all := func(int) bool { return true }
		r.e.Open(1, all)
		r.e.Lane().Open(1, 1, all)
		r.e.Lane().Activate()
		n.ranks = append(n.ranks, r)
	}
	return n
}

// work is what a rank does in a step, and what must come of it.
type work struct {
	in   backend.Input
	out  backend.Output
	y    backend.Tensor
	sum  backend.Reduction
	want []float32
}

// expert is what expert e makes of a number.
func expert(e int, x float32) float32 { return float32(float32(e+1)*x) + 1 }

func tensor(rows, cols int) backend.Tensor {
	return backend.Tensor{Data: make([]byte, 4*rows*cols), Type: backend.F32, Shape: [3]int{0, rows, cols}}
}

func (n *net) newWork(cfg *proto.Layout, rows int) *work {
	tokens := n.rng.IntN(cfg.MaxTokens + 1)
	w := &work{
		in:  backend.Input{N: tokens, X: tensor(tokens, cfg.Hidden), IDs: tensor(tokens, cfg.TopK), Weights: tensor(tokens, cfg.TopK)},
		out: backend.Output{X: tensor(rows, cfg.Hidden)}, y: tensor(rows, cfg.Hidden),
		want: make([]float32, tokens*cfg.Hidden),
	}
	w.sum = backend.Reduction{Out: tensor(tokens, cfg.Hidden), Weights: w.in.Weights}
	hot := n.rng.IntN(cfg.Experts)
	for t := range tokens {
		for h := range cfg.Hidden {
			le.PutUint32(w.in.X.Data[4*(t*cfg.Hidden+h):], math.Float32bits(n.rng.Float32()))
		}
		for j := range cfg.TopK {
			id := n.rng.IntN(cfg.Experts+1) - 1
			if n.rng.IntN(2) == 0 {
				id = hot
			}
			i := t*cfg.TopK + j
			le.PutUint32(w.in.IDs.Data[4*i:], uint32(int32(id)))
			le.PutUint32(w.in.Weights.Data[4*i:], math.Float32bits(n.rng.Float32()))
			for h := range cfg.Hidden {
				if id >= 0 {
					x, g := math.Float32frombits(le.Uint32(w.in.X.Data[4*(t*cfg.Hidden+h):])), math.Float32frombits(le.Uint32(w.in.Weights.Data[4*i:]))
					w.want[t*cfg.Hidden+h] += float32(g * expert(id, x))
				}
			}
		}
	}
	return w
}

// compute is all experts of a rank, over the rows that counts say.
func (r *rank) compute(w *work, batch int) {
	cfg := r.e.cfg
	for x, c := range r.e.Counts() {
		at := int(r.e.Offsets()[x])
		if batch > 0 {
			at = x * batch
		}
		for i := at * cfg.Hidden; i < (at+int(c))*cfg.Hidden; i++ {
			v := math.Float32frombits(le.Uint32(w.out.X.Data[4*i:]))
			le.PutUint32(w.y.Data[4*i:], math.Float32bits(expert(r.i*cfg.Local+x, v)))
		}
	}
}

func (w *work) check(t testing.TB, r *rank) {
	t.Helper()
	for i, want := range w.want {
		if got := math.Float32frombits(le.Uint32(w.sum.Out.Data[4*i:])); got != want {
			t.Fatalf("rank %d, token %d: %v, want %v", r.i, i/r.e.cfg.Hidden, got, want)
		}
	}
}

// until lets things happen until all ranks say so.
func (n *net) until(t testing.TB, what string, done func(r *rank) bool) {
	t.Helper()
	for {
		all := true
		for _, r := range n.ranks {
			all = (r.dead || done(r)) && all
		}
		if all {
			return
		}
		if !n.step() {
			t.Fatalf("nothing is under way, and not all ranks have %s", what)
		}
	}
}

func small(ranks int, seed uint64) proto.Config {
	return proto.Config{
		MaxRanks: ranks, MaxTokens: 6, Hidden: 2, TopK: 2, Experts: max(2, ranks+int(seed)%(ranks+1)), InBytes: 4, WireBytes: 4,
		FirstChunk: int(seed)%4 - 1, ChunkRecords: 1 + int(seed)%2, PoolRecords: 4, Lanes: 1, StepTimeout: time.Second, MaxRecv: ranks * 6 * 2,
	}
}

// TestWhole: steps in any order of arrival give what was declared, expert by expert or batched.
func TestWhole(t *testing.T) {
	for seed := range uint64(300) {
		ranks, batch := 1+int(seed)%4, 0
		if seed%5 == 0 {
			batch = ranks * 6 * 2
		}
		n := newNet(t, seed, small(ranks, seed), batch)
		for range 3 {
			var works []*work
			for _, r := range n.ranks {
				w := n.newWork(r.e.cfg, max(ranks*6*2, batch*r.e.cfg.Local)+3*r.e.cfg.Local)
				works = append(works, w)
				if err := r.e.Begin(0, &w.in, backend.Quantize{}, false); err != nil {
					t.Fatal(err)
				}
				r.e.Receive(&w.out)
			}
			n.until(t, "received", func(r *rank) bool { return r.e.Received() })
			for i, r := range n.ranks {
				r.compute(works[i], batch)
				if err := r.e.Combine(0, works[i].y); err != nil {
					t.Fatal(err)
				}
				r.e.Reduce(&works[i].sum)
			}
			n.until(t, "summed", func(r *rank) bool { return r.e.Summed() })
			for i, r := range n.ranks {
				works[i].check(t, r)
			}
		}
		for n.step() {
		}
		for _, r := range n.ranks {
			if !r.e.Lane().Quiet() {
				t.Errorf("seed %d: rank %d is not quiet", seed, r.i)
			}
		}
	}
}

// TestStream: the same in chunks, with room for hardly more than a piece.
func TestStream(t *testing.T) {
	for seed := range uint64(300) {
		ranks, batch := 1+int(seed)%4, 0
		c := small(ranks, seed)
		c.MaxRecv, c.StreamRows = 4, 4
		if c.FirstChunk == 0 {
			c.FirstChunk = 3
		}
		if seed%5 == 0 {
			batch = 4
		}
		n := newNet(t, seed, c, batch)
		for range 3 {
			var works []*work
			for _, r := range n.ranks {
				w := n.newWork(r.e.cfg, max(4+2*r.e.cfg.Local, batch*r.e.cfg.Local))
				works = append(works, w)
				if err := r.e.Begin(0, &w.in, backend.Quantize{}, false); err != nil {
					t.Fatal(err)
				}
				r.e.Receive(&w.out)
			}
			n.until(t, "received, or too many headers", func(r *rank) bool { return r.e.Received() || r.e.Limit() != nil })
			for i, r := range n.ranks {
				if r.e.Limit() != nil {
					if !errors.Is(r.e.Limit(), hawser.ErrLimit) {
						t.Error(r.e.Limit())
					}
					if err := r.e.Stream(&works[i].out); err != nil {
						t.Fatal(err)
					}
				}
			}
			n.until(t, "taken all chunks", func(r *rank) bool {
				for r.e.streamed && r.e.Chunk() && r.e.HalfFree() {
					r.compute(works[r.i], batch)
					if err := r.e.CombineChunk(works[r.i].y); err != nil {
						t.Fatal(err)
					}
				}
				return r.e.Received()
			})
			for i, r := range n.ranks {
				if !r.e.streamed {
					r.compute(works[i], batch)
				}
				if err := r.e.Combine(0, works[i].y); err != nil {
					t.Fatal(err)
				}
				r.e.Reduce(&works[i].sum)
			}
			n.until(t, "summed", func(r *rank) bool { return r.e.Summed() })
			for i, r := range n.ranks {
				works[i].check(t, r)
			}
		}
	}
}
