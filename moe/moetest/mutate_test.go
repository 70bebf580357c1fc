//go:build moemutate

package moetest

import (
	"testing"

	"github.com/hawser-project/hawser/moe/proto"
)

// covered are guards that nothing here can get to: the executor refuses a second step before the lane does, and nobody is a whole step
// ahead of one who gives up. The search of states in moe/proto needs them.
var covered = map[string]bool{"busy": true, "later": true}

// TestMutations takes one guard of the protocol away after the other: some run must fail each time. So the fabric sees what the guards are
// for.
func TestMutations(t *testing.T) {
	defer proto.Mutate("none")
	for _, name := range proto.Mutations() {
		if name == "none" || covered[name] {
			continue
		}
		t.Run(name, func(t *testing.T) {
			proto.Mutate(name)
			what, runs := mutant(t)
			if what == "" {
				t.Fatalf("not noticed in %d runs", runs)
			}
			t.Logf("noticed in run %d: %s", runs, what)
		})
	}
}

// mutant runs worlds until something fails.
func mutant(t *testing.T) (what string, runs int) {
	try := func(c Config) bool {
		runs++
		w, err := NewWorld(c)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if r := recover(); r != nil { // nothing is sure any more
				what = "panic"
			}
		}()
		if _, err = w.Run(nil); err != nil {
			what = err.Error()
		}
		return what != ""
	}
	for seed := range uint64(200) {
		for _, name := range []string{"uniform", "hot", "dup"} {
			c := setup(t, seed, name)
			c.Steps = 6
			if try(c) {
				return what, runs
			}
			if c.Ranks < 2 {
				continue
			}
			for kind := range faultKinds {
				for at := range 12 {
					f := Fault{Kind: kind, At: int(seed)%23 + at*29, Rank: int(seed+uint64(at)) % c.Ranks}
					f.Peer = (f.Rank + 1 + at%(c.Ranks-1)) % c.Ranks
					c.Faults = []Fault{f}
					if at%4 == 3 { // and another one a little later
						c.Faults = append(c.Faults, Fault{Kind: Kill, At: f.At + 40, Rank: f.Peer, Peer: f.Rank})
					}
					if try(c) || what != "" {
						return what, runs
					}
				}
			}
		}
	}
	return what, runs
}
