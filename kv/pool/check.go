package pool

import (
	"errors"
	"fmt"
)

// Check verifies the whole pool in one pass over all pages: each in exactly one state, no list that disagrees with another.
// It is for tests and for the end of a run; an error means a defect of this package, or a list of pages that a caller changed.
func (p *Pool) Check() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := checker{pool: p, seen: make([]string, len(p.pages)), pins: make([]uint32, len(p.pages))}
	for _, i := range p.free {
		c.place(i, "free")
	}
	c.unused()
	c.leases()
	c.prefixes()
	c.published()
	for i := range p.pages {
		c.page(uint32(i))
	}
	return errors.Join(c.faults...)
}

type checker struct {
	pool   *Pool
	seen   []string // state of each page, by the lists
	pins   []uint32 // of each page, by the prefixes
	faults []error
}

func (c *checker) fault(format string, args ...any) {
	if len(c.faults) < 20 { // one defect can touch each page
		c.faults = append(c.faults, fmt.Errorf("pool: "+format, args...))
	}
}

// place notes the state of a page, which must have none so far.
func (c *checker) place(i uint32, state string) {
	switch {
	case int(i) >= len(c.seen):
		c.fault("page %d is %s, the pool has %d pages", i, state, len(c.seen))
	case c.seen[i] != "":
		c.fault("page %d is %s and %s", i, c.seen[i], state)
	default:
		c.seen[i] = state
	}
}

func (c *checker) unused() {
	l, n, prev := c.pool.unused, 0, uint32(none)
	for i := l.oldest; i != none && n <= l.len; i = c.pool.pages[i].next {
		c.place(i, "cached")
		if c.pool.pages[i].prev != prev {
			c.fault("unused pages: before %d comes %d, not %d", i, c.pool.pages[i].prev, prev)
		}
		prev = i
		n++
	}
	if n != l.len || prev != l.newest {
		c.fault("unused pages: %d in the list that ends with %d, want %d and %d", n, prev, l.len, l.newest)
	}
}

func (c *checker) leases() {
	leased, quarantined := 0, 0
	for id, l := range c.pool.leases {
		leased += len(l.pages)
		state := "leased"
		if l.quarantined {
			state = "quarantined"
			quarantined += len(l.pages)
		}
		if l.owners == 0 || l.quarantined && l.owners&OwnerWriter == 0 {
			c.fault("lease %d: owners %b, %s", id, l.owners, state)
		}
		for _, i := range l.pages {
			c.place(i, state)
			if int(i) < len(c.seen) && c.pool.pages[i].lease != id {
				c.fault("page %d is of lease %d, listed by %d", i, c.pool.pages[i].lease, id)
			}
		}
	}
	if leased != c.pool.leased || quarantined != c.pool.quarantined {
		c.fault("%d pages leased, %d quarantined, counted %d and %d", leased, quarantined, c.pool.leased, c.pool.quarantined)
	}
}

func (c *checker) prefixes() {
	for id, pages := range c.pool.pins {
		for _, i := range pages {
			if int(i) >= len(c.pins) {
				c.fault("prefix %d: page %d, the pool has %d", id, i, len(c.pins))
				continue
			}
			c.pins[i]++
		}
	}
}

func (c *checker) published() {
	for h, i := range c.pool.byHash {
		if int(i) >= len(c.seen) || c.pool.pages[i].hash != h {
			c.fault("block %x is not in page %d", h, i)
		}
	}
}

// page compares what a page says of itself with the lists.
func (c *checker) page(i uint32) {
	g := &c.pool.pages[i]
	published := g.hash != Hash{}
	if c.seen[i] == "" && g.lease == 0 && g.pins > 0 {
		c.seen[i] = "pinned"
	}
	switch state := c.seen[i]; {
	case state == "":
		c.fault("page %d is lost", i)
	case g.pins != c.pins[i]:
		c.fault("page %d (%s) has %d pins, want %d", i, state, g.pins, c.pins[i])
	case g.pins > 0 && (!published || state == "free" || state == "cached"):
		c.fault("page %d is %s and pinned, published: %v", i, state, published)
	case g.lease != 0 && state != "leased" && state != "quarantined":
		c.fault("page %d is %s, and of lease %d", i, state, g.lease)
	case state == "cached" && !published, state == "free" && published, state == "quarantined" && published:
		c.fault("page %d is %s, published: %v", i, state, published)
	case published:
		if at, ok := c.pool.byHash[g.hash]; !ok || at != i {
			c.fault("page %d holds block %x, which is found at %d, %v", i, g.hash, at, ok)
		}
	}
}
