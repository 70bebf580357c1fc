package pool

import (
	"errors"
	"slices"
	"testing"

	"github.com/hawser-project/hawser"
	"pgregory.net/rapid"
)

// model is a pool that is plain instead of fast: it keeps what was said and derives all else from it.
type model struct {
	pages  int
	live   []*modelLease
	pins   []Prefix
	blocks map[Hash]uint32
	unused []uint32 // published and otherwise unused, least recently used first
}

type modelLease struct {
	Lease
	request, writer, quarantined, published bool
}

func (m *model) leased(i uint32) bool {
	return slices.ContainsFunc(m.live, func(l *modelLease) bool { return slices.Contains(l.Pages, i) })
}

func (m *model) pinned(i uint32) bool {
	return slices.ContainsFunc(m.pins, func(x Prefix) bool { return slices.Contains(x.Pages, i) })
}

func (m *model) hash(i uint32) (Hash, bool) {
	for h, at := range m.blocks {
		if at == i {
			return h, true
		}
	}
	return Hash{}, false
}

func (m *model) counts() (c Counts) {
	for i := range uint32(m.pages) {
		_, published := m.hash(i)
		switch {
		case slices.ContainsFunc(m.live, func(l *modelLease) bool { return l.quarantined && slices.Contains(l.Pages, i) }):
			c.Quarantined++
		case m.leased(i):
			c.Leased++
		case m.pinned(i):
			c.Pinned++
		case published:
			c.Cached++
		default:
			c.Free++
		}
	}
	return c
}

// refresh is called after each step with the pages that it has touched, last one most recently used.
func (m *model) refresh(touched []uint32) {
	for _, i := range touched {
		m.unused = slices.DeleteFunc(m.unused, func(k uint32) bool { return k == i })
		if _, published := m.hash(i); published && !m.leased(i) && !m.pinned(i) {
			m.unused = append(m.unused, i)
		}
	}
}

// machine runs random calls on a Pool and a model, and compares them after each.
type machine struct {
	*model
	pool  *Pool
	ended []Lease
	gone  []Prefix
	told  map[Hash]bool // by Watch
}

func (m *machine) drawLease(t *rapid.T) *modelLease {
	if len(m.live) == 0 {
		t.Skip("no lease")
	}
	return rapid.SampledFrom(m.live).Draw(t, "lease")
}

// drawPrompt draws prompts that often share a beginning.
func drawPrompt(t *rapid.T) []Hash {
	a, b := rapid.IntRange(0, 4).Draw(t, "zeros"), rapid.IntRange(0, 4).Draw(t, "ones")
	return Hashes(Hash{}, append(make([]uint32, a), slices.Repeat([]uint32{1}, b)...), 1)
}

func (m *machine) Reserve(t *rapid.T) {
	n := rapid.IntRange(0, m.pages/2).Draw(t, "n")
	c := m.counts()
	l, err := m.pool.Reserve(n)
	if n > c.Free+c.Cached {
		if !errors.Is(err, hawser.ErrLimit) {
			t.Fatalf("reserve %d of %+v: got %v, want ErrLimit", n, c, err)
		}
		return
	}
	if err != nil || len(l.Pages) != n {
		t.Fatalf("reserve %d of %+v: got %v, %v", n, c, l, err)
	}
	for ; n > c.Free; n-- {
		h, _ := m.hash(m.unused[0])
		delete(m.blocks, h)
		m.unused = m.unused[1:]
	}
	for _, i := range l.Pages {
		if _, published := m.hash(i); published || m.leased(i) || m.pinned(i) {
			t.Fatalf("page %d was lent: published %v, leased %v, pinned %v", i, published, m.leased(i), m.pinned(i))
		}
	}
	m.live = append(m.live, &modelLease{Lease: l, request: true})
}

func (m *machine) Hold(t *rapid.T) {
	l := m.drawLease(t)
	request := rapid.Bool().Draw(t, "request")
	o, have := OwnerWriter, &l.writer
	if request {
		o, have = OwnerRequest, &l.request
	}
	want := !*have && (request || !l.published)
	if err := m.pool.Hold(l.Lease, o); (err == nil) != want {
		t.Fatalf("hold %v of %+v: got %v", o, *l, err)
	}
	*have = *have || want
}

