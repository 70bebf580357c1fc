package ring

import (
	"math/bits"
	"sync/atomic"
)

// Funnel is a bounded queue for any number of producers and one consumer, which takes elements without a locked instruction. Push may be
// called by anyone; the consumer owns the rest.
type Funnel[T any] struct {
	mask  uint64
	cells []cell[T]
	_     [64]byte // what producers write and what the consumer writes are on lines of their own
	tail  atomic.Uint64
	_     [56]byte
	head  atomic.Uint64 // = next, or behind it: the room that producers know of
	_     [56]byte
	next  uint64
}

// handBack is after how many elements the consumer tells the producers of the room, at the latest.
const handBack = 64

// NewFunnel makes a funnel for at least n elements, rounded up to a power of two.
func NewFunnel[T any](n int) *Funnel[T] {
	size := uint64(1) << bits.Len(uint(max(n, 2)-1))
	return &Funnel[T]{mask: size - 1, cells: make([]cell[T], size)}
}

// Push adds v and reports false when the funnel is full.
// hot:
func (q *Funnel[T]) Push(v T) bool {
	for {
		pos := q.tail.Load()
		switch n := int64(pos - q.head.Load()); {
		case n < 0: // others have pushed meanwhile, and it was taken
			continue
		case n > int64(q.mask):
			return false
		}
		if q.tail.CompareAndSwap(pos, pos+1) {
			c := &q.cells[pos&q.mask]
			c.v = v // the load of head has acquired the cell
			c.seq.Store(pos + 1)
			return true
		}
	}
}

// Pop takes the oldest element and reports false when there is none, or when its producer is not done yet.
// hot:
func (q *Funnel[T]) Pop() (v T, ok bool) {
	c := &q.cells[q.next&q.mask]
	if c.seq.Load() != q.next+1 {
		q.Publish()
		return v, false
	}
	var zero T
	v, c.v = c.v, zero
	q.next++
	if q.next%handBack == 0 {
		q.Publish()
	}
	return v, true
}

// Publish tells the producers of the room. Pop does it when it finds nothing, and now and then.
// hot:
func (q *Funnel[T]) Publish() {
	if q.head.Load() != q.next {
		q.head.Store(q.next)
	}
}

// Empty reports whether Pop would find nothing. A producer in the middle of Push counts as something.
// hot:
func (q *Funnel[T]) Empty() bool { return q.next == q.tail.Load() }
