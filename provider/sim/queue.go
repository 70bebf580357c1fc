package sim

// queue is a first-in first-out ring that grows and keeps its memory.
type queue[T any] struct {
	buf     []T // a power of two long, or nil
	head, n int
}

func (q *queue[T]) len() int { return q.n }

func (q *queue[T]) push(v T) {
	if q.n == len(q.buf) {
		bigger := make([]T, max(16, 2*len(q.buf)))
		for i := range q.n {
			bigger[i] = q.buf[(q.head+i)&(len(q.buf)-1)]
		}
		q.buf, q.head = bigger, 0
	}
	q.buf[(q.head+q.n)&(len(q.buf)-1)] = v
	q.n++
}

// pop takes the oldest; the queue must not be empty.
func (q *queue[T]) pop() T {
	var zero T
	v := q.buf[q.head]
	q.buf[q.head] = zero
	q.head = (q.head + 1) & (len(q.buf) - 1)
	q.n--
	return v
}
