//go:build kvmutate

package proto

import (
	"fmt"
	"testing"
)

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

// TestServeGuardsAreNeeded: without one of P's guards, its test fails.
func TestServeGuardsAreNeeded(t *testing.T) {
	defer Mutate("none")
	for name, test := range map[string]func(tb){
		"tomb-on-cancel": cancelOvertakesDispatch, "tomb-on-reject": rejectedIsRemembered, "gate": cancelWaitsForWrites, "next-kept": preemption,
		"bye": drain, "epoch": newerEpoch, "low-water": oldSeqs,
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
