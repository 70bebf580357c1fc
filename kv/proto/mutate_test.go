//go:build kvmutate

package proto

import (
	"fmt"
	"testing"
)

// TestFetchGuardsAreNeeded: without one of D's guards, its test fails.
func TestFetchGuardsAreNeeded(t *testing.T) {
	areNeeded(t, map[string]func(tb){
		"settle": cancelKeepsPages, "fence": unprovenFence, "recheck": lossOfTheLink, "bye": fetchDrain, "epoch": endedEpoch, "low-water": lowWater,
		"credit-max": fetchCredits, "second-holder": cancelledPages, "publish": publishedWhenReady,
	})
}

// TestServeGuardsAreNeeded: without one of P's guards, its test fails.
func TestServeGuardsAreNeeded(t *testing.T) {
	areNeeded(t, map[string]func(tb){
		"tomb-on-cancel": cancelOvertakesDispatch, "tomb-on-reject": rejectedIsRemembered, "gate": cancelWaitsForWrites, "next-kept": preemption,
		"bye": drain, "epoch": newerEpoch, "low-water": oldSeqs,
	})
}

// areNeeded runs the test of each guard with the guard and without it.
func areNeeded(t *testing.T, guards map[string]func(tb)) {
	defer Mutate("none")
	for name, test := range guards {
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

// witness is a tb that a mutated machine fails.
type witness struct{ said string }

type witnessed struct{}

func (w *witness) Helper() {}

func (w *witness) Errorf(format string, args ...any) {
	if w.said == "" {
		w.said = fmt.Sprintf(format, args...)
	}
}

func (w *witness) Error(args ...any) { w.Errorf("%s", fmt.Sprint(args...)) }

func (w *witness) Fatalf(format string, args ...any) {
	w.Errorf(format, args...)
	panic(witnessed{})
}

func (w *witness) Fatal(args ...any) { w.Fatalf("%s", fmt.Sprint(args...)) }

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
