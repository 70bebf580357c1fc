package schedule

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// run is a run of a test: its destination, its stage and its number there.
type run struct{ dest, stage, n int }

// Whatever comes and ends in whatever order: the limits hold, each run leaves once and in order, and nothing that may leave waits.
func TestWindowsAgainstAModel(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		dests, stages := 1+rng.IntN(20), 1+rng.IntN(4)
		l := Limits{Window: 1 + rng.IntN(8), PerDest: 1 + rng.IntN(4)}
		w := NewWindows[run](dests, l)
		single := make([]bool, dests)
		for d := range single {
			if single[d] = rng.IntN(3) == 0; single[d] {
				w.Single(d, stages)
			}
		}
		added, taken := make([]int, dests), make([]int, dests)
		waiting, stageOf := 0, make([][]int, dests)
		var flying []run
		count := func(d int) (all, active int, stage []int) {
			seen := map[int]int{}
			stage = make([]int, stages)
			for _, r := range flying {
				seen[r.dest]++
				if r.dest == d {
					stage[r.stage]++
				}
			}
			return seen[d], len(seen), stage
		}
		may := func(d int) bool {
			if taken[d] == added[d] {
				return false
			}
			mine, active, stage := count(d)
			return mine < l.PerDest && (mine > 0 || active < l.Window) && !(single[d] && stage[stageOf[d][taken[d]]] > 0)
		}
		for range 600 {
			switch rng.IntN(3) {
			case 0:
				d, s := rng.IntN(dests), rng.IntN(stages)
				w.Add(d, s, run{d, s, added[d]})
				stageOf[d] = append(stageOf[d], s)
				added[d]++
				waiting++
			case 1:
				if len(flying) > 0 {
					i := rng.IntN(len(flying))
					w.Ended(flying[i].dest, flying[i].stage)
					flying = slices.Delete(flying, i, i+1)
				}
			default:
				d, r, ok := w.Next()
				// One destination may be held back to leave the window, and only when another one waits outside.
				n := 0
				for i := range dests {
					if may(i) && i != w.yields {
						n++
					}
				}
				if w.yields >= 0 && (w.dests[w.yields].flying == 0 || w.active != l.Window) {
					t.Fatalf("seed %d: destination %d yields, and %d are in the window of %d", seed, w.yields, w.active, l.Window)
				}
				if !ok && n > 0 || ok && !may(d) {
					t.Fatalf("seed %d: Next says %v for %d, the model has %d", seed, ok, d, n)
				}
				if !ok {
					break
				}
				if d != r.dest || r.n != taken[d] {
					t.Fatalf("seed %d: run %+v to %d, %d taken", seed, r, d, taken[d])
				}
				taken[d]++
				waiting--
				flying = append(flying, r)
			}
			if w.Waiting() != waiting || w.Flying() != len(flying) {
				t.Fatalf("seed %d: %d waiting, %d flying, want %d and %d", seed, w.Waiting(), w.Flying(), waiting, len(flying))
			}
		}
		w.Drop()
		if _, _, ok := w.Next(); ok || w.Waiting() != 0 || w.Flying() != len(flying) {
			t.Fatalf("seed %d: after Drop %d wait and %d fly, want %d", seed, w.Waiting(), w.Flying(), len(flying))
		}
	}
}

// The oldest run goes first, and one whose destination has enough in flight does not hold up the others.
func TestWindowsTakeTheOldest(t *testing.T) {
	w := NewWindows[int](4, Limits{Window: 4, PerDest: 2})
	for _, d := range []int{2, 2, 2, 0, 2, 3, 0, 0, 1} {
		w.Add(d, 0, d)
	}
	var order []int
	for d, _, ok := w.Next(); ok; d, _, ok = w.Next() {
		order = append(order, d)
	}
	if want := []int{2, 2, 0, 3, 0, 1}; !slices.Equal(order, want) {
		t.Fatalf("order %v, want %v", order, want)
	}
}

