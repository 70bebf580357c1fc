package proto

import (
	"errors"
	"math"
	"slices"
	"testing"
)

// deepSeek is the shape of DeepSeek-V3: fp8 with a scale of four bytes for 128 elements out, bf16 back.
func deepSeek(ranks, tokens int) Config {
	return Config{MaxRanks: ranks, MaxTokens: tokens, Hidden: 7168, TopK: 8, Experts: 256, InBytes: 1, WireBytes: 2, ScaleBlock: 128, ScaleBytes: 4}
}

// TestSizesOfDeepSeek: bytes of every region, computed by hand from the shape.
func TestSizesOfDeepSeek(t *testing.T) {
	const sd, sc = 7392, 14336
	r, err := Sizes(deepSeek(64, 128))
	if err != nil {
		t.Fatal(err)
	}
	want := Regions{Heads: 64 * (64 + 32*sd), Pool: 4096 * sd, Results: 1024 * sc, Send: 64*64 + 1024*sd, Small: 3 * 64 * 64, Y: 32768 * sc}
	if r.Regions != want || r.Layout.FirstChunk != 32 || r.Layout.MaxRecv != 32768 || r.Layout.Streamed || r.Output != 32768*sd {
		t.Errorf("decode: %+v, first %d, recv %d; want %+v", r.Regions, r.Layout.FirstChunk, r.Layout.MaxRecv, want)
	}
	if r, err = Sizes(deepSeek(64, 4096)); err != nil {
		t.Fatal(err)
	}
	want = Regions{Heads: 64 * (64 + 608*sd), Pool: 4096 * sd, Results: 32768 * sc, Send: 64*64 + 32768*sd, Small: 3 * 64 * 64, Y: 2 * 4096 * sc}
	if r.Regions != want || r.Layout.FirstChunk != 608 || r.Layout.MaxRecv != 4096 || !r.Layout.Streamed {
		t.Errorf("prefill: %+v, first %d, recv %d; want %+v", r.Regions, r.Layout.FirstChunk, r.Layout.MaxRecv, want)
	}
}

// TestSizesByRanks: the first chunk, and a lane's bytes in millions, by default and with room for six times the mean.
func TestSizesByRanks(t *testing.T) {
	for _, c := range []struct {
		ranks, tokens, first int
		total, six           float64
	}{
		{8, 128, 176, 180, 151},
		{16, 128, 96, 299, 152},
		{32, 128, 56, 536, 154},
		{64, 128, 32, 537, 156},
		{8, 4096, 4336, 1120, 3820},
		{16, 4096, 2224, 1120, 3820},
		{32, 4096, 1152, 1130, 3830},
		{64, 4096, 608, 1150, 3850},
	} {
		cfg := deepSeek(c.ranks, c.tokens)
		r, err := Sizes(cfg)
		if err != nil {
			t.Fatal(err)
		}
		cfg.MaxRecv = 6 * c.tokens * 8
		six, err := Sizes(cfg)
		if err != nil {
			t.Fatal(err)
		}
		unit := 1e6
		if c.tokens > 128 {
			unit = 1e7
		}
		near := func(got int64, want float64) bool { return math.Abs(float64(got)/unit-want*1e6/unit) <= 1 }
		if r.Layout.FirstChunk != c.first || !near(r.Regions.Total(), c.total) || !near(six.Regions.Total(), c.six) {
			t.Errorf("%d ranks, %d tokens: first %d, %d and %d bytes; want %d, %v and %v MB", c.ranks, c.tokens, r.Layout.FirstChunk,
				r.Regions.Total(), six.Regions.Total(), c.first, c.total, c.six)
		}
	}
}

