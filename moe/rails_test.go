package moe

import (
	"fmt"
	"slices"
	"testing"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/sim"
)

// TestRailsDiffer: ranks with any numbers of rails give the same results, and owe each other the same immediates.
func TestRailsDiffer(t *testing.T) {
	t.Parallel()
	c := tiny(2)
	c.Hidden = 512 // records that rails share
	var want []uint64
	for a := 1; a <= 8; a++ {
		for b := 1; b <= 8; b++ {
			fabric := sim.New(sim.Config{Seed: uint64(10*a + b), NICs: 8})
			x := teamOf(t, []*hawser.Engine{railed(t, fabric, "a", a), railed(t, fabric, "b", b)}, c)
			x.steps(3)
			var got []uint64
			for _, r := range x.ranks {
				for _, l := range r.lanes {
					got = append(got, l.wire.arrived()...)
				}
			}
			if want == nil {
				want = got
			}
			if !slices.Equal(got, want) || slices.Max(got) == 0 {
				t.Errorf("%d and %d rails: immediates %v, with 1 and 1 %v", a, b, got, want)
			}
		}
	}
}

// railed is an engine with so many rails.
func railed(t testing.TB, fabric *sim.Fabric, host string, rails int) *hawser.Engine {
	t.Helper()
	p := fabric.Provider(host)
	o := hawser.Options{Providers: []provider.Provider{p}}
	for i := range rails {
		o.Rails = append(o.Rails, hawser.Rail{Provider: p.Name(), Device: fmt.Sprint("nic", i)})
	}
	e, err := hawser.Open(within(t), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(within(t)); err != nil {
			t.Error(err)
		}
	})
	return e
}

// arrived are the counts of all immediates of the view.
func (w *wire) arrived() (n []uint64) {
	for _, b := range w.blocks {
		for i := range b.b.Len() {
			n = append(n, b.b.Counter(i).Load())
		}
	}
	return n
}
