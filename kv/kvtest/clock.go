package kvtest

import "github.com/hawser-project/hawser/kv/proto"

// clock is virtual time and what is to happen in it. Events of one moment happen in the order in which they were made.
type clock struct {
	now  proto.Time
	last uint64  // number of the last event made
	heap []event // the next one first
}

type event struct {
	at proto.Time
	n  uint64
	f  func()
}

func (e *event) before(o *event) bool { return e.at < o.at || e.at == o.at && e.n < o.n }

// after makes f happen d from now.
func (c *clock) after(d proto.Time, f func()) {
	c.last++
	h := append(c.heap, event{c.now + max(d, 0), c.last, f})
	i := len(h) - 1
	for e := h[i]; i > 0; {
		up := (i - 1) / 2
		if !e.before(&h[up]) {
			break
		}
		h[i], h[up] = h[up], e
		i = up
	}
	c.heap = h
}

// next is when the next event is due.
func (c *clock) next() (proto.Time, bool) {
	if len(c.heap) == 0 {
		return 0, false
	}
	return c.heap[0].at, true
}

// pop takes the next event, of which there must be one, and sets the time to it.
func (c *clock) pop() func() {
	h := c.heap
	first := h[0]
	end := len(h) - 1
	e := h[end]
	h[end] = event{}
	h = h[:end]
	for i := 0; end > 0; {
		k := 2*i + 1
		if k+1 < end && h[k+1].before(&h[k]) {
			k++
		}
		if k >= end || !h[k].before(&e) {
			h[i] = e
			break
		}
		h[i] = h[k]
		i = k
	}
	c.heap = h
	c.now = max(c.now, first.at)
	return first.f
}
