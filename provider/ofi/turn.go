//go:build cgo

package ofi

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/provider"
)

// slowEvery is how many Polls look at time-outs and at the deaths of processes once.
const slowEvery = 256

// Poll implements [provider.Domain]. It posts what waits and reads completions, in one crossing.
//
// hot:
func (d *domain) Poll(cs []provider.Completion) (int, error) {
	if d.closed {
		return 0, d.errorf("poll: %w", provider.ErrClosed)
	}
	if d.sleep.armed || d.sleep.listens {
		d.sleep.disarm(d)
		d.turns = 0
	}
	if d.out.len() == 0 {
		if d.dead != nil {
			return 0, d.dead
		}
		if d.turns%slowEvery == 0 {
			d.slow()
		}
		d.turns++
		d.turn()
	}
	n := 0
	for ; n < len(cs) && d.out.len() > 0; n++ {
		cs[n] = d.out.pop()
		if c := &cs[n]; c.Kind == provider.KindPeerDown {
			d.toldDown(c.Peer)
		}
	}
	return n, nil
}

// toldDown: nothing but KindFenced follows for this handle.
func (d *domain) toldDown(h provider.Peer) {
	p := d.peer(h)
	p.told = true
	if p.released {
		d.finish(p)
	}
}

// turn moves everything forward by a bounded amount.
//
// hot:
func (d *domain) turn() {
	d.gather()
	d.moved = d.nbatch > 0 || d.put
	d.rail.step(d.batch[:d.nbatch], d.flags, d.entries, d.from, entriesPerPoll)
	d.settleBatch()
	d.digest()
	if len(d.suspects) > 0 {
		d.judge()
	}
	if len(d.dying) > 0 {
		d.settle()
	}
	if len(d.ending) > 0 {
		d.endQuiet()
	}
	if len(d.held) > 0 || len(d.haunted) > 0 {
		d.admit()
	}
	if d.notes.retry.len() > 0 && d.notes.farewell {
		d.notes.farewell = false
		d.nbatch = 0
		d.gatherNotes()
		d.rail.step(d.batch[:d.nbatch], d.flags, d.entries, nil, 0)
		d.settleBatch()
	}
}

// digest takes what the last step has read.
//
// hot:
func (d *domain) digest() {
	r := d.rail.out
	d.now = int64(r.now)
	n := int(r.entries)
	if n < 0 {
		d.die(n)
		return
	}
	for i := range d.entries[:n] {
		d.entry(&d.entries[i], i)
	}
	if r.has_error != 0 {
		d.errored()
	}
	d.moved = d.moved || n > 0 || r.has_error != 0
	if d.moved {
		d.sleep.nap = 0 // where something came, more may follow
	}
}

// entry is one completion of libfabric, the k-th of a step.
//
// hot:
func (d *domain) entry(e *entry, k int) {
	if e.flags&flagRemoteData != 0 {
		d.arrived(e, d.sender(e, k))
		return
	}
	o := (*op)(e.context)
	switch {
	case o == nil:
		d.unknown++
	case o.kind.writes():
		p := d.peers[o.peer]
		if p == nil || p.ops == nil || !inside(p.ops, o) {
			return
		}
		if p.inflight > 0 {
			p.inflight--
			d.done(p, o)
		}
	case o.kind == opFree: // it was flushed when its connection ended
		d.ghost(o)
	case o.kind == opSend:
		d.noteDone(o)
	case o.kind == opRecv:
		d.heard(o, e.len)
	}
}

// arrived is a write with data of p, which is nil when it is not known whose it is: an immediate.
//
// hot:
func (d *domain) arrived(e *entry, p *peer) {
	if p == nil || p.phase != up {
		if p == nil || p.phase != greeting && p.phase != welcomed {
			d.unknown++
			return
		}
		d.up(p) // its welcome is on the way, or that it is ready
	}
	if d.bySource {
		d.out.push(provider.Completion{Len: e.len, Peer: p.handle, Imm: uint32(e.data), Kind: provider.KindImm})
		return
	}
	if e.data>>32&markPlain != 0 && e.data&markCount != 0 {
		if !d.count(p, uint32(e.data)) {
			d.fail(p, provider.StatusProtocol, 0)
		}
		return
	}
	if d.counts(e.len) {
		p.ack.arrived++
		if d.acks {
			p.ack.fresh = true
			d.activate(p)
		}
	}
	if e.data>>32&markPlain != 0 {
		return
	}
	d.out.push(provider.Completion{Len: e.len, Peer: p.handle, Imm: uint32(e.data), Kind: provider.KindImm})
}

