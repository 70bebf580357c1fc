package weights

import (
	"testing"
	"time"
)

// What is missing is told of the first stage that is not complete, the worst publisher first, and only of some.
func TestWaitingText(t *testing.T) {
	all := []Missing{
		{Publisher: 5, Stage: "layer-12", Have: 2, Want: 5},
		{Publisher: 88, Stage: "layer-12", Have: 0, Want: 4, Down: true},
		{Publisher: 5, Stage: "layer-13", Have: 0, Want: 99},
	}
	want := func(stage string) uint64 { return map[string]uint64{"layer-12": 318, "layer-13": 99}[stage] }
	w := waiting(all, want)
	if got, want := w.text(17, 2*time.Minute), "receiver 17 stage layer-12: 311 of 318 writes after 2m0s; missing: publisher 88 (4, peer down), publisher 5 (3)"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if w := waiting(nil, want); w != nil {
		t.Errorf("nothing is missing: %+v", w)
	}
	all = nil
	for i := range 11 {
		all = append(all, Missing{Publisher: i, Stage: "layer-13", Want: 9})
	}
	if w := waiting(all, want); w.Have != 0 || len(w.Missing) != mostMissing || w.More != 3 || w.Missing[0].Publisher != 0 {
		t.Errorf("%+v", w)
	}
}
