package hawser

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser/internal/cpu"
	"github.com/hawser-project/hawser/internal/record"
)

// note asks the dispatcher to call fire. It is embedded in what it is about, so that pushing it costs no memory; pushing
// it again before it has fired does nothing.
type note struct {
	next   *note
	queued atomic.Bool
	at     int64 // when it was left, of record.Now; 0: it is not followed
	target interface{ fire() }
}

// dispatcher wakes the goroutines that wait for what the worker did. Readying a goroutine puts it on the processor of whoever
// does it, behind the worker's own loop. So the worker only leaves notes while it is busy; when it has nothing else to do
// it fires them itself and gives its processor away, which is the shortest way there is. When it stays busy, it wakes the
// dispatcher's goroutine, by an eventfd that the runtime sees on whatever processor is free.
//
// push and leave may be called by anyone.
type dispatcher struct {
	head     atomic.Pointer[note]
	left     atomic.Uint32 // notes
	sleeping atomic.Bool
	stopped  atomic.Bool
	firing   sync.Mutex       // held while notes fire: one after the other, in order
	waited   record.Histogram // of notes that are followed, from leaving to firing; guarded by firing
	parker   *cpu.Parker
	done     chan struct{}
}

func newDispatcher() (*dispatcher, error) {
	p, err := cpu.NewParker()
	if err != nil {
		return nil, err
	}
	d := &dispatcher{parker: p, done: make(chan struct{})}
	go d.run()
	return d, nil
}

// push leaves a note and makes sure that it fires soon.
func (d *dispatcher) push(n *note) {
	d.leave(n)
	d.wake()
}

// leave leaves a note for whoever fires next: the worker does when it is idle.
// hot:
func (d *dispatcher) leave(n *note) {
	if n.queued.Swap(true) {
		return
	}
	n.at = 0
	if d.left.Add(1)%noteEvery == 1 {
		n.at = record.Now()
	}
	for {
		h := d.head.Load()
		n.next = h
		if d.head.CompareAndSwap(h, n) {
			return
		}
	}
}

// noteEvery is of how many notes one is followed with the clock.
const noteEvery = 16

// pending reports whether notes wait.
// hot:
func (d *dispatcher) pending() bool { return d.head.Load() != nil }

// wake makes the dispatcher's goroutine fire what waits.
func (d *dispatcher) wake() {
	if d.sleeping.Load() { // pairs with the store in run: one of the two sees the other
		d.parker.Wake()
	}
}

func (d *dispatcher) run() {
	defer close(d.done)
	for {
		if d.fire() {
			continue
		}
		if d.stopped.Load() {
			return
		}
		d.sleeping.Store(true)
		if !d.pending() && !d.stopped.Load() {
			d.parker.Park(time.Minute)
		}
		d.sleeping.Store(false)
	}
}

// fire fires all notes that wait, oldest first, and reports whether there were any.
func (d *dispatcher) fire() bool {
	d.firing.Lock()
	defer d.firing.Unlock()
	var oldest *note
	for n := d.head.Swap(nil); n != nil; {
		next := n.next
		n.next, oldest = oldest, n
		n = next
	}
	found := oldest != nil
	for n := oldest; n != nil; {
		next := n.next // before queued is cleared: from then on the note may be left again
		if n.at != 0 {
			d.waited.Add(record.Now() - n.at)
		}
		n.queued.Store(false)
		n.target.fire()
		n = next
	}
	return found
}

// latency is how long notes waited to fire.
func (d *dispatcher) latency() record.Histogram {
	d.firing.Lock()
	defer d.firing.Unlock()
	return d.waited
}

// stop fires what is left and joins the goroutine. Nobody pushes any more.
func (d *dispatcher) stop() {
	d.stopped.Store(true)
	d.parker.Wake()
	<-d.done
	_ = d.parker.Close()
}

// callbacks runs users' functions in order, on a goroutine of its own: a slow one delays others like it, and nothing else. One that
// panics, or ends its goroutine, is reported and counted, and the next one runs.
type callbacks struct {
	log *slog.Logger
	ran runs

	mu     sync.Mutex
	queue  []func()      // guarded by mu
	closed bool          // guarded by mu
	more   chan struct{} // capacity 1: queue or closed has changed
	done   chan struct{}
}

func newCallbacks(log *slog.Logger) *callbacks {
	c := &callbacks{log: log, more: make(chan struct{}, 1), done: make(chan struct{})}
	go c.loop()
	return c
}

func (c *callbacks) add(f func()) {
	c.mu.Lock()
	c.queue = append(c.queue, f)
	c.mu.Unlock()
	signal(c.more)
}

// next is the oldest function, nil when there is none; over when there will be none any more.
func (c *callbacks) next() (f func(), over bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.queue) == 0 {
		c.queue = nil
		return nil, c.closed
	}
	f, c.queue[0] = c.queue[0], nil
	c.queue = c.queue[1:]
	return f, false
}

func (c *callbacks) loop() {
	ended := false
	defer func() {
		if ended {
			close(c.done)
		} else {
			go c.loop() // a user's function has called runtime.Goexit
		}
	}()
	for {
		f, over := c.next()
		switch {
		case f != nil:
			c.call(f)
		case over:
			ended = true
			return
		default:
			<-c.more
		}
	}
}

// call runs one function.
func (c *callbacks) call(f func()) {
	start := time.Now()
	defer func() {
		c.ran.add(time.Since(start))
		if p := recover(); p != nil {
			c.report("a callback has panicked", p, debug.Stack())
		}
	}()
	f()
}

// report logs a panic of a user's function. The log is a user's too.
func (c *callbacks) report(text string, p any, stack []byte) {
	c.ran.panics.Add(1)
	defer func() {
		if recover() != nil {
			c.ran.panics.Add(1)
		}
	}()
	c.log.Error(text, "panic", p, "stack", string(stack))
}

// stop runs what is queued and joins the goroutine, unless a user's function does not return: then the error says so, graceTime
// after the end of ctx.
func (c *callbacks) stop(ctx context.Context) error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	signal(c.more)
	if !await(ctx, c.done) {
		return fmt.Errorf("%w: a callback does not return", ErrBusy)
	}
	return nil
}

// runs counts the runs of users' functions on one goroutine.
type runs struct {
	n, panics atomic.Uint64
	slowest   atomic.Int64 // nanoseconds; only that goroutine writes it
}

// add counts one that took d.
func (r *runs) add(d time.Duration) {
	r.n.Add(1)
	r.slowest.Store(max(r.slowest.Load(), int64(d)))
}

func (r *runs) stats() CallbackStats {
	return CallbackStats{Run: r.n.Load(), Panics: r.panics.Load(), Slowest: time.Duration(r.slowest.Load())}
}

// await waits for done until graceTime after the end of ctx, and reports whether it came.
func await(ctx context.Context, done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-ctx.Done():
	}
	grace := time.NewTimer(graceTime)
	defer grace.Stop()
	select {
	case <-done:
		return true
	case <-grace.C:
		return false
	}
}

// graceTime is for callbacks that are about to return when the time of Close is over.
const graceTime = time.Second

// signal fills a channel of capacity 1.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
