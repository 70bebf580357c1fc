package reshard_test

import (
	"context"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/reshard/models"
)

// TestAllModelsBothWays plans every reference case from training to inference and back: Compute fails if a byte is missing. Of each plan, what
// the ranks with the most and the least to do send is what their destinations expect.
func TestAllModelsBothWays(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range models.Cases() {
		seen[c.Model] = true
		for _, reverse := range []bool{false, true} {
			name := c.Model + " " + c.Name + map[bool]string{true: " reverse"}[reverse]
			src, dst, err := c.Layouts(reverse)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			p, err := reshard.Compute(context.Background(), src, dst, nil, reshard.Options{})
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			s := p.Loads()
			if s.Uncovered != 0 || s.Ingress.Sum != s.Egress.Sum || s.Bytes != needed(dst) {
				t.Errorf("%s: %d bytes uncovered, %d leave, %d arrive, %d are needed", name, s.Uncovered, s.Egress.Sum, s.Ingress.Sum, needed(dst))
			}
			if s.Regions < 2e6 {
				consistent(t, name, p, s.Egress.BusiestRank, len(dst.Buffers))
			}
		}
	}
	if len(seen) != len(models.Names()) {
		t.Errorf("cases for %d of %d models", len(seen), len(models.Names()))
	}
}

// needed is the bytes of all destination pieces, counted from the layout alone.
func needed(l *reshard.Layout) (n int64) {
	for i := range l.Grids {
		n += reshard.GridBytes(l, i)
	}
	return n
}

// consistent compares what one source sends with what its destinations expect of it.
func consistent(t *testing.T, name string, p *reshard.Plan, source, ranks int) {
	t.Helper()
	sent := map[int][]reshard.Run{}
	for _, task := range p.Source(source).Tasks {
		for _, r := range task.Runs {
			d := r.Peer
			r.Peer, r.From = source, 0
			sent[d] = append(sent[d], r)
		}
	}
	for _, d := range []int{0, ranks / 2, ranks - 1} {
		var want []reshard.Run
		for _, r := range p.Dest(d).Runs {
			if r.Peer == source {
				want = append(want, r)
			}
		}
		got := sent[d]
		slices.SortFunc(got, func(a, b reshard.Run) int {
			if a.Stage != b.Stage {
				return a.Stage - b.Stage
			}
			if a.Buffer != b.Buffer {
				return a.Buffer - b.Buffer
			}
			return int(a.Offset - b.Offset)
		})
		if !slices.Equal(got, want) {
			t.Errorf("%s: source %d sends destination %d %d runs, %d are expected", name, source, d, len(got), len(want))
		}
	}
}

// calibrate is the work that plans are measured against: 2^20 items, each two divisions with remainder by divisors known at run time, a look-up in a
// table of 4 KiB and an append of 16 bytes. It returns the median of nine, in ns per item.
func calibrate() float64 {
	const items = 1 << 20
	var table [1024]uint32
	for i := range table {
		table[i] = uint32(i * 2654435761)
	}
	type entry struct {
		a, b uint32
		c    uint64
	}
	out := make([]entry, 0, items)
	p, q := uint32(runtime.NumGoroutine()+125), uint32(runtime.NumGoroutine()+29)
	var took []float64
	for range 9 {
		out = out[:0]
		begin := time.Now()
		for i := range uint32(items) {
			a, rest := i/p, i%p
			b, c := rest/q, rest%q
			out = append(out, entry{a, b, uint64(table[c&1023])})
		}
		took = append(took, float64(time.Since(begin).Nanoseconds())/items)
	}
	slices.Sort(took)
	return took[4]
}

// TestPlanTime plans on one processor, and compares the time of a region with that of an item of the calibration loop. The best of five of
// each is taken: another process on the machine slows both, never only one for ever.
func TestPlanTime(t *testing.T) {
	if reshard.Race || testing.Short() {
		t.Skip("times mean nothing under the race detector, and -short leaves them out")
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for _, g := range []struct {
		name string
		most float64
		goal time.Duration
	}{{"k2", 30, 150 * time.Millisecond}, {"q235-rows", 16, 1500 * time.Millisecond}} {
		src, dst := layouts(t, g.name, false)
		best, item, regions := time.Hour, 0.0, int64(0)
		for i := range 5 {
			if c := calibrate(); i == 0 || c < item {
				item = c
			}
			begin := time.Now()
			p, err := reshard.Compute(context.Background(), src, dst, nil, reshard.Options{})
			if err != nil {
				t.Fatal(err)
			}
			best = min(best, time.Since(begin))
			regions = p.Loads().Regions
		}
		each := float64(best.Nanoseconds()) / float64(regions)
		t.Logf("%s: %d regions in %v (goal %v), %.1f ns each, %.2f times the calibration loop's %.2f ns (gate %v)", g.name, regions, best, g.goal, each,
			each/item, item, g.most)
		if each > g.most*item {
			t.Errorf("%s: %.1f ns a region, more than %v times %.2f ns", g.name, each, g.most, item)
		}
	}
}
