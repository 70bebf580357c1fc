package hawser

import (
	"context"
	"fmt"
	"math"
	"sync"

	"github.com/hawser-project/hawser/internal/imm"
)

// Counter counts the arrivals of one immediate. It counts from the first arrival, whoever comes first, and only grows:
// waiting subtracts nothing, so a user of many rounds waits for round times count. When Load reports n, the bytes of n
// writes are there.
type Counter struct {
	note
	e *Engine
	c *imm.Counter

	mu      sync.Mutex
	waiters []*waiter // guarded by mu
}

type waiter struct {
	n     uint64
	ch    chan struct{} // capacity 1, filled once per use
	close bool          // close ch instead: it belongs to a caller of Done
}

func (w *waiter) wake() {
	if w.close {
		close(w.ch)
	} else {
		w.ch <- struct{}{}
	}
}

var waiterPool = sync.Pool{New: func() any { return &waiter{ch: make(chan struct{}, 1)} }}

// Counter returns the counter of an immediate. The same value gives the same Counter until it is closed.
func (e *Engine) Counter(v uint32) *Counter {
	e.counterMu.Lock()
	defer e.counterMu.Unlock()
	ic := e.imms.Counter(v)
	if c, ok := ic.Owner.(*Counter); ok {
		return c
	}
	c := &Counter{e: e, c: ic}
	c.target = c
	ic.Owner = c // before any threshold is set, so the worker finds it
	return c
}

// Load is the count.
func (c *Counter) Load() uint64 { return c.c.Load() }

// From is the part of the count that p sent. It may be ahead of an earlier Load, never behind it.
func (c *Counter) From(p *Peer) uint64 { return c.c.From(&p.source) }

// Wait waits until the count is at least n.
func (c *Counter) Wait(ctx context.Context, n uint64) error {
	if spin(func() bool { return c.c.Load() >= n }) {
		return nil
	}
	w := waiterPool.Get().(*waiter)
	w.n = n
	c.add(w)
	var err error
	select {
	case <-w.ch:
		waiterPool.Put(w)
		return nil
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-c.e.done:
		err = fmt.Errorf("engine: %w", ErrClosed)
	}
	if c.remove(w) {
		waiterPool.Put(w)
	} else { // it fired in the meantime
		<-w.ch
		waiterPool.Put(w)
		return nil
	}
	return fmt.Errorf("counter %#x: %d of %d: %w", c.c.Imm, c.c.Load(), n, err)
}

// Done is closed when the count is at least n, or when the engine closes.
func (c *Counter) Done(n uint64) <-chan struct{} {
	w := &waiter{n: n, ch: make(chan struct{}), close: true}
	c.add(w)
	select {
	case <-c.e.done:
		c.abandon() // Close may have been here before us
	default:
	}
	return w.ch
}

// abandon ends the waits of Done when the engine has closed; Wait sees that by itself.
func (c *Counter) abandon() {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := c.waiters[:0]
	for _, w := range c.waiters {
		if w.close {
			close(w.ch)
		} else {
			kept = append(kept, w)
		}
	}
	c.waiters = kept
}

// Close frees the value: the next arrival, or Engine.Counter, starts at 0. Close it only when no write that carries the value is
// under way: a late one would count for the next use.
func (c *Counter) Close() {
	c.e.counterMu.Lock()
	defer c.e.counterMu.Unlock()
	c.e.imms.Remove(c.c)
}

// add makes the dispatcher fill w.ch when the count reaches w.n.
func (c *Counter) add(w *waiter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiters = append(c.waiters, w)
	c.settle()
}

// remove takes w back and reports whether it was still waiting.
func (c *Counter) remove(w *waiter) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, x := range c.waiters {
		if x == w {
			c.waiters = append(c.waiters[:i], c.waiters[i+1:]...)
			c.settle()
			return true
		}
	}
	return false
}

// fire is called by the dispatcher after the count reached the threshold.
func (c *Counter) fire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle()
}

// settle wakes who has waited long enough and sets the threshold for the others. It looks at the count again after setting the
// threshold, because the worker may have passed it before it could see it. Needs mu.
func (c *Counter) settle() {
	for {
		n, lowest, kept := c.c.Load(), uint64(math.MaxUint64), c.waiters[:0]
		for _, w := range c.waiters {
			if w.n <= n {
				w.wake()
				continue
			}
			kept = append(kept, w)
			lowest = min(lowest, w.n)
		}
		clear(c.waiters[len(kept):])
		c.waiters = kept
		c.c.SetThreshold(lowest)
		if c.c.Load() < lowest {
			return
		}
	}
}