func (m *machine) Drop(t *rapid.T) {
	l := m.drawLease(t)
	o, have := OwnerWriter, &l.writer
	if rapid.Bool().Draw(t, "request") {
		o, have = OwnerRequest, &l.request
	}
	if err := m.pool.Drop(l.Lease, o); (err == nil) != *have {
		t.Fatalf("drop %v of %+v: got %v", o, *l, err)
	}
	*have = false
	l.quarantined = l.quarantined && l.writer
	if l.request || l.writer {
		return
	}
	m.live = slices.DeleteFunc(m.live, func(k *modelLease) bool { return k == l })
	m.ended = append(m.ended, l.Lease)
	back := slices.Clone(l.Pages)
	slices.Reverse(back)
	m.refresh(back)
}

func (m *machine) Quarantine(t *rapid.T) {
	l := m.drawLease(t)
	if err := m.pool.Quarantine(l.Lease); (err == nil) != l.writer {
		t.Fatalf("quarantine %+v: got %v", *l, err)
	}
	l.quarantined = l.writer
}

func (m *machine) Publish(t *rapid.T) {
	l, hashes := m.drawLease(t), drawPrompt(t)
	if len(hashes) > len(l.Pages) && rapid.Bool().Draw(t, "cut") {
		hashes = hashes[:len(l.Pages)]
	}
	want := !l.writer && len(hashes) <= len(l.Pages)
	for k, h := range hashes {
		if want {
			was, published := m.hash(l.Pages[k])
			want = !published || was == h
		}
	}
	if err := m.pool.Publish(l.Lease, hashes); (err == nil) != want {
		t.Fatalf("publish %d blocks of %+v: got %v", len(hashes), *l, err)
	}
	if !want {
		return
	}
	for k, h := range hashes {
		if old, ok := m.blocks[h]; ok {
			m.refresh([]uint32{old})
		} else {
			m.blocks[h] = l.Pages[k]
			l.published = true
		}
	}
}

func (m *machine) Lookup(t *rapid.T) {
	hashes := drawPrompt(t)
	var want []uint32
	for _, h := range hashes {
		i, ok := m.blocks[h]
		if !ok {
			break
		}
		want = append(want, i)
	}
	x := m.pool.Lookup(hashes)
	if !slices.Equal(x.Pages, want) {
		t.Fatalf("lookup: got %v, want %v", x.Pages, want)
	}
	if x.ID != 0 {
		m.pins = append(m.pins, x)
		m.refresh(x.Pages)
	}
}

func (m *machine) Unpin(t *rapid.T) {
	if len(m.pins) == 0 {
		t.Skip("no prefix")
	}
	k := rapid.IntRange(0, len(m.pins)-1).Draw(t, "prefix")
	x := m.pins[k]
	if err := m.pool.Unpin(x); err != nil {
		t.Fatal(err)
	}
	m.pins = slices.Delete(m.pins, k, k+1)
	m.gone = append(m.gone, x)
	back := slices.Clone(x.Pages)
	slices.Reverse(back)
	m.refresh(back)
}

// Stale uses what has ended.
func (m *machine) Stale(t *rapid.T) {
	if len(m.ended) == 0 || len(m.gone) == 0 {
		t.Skip("nothing has ended")
	}
	l, x := rapid.SampledFrom(m.ended).Draw(t, "lease"), rapid.SampledFrom(m.gone).Draw(t, "prefix")
	for _, err := range []error{
		m.pool.Drop(l, OwnerRequest), m.pool.Drop(l, OwnerWriter), m.pool.Hold(l, OwnerWriter), m.pool.Publish(l, nil), m.pool.Unpin(x),
	} {
		if !errors.Is(err, hawser.ErrStale) {
			t.Fatalf("lease %v, prefix %v: got %v, want ErrStale", l, x, err)
		}
	}
}

