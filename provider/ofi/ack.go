//go:build cgo

package ofi

import (
	"slices"

	"github.com/hawser-project/hawser/provider"
)

// libfabric's shm has no acknowledgement of its own that is of use for short writes: with FI_DELIVERY_COMPLETE it keeps one of them under
// way (release 1.17), without it they complete when they are queued. So here every write carries data, a plain one too; the receiver
// counts the short ones of a peer, which arrive in order, and writes the count back. They are copied when they are posted, and nobody needs to
// hear of it (opQuiet). Long writes are copied by the receiver and complete then.
//
// A write under a key that has ended is dropped by the receiver's library. So that it is not counted as another one, Deregister takes
// what has arrived before it ends the key, says how many writes that were, and sends no counts until the writer has answered that it
// knows.
//
// libfabric's tcp acknowledges each write that asks for it with a message of its own, which costs what a short write costs. Writes of one
// connection are placed in the order of posting, so only the last of those that are posted at once asks (opCover): when it ends well, all
// before it have been placed. They are posted in one crossing, which makes no progress, and so to one socket: one that breaks takes the
// cover with it, and libfabric says so. The receiver counts here, too, to tell with the end of a key what came before.

const (
	// ackMax is the longest write that is acknowledged by a count: what shm copies when it is posted.
	ackMax = 4096
	// countsAtOnce writes are told with one count; fewer when no more come.
	countsAtOnce = 32
	// coverLen is the length from which a write asks for itself, so that a completion does not wait for much that comes later.
	coverLen = 256 << 10
	// markPlain in the upper half of the data: no immediate. The lower half is 0, or markCount and a count.
	markPlain = 1 << 31
	markCount = 1 << 31
	countMask = markCount - 1
)

// Outcomes of operations under way that C does not set.
const (
	dead  outcome = 3 // its key has ended
	sent  outcome = 4 // libfabric is done with it, the count or cover has not come
	acked outcome = 5 // the other way round
)

// acking is the state of counts with one peer.
type acking struct {
	// As the writer: writes that are counted or covered, and have been posted and not been yet, oldest first.
	unacked [peerDepth]uint8
	head    uint8
	n       int
	counted uint32

	// As the receiver.
	arrived uint32
	fresh   bool // something has arrived since gatherAck looked last
	told    uint32
	barrier int // keys whose end the writer has not acknowledged
	op      *op
}

// counts reports whether writes of a length are counted by the receiver.
//
// hot:
func (d *domain) counts(n uint64) bool { return d.covers || d.acks && n <= ackMax }

// posted notes a counted write that libfabric has taken.
//
// hot:
func (a *acking) posted(slot uint8) {
	a.unacked[a.head+uint8(a.n)] = slot
	a.n++
}

// done: libfabric is done with a write of p.
//
// hot:
func (d *domain) done(p *peer, o *op) {
	switch {
	case !d.counts(uint64(o.len)) || o.outcome == acked:
		d.complete(p, o, provider.StatusOK)
	case o.kind == opCover:
		d.covered(p, o)
	case o.outcome != dead:
		o.outcome = sent
	}
}

// covered: o has been placed, and so has all that was posted before.
//
// hot:
func (d *domain) covered(p *peer, o *op) {
	a := &p.ack
	for a.n > 0 {
		x := &p.ops[a.unacked[a.head]]
		a.head++
		a.n--
		a.counted = (a.counted + 1) & countMask
		if x == o {
			break
		}
		if x.outcome == posted {
			x.outcome = acked
		} else {
			d.complete(p, x, provider.StatusOK)
		}
	}
	d.complete(p, o, provider.StatusOK)
}

// bare reports whether writes of p have been posted, and no cover after them.
func (p *peer) bare() bool {
	a := &p.ack
	return a.n > 0 && p.ops[a.unacked[a.head+uint8(a.n-1)]].kind != opCover
}

// count takes the number of counted writes that have arrived at p and reports false when that cannot be. A count that says less than is known
// was overtaken by another.
//
// hot:
func (d *domain) count(p *peer, c uint32) bool {
	a := &p.ack
	n := int((c - a.counted) & countMask)
	if n > countMask/2 {
		return true
	}
	if n > a.n {
		return false
	}
	a.counted = c & countMask
	for ; n > 0; n-- {
		o := &p.ops[a.unacked[a.head]]
		a.head++
		a.n--
		if o.outcome == sent {
			d.complete(p, o, provider.StatusOK)
		} else {
			o.outcome = acked
		}
	}
	return true
}

// gatherAck adds the count that is due to p. One costs as much as a write: where writes go on arriving, there is one for some.
//
// hot:
func (d *domain) gatherAck(p *peer) {
	a := &p.ack
	due := (a.arrived - a.told) & countMask
	if due == 0 || a.barrier > 0 {
		return
	}
	if a.fresh && due < countsAtOnce {
		a.fresh = false
		d.put = true
		d.activate(p)
		return
	}
	o := a.op
	o.kind, o.dest, o.len = opQuiet, p.data, 0
	o.buf, o.desc = d.nothing()
	o.raddr, o.rkey = p.remote.scratch[0], p.remote.scratch[1]
	o.data = (uint64(p.remote.handle)|markPlain)<<32 | markCount | uint64(a.arrived&countMask)
	d.add(o)
}

// settleAck looks at what has become of a count.
func (d *domain) settleAck(p *peer, o *op) {
	if o.outcome == posted {
		p.ack.told = uint32(o.data) & countMask
		return
	}
	if o.outcome == waits {
		d.noteStuck(o.dest)
	}
	d.activate(p)
}

// barred tells p that a key has ended under which it may have written.
func (d *domain) barred(p *peer, id uint64) {
	p.note(d, note{kind: noteUngrant, a: id, b: p.ack.arrived & countMask})
	if d.acks {
		p.ack.barrier++
	}
}

// refuseCounted completes short writes under a key that has ended: those that are not counted have been dropped. Where writes are covered
// the connection ends of it, and completes them.
func (d *domain) refuseCounted(p *peer, rkey uint64) {
	if d.covers {
		return
	}
	a := &p.ack
	keep := 0
	for i := range a.n {
		slot := a.unacked[a.head+uint8(i)]
		if o := &p.ops[slot]; o.rkey == rkey && o.len > 0 {
			if o.outcome == sent {
				d.complete(p, o, provider.StatusAccess)
			} else {
				o.outcome = dead
			}
			continue
		}
		a.unacked[a.head+uint8(keep)] = slot
		keep++
	}
	a.n = keep
}

// judge ends the connections of which a write was dropped because its key had ended, where libfabric does not tell the writer. Over shm
// everything that was posted later waits behind it; what had arrived before is known here already, as the other side's message about the
// key came after it. Datagrams may be under way for a while.
func (d *domain) judge() {
	d.drain()
	d.suspects = slices.DeleteFunc(d.suspects, func(p *peer) bool {
		if p.phase != up || !slices.ContainsFunc(p.ops, dropped) {
			return true
		}
		if d.now < p.suspect {
			return false
		}
		d.fail(p, provider.StatusAccess, 0)
		return true
	})
}

// dropped reports whether the key of a write that is under way has ended.
func dropped(o op) bool { return o.kind.writes() && o.outcome == dead }
