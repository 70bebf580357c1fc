//go:build weightmutate

package proto

import (
	"flag"
	"testing"
)

var mutateRuns = flag.Int("weights.mutate", 20_000, "random schedules that TestMutations tries without each guard")

// TestMutations: without any one of the guards, some schedule of faults leads to what must not be.
func TestMutations(t *testing.T) {
	defer Mutate("none")
	for _, name := range Mutations() {
		t.Run(name, func(t *testing.T) {
			Mutate(name)
			defer Mutate("none")
			for seed := range uint64(*mutateRuns) {
				c := newChaos(seed + 1)
				if c.play(2000); len(c.faults) > 0 {
					t.Logf("seed %d: %s", seed+1, c.faults[0])
					return
				}
			}
			t.Errorf("no schedule notices that the guard is gone")
		})
	}
}
