//go:build cgo

package ofi

// fifo is a queue that keeps its room; it allocates only when it holds more than ever before.
type fifo[T any] struct {
	ring []T
	head int
	n    int
}

func (f *fifo[T]) len() int { return f.n }

// push appends v.
//
// hot:
func (f *fifo[T]) push(v T) {
	if f.n == len(f.ring) {
		f.grow()
	}
	f.ring[(f.head+f.n)&(len(f.ring)-1)] = v
	f.n++
}

func (f *fifo[T]) grow() {
	ring := make([]T, max(16, 2*len(f.ring)))
	for i := range f.n {
		ring[i] = *f.at(i)
	}
	f.ring, f.head = ring, 0
}

// pop removes the oldest.
//
// hot:
func (f *fifo[T]) pop() T {
	var zero T
	v := f.ring[f.head]
	f.ring[f.head] = zero
	f.head = (f.head + 1) & (len(f.ring) - 1)
	f.n--
	return v
}

// unpop puts v back before the oldest.
func (f *fifo[T]) unpop(v T) {
	if f.n == len(f.ring) {
		f.grow()
	}
	f.head = (f.head - 1) & (len(f.ring) - 1)
	f.ring[f.head] = v
	f.n++
}

// at is the i-th oldest.
func (f *fifo[T]) at(i int) *T { return &f.ring[(f.head+i)&(len(f.ring)-1)] }
