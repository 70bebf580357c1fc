package pool

import (
	"slices"
	"testing"

	"github.com/hawser-project/hawser"
)

func TestLookupFindsLongestPrefix(t *testing.T) {
	p := newPool(t, 20)
	hashes := prompt(1, 6)
	if x := p.Lookup(hashes); x.ID != 0 || x.Pages != nil || p.Unpin(x) != nil {
		t.Errorf("got %+v, want nothing from an empty cache", x)
	}
	l := cached(t, p, hashes[:4])
	wantCounts(t, p, Counts{Free: 16, Cached: 4})
	for _, c := range []struct{ ask, want int }{{6, 4}, {4, 4}, {2, 2}, {0, 0}} {
		x := p.Lookup(hashes[:c.ask])
		if !slices.Equal(x.Pages, l.Pages[:c.want]) {
			t.Errorf("%d blocks: got pages %v, want %v", c.ask, x.Pages, l.Pages[:c.want])
		}
		wantCounts(t, p, Counts{Free: 16, Cached: 4 - c.want, Pinned: c.want})
		must(t, p.Unpin(x))
	}
	if x := p.Lookup(prompt(2, 6)); len(x.Pages) != 0 {
		t.Errorf("another prompt: got %v", x.Pages)
	}
	if x := p.Lookup(hashes[1:]); len(x.Pages) != 3 { // hashes are chained: that the first is missing is the caller's fault
		t.Errorf("got %d pages, want 3", len(x.Pages))
	}
}

func TestPrefixEndsOnce(t *testing.T) {
	p := newPool(t, 4)
	cached(t, p, prompt(1, 4))
	x, y := p.Lookup(prompt(1, 4)), p.Lookup(prompt(1, 3))
	must(t, p.Unpin(x))
	wantCounts(t, p, Counts{Cached: 1, Pinned: 3})
	wantError(t, "second unpin", p.Unpin(x), hawser.ErrStale)
	wantCounts(t, p, Counts{Cached: 1, Pinned: 3})
	must(t, p.Unpin(y))
	wantCounts(t, p, Counts{Cached: 4})
}

func TestPinnedPageIsNotEvicted(t *testing.T) {
	p := newPool(t, 8)
	cached(t, p, prompt(1, 4))
	x := p.Lookup(prompt(1, 4))
	_, err := p.Reserve(5)
	wantError(t, "reserve", err, hawser.ErrLimit)
	l := reserve(t, p, 4)
	for _, i := range l.Pages {
		if slices.Contains(x.Pages, i) {
			t.Errorf("page %d is pinned and leased", i)
		}
	}
	must(t, p.Unpin(x))
	reserve(t, p, 4)
	if x := p.Lookup(prompt(1, 4)); len(x.Pages) != 0 {
		t.Errorf("got %v, want all evicted", x.Pages)
	}
}

// TestLeastRecentlyUsedGoesFirst, and of one prompt its end: what is left of it is still a prefix.
func TestLeastRecentlyUsedGoesFirst(t *testing.T) {
	p := newPool(t, 12)
	cached(t, p, prompt(1, 4))
	cached(t, p, prompt(2, 4))
	cached(t, p, prompt(3, 4))
	must(t, p.Unpin(p.Lookup(prompt(1, 4)))) // used again
	reserve(t, p, 6)
	for _, c := range []struct {
		seed byte
		want int
	}{{2, 0}, {3, 2}, {1, 4}} {
		x := p.Lookup(prompt(c.seed, 4))
		if len(x.Pages) != c.want {
			t.Errorf("prompt %d: %d pages left, want %d", c.seed, len(x.Pages), c.want)
		}
		must(t, p.Unpin(x))
	}
}

func TestReserveTakesFreePagesFirst(t *testing.T) {
	p := newPool(t, 8)
	cached(t, p, prompt(1, 4))
	reserve(t, p, 4)
	wantCounts(t, p, Counts{Leased: 4, Cached: 4})
	reserve(t, p, 1)
	wantCounts(t, p, Counts{Leased: 5, Cached: 3})
}

