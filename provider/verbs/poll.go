//go:build cgo

package verbs

import (
	"fmt"

	"github.com/hawser-project/hawser/provider"
)

// Poll implements [provider.Domain]. It crosses to C once to ask, and once more when there is something to post.
//
// hot:
func (d *domain) Poll(cs []provider.Completion) (int, error) {
	out := sink{cs: cs}
	if d.closed {
		return 0, d.errorf("poll: %w", provider.ErrClosed)
	}
	d.turns++
	if d.woken || d.turns%lookEvery == 0 {
		d.look()
	}
	d.hand(&out)
	if d.ready.len() == 0 && d.fatal == nil {
		d.take()
		d.match()
		d.hand(&out)
	}
	for n := d.active.len(); n > 0; n-- {
		p := d.active.pop()
		p.queued = false
		if d.visit(p, &out) {
			d.activate(p)
		}
	}
	d.flush()
	if d.fatal != nil && out.n == 0 && d.ready.len()+d.errs.len() == 0 && len(cs) > 0 {
		return 0, d.fatal
	}
	return out.n, nil
}

// hand gives the owner what arrived.
//
// hot:
func (d *domain) hand(out *sink) {
	for d.errs.len() > 0 && !out.full() {
		out.put(d.errs.pop())
	}
	for d.ready.len() > 0 && !out.full() {
		out.put(d.ready.pop())
	}
}

// take asks the card once and does what came.
//
// hot:
func (d *domain) take() int {
	n, e := d.card.poll(d.dones[:])
	d.stats.Polls++
	if e != 0 {
		d.die(e)
		return 0
	}
	if n > 0 {
		d.stats.Found++
		d.stats.Dones += uint64(n)
	}
	received := 0
	for i := range d.dones[:n] {
		received += int(d.dones[i].flags & doneRecv)
		d.done(&d.dones[i])
	}
	d.caughtUp = received < doneBatch-doneBatch/sendPart
	return n
}

// drain asks the card until nothing is there, and reports how much came. What comes meanwhile is bounded by the receives that
// peers have credit for.
func (d *domain) drain() (sum int) {
	for {
		n, e := d.card.poll(d.drained[:])
		if e != 0 {
			d.die(e)
			return sum
		}
		for i := range d.drained[:n] {
			d.done(&d.drained[i])
		}
		if sum += n; n == 0 {
			return sum
		}
	}
}

// die ends the Domain: the device does not do what it must.
func (d *domain) die(err error) {
	if d.fatal == nil {
		d.fatal = d.errorf("%w: %w", provider.ErrUnavailable, err)
	}
}

// done takes one completion.
//
// hot:
func (d *domain) done(w *workDone) {
	if w.flags&doneRecv != 0 {
		d.received(w)
		return
	}
	p := d.peers[w.id&(1<<identityRole-1)]
	if p == nil {
		return
	}
	seq := w.id >> identitySeq
	if w.id>>identityRole&3 == roleControl {
		d.controlDone(p, seq, w)
	} else {
		d.writeDone(p, seq, w)
	}
}

// received takes a completion of a receive. The receive is posted again by now.
//
// hot:
func (d *domain) received(w *workDone) {
	i := d.byQP.find(w.qpn)
	if i < 0 || w.status != wcSuccess {
		return // of a queue pair that has failed: whoever wrote hears of it
	}
	p := d.peers[i]
	switch {
	case w.flags&doneWithImm == 0 || w.qpn == p.out.qpn: // nothing comes over that one from a peer that keeps the protocol
		d.violate(p)
	case w.qpn == p.in.qpn:
		d.arrive(p, w)
	default:
		d.heardNote(p, w)
	}
}

// arrive takes an immediate.
//
// hot:
func (d *domain) arrive(p *peer, w *workDone) {
	a := &p.arrived
	a.count++
	if a.count-a.told > p.immWindow() {
		d.violate(p)
		return
	}
	c := provider.Completion{Len: uint64(w.len), Peer: p.handle, Imm: w.imm, Kind: provider.KindImm}
	switch {
	case p.phase >= up:
		if p.status != provider.StatusProtocol && !p.toldDown {
			d.ready.push(c)
		}
	case p.phase == greeting && p.helloed: // our own hello has arrived, or the peer would not write
		d.rise(p)
		d.ready.push(c)
	default:
		p.early = append(p.early, c)
	}
	if p.phase == up && p.owesCredit() {
		d.activate(p)
	}
}

