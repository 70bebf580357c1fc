package proto

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/hawser-project/hawser"
)

// This file is what a link does while it is up: numbers, credits, beats, queries, detaches; and its timer.

// head is what every message on l begins with.
func (d *Decoder) head(l *fetchLink) Head {
	h := Head{Epoch: l.epoch, Ticket: l.ticket, LowWater: l.low(), Next: d.lastSeq + 1}
	if broken(mutLowWater) {
		h.LowWater = h.Next
	}
	return h
}

// low is the oldest live number of the link.
func (l *fetchLink) low() uint64 {
	low := l.d.lastSeq + 1
	if l.first != nil {
		low = l.first.at.seq
	}
	if len(l.detaches) > 0 {
		low = min(low, l.detaches[0].seq)
	}
	return low
}

// quiet: no number of the link is live.
func (l *fetchLink) quiet() bool { return l.first == nil && len(l.detaches) == 0 }

// takes reports whether the link has what one more attempt needs: credits and a number.
func (l *fetchLink) takes(cost uint64) bool {
	return l.used+cost <= l.granted && l.d.lastSeq+1-l.low() < seqWindow
}

// lacks says what the link has not got for an attempt that it does not take.
func (l *fetchLink) lacks(cost uint64) string {
	if l.used+cost > l.granted {
		return "credits of " + short(l.addr)
	}
	return "old attempts at " + short(l.addr)
}

// send sends a message, or loses it: everything that matters is repeated.
func (d *Decoder) send(l *fetchLink, b Body) {
	if l.state != linkUp && l.state != linkHello {
		return
	}
	d.buf = AppendMessage(d.buf[:0], d.head(l), b)
	d.out.Send(l.peer, append(make([]byte, 0, len(d.buf)), d.buf...))
}

// append adds a writer of a new attempt.
func (l *fetchLink) append(w *fetchWriter) {
	w.linked, w.prev, w.next = true, l.last, nil
	if l.last == nil {
		l.first = w
		if l.state == linkUp && (l.timer.slot == 0 || l.timer.at > l.beatAt) {
			l.beatAt = l.d.now + beatPause
			l.d.timers.set(&l.timer, l.beatAt)
		}
	} else {
		l.last.next = w
	}
	l.last = w
}

