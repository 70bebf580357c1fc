package shm

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/hawser-project/hawser/mem"
	"github.com/hawser-project/hawser/provider"
)

// BenchmarkForeign is BenchmarkPages with memory that has no memfd, in another process: the receiver fetches the pages. The copy that
// it is compared with goes to memory of this process.
//
//	go test ./provider/shm -run '^$' -bench Foreign
func BenchmarkForeign(b *testing.B) {
	for _, kind := range []mem.Kind{mem.Shared, mem.Private} {
		for _, size := range []int{4 << 10, 64 << 10, 1 << 20, 32 << 20} {
			name := fmt.Sprintf("%dKiB", size>>10)
			if kind == mem.Private {
				name += "-both" // sides have foreign memory: the kernel copies
			}
			b.Run(name, func(b *testing.B) { benchForeign(b, kind, size) })
		}
	}
}

func benchForeign(b *testing.B, kind mem.Kind, size int) {
	s := newSide(b)
	span, src := s.memoryOf(kind, coldSet)
	c := startChild(b, s, roleForeign, src, coldSet)
	other, err := mem.New(coldSet, mem.Private)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := other.Free(); err != nil {
			b.Error(err)
		}
	})
	x := &bench{B: b, s: s, src: src, dst: c.key, from: span.Bytes()}
	pages := coldSet / size
	from, to := rand.Perm(pages), rand.Perm(pages)
	x.compare(func() {
		x.stream(pages, func(i int) provider.WR { return x.wr(from[i]*size, to[i]*size, size, 0) })
	}, func() {
		for i := range pages {
			copy(other.Bytes()[to[i]*size:][:size], x.from[from[i]*size:][:size])
		}
	})
	if err := c.Stop(hangGuard); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkForeignWriteImm8 is the rate of fetched writes of 8 bytes with an immediate.
func BenchmarkForeignWriteImm8(b *testing.B) {
	s := newSide(b)
	_, src := s.memory(4096)
	c := startChild(b, s, roleForeign, src, 4096)
	x := &bench{B: b, s: s, src: src, dst: c.key}
	b.ResetTimer()
	x.stream(b.N, func(i int) provider.WR { return x.wr(i%512*8, i%512*8, 8, 0) })
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds()/1e6, "Mop/s")
	start := time.Now()
	const trips = 10000
	for range trips {
		x.stream(1, func(int) provider.WR { return x.wr(0, 64, 8, 0) })
	}
	b.ReportMetric(float64(time.Since(start).Nanoseconds())/trips, "ns-round-trip")
	if err := c.Stop(hangGuard); err != nil {
		b.Fatal(err)
	}
}
