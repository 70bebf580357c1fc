//go:build cgo

package verbs

import (
	"errors"

	"github.com/hawser-project/hawser/provider"
)

// control is what is sent and heard over one control queue pair. Counts are modulo 2^32.
type control struct {
	records    fifo[record]         // to be sent
	sent, done uint64               // requests at the card, probes too
	slots      [stagingSlots]uint32 // by request: 1 + the region that it reads, 0 for a record or probe
	notified   uint32               // notifications sent
	credited   uint32               // of these, for how many the peer has posted a receive again
	written    uint32               // records sent
	broken     bool                 // the queue pair has failed
	mute       bool                 // nothing is sent any more

	heard, toldHeard uint32 // notifications that came, and what the peer knows of it
	read             uint32 // records that came
}

// What the immediate of a notification says.
const (
	noteRecord  = 1 // the next slot of the inbox holds a record
	noteMessage = 2 // a message was written behind the one before
)

// Of the window, the last notification is for a goodbye and the one before it for credit: whoever has run out of credit can
// still give it.
const (
	byeReserve    = 0
	creditReserve = 1
	otherReserve  = 2
)

// creditAt is how many notifications a peer is owed before it is told for that alone.
const creditAt = (notifyWindow - otherReserve) / 2

// restart forgets what was sent: the peer has heard nothing.
func (c *control) restart() {
	c.sent, c.done, c.notified, c.credited, c.written, c.broken = 0, 0, 0, 0, 0, false
}

// room reports whether one more notification may be sent, with reserve left.
//
// hot:
func (c *control) room(p *peer, reserve uint32) bool {
	return !c.broken && !c.mute && c.notified-c.credited+reserve < p.remote.notifyWindow && c.sent-c.done < controlDepth-1
}

// identity names a request: whose it is, over which queue pair, and which one in order.
const (
	identityRole = provider.PeerIndexBits
	identitySeq  = identityRole + 2
)

func identity(p *peer, role, seq uint64) uint64 {
	return uint64(p.handle.Index()) | role<<identityRole | seq<<identitySeq
}

// tell has a record sent when there is room.
func (d *domain) tell(p *peer, r record) {
	p.control.records.push(r)
	d.activate(p)
}

// converse sends what there is to say and what the peer has room for.
//
// hot:
func (d *domain) converse(p *peer) {
	c := &p.control
	for c.records.len() > 0 && c.room(p, otherReserve) {
		r := c.records.pop()
		d.sendRecord(p, &r)
	}
	d.submitMessages(p)
	if d.caughtUp && p.owesCredit() && c.room(p, creditReserve) {
		d.sendRecord(p, &record{kind: recCredit})
	}
}

// owesCredit reports whether the peer should be told of our counts.
//
// hot:
func (p *peer) owesCredit() bool {
	a := &p.arrived
	return p.mailTaken() || p.control.heard-p.control.toldHeard >= creditAt || a.count-a.told >= max(1, p.immWindow()/4)
}

// immWindow is how many immediates the peer may have on its way to us.
//
// hot:
func (p *peer) immWindow() uint32 { return uint32(p.receives - notifyWindow) }

// sendRecord sends a record with the counts that the peer may know.
func (d *domain) sendRecord(p *peer, r *record) {
	c := &p.control
	if d.caughtUp {
		p.arrived.told, c.toldHeard = p.arrived.count, c.heard
	}
	p.arrived.toldTaken = p.arrived.taken
	r.imms, r.notifies, r.taken = p.arrived.told, c.toldHeard, p.arrived.taken
	at := inboxStaging + int(c.sent%stagingSlots)*recordSize
	r.put((*[recordSize]byte)(p.inbox.mem[at:]))
	d.notify(p, sendWR{
		local: addressOf(p.inbox.mem[at:]), len: recordSize, lkey: p.inbox.reg.lkey, imm: noteRecord,
		remote: p.remote.inbox + inboxRecords + uint64(c.written%notifyWindow)*recordSize, rkey: p.remote.inboxKey,
	}, 0)
	c.written++
}

// notify sends a write with an immediate over the control queue pair.
//
// hot:
func (d *domain) notify(p *peer, s sendWR, slot uint32) {
	c := &p.control
	c.slots[c.sent%stagingSlots] = slot
	s.id, s.qp, s.flags = identity(p, roleControl, c.sent), p.ctl.handle(), sendImm|sendSignaled
	c.sent++
	c.notified++
	d.push(&s)
}

