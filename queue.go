package hawser

import (
	"context"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
)

// Queue submits operations and collects their ends without allocating. Any goroutines may submit, and poll.
type Queue struct {
	note
	e     *Engine
	ready chan struct{} // capacity 1
	bell  *Bell         // nil: none
	ends  []end         // a ring; the worker writes those that are not published, whoever polls reads the others
	_     [line]byte    // what the worker writes and what its users write are on lines of their own

	mu     sync.Mutex // held for moments
	depth  int
	open   int           // submitted and not yet polled; guarded by mu
	free   []*op         // guarded by mu
	polled atomic.Uint64 // ends; guarded by mu, but for a first look
	waited atomic.Bool
	_      [line]byte

	next  uint64 // ends that the worker has written
	dirty bool   // some of them are not published: the worker knows
	tail  atomic.Uint64
	_     [line]byte
}

// line keeps apart what two cores write, bytes: two cache lines, because processors fetch them in pairs.
const line = 128

// end is the end of an operation on its way to whoever polls, with the operation, for its next use; nil for a scatter.
type end struct {
	Done
	o *op
}

// Done is the end of an operation of a Queue.
type Done struct {
	Cookie uint64 // the submitter's
	Err    error
}

// NewQueue makes a queue for at most depth operations that are submitted and not yet polled.
func (e *Engine) NewQueue(depth int) *Queue {
	depth = max(depth, 1)
	q := &Queue{e: e, depth: depth, ends: make([]end, 1<<bits.Len(uint(depth-1))), ready: make(chan struct{}, 1)}
	q.target = q
	return q
}

// Write is Engine.Write; cookie comes back in Done. ErrBusy: depth operations are unpolled.
// hot:
func (q *Queue) Write(w Write, cookie uint64) error {
	o, err := q.take("write")
	if err != nil {
		return err
	}
	return q.submit(o, o.fillWrite(&w), cookie)
}

// WritePages is Engine.WritePages; see Write.
// hot:
func (q *Queue) WritePages(w WritePages, cookie uint64) error {
	o, err := q.take("write pages")
	if err != nil {
		return err
	}
	return q.submit(o, o.fillPages(&w), cookie)
}

// Signal is Engine.Signal; see Write.
// hot:
func (q *Queue) Signal(s Signal, cookie uint64) error {
	o, err := q.take("signal")
	if err != nil {
		return err
	}
	return q.submit(o, o.fillSignal(&s), cookie)
}

// Send is Engine.Send; see Write.
// hot:
func (q *Queue) Send(p *Peer, data []byte, cookie uint64) error {
	o, err := q.take("send")
	if err != nil {
		return err
	}
	return q.submit(o, o.fillSend(p, data), cookie)
}

// Scatter is Engine.Scatter, and one end; see Write.
// hot:
func (q *Queue) Scatter(s Scatter, cookie uint64) error {
	sc, err := q.takeScatter(len(s.Targets), len(s.Targets), nil)
	if err != nil {
		return err
	}
	return q.submitScatter(sc, sc.fill(&s), cookie)
}

// Submit is Template.Submit; see Write.
// hot:
func (q *Queue) Submit(t *Template, a Args, cookie uint64) error {
	if t == nil || t.e != q.e {
		return fmt.Errorf("template: %w: none, or of another engine", ErrInvalid)
	}
	if t.kind == kindScatter {
		n := len(t.scatter.Targets)
		sc, err := q.takeScatter(n, a.taking(n), t)
		if err != nil {
			return err
		}
		return q.submitScatter(sc, t.fillScatter(sc, &a), cookie)
	}
	o, err := q.take(t.name)
	if err != nil {
		return err
	}
	return q.submit(o, t.fill(o, &a), cookie)
}

// reserve makes room for one end.
// hot:
func (q *Queue) reserve(name string) error {
	q.mu.Lock()
	if q.open == q.depth {
		q.mu.Unlock()
		return q.full(name)
	}
	q.open++
	q.mu.Unlock()
	return nil
}

func (q *Queue) full(name string) error {
	return fmt.Errorf("%s: queue: %w: %d operations are not polled yet", name, ErrBusy, q.depth)
}

// unreserve ends what reserve began, without an end.
func (q *Queue) unreserve() {
	q.mu.Lock()
	q.open--
	q.mu.Unlock()
}

