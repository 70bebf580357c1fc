package moe

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/backend/cpu"
	"github.com/hawser-project/hawser/moe/internal/exec"
	"github.com/hawser-project/hawser/moe/proto"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/shm"
	"github.com/hawser-project/hawser/provider/sim"
	"github.com/hawser-project/hawser/provider/tcp"
)

// hang is when a test is given up.
const hang = 20 * time.Second

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	t.Cleanup(cancel)
	return ctx
}

// rank is a rank of a view that never changes, without a group: lanes by themselves.
type rank struct {
	i     int
	e     *hawser.Engine
	cfg   *proto.Layout
	mems  []*memory
	lanes []*Lane
	g     *Group // nil without
}

func engines(t testing.TB, network string, n int) []*hawser.Engine {
	t.Helper()
	fabric := sim.New(sim.Config{Seed: rand.Uint64(), NICs: 1})
	var all []*hawser.Engine
	for i := range n {
		var p provider.Provider
		device := ""
		switch network {
		case "sim":
			p, device = fabric.Provider(fmt.Sprintf("host%d", i)), "nic0"
		case "shm":
			p = shm.New()
		case "tcp":
			p, device = tcp.New(), "127.0.0.1"
		}
		o := hawser.Options{Providers: []provider.Provider{p}, Rails: []hawser.Rail{{Provider: p.Name(), Device: device}}, PeerTimeout: 5 * time.Second}
		e, err := hawser.Open(within(t), o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), hang)
			defer cancel()
			if err := e.Close(ctx); err != nil {
				t.Error(err)
			}
		})
		all = append(all, e)
	}
	return all
}

// setup are choices of a test beside the protocol's.
type setup struct {
	proto.Config
	options exec.Options
	policy  Policy

	backend  backend.Backend // nil: the CPU
	in, wire DType           // F32
	scale    Scaling
}

var le = binary.LittleEndian

// newRanks makes ranks whose lanes are in a view.
func newRanks(t testing.TB, network string, s setup) []*rank {
	t.Helper()
	if s.backend == nil {
		b, err := cpu.New(1)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close() })
		s.backend = b
	}
	if s.in == backend.None {
		s.in, s.wire = backend.F32, backend.F32
	}
	var ranks []*rank
	for i, e := range engines(t, network, s.MaxRanks) {
		ranks = append(ranks, newRank(t, e, i, s, network != "shm"))
	}
	for _, r := range ranks {
		for _, o := range ranks {
			if o == r {
				continue
			}
			for x := range r.lanes {
				r.mems[x].remotes[o.i] = r.importFrom(t, o, x)
			}
		}
	}
	all := func(int) bool { return true }
	for _, r := range ranks {
		for x, l := range r.lanes {
			if err := l.recycle(1, r.mems[x], backend.Placement{}); err != nil {
				t.Fatal(err)
			}
			l.proto().Open(1, 1, all)
			l.opened(1, all)
		}
	}
	for _, r := range ranks {
		t.Cleanup(r.e.OnPeer(func(ev hawser.PeerEvent) {
			for i, to := range r.mems[0].remotes {
				for _, l := range r.lanes {
					if ev.Kind == hawser.PeerDown && to.peer == ev.Peer {
						l.peerDown(i, ev.Session)
					}
				}
			}
		}))
		for x, l := range r.lanes {
			if err := l.bind(r.e, r.mems[x]); err != nil {
				t.Fatal(err)
			}
			l.proto().Activate()
		}
	}
	return ranks
}

