package hawser

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
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
	return e.startScatter(len(s.Targets), len(s.Targets), nil, func(sc *scatter) error { return sc.fill(&s) })
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

func (e *Engine) startScatter(n, taking int, of *Template, fill func(*scatter) error) (*Transfer, error) {
	s, err := e.takeScatter(n, taking, of)
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
