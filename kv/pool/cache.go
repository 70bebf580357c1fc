package pool

import (
	"fmt"
	"slices"

	"github.com/hawser-project/hawser"
)

// Prefix is the cached beginning of a prompt. Its pages are pinned: they are not evicted and nobody writes them. The zero
// Prefix has no page.
type Prefix struct {
	Pages []uint32 // page k holds the k-th block of the prompt; read only: the pool keeps the same slice
	ID    uint64   // never used again by this pool; 0 when there is no page
}

// Lookup pins the longest cached beginning of a prompt, which may be none. A caller who must compute the last tokens itself
// passes fewer hashes.
func (p *Pool) Lookup(hashes []Hash) Prefix {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for n < len(hashes) {
		if _, ok := p.byHash[hashes[n]]; !ok {
			break
		}
		n++
	}
	if n == 0 {
		return Prefix{}
	}
	p.lastID++
	x := Prefix{Pages: make([]uint32, n), ID: p.lastID}
	for k, h := range hashes[:n] {
		i := p.byHash[h]
		g := &p.pages[i]
		if g.lease == 0 && g.pins == 0 {
			p.unused.remove(p.pages, i)
		}
		g.pins++
		x.Pages[k] = i
	}
	p.pins[x.ID] = x.Pages
	return x
}

// Unpin ends a Prefix. It is an error, and nothing changes, when it has ended before; for a Prefix without pages it does nothing.
func (p *Pool) Unpin(x Prefix) error {
	if x.ID == 0 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	pages, ok := p.pins[x.ID]
	if !ok {
		return fmt.Errorf("unpin prefix %d: %w: it has ended, or never was", x.ID, hawser.ErrStale)
	}
	for _, i := range pages {
		if int(i) >= len(p.pages) || p.pages[i].pins == 0 {
			return fmt.Errorf("unpin prefix %d: %w: its list of pages was changed: page %d is not pinned", x.ID, hawser.ErrInvalid, i)
		}
	}
	delete(p.pins, x.ID)
	for _, i := range slices.Backward(pages) { // the beginning of a prompt becomes the most recently used page
		p.pages[i].pins--
		p.settle(i)
	}
	return nil
}

// Publish makes pages of a lease findable: hashes[k] is of the block in its k-th page. Pages after those stay private, as the
// last one of a prompt that it fills in part. A block that is cached already stays where it is. It is an error, and nothing
// changes, while OwnerWriter holds the lease, for more hashes than pages, and for a page that is published as another block.
func (p *Pool) Publish(l Lease, hashes []Hash) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	have, err := p.find(l, "publish")
	switch {
	case err != nil:
		return err
	case have.owners&OwnerWriter != 0:
		return fmt.Errorf("publish lease %d: %w: a writer still holds it", l.ID, hawser.ErrInvalid)
	case len(hashes) > len(have.pages):
		return fmt.Errorf("publish lease %d: %w: %d blocks, the lease has %d pages", l.ID, hawser.ErrInvalid, len(hashes), len(have.pages))
	}
	for k, h := range hashes {
		if g := &p.pages[have.pages[k]]; h == (Hash{}) || g.hash != (Hash{}) && g.hash != h {
			return fmt.Errorf("publish lease %d: %w: page %d is already %x, not %x", l.ID, hawser.ErrInvalid, have.pages[k], g.hash, h)
		}
	}
	for k, h := range hashes {
		if old, ok := p.byHash[h]; !ok {
			i := have.pages[k]
			p.byHash[h] = i
			p.pages[i].hash = h
			have.published = true
			p.tell(h, true)
		} else if g := &p.pages[old]; g.lease == 0 && g.pins == 0 { // it was asked for just now
			p.unused.remove(p.pages, old)
			p.unused.push(p.pages, old)
		}
	}
	p.leases[l.ID] = have
	return nil
}

// Watch makes f hear of each block that can be found from now on, and of each that no longer can: what a router wants to know that
// sends requests to where their prompt is. f is called with the pool locked, so it must not block or call the pool. It is for
// one observer; nil ends it.
func (p *Pool) Watch(f func(h Hash, stored bool)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watch = f
}

func (p *Pool) tell(h Hash, stored bool) {
	if p.watch != nil {
		p.watch(h, stored)
	}
}

// evict frees the page that was unused for longest. Needs mu and one such page.
func (p *Pool) evict() {
	i := p.unused.oldest
	p.unused.remove(p.pages, i)
	delete(p.byHash, p.pages[i].hash)
	p.tell(p.pages[i].hash, false)
	p.pages[i].hash = Hash{}
	p.free = append(p.free, i)
}

// list is a doubly linked list of pages, linked in their prev and next.
type list struct {
	oldest, newest uint32
	len            int
}

// none is the neighbour of the ends of a list.
const none = MaxPages

var emptyList = list{oldest: none, newest: none}

// push makes i the newest.
func (l *list) push(pages []page, i uint32) {
	pages[i].prev, pages[i].next = l.newest, none
	if l.newest == none {
		l.oldest = i
	} else {
		pages[l.newest].next = i
	}
	l.newest = i
	l.len++
}

func (l *list) remove(pages []page, i uint32) {
	prev, next := pages[i].prev, pages[i].next
	if prev == none {
		l.oldest = next
	} else {
		pages[prev].next = next
	}
	if next == none {
		l.newest = prev
	} else {
		pages[next].prev = prev
	}
	l.len--
}