func newRank(t testing.TB, e *hawser.Engine, i int, s setup, heap bool) *rank {
	t.Helper()
	c := s.Config
	c.Rank = i
	cfg, err := proto.NewLayout(c)
	if err != nil {
		t.Fatal(err)
	}
	r := &rank{i: i, e: e, cfg: &cfg}
	values, err := cfg.Values(1)
	if err != nil {
		t.Fatal(err)
	}
	imms, err := e.Imms().Reserve("moe", 1<<26, 26, max(bits.Len(uint(cfg.MaxRanks-1)), minBlock))
	if err != nil {
		t.Fatal(err)
	}
	for x := range cfg.Lanes {
		m := &memory{remotes: make([]remotes, cfg.MaxRanks)}
		for a := range exec.Areas {
			if m.areas[a], err = e.Alloc(uint64(exec.PlacesOf(&cfg).Bytes(a)), hawser.MemOptions{Heap: heap}); err != nil {
				t.Fatal(err)
			}
		}
		lane, err := s.backend.NewLane(backend.Spec{Layout: &cfg, In: s.in, Wire: s.wire, Scale: s.scale, Memory: m.ofBackend()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = lane.Close() })
		l := newLane(e, laneConfig{
			index: x, layout: &cfg, options: s.options, policy: s.policy, values: values, imms: imms,
			backend: lane, memory: m, origin: time.Now(), stopped: func(*Lane, proto.Code) {},
		})
		t.Cleanup(l.close)
		r.mems, r.lanes = append(r.mems, m), append(r.lanes, l)
	}
	return r
}

func (r *rank) importFrom(t testing.TB, o *rank, lane int) (to remotes) {
	t.Helper()
	m, block := o.mems[lane], uint64(exec.PlacesOf(o.cfg).Block())
	for _, x := range []struct {
		to *(*hawser.Remote)
		d  hawser.Descriptor
	}{
		{&to.block, m.areas[exec.Blocks].Descriptor(m.areas[exec.Blocks].Slice(uint64(r.i)*block, block), hawser.RightWrite)},
		{&to.pool, m.areas[exec.Pool].Descriptor(m.areas[exec.Pool].All(), hawser.RightWrite)},
		{&to.results, m.areas[exec.Results].Descriptor(m.areas[exec.Results].All(), hawser.RightWrite)},
	} {
		rem, err := r.e.Import(within(t), x.d)
		if err != nil {
			t.Fatal(err)
		}
		*x.to, to.peer = rem, rem.Peer()
	}
	return to
}

// work is what a rank does in a step, and what must come of it.
type work struct {
	in   Input
	out  Output
	y    Tensor
	sum  Tensor
	want []float32
}

// expert is what expert e makes of a number.
func expert(e int, x float32) float32 { return float32(float32(e+1)*x) + 1 }

func tensor(rows, cols int) Tensor {
	return Tensor{Data: make([]byte, 4*rows*cols), Type: backend.F32, Shape: [3]int{0, rows, cols}}
}

func batched(cfg *proto.Layout, batch int) Tensor {
	x := tensor(cfg.Local*batch, cfg.Hidden)
	x.Shape = [3]int{cfg.Local, batch, cfg.Hidden}
	return x
}

func newWork(rng *rand.Rand, cfg *proto.Layout, rows int) *work {
	tokens := rng.IntN(cfg.MaxTokens + 1)
	w := &work{
		in:  Input{N: tokens, X: tensor(tokens, cfg.Hidden), IDs: tensor(tokens, cfg.TopK), Weights: tensor(tokens, cfg.TopK)},
		out: Output{X: tensor(rows, cfg.Hidden)}, y: tensor(rows, cfg.Hidden), sum: tensor(tokens, cfg.Hidden),
		want: make([]float32, tokens*cfg.Hidden),
	}
	w.in.IDs.Type = backend.I32
	hot := rng.IntN(cfg.Experts)
	for t := range tokens {
		for h := range cfg.Hidden {
			put(w.in.X, t*cfg.Hidden+h, rng.Float32())
		}
		for j := range cfg.TopK {
			id := rng.IntN(cfg.Experts+1) - 1
			if rng.IntN(2) == 0 {
				id = hot
			}
			w.route(cfg, t, j, id, rng.Float32())
		}
	}
	w.expect(cfg)
	return w
}

func put(x Tensor, i int, v float32) { le.PutUint32(x.Data[4*i:], math.Float32bits(v)) }
func get(x Tensor, i int) float32    { return math.Float32frombits(le.Uint32(x.Data[4*i:])) }

func (w *work) route(cfg *proto.Layout, t, j, id int, weight float32) {
	le.PutUint32(w.in.IDs.Data[4*(t*cfg.TopK+j):], uint32(int32(id)))
	put(w.in.Weights, t*cfg.TopK+j, weight)
}

