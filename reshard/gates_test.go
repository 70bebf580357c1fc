package reshard_test

import (
	"context"
	"testing"
	"time"

	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/reshard/models"
)

// references is what the cases come to, as computed apart from this planner.
var references = []struct {
	name                  string
	regions               int64
	egress, most, ingress float64 // GB: average, greatest, greatest of a destination
}{
	{"k2", 967680, 22.98, 23.23, 45.96},
	{"k2-split", 1150976, 22.98, 23.23, 45.96},
	{"k2-rows", 5298176, 22.98, 23.23, 45.96},
	{"k2-tp8", 746240, 17.30, 17.34, 34.60},
	{"q235", 3621888, 9.42, 9.42, 37.69},
	{"q235-tp8", 2700288, 7.42, 7.42, 29.69},
	{"q235-rows", 21958656, 9.42, 9.42, 37.69},
	{"l70", 758272, 8.82, 8.82, 17.64},
}

// TestPlanGates plans the reference cases whole.
func TestPlanGates(t *testing.T) {
	for _, r := range references {
		t.Run(r.name, func(t *testing.T) {
			c, err := models.Reference("", r.name)
			if err != nil {
				t.Fatal(err)
			}
			src, dst, err := c.Layouts(false)
			if err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			p, err := reshard.Compute(context.Background(), src, dst, nil, reshard.Options{})
			took := time.Since(begin)
			if err != nil {
				t.Fatal(err)
			}
			s := p.Loads()
			t.Logf("%d regions of %d classes in %v, %.1f ns each", s.Regions, s.Classes, took, float64(took.Nanoseconds())/float64(s.Regions))
			if d := float64(s.Regions)/float64(r.regions) - 1; d > 0.005 || d < -0.005 {
				t.Errorf("%d regions, want %d within 0.5 %%", s.Regions, r.regions)
			}
			if s.Egress.MaxOverAvg > 1.02 || s.Uncovered != 0 {
				t.Errorf("greatest egress is %.4f of the average, %d bytes uncovered", s.Egress.MaxOverAvg, s.Uncovered)
			}
			near := func(what string, got, want float64) {
				if got < want*0.998 || got > want*1.002 {
					t.Errorf("%s: %.3f GB, want %.2f", what, got, want)
				}
			}
			near("average egress", s.Egress.Avg/1e9, r.egress)
			near("greatest egress", float64(s.Egress.Max)/1e9, r.most)
			near("greatest ingress", float64(s.Ingress.Max)/1e9, r.ingress)
		})
	}
}
