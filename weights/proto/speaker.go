package proto

import (
	"slices"
	"time"
)

// What all machines count on.
const (
	sayAgain     = 200 * time.Millisecond // the first time
	sayAgainMost = 2 * time.Second        // each pause is twice the last one
	fenceAgain   = time.Second
	sayUntil     = time.Minute // members, about what is over: somebody who is gone does not answer
	askAgain     = time.Second
	stagePause   = 20 * time.Millisecond // stages are told at most once in it
)

// speaker is what all machines share: the time, and what was said and not acknowledged. Owned by the machine, as everything here.
type speaker struct {
	now  Time
	id   ID
	out  Out
	seq  uint64
	said letters
}

// letter is a message that is sent again until it is acknowledged.
type letter struct {
	to    ID
	seq   uint64
	kind  Kind
	about uint64 // epoch; 0: none
	data  []byte
	since Time
	at    Time // when it is sent again
	pause Time
}

// letters are those that are not acknowledged, in the order in which they were said.
type letters struct {
	all  []letter
	next Time // the earliest at, or earlier
}

// tell sends a message once.
func (s *speaker) tell(to ID, h Head, b Body) { s.out.Send(to, Encode(h, b)) }

// say sends a message until it is acknowledged or forgotten.
func (s *speaker) say(to ID, h Head, b Body) {
	s.seq++
	h.Seq = s.seq
	l := letter{to: to, seq: s.seq, kind: b.Kind(), about: h.Epoch, data: Encode(h, b), since: s.now, at: s.now + sayAgain, pause: sayAgain}
	if len(s.said.all) == 0 || l.at < s.said.next {
		s.said.next = l.at
	}
	s.said.all = append(s.said.all, l)
	s.out.Send(to, slices.Clone(l.data))
}

// acked ends the repetition of a message.
func (s *speaker) acked(from ID, seq uint64) {
	s.forget(func(l *letter) bool { return l.seq == seq && l.to == from })
}

// forget ends the repetition of messages.
func (s *speaker) forget(which func(*letter) bool) {
	s.said.all = slices.DeleteFunc(s.said.all, func(l letter) bool { return which(&l) })
}

// repeat sends what is due again.
func (s *speaker) repeat() {
	if len(s.said.all) == 0 || s.said.next > s.now {
		return
	}
	s.said.next = Time(1<<63 - 1)
	for i := range s.said.all {
		l := &s.said.all[i]
		if l.at <= s.now {
			l.pause = min(2*l.pause, sayAgainMost)
			l.at = s.now + l.pause
			s.out.Send(l.to, slices.Clone(l.data))
		}
		s.said.next = min(s.said.next, l.at)
	}
}

// due is when repeat is.
func (s *speaker) due() (Time, bool) { return s.said.next, len(s.said.all) > 0 }

// earliest is the first of some times; 0 is none.
func earliest(at Time, ok bool, more ...Time) (Time, bool) {
	for _, t := range more {
		if t != 0 && (!ok || t < at) {
			at, ok = t, true
		}
	}
	return at, ok
}
