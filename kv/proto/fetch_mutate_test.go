//go:build kvmutate

package proto

import "testing"

// TestFetchGuardsAreNeeded: without one of D's guards, its test fails.
func TestFetchGuardsAreNeeded(t *testing.T) {
	defer Mutate("none")
	for name, test := range map[string]func(tb){
		"settle": cancelKeepsPages, "fence": unprovenFence, "recheck": lossOfTheLink, "bye": fetchDrain, "epoch": endedEpoch, "low-water": lowWater,
		"credit-max": fetchCredits, "second-holder": cancelledPages, "publish": publishedWhenReady,
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
		t.Logf("%s: %s", name, said)
	}
}
