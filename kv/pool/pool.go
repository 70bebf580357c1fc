package pool

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/hawser-project/hawser"
)

// MaxPages is the largest pool: pages are numbered with 32 bits, and one number is not a page.
const MaxPages = 1<<32 - 1

// Owner is one of the two parties that hold a lease.
type Owner uint8

// The owners of a lease.
const (
	OwnerRequest Owner = 1 << iota // reads the pages; holds a lease from Reserve on
	OwnerWriter                    // may write the pages; holds a lease from Hold on
)

func (o Owner) String() string {
	switch o {
	case OwnerRequest:
		return "request"
	case OwnerWriter:
		return "writer"
	}
	return fmt.Sprintf("owner %d", uint8(o))
}

// Lease is pages that were reserved together. The zero Lease is none: all calls refuse it.
type Lease struct {
	Pages []uint32 // read only: the pool keeps the same slice
	ID    uint64   // never used again by this pool
}

// Counts is how many pages are in each state; they add up to the size of the pool.
type Counts struct{ Free, Leased, Pinned, Cached, Quarantined int }

// Pool lends pages. Make it with New.
type Pool struct {
	mu     sync.Mutex // guards all below
	rand   *rand.Rand
	free   []uint32
	pages  []page // by index
	leases map[uint64]lease
	lastID uint64 // of leases and prefixes
	leased int    // pages of all leases, quarantined ones included

	quarantined int // pages

	// The prefix cache, see cache.go.
	byHash map[Hash]uint32
	pins   map[uint64][]uint32 // pages of each Prefix that is not unpinned
	unused list                // cached pages, least recently used first
	watch  func(h Hash, stored bool)
}

// page is what the pool knows of one page.
type page struct {
	hash       Hash   // of the published block; zero when none
	lease      uint64 // 0 when none
	pins       uint32
	prev, next uint32 // neighbours in unused, see list
}

type lease struct {
	pages       []uint32
	owners      Owner // a set, never empty
	quarantined bool
	published   bool
}

// New makes a pool of the pages 0 .. pages-1, all free. They are handed out in an order that seed decides, as scattered as
// in a server that has run for a while.
func New(pages int, seed uint64) (*Pool, error) {
	if pages < 1 || pages > MaxPages {
		return nil, fmt.Errorf("pool of %d pages: %w: want 1 .. %d", pages, hawser.ErrInvalid, MaxPages)
	}
	p := &Pool{
		rand:   rand.New(rand.NewPCG(seed, 0)),
		free:   make([]uint32, pages),
		pages:  make([]page, pages),
		leases: map[uint64]lease{},
		byHash: map[Hash]uint32{},
		pins:   map[uint64][]uint32{},
		unused: emptyList,
	}
	for i := range p.free {
		p.free[i] = uint32(i)
	}
	return p, nil
}

// Pages is the size of the pool: a prompt that needs more never fits.
func (p *Pool) Pages() int { return len(p.pages) }

// Room is how many pages Reserve can give: the free ones, and the cached ones that nobody uses.
func (p *Pool) Room() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.room()
}

func (p *Pool) room() int { return len(p.free) + p.unused.len }

// Live is how many leases and prefixes have not ended: 0 when nobody uses the pool. One without pages counts as well.
func (p *Pool) Live() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.leases) + len(p.pins)
}

// Counts counts pages by state.
func (p *Pool) Counts() Counts {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := Counts{Free: len(p.free), Leased: p.leased - p.quarantined, Cached: p.unused.len, Quarantined: p.quarantined}
	c.Pinned = len(p.pages) - c.Free - c.Leased - c.Cached - c.Quarantined
	return c
}

