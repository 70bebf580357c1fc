package reshard_test

import (
	"context"
	"testing"

	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/reshard/models"
)

func layouts(t testing.TB, name string, reverse bool) (src, dst *reshard.Layout) {
	t.Helper()
	c, err := models.Reference("", name)
	if err != nil {
		t.Fatal(err)
	}
	if src, dst, err = c.Layouts(reverse); err != nil {
		t.Fatal(err)
	}
	return src, dst
}

func BenchmarkCompute(b *testing.B) {
	for _, name := range []string{"k2", "k2-split", "q235-rows"} {
		b.Run(name, func(b *testing.B) {
			src, dst := layouts(b, name, false)
			regions := int64(0)
			for b.Loop() {
				p, err := reshard.Compute(context.Background(), src, dst, nil, reshard.Options{})
				if err != nil {
					b.Fatal(err)
				}
				regions = p.Loads().Regions
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(regions), "ns/region")
		})
	}
}

// BenchmarkSource lowers the part of one rank.
func BenchmarkSource(b *testing.B) {
	for _, name := range []string{"k2", "q235-rows"} {
		b.Run(name, func(b *testing.B) {
			src, dst := layouts(b, name, false)
			p, err := reshard.Compute(context.Background(), src, dst, nil, reshard.Options{})
			if err != nil {
				b.Fatal(err)
			}
			runs := 0
			for b.Loop() {
				runs = 0
				for _, t := range p.Source(5).Tasks {
					runs += len(t.Runs)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(runs), "ns/run")
		})
	}
}
