package hawser_test

import (
	"os"
	"runtime"
	"testing"

	"github.com/hawser-project/hawser"
)

func countFDs(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// Submitting, moving, counting and collecting allocate nothing, on both sides together.
func TestSteadyStateAllocatesNothing(t *testing.T) {
	for _, name := range []string{"shm", "tcp"} {
		t.Run(name, func(t *testing.T) {
			p := newWorld(t, name).pair(t, 1, 1, 1<<20)
			q, c := p.a.NewQueue(64), p.b.Counter(1)
			done, total := make([]hawser.Done, 64), uint64(0)
			idx := []uint32{3, 1, 2, 0}
			round := func() {
				for i := range uint64(8) {
					if err := q.Write(hawser.Write{Src: p.src.Slice(i*64, 64), Dst: p.rem.Slice(i*64, 64), Imm: hawser.Imm(1)}, i); err != nil {
						t.Fatal(err)
					}
				}
				if err := q.WritePages(hawser.WritePages{
					PageLen: 65536, Imm: hawser.Imm(1),
					Src: hawser.Pages{Region: p.src, Indices: idx, Stride: 65536}, Dst: hawser.RemotePages{Remote: p.rem, Indices: idx, Stride: 65536},
				}, 8); err != nil {
					t.Fatal(err)
				}
				if err := q.Signal(hawser.Signal{To: p.rem.Peer(), Imm: 1}, 9); err != nil {
					t.Fatal(err)
				}
				for n := 0; n < 10; runtime.Gosched() {
					n += q.Poll(done)
				}
				total += 8 + 4 + 1
				for c.Load() < total {
					runtime.Gosched()
				}
			}
			for range 50 { // ops, tables and buffers reach their size
				round()
			}
			if n := testing.AllocsPerRun(200, round); n > 0 {
				t.Fatalf("%v allocations for 10 operations", n)
			}
		})
	}
}