func TestPublishWaitsForTheWriter(t *testing.T) {
	p := newPool(t, 8)
	hashes := prompt(1, 4)
	l := reserve(t, p, 3)
	must(t, p.Hold(l, OwnerWriter))
	wantError(t, "publish while a writer holds", p.Publish(l, hashes[:3]), hawser.ErrInvalid)
	if x := p.Lookup(hashes); len(x.Pages) != 0 {
		t.Errorf("found %v", x.Pages)
	}
	must(t, p.Drop(l, OwnerWriter))
	wantError(t, "more blocks than pages", p.Publish(l, hashes), hawser.ErrInvalid)
	wantError(t, "a block without a hash", p.Publish(l, []Hash{{}}), hawser.ErrInvalid)
	must(t, p.Publish(l, hashes[:2])) // the last page is partly filled
	wantError(t, "as another block", p.Publish(l, prompt(2, 2)), hawser.ErrInvalid)
	wantError(t, "a writer of published pages", p.Hold(l, OwnerWriter), hawser.ErrInvalid)
	must(t, p.Publish(l, hashes[:2]))
	x := p.Lookup(hashes) // found while its request still runs
	if !slices.Equal(x.Pages, l.Pages[:2]) {
		t.Errorf("got %v, want %v", x.Pages, l.Pages[:2])
	}
	wantCounts(t, p, Counts{Leased: 3, Free: 5})
	must(t, p.Drop(l, OwnerRequest))
	wantCounts(t, p, Counts{Pinned: 2, Free: 6})
	must(t, p.Unpin(x))
	wantCounts(t, p, Counts{Cached: 2, Free: 6})
}

func TestEqualBlockKeepsTheOldPage(t *testing.T) {
	p := newPool(t, 20)
	hashes := prompt(1, 4)
	a, b := reserve(t, p, 3), reserve(t, p, 4)
	must(t, p.Publish(a, hashes[:3]), p.Publish(b, hashes))
	x := p.Lookup(hashes)
	if want := append(slices.Clone(a.Pages), b.Pages[3]); !slices.Equal(x.Pages, want) {
		t.Errorf("got %v, want %v", x.Pages, want)
	}
	must(t, p.Drop(b, OwnerRequest), p.Drop(a, OwnerRequest), p.Unpin(x))
	wantCounts(t, p, Counts{Free: 16, Cached: 4})
}

// TestEqualBlockIsUsed: publishing a block again shows that it is in use, so it is evicted later.
func TestEqualBlockIsUsed(t *testing.T) {
	p := newPool(t, 3)
	cached(t, p, prompt(1, 1))
	cached(t, p, prompt(2, 1))
	cached(t, p, prompt(1, 1))
	wantCounts(t, p, Counts{Free: 1, Cached: 2})
	reserve(t, p, 2)
	if x := p.Lookup(prompt(1, 1)); len(x.Pages) != 1 {
		t.Error("the block that was published again is evicted first")
	}
}

func TestHashesAreChained(t *testing.T) {
	tokens := make([]uint32, 70)
	for i := range tokens {
		tokens[i] = uint32(i * i)
	}
	a := Hashes(Hash{}, tokens, 16)
	if len(a) != 4 {
		t.Fatalf("%d hashes of 70 tokens, want 4 full pages", len(a))
	}
	seen := map[Hash]bool{{}: true}
	for _, h := range a {
		if seen[h] {
			t.Fatal("two pages have one hash, or one is zero")
		}
		seen[h] = true
	}
	for k := range tokens[:64] {
		changed := slices.Clone(tokens)
		changed[k]++
		b := Hashes(Hash{}, changed, 16)
		for i := range a {
			if (a[i] == b[i]) != (k/16 > i) {
				t.Fatalf("token %d changed: page %d equal is %v", k, i, a[i] == b[i])
			}
		}
	}
	if b := Hashes(Hash{}, tokens[:64], 16); !slices.Equal(a, b) {
		t.Error("a partial page changes the hashes before it")
	}
	if b := Hashes(Hash{1}, tokens, 16); a[0] == b[0] || a[3] == b[3] {
		t.Error("the seed does not count")
	}
	if b := Hashes(Hash{}, tokens, 32); a[1] == b[0] {
		t.Error("pages of two sizes have one hash")
	}
}

func BenchmarkHashes(b *testing.B) {
	tokens := make([]uint32, 16384)
	b.SetBytes(int64(4 * len(tokens)))
	for b.Loop() {
		Hashes(Hash{}, tokens, 128)
	}
}
