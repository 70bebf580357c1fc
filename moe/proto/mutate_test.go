//go:build moemutate

package proto

import (
	"flag"
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