// Destinations outside of a full window get their turns, although there is always more for those inside.
func TestWindowsGiveWay(t *testing.T) {
	const dests, rounds = 8, 200
	w := NewWindows[int](dests, Limits{Window: 2, PerDest: 3})
	next := 0
	add := func() {
		w.Add(next%dests, 0, next)
		next++
	}
	for range dests * 4 {
		add()
	}
	var flying, oldest []int
	for i := range rounds {
		for d, n, ok := w.Next(); ok; d, n, ok = w.Next() {
			if behind := next - n; behind > 8*dests {
				t.Fatalf("round %d: run %d goes when %d have been added", i, n, next)
			}
			flying, oldest = append(flying, d), append(oldest, n)
		}
		if len(flying) < 3 {
			t.Fatalf("round %d: %d in flight, there is room for 6", i, len(flying))
		}
		w.Ended(flying[0], 0)
		flying, oldest = flying[1:], oldest[1:]
		add()
	}
}

// Once the queues have their size, nothing is allocated.
func TestWindowsAllocateNothing(t *testing.T) {
	w := NewWindows[uint64](128, Limits{}.WithDefaults())
	flying := make([]int, 0, 3000)
	round := func() {
		for i := range 3000 {
			w.Add(i*7%128, i%3, uint64(i))
		}
		for w.Waiting()+w.Flying() > 0 {
			if d, _, ok := w.Next(); ok {
				flying = append(flying, d)
				continue
			}
			for _, d := range flying {
				w.Ended(d, 0)
			}
			flying = flying[:0]
		}
	}
	round()
	if n := testing.AllocsPerRun(5, round); n > 0 {
		t.Fatalf("%v allocations", n)
	}
}

// What is lent never overlaps and stays inside; it lies in the first gap that is large enough, and only if there is none is it refused.
func TestArenaAgainstAModel(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 2))
		size := int64(Align * (4 + rng.IntN(60)))
		a := NewArena(size + int64(rng.IntN(Align)))
		if a.Size() != size {
			t.Fatalf("%d bytes, want %d", a.Size(), size)
		}
		type piece struct{ off, n int64 }
		var out []piece
		most := int64(0)
		for range 500 {
			if n := int64(rng.IntN(int(size))); rng.IntN(2) == 0 {
				room := (max(n, 1) + Align - 1) / Align * Align
				slices.SortFunc(out, func(a, b piece) int { return int(a.off - b.off) })
				gap := int64(0)
				for _, p := range out {
					if p.off-gap >= room {
						break
					}
					gap = p.off + (max(p.n, 1)+Align-1)/Align*Align
				}
				off, ok := a.Take(n)
				if ok != (gap+room <= size) || ok && off != gap {
					t.Fatalf("seed %d: %d of %d bytes: at %d, %v; the first gap is at %d", seed, n, size, off, ok, gap)
				}
				if !ok {
					continue
				}
				used := n
				for _, p := range out {
					if n > 0 && p.n > 0 && off < p.off+p.n && p.off < off+n {
						t.Fatalf("seed %d: [%d, +%d) overlaps [%d, +%d)", seed, off, n, p.off, p.n)
					}
					used += p.n
				}
				most = max(most, used)
				out = append(out, piece{off, n})
			} else if len(out) > 0 {
				i := rng.IntN(len(out))
				a.Give(out[i].off)
				out = slices.Delete(out, i, i+1)
			}
		}
		if a.Peak() < most || a.Peak() > size {
			t.Fatalf("seed %d: peak %d, want %d to %d", seed, a.Peak(), most, size)
		}
	}
	if _, ok := NewArena(1000).Take(1001); ok {
		t.Fatal("more than there is")
	}
}

// BenchmarkNext is a publisher of 128 destinations whose windows are full: one end, one run.
func BenchmarkNext(b *testing.B) {
	w := NewWindows[uint64](128, Limits{}.WithDefaults())
	for i := range 128 * 8 {
		w.Add(i%128, 0, uint64(i))
	}
	var fly []int
	for {
		d, _, ok := w.Next()
		if !ok {
			break
		}
		fly = append(fly, d)
	}
	for b.Loop() {
		d := fly[0]
		copy(fly, fly[1:])
		w.Ended(d, 0)
		w.Add(d, 0, 0)
		d, _, ok := w.Next()
		if !ok {
			b.Fatal("nothing may be written")
		}
		fly[len(fly)-1] = d
	}
}
