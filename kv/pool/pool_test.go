package pool

import (
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hawser-project/hawser"
)

func newPool(t testing.TB, pages int) *Pool {
	t.Helper()
	p, err := New(pages, 1)
	if err != nil {
		t.Fatal(err)
	}
	if t, ok := t.(*testing.T); ok {
		t.Cleanup(func() {
			if err := p.Check(); err != nil {
				t.Error(err)
			}
		})
	}
	return p
}

func reserve(t testing.TB, p *Pool, n int) Lease {
	t.Helper()
	l, err := p.Reserve(n)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func wantError(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func wantCounts(t *testing.T, p *Pool, want Counts) {
	t.Helper()
	if got := p.Counts(); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// prompt is hashes of n pages that share nothing with those of another seed.
func prompt(seed byte, n int) []Hash {
	return Hashes(Hash{seed}, make([]uint32, n), 1)
}

// cached puts a prompt into the cache and ends its lease.
func cached(t testing.TB, p *Pool, hashes []Hash) Lease {
	t.Helper()
	l := reserve(t, p, len(hashes))
	must(t, p.Publish(l, hashes), p.Drop(l, OwnerRequest))
	return l
}

func TestNewNamesBounds(t *testing.T) {
	for _, n := range []int{0, -1, MaxPages + 1} {
		_, err := New(n, 1)
		wantError(t, "New", err, hawser.ErrInvalid)
	}
}

func TestReserveScattersBySeed(t *testing.T) {
	a, b := newPool(t, 1000), newPool(t, 1000)
	x, y := reserve(t, a, 500), reserve(t, b, 500)
	if !slices.Equal(x.Pages, y.Pages) {
		t.Error("one seed gives two orders")
	}
	runs := 0
	for k, i := range x.Pages {
		if k == 0 || i != x.Pages[k-1]+1 {
			runs++
		}
	}
	if runs < 450 {
		t.Errorf("500 pages lie in %d runs, want nearly 500", runs)
	}
}

func TestReserveIsAllOrNothing(t *testing.T) {
	p := newPool(t, 10)
	l := reserve(t, p, 7)
	for _, c := range []struct {
		n    int
		want error
		text string
	}{
		{4, hawser.ErrLimit, "3 of the pool's 10 are free or unused"},
		{11, hawser.ErrLimit, "the pool has 10"},
		{-1, hawser.ErrInvalid, "reserve -1 pages"},
	} {
		_, err := p.Reserve(c.n)
		wantError(t, c.text, err, c.want)
		if err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("got %v, want it to contain %q", err, c.text)
		}
		wantCounts(t, p, Counts{Free: 3, Leased: 7})
	}
	if empty := reserve(t, p, 0); len(empty.Pages) != 0 || p.Drop(empty, OwnerRequest) != nil {
		t.Error("a lease of no pages: want it, and its end")
	}
	must(t, p.Drop(l, OwnerRequest))
	wantCounts(t, p, Counts{Free: 10})
}

// TestAbortedPageWaitsForItsWriter: a request that is aborted while a peer still writes must not give its pages to the next
// one, which would decode another's text.
func TestAbortedPageWaitsForItsWriter(t *testing.T) {
	p := newPool(t, 8)
	a := reserve(t, p, 8)
	must(t, p.Hold(a, OwnerWriter), p.Drop(a, OwnerRequest))
	wantCounts(t, p, Counts{Leased: 8})
	_, err := p.Reserve(1)
	wantError(t, "reserve while the writer holds all", err, hawser.ErrLimit)
	must(t, p.Drop(a, OwnerWriter))
	wantCounts(t, p, Counts{Free: 8})
	reserve(t, p, 8)
}

// TestWriterMayEndFirst is the normal order.
func TestWriterMayEndFirst(t *testing.T) {
	p := newPool(t, 8)
	a := reserve(t, p, 3)
	must(t, p.Hold(a, OwnerWriter), p.Drop(a, OwnerWriter))
	wantCounts(t, p, Counts{Leased: 3, Free: 5})
	must(t, p.Hold(a, OwnerWriter), p.Drop(a, OwnerWriter), p.Drop(a, OwnerRequest)) // a second try on the same pages
	wantCounts(t, p, Counts{Free: 8})
}

func TestStaleLeaseIsAnError(t *testing.T) {
	p := newPool(t, 8)
	old := reserve(t, p, 4)
	wantError(t, "drop of a writer that never held", p.Drop(old, OwnerWriter), hawser.ErrInvalid)
	wantError(t, "second hold", p.Hold(old, OwnerRequest), hawser.ErrInvalid)
	wantError(t, "hold of no owner", p.Hold(old, 0), hawser.ErrInvalid)
	wantError(t, "hold of two owners", p.Hold(old, OwnerRequest|OwnerWriter), hawser.ErrInvalid)
	wantError(t, "drop of two owners", p.Drop(old, OwnerRequest|OwnerWriter), hawser.ErrInvalid)
	must(t, p.Drop(old, OwnerRequest))
	young := reserve(t, p, 8)
	for _, l := range []Lease{old, {}, {ID: 99}} {
		wantError(t, "drop", p.Drop(l, OwnerRequest), hawser.ErrStale)
		wantError(t, "hold", p.Hold(l, OwnerWriter), hawser.ErrStale)
		wantError(t, "publish", p.Publish(l, prompt(1, 1)), hawser.ErrStale)
		wantError(t, "quarantine", p.Quarantine(l), hawser.ErrStale)
	}
	wantCounts(t, p, Counts{Leased: 8})
	must(t, p.Drop(young, OwnerRequest))
}

func TestChangedPageListIsAnError(t *testing.T) {
	p := newPool(t, 8)
	a, b := reserve(t, p, 2), reserve(t, p, 2)
	was := a.Pages[1]
	a.Pages[1] = b.Pages[0]
	wantError(t, "drop", p.Drop(a, OwnerRequest), hawser.ErrInvalid)
	if p.Check() == nil {
		t.Error("the check does not see it")
	}
	a.Pages[1] = was
	must(t, p.Drop(a, OwnerRequest))

	cached(t, p, prompt(1, 2))
	x := p.Lookup(prompt(1, 2))
	was = x.Pages[0]
	x.Pages[0] = b.Pages[0]
	wantError(t, "unpin", p.Unpin(x), hawser.ErrInvalid)
	x.Pages[0] = was
	must(t, p.Unpin(x))
}

func TestQuarantineEndsWithTheWriter(t *testing.T) {
	p := newPool(t, 8)
	a := reserve(t, p, 5)
	wantError(t, "quarantine without a writer", p.Quarantine(a), hawser.ErrInvalid)
	must(t, p.Hold(a, OwnerWriter), p.Quarantine(a), p.Quarantine(a))
	wantCounts(t, p, Counts{Free: 3, Quarantined: 5})
	must(t, p.Drop(a, OwnerRequest))
	wantCounts(t, p, Counts{Free: 3, Quarantined: 5})
	_, err := p.Reserve(4)
	wantError(t, "reserve", err, hawser.ErrLimit)
	must(t, p.Drop(a, OwnerWriter))
	wantCounts(t, p, Counts{Free: 8})

	b := reserve(t, p, 5) // the writer may end while the request goes on
	must(t, p.Hold(b, OwnerWriter), p.Quarantine(b), p.Drop(b, OwnerWriter))
	wantCounts(t, p, Counts{Free: 3, Leased: 5})
	must(t, p.Drop(b, OwnerRequest))
}

func TestConcurrentUse(t *testing.T) {
	p := newPool(t, 64)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for k := range 300 {
				hashes := prompt(byte(w*k), 6)
				x := p.Lookup(hashes)
				l, err := p.Reserve(6 - len(x.Pages))
				if err != nil {
					must(t, p.Unpin(x))
					continue
				}
				must(t, p.Hold(l, OwnerWriter), p.Drop(l, OwnerWriter), p.Publish(l, hashes[len(x.Pages):]), p.Drop(l, OwnerRequest), p.Unpin(x))
			}
		})
	}
	wg.Wait()
	if c := p.Counts(); c.Free+c.Cached != 64 {
		t.Errorf("%+v: want each page free or cached", c)
	}
}

