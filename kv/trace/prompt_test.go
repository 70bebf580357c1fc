package trace

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hawser-project/hawser/kv/pool"
	"pgregory.net/rapid"
)

func TestTokensFollowTheBlocks(t *testing.T) {
	a := Request{Input: 1300, Hashes: []uint64{0, 7, 8}}.Tokens()
	b := Request{Input: 1100, Hashes: []uint64{0, 7, 9}}.Tokens()
	if len(a) != 1300 || len(b) != 1100 || !slices.Equal(a[:1024], b[:1024]) {
		t.Error("equal blocks have other tokens")
	}
	if equal := common(a[1024:], b[1024:]); equal > 0 {
		t.Errorf("blocks with other ids begin with %d equal tokens", equal)
	}
	sorted := slices.Clone(a)
	slices.Sort(sorted)
	if n := len(slices.Compact(sorted)); n < 1299 {
		t.Errorf("%d distinct tokens of 1300, want nearly all", n)
	}
}

func common(a, b []uint32) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// TestReuseIsWhatACacheFinds replays traces through the hashes of a prefix cache that never evicts.
func TestReuseIsWhatACacheFinds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pageTokens := rapid.SampledFrom([]int{16, 64, 128, 512, 1024, 100}).Draw(t, "page")
		requests := Generate(Config{Seed: rapid.Uint64().Draw(t, "seed"), Requests: rapid.IntRange(1, 30).Draw(t, "n")})
		for i := range requests { // the generator shares full blocks only; let some prompts come twice as well
			if i > 0 && rapid.Bool().Draw(t, "again") {
				requests[i].Input, requests[i].Hashes = requests[i-1].Input, requests[i-1].Hashes
			}
		}
		want := cacheReuse(requests, pageTokens)
		if got := MeasureReuse(requests, pageTokens); got != want {
			t.Fatalf("pages of %d tokens: got %+v, want %+v", pageTokens, got, want)
		}
	})
}

func cacheReuse(requests []Request, pageTokens int) Reuse {
	u := Reuse{Requests: len(requests)}
	stored := map[pool.Hash]bool{}
	for _, r := range requests {
		hashes := pool.Hashes(pool.Hash{}, r.Tokens(), pageTokens)
		n := 0
		for n < len(hashes) && stored[hashes[n]] {
			n++
		}
		for _, h := range hashes {
			stored[h] = true
		}
		if n > 0 {
			u.Hits++
		}
		u.Tokens += r.Input
		u.Reused += n * pageTokens
		u.Pages += (r.Input + pageTokens - 1) / pageTokens
		if r.Input%pageTokens != 0 {
			u.Partial++
		}
	}
	u.Distinct = len(stored)
	return u
}

func TestReuseOfGeneratedTrace(t *testing.T) {
	u := MeasureReuse(Generate(Config{Seed: 1}), 128)
	logReuse(t, "generated", u)
	if s := share(u.Reused, u.Tokens); s < 0.28 || s > 0.45 {
		t.Errorf("%.3f of the tokens are reused, want about 0.37", s)
	}
	if s := share(u.Partial, u.Requests); s < 0.97 {
		t.Errorf("%.3f of the prompts end in a partial page, want nearly all", s)
	}
}

func share(a, b int) float64 { return float64(a) / float64(b) }

func logReuse(t *testing.T, name string, u Reuse) {
	t.Logf("%s: %.3f of %d tokens reused, %.3f of %d requests have a hit, %.3f end in a partial page, %d pages, %d distinct full ones",
		name, share(u.Reused, u.Tokens), u.Tokens, share(u.Hits, u.Requests), u.Requests, share(u.Partial, u.Requests), u.Pages, u.Distinct)
}

// TestReuseOfRealTrace wants a directory with conversation_trace.jsonl, which the project does not ship.
func TestReuseOfRealTrace(t *testing.T) {
	dir := os.Getenv("HAWSER_TRACES")
	if dir == "" {
		t.Skip("HAWSER_TRACES is not set: no directory with the published traces")
	}
	requests, err := Open(filepath.Join(dir, "conversation_trace.jsonl"), 0)
	if err != nil {
		t.Fatal(err)
	}
	u := MeasureReuse(requests, 128)
	logReuse(t, "published", u)
	if got := cacheReuse(requests, 128); got != u {
		t.Errorf("got %+v, a cache finds %+v", u, got)
	}
	if s := share(u.Partial, u.Requests); s < 0.98 {
		t.Errorf("%.3f of the prompts end in a partial page, want 0.986", s)
	}
}
