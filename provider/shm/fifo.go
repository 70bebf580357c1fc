package shm

// fifo is a growable ring. It allocates only when it holds more than ever before; zero is empty.
type fifo[T any] struct {
	buf        []T // len is a power of two
	head, tail uint
}

// fifoMin is the first capacity: most peers never have more queued.
const fifoMin = 16

func (q *fifo[T]) len() int { return int(q.tail - q.head) }

// at is the i-th oldest element, valid until the next push.
func (q *fifo[T]) at(i int) *T { return &q.buf[(q.head+uint(i))&uint(len(q.buf)-1)] }

// push adds an element and returns it to be filled; it holds an old value.
// hot:
func (q *fifo[T]) push() *T {
	if q.len() == len(q.buf) {
		q.grow()
	}
	v := &q.buf[q.tail&uint(len(q.buf)-1)]
	q.tail++
	return v
}

// drop removes the n oldest.
func (q *fifo[T]) drop(n int) { q.head += uint(n) }

// keep removes all but the n oldest.
func (q *fifo[T]) keep(n int) { q.tail = q.head + uint(n) }

func (q *fifo[T]) grow() {
	buf := make([]T, max(fifoMin, 2*len(q.buf)))
	n := q.len()
	for i := range n {
		buf[i] = *q.at(i)
	}
	q.buf, q.head, q.tail = buf, 0, uint(n)
}
