//go:build cgo

package verbs

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/provider"
)

// Arm implements [provider.Domain]. A completion that comes after the card was told to tell rings the bell; one that came before is
// found by the look that follows.
func (d *domain) Arm() bool {
	if d.closed || d.fatal != nil || d.errs.len()+d.ready.len()+d.active.len() > 0 {
		return true
	}
	if e := d.card.arm(); e != 0 {
		d.die(e)
		return true
	}
	d.woken = true
	if d.take() > 0 {
		return true
	}
	return d.collect() || d.fatal != nil // that take may have found
}

// look takes what the descriptors tell: completions after Arm, the timer, the device.
func (d *domain) look() {
	d.woken = false
	d.collect()
	n, err := unix.EpollWait(d.ep, d.events[:], 0)
	if err != nil {
		return // interrupted: the next look
	}
	for _, ev := range d.events[:n] {
		switch int(ev.Fd) {
		case d.timer:
			d.expire()
		case d.card.channelFD():
			d.card.events()
		default:
			d.hear()
		}
	}
}

// hear takes what the device tells of itself.
func (d *domain) hear() {
	for {
		event, subject, ok := d.card.async()
		if !ok {
			return
		}
		switch event {
		case eventLastWQE:
			d.emptied(subject)
		case eventCQError, eventSRQError, eventDeviceFatal:
			d.die(deviceError(event))
		case eventPortActive, eventLIDChange, eventReregister, eventGIDChange:
			d.moved = true
		}
	}
}

// locate finds out anew how the port is reached, after an event that this may have changed. Where it cannot be reached now, or on
// another fabric only, the place of before stays: a connection from there is refused, and the next Offer looks again.
func (d *domain) locate() {
	d.hear()
	if !d.moved {
		return
	}
	if at, err := d.find(); err == nil && at.fabric == d.at.fabric {
		d.at, d.moved = at, false
	}
}

// emptied notes that a failed queue pair has given back its last receive.
func (d *domain) emptied(qpn uint32) {
	i := d.byQP.find(qpn)
	if i < 0 {
		return
	}
	p := d.peers[i]
	switch qpn {
	case p.ctl.qpn:
		p.ctl.empty = true
	case p.in.qpn:
		p.in.empty = true
	default:
		return // nobody waits for that of our writes: a receive that it took breaks the protocol
	}
	d.activate(p)
}

// setDeadline gives a peer a time by which its phase has to end.
func (d *domain) setDeadline(p *peer, at time.Time) {
	p.deadline = at
	d.setAlarm(at)
}

// setAlarm has the timer fire at a time, or before.
func (d *domain) setAlarm(at time.Time) {
	if !d.alarm.IsZero() && !at.Before(d.alarm) {
		return
	}
	d.alarm = at
	wait := max(time.Until(at), time.Nanosecond) // zero would stop the timer
	if err := unix.TimerfdSettime(d.timer, 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(int64(wait))}, nil); err != nil {
		d.die(err)
	}
}

// expire does what is due.
func (d *domain) expire() {
	var sink [8]byte
	_, _ = unix.Read(d.timer, sink[:]) // it may have been set anew since
	now := time.Now()
	d.alarm = time.Time{}
	var next time.Time
	soonest := func(t time.Time) {
		if !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	probed := false
	for _, p := range d.peers {
		if p == nil {
			continue
		}
		switch {
		case p.phase == up:
			soonest(now.Add(probeEvery))
			if c := &p.control; c.sent == c.done && !c.broken {
				d.probe(p)
				probed = true
			}
			if a := &p.arrived.renew; a.step == renewAnswer {
				d.activate(p)
				if now.Before(a.until) {
					soonest(a.until)
				}
			}
		case p.deadline.IsZero():
		case now.Before(p.deadline):
			soonest(p.deadline)
		case p.phase == leaving:
			d.activate(p)
		default:
			d.lose(p, provider.StatusRefused, 0)
		}
	}
	if probed {
		d.flush()
	}
	if !next.IsZero() {
		d.setAlarm(next)
	}
}
