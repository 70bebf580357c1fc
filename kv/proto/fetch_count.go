package proto

import (
	"fmt"
	"time"
)

// This file is the attempts' view of counts, time and digests.

// touch has an attempt looked at before the event ends: what it awaits and when it is due may have changed.
func (d *Decoder) touch(a *fetchAttempt) {
	if !a.touched {
		a.touched = true
		d.touched = append(d.touched, a)
	}
}

// settleTouched does so.
func (d *Decoder) settleTouched() {
	for i := 0; i < len(d.touched); i++ {
		a := d.touched[i]
		a.touched = false
		if a.reawait {
			a.reawait = false
			d.await(a)
		}
		d.arm(a.r)
	}
	clear(d.touched)
	d.touched = d.touched[:0]
}

// Counted says that as many writes were counted as Await asked for.
func (d *Decoder) Counted(now Time, seq uint64) {
	d.enter(now)
	if a := d.attempts[seq]; a != nil {
		d.await(a)
	}
	d.leave()
}

// count looks at what has landed.
func (d *Decoder) count(a *fetchAttempt) {
	for i := range a.writers {
		w := &a.writers[i]
		if a.step.state.quiet() {
			return
		}
		d.countWriter(w)
	}
}

// countWriter looks at what has landed of one writer, so that what happens next is judged with the count that there is.
func (d *Decoder) countWriter(w *fetchWriter) {
	if w.step.state == writerEnded || w.at.step.state.quiet() {
		return
	}
	from := d.out.Landed(w.at.seq, w.peer)
	if from != w.seen {
		w.seen, w.life = from, d.now
	}
	d.stepWriter(w, writerEvent{kind: evCount, from: from})
}

// await has the machine called when all that is to come of an attempt has been counted: the sum over its writers, as no single one
// settles it.
func (d *Decoder) await(a *fetchAttempt) {
	for {
		d.count(a)
		if a.step.state.quiet() {
			return
		}
		more := uint64(0)
		for i := range a.writers {
			w := &a.writers[i]
			if want, ok := w.step.awaited(); ok {
				more += want - min(w.seen, want)
			}
		}
		d.out.Await(a.seq, more)
		if more == 0 || !a.moved() {
			return
		}
		// Writes were counted between the look and the call: the call counts from now on, and would wait for too many.
	}
}

// moved reports whether something was counted since the last look.
func (a *fetchAttempt) moved() bool {
	for i := range a.writers {
		w := &a.writers[i]
		if _, ok := w.step.awaited(); ok && a.d.out.Landed(a.seq, w.peer) != w.seen {
			return true
		}
	}
	return false
}

// dueAttempt does what time has made due for an attempt.
func (d *Decoder) dueAttempt(a *fetchAttempt) {
	d.count(a)
	for i := range a.writers {
		if a.step.state.quiet() {
			return
		}
		w := &a.writers[i]
		switch state := w.step.state; {
		case state == writerSettling && d.now-w.since >= settleLimit:
			d.stats.SettleTimeouts++
			d.stepWriter(w, writerEvent{kind: evUnsettled, cause: errUnsettled})
		case a.step.state == fetchStopping || a.step.state == fetchQuarantined:
			d.dueStopping(w)
		case state.open() || state == writerComplete && !w.proved && d.cfg.Verify:
			d.dueWriting(w)
		}
	}
}

// dueStopping: a writer of an attempt that ends.
func (d *Decoder) dueStopping(w *fetchWriter) {
	switch {
	case !w.step.state.open():
	case d.now-w.since >= d.cfg.Stall:
		d.stats.LostCancels++
		d.stepWriter(w, writerEvent{kind: evUnanswered, cause: errUnanswered})
	case d.now >= w.repeat:
		w.repeat, w.pause = d.now+w.pause, min(2*w.pause, repeatMost)
		d.sendCancel(w)
	}
}

// dueWriting: a writer of an attempt that is under way.
func (d *Decoder) dueWriting(w *fetchWriter) {
	silent := d.now - w.life
	switch complete := w.step.state == writerComplete; {
	case complete && d.now-w.since >= digestLimit:
		d.lost(w.at, errNoDigest, false)
		return
	case !complete && silent >= d.cfg.Stall:
		d.lost(w.at, fmt.Errorf("%w %v: %s owes %d of %d immediates", ErrStalled, silent.Round(time.Millisecond), short(w.link.addr),
			w.step.expected-w.seen, w.step.expected), false)
		return
	case w.step.state == writerAsked:
		if d.now >= w.repeat {
			w.repeat, w.pause = d.now+w.pause, min(2*w.pause, repeatMost)
			d.sendDispatch(w)
		}
		return
	}
	if d.now >= w.probeAt() {
		w.probe = d.now + queryPause
		d.query(w)
	}
}

// probeAt is when an accepted writer is asked what has become of the attempt.
func (w *fetchWriter) probeAt() Time { return max(w.probe, w.life+silence) }

// next is when time can change something for the attempt, or at, if some, when that is earlier.
func (a *fetchAttempt) next(at Time, some bool) (Time, bool) {
	if a.step.state.quiet() {
		return at, some
	}
	stopping := a.step.state == fetchStopping || a.step.state == fetchQuarantined
	for i := range a.writers {
		t, ok := a.writers[i].dueAt(stopping)
		at, some = earlier(at, some, t, ok)
	}
	return at, some
}

func (w *fetchWriter) dueAt(stopping bool) (Time, bool) {
	stall := w.at.d.cfg.Stall
	switch state := w.step.state; {
	case state == writerSettling:
		return w.since + settleLimit, true
	case stopping:
		return min(w.repeat, w.since+stall), state.open()
	case state == writerAsked:
		return min(w.repeat, w.life+stall), true
	case state == writerAccepted:
		return min(w.probeAt(), w.life+stall), true
	case state == writerComplete && !w.proved && w.at.d.cfg.Verify:
		return min(w.probeAt(), w.since+digestLimit), true
	}
	return 0, false
}

// prove compares the digest of a complete writer, when it is there.
func (d *Decoder) prove(w *fetchWriter) {
	running := w.at.step.state == fetchAsked || w.at.step.state == fetchActive
	if !d.cfg.Verify || !running || w.sums == nil || w.verifying || w.step.state != writerComplete {
		return
	}
	w.verifying = true
	d.out.Verify(w.at.seq, w.peer, w.sums)
}

// Verified answers Verify; err says what differs.
func (d *Decoder) Verified(now Time, seq uint64, p Peer, err error) {
	d.enter(now)
	if a := d.attempts[seq]; a != nil && !a.step.state.quiet() {
		d.count(a)
		for i := range a.writers {
			w := &a.writers[i]
			if a.step.state.quiet() {
				break
			}
			if w.peer != p || !w.verifying || w.proved {
				continue
			}
			if err != nil {
				a.cause = fmt.Errorf("%w: digest from %s: %w", ErrCorrupt, short(w.link.addr), err)
				a.r.cause = a.cause
				d.stepFetch(a, fetchEvent{kind: evCorrupt, writers: a.writersAre()})
				break
			}
			w.proved = true
			d.stepFetch(a, fetchEvent{kind: evWriters, writers: a.writersAre()})
			d.touch(a)
			break
		}
	}
	d.leave()
}