// unlink removes a writer of which nothing can land any more.
func (d *Decoder) unlink(w *fetchWriter) {
	if !w.linked {
		return
	}
	l := w.link
	first := l.first == w
	if w.prev == nil {
		l.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		l.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.linked, w.prev, w.next = false, nil, nil
	if !first {
		return
	}
	if l.first == nil {
		l.idleBeats = idleBeats
		if l.draining && l.quiet() {
			d.beat(l) // it waits to hear that nothing is live
		}
	}
	d.unparkAll(l) // numbers have become free
}

// wants works out what credits the link lacks, and says so at once.
func (d *Decoder) wants(l *fetchLink) {
	was := l.wants
	l.wants = 0
	for _, s := range l.sources {
		for _, r := range s.parked[:min(len(s.parked), maxSkips)] {
			if r.short == l {
				l.wants = max(l.wants, r.shortCost)
				break
			}
		}
	}
	if l.state == linkUp && l.wants > was {
		d.beat(l)
		d.armLink(l)
	}
}

func (d *Decoder) beat(l *fetchLink) {
	l.beatAt = d.now + beatPause
	d.send(l, &Beat{Draining: d.draining, Wants: l.wants})
}

// query has the link ask about an attempt, together with others.
func (d *Decoder) query(w *fetchWriter) {
	if l := w.link; !w.queried && w.current() {
		w.queried = true
		l.silent = append(l.silent, w)
		d.armLink(l)
	}
}

// current: the link is still the one that the attempt was dispatched on.
func (w *fetchWriter) current() bool { return w.link.state == linkUp && w.link.epoch == w.epoch }

func (d *Decoder) sendQueries(l *fetchLink) {
	var seqs []uint64
	flush := func() {
		if len(seqs) > 0 {
			d.send(l, &Query{Seqs: seqs})
			seqs = seqs[:0]
		}
	}
	for _, w := range l.silent {
		w.queried = false
		if w.current() && !w.at.step.state.quiet() && w.step.state != writerEnded {
			seqs = append(seqs, w.at.seq)
		}
		if len(seqs) == MaxQuery {
			flush()
		}
	}
	flush()
	clear(l.silent)
	l.silent = l.silent[:0]
	l.queryAt = d.now + queryPause
}

// lively: the prefiller hears from the link although nothing happens.
func (l *fetchLink) lively() bool { return !l.quiet() || l.wants > 0 || l.idleBeats > 0 }

// due does what time has made due for a link.
func (l *fetchLink) due(now Time) {
	d := l.d
	switch l.state {
	case linkDown:
		if l.wanted() {
			d.want(l)
		} else {
			d.forgetLink(l)
		}
		return
	case linkFencing:
		d.linkFailed(l, fmt.Errorf("fence: %w: no proof yet", hawser.ErrUnfenced), false)
		return
	case linkHello:
		if now >= l.limit {
			d.linkFailed(l, fmt.Errorf("%w: no answer to hello in %v", hawser.ErrPeerDown, linkLimit), false)
			return
		}
		l.repeat, l.pause = now+l.pause, min(2*l.pause, repeatMost)
		d.send(l, &l.hello)
	case linkUp:
		l.dueUp(now)
	}
	d.armLink(l)
}

func (l *fetchLink) dueUp(now Time) {
	d := l.d
	if len(l.silent) > 0 && now >= l.queryAt {
		d.sendQueries(l)
	}
	if l.lively() && now >= l.beatAt {
		if l.quiet() && l.wants == 0 {
			l.idleBeats--
		}
		d.beat(l)
	}
	kept := l.detaches[:0]
	for _, x := range l.detaches {
		if now >= x.until {
			continue
		}
		if now >= x.repeat {
			x.repeat, x.pause = now+x.pause, min(2*x.pause, repeatMost)
			d.send(l, &Cancel{Seq: x.seq, Request: x.request, Reason: x.reason})
		}
		kept = append(kept, x)
	}
	l.setDetaches(kept)
}

func (l *fetchLink) setDetaches(kept []fetchDetach) {
	was := l.quiet()
	l.detaches = kept
	if l.quiet() && !was {
		l.idleBeats = idleBeats
	}
}

// armLink sets the timer of a link to the first thing that time can change.
func (d *Decoder) armLink(l *fetchLink) {
	switch l.state {
	case linkHello:
		d.timers.set(&l.timer, max(d.now+1, min(l.limit, l.repeat)))
	case linkUp:
		at, some := l.beatAt, l.lively()
		at, some = earlier(at, some, l.queryAt, len(l.silent) > 0)
		for i := range l.detaches {
			at, some = earlier(at, some, min(l.detaches[i].repeat, l.detaches[i].until), true)
		}
		if some {
			d.timers.set(&l.timer, max(d.now+1, at))
		} else {
			d.timers.clear(&l.timer)
		}
	}
}

// detach tells the prefillers that this member of several will not dispatch a request, so that its job does not wait for it.
func (d *Decoder) detach(r *fetchRequest, why error) {
	if len(d.cfg.Topology.Members) < 2 || r.src == nil {
		return
	}
	for _, l := range r.src.links {
		d.detachFrom(l, r, cmp.Or(why, errors.New("not wanted")).Error())
	}
}

// detachFrom is detach for one prefiller.
func (d *Decoder) detachFrom(l *fetchLink, r *fetchRequest, reason string) {
	if l.state != linkUp || d.lastSeq+1-l.low() >= seqWindow {
		return
	}
	d.lastSeq++
	l.detaches = append(l.detaches, fetchDetach{
		seq: d.lastSeq, request: r.f.ID, repeat: d.now + cancelFirst, until: d.now + d.cfg.Stall, pause: 2 * cancelFirst, reason: reason,
	})
	d.send(l, &Cancel{Seq: d.lastSeq, Request: r.f.ID, Reason: reason})
	d.armLink(l)
}
