package moetest

import (
	"fmt"
	"testing"
)

// every is all routings of a shape, a step each: all ids, -1 included. With few ids it is also all numbers of tokens, with more of them
// one in four steps has other numbers than the full ones.
func every(s Shape) (steps int, fixed func(step uint64, r *Routing)) {
	ids := s.Ranks * s.Tokens * s.TopK
	steps = 1
	for range ids {
		steps *= s.Experts + 1
	}
	numbers := ids <= 4
	for range s.Ranks {
		if numbers {
			steps *= s.Tokens + 1
		}
	}
	return steps, func(step uint64, r *Routing) {
		n := int(step) % steps
		digit := func(base int) int {
			d := n % base
			n /= base
			return d
		}
		for i := range r.N {
			switch r.N[i] = s.Tokens; {
			case numbers:
				r.N[i] = digit(s.Tokens + 1)
			case step%4 == 0:
				r.N[i] = int(step>>(2+2*i)) % (s.Tokens + 1)
			}
		}
		for i := range r.IDs {
			r.IDs[i] = int32(digit(s.Experts+1) - 1)
			r.Weights[i] = float32(i%7+1) / 8
		}
	}
}

// TestSmallWorlds: all routings of worlds with few ids, with first chunks of 0 to 2 records and others of 1 or 2.
func TestSmallWorlds(t *testing.T) {
	ids, turn, total := 3, 0, 0
	if *thorough {
		ids = 6
	}
	for _, s := range smallShapes(ids) {
		steps, fixed := every(s)
		for variant := range 12 {
			if turn++; !*thorough && turn%5 != 0 {
				continue
			}
			first := []int{-1, 1, 2}[variant%3]
			chunk := 1 + variant/3%2
			c := Config{
				Shape: s, Hidden: 2, Fixed: fixed, Seed: uint64(turn), Steps: steps, Align: 1 + 2*(variant/6), FirstChunk: first, ChunkRecords: chunk,
				PoolRecords: 2 * chunk, MaxRecv: s.Ranks * s.Tokens * s.TopK, StreamRows: 2, Style: Style(turn % int(styles)),
			}
			t.Run(fmt.Sprintf("%+v P=%d Ch=%d align=%d", s, max(first, 0), chunk, c.Align), func(t *testing.T) { total += run(t, c).Steps })
		}
	}
	t.Logf("%d steps", total)
}

// smallShapes are those of at most so many ids in the world.
func smallShapes(ids int) (all []Shape) {
	for ranks := 1; ranks <= 3; ranks++ {
		for tokens := 1; ranks*tokens <= ids; tokens++ {
			for topK := 1; ranks*tokens*topK <= ids; topK++ {
				for experts := max(ranks, topK); experts <= max(2*ranks, topK); experts++ {
					all = append(all, Shape{ranks, tokens, experts, topK})
				}
			}
		}
	}
	return all
}

// TestSeeded: larger worlds, of all routings.
func TestSeeded(t *testing.T) {
	seeds := uint64(2)
	if *thorough {
		seeds = 2000
	}
	for name := range rules {
		for seed := range seeds {
			c := setup(t, seed, name)
			c.Steps = 100
			run(t, c)
		}
	}
}
