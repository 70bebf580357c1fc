package hawser

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser/internal/cpu"
)

// note asks the dispatcher to call fire. It is embedded in what it is about, so that pushing it costs no memory; pushing
// it again before it has fired does nothing.
type note struct {
	next   *note
	queued atomic.Bool
	target interface{ fire() }
}

// dispatcher wakes goroutines for the worker. A worker that readied goroutines itself would put them behind its own loop on
// its own processor; it pushes a note instead, and at most one eventfd write wakes this goroutine, wherever there is
// a free processor.
//
// push may be called by anyone; the rest is owned by run.
type dispatcher struct {
	head     atomic.Pointer[note]
	sleeping atomic.Bool
	stopped  atomic.Bool
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

// hot:
func (d *dispatcher) push(n *note) {
	if n.queued.Swap(true) {
		return
	}
	for {
		h := d.head.Load()
		n.next = h
		if d.head.CompareAndSwap(h, n) {
			break
		}
	}
	if d.sleeping.Load() { // pairs with the store in run: one of the two sees the other
		d.parker.Wake()
	}
}

func (d *dispatcher) run() {
	defer close(d.done)
	for {
		if d.drain() {
			continue
		}
		if d.stopped.Load() {
			return
		}
		d.sleeping.Store(true)
		if d.head.Load() == nil && !d.stopped.Load() {
			d.parker.Park(time.Minute)
		}
		d.sleeping.Store(false)
	}
}

// drain fires all notes that are there, oldest first.
func (d *dispatcher) drain() bool {
	var oldest *note
	for n := d.head.Swap(nil); n != nil; {
		next := n.next
		n.next, oldest = oldest, n
		n = next
	}
	any := oldest != nil
	for n := oldest; n != nil; {
		next := n.next // before queued is cleared: from then on the note may be pushed again
		n.queued.Store(false)
		n.target.fire()
		n = next
	}
	return any
}

// stop fires what is left and joins the goroutine. Nobody pushes any more.
func (d *dispatcher) stop() {
	d.stopped.Store(true)
	d.parker.Wake()
	<-d.done
	_ = d.parker.Close()
}

// callbacks runs users' functions in order, on a goroutine of its own: a slow one delays others like it, and nothing else.
type callbacks struct {
	mu     sync.Mutex
	queue  []func()
	closed bool
	more   chan struct{} // capacity 1: queue or closed has changed
	done   chan struct{}
}

func newCallbacks() *callbacks {
	c := &callbacks{more: make(chan struct{}, 1), done: make(chan struct{})}
	go c.run()
	return c
}

func (c *callbacks) add(f func()) {
	c.mu.Lock()
	c.queue = append(c.queue, f)
	c.mu.Unlock()
	signal(c.more)
}

func (c *callbacks) run() {
	defer close(c.done)
	for range c.more {
		c.mu.Lock()
		queue, closed := c.queue, c.closed
		c.queue = nil
		c.mu.Unlock()
		for _, f := range queue {
			f()
		}
		if closed && len(queue) == 0 {
			return
		}
		if closed {
			signal(c.more)
		}
	}
}

// stop runs what is queued and joins the goroutine.
func (c *callbacks) stop() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	signal(c.more)
	<-c.done
}

// signal fills a channel of capacity 1.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