// refusal reports whether an error of libfabric means that the other side refused a write.
func refusal(code int) bool {
	switch unix.Errno(code) {
	case unix.EACCES, unix.EPERM, unix.EFAULT, unix.EKEYREJECTED:
		return true
	}
	return false
}

// errored is a completion with an error.
func (d *domain) errored() {
	e := &d.rail.out.error
	o, code := (*op)(e.context), int(e.err)
	switch {
	case e.flags&flagRemoteData != 0 || o == nil:
		d.unknown++
	case o.kind.writes():
		p := d.peers[o.peer]
		if p == nil || p.ops == nil || p.inflight == 0 || !inside(p.ops, o) {
			return // a count, and then other writes tell
		}
		p.inflight--
		if d.hardware && refusal(code) || d.efa && e.prov_errno == efaBadAddress { // the connection goes on
			d.complete(p, o, provider.StatusAccess)
			return
		}
		if p.failing {
			return // end completes it
		}
		d.fail(p, provider.StatusPeerDown, uint32(code))
		p.grace = d.now + graceNanos
	case o.kind == opFree:
		d.ghost(o)
	case o.kind == opSend:
		d.lost(o, uint32(code))
	case o.kind == opRecv:
		d.notes.repost.push(uint16(indexOf(d.notes.in, o)))
	}
}

// graceNanos is how long the end of a connection waits for the other side to say why it ended: because a key had.
const graceNanos = int64(100e6)

// lost is a control message that could not be sent.
func (d *domain) lost(o *op, code uint32) {
	h := d.notes.meta[indexOf(d.notes.out, o)].handle
	d.noteDone(o)
	if p := d.peer(h); p != nil && h != 0 {
		d.fail(p, provider.StatusPeerDown, code)
	}
}

// die ends the Domain: libfabric's queue is broken.
func (d *domain) die(code int) {
	if d.dead == nil {
		d.dead = d.errorf("poll: %w", fmt.Errorf("completion queue: %w", unix.Errno(-code)))
	}
}

// drain reads until libfabric has nothing more, or has given as much as can have been there before: what peers go on writing does not
// keep the owner here.
func (d *domain) drain() {
	for left := d.backlog(); left > 0 && d.dead == nil; {
		d.rail.step(nil, 0, d.entries, d.from, entriesPerPoll)
		n := int(d.rail.out.entries)
		if n == 0 && d.rail.out.has_error == 0 {
			return
		}
		left -= max(n, 1)
		d.digest()
	}
}

// backlog is how much can have arrived or ended and not been read: what the queue holds and, of each peer, its window and ours, which
// libfabric may still have to move to the queue.
func (d *domain) backlog() int { return queueDepth + noteRecvs + noteBufs + d.live*2*peerDepth }

// endQuiet ends the connections of a shared endpoint whose writes have all come back.
func (d *domain) endQuiet() {
	d.ending = slices.DeleteFunc(d.ending, func(p *peer) bool {
		if p.inflight > 0 && d.now < p.deadline && !p.bye {
			return false
		}
		d.drain()
		d.end(p)
		return true
	})
}

// slow is what need not be looked at in each Poll.
func (d *domain) slow() {
	d.sleep.look(d)
	if len(d.connecting) == 0 {
		return
	}
	now := d.clock()
	d.connecting = slices.DeleteFunc(d.connecting, func(p *peer) bool {
		if p.phase != waiting && p.phase != greeting && p.phase != welcomed {
			return true
		}
		if now >= p.deadline || !d.hardware && p.phase == greeting && (p.claimed || !d.bySource) && !p.reached && now >= p.deadline-int64(provider.ConnectTimeout-connectSlack-reachBound) {
			var detail uint32
			if d.bySource && !p.claimed {
				detail = DetailBusy
			}
			d.fail(p, provider.StatusRefused, detail)
			return true
		}
		return false
	})
}
