//go:build cgo

package verbs

import (
	"errors"
	"time"

	"github.com/hawser-project/hawser/provider"
)

const (
	// goodbyeTime is how long a goodbye may take to arrive: three packets are lost before that.
	goodbyeTime = 200 * time.Millisecond
	// drainTime bounds the wait for the event that a failed queue pair has given back its last receive.
	drainTime = 100 * time.Millisecond
	// probeEvery is how often a peer from which nothing is due is asked whether it is there.
	probeEvery = 250 * time.Millisecond
)

// leave is how far the end of a connection is.
type leave struct {
	step    leaveStep
	goodbye bool // the peer is to be told
	told    bool // the goodbye was handed to the card
}

type leaveStep uint8

const (
	leaveBegin leaveStep = iota
	leaveBye             // the goodbye is on its way
	leaveDrain           // all queue pairs have failed
)

// Disconnect implements [provider.Domain].
func (d *domain) Disconnect(h provider.Peer) error { return d.release(h, "disconnect", false) }

// Fence implements [provider.Domain]. When the queue pairs are destroyed the card executes nothing more of the peer: that is the
// proof, whatever the peer does.
func (d *domain) Fence(h provider.Peer) error { return d.release(h, "fence", true) }

func (d *domain) release(h provider.Peer, call string, fence bool) error {
	if d.closed {
		return d.errorf("%s: %w", call, provider.ErrClosed)
	}
	p := d.peer(h)
	if p == nil {
		return d.errorf("%s peer %#x: %w", call, h, provider.ErrStale)
	}
	if p.released {
		return d.errorf("%s peer %#x: %w: it is being released", call, h, provider.ErrBusy)
	}
	p.released, p.fenced = true, fence
	if p.toldDown && !fence {
		d.forget(p)
		return nil
	}
	d.end(p, provider.StatusFlushed, 0, p.phase == up)
	return nil
}

// lose ends a connection that has failed.
func (d *domain) lose(p *peer, status provider.Status, detail uint32) {
	if p.phase < up && status == provider.StatusPeerDown {
		status = provider.StatusRefused
	}
	d.end(p, status, detail, status == provider.StatusProtocol)
}

// end begins the end of a connection, if it has not ended.
func (d *domain) end(p *peer, status provider.Status, detail uint32, goodbye bool) {
	d.activate(p)
	if p.phase >= leaving {
		return
	}
	p.phase, p.status, p.detail, p.deadline = leaving, status, detail, time.Time{}
	p.leave = leave{goodbye: goodbye}
	p.early = nil
}

// advance does the next steps of the end of a connection and reports whether that was the last one. Goroutines that use the
// queue pairs end first; each visits the peer again.
func (d *domain) advance(p *peer) bool {
	if p.jobs > 0 {
		return false
	}
	l := &p.leave
	now := time.Now()
	if l.step == leaveBegin {
		d.stopWrites(p)
		l.step = leaveBye
		if l.goodbye {
			d.sayBye(p)
			d.setDeadline(p, now.Add(goodbyeTime))
		}
	}
	if l.step == leaveBye {
		// A notification of before may have taken the last room.
		if l.goodbye && !l.told {
			d.sayBye(p)
		}
		if l.goodbye && !p.control.broken && !(l.told && p.control.done == p.control.sent) && now.Before(p.deadline) {
			return false
		}
		if p.ctl.c != nil {
			_ = d.card.failQP(p.ctl) // it may have failed by itself
		}
		l.step = leaveDrain
		d.setDeadline(p, d.emptyBy(&p.ctl, &p.in))
	}
	if !(p.ctl.drained() && p.in.drained()) && now.Before(p.deadline) {
		return false
	}
	if err := d.destroy(p); err != nil {
		d.die(err)
	}
	p.phase, p.deadline = down, time.Time{}
	return true
}

// stopWrites fails the queue pairs of writes in both directions.
func (d *domain) stopWrites(p *peer) {
	for _, q := range []queuePair{p.out, p.in} {
		if q.c != nil {
			_ = d.card.failQP(q) // it may have failed by itself
		}
	}
	p.writes.broken = true
}

// sayBye hands a goodbye to the card, as the last thing that the peer hears, and reports whether it could.
func (d *domain) sayBye(p *peer) bool {
	if p.ctl.c == nil || !p.control.room(p, byeReserve) {
		return false
	}
	d.sendRecord(p, &record{kind: recBye})
	p.control.mute, p.leave.told = true, true
	return true
}

// emptyBy is when queue pairs that fail now count as empty without an event that says so. Soft-RoCE has no such event and needs none:
// destroying a queue pair waits there until nothing works on it, and leaves its completions in place.
func (d *domain) emptyBy(qps ...*queuePair) time.Time {
	if d.card.attrs.vendor == rxeVendor {
		for _, q := range qps {
			q.empty = true
		}
		return time.Now()
	}
	return time.Now().Add(d.drainTime)
}

// retire destroys a queue pair once everything that it completed is taken: before, because hardware drops its completions then, and
// after, because soft-RoCE may still make some until then.
func (d *domain) retire(p *peer, q *queuePair) error {
	if q.c == nil {
		return nil
	}
	d.flush()             // what waits in the batch names the queue pair
	_ = d.card.failQP(*q) // it may have failed by itself
	d.drain()
	err := d.card.destroyQP(*q)
	p.unproven = p.unproven || err != nil
	d.drain()
	d.byQP.remove(q.qpn)
	*q = queuePair{}
	return err
}

// destroy ends everything that a peer has at the card.
func (d *domain) destroy(p *peer) error {
	err := errors.Join(d.retire(p, &p.ctl), d.retire(p, &p.out), d.retire(p, &p.in))
	w := &p.writes
	for i := w.acked; i != w.sent; i++ {
		d.unsend(w, w.ring.at(i))
	}
	c := &p.control
	for i := range c.slots {
		if c.slots[i] > 0 {
			d.unpost(c.slots[i] - 1)
			c.slots[i] = 0
		}
	}
	d.forgetGrants(p)
	p.rights, p.control.records, p.arrived.letters = nil, fifo[record]{}, fifo[letter]{}
	return errors.Join(err, d.dismantle(p))
}