// Reserve leases n pages to OwnerRequest, or none: ErrLimit when fewer are free or unused. It evicts from the prefix cache
// what it needs and no more.
func (p *Pool) Reserve(n int) (Lease, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case n < 0:
		return Lease{}, fmt.Errorf("reserve %d pages: %w", n, hawser.ErrInvalid)
	case n > len(p.pages):
		return Lease{}, fmt.Errorf("reserve %d pages: %w: the pool has %d", n, hawser.ErrLimit, len(p.pages))
	case n > p.room():
		return Lease{}, fmt.Errorf("reserve %d pages: %w: %d of the pool's %d are free or unused", n, hawser.ErrLimit, p.room(), len(p.pages))
	}
	for len(p.free) < n {
		p.evict()
	}
	p.lastID++
	l := Lease{Pages: make([]uint32, n), ID: p.lastID}
	for i := range l.Pages {
		last := len(p.free) - 1
		j := p.rand.IntN(last + 1)
		l.Pages[i] = p.free[j]
		p.free[j] = p.free[last]
		p.free = p.free[:last]
		p.pages[l.Pages[i]].lease = l.ID
	}
	p.leases[l.ID] = lease{pages: l.Pages, owners: OwnerRequest}
	p.leased += n
	return l, nil
}

// Hold adds an owner to a lease. It is an error when the lease has ended or the owner holds it already, and for OwnerWriter
// after Publish: others may read the pages.
func (p *Pool) Hold(l Lease, o Owner) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	have, err := p.find(l, "hold")
	if err != nil {
		return err
	}
	if o != OwnerRequest && o != OwnerWriter || have.owners&o != 0 {
		return fmt.Errorf("hold lease %d for %v: %w: it has this owner already, or there is no such", l.ID, o, hawser.ErrInvalid)
	}
	if o == OwnerWriter && have.published {
		return fmt.Errorf("hold lease %d for a writer: %w: its pages are published", l.ID, hawser.ErrInvalid)
	}
	have.owners |= o
	p.leases[l.ID] = have
	return nil
}

// Drop ends an owner's hold. With the last one the lease ends: published pages stay in the cache, the others are free. The end
// of OwnerWriter's hold is also that of a quarantine. It is an error, and nothing changes, when the owner does not hold the
// lease, as in a second Drop.
func (p *Pool) Drop(l Lease, o Owner) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	have, err := p.find(l, "drop")
	if err != nil {
		return err
	}
	if o != OwnerRequest && o != OwnerWriter || have.owners&o == 0 {
		return fmt.Errorf("drop lease %d for %v: %w: it does not hold it", l.ID, o, hawser.ErrInvalid)
	}
	have.owners &^= o
	if o == OwnerWriter && have.quarantined {
		have.quarantined = false
		p.quarantined -= len(have.pages)
	}
	if have.owners != 0 {
		p.leases[l.ID] = have
		return nil
	}
	delete(p.leases, l.ID)
	p.leased -= len(have.pages)
	for _, i := range slices.Backward(have.pages) { // the beginning of a prompt becomes the most recently used page
		p.pages[i].lease = 0
		p.settle(i)
	}
	return nil
}

// settle puts a page where it belongs when it has lost its lease or a pin.
func (p *Pool) settle(i uint32) {
	switch g := &p.pages[i]; {
	case g.lease != 0 || g.pins != 0:
	case g.hash == Hash{}:
		p.free = append(p.free, i)
	default:
		p.unused.push(p.pages, i)
	}
}

// Quarantine marks a lease whose writer can neither be stopped nor waited for; it changes only what Counts says, because the
// writer's hold keeps the pages from being lent. The mark ends when that hold is dropped. It is an error when OwnerWriter
// does not hold the lease.
func (p *Pool) Quarantine(l Lease) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	have, err := p.find(l, "quarantine")
	if err != nil {
		return err
	}
	if have.owners&OwnerWriter == 0 {
		return fmt.Errorf("quarantine lease %d: %w: no writer holds it", l.ID, hawser.ErrInvalid)
	}
	if !have.quarantined {
		have.quarantined = true
		p.leases[l.ID] = have
		p.quarantined += len(have.pages)
	}
	return nil
}

// find is a live lease whose pages nobody has changed. Needs mu.
func (p *Pool) find(l Lease, call string) (lease, error) {
	have, ok := p.leases[l.ID]
	if !ok {
		return lease{}, fmt.Errorf("%s lease %d: %w: it has ended, or never was", call, l.ID, hawser.ErrStale)
	}
	for _, i := range have.pages {
		if int(i) >= len(p.pages) || p.pages[i].lease != l.ID {
			return lease{}, fmt.Errorf("%s lease %d: %w: its list of pages was changed: page %d is not its own", call, l.ID, hawser.ErrInvalid, i)
		}
	}
	return have, nil
}
