package layout

import (
	"fmt"
	"runtime"
	"testing"
)

// deepseek is the largest pair in use: 8 replicas to 8 ranks.
func deepseek(t testing.TB) *Pair {
	m := model(t, "deepseek-v3", 0)
	pair, err := NewPair(instance(t, Spec{Model: m, Pages: 4096}), instance(t, Spec{Model: m, Pages: 4096}), Options{})
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

func identity(p *Plan) (src, dst Pages) {
	list := func(first, end int) Pages {
		l := Pages{First: first}
		for i := range end - first {
			l.Index = append(l.Index, uint32(i))
		}
		return l
	}
	return list(p.SrcPages(0)), list(p.DstPages(0))
}

// TestNoAllocation: going over the writes of a plan takes no memory.
func TestNoAllocation(t *testing.T) {
	pair := deepseek(t)
	p, err := pair.Plan([]Span{{0, 5000}}, 3)
	if err != nil {
		t.Fatal(err)
	}
	src, dst := identity(p)
	from, to := make([]uint32, 128), make([]uint32, 128)
	var b Batch
	writes := 0
	allocs := testing.AllocsPerRun(10, func() {
		writes = 0
		for rank := range 8 {
			for layer := range 61 {
				for c := p.Cursor(0, rank, layer, 0, p.Ready(0, 5000)); c.Next(&b, 128); {
					b.Fill(src, dst, from, to)
					for i := range b.N {
						writes += int(b.Write(i).Len) / (72 << 10)
					}
				}
			}
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
	if uint64(writes) != p.Writes() {
		t.Errorf("%d writes, want %d", writes, p.Writes())
	}
}

// TestPlanSize: a plan is small, since thousands are alive at a time.
func TestPlanSize(t *testing.T) {
	pair := deepseek(t)
	plans := make([]*Plan, 1000)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range plans {
		p, err := pair.Plan([]Span{{0, 128 << 10}}, uint64(i))
		if err != nil {
			t.Fatal(err)
		}
		plans[i] = p
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if each := int64(after.HeapAlloc-before.HeapAlloc) / int64(len(plans)); each > 512 {
		t.Errorf("%d bytes per plan, want at most 512", each)
	}
	runtime.KeepAlive(plans)
}

// BenchmarkPair is the work when a link begins, BenchmarkPlan that of an attempt.
func BenchmarkPair(b *testing.B) {
	pair := deepseek(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := NewPair(pair.Src(), pair.Dst(), Options{}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(pair.lanes)), "lanes")
}

func BenchmarkPlan(b *testing.B) {
	small, mid := model(b, "mini", 0), model(b, "qwen3-235b-tp4", 0)
	for _, c := range []struct {
		name     string
		src, dst Spec
	}{
		{"mini", Spec{Model: small}, Spec{Model: small}},
		{"qwen3-235b", Spec{Model: mid}, Spec{Model: mid}},
		{"deepseek-v3", Spec{Model: model(b, "deepseek-v3", 0)}, Spec{Model: model(b, "deepseek-v3", 0)}},
	} {
		pair, err := NewPair(instance(b, c.src), instance(b, c.dst), Options{})
		if err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprintf("%s/128K", c.name), func(b *testing.B) {
			b.ReportAllocs()
			seq := uint64(0)
			for b.Loop() {
				seq++
				if _, err := pair.Plan([]Span{{0, 128 << 10}}, seq); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkWrites is the cost per write of what a posting loop does: cursor, batches of at most 32, page indices.
func BenchmarkWrites(b *testing.B) {
	m := model(b, "qwen3-235b-tp4", 0)
	for _, c := range []struct {
		name     string
		src, dst Spec
	}{
		{"equal", Spec{Model: m}, Spec{Model: m}},
		{"TP 4 to 1", Spec{Model: m}, Spec{Model: m, TP: 1}},
		{"pages 16 to 128", Spec{Model: m, PageTokens: 16}, Spec{Model: m}},
		{"MLA 8 to 8", Spec{Model: model(b, "deepseek-v3", 0)}, Spec{Model: model(b, "deepseek-v3", 0)}},
	} {
		p, err := MakePlan(instance(b, c.src), instance(b, c.dst), []Span{{0, 16384}}, 0, Options{})
		if err != nil {
			b.Fatal(err)
		}
		src, dst := identity(p)
		from, to := make([]uint32, 32), make([]uint32, 32)
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			writes := 0
			for b.Loop() {
				var batch Batch
				for c := p.Cursor(0, 1, 7, 0, 1<<20); c.Next(&batch, 32); {
					batch.Fill(src, dst, from, to)
					writes += batch.N
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(writes), "ns/write")
		})
	}
}
