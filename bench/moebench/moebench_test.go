package moebench

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hawser-project/hawser/internal/proc"
)

const rankArg = "rank"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == rankArg {
		if err := Serve(context.Background()); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func small(t *testing.T, name string, ranks int) Shape {
	t.Helper()
	s, err := Named(name, ranks)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func run(t *testing.T, network string, s Shape) *Report {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := Run(ctx, Config{
		Provider: network, Shape: s, Seed: 1, Rounds: 2, Warm: 2, Steps: 10, Child: proc.Spec{Name: "rank", Args: []string{rankArg}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Every field that programs rely on is there, and every byte was right.
func TestReportOfTwoRanks(t *testing.T) {
	for _, s := range []Shape{small(t, "small", 2), small(t, "pair", 2)} {
		r := run(t, "shm", s)
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		var raw map[string]any
		if err := json.Unmarshal(text, &raw); err != nil {
			t.Fatal(err)
		}
		for _, f := range strings.Fields(`schema provider shape routing seed samples ranks steps verified_steps mismatched_bytes dispatch_p50_us combine_p50_us
			step_p50_us exchange_p50_us bytes posts overflow ratio_mpi ratio_gloo step_ratio_mpi floor_us dispatch_floor_us combine_floor_us`) {
			if _, ok := raw[f]; !ok {
				t.Errorf("%s: no field %s", s.Name, f)
			}
		}
		if *r.VerifiedSteps != 3 || *r.MismatchedBytes != 0 || r.Steps != 20 {
			t.Errorf("%s: %d verified, %d bytes wrong, %d steps", s.Name, *r.VerifiedSteps, *r.MismatchedBytes, r.Steps)
		}
		if r.RatioMPI != nil || r.Posts < 2 || r.Bytes < 1024 {
			t.Errorf("%s: %+v", s.Name, r.Row)
		}
		for name, d := range r.Samples {
			if !(d.Min > 0 && d.P50 >= d.Min && d.P99 >= d.P90 && d.P90 >= d.P50) {
				t.Errorf("%s: %s: %+v", s.Name, name, d)
			}
		}
	}
}

func TestRoutingOfPairs(t *testing.T) {
	s := small(t, "pair", 4)
	s.Tokens = 12
	r, err := s.NewRouting(1)
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range r.Records() {
		if n != 3 {
			t.Errorf("from %d to %d: %d rows, want 3", i/4, i%4, n)
		}
	}
}

func TestUnknownNames(t *testing.T) {
	if _, err := Named("nothing", 2); err == nil {
		t.Error("there is no such shape")
	}
	s := small(t, "small", 2)
	s.Routing = "nothing"
	if _, err := s.NewRouting(1); err == nil || !strings.Contains(err.Error(), "uniform") {
		t.Errorf("a routing of no name and no file: %v", err)
	}
	s.DType = "int3"
	if _, err := s.Config(); err == nil {
		t.Error("there is no such type")
	}
}

func TestSimulationOfOneNode(t *testing.T) {
	s := small(t, "decode", 0)
	for _, profile := range []string{"cx7", "efa"} {
		r, err := Simulate(t.Context(), Simulation{Shape: s, EP: []int{8}, Profile: profile, Seed: 1, Steps: 2})
		if err != nil {
			t.Fatal(err)
		}
		x := r.Rows[0]
		if !r.Simulated || !x.Simulated || x.Profile != profile || x.Published["reference"].Dispatch != 0 || x.Node != 0 {
			t.Errorf("%s: %+v", profile, x)
		}
		if !(*x.Dispatch > x.DispatchFloor && *x.Combine > x.CombineFloor && x.DispatchBusiest > 1 && x.CombineBusiest > 1) {
			t.Errorf("%s: dispatch %v us, combine %v us are below the floor: %+v", profile, *x.Dispatch, *x.Combine, x)
		}
		if x.PostsByNIC != (Posts{7, 7}) {
			t.Errorf("%s: posts %+v, want 7 of each", profile, x.PostsByNIC)
		}
	}
	if _, err := Simulate(t.Context(), Simulation{Shape: s, EP: []int{8}, Profile: "none", Steps: 1}); err == nil {
		t.Error("there is no such profile")
	}
}

// Figures that contradict themselves are not given.
func TestPublishedLeavesMisprintsOut(t *testing.T) {
	s := small(t, "decode", 64)
	if p := publishedFor(s, "cx7"); p["reference"] != (Pair{190, 311}) || p["deepep"] != (Pair{180, 327}) {
		t.Errorf("%+v", p)
	}
	if p := publishedFor(s, "efa"); p["reference"] != (Pair{286, 406}) || len(p) != 1 {
		t.Errorf("%+v", p)
	}
	s.Tokens = 4096
	for _, ranks := range []int{8, 16} {
		s.Ranks = ranks
		if p := publishedFor(s, "cx7"); p["reference"].Combine != 0 {
			t.Errorf("EP%d: %+v", ranks, p)
		}
	}
	s.Routing = "zipf:1.2"
	if p := publishedFor(s, "cx7"); len(p) != 0 {
		t.Errorf("of another routing: %+v", p)
	}
}