// writeDone takes a completion of our writes: all up to this one are done, or this one has failed.
//
// hot:
func (d *domain) writeDone(p *peer, seq uint64, w *workDone) {
	q := &p.writes
	if q.broken {
		return // of what came behind the one that failed
	}
	seq = q.acked + (seq-q.acked)&seqMask
	if seq >= q.sent {
		return
	}
	if w.status == wcSuccess {
		d.ack(q, seq+1)
		d.activate(p)
		return
	}
	d.ack(q, seq)
	d.writeFailed(p, seq, w)
}

// ack notes that the card has done with all writes below end.
//
// hot:
func (d *domain) ack(q *writes, end uint64) {
	for ; q.acked != end; q.acked++ {
		d.unsend(q, q.ring.at(q.acked))
	}
}

// unsend notes that a write is not at the card any more.
//
// hot:
func (d *domain) unsend(q *writes, e *entry) {
	if !e.posted {
		return
	}
	e.posted = false
	q.inflight--
	if e.slot > 0 {
		d.unpost(e.slot - 1)
		e.slot = 0
	}
}

// deliver completes writes; it reports false when out is full.
//
// hot:
func (q *writes) deliver(p *peer, out *sink) bool {
	for ; q.done != q.sent; q.done++ {
		e := q.ring.at(q.done)
		if e.status == provider.StatusOK && q.done >= q.acked {
			return true
		}
		if out.full() {
			return false
		}
		q.acked = max(q.acked, q.done+1) // one that is not at the card
		out.put(provider.Completion{Token: e.wr.Token, Peer: p.handle, Kind: provider.KindWrite, Status: e.status})
	}
	return true
}

// visit does what can be done for p now and reports whether it must be visited again without anything having happened.
//
// hot:
func (d *domain) visit(p *peer, out *sink) bool {
	switch p.phase {
	case up:
	case greeting:
		if p.again && p.jobs == 0 {
			d.greetAgain(p)
		}
		return false
	case leaving:
		if !d.advance(p) {
			return false
		}
		return !d.settle(p, out) // before Poll tells that the device is gone, if that has shown itself here
	case down:
		return !d.settle(p, out)
	default:
		return false
	}
	if p.writes.renew.step != renewNone || p.arrived.renew.step != renewNone {
		d.renew(p)
		if p.phase != up {
			return true
		}
	}
	d.submitWrites(p)
	d.converse(p)
	return !p.writes.deliver(p, out) || !p.msgs.deliver(p, out) || !d.caughtUp && p.owesCredit()
}

// settle completes what is outstanding to a peer that is down, and ends its handle when that was asked for; false when out is full.
func (d *domain) settle(p *peer, out *sink) bool {
	if d.ready.len()+d.errs.len() > 0 {
		return false // it comes before
	}
	w, m := &p.writes, &p.msgs
	for ; w.done != w.tail; w.done++ {
		e := w.ring.at(w.done)
		if out.full() {
			return false
		}
		// What never reached the card ends as it would have anyway: a later write may have been delivered.
		status := e.status
		if status == provider.StatusOK && w.done >= w.acked {
			status = provider.StatusFlushed
		}
		out.put(provider.Completion{Token: e.wr.Token, Peer: p.handle, Kind: provider.KindWrite, Status: status})
	}
	for ; m.done != m.tail; m.done++ {
		e := m.ring.at(m.done)
		if out.full() {
			return false
		}
		status := e.status
		if status == provider.StatusOK && !(e.posted && int32(e.order-m.taken) < 0) {
			status = provider.StatusFlushed
		}
		out.put(provider.Completion{Token: e.wr.Token, Peer: p.handle, Kind: provider.KindSend, Status: status})
	}
	w.ring, w.acked, w.sent, m.ring, m.sent = ring{}, w.tail, w.tail, ring{}, m.tail
	if !p.toldDown {
		if out.full() {
			return false
		}
		out.put(provider.Completion{Peer: p.handle, Kind: provider.KindPeerDown, Status: p.status, Detail: p.detail})
		p.toldDown = true
	}
	if p.fenced {
		if out.full() {
			return false
		}
		status := provider.StatusOK
		if p.unproven {
			status = provider.StatusUnfenced
		}
		out.put(provider.Completion{Peer: p.handle, Kind: provider.KindFenced, Status: status})
	}
	if p.released {
		d.forget(p)
	}
	return true
}

// deviceError is what the device has told of itself.
type deviceError int

func (e deviceError) Error() string {
	switch int(e) {
	case eventCQError:
		return "the completion queue has failed"
	case eventSRQError:
		return "the shared receive queue has failed"
	case eventDeviceFatal:
		return "the device has failed"
	}
	return fmt.Sprintf("device event %d", int(e))
}
