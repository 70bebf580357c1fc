package proto

import (
	"errors"
	"fmt"
	"slices"

	"github.com/hawser-project/hawser"
)

// fence is the fence of a peer under way: until it is proved, anything that the peer was ever allowed to write may land. One at a time for
// a peer; every attempt that the peer may write into waits for it.
type fence struct {
	d       *Decoder
	peer    Peer
	writers []*fetchWriter // fencing or stuck
	links   []*fetchLink   // that wait for its end to connect again
	asked   bool           // Fence was called and not answered
	stuck   bool           // the last try had no proof
	timer   timer          // of the next try
}

// endLink ends the present epoch of a link: nothing is sent in it any more and its messages are dropped. Attempts that the peer may
// write into wait for a fence; with evict the peer is fenced in any case, because it did what it must not.
func (d *Decoder) endLink(l *fetchLink, cause error, evict bool) {
	if l.state != linkUp && l.state != linkHello {
		return
	}
	wasUp := l.state == linkUp
	p := l.peer
	l.state, l.err = linkDown, cause
	l.detaches, l.hello, l.wants = nil, Hello{}, 0
	clear(l.silent)
	l.silent = l.silent[:0]
	delete(d.peers, p)
	d.timers.clear(&l.timer)
	d.note(Note{Kind: NoteLinkDown, Link: l.id, Peer: p, Err: cause})
	for _, s := range l.sources {
		s.pair = nil
	}
	live := l.drop()
	ending := d.ending
	d.ending = l
	for _, w := range live {
		d.countWriter(w)
		if !w.at.step.state.quiet() {
			d.stepWriter(w, writerEvent{kind: evLinkEnded, cause: cause})
		}
	}
	d.ending = ending
	var f *fence
	for _, w := range live {
		if w.step.state == writerFencing {
			f = d.fence(p)
			f.writers = append(f.writers, w)
		}
	}
	if evict && f == nil {
		f = d.fence(p)
	}
	if f != nil {
		d.tryFence(f)
	}
	d.afterLink(l, cause, wasUp)
}

// drop takes all writers off the link: their epoch has ended.
func (l *fetchLink) drop() []*fetchWriter {
	var all []*fetchWriter
	for w := l.first; w != nil; {
		next := w.next
		w.linked, w.prev, w.next, w.queried = false, nil, nil, false
		all = append(all, w)
		w = next
	}
	l.first, l.last = nil, nil
	return all
}

// afterLink makes the link again if somebody wants it, or forgets it.
func (d *Decoder) afterLink(l *fetchLink, cause error, wasUp bool) {
	l.badUntil = d.now + backoffWarm
	for _, s := range slices.Clone(l.sources) {
		if s.refs == 0 {
			d.forgetSource(s)
		}
	}
	if !wasUp {
		d.linkFailed(l, cause, false)
		return
	}
	d.kick = true // requests in the queue may have to go elsewhere
	if l.wanted() {
		d.want(l)
	}
	d.forgetLink(l)
}

// fenceFor fences the peer of a writer.
func (d *Decoder) fenceFor(w *fetchWriter) {
	if w.current() {
		d.endLink(w.link, w.step.cause, true)
		return
	}
	if d.ending == w.link {
		return // endLink is at it, and collects it
	}
	f := d.fence(w.peer)
	f.writers = append(f.writers, w)
	d.tryFence(f)
}

// fence finds or makes the fence of a peer.
func (d *Decoder) fence(p Peer) *fence {
	f := d.fences[p]
	if f == nil {
		f = &fence{d: d, peer: p}
		f.timer.owner = f
		d.fences[p] = f
	}
	return f
}

// tryFence asks for the fence, unless that has been done and not answered.
func (d *Decoder) tryFence(f *fence) {
	if f.asked {
		return
	}
	f.asked = true
	d.timers.clear(&f.timer)
	d.stats.Fences++
	d.note(Note{Kind: NoteFence, Peer: f.peer})
	d.out.Fence(f.peer)
}

func (f *fence) due(Time) { f.d.tryFence(f) }

// poke tries again at once: something was heard of the peer.
func (d *Decoder) poke(p Peer) {
	if f := d.fences[p]; f != nil {
		d.tryFence(f)
	}
}

// Fenced says that nothing of the peer can land any more, that all that has landed is counted, and that its descriptors are worthless.
func (d *Decoder) Fenced(now Time, p Peer) {
	d.enter(now)
	if f := d.fences[p]; f != nil {
		d.fenced(f)
	}
	d.leave()
}

func (d *Decoder) fenced(f *fence) {
	delete(d.fences, f.peer)
	d.timers.clear(&f.timer)
	if f.stuck {
		d.stuck--
	}
	d.note(Note{Kind: NoteFenced, Peer: f.peer})
	for _, w := range f.writers {
		if w.at.step.state.quiet() {
			d.defect(fmt.Errorf("attempt %d is %v while peer %d is fenced for it", w.at.seq, w.at.step.state, f.peer))
			continue
		}
		d.count(w.at)
		w.seen = d.out.Landed(w.at.seq, w.peer)
		d.stepWriter(w, writerEvent{kind: evFenced, from: w.seen})
	}
	for _, l := range f.links {
		if l.state == linkFencing && l.peer == f.peer {
			l.state = linkDown
			d.timers.clear(&l.timer)
			l.lastFail = 0
			if l.wanted() {
				d.want(l)
			}
			d.forgetLink(l)
		}
	}
}

// Unfenced says that a fence has no proof: a writer cannot be stopped and may go on. It is tried again, in a while and when the peer gives a
// sign of life.
func (d *Decoder) Unfenced(now Time, p Peer, err error) {
	d.enter(now)
	if f := d.fences[p]; f != nil {
		f.asked = false
		d.stats.Unfenced++
		d.note(Note{Kind: NoteUnfenced, Peer: p, Err: err})
		if !f.stuck {
			f.stuck = true
			d.stuck++
		}
		d.timers.set(&f.timer, d.now+fencePause)
		for _, w := range slices.Clone(f.writers) {
			if !w.at.step.state.quiet() {
				w.step.cause = stuckCause(w.step.cause, err)
				d.stepWriter(w, writerEvent{kind: evUnfenced})
			}
		}
	}
	d.leave()
}

// stuckCause adds to the cause of a fence that it has no proof; once.
func stuckCause(cause, err error) error {
	if errors.Is(cause, hawser.ErrUnfenced) {
		return cause
	}
	if err == nil || !errors.Is(err, hawser.ErrUnfenced) {
		err = hawser.ErrUnfenced
	}
	if cause == nil {
		return err
	}
	return fmt.Errorf("%w: fence: %w", cause, err)
}

// PeerDown says that a peer has died, closed, or been silent for too long. That proves nothing about its writes.
func (d *Decoder) PeerDown(now Time, p Peer, cause error) {
	d.enter(now)
	switch {
	case cause == nil:
		cause = hawser.ErrPeerDown
	case !errors.Is(cause, hawser.ErrPeerDown):
		cause = fmt.Errorf("%w: %w", hawser.ErrPeerDown, cause)
	}
	if l := d.peers[p]; l != nil {
		d.endLink(l, cause, false)
	}
	d.poke(p)
	d.leave()
}

// Knows reports whether a number of a peer still means something here. The caller may forget one that does not, and is down.
func (d *Decoder) Knows(p Peer) bool {
	if d.peers[p] != nil || d.fences[p] != nil {
		return true
	}
	for _, a := range d.attempts {
		for i := range a.writers {
			if a.writers[i].peer == p {
				return true
			}
		}
	}
	return false
}