// hot:
func (q *Queue) takeScatter(n, taking int, of *Template) (*scatter, error) {
	if err := q.reserve("scatter"); err != nil {
		return nil, err
	}
	s, err := q.e.takeScatter(n, taking, of)
	if err != nil {
		q.unreserve()
	}
	return s, err
}

// hot:
func (q *Queue) submitScatter(s *scatter, fault error, cookie uint64) error {
	if fault != nil {
		s.drop()
		q.unreserve()
		return fmt.Errorf("scatter: %w", fault)
	}
	s.queue, s.cookie = q, cookie
	err := s.submit()
	if err != nil {
		q.unreserve()
	}
	return err
}

// take makes room for one end and takes an operation.
// hot:
func (q *Queue) take(name string) (*op, error) {
	if err := q.e.count(name, 1); err != nil {
		return nil, err
	}
	var o *op
	q.mu.Lock()
	if q.open == q.depth {
		q.mu.Unlock()
		q.e.inflight.Add(-1)
		return nil, q.full(name)
	}
	q.open++
	if n := len(q.free) - 1; n >= 0 {
		o, q.free = q.free[n], q.free[:n]
	}
	q.mu.Unlock()
	if o == nil {
		o = q.e.newOp()
	}
	o.name, o.queue = name, q
	return o, nil
}

// putBack takes back an operation that was not submitted.
func (q *Queue) putBack(o *op) {
	q.mu.Lock()
	q.open--
	q.keep(o)
	q.mu.Unlock()
}

// keep keeps an operation for its next use. Needs mu.
// hot:
func (q *Queue) keep(o *op) {
	if len(q.free) < poolSize {
		q.free = append(q.free, o)
	}
}

// hot:
func (q *Queue) submit(o *op, fault error, cookie uint64) error {
	if fault != nil {
		name := o.name
		q.e.dropOp(o)
		return fmt.Errorf("%s: %w", name, fault)
	}
	o.Cookie = cookie
	return q.e.submit(o)
}

// complete is called by the worker. The end is there for others after publish.
// hot:
func (q *Queue) complete(o *op, cookie uint64, err error) {
	x := &q.ends[q.next&uint64(len(q.ends)-1)] // polled: at most depth operations are submitted and not polled
	x.Cookie, x.Err, x.o = cookie, err, o
	q.next++
	if !q.dirty {
		q.dirty = true
		q.e.worker.queues = append(q.e.worker.queues, q)
	}
}

// publish is called by the worker.
// hot:
func (q *Queue) publish() {
	q.dirty = false
	q.tail.Store(q.next)
	if q.bell != nil {
		q.bell.toll()
	}
	if q.waited.Load() { // pairs with Wait
		q.e.notes.leave(&q.note)
	}
}

func (q *Queue) fire() { signal(q.ready) }

// empty reports whether Poll would find nothing.
// hot:
func (q *Queue) empty() bool { return q.tail.Load() == q.polled.Load() }

// Poll fills out with ends and returns how many. It never blocks.
// hot:
func (q *Queue) Poll(out []Done) int {
	if q.empty() {
		return 0
	}
	q.mu.Lock()
	at := q.polled.Load()
	n := min(int(q.tail.Load()-at), len(out))
	for i := range n {
		x := &q.ends[(at+uint64(i))&uint64(len(q.ends)-1)]
		out[i] = x.Done
		if x.o != nil {
			q.keep(x.o)
		}
		x.Err, x.o = nil, nil
	}
	q.open -= n
	q.polled.Store(at + uint64(n))
	q.mu.Unlock()
	return n
}

// Wait is Poll that waits for at least one end. One goroutine may wait at a time.
func (q *Queue) Wait(ctx context.Context, out []Done) (int, error) {
	for {
		if n := q.Poll(out); n > 0 || len(out) == 0 {
			return n, nil
		}
		if q.e.spin(func() bool { return !q.empty() }) {
			continue
		}
		q.waited.Store(true)
		if q.empty() {
			select {
			case <-q.ready:
			case <-q.e.done:
				if q.empty() {
					return 0, fmt.Errorf("wait for queue: engine: %w", ErrClosed)
				}
			case <-ctx.Done():
				return 0, fmt.Errorf("wait for queue: %w", context.Cause(ctx))
			}
		}
		q.waited.Store(false)
	}
}