// probe asks the peer's card for an answer: a write of no bytes that its owner does not see.
func (d *domain) probe(p *peer) {
	c := &p.control
	c.slots[c.sent%stagingSlots] = 0
	d.push(&sendWR{id: identity(p, roleControl, c.sent), qp: p.ctl.handle(), flags: sendSignaled})
	c.sent++
}

// controlDone takes a completion of the control queue pair.
//
// hot:
func (d *domain) controlDone(p *peer, seq uint64, w *workDone) {
	c := &p.control
	if c.broken {
		return
	}
	if w.status != wcSuccess {
		c.broken = true
		d.controlFailed(p, w)
		return
	}
	for n := c.done + (seq+1-c.done)&seqMask; c.done != n; c.done++ {
		if slot := &c.slots[c.done%stagingSlots]; *slot > 0 {
			d.unpost(*slot - 1)
			*slot = 0
		}
	}
	switch p.phase {
	case greeting:
		p.greeted = true
		if p.helloed {
			d.rise(p)
		}
	default:
		d.activate(p)
	}
}

// seqMask is what fits of a sequence number into an identity.
const seqMask = 1<<(64-identitySeq) - 1

func (d *domain) controlFailed(p *peer, w *workDone) {
	switch p.phase {
	case greeting:
		p.again = true
		d.activate(p)
	case up:
		d.lose(p, provider.StatusPeerDown, w.detail())
	default:
		d.activate(p)
	}
}

// detail is a completion's error for Completion.Detail: the status of the specification, and above it the maker's own code.
func (w *workDone) detail() uint32 { return w.status | w.vendor<<8 }

// heardNote takes a notification of the peer.
//
// hot:
func (d *domain) heardNote(p *peer, w *workDone) {
	c := &p.control
	if p.phase == greeting && p.helloed {
		d.rise(p) // our own hello has arrived, or the peer would say nothing more
	}
	c.heard++
	if c.heard-c.toldHeard > notifyWindow {
		d.violate(p)
		return
	}
	switch {
	case w.imm == noteMessage && p.hears():
		d.heardMessage(p, w.len)
	case w.imm == noteRecord && w.len == recordSize:
		at := inboxRecords + int(c.read%notifyWindow)*recordSize
		c.read++
		r := readRecord((*[recordSize]byte)(p.inbox.mem[at:]))
		d.heardRecord(p, &r)
	case p.phase <= up:
		d.violate(p)
	}
	d.activate(p)
}

// heardRecord does what a record says. Nothing in it is trusted.
func (d *domain) heardRecord(p *peer, r *record) {
	if p.phase > up {
		return
	}
	if p.phase != up {
		if r.kind != recHello {
			d.violate(p)
			return
		}
		d.heardHello(p, r)
		return
	}
	if !d.credit(p, r) {
		d.violate(p)
		return
	}
	ok := true
	switch r.kind {
	case recCredit:
	case recGrant:
		if ok = p.learn(r); ok {
			d.tell(p, record{kind: recGranted, slot: r.slot, serial: r.serial})
		}
	case recGranted:
		if r.slot < uint32(len(p.grants.table)) {
			if g := &p.grants.table[r.slot]; g.serial == r.serial {
				g.known = true
			}
		}
	case recEnd:
		ok = p.unlearn(r)
	case recRenew:
		ok = d.heardRenew(p, r)
	case recRenewed:
		ok = d.heardRenewed(p, r)
	case recBye:
		d.lose(p, provider.StatusPeerDown, 0)
	default:
		ok = false
	}
	if !ok {
		d.violate(p)
	}
}

// credit takes the counts of a record; false when they cannot be.
func (d *domain) credit(p *peer, r *record) bool {
	c, w, m := &p.control, &p.writes, &p.msgs
	if r.notifies-c.credited > c.notified-c.credited || r.taken-m.taken > m.posted-m.taken {
		return false
	}
	c.credited = r.notifies
	m.take(r.taken)
	if w.broken {
		return true // of a queue pair that is gone
	}
	if r.imms-w.immCredit > w.immSent-w.immCredit {
		return false
	}
	w.immCredit = r.imms
	return true
}

// violate ends the connection to a peer that broke the protocol.
func (d *domain) violate(p *peer) {
	if p.phase > up {
		return
	}
	d.stats.Violations++
	status := provider.StatusProtocol
	if p.phase != up {
		status = provider.StatusRefused
	}
	d.lose(p, status, 0)
}

func asErrno(err error) (errno, bool) {
	var e errno
	ok := errors.As(err, &e)
	return e, ok
}
