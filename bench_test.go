package hawser_test

import (
	"runtime"
	"testing"

	"github.com/hawser-project/hawser"
)

// One immediate there and one back, both sides in this process, callers asleep in Counter.Wait.
func BenchmarkSignalRoundTrip(b *testing.B) {
	for _, name := range []string{"shm", "tcp"} {
		b.Run(name, func(b *testing.B) {
			p := newWorld(b, name).pair(b, 1, 1, 4096)
			toA, err := p.b.Connect(testContext(b), p.a.Addr())
			if err != nil {
				b.Fatal(err)
			}
			ca, cb := p.a.Counter(1), p.b.Counter(1)
			n := uint64(0)
			ctx := b.Context()
			done := make(chan struct{})
			go func() {
				defer close(done)
				for i := uint64(1); cb.Wait(ctx, i) == nil; i++ {
					if _, err := p.b.Signal(hawser.Signal{To: toA, Imm: 1}); err != nil {
						return
					}
				}
			}()
			for b.Loop() {
				n++
				if _, err := p.a.Signal(hawser.Signal{To: p.rem.Peer(), Imm: 1}); err != nil {
					b.Fatal(err)
				}
				if err := ca.Wait(ctx, n); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// 64-byte writes with an immediate, as fast as a queue of 256 lets them go.
func BenchmarkWriteRate(b *testing.B) {
	for _, name := range []string{"shm", "tcp"} {
		b.Run(name, func(b *testing.B) {
			p := newWorld(b, name).pair(b, 1, 1, 4096)
			q, done := p.a.NewQueue(256), make([]hawser.Done, 64)
			open := 0
			b.ReportAllocs()
			for b.Loop() {
				for open == 256 {
					n, err := q.Wait(b.Context(), done)
					if err != nil {
						b.Fatal(err)
					}
					open -= n
				}
				if err := q.Write(hawser.Write{Src: p.src.Slice(0, 64), Dst: p.rem.Slice(0, 64), Imm: hawser.Imm(1)}, 0); err != nil {
					b.Fatal(err)
				}
				open++
			}
			for ; open > 0; runtime.Gosched() {
				open -= q.Poll(done)
			}
		})
	}
}
