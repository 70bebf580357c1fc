package moesim

import (
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

func TestDecodeEP8(t *testing.T) {
	c := dsv3(8, 128)
	r := play(t, "EP8 decode", Options{Config: c, NICs: sim.ConnectX7(), Steps: 5, IDs: uniform(c)})
	for _, p := range []Phase{r.Dispatch, r.Combine} {
		for _, d := range p.Times {
			if d < p.Floor || d < p.Busiest/2 {
				t.Errorf("%v, the floor is %v", d, p.Floor)
			}
		}
		if got := p50(p.Times); got > p.Floor*3/2 {
			t.Errorf("%v, the floor is %v", got, p.Floor)
		}
	}
}

func TestScale(t *testing.T) {
	for _, n := range []int{16, 32, 64} {
		c := dsv3(n, 128)
		play(t, "decode", Options{Config: c, NICs: sim.ConnectX7(), Node: 8, Steps: 5, IDs: uniform(c)})
	}
}
