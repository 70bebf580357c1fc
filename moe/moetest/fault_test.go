package moetest

import (
	"flag"
	"testing"
)

var thorough = flag.Bool("moetest.all", false, "all routings of small worlds, and every fault at every event of many: minutes")

// strikes runs a world with every fault of a kind at events of it, stride apart.
func strikes(t *testing.T, c Config, kind FaultKind, first, stride int) (r Report, runs int) {
	c.Faults = nil
	events := run(t, c).Events
	for at := first; at < events; at += stride {
		for rank := range c.Ranks {
			c.Faults = []Fault{{Kind: kind, At: at, Rank: rank, Peer: (rank + 1 + at%(c.Ranks-1)) % c.Ranks}}
			one := run(t, c)
			r.Partial += one.Partial
			r.Failed += one.Failed
			r.Views += one.Views - 1
			r.Steps += one.Steps
			runs++
		}
	}
	return r, runs
}

// TestFaults is every fault, at events of runs of three steps with chunks beyond the first ones. Who survives ends its step, names who is
// missing, has all that it must have, and goes on in the next view; who was killed comes again; nothing is left over. Nobody else may be
// named, but for a rank that was never active in the view, and once a time-out has passed: then whoever waits for the missing is late, too.
// Rails that die are not noticed at all.
func TestFaults(t *testing.T) {
	seeds, stride := uint64(2), 5
	if *thorough {
		seeds, stride = 30, 1
	}
	for kind := range faultKinds {
		t.Run(kind.String(), func(t *testing.T) {
			var sum Report
			all := 0
			for seed := range seeds {
				r, runs := strikes(t, setup(t, 5*seed, "uniform"), kind, int(seed)%stride, stride)
				all += runs
				sum.Partial += r.Partial
				sum.Failed += r.Failed
				sum.Views += r.Views
				sum.Steps += r.Steps
			}
			t.Logf("%d runs: %d partial steps, %d failed, %d changes of view, %d whole steps", all, sum.Partial, sum.Failed, sum.Views, sum.Steps)
			switch {
			case kind == RailDeath && (sum.Partial+sum.Failed+sum.Views > 0 || sum.Steps != 3*all):
				t.Error("a rail that died was noticed")
			case kind == Kill && (sum.Views != 2*all || sum.Partial < all):
				t.Error("want two changes of view for each death, and partial steps")
			case kind != RailDeath && sum.Views < all/5:
				t.Error("hardly any fault had a consequence")
			}
		})
	}
}

// TestTwoDeaths: both are named, at any distance, also in a change of view.
func TestTwoDeaths(t *testing.T) {
	n := 400
	if *thorough {
		n = 20_000
	}
	for i := range n {
		c := setup(t, uint64(5*(i%12)), "hot")
		c.Ranks, c.Experts = 4, 7
		c.Seed += uint64(i) * 60
		c.MaxRecv = c.Ranks * c.Tokens * c.TopK
		at := i * 7 % 300
		c.Faults = []Fault{{Kind: Kill, At: at, Rank: i % 4, Peer: (i + 1) % 4}, {Kind: Kill, At: at + i%97, Rank: (i + 1 + i/4%3) % 4, Peer: i % 4}}
		run(t, c)
	}
}
