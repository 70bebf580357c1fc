package ring

import (
	"math/bits"
	"sync/atomic"
)

// Queue is a bounded queue for any number of producers and consumers that never blocks and never allocates after New. It is
// the array queue of Dmitry Vyukov: each cell carries a sequence number that says whose turn it is.
type Queue[T any] struct {
	mask  uint64
	cells []cell[T]
	_     [64]byte // what producers write and what consumers write are on lines of their own
	tail  atomic.Uint64
	_     [56]byte
	head  atomic.Uint64
	_     [56]byte
}

type cell[T any] struct {
	seq atomic.Uint64 // = position: free for the producer of that position; = position+1: full
	v   T
}

// NewQueue makes a queue for at least n elements, rounded up to a power of two.
func NewQueue[T any](n int) *Queue[T] {
	size := uint64(1) << bits.Len(uint(max(n, 2)-1))
	q := &Queue[T]{mask: size - 1, cells: make([]cell[T], size)}
	for i := range q.cells {
		q.cells[i].seq.Store(uint64(i))
	}
	return q
}

// Push adds v and reports false when the queue is full.
// hot:
func (q *Queue[T]) Push(v T) bool {
	for {
		pos := q.tail.Load()
		c := &q.cells[pos&q.mask]
		switch seq := c.seq.Load(); {
		case seq == pos:
			if q.tail.CompareAndSwap(pos, pos+1) {
				c.v = v
				c.seq.Store(pos + 1) // releases v to the consumer's load of seq
				return true
			}
		case seq < pos:
			return false
		}
	}
}

// Pop takes the oldest element and reports false when there is none, or when its producer is not done yet.
// hot:
func (q *Queue[T]) Pop() (v T, ok bool) {
	for {
		pos := q.head.Load()
		c := &q.cells[pos&q.mask]
		switch seq := c.seq.Load(); {
		case seq == pos+1:
			if q.head.CompareAndSwap(pos, pos+1) {
				var zero T
				v, c.v = c.v, zero
				c.seq.Store(pos + q.mask + 1) // hands the cell to the producer of the next lap
				return v, true
			}
		case seq < pos+1:
			return v, false
		}
	}
}

// Empty reports whether Pop would find nothing. A producer in the middle of Push counts as something.
func (q *Queue[T]) Empty() bool { return q.head.Load() == q.tail.Load() }
