package weightbench

import (
	"context"
	"os"
	"testing"

	"github.com/hawser-project/hawser/internal/proc"
	"github.com/hawser-project/hawser/weights/stage"
)

// The test binary is a rank's process, too.
func TestMain(m *testing.M) {
	if os.Getenv("HAWSER_WEIGHTBENCH_RANK") != "" {
		if Serve(context.Background()) != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func child() proc.Spec { return proc.Spec{Name: "rank", Env: []string{"HAWSER_WEIGHTBENCH_RANK=1"}} }

// Small pushes between real processes: every byte is right, with everybody who takes part.
func TestRun(t *testing.T) {
	for name, k := range map[string]Case{
		"tiny": {Model: "tiny", Src: 4, Dst: 2, Codec: "raw"},
		"raw":  {Model: "Qwen3-0.6B", Src: 4, Dst: 2, Codec: "raw", Layers: []int{3, 3}},
		"fp8":  {Model: "Qwen3-0.6B", Src: 3, Dst: 2, Codec: "fp8block", Layers: []int{0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := Run(t.Context(), Config{Network: "shm", Case: k, Verify: stage.All, Rounds: 1, Child: child(), Peers: &Peers{}})
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range r.Systems {
				if s.Skipped == "" && s.Millis.Median <= 0 || s.Wrong != nil && *s.Wrong != 0 {
					t.Errorf("%s: %.2f ms, %v wrong bytes", s.Name, s.Millis.Median, s.Wrong)
				}
			}
			if r.Bytes == 0 || r.Wrong != 0 {
				t.Errorf("%+v", r)
			}
		})
	}
}
