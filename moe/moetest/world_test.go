package moetest

import (
	"testing"

	"github.com/hawser-project/hawser/moe/backend"
)

// setup is a small world of a seed: its sizes change with it.
func setup(t testing.TB, seed uint64, name string) Config {
	s := []Shape{{3, 4, 6, 2}, {2, 5, 5, 3}, {4, 3, 5, 2}, {1, 3, 2, 2}, {3, 2, 3, 3}}[seed%5]
	first := []int{-1, 1, 2}[seed/5%3]
	chunk := 1 + int(seed/3%2)
	return Config{
		In: []backend.DType{backend.F32, backend.F32, backend.BF16}[seed%3], Wire: []backend.DType{backend.F32, backend.BF16, backend.F16}[seed/4%3],
		Out:   []backend.DType{backend.F32, backend.F16, backend.BF16}[seed/9%3],
		Shape: s, Hidden: 3 + int(seed%4), Dist: dist(t, name), Seed: seed, Steps: 3, Align: []int{1, 3}[seed/2%2],
		FirstChunk: first, ChunkRecords: chunk, PoolRecords: chunk * (1 + int(seed/7%4)), Window: 1 + int(seed/11%4),
		MaxRecv: s.Ranks * s.Tokens * s.TopK, StreamRows: 2 + int(seed%3), Style: Style(seed / 2 % uint64(styles)),
	}
}

func run(t testing.TB, c Config) Report {
	t.Helper()
	w, err := NewWorld(c)
	if err != nil {
		t.Fatal(err)
	}
	r, err := w.Run(nil)
	if err != nil {
		t.Fatalf("seed %d, %v: %v", c.Seed, c.Faults, err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return r
}

// TestWorld: worlds of many sizes and types, all routings, in any order of arrival.
func TestWorld(t *testing.T) {
	for name := range rules {
		for seed := range uint64(60) {
			run(t, setup(t, seed, name))
		}
	}
}
