//go:build moemutate

package proto

import (
	"flag"
	"fmt"
	"testing"
)

var mutateRuns = flag.Int("moe.mutate", 300, "random walks through each world that TestMutations tries without each guard")

// TestMutations: without any one of the guards, some order of events leads to what must not be.
func TestMutations(t *testing.T) {
	defer Mutate("none")
	for _, name := range Mutations() {
		t.Run(name, func(t *testing.T) {
			Mutate(name)
			defer Mutate("none")
			said := noticed(*mutateRuns)
			if said == "" {
				t.Error("nothing notices that the guard is gone")
			}
			t.Log(said)
		})
	}
}

// noticed says how a fault is found: by some walk, or in a small world.
func noticed(runs int) string {
	for seed := range uint64(runs) {
		for name, s := range big() {
			if faults, _ := walk(s, seed); len(faults) > 0 {
				return fmt.Sprintf("%s, seed %d: %s", name, seed, faults[0])
			}
		}
	}
	small, _ := worlds()
	for name, s := range small {
		if r := search(s, 20_000); len(r.faults) > 0 {
			return name + ": " + r.faults[0]
		}
	}
	return ""
}
