package weightsim

import (
	"bytes"
	"encoding/json"
	"testing"
)

// A trace is JSON with a bar for every step of every stage, inside the push.
func TestTrace(t *testing.T) {
	x := shape{sources: 4, dests: 2, stages: 3, runs: 2, size: 2 << 20}
	r := x.simulate(t, Options{Trace: true})
	var out bytes.Buffer
	if err := r.WriteTrace(&out); err != nil {
		t.Fatal(err)
	}
	var got struct {
		TraceEvents []struct {
			Ph, Name, ID string
			Ts, Dur      float64
		}
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	seen, arrows := map[string]int{}, map[string]int{}
	for _, e := range got.TraceEvents {
		seen[e.Ph]++
		if e.ID != "" {
			arrows[e.ID]++
		}
		if e.Ts < 0 || e.Dur < 0 || e.Ts+e.Dur > us(r.Total) {
			t.Errorf("%+v is not inside of %v", e, r.Total)
		}
	}
	if bars := 3*x.stages*x.sources + x.stages*x.dests; seen["X"] != bars {
		t.Errorf("%d bars, want %d", seen["X"], bars)
	}
	for id, n := range arrows {
		if n != 2 {
			t.Errorf("arrow %s has %d ends", id, n)
		}
	}
	if len(arrows) != x.sources*x.dests*x.stages {
		t.Errorf("%d arrows", len(arrows))
	}
}
