package proto

import (
	"errors"
	"fmt"

	"github.com/hawser-project/hawser"
)

// Message takes a message from a peer. One of an ended epoch is dropped, a malformed one ends the link.
func (d *Decoder) Message(now Time, from Peer, data []byte) {
	d.enter(now)
	l := d.peers[from]
	if len(d.fences) > 0 {
		d.poke(from)
	}
	h, b, err := Decode(data)
	switch {
	case l == nil:
		d.stats.Dropped++
		if err == nil {
			d.stranger(from, h, b)
		}
	case err != nil:
		d.stats.Malformed++
		d.endLink(l, err, true)
	case h.Epoch != l.epoch && !broken(mutEpoch):
		d.stats.Dropped++
		d.stranger(from, h, b)
	default:
		if err := d.handle(l, h.Ticket, b); err != nil {
			d.stats.Malformed++
			d.endLink(l, err, true)
		}
	}
	d.leave()
}

// stranger answers a prefiller that still believes in a link that has ended: the goodbye was lost.
func (d *Decoder) stranger(from Peer, h Head, b Body) {
	if b.Kind() == KindBeat {
		d.out.Send(from, Encode(Head{Epoch: h.Epoch, Ticket: h.Ticket}, &Bye{"there is no such link"}))
	}
}

// handle takes one message of a link. The error ends it.
func (d *Decoder) handle(l *fetchLink, ticket uint64, b Body) error {
	if l.state != linkUp {
		return d.answerHello(l, ticket, b)
	}
	switch m := b.(type) {
	case *HelloAck: // of a repeated Hello
		d.grant(l, m.Granted)
	case *HelloReject:
		d.unexpected("link up", b.Kind().String())
	case *Accept:
		d.grant(l, m.Granted)
		d.answer(l, m.Seq, writerEvent{kind: evAccept})
	case *Reject:
		d.grant(l, m.Granted)
		l.draining = l.draining || m.Code == CodeDraining || m.Code == CodeClosed // Drain is on its way, or lost
		d.answer(l, m.Seq, writerEvent{kind: evReject, cause: &RejectedError{m.Code, m.Text, m.RetryAfter}})
	case *CancelAck:
		d.grant(l, m.Granted)
		if !d.detached(l, m.Seq) {
			d.answer(l, m.Seq, writerEvent{kind: evAnswer, posted: m.Posted, exact: m.Exact, cause: ErrCancelled})
		}
	case *Failed:
		d.grant(l, m.Granted)
		d.answer(l, m.Seq, writerEvent{kind: evAnswer, posted: m.Posted, exact: m.Exact, cause: &FailedError{m.Code, m.Text}})
	case *Digest:
		d.digest(l, m.Seq, m.Sums)
	case *Timing:
		if a := d.attempts[m.Seq]; a != nil {
			d.note(Note{Kind: NoteTiming, Request: a.r.id, Seq: m.Seq, Link: l.id, Peer: l.peer, Timing: m})
		}
	case *Beat:
		d.grant(l, m.Granted)
		l.draining = m.Draining
		if m.Draining && l.quiet() {
			d.beat(l) // it waits to hear that nothing is live, and the last beats were lost
		}
	case *State:
		for i := range m.Of {
			d.stateOf(l, &m.Of[i])
		}
	case *Drain:
		l.draining = true
		d.beat(l) // it waits to hear that nothing is live
	case *Bye:
		d.endLink(l, fmt.Errorf("%w: %s ended the link: %s", hawser.ErrPeerDown, short(l.addr), m.Text), false)
	default:
		return fmt.Errorf("%w: %v message from a prefiller", ErrProtocol, b.Kind())
	}
	return nil
}

// answerHello: nothing but the answer means anything before it. Others may have overtaken it.
func (d *Decoder) answerHello(l *fetchLink, ticket uint64, b Body) error {
	switch m := b.(type) {
	case *HelloAck:
		d.up(l, ticket, m)
	case *HelloReject:
		never := m.Code != CodeBusy && m.Code != CodeDraining && m.Code != CodeClosed
		d.linkFailed(l, &MismatchError{m.Code, m.Field, m.There, m.Here, m.Text}, never)
	case *Bye:
		d.endLink(l, fmt.Errorf("%w: %s ended the link: %s", hawser.ErrPeerDown, short(l.addr), m.Text), false)
	case *Beat, *Drain: // the next Beat heals it
	default:
		return fmt.Errorf("%w: %v message before the link is up", ErrProtocol, b.Kind())
	}
	return nil
}

// grant takes over credits.
func (d *Decoder) grant(l *fetchLink, granted uint64) {
	if granted > l.granted || broken(mutCreditMax) && granted != 0 {
		l.granted = granted
		d.unparkAll(l)
	}
}

// writerOf is the writer of a live attempt on the present epoch of a link. nil: the answer is to a message that was repeated, or
// overtaken by the last write.
func (d *Decoder) writerOf(l *fetchLink, seq uint64) *fetchWriter {
	a := d.attempts[seq]
	if a == nil || a.step.state.quiet() {
		return nil
	}
	for i := range a.writers {
		if w := &a.writers[i]; w.link == l && (w.epoch == l.epoch || broken(mutEpoch)) {
			return w
		}
	}
	return nil
}

// answer feeds an answer to the attempt that it is about, if that is still live.
func (d *Decoder) answer(l *fetchLink, seq uint64, e writerEvent) {
	w := d.writerOf(l, seq)
	if w == nil {
		return
	}
	d.count(w.at)
	if w.at.step.state.quiet() || l.state != linkUp {
		return // the count was faster
	}
	w.life, e.from = d.now, w.seen
	d.stepWriter(w, e)
	if w.step.state == writerAccepted {
		d.touch(w.at)
	}
}

func (d *Decoder) digest(l *fetchLink, seq uint64, sums []uint64) {
	if w := d.writerOf(l, seq); w != nil && w.sums == nil {
		w.life = d.now
		if w.sums = sums; sums == nil {
			w.sums = []uint64{}
		}
		d.prove(w)
	}
}

// stateOf takes what the prefiller says of an attempt that was silent.
func (d *Decoder) stateOf(l *fetchLink, s *AttemptState) {
	switch s.Phase {
	case PhaseUnknown: // no answer
	case PhaseTomb:
		if len(s.Sums) > 0 {
			d.digest(l, s.Seq, s.Sums)
		}
		if l.state != linkUp {
			return
		}
		cause := error(errors.New("ended there"))
		if s.Code != 0 {
			cause = &FailedError{s.Code, "as its state says"}
		}
		d.answer(l, s.Seq, writerEvent{kind: evAnswer, posted: s.Posted, exact: s.Exact, cause: cause})
	default:
		if w := d.writerOf(l, s.Seq); w != nil {
			w.life = d.now
			d.touch(w.at)
		}
	}
}

// detached ends a detach when it is answered.
func (d *Decoder) detached(l *fetchLink, seq uint64) bool {
	for i := range l.detaches {
		if l.detaches[i].seq == seq {
			l.setDetaches(append(l.detaches[:i], l.detaches[i+1:]...))
			d.armLink(l)
			return true
		}
	}
	return false
}