// TestLayoutOfOddShapes: experts that do not divide by ranks, more ranks than experts, one rank, no first chunk.
func TestLayoutOfOddShapes(t *testing.T) {
	for _, c := range []Config{
		{MaxRanks: 3, MaxTokens: 5, Hidden: 1, TopK: 3, Experts: 7, InBytes: 1, WireBytes: 2},
		{MaxRanks: 8, MaxTokens: 1, Hidden: 3, TopK: 1, Experts: 1, InBytes: 4, WireBytes: 4},
		{MaxRanks: 1, MaxTokens: 1, Hidden: 129, TopK: 1, Experts: 4, InBytes: 1, WireBytes: 2, ScaleBlock: 128, ScaleBytes: 4, Meta: true},
		{MaxRanks: 2, MaxTokens: 9, Hidden: 16, TopK: 2, Experts: 4, InBytes: 2, WireBytes: 2, FirstChunk: -1, ChunkRecords: 2, PoolRecords: 5},
	} {
		l, err := NewLayout(c)
		if err != nil {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		if l.Local*l.MaxRanks < l.Experts || l.Dispatch%16 != 0 || l.Combine%16 != 0 || l.HeadBytes%64 != 0 || l.FirstChunk > l.Records() || l.PoolChunks < 1 ||
			l.HalfRows < max(l.FirstChunk, l.ChunkRecords) || 2*l.HalfRows > l.YRows {
			t.Errorf("%+v: %+v", c, l)
		}
		for n := range l.Records() + 1 {
			at := 0
			var byValue [Window]uint64
			for p := range l.Pieces(n) {
				first, k := l.Piece(n, p)
				if first != at || k == 0 && p > 0 {
					t.Fatalf("%d records: piece %d is %d .. +%d, want it to begin at %d", n, p, first, k, at)
				}
				at += k
				byValue[p%l.Window]++
			}
			if at != n {
				t.Fatalf("%d records: pieces hold %d", n, at)
			}
			for w := range l.Window {
				if l.combOf(n, w) != byValue[w] {
					t.Fatalf("%d records: %d pieces with value %d, want %d", n, l.combOf(n, w), w, byValue[w])
				}
			}
		}
	}
}

// TestLayoutRefuses: each field out of its bounds is named.
func TestLayoutRefuses(t *testing.T) {
	for name, f := range map[string]func(*Config){
		"ranks": func(c *Config) { c.MaxRanks = 5000 }, "rank": func(c *Config) { c.Rank = 64 }, "tokens": func(c *Config) { c.MaxTokens = 0 },
		"hidden": func(c *Config) { c.Hidden = 0 }, "topk": func(c *Config) { c.TopK = 257 }, "experts": func(c *Config) { c.Experts = 0 },
		"scale": func(c *Config) { c.ScaleBytes = 0 }, "pool": func(c *Config) { c.PoolRecords = 63 }, "window": func(c *Config) { c.Window = 5 },
		"budget": func(c *Config) { c.Budget = -1 }, "stream": func(c *Config) { c.StreamRows = 31 }, "records": func(c *Config) { c.MaxTokens, c.TopK = 1<<24, 256 },
	} {
		c := deepSeek(64, 128)
		f(&c)
		if _, err := NewLayout(c); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestValues: no two meanings share a value, all carry the tag, and ranks are adjacent.
func TestValues(t *testing.T) {
	l, err := NewLayout(deepSeek(6, 128))
	if err != nil {
		t.Fatal(err)
	}
	l.Lanes = 3
	v, err := l.Values(62)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[uint32]bool{}
	for view := range uint32(16) {
		for lane := range 3 {
			for k := range Kind(Kinds) {
				for rank := range 6 {
					x := v.Of(view, lane, k, rank)
					if seen[x] || x>>26 != 62 || x-v.Of(view, lane, k, 0) != uint32(rank) {
						t.Fatalf("view %d lane %d %v rank %d: %#x", view, lane, k, rank, x)
					}
					seen[x] = true
				}
			}
		}
	}
	l.MaxRanks, l.Lanes = 4096, 8
	if v, err = l.Values(1); err != nil || v.view != 6 {
		t.Errorf("4096 ranks, 8 lanes: %d bits for the view, %v", v.view, err)
	}
	for _, tag := range []int{0, 63} {
		if _, err := l.Values(tag); !errors.Is(err, ErrConfig) {
			t.Errorf("tag %d: %v", tag, err)
		}
	}
}

// All ranks write at once: each is written to by one other at a time, and by each once.
func TestOrderIsDisjoint(t *testing.T) {
	for _, ranks := range []int{1, 2, 3, 5, 8, 24, 64} {
		turns := make([][]int, ranks)
		for r := range ranks {
			l := Layout{Config: Config{MaxRanks: ranks, Rank: r}}
			l.Order(func(to int) { turns[r] = append(turns[r], to) })
			if seen := slices.Sorted(slices.Values(turns[r])); len(seen) != ranks || seen[0] != 0 || seen[ranks-1] != ranks-1 {
				t.Fatalf("rank %d of %d writes to %v", r, ranks, turns[r])
			}
		}
		if ranks&(ranks-1) != 0 {
			continue // then nearly
		}
		for k := range ranks {
			got := map[int]bool{}
			for r := range ranks {
				got[turns[r][k]] = true
			}
			if len(got) != ranks {
				t.Errorf("%d ranks: in turn %d only %d are written to", ranks, k, len(got))
			}
		}
	}
}