func (m *machine) Check(t *rapid.T) {
	if err := m.pool.Check(); err != nil {
		t.Fatal(err)
	}
	if got, want := m.pool.Counts(), m.counts(); got != want {
		t.Fatalf("got %+v, want %+v", got, want)
	}
	if n := len(m.live) + len(m.pins); m.pool.Live() != n {
		t.Fatalf("%d leases and prefixes are live, want %d", m.pool.Live(), n)
	}
	if len(m.told) != len(m.blocks) {
		t.Fatalf("an observer knows of %d blocks, want %d", len(m.told), len(m.blocks))
	}
	for h := range m.blocks {
		if !m.told[h] {
			t.Fatalf("no observer knows of block %x", h)
		}
	}
	order := []uint32{}
	for i := m.pool.unused.oldest; i != none; i = m.pool.pages[i].next {
		order = append(order, i)
	}
	if !slices.Equal(order, m.unused) {
		t.Fatalf("unused pages: got %v, want %v", order, m.unused)
	}
	if c := m.counts(); m.pool.Room() != c.Free+c.Cached {
		t.Fatalf("room for %d, want %d", m.pool.Room(), c.Free+c.Cached)
	}
}

func TestPoolIsItsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pages := rapid.IntRange(1, 16).Draw(t, "pages")
		p, err := New(pages, rapid.Uint64().Draw(t, "seed"))
		if err != nil {
			t.Fatal(err)
		}
		m := &machine{model: &model{pages: pages, blocks: map[Hash]uint32{}}, pool: p, told: map[Hash]bool{}}
		p.Watch(func(h Hash, stored bool) {
			if m.told[h] == stored {
				t.Fatalf("block %x: told twice that stored is %v", h, stored)
			}
			if m.told[h] = stored; !stored {
				delete(m.told, h)
			}
		})
		for range 10 { // Repeat makes some 30 calls
			t.Repeat(rapid.StateMachineActions(m))
		}
	})
}

// TestCheckSeesEachDefect breaks a pool in one place at a time.
func TestCheckSeesEachDefect(t *testing.T) {
	for name, corrupt := range map[string]func(*Pool){
		"page is lost":            func(p *Pool) { p.free = p.free[1:] },
		"page is free twice":      func(p *Pool) { p.free[0] = p.free[1] },
		"free page is out":        func(p *Pool) { p.free[0] = 99 },
		"leased page is free":     func(p *Pool) { p.free = append(p.free, p.leases[1].pages[0]) },
		"lease is forgotten":      func(p *Pool) { delete(p.leases, 1) },
		"lease without owner":     func(p *Pool) { p.leases[1] = lease{pages: p.leases[1].pages} },
		"wrong lease":             func(p *Pool) { p.pages[p.leases[1].pages[0]].lease = 7 },
		"free page with a lease":  func(p *Pool) { p.pages[p.free[0]].lease = 1 },
		"wrong count of leased":   func(p *Pool) { p.leased-- },
		"wrong count of the idle": func(p *Pool) { p.unused.len-- },
		"broken list":             func(p *Pool) { p.pages[p.unused.newest].prev = none },
		"cached page is free":     func(p *Pool) { p.free = append(p.free, p.unused.oldest) },
		"pin is lost":             func(p *Pool) { clear(p.pins) },
		"pin is counted twice": func(p *Pool) {
			for _, pages := range p.pins {
				p.pages[pages[0]].pins++
			}
		},
		"prefix out of the pool": func(p *Pool) { p.pins[99] = []uint32{99} },
		"block is forgotten":     func(p *Pool) { delete(p.byHash, p.pages[p.unused.oldest].hash) },
		"block of another":       func(p *Pool) { p.byHash[Hash{1}] = p.free[0] },
		"cached without a hash":  func(p *Pool) { p.pages[p.unused.oldest].hash = Hash{} },
		"quarantine, no writer":  func(p *Pool) { l := p.leases[1]; l.quarantined = true; p.leases[1] = l },
	} {
		t.Run(name, func(t *testing.T) {
			p, err := New(12, 1)
			must(t, err)
			reserve(t, p, 2) // lease 1
			cached(t, p, prompt(1, 2))
			cached(t, p, prompt(2, 2))
			p.Lookup(prompt(1, 2))
			must(t, p.Check())
			corrupt(p)
			if err := p.Check(); err == nil {
				t.Error("not seen")
			}
		})
	}
}
