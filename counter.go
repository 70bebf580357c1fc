package hawser

import (
	"context"
	"fmt"
	"sync"

	"github.com/hawser-project/hawser/internal/imm"
)

// Counter counts the arrivals of one immediate. It counts from the first arrival, whoever comes first, and only grows:
// waiting subtracts nothing, so a user of many rounds waits for round times count. When Load reports n, the bytes of n
// writes are there.
type Counter struct {
	note
	e    *Engine
	c    *imm.Counter
	kind counterKind
	bell *Bell // of its block, nil without

	mu      sync.Mutex
	waiters []*waiter        // guarded by mu
	gone    error            // why it counts no more; guarded by mu
	mirror  *Region          // guarded by mu
	rounds  map[*Peer]uint64 // of Barrier: signals that were waited for; guarded by mu
}

// counterKind says who closes a counter.
type counterKind uint8

const (
	openCounter  counterKind = iota // its user
	takenCounter                    // Imms.Put
	blockCounter                    // Block.Close
)

// Counter returns the counter of an immediate. The same value gives the same Counter until it is closed. The counter of a managed
// value that is not open (see Imms) counts nothing, and waits for it end at once with ErrClosed.
func (e *Engine) Counter(v uint32) *Counter {
	e.counterMu.Lock()
	defer e.counterMu.Unlock()
	ic := e.imms.Counter(v)
	if ic == nil {
		return &Counter{e: e, c: &imm.Counter{Imm: v}, gone: fmt.Errorf("%w: its value is managed and not open", ErrClosed)}
	}
	if c, ok := ic.Owner.(*Counter); ok {
		return c
	}
	c := &Counter{}
	c.count(e, ic, openCounter)
	return c
}

// count makes c the owner of ic, before any threshold is set, so that the worker finds it. Needs counterMu, unless nobody knows ic yet.
func (c *Counter) count(e *Engine, ic *imm.Counter, kind counterKind) {
	c.e, c.c, c.kind, c.target = e, ic, kind, c
	ic.Owner = c
}

// arrived is called by the worker when somebody wants to know of an arrival.
// hot:
func (c *Counter) arrived() {
	if c.bell != nil {
		c.bell.toll()
		if !c.c.Due() {
			return
		}
	}
	c.e.notes.leave(&c.note)
}

// Imm is the value that is counted.
func (c *Counter) Imm() uint32 { return c.c.Imm }

// Load is the count: the bytes of so many writes can be read by the caller. It never waits.
func (c *Counter) Load() uint64 { return c.c.Load() }

// From is the part of the count that p sent. It may be ahead of an earlier Load, never behind it.
func (c *Counter) From(p *Peer) uint64 { return c.c.From(&p.source) }

// Wait waits until the count is at least n. It ends early with ctx, or with ErrClosed when the counter or the engine closes.
func (c *Counter) Wait(ctx context.Context, n uint64) error {
	if c.e.spin(func() bool { return c.c.Load() >= n }) {
		return nil
	}
	w := waiterPool.Get().(*waiter)
	w.n, w.err = n, nil
	c.add(w)
	err := c.await(ctx, w)
	waiterPool.Put(w)
	if err != nil {
		return fmt.Errorf("%s: %w", c.short(n), err)
	}
	return nil
}

// Done is closed when the count is at least n, or when the counter or the engine closes.
func (c *Counter) Done(n uint64) <-chan struct{} {
	w := &waiter{n: n, ch: make(chan struct{}), close: true}
	c.add(w)
	return w.ch
}

// OnReach calls f once, when the count is at least n, on the goroutine of the engine that calls all callbacks, one at a time: a slow f
// delays other callbacks and nothing else, and one that panics is logged and counted (Stats.Callbacks). f is not called when the
// counter closes before, nor once Engine.Close was called. stop takes it back; a call may be under way when stop returns.
func (c *Counter) OnReach(n uint64, f func()) (stop func()) {
	w := &waiter{n: n, call: f}
	c.add(w)
	return func() {
		w.stopped.Store(true)
		c.remove(w)
	}
}

// Close frees the value: the next arrival, or Engine.Counter, starts at 0. Waits end with ErrClosed, and so does a Mirror. Close it
// only when no write that carries the value is under way: a late one would count for the next use. The counter of a value that was
// taken is given back; one of a Block closes with its block, and Close does nothing.
func (c *Counter) Close() {
	switch c.kind {
	case openCounter:
		c.e.counterMu.Lock()
		c.e.imms.Remove(c.c)
		c.e.counterMu.Unlock()
		c.retire()
	case takenCounter:
		_ = c.e.managed.Put(c) // an error says that it is closed
	case blockCounter:
	}
}

// retire ends all use of a counter. It reports false when that has happened before.
func (c *Counter) retire() bool {
	c.mu.Lock()
	first := c.gone == nil
	if first {
		c.gone = fmt.Errorf("counter: %w", ErrClosed)
		c.abandon(c.gone)
	}
	c.mu.Unlock()
	c.unmirror()
	return first
}
