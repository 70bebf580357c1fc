package hawser

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/hawser-project/hawser/internal/ring"
)

// Transfer is one submitted operation. It ends when no byte of local memory is read for it any more.
type Transfer struct {
	note
	notes  *dispatcher
	ended  atomic.Bool
	waited atomic.Bool // somebody has asked for the channel
	err    error       // written before ended
	once   sync.Once
	ch     chan struct{}
	closed atomic.Bool // of ch
}

func (e *Engine) newTransfer() *Transfer {
	t := &Transfer{notes: e.notes}
	t.target = t
	return t
}

// complete is called once, by the worker.
// hot:
func (t *Transfer) complete(err error) {
	t.err = err
	t.ended.Store(true)
	if t.waited.Load() { // pairs with Done: it sees ended, or we see waited
		t.notes.leave(&t.note)
	}
}

// fire is called after ended and waited are set, by the dispatcher or by who set waited last.
func (t *Transfer) fire() {
	if !t.closed.Swap(true) {
		close(t.ch)
	}
}

// Done is closed when the transfer has ended.
func (t *Transfer) Done() <-chan struct{} {
	t.once.Do(func() {
		t.ch = make(chan struct{})
		t.waited.Store(true)
		if t.ended.Load() {
			t.fire() // not left to the dispatcher, which may have ended with the engine
		}
	})
	return t.ch
}

// Wait waits for the end and returns its error. A context that ends first ends the waiting only: the transfer goes on, and keeps
// its memory.
func (t *Transfer) Wait(ctx context.Context) error {
	if t.ended.Load() {
		return t.err
	}
	select {
	case <-t.Done():
		return t.err
	case <-ctx.Done():
		return fmt.Errorf("wait for transfer: %w", context.Cause(ctx))
	}
}

// Err is the error of a transfer that has ended, nil before.
func (t *Transfer) Err() error {
	if t.ended.Load() {
		return t.err
	}
	return nil
}

// Write submits a write. The request is checked here: an error means that nothing was written. ErrInvalid: an argument; ErrStale: the
// remote's session or region has ended; ErrPeerDown; ErrLimit: too much is in flight; ErrClosed: the engine, or the source.
func (e *Engine) Write(w Write) (*Transfer, error) {
	return e.start("write", func(o *op) error { return o.fillWrite(&w) })
}

// WritePages submits a write of pages; its errors are those of Write. No pages, and pages of no bytes, are legal.
func (e *Engine) WritePages(w WritePages) (*Transfer, error) {
	return e.start("write pages", func(o *op) error { return o.fillPages(&w) })
}

// Scatter submits writes to many targets. A fault in one of the arguments is an error here, and nothing is written; a target whose
// peer is down fails alone, at the end.
func (e *Engine) Scatter(s Scatter) (*Transfer, error) {
	return e.startScatter(len(s.Targets), nil, func(sc *scatter) error { return sc.fill(&s) })
}

// Signal submits an immediate without data. It needs no descriptor: any peer may send any immediate.
func (e *Engine) Signal(s Signal) (*Transfer, error) {
	return e.start("signal", func(o *op) error { return o.fillSignal(&s) })
}

// MaxMessage is the longest message in bytes.
const MaxMessage = 64 << 10

// Send submits a message of at most MaxMessage bytes. data is copied. Messages arrive at most once, in any order; a Send that
// fails may have been delivered.
func (e *Engine) Send(p *Peer, data []byte) (*Transfer, error) {
	return e.start("send", func(o *op) error { return o.fillSend(p, data) })
}

