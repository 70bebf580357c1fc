package weights

import (
	"sync"
	"testing"

	"github.com/hawser-project/hawser/weights/schedule"
)

// BenchmarkPushRaw pushes 4 sources' direct runs to 2 destinations over shared memory, in one process. Compare its MB/s with BenchmarkCopy.
func BenchmarkPushRaw(b *testing.B) {
	x := newStripes(stripes{sources: 4, dests: 2, stages: 8, unit: 1 << 20, task: 8})
	f := newFlow(b, networks["shm"](), x, 64<<10, 16, 4)
	total := int64(4*8*8*2) << 20
	b.SetBytes(total)
	for i := 0; b.Loop(); i++ {
		f.renew()
		var wg sync.WaitGroup
		for s, p := range f.pipes {
			wg.Go(func() {
				if err := p.run(limit(f.t)); err != nil {
					b.Errorf("publisher %d: %v", s, err)
				}
			})
		}
		wg.Wait()
	}
}

// renew makes the pipelines count from the beginning.
func (f *flow) renew() {
	for s, p := range f.pipes {
		p.sum = nil
		p.writer = newWriter(f.x.src[s], p.writer.queue, p.writer.targets, schedule.Limits{Window: 16, PerDest: 4})
		p.writer.buffers, p.writer.placed = p.buffers, func(*target, int, sent) {}
	}
}

// BenchmarkCopy is the floor: two threads that copy as many bytes in pieces of 1 MiB.
func BenchmarkCopy(b *testing.B) {
	const n = 4 * 8 * 8 * 2
	src, dst := make([]byte, n/2<<20), make([]byte, n<<20)
	noise(src, 1)
	noise(dst, 2)
	b.SetBytes(n << 20)
	for b.Loop() {
		var wg sync.WaitGroup
		for t := range 2 {
			wg.Go(func() {
				for i := t; i < n; i += 2 {
					copy(dst[i<<20:(i+1)<<20], src[i/2<<20:])
				}
			})
		}
		wg.Wait()
	}
}
