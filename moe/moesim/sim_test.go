package moesim

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/hawser-project/hawser/moe/proto"
	"github.com/hawser-project/hawser/provider/sim"
)

// dsv3 is the shape of DeepSeek-V3.
func dsv3(ranks, tokens int) proto.Config {
	return proto.Config{MaxRanks: ranks, MaxTokens: tokens, Hidden: 7168, TopK: 8, Experts: 256, InBytes: 1, WireBytes: 2, ScaleBlock: 128, ScaleBytes: 4}
}

// uniform has every token choose distinct experts.
func uniform(c proto.Config) func(step, rank int) []int32 {
	return func(step, rank int) []int32 {
		rng := rand.New(rand.NewPCG(uint64(step), uint64(rank)))
		var ids []int32
		for range c.MaxTokens {
			for _, e := range rng.Perm(c.Experts)[:c.TopK] {
				ids = append(ids, int32(e))
			}
		}
		return ids
	}
}

func p50(of []time.Duration) time.Duration {
	s := slices.Sorted(slices.Values(of))
	return s[len(s)/2]
}

func play(t *testing.T, name string, o Options) *Result {
	t.Helper()
	begin := time.Now()
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	us := func(d time.Duration) float64 { return float64(d) / 1e3 }
	d, c := &r.Dispatch, &r.Combine
	t.Logf("%-16s simulated %6.1f / %6.1f us, floor %6.1f / %6.1f, busiest %6.1f / %6.1f; posts %d + %d, overflow %.1f, %d events in %v", name,
		us(p50(d.Times)), us(p50(c.Times)), us(d.Floor), us(c.Floor), us(d.Busiest), us(c.Busiest), d.Posts, c.Posts, r.Overflow, r.Events,
		time.Since(begin).Round(time.Millisecond))
	return r
}

// Eight ranks without a node are near the floor of their adapters: if all wrote to the same one at a time, they would need twice as long.
func TestDecodeEP8(t *testing.T) {
	c := dsv3(8, 128)
	r := play(t, "EP8 decode", Options{Config: c, NICs: sim.ConnectX7(), Steps: 5, IDs: uniform(c)})
	for _, p := range []Phase{r.Dispatch, r.Combine} {
		for _, d := range p.Times {
			if d < p.Floor {
				t.Errorf("%v, the floor is %v", d, p.Floor)
			}
		}
		if got := p50(p.Times); got > p.Floor*3/2 {
			t.Errorf("%v, the floor is %v", got, p.Floor)
		}
		if p.Posts != 7 || p.Busiest <= p.Floor {
			t.Errorf("%d posts, want 7; busiest %v, floor %v", p.Posts, p.Busiest, p.Floor)
		}
	}
	want := 7. / 8 * 128 * 8 * float64(r.Layout.Dispatch) / FloorRate
	if got := r.Dispatch.Floor.Seconds(); got < want*0.97 || got > want*1.03 {
		t.Errorf("floor %v s, by formula %v s", got, want)
	}
	if r.Overflow != 0 {
		t.Errorf("%v records beyond first chunks that have room for four sigma more than the mean", r.Overflow)
	}
}

// In two nodes half of the rows do not use adapters, and neither kind of path waits for the other.
func TestNodesHaveAPathOfTheirOwn(t *testing.T) {
	c := dsv3(16, 128)
	o := Options{Config: c, NICs: sim.EFA2x200(), Node: 8, Steps: 2, IDs: uniform(c)}
	r := play(t, "EP16 decode", o)
	if r.Dispatch.Posts != 8 || r.Posts != 30 {
		t.Errorf("%d posts by NIC and %v in all, want 8 and 30", r.Dispatch.Posts, r.Posts)
	}
	o.Node = 0
	if all := play(t, "EP16 all by NIC", o); p50(all.Dispatch.Times) < p50(r.Dispatch.Times)*5/4 {
		t.Errorf("%v by NIC alone, %v with nodes", all.Dispatch.Times, r.Dispatch.Times)
	}
}

// All tokens want the same rank: most rows come by the pool, grant by grant, and the time is that of its adapter.
func TestSkewUsesThePool(t *testing.T) {
	c := dsv3(8, 128)
	ids := func(_, rank int) []int32 {
		var ids []int32
		for range 128 {
			for e := range int32(8) {
				ids = append(ids, 32*3+e)
			}
		}
		return ids
	}
	o := Options{Config: c, NICs: sim.ConnectX7(), Steps: 2, IDs: ids, Seed: 3}
	r := play(t, "all to one", o)
	if want := float64(7*(1024-r.Layout.FirstChunk)) / 8; r.Overflow != want || r.Dispatch.Posts < 8 {
		t.Errorf("%v records of a rank beyond first chunks, want %v; %d posts", r.Overflow, want, r.Dispatch.Posts)
	}
	if d, b := p50(r.Dispatch.Times), r.Dispatch.Busiest; d < b || d > b*5/4 {
		t.Errorf("%v, the busiest adapter needs %v", d, b)
	}
	again := play(t, "all to one, again", o)
	if !slices.Equal(r.Step, again.Step) || r.Events != again.Events {
		t.Errorf("the same seed took %v, and then %v", r.Step, again.Step)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	c := dsv3(8, 4)
	good := Options{Config: c, NICs: sim.ConnectX7(), Steps: 1, IDs: uniform(c)}
	for name, spoil := range map[string]func(*Options){
		"one rank":        func(o *Options) { o.Config.MaxRanks = 1 },
		"no steps":        func(o *Options) { o.Steps = 0 },
		"no NICs":         func(o *Options) { o.NICs = nil },
		"parts of a node": func(o *Options) { o.Node = 3 },
		"no such expert":  func(o *Options) { o.IDs = func(int, int) []int32 { return []int32{0, 1, 2, 3, 4, 5, 6, 256} } },
		"half a token":    func(o *Options) { o.IDs = func(int, int) []int32 { return []int32{0} } },
		"the same expert eight times": func(o *Options) {
			o.Config.Experts, o.IDs = 16, func(int, int) []int32 { return slices.Repeat([]int32{3}, 32) }
		},
		"no top-k": func(o *Options) { o.Config.TopK = 0 },
	} {
		o := good
		spoil(&o)
		if _, err := Run(t.Context(), o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	less := good
	less.Config.MaxRecv = 1 // of one who receives in chunks
	play(t, "EP8, 4 tokens", less)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, good); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
}
