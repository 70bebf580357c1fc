package imm

import (
	"errors"
	"iter"
	"sync"
	"sync/atomic"
)

// MaxUnasked is how many values one source may create before anybody asks for them. Without a limit a peer could fill
// our memory with counters that nobody wants.
const MaxUnasked = 65536

// ErrUnasked says that a source created too many values that nobody asked for.
var ErrUnasked = errors.New("more than 65536 immediate values that nobody asked for")

// maxOrphans is how many values that nobody asked for are kept of sources that are gone, all together. Without a limit a peer could fill
// our memory by coming under one identity after the other.
const maxOrphans = MaxUnasked

// Table maps values to counters. Safe for concurrent use.
type Table struct {
	mu    sync.Mutex // taken to add and remove values, not to count
	slots atomic.Pointer[[]atomic.Pointer[Counter]]
	used  int // slots that are not nil, tombstones included; guarded by mu
	live  int // counters in slots; guarded by mu

	orphans int // counters that nobody asked for, of sources that are not attached; guarded by mu

	ranges []*Range // all; guarded by mu
	dense  atomic.Pointer[[]*Range]
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

// Add counts one immediate from src. It reports the counter when the count has reached the threshold, or when it has marks. ErrUnasked: the
// value is new and src has created too many. ErrStale: the value is managed and not open. Then it is not counted.
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
	if n := c.n.Add(1); n >= c.alarm.Load() {
		if c.condemned.Load() {
			return t.recount(src, c, n)
		}
		if c.reached(n) {
			return c, nil
		}
	}
	return nil, nil
}

// Counter returns the counter of imm, which lives from its first arrival or its first asker on. It returns nil for a managed value
// that is not open.
func (t *Table) Counter(imm uint32) *Counter {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.find(imm)
	if c == nil && t.managed(imm) {
		return nil
	}
	if c == nil {
		c = t.insert(imm)
	}
	t.disown(c)
	return c
}

// disown is called when somebody has asked for c, or when it goes. Needs mu.
func (t *Table) disown(c *Counter) {
	if c.creator == nil {
		return
	}
	c.creator.unasked.Add(-1)
	if c.creator.attached == 0 {
		t.orphans--
	}
	c.creator = nil
}

// Attach says that immediates may come from src. It is called before the first one, and once for each Detach.
func (t *Table) Attach(src *Source) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if src.attached++; src.attached == 1 {
		t.orphans -= int(src.unasked.Load())
	}
}

// Detach says that nothing comes from src any more. When sources that are gone have left too many values that nobody has asked for,
// and nobody else has counted, all of those are forgotten.
func (t *Table) Detach(src *Source) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if src.attached--; src.attached > 0 {
		return
	}
	if t.orphans += int(src.unasked.Load()); t.orphans <= maxOrphans {
		return
	}
	for c := range t.all() {
		if c.creator != nil && c.creator.attached == 0 {
			t.drop(c)
		}
	}
	t.rebuild() // the table gets small again
}

// drop removes a counter that its creator has left, unless another source counts it, whose it is then. An Add that is under way either
// shows in the shares, or sees that c is condemned: it stores its share before it loads the alarm, and we the other way round. Needs mu.
func (t *Table) drop(c *Counter) {
	c.condemned.Store(true)
	c.alarm.Store(0)
	for _, s := range *c.from.Load() {
		if s.src.attached > 0 {
			t.disown(c)
			c.creator = s.src
			s.src.unasked.Add(1)
			c.SetThreshold(c.threshold.Load())
			c.condemned.Store(false)
			return
		}
	}
	t.remove(c)
}

// recount ends an Add whose counter was condemned: it is counted there if that was kept, else anew.
func (t *Table) recount(src *Source, c *Counter, n uint64) (due *Counter, err error) {
	t.mu.Lock()
	kept := t.find(c.Imm) == c
	t.mu.Unlock()
	switch {
	case !kept:
		return t.Add(src, c.Imm)
	case c.reached(n):
		return c, nil
	}
	return nil, nil
}

// Remove frees the value of c, which does not lie in a block: the next arrival or asker starts at 0. Safe to call twice.
func (t *Table) Remove(c *Counter) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.remove(c)
}

// remove needs mu.
func (t *Table) remove(c *Counter) {
	slots := *t.slots.Load()
	for i := hash(c.Imm, len(slots)); ; i = (i + 1) & (len(slots) - 1) {
		switch slots[i].Load() {
		case nil:
			return
		case c:
			slots[i].Store(tombstone)
			t.live--
			t.disown(c)
			return
		}
	}
}

// Len is the number of counters, those of open blocks included.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.live
	for _, r := range t.ranges {
		n += int(r.opened.Load()) << max(r.BlockBits, 0)
	}
	return n
}

// Each calls f for every counter, those of open blocks included. f must not call the table.
func (t *Table) Each(f func(*Counter)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := range t.all() {
		f(c)
	}
	for _, r := range t.ranges {
		for i := range r.blocks {
			if b := r.blocks[i].Load(); b != nil {
				for j := range b.Counters {
					f(&b.Counters[j])
				}
			}
		}
	}
}

// all are the counters in slots. Needs mu.
func (t *Table) all() iter.Seq[*Counter] {
	return func(yield func(*Counter) bool) {
		slots := *t.slots.Load()
		for i := range slots {
			if c := slots[i].Load(); c != nil && c != tombstone && !yield(c) {
				return
			}
		}
	}
}

// hot:
func (t *Table) find(imm uint32) *Counter {
	if dense := t.dense.Load(); dense != nil {
		for _, r := range *dense {
			if r.Has(imm) {
				return r.find(imm)
			}
		}
	}
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
	if t.managed(imm) {
		src.stale.Add(1)
		return nil, ErrStale
	}
	if src.unasked.Load() >= MaxUnasked {
		return nil, ErrUnasked
	}
	src.unasked.Add(1)
	if src.attached == 0 {
		t.orphans++
	}
	c := t.insert(imm)
	c.creator = src
	return c, nil
}

// insert needs mu and a value that is not in the table.
func (t *Table) insert(imm uint32) *Counter {
	if n := len(*t.slots.Load()); (t.used+1)*2 > n {
		t.rebuild()
	}
	c := &Counter{}
	c.init(imm)
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
