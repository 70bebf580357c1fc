package hawser

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
)

// waiter is somebody who waits for a count. Guarded by the counter's mu until it has ended, which happens once.
type waiter struct {
	n       uint64        // the count; for Expect, the lowest at which the debts can be paid
	debts   []debt        // of Expect
	ch      chan struct{} // of capacity 1; several waiters of WaitAny share it
	close   bool          // close ch instead: it belongs to a caller of Done
	call    func()        // of OnReach, instead of ch
	stopped atomic.Bool   // call is not wanted any more
	err     error         // why it ended without the count; set before ch
}

var waiterPool = sync.Pool{New: func() any { return &waiter{ch: make(chan struct{}, 1)} }}

// end tells the waiter that the count is reached, or why it will not be. Needs the counter's mu.
func (w *waiter) end(e *Engine, err error) {
	e.waits.Add(-1)
	w.err = err
	switch {
	case w.call != nil && err == nil:
		e.calls.add(func() {
			if !w.stopped.Load() && !e.closing.Load() { // memory that the call may look at is about to go
				w.call()
			}
		})
	case w.call != nil:
	case w.close:
		close(w.ch)
	default:
		signal(w.ch)
	}
}

// add makes w end when the count reaches w.n, or when the counter or the engine closes.
func (c *Counter) add(w *waiter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiters = append(c.waiters, w)
	c.e.waits.Add(1)
	c.settle()
	if c.gone != nil {
		c.abandon(c.gone)
	}
	select {
	case <-c.e.done:
		c.abandon(errNoEngine) // Close may have been here before us
	default:
	}
}

// errNoEngine is ErrClosed for those who wait.
var errNoEngine = fmt.Errorf("engine: %w", ErrClosed)

// await waits for the end of a waiter that was added, and takes it back when ctx ends first.
func (c *Counter) await(ctx context.Context, w *waiter) error {
	select {
	case <-w.ch:
		return w.err
	case <-ctx.Done():
		if c.remove(w) {
			return context.Cause(ctx)
		}
		<-w.ch // it ended in the meantime
		return w.err
	}
}

// remove takes w back and reports whether it was still waiting.
func (c *Counter) remove(w *waiter) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, x := range c.waiters {
		if x == w {
			c.waiters = append(c.waiters[:i], c.waiters[i+1:]...)
			c.e.waits.Add(-1)
			c.settle()
			return true
		}
	}
	return false
}

// abandon ends all waits. Needs mu.
func (c *Counter) abandon(err error) {
	for _, w := range c.waiters {
		w.end(c.e, err)
	}
	c.waiters = nil
	c.c.SetThreshold(math.MaxUint64)
}

// close is called when the engine has closed.
func (c *Counter) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.abandon(errNoEngine)
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
			if w.debts != nil {
				w.n = n + c.owed(w.debts) // what is owed is counted after n, so the count reaches this when all is paid, or before
			}
			if w.n <= n {
				w.end(c.e, nil)
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

// short says how far the count is from n.
func (c *Counter) short(n uint64) string {
	return fmt.Sprintf("counter %#x: %d of %d", c.c.Imm, c.c.Load(), n)
}

// Reach is a counter and the count that somebody waits for.
type Reach struct {
	Counter *Counter
	N       uint64
}

// WaitAll waits until every count of the set is reached. An error names those that are not.
func WaitAll(ctx context.Context, set ...Reach) error {
	for _, r := range set {
		if err := r.Counter.Wait(ctx, r.N); err != nil {
			return fmt.Errorf("wait for %d counters: %s%w", len(set), others(set, r), err)
		}
	}
	return nil
}

// maxNamed is how many names an error lists. What it is about holds them all, where that matters.
const maxNamed = 8

// others lists the members of a set that are not reached, but for the one that an error tells about.
func others(set []Reach, told Reach) string {
	var b strings.Builder
	named, more := 0, 0
	for _, r := range set {
		switch {
		case r == told || r.Counter.Load() >= r.N:
		case named == maxNamed:
			more++
		default:
			named++
			b.WriteString(r.Counter.short(r.N) + ", ")
		}
	}
	if more > 0 {
		fmt.Fprintf(&b, "%d more, ", more)
	}
	return b.String()
}

// WaitAny waits until one count of the set is reached and returns its index, the lowest when there are several.
func WaitAny(ctx context.Context, set ...Reach) (int, error) {
	if len(set) == 0 {
		return 0, fmt.Errorf("wait for any of 0 counters: %w", ErrInvalid)
	}
	ch, ws := make(chan struct{}, 1), make([]*waiter, len(set))
	for i, r := range set {
		ws[i] = &waiter{n: r.N, ch: ch}
		r.Counter.add(ws[i])
	}
	var err error
	select {
	case <-ch:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	reached := -1
	for i, r := range set {
		if !r.Counter.remove(ws[i]) && reached < 0 { // it has ended
			if ws[i].err == nil {
				reached = i
			} else {
				err = ws[i].err
			}
		}
	}
	if reached < 0 {
		return 0, fmt.Errorf("wait for any of %d counters, first %s: %w", len(set), set[0].Counter.short(set[0].N), err)
	}
	return reached, nil
}
