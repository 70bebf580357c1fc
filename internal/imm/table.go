package imm

import (
	"errors"
	"math"
	"sync"
	"sync/atomic"
)

// MaxUnasked is how many values one source may create before anybody asks for them. Without a limit a peer could fill
// our memory with counters that nobody wants.
const MaxUnasked = 65536

// ErrUnasked says that a source created too many values that nobody asked for.
var ErrUnasked = errors.New("more than 65536 immediate values that nobody asked for")

// Source is who sends immediates. One per peer identity; its address is its identity.
type Source struct {
	unasked atomic.Int64
}

// Counter counts the arrivals of one value. Load and From may be called by anyone.
type Counter struct {
	Imm uint32

	// Owner is for the table's user, who sets it under its own lock.
	Owner any

	n         atomic.Uint64
	threshold atomic.Uint64 // lowest count that somebody waits for
	from      atomic.Pointer[[]*fromCount]
	creator   *Source // while nobody has asked; guarded by Table.mu
}

// fromCount is the part of a count that one source sent.
type fromCount struct {
	src *Source
	n   atomic.Uint64
}

// Load is the number of immediates counted so far. Everything that their writes carried is visible to the caller.
func (c *Counter) Load() uint64 { return c.n.Load() }

// From is the part of Load that came from src.
func (c *Counter) From(src *Source) uint64 {
	if list := c.from.Load(); list != nil {
		for _, f := range *list {
			if f.src == src {
				return f.n.Load()
			}
		}
	}
	return 0
}

// SetThreshold makes Add report true from count n on. The caller must look at Load afterwards: the count may have passed n
// before the threshold was visible. math.MaxUint64 means that nobody waits.
func (c *Counter) SetThreshold(n uint64) { c.threshold.Store(n) }

// Table maps values to counters. Safe for concurrent use.
type Table struct {
	mu    sync.Mutex // taken to add and remove values, not to count
	slots atomic.Pointer[[]atomic.Pointer[Counter]]
	used  int // slots that are not nil, tombstones included; guarded by mu
	live  int // counters; guarded by mu
}

// tombstone keeps the probe sequences of other values intact after a removal.
var tombstone = &Counter{}

const minSlots = 64

// NewTable makes an empty table.
func NewTable() *Table {
	t := &Table{}
	s := make([]atomic.Pointer[Counter], minSlots)
	t.slots.Store(&s)
	return t
}

// Add counts one immediate from src. It reports the counter when the count has reached the threshold. ErrUnasked: the
// value is new and src has created too many; it is not counted.
// hot:
func (t *Table) Add(src *Source, imm uint32) (due *Counter, err error) {
	c := t.find(imm)
	if c == nil {
		if c, err = t.arrive(src, imm); err != nil {
			return nil, err
		}
	}
	c.count(src)
	// The part is counted before the whole, so that whoever sees the whole sees the parts.
	if n := c.n.Add(1); n >= c.threshold.Load() {
		return c, nil
	}
	return nil, nil
}

// Counter returns the counter of imm, which lives from its first arrival or its first asker on.
func (t *Table) Counter(imm uint32) *Counter {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.find(imm)
	if c == nil {
		c = t.insert(imm)
	}
	if c.creator != nil {
		c.creator.unasked.Add(-1)
		c.creator = nil
	}
	return c
}

// Remove frees the value of c: the next arrival or asker starts at 0. Safe to call twice.
func (t *Table) Remove(c *Counter) {
	t.mu.Lock()
	defer t.mu.Unlock()
	slots := *t.slots.Load()
	for i := hash(c.Imm, len(slots)); ; i = (i + 1) & (len(slots) - 1) {
		switch slots[i].Load() {
		case nil:
			return
		case c:
			slots[i].Store(tombstone)
			t.live--
			if c.creator != nil {
				c.creator.unasked.Add(-1)
			}
			return
		}
	}
}

// Len is the number of counters.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.live
}

// Each calls f for every counter. f must not call the table.
func (t *Table) Each(f func(*Counter)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	slots := *t.slots.Load()
	for i := range slots {
		if c := slots[i].Load(); c != nil && c != tombstone {
			f(c)
		}
	}
}

// hot:
func (t *Table) find(imm uint32) *Counter {
	slots := *t.slots.Load()
	for i := hash(imm, len(slots)); ; i = (i + 1) & (len(slots) - 1) {
		c := slots[i].Load()
		if c == nil {
			return nil
		}
		if c.Imm == imm && c != tombstone {
			return c
		}
	}
}

// arrive makes the counter of a value that nobody has asked for yet.
func (t *Table) arrive(src *Source, imm uint32) (*Counter, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := t.find(imm); c != nil {
		return c, nil // somebody was faster
	}
	if src.unasked.Load() >= MaxUnasked {
		return nil, ErrUnasked
	}
	src.unasked.Add(1)
	c := t.insert(imm)
	c.creator = src
	return c, nil
}

// insert needs mu and a value that is not in the table.
func (t *Table) insert(imm uint32) *Counter {
	if n := len(*t.slots.Load()); (t.used+1)*2 > n {
		t.rebuild()
	}
	c := &Counter{Imm: imm}
	c.threshold.Store(math.MaxUint64)
	t.place(*t.slots.Load(), c)
	t.used++
	t.live++
	return c
}

// rebuild drops tombstones and makes room. Readers go on in the old array, which stays as it was.
func (t *Table) rebuild() {
	old := *t.slots.Load()
	size := minSlots
	for size < 4*(t.live+1) {
		size *= 2
	}
	fresh := make([]atomic.Pointer[Counter], size)
	for i := range old {
		if c := old[i].Load(); c != nil && c != tombstone {
			t.place(fresh, c)
		}
	}
	t.used = t.live
	t.slots.Store(&fresh)
}

func (t *Table) place(slots []atomic.Pointer[Counter], c *Counter) {
	i := hash(c.Imm, len(slots))
	for slots[i].Load() != nil {
		i = (i + 1) & (len(slots) - 1)
	}
	slots[i].Store(c)
}

// hash spreads values over a power of two of slots: Fibonacci hashing (Knuth, vol. 3, 6.4). Users' values are mostly consecutive.
func hash(imm uint32, slots int) int {
	return int((uint64(imm)*0x9e3779b97f4a7c15)>>32) & (slots - 1)
}

// count adds one to the part of src. Sources are few per value, so a list beats a map.
// hot:
func (c *Counter) count(src *Source) {
	if list := c.from.Load(); list != nil {
		for _, f := range *list {
			if f.src == src {
				f.n.Add(1)
				return
			}
		}
	}
	c.addSource(src).n.Add(1)
}

// addSource copies the list: only the first arrival from a source pays.
func (c *Counter) addSource(src *Source) *fromCount {
	fresh := &fromCount{src: src}
	for {
		old := c.from.Load()
		var list []*fromCount
		if old != nil {
			for _, f := range *old {
				if f.src == src {
					return f // another worker of the same engine was faster
				}
			}
			list = append(list, *old...)
		}
		list = append(list, fresh)
		if c.from.CompareAndSwap(old, &list) {
			return fresh
		}
	}
}
