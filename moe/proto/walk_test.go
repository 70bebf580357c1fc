package proto

import (
	"flag"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

var walkRuns = flag.Int("moe.walks", 60, "random walks through each world that TestWalks makes")

// walk goes one way through a world to its end, and says what went wrong.
func walk(s setting, seed uint64) (faults, trace []string) {
	rng := rand.New(rand.NewPCG(seed, 1))
	w := newWorld(s)
	for idling := 0; len(w.faults) == 0; {
		list := w.choices()
		if len(list) == 0 {
			if list = w.ticks(); len(list) == 0 || idling > 10*s.ranks {
				w.over()
				break
			}
			idling++
		} else {
			idling = 0
		}
		if len(trace) == longestWalk {
			w.faults = append(w.faults, "it does not end")
			break
		}
		x := choose(rng, list)
		trace = append(trace, w.name(x))
		w.take(x)
	}
	return w.faults, trace
}

// longestWalk is far beyond what a walk of these worlds takes; one that is longer goes around in circles.
const longestWalk = 100_000

// choose takes harm rarely, so that much happens before it.
func choose(rng *rand.Rand, list []choice) choice {
	x := list[rng.IntN(len(list))]
	for range 6 {
		if !slices.Contains([]string{"kill", "late", "cancel", "unended", "fail", "lose", "lose after delivery", "rejoin"}, x.kind) {
			break
		}
		x = list[rng.IntN(len(list))]
	}
	return x
}

// big are worlds that are too large to be looked at whole.
func big() map[string]setting {
	mixed := func(step uint64, from, to int) uint32 { return uint32(step*7+uint64(from*3+to*5)) % 6 }
	base := setting{ranks: 3, steps: 4, records: mixed, first: 1, chunk: 1, pool: 2, window: 2}
	with := func(f func(*setting)) setting { s := base; f(&s); return s }
	return map[string]setting{
		"credits":                   base,
		"credits, window of 4":      with(func(s *setting) { s.window, s.pool, s.split = 4, 3, true }),
		"no first chunk, pool of 1": with(func(s *setting) { s.first, s.pool, s.split = -1, 1, true }),
		"streamed":                  with(func(s *setting) { s.stream, s.split = true, true }),
		"streamed, window of 4":     with(func(s *setting) { s.stream, s.window, s.chunk = true, 4, 2 }),
		"4 ranks":                   with(func(s *setting) { s.ranks, s.split = 4, true }),
		"harm": with(func(s *setting) {
			s.kills, s.lates, s.cancels, s.unended, s.unfenced, s.losses, s.doubles = 1, 2, 1, 1, 1, 2, 2
		}),
		"harm to a stream": with(func(s *setting) { s.stream, s.kills, s.lates, s.cancels, s.unended, s.losses = true, 1, 1, 1, 1, 1 }),
		"harm to 4 ranks": with(func(s *setting) {
			s.ranks, s.kills, s.lates, s.cancels, s.unended, s.losses, s.doubles = 4, 2, 2, 1, 1, 2, 1
		}),
		"a cancel":                with(func(s *setting) { s.cancels = 1 }),
		"suspicions":              with(func(s *setting) { s.lates = 3; s.split = true }),
		"deaths":                  with(func(s *setting) { s.kills = 2 }),
		"one dies and comes back": with(func(s *setting) { s.kills, s.rejoins, s.after = 2, 2, 2 }),
		"coming and going": with(func(s *setting) {
			s.kills, s.rejoins, s.lates, s.unended, s.losses, s.after, s.stream = 2, 2, 2, 1, 2, 3, true
		}),
		"ill Transfers": with(func(s *setting) { s.unended, s.unfenced = 2, 1 }),
	}
}

// TestWalks: as TestProtocolModel, one way at random through each of the larger worlds, many times.
func TestWalks(t *testing.T) {
	all := big()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(*walkRuns) {
				if faults, trace := walk(all[name], seed); len(faults) > 0 {
					for _, line := range trace {
						t.Log(line)
					}
					t.Fatalf("seed %d: %q", seed, faults)
				}
			}
		})
	}
}

// TestCloneIsAlone: what happens in a copy does not happen in the original.
func TestCloneIsAlone(t *testing.T) {
	for name, s := range big() {
		rng := rand.New(rand.NewPCG(7, 7))
		w := newWorld(s)
		for range 300 {
			list := w.choices()
			if len(list) == 0 {
				break
			}
			before := w.hash()
			for range 3 {
				c := w.clone()
				if c.hash() != before {
					t.Fatalf("%s: a copy differs", name)
				}
				for range 5 {
					if l := c.choices(); len(l) > 0 {
						c.take(l[rng.IntN(len(l))])
					}
				}
			}
			if w.hash() != before {
				t.Fatalf("%s: a copy changed the original", name)
			}
			w.take(list[rng.IntN(len(list))])
		}
	}
}
