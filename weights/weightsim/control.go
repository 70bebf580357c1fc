package weightsim

import (
	"fmt"
	"time"
)

// control is the push as the controller sees it: the messages of the protocol, as far as they take time. It is a model of the protocol,
// not the protocol: nothing is lost, and everybody answers.
type control struct {
	server
	pubs  []*publisher
	rcvs  []*receiver
	epoch uint32
	stale int

	lost []int // ranks of dead publishers

	waiting  int // answers that are not there yet
	prepared int
	pushed   int
	done     bool
	total    time.Duration
}

// begin opens an epoch: BEGIN to every receiver, GRANT back, START to every publisher when all have granted.
func (c *control) begin() {
	c.waiting, c.prepared, c.pushed = len(c.rcvs), 0, 0
	for _, r := range c.rcvs {
		r.full = func() { c.full(r) }
		c.tell(r.h, func() { c.hear(r.h, c.granted) })
	}
}

func (c *control) granted() {
	if c.waiting--; c.waiting > 0 {
		return
	}
	for _, p := range c.pubs {
		if p.h.dead {
			continue
		}
		p.ended = func() { c.hear(p.h, c.publisherEnded) }
		c.tell(p.h, p.begin)
	}
	for _, r := range c.rcvs {
		if r.open == 0 {
			c.full(r)
		}
	}
}

// publisherEnded takes PUSHED. With the last one the digests of the last stages are known, which receivers wait for.
func (c *control) publisherEnded() {
	if c.pushed++; c.pushed == c.alive() {
		c.digests()
	}
}

func (c *control) alive() (n int) {
	for _, p := range c.pubs {
		if !p.h.dead {
			n++
		}
	}
	return n
}

// full: a receiver has counted everything.
func (c *control) full(*receiver) {
	if c.prepared++; c.prepared == len(c.rcvs) {
		c.w.lastByte = c.w.now()
		c.digests()
	}
}

// digests sends every receiver the digests of the last stages, when all publishers have reported and all receivers have everything: a
// receiver that is early waits for its last stage anyway. Then PREPARED, the decision, COMMIT, DONE.
func (c *control) digests() {
	if c.pushed < c.alive() || c.prepared < len(c.rcvs) {
		return
	}
	c.round(func() {
		c.w.after(c.w.o.Decide, func() {
			c.round(func() { c.done, c.total = true, c.w.now() })
		})
	})
}

// round is a message to every receiver and its answer.
func (c *control) round(then func()) {
	c.waiting = len(c.rcvs)
	for _, r := range c.rcvs {
		c.tell(r.h, func() {
			c.hear(r.h, func() {
				if c.waiting--; c.waiting == 0 {
					then()
				}
			})
		})
	}
}

// publisher is that of a rank, nil if it is lost.
func (c *control) publisher(rank int) *publisher {
	if h := c.w.byName[fmt.Sprintf("train-%d", rank)]; h != nil && !h.dead {
		return h.pub
	}
	return nil
}