func (e *Engine) start(name string, fill func(*op) error) (*Transfer, error) {
	o, err := e.takeOp(name)
	if err != nil {
		return nil, err
	}
	if err := fill(o); err != nil {
		e.dropOp(o)
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	t := e.newTransfer()
	o.transfer = t
	if err := e.submit(o); err != nil {
		return nil, err
	}
	return t, nil
}

func (e *Engine) startScatter(n int, of *Template, fill func(*scatter) error) (*Transfer, error) {
	s, err := e.takeScatter(n, of)
	if err != nil {
		return nil, err
	}
	if err := fill(s); err != nil {
		s.drop()
		return nil, fmt.Errorf("scatter: %w", err)
	}
	t := e.newTransfer()
	s.transfer = t
	if err := s.submit(); err != nil {
		return nil, err
	}
	return t, nil
}

// Queue submits operations and collects their ends without allocating. Any goroutines may submit, and poll.
type Queue struct {
	note
	e      *Engine
	depth  int64
	open   atomic.Int64 // submitted and not yet polled
	ends   *ring.Queue[Done]
	waited atomic.Bool
	ready  chan struct{} // capacity 1
}

// Done is the end of an operation of a Queue.
type Done struct {
	Cookie uint64 // the submitter's
	Err    error
}

// NewQueue makes a queue for at most depth operations that are submitted and not yet polled.
func (e *Engine) NewQueue(depth int) *Queue {
	depth = max(depth, 1)
	q := &Queue{e: e, depth: int64(depth), ends: ring.NewQueue[Done](depth), ready: make(chan struct{}, 1)}
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
	sc, err := q.takeScatter(len(s.Targets), nil)
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
		sc, err := q.takeScatter(len(t.scatter.Targets), t)
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
	if n := q.open.Add(1); n > q.depth {
		q.open.Add(-1)
		return fmt.Errorf("%s: queue: %w: %d operations are not polled yet", name, ErrBusy, q.depth)
	}
	return nil
}

// hot:
func (q *Queue) takeScatter(n int, of *Template) (*scatter, error) {
	if err := q.reserve("scatter"); err != nil {
		return nil, err
	}
	s, err := q.e.takeScatter(n, of)
	if err != nil {
		q.open.Add(-1)
	}
	return s, err
}

// hot:
func (q *Queue) submitScatter(s *scatter, fault error, cookie uint64) error {
	if fault != nil {
		s.drop()
		q.open.Add(-1)
		return fmt.Errorf("scatter: %w", fault)
	}
	s.queue, s.cookie = q, cookie
	err := s.submit()
	if err != nil {
		q.open.Add(-1)
	}
	return err
}

// hot:
func (q *Queue) take(name string) (*op, error) {
	if err := q.reserve(name); err != nil {
		return nil, err
	}
	o, err := q.e.takeOp(name)
	if err != nil {
		q.open.Add(-1)
	}
	return o, err
}

// hot:
func (q *Queue) submit(o *op, fault error, cookie uint64) error {
	if fault != nil {
		name := o.name
		q.e.dropOp(o)
		q.open.Add(-1)
		return fmt.Errorf("%s: %w", name, fault)
	}
	o.queue, o.Cookie = q, cookie
	err := q.e.submit(o)
	if err != nil {
		q.open.Add(-1)
	}
	return err
}

// complete is called by the worker.
// hot:
func (q *Queue) complete(cookie uint64, err error) {
	for !q.ends.Push(Done{Cookie: cookie, Err: err}) { // it holds depth, but for the moment in which somebody is taking one
		runtime.Gosched()
	}
	if q.waited.Load() { // pairs with Wait
		q.e.notes.leave(&q.note)
	}
}

func (q *Queue) fire() { signal(q.ready) }

// Poll fills out with ends and returns how many. It never blocks.
// hot:
func (q *Queue) Poll(out []Done) int {
	for i := range out {
		d, ok := q.ends.Pop()
		if !ok {
			return i
		}
		q.open.Add(-1)
		out[i] = d
	}
	return len(out)
}

// Wait is Poll that waits for at least one end. One goroutine may wait at a time.
func (q *Queue) Wait(ctx context.Context, out []Done) (int, error) {
	for {
		if n := q.Poll(out); n > 0 || len(out) == 0 {
			return n, nil
		}
		if q.e.spin(func() bool { return !q.ends.Empty() }) {
			continue
		}
		q.waited.Store(true)
		if q.ends.Empty() {
			select {
			case <-q.ready:
			case <-q.e.done:
				if q.ends.Empty() {
					return 0, fmt.Errorf("wait for queue: engine: %w", ErrClosed)
				}
			case <-ctx.Done():
				return 0, fmt.Errorf("wait for queue: %w", context.Cause(ctx))
			}
		}
		q.waited.Store(false)
	}
}