// expect computes the sums.
func (w *work) expect(cfg *proto.Layout) {
	clear(w.want)
	for i := range w.in.N * cfg.TopK {
		id := int(int32(le.Uint32(w.in.IDs.Data[4*i:])))
		for h := 0; h < cfg.Hidden && id >= 0; h++ {
			at := i/cfg.TopK*cfg.Hidden + h
			w.want[at] += float32(get(w.in.Weights, i) * expert(id, get(w.in.X, at)))
		}
	}
}

// compute is all experts of a rank over the rows that counts say.
func (r *rank) compute(w *work, counts, offsets []uint32, batch int) {
	for x, c := range counts {
		at := int(offsets[x])
		if batch > 0 {
			at = x * batch
		}
		for i := at * r.cfg.Hidden; i < (at+int(c))*r.cfg.Hidden; i++ {
			put(w.y, i, expert(r.i*r.cfg.Local+x, get(w.out.X, i)))
		}
	}
}

func (w *work) check(t testing.TB, r *rank) {
	t.Helper()
	for i, want := range w.want {
		if got := get(w.sum, i); got != want {
			t.Errorf("rank %d, token %d: %v, want %v", r.i, i/r.cfg.Hidden, got, want)
			return
		}
	}
}

// step makes one, in one piece.
func (r *rank) step(ctx context.Context, lane int, w *work, batch int, opts ...Opt) error {
	p, err := r.lanes[lane].DispatchSend(ctx, &w.in, opts...)
	if err != nil {
		return err
	}
	h, err := p.Recv(ctx, &w.out)
	if err != nil {
		return err
	}
	r.compute(w, h.Counts(), h.Offsets(), batch)
	c, err := h.CombineSend(ctx, w.y)
	if err != nil {
		return err
	}
	return c.Recv(ctx, w.sum, CombineOpts{})
}

// each runs f for all ranks at once.
func each(t testing.TB, ranks []*rank, f func(r *rank) error) {
	t.Helper()
	var g sync.WaitGroup
	for _, r := range ranks {
		g.Go(func() {
			if err := f(r); err != nil {
				t.Errorf("rank %d: %v", r.i, err)
			}
		})
	}
	g.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

func small(ranks int, seed uint64) proto.Config {
	return proto.Config{
		MaxRanks: ranks, MaxTokens: 12, Hidden: 8, TopK: 2, Experts: max(2, ranks+int(seed)%(ranks+1)), InBytes: 4, WireBytes: 4,
		FirstChunk: int(seed)%5 - 1, ChunkRecords: 1 + int(seed)%2, PoolRecords: 6, Lanes: 2, StepTimeout: 10 * time.Second, MaxRecv: ranks * 12 * 2,
	}
}

// Steps over an engine give the sums that were declared, in one piece and batched, in lanes at once.
func TestSteps(t *testing.T) {
	for _, network := range []string{"sim", "shm", "tcp"} {
		for n := 1; n <= 4; n++ {
			t.Run(fmt.Sprintf("%s %d", network, n), func(t *testing.T) {
				batch := 0
				if n == 3 {
					batch = n * 24
				}
				s := setup{Config: small(n, uint64(n)), options: exec.Options{ExpertAlign: n, Batched: batch > 0, BatchCap: batch}}
				ranks := newRanks(t, network, s)
				each(t, ranks, func(r *rank) error {
					var g sync.WaitGroup
					errs := make([]error, len(r.lanes))
					for x := range r.lanes {
						g.Go(func() {
							rng := rand.New(rand.NewPCG(uint64(r.i), uint64(x)))
							for range 50 {
								w := newWork(rng, r.cfg, max(n*24, batch*r.cfg.Local)+n*r.cfg.Local)
								if batch > 0 {
									w.out.X, w.y = batched(r.cfg, batch), batched(r.cfg, batch)
								}
								if errs[x] = r.step(within(t), x, w, batch); errs[x] != nil {
									return
								}
								w.check(t, r)
							}
						})
					}
					g.Wait()
					for _, err := range errs {
						if err != nil {
							return err
						}
					}
					return nil
				})
			})
		}
	}
}
