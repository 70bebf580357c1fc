//go:build weightmutate

package proto

import (
	"flag"
	"fmt"
	"slices"
	"testing"
)

var mutateRuns = flag.Int("weights.mutate", 10_000, "random schedules that TestMutations tries without each guard")

// TestMutations: without any one of the guards, some schedule of faults leads to what must not be.
func TestMutations(t *testing.T) {
	defer Mutate("none")
	for _, name := range Mutations() {
		if slices.Contains([]string{"term-reuse", "term-id", "quiet", "epoch", "lease", "unquiet"}, name) {
			continue // rare, or no danger by itself: TestGuardsAreNeeded has a test of its own for each
		}
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

// TestGuardsAreNeeded: without one of these guards, its test fails.
func TestGuardsAreNeeded(t *testing.T) {
	defer Mutate("none")
	for name, test := range map[string]func(tb){
		"term-reuse": emptyStateDir, "term-id": twoControllers, "epoch": lateStopped, "lease": leased, "quiet": waitsForQuiet,
		"stuck": unfencedIsRefused, "fence": lostIsFenced, "unquiet": unquietIsNoCommit,
	} {
		Mutate("none")
		if said := new(witness).run(test); said != "" {
			t.Errorf("%s: the test fails by itself: %s", name, said)
		}
		Mutate(name)
		said := new(witness).run(test)
		if said == "" {
			t.Errorf("%s: the test does not notice that the guard is gone", name)
		}
		t.Logf("%s: %.120s", name, said)
	}
}

// witness is a tb that a mutated machine fails.
type witness struct{ said string }

type witnessed struct{}

func (w *witness) Helper() {}

func (w *witness) Errorf(format string, args ...any) {
	if w.said == "" {
		w.said = fmt.Sprintf(format, args...)
	}
}

func (w *witness) Fatalf(format string, args ...any) {
	w.Errorf(format, args...)
	panic(witnessed{})
}

// run returns what a test had to say.
func (w *witness) run(test func(tb)) (said string) {
	defer func() {
		if x := recover(); x != nil {
			if said = w.said; said == "" {
				said = fmt.Sprint(x)
			}
		}
	}()
	test(w)
	return w.said
}
