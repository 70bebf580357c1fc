package model

import (
	"slices"
	"testing"

	"github.com/hawser-project/hawser/kv/proto"
)

// TestStatesAreThoseOfTheMachines compares the states of the model with those of the program.
func TestStatesAreThoseOfTheMachines(t *testing.T) {
	// Of a request, not of one attempt: how it ended, and that it waits, before there is an attempt; "new" is before that, too.
	beside := []string{"failed", "cancelled", "waiting", "new"}
	for machine, of := range map[string]string{"prefiller": "attempt on P", "writer": "writer", "attempt": "attempt on D"} {
		isBeside := func(name string) bool { return slices.Contains(beside, name) }
		var got []string
		for _, p := range append(proto.DecoderPairs(), proto.PrefillerPairs()...) {
			if p.Of == of {
				got = append(got, p.State)
			}
		}
		slices.Sort(got)
		got = slices.DeleteFunc(slices.Compact(got), isBeside)
		want := slices.DeleteFunc(states(t, machine), isBeside)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: in Go %q, in the model %q", machine, got, want)
		}
	}
}
