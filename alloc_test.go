package hawser_test

import (
	"math"
	"os"
	"runtime"
	"testing"

	"github.com/hawser-project/hawser"
)

// Counting allocates nothing for managed values, stale ones and mirrors either, on both sides together.
func TestManagedCountsAllocateNothing(t *testing.T) {
	for _, name := range hostWorlds() {
		t.Run(name, func(t *testing.T) {
			p := newWorld(t, name).pair(t, 1, 1, 4096)
			r, err := p.b.Imms().Reserve("test", 0, 8, 4)
			if err != nil {
				t.Fatal(err)
			}
			block, err := r.Open(1)
			if err != nil {
				t.Fatal(err)
			}
			taken, dense := take(t, p.b), block.Counter(5)
			if err := dense.Mirror(p.dst.Slice(8, 8)); err != nil {
				t.Fatal(err)
			}
			q, ends, n := p.a.NewQueue(8), make([]hawser.Done, 8), uint64(0)
			round := func() {
				n++
				for _, v := range []uint32{0xff, taken.Imm(), dense.Imm()} { // the first is of a closed block
					if err := q.Signal(hawser.Signal{To: p.rem.Peer(), Imm: v}, 0); err != nil {
						t.Fatal(err)
					}
				}
				for got := 0; got < 3; runtime.Gosched() {
					got += q.Poll(ends)
				}
				for _, c := range []*hawser.Counter{taken, dense} {
					for c.Load() < n {
						runtime.Gosched()
					}
				}
			}
			for range 20 {
				round()
			}
			if avg := testing.AllocsPerRun(100, round); avg > 0 {
				t.Fatalf("%v allocations for 3 immediates", avg)
			}
		})
	}
}

func countFDs(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// allocatesNothing checks that round allocates nothing once it has run some times. The beats of engines do allocate, so it is enough
// that some rounds in a row were without.
func allocatesNothing(t *testing.T, round func()) {
	t.Helper()
	for range 30 { // operations, tables and buffers reach their size
		round()
	}
	least := math.Inf(1)
	for range 30 {
		if least = min(least, testing.AllocsPerRun(5, round)); least == 0 {
			return
		}
	}
	t.Fatalf("%v allocations a round", least)
}

// Submitting, moving, counting and collecting allocate nothing, on both sides together.
func TestSteadyStateAllocatesNothing(t *testing.T) {
	for _, name := range hostWorlds() {
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
			allocatesNothing(t, round)
		})
	}
}
