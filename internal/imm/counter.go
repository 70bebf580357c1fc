package imm

import (
	"math"
	"sync/atomic"
)

// Source is who sends immediates. One per peer identity; its address is its identity.
type Source struct {
	unasked  atomic.Int64
	attached int // guarded by Table.mu
	stale    atomic.Uint64
	gone     atomic.Bool
}

// Stale is how many immediates of the source were not counted because their managed value was not open.
func (s *Source) Stale() uint64 { return s.stale.Load() }

// Leave says that nothing will come from the source any more and that nobody will ask for its part of a count: counters may forget it.
// Without it, a counter that is used for years would keep an entry for everybody who ever sent to it.
func (s *Source) Leave() { s.gone.Store(true) }

// Counter counts the arrivals of one value. Load and From may be called by anyone.
type Counter struct {
	Imm uint32

	// Owner is for the table's user, who sets it under its own lock.
	Owner any

	n         atomic.Uint64
	alarm     atomic.Uint64 // count from which on Add looks closer: threshold, or 0 with a mirror or marks, or while it is condemned
	condemned atomic.Bool   // Table.Detach is about to drop it
	threshold atomic.Uint64 // lowest count that somebody waits for
	from      atomic.Pointer[[]share]
	mirror    atomic.Pointer[atomic.Uint64]
	marks     *Marks  // of its block, if that has any; set before anybody knows c
	creator   *Source // while nobody has asked; guarded by Table.mu
}

// share is the part of a count that one source sent. The sources stand in the list itself: looking for one reads the list and nothing
// else.
type share struct {
	src *Source
	n   *atomic.Uint64
}

func (c *Counter) init(imm uint32) {
	c.Imm = imm
	c.SetThreshold(math.MaxUint64)
}

// Load is the number of immediates counted so far. Everything that their writes carried is visible to the caller.
func (c *Counter) Load() uint64 { return c.n.Load() }

// From is the part of Load that came from src.
func (c *Counter) From(src *Source) uint64 {
	if list := c.from.Load(); list != nil {
		for _, s := range *list {
			if s.src == src {
				return s.n.Load()
			}
		}
	}
	return 0
}

// SetThreshold makes Add report true from count n on. The caller must look at Load afterwards: the count may have passed n
// before the threshold was visible. math.MaxUint64 means that nobody waits. SetThreshold and Mirror are called one at a time.
func (c *Counter) SetThreshold(n uint64) {
	c.threshold.Store(n)
	if c.mirror.Load() == nil && c.marks == nil {
		c.alarm.Store(n)
	}
}

// Due reports whether the count has reached the threshold, which Add says of every arrival when the counter has marks.
func (c *Counter) Due() bool { return c.n.Load() >= c.threshold.Load() }

// reached is the rest of Add when the count has reached the alarm: it reports whether the threshold is reached.
// hot:
func (c *Counter) reached(n uint64) bool {
	if m := c.mirror.Load(); m != nil {
		raise(m, n)
	}
	if c.marks != nil {
		c.marks.set(c.Imm)
		return true
	}
	return n >= c.threshold.Load()
}

// Marks say which counters of a block have counted: one bit each.
type Marks struct {
	base  uint32
	words []atomic.Uint64
}

// set is called after the count, so that who takes the mark sees the count.
// hot:
func (m *Marks) set(imm uint32) {
	i := imm - m.base
	if w, bit := &m.words[i/64], uint64(1)<<(i%64); w.Load()&bit == 0 {
		w.Or(bit)
	}
}

// Len is the number of words, of 64 counters each.
func (m *Marks) Len() int { return len(m.words) }

// Take returns the marks of a word and takes them away. Counters are looked at afterwards.
// hot:
func (m *Marks) Take(word int) uint64 {
	if w := &m.words[word]; w.Load() != 0 {
		return w.Swap(0)
	}
	return 0
}

// count adds one to the part of src. Sources are few per value, so a list beats a map.
// hot:
func (c *Counter) count(src *Source) {
	if list := c.from.Load(); list != nil {
		for i := range *list {
			if s := &(*list)[i]; s.src == src {
				s.n.Add(1)
				return
			}
		}
	}
	c.addSource(src).Add(1)
}

// addSource copies the list, without the sources that are gone: only the first arrival from a source pays.
func (c *Counter) addSource(src *Source) *atomic.Uint64 {
	fresh := share{src: src, n: new(atomic.Uint64)}
	for {
		old := c.from.Load()
		var list []share
		if old != nil {
			for _, s := range *old {
				if s.src == src {
					return s.n // another worker of the same engine was faster
				}
				if !s.src.gone.Load() {
					list = append(list, s)
				}
			}
		}
		list = append(list, fresh)
		if c.from.CompareAndSwap(old, &list) {
			return fresh.n
		}
	}
}