// TestManyLeasesAreSmall: thousands of attempts in flight must not cost much more than their lists of pages, 4 bytes a page.
func TestManyLeasesAreSmall(t *testing.T) {
	const leases, each = 2000, 128
	p := newPool(t, leases*each)
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	held := make([]Lease, leases)
	for i := range held {
		held[i] = reserve(t, p, each)
		must(t, p.Hold(held[i], OwnerWriter))
	}
	grown := float64(heap()-before) / (leases * each)
	t.Logf("%.1f bytes a page", grown)
	if grown > 8 {
		t.Errorf("%.1f bytes a page, want at most 8", grown)
	}
	runtime.KeepAlive(held)
}

// BenchmarkAttempt is what one attempt of 128 pages costs the pool, with 10,000 alive.
func BenchmarkAttempt(b *testing.B) {
	p := newPool(b, 10001*128)
	for range 10000 {
		reserve(b, p, 128)
	}
	b.ReportAllocs()
	for b.Loop() {
		l := reserve(b, p, 128)
		must(b, p.Hold(l, OwnerWriter), p.Drop(l, OwnerWriter), p.Drop(l, OwnerRequest))
	}
}

// BenchmarkCachedAttempt looks up and publishes as well, in a pool full of cached pages.
func BenchmarkCachedAttempt(b *testing.B) {
	p := newPool(b, 10001*128)
	prompts := make([][]Hash, 200)
	for i := range prompts {
		prompts[i] = prompt(byte(i), 128)
		cached(b, p, prompts[i])
	}
	l := reserve(b, p, p.Room()-128*100)
	k := 0
	for b.Loop() {
		hashes := prompts[k%len(prompts)]
		k++
		x := p.Lookup(hashes[:64])
		m := reserve(b, p, 128-len(x.Pages))
		must(b, p.Publish(m, hashes[len(x.Pages):]), p.Drop(m, OwnerRequest), p.Unpin(x))
	}
	must(b, p.Drop(l, OwnerRequest))
}
