package weightsim

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hawser-project/hawser/internal/rail"
	"github.com/hawser-project/hawser/reshard"
)

// Fault is something that goes wrong during a push: the death of a trainer, or of one rail of any host.
type Fault struct {
	Place string        // "train-3": the process dies. "infer-0/nic2": the card dies, in silence
	At    time.Duration // after BEGIN,
	Share float64       // or, if that is 0, when this share of all bytes has landed
}

// RepairFunc makes the slices of a plan without the lost sources; verified are the stages that receivers have completely.
type RepairFunc func(lost []int, verified func(dst, stage int) bool) (sources, dests []*reshard.Slice, err error)

// injectFaults arms the faults of the options.
func (w *world) injectFaults() {
	if len(w.o.Faults) == 0 {
		return
	}
	w.tick()
	for _, x := range w.o.Faults {
		if x.At > 0 || x.Share == 0 {
			w.after(x.At, func() { w.strike(x) })
		} else {
			w.shares = append(w.shares, x)
		}
	}
}

// checkShares has the faults happen whose share has landed.
func (w *world) checkShares() {
	w.shares = slices.DeleteFunc(w.shares, func(x Fault) bool {
		due := float64(w.landed) >= x.Share*float64(w.plan.Bytes)
		if due {
			w.strike(x)
		}
		return due
	})
}

func (w *world) strike(x Fault) {
	name, nic, rail := strings.Cut(x.Place, "/")
	h := w.byName[name]
	switch {
	case h == nil || h.dead:
		w.fail("there is no %s that could fail", x.Place)
	case rail:
		w.o.note(w.now(), "%s/%s dies; peers notice after %v", name, nic, w.o.RetryTimeout)
		w.f.Fail(x.Place)
	case h.pub == nil:
		w.fail("%s: only the death of trainers is simulated", name)
	default:
		w.o.note(w.now(), "%s dies; the controller notices after %v", name, w.o.Detect)
		h.dead = true
		w.f.Kill(name)
		w.after(w.o.Detect, func() { w.ctl.lose(h) })
	}
}

// lose ends the epoch, after the death of a publisher: everybody else stops and reports when nothing is in flight, receivers fence the
// dead one, and what is missing is planned and pushed again.
func (c *control) lose(dead *host) {
	if c.w.repair == nil {
		c.w.fail("%s is dead, and there is no plan to repair", dead.name)
		return
	}
	c.lost = append(c.lost, dead.pub.slice.Rank)
	waiting := 0
	answered := func() {
		if waiting--; waiting == 0 {
			c.w.o.note(c.w.now(), "everybody is quiet, the plan is repaired in %v", c.w.o.Replan)
			c.w.after(c.w.o.Replan, c.replan)
		}
	}
	for _, p := range c.pubs {
		if !p.h.dead {
			waiting++
			c.tell(p.h, func() { p.stop(func() { c.hear(p.h, answered) }) })
		}
	}
	for _, r := range c.rcvs {
		waiting++
		c.tell(r.h, func() {
			if q := r.h.peers[dead.index]; q != nil {
				r.h.g.Fence(q)
				r.h.wake()
			}
			c.hear(r.h, answered)
		})
	}
}

// replan begins the next epoch, in which only what no receiver has completely is sent.
func (c *control) replan() {
	w := c.w
	done := map[int]*receiver{}
	for _, r := range c.rcvs {
		done[r.slice.Rank] = r
	}
	sources, dests, err := w.repair(c.lost, func(dst, stage int) bool { return done[dst].complete(stage) })
	if err != nil {
		w.fail("the plan cannot be repaired: %w", err)
		return
	}
	c.epoch++
	if err := c.adopt(sources, dests); err != nil {
		w.fail("repair: %w", err)
		return
	}
	w.o.note(w.now(), "epoch %d sends %d bytes again or for the first time", c.epoch, w.resent)
	w.whenConnected(func() {
		w.repaired = w.now()
		c.begin()
	})
}

// adopt replaces publishers and receivers by those of new slices, on the hosts that there are.
func (c *control) adopt(sources, dests []*reshard.Slice) error {
	w := c.w
	w.past = append(w.past, c.pubs...)
	c.pubs, c.rcvs = nil, nil
	w.resent = 0
	for _, s := range dests {
		h := w.byName[fmt.Sprintf("infer-%d", s.Rank)]
		r := newReceiver(h, s, w.o)
		h.rcv = r
		c.rcvs = append(c.rcvs, r)
		w.resent += r.bytes
	}
	for _, s := range sources {
		h := w.byName[fmt.Sprintf("train-%d", s.Rank)]
		if h.dead {
			return fmt.Errorf("the repaired plan has tasks for %s", h.name)
		}
		h.pub = newPublisher(h, s, c.epoch, w.o)
		c.pubs = append(c.pubs, h.pub)
		for _, d := range destinations(s) {
			to := w.byName[fmt.Sprintf("infer-%d", d)]
			h.pub.byRank[d] = len(h.pub.dests)
			h.pub.dests = append(h.pub.dests, &destination{h: to})
			if h.peers[to.index] == nil {
				if err := w.offer(h, to); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// whenConnected waits for new sessions, and has receivers grant.
func (w *world) whenConnected(then func()) {
	for _, p := range w.ctl.pubs {
		for _, d := range p.dests {
			a, b := p.h.peers[d.h.index], d.h.peers[p.h.index]
			if links := max(p.h.g.Rails(), d.h.g.Rails()); a.Ready() < links || b.Ready() < links {
				w.after(w.o.Control, func() { w.whenConnected(then) })
				return
			}
		}
	}
	if err := w.aim(); err != nil {
		w.fail("repair: %w", err)
		return
	}
	then()
}

// lostPeer ends what is under way to a peer that is gone, when the group is not in the middle of its Step.
func (h *host) lostPeer(p *rail.Peer) {
	h.w.due = append(h.w.due, func() {
		h.g.FailPeer(p)
		h.wake()
	})
}

// checkFaults reports faults of places that there are not.
func (w *world) checkFaults() error {
	var errs []error
	for _, x := range w.o.Faults {
		name, _, _ := strings.Cut(x.Place, "/")
		if w.byName[name] == nil {
			errs = append(errs, fmt.Errorf("fault at %q: there is no such host; hosts are train-N and infer-N", x.Place))
		}
	}
	return errors.Join(errs...)
}
