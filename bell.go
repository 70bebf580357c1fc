package hawser

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// Bell wakes a goroutine that waits for many things at once, without allocating: it rings when an immediate arrives in a Block that was
// opened with it (Open), when an operation ends of a Queue that it made, and when Ring is called. Rung is read first, then whatever one waits
// for is looked at, then one waits with what was read: nothing is missed.
type Bell struct {
	note
	e     *Engine
	ready chan struct{} // capacity 1: of Wait
	timer *time.Timer   // of Wait
	due   time.Time     // when timer fires, if it runs
	_     [line]byte

	rung   atomic.Uint64
	sleeps atomic.Pointer[chan struct{}] // what to fill at the next ring
	_      [line]byte
}

// NewBell makes a bell.
func (e *Engine) NewBell() *Bell {
	b := &Bell{e: e, ready: make(chan struct{}, 1), timer: time.NewTimer(time.Hour)}
	b.timer.Stop()
	b.target = b
	return b
}

// Open is Reserved.Open for a block whose arrivals ring the bell; Block.Changed says then where to look.
func (b *Bell) Open(r *Reserved, i int) (*Block, error) {
	if b.e != r.e {
		return nil, fmt.Errorf("open block %d of immediates %s: bell: %w: of another engine", i, r.r, ErrInvalid)
	}
	return r.open(i, b)
}

// NewQueue is Engine.NewQueue for a queue whose ends ring the bell.
func (b *Bell) NewQueue(depth int) *Queue {
	q := b.e.NewQueue(depth)
	q.bell = b
	return q
}

// Rung is how often it rang. Rings may be fewer than what they are about.
// hot:
func (b *Bell) Rung() uint64 { return b.rung.Load() }

// Ring rings. Anybody may.
func (b *Bell) Ring() {
	b.rung.Add(1)
	b.fire()
}

// toll is Ring for the worker.
// hot:
func (b *Bell) toll() {
	b.rung.Add(1)
	if b.sleeps.Load() != nil { // pairs with Arm
		b.e.notes.leave(&b.note)
	}
}

func (b *Bell) fire() {
	if c := b.sleeps.Swap(nil); c != nil {
		signal(*c)
	}
}

// Arm makes the first ring after the first seen ones fill c, of capacity 1, in place of whatever was to be filled before, or of a Wait.
// It reports false, and does nothing, if it has rung since. Nil: nothing is to be filled. *c does not change meanwhile.
// hot:
func (b *Bell) Arm(c *chan struct{}, seen uint64) bool {
	b.sleeps.Store(c)
	if c != nil && b.rung.Load() != seen {
		b.sleeps.CompareAndSwap(c, nil)
		return false
	}
	return true
}

// Wait waits until it has rung more often than seen, or until deadline, unless that is zero. One goroutine may wait at a time. The
// error is the cause of ctx, or ErrClosed when the engine closes.
// hot:
func (b *Bell) Wait(ctx context.Context, seen uint64, deadline time.Time) error {
	if b.e.spin(func() bool { return b.rung.Load() != seen }) || !b.Arm(&b.ready, seen) {
		return nil
	}
	var late <-chan time.Time
	if !deadline.IsZero() {
		if b.due.IsZero() || deadline.Before(b.due) { // else it fires early, and is set again then
			b.timer.Reset(time.Until(deadline))
			b.due = deadline
		}
		late = b.timer.C
	}
	var err error
	select {
	case <-b.ready:
	case <-late:
		b.due = time.Time{}
	case <-ctx.Done():
		err = fmt.Errorf("wait for bell: %w", context.Cause(ctx))
	case <-b.e.done:
		err = fmt.Errorf("wait for bell: engine: %w", ErrClosed)
	}
	b.sleeps.Store(nil)
	return err
}
