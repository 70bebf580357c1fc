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
	for machine, got := range map[string][]string{"prefiller": proto.ServeStates(), "writer": proto.WriterStates(), "attempt": proto.FetchStates()} {
		isBeside := func(name string) bool { return slices.Contains(beside, name) }
		got, want := slices.DeleteFunc(slices.Clone(got), isBeside), slices.DeleteFunc(states(t, machine), isBeside)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: in Go %q, in the model %q", machine, got, want)
		}
	}
}
