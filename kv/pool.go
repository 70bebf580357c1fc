package kv

import (
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/hawser-project/hawser"
)

// Pool lends the pages of a cache. A page is an index that is valid in every view. Safe for concurrent use.
type Pool struct {
	mu    sync.Mutex
	rand  *rand.Rand // guarded by mu
	free  []uint32   // guarded by mu
	owner []uint64   // of each page, 0 when it is free; guarded by mu

	// spy, when set, is called with mu held after pages have got an owner or, with 0, lost it. For tests; set before use.
	spy func(pages []uint32, owner uint64)
}

// NewPool makes a pool of the pages 0 .. pages-1. It hands them out in an order that seed decides: as scattered as in a
// server that has run for a while.
func NewPool(pages int, seed uint64) (*Pool, error) {
	if pages < 1 || pages > MaxPages {
		return nil, fmt.Errorf("kv: pool of %d pages: %w: want 1 .. %d", pages, hawser.ErrInvalid, MaxPages)
	}
	p := &Pool{
		rand:  rand.New(rand.NewPCG(seed, 0)),
		free:  make([]uint32, pages),
		owner: make([]uint64, pages),
	}
	for i := range p.free {
		p.free[i] = uint32(i)
	}
	return p, nil
}

// Pages is the size of the pool.
func (p *Pool) Pages() int { return len(p.owner) }

// Free is the number of pages that nobody holds.
func (p *Pool) Free() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.free)
}

// Reserve takes n pages for an owner, which is any number but 0, or none: ErrLimit when fewer are free.
func (p *Pool) Reserve(n int, owner uint64) ([]uint32, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if owner == 0 || n < 0 {
		return nil, fmt.Errorf("kv: reserve %d pages for owner %d: %w", n, owner, hawser.ErrInvalid)
	}
	if n > len(p.free) {
		return nil, fmt.Errorf("kv: reserve %d pages: %w: %d of %d are free", n, hawser.ErrLimit, len(p.free), len(p.owner))
	}
	pages := make([]uint32, n)
	for i := range pages {
		last := len(p.free) - 1
		j := p.rand.IntN(last + 1)
		pages[i] = p.free[j]
		p.free[j] = p.free[last]
		p.free = p.free[:last]
		p.owner[pages[i]] = owner
	}
	if p.spy != nil {
		p.spy(pages, owner)
	}
	return pages, nil
}

// Return gives pages back, all or none: an error means that one of them is not the owner's.
func (p *Pool) Return(pages []uint32, owner uint64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for k, i := range pages {
		if int(i) >= len(p.owner) || owner == 0 || p.owner[i] != owner {
			for _, i := range pages[:k] {
				p.owner[i] = owner
			}
			return fmt.Errorf("kv: return page %d: %w: it does not belong to owner %d, or is listed twice", i, hawser.ErrInvalid, owner)
		}
		p.owner[i] = 0
	}
	p.free = append(p.free, pages...)
	if p.spy != nil {
		p.spy(pages, 0)
	}
	return nil
}
