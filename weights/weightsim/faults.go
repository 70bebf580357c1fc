package weightsim

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hawser-project/hawser/internal/rail"
	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/weights/proto"
)

// Fault is something that goes wrong during a push: the death of a trainer, or of one rail of any host.
type Fault struct {
	Place string        // "train-3": the process dies. "infer-0/nic2": the card dies, in silence
	At    time.Duration // after BEGIN,
	Share float64       // or, if that is 0, when this share of all bytes has landed
}

// RepairFunc makes the slices of a plan without the lost sources; verified are the stages that receivers have completely.
type RepairFunc func(lost []int, verified func(dst, stage int) bool) (Repaired, error)

// Repaired is a plan that was repaired.
type Repaired struct {
	Sources, Dests []*reshard.Slice
	Bytes          int64         // of all slices, as they are sent to their members
	Took           time.Duration // on the controller
}

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
	case h.node.p == nil:
		w.fail("%s: only the death of trainers is simulated", name)
	default:
		w.o.note(w.now(), "%s dies; the controller notices after %v", name, w.o.Detect)
		h.dead = true
		w.f.Kill(name)
		w.after(w.o.Detect, func() { w.ctl.down(h) })
	}
}

// down tells everybody who had a session with a host that it has ended.
func (c *control) down(h *host) {
	if c.w.repair == nil {
		c.w.fail("%s is dead, and there is no plan to repair", h.name)
		return
	}
	c.work(0, func() { c.ctl.event(func(now proto.Time) { c.m.PeerDown(now, h.node.id) }) })
	for _, n := range c.nodes {
		if n.h != nil && n.h != h && n.h.peers[h.index] != nil {
			n.event(func(now proto.Time) { n.m.PeerDown(now, h.node.id) })
		}
	}
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
