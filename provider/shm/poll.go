package shm

import (
	"github.com/hawser-project/hawser/provider"
)

// visitBatch bounds the completions that one visit takes from a peer, so that a busy one leaves room for the others; it also bounds the
// message bytes copied in a visit.
const visitBatch = 32

// Poll copies what is queued and takes what arrived.
// hot:
func (d *domain) Poll(cs []provider.Completion) (int, error) {
	if d.closed {
		return 0, errPollClosed
	}
	d.ticks++
	if d.armed {
		d.disarm()
		d.ticks = controlTicks // the bell may have rung for a socket
	}
	if d.ticks >= controlTicks {
		d.control()
	}
	if d.active.len() > 0 {
		d.progress()
	}
	// In turns, so that with a short cs neither side starves the other.
	d.turn = !d.turn
	n := 0
	if d.turn {
		n = d.deliver(cs)
	}
	n += d.visitAll(cs[n:])
	n += d.deliver(cs[n:])
	d.ticks += n
	return n, nil
}

// deliver hands over completions of WRs.
// hot:
func (d *domain) deliver(cs []provider.Completion) int {
	n := min(len(cs), d.done.len())
	for i := range n {
		r := d.done.at(i)
		cs[i] = r.c
		switch {
		case r.p != nil:
			r.p.out--
			r.p = nil
		case r.c.Kind == provider.KindRecv:
			d.recvOut--
		default:
			d.strays--
		}
	}
	d.done.drop(n)
	return n
}

// visitAll looks at the peers in turn.
// hot:
func (d *domain) visitAll(cs []provider.Completion) int {
	n := 0
	d.pullLeft = pullBudget
	for range min(len(d.live), visitsPerCall) {
		if n == len(cs) || len(d.live) == 0 || d.pullLeft <= 0 {
			break
		}
		if d.cursor >= len(d.live) {
			d.cursor = 0
		}
		p := d.live[d.cursor]
		d.cursor++
		n += d.visit(p, cs[n:])
	}
	return n
}

// visit takes what p has for the owner. cs is not empty.
// hot:
func (d *domain) visit(p *peer, cs []provider.Completion) int {
	n := 0
	if !p.announced && p.wasUp {
		p.announced = true
		cs[0] = provider.Completion{Peer: p.handle, Kind: provider.KindPeerUp}
		n = 1
	}
	if p.state == stateUp {
		n += d.takeImms(p, cs[n:])
		n += d.takeMessages(p, cs[n:])
		return n
	}
	return n + d.conclude(p, cs[n:])
}

// takeImms takes immediates, after checking each.
// hot:
func (d *domain) takeImms(p *peer, cs []provider.Completion) int {
	if p.pull.queue.len() > 0 || p.pull.cut {
		return d.pull(p, cs)
	}
	n := 0
	for n < min(len(cs), visitBatch) {
		e, ok, err := p.immIn.Next()
		if err == nil && ok && e.A > maxMsg && d.takeLoans(p, e) {
			return n + d.pull(p, cs[n:])
		}
		if err != nil || ok && e.A > maxMsg {
			d.breach(p)
			return n
		}
		if !ok {
			break
		}
		cs[n] = provider.Completion{Len: e.A, Peer: p.handle, Imm: e.B, Kind: provider.KindImm}
		n++
	}
	if n == 0 {
		return 0
	}
	d.awaited = false
	if p.immIn.Release() {
		d.ring(p)
	}
	return n
}

// takeMessages moves messages into posted receives.
// hot:
func (d *domain) takeMessages(p *peer, cs []provider.Completion) int {
	if d.recvs.len() == 0 || p.msgIn.Empty() {
		return 0
	}
	n, took := 0, false
	for n < min(len(cs), visitBatch) && d.recvs.len() > 0 {
		size, ok, err := p.msgIn.Next(maxSend)
		if err != nil {
			d.breach(p)
			return n
		}
		if !ok {
			break
		}
		r := d.recvs.at(0)
		c := &cs[n]
		*c = provider.Completion{Token: r.Token, Len: size, Peer: p.handle, Kind: provider.KindRecv}
		dst, ok := d.local(r.LocalKey, r.LocalAddr, r.Len)
		switch {
		case !ok: // its memory was deregistered: the message goes to the next
			c.Peer, c.Len, c.Status = 0, 0, provider.StatusLocal
		case size > r.Len:
			c.Status = provider.StatusTruncated
			p.msgIn.Drop(size)
			took = true
		default:
			p.msgIn.Take(dst[:size])
			took = true
		}
		d.recvs.drop(1)
		d.recvOut--
		n++
	}
	if took && p.msgIn.Release() {
		d.ring(p)
	}
	return n
}

// conclude brings a connection that is ending to its end: what arrived, the flushed WRs (which deliver hands over),
// KindPeerDown, KindFenced.
func (d *domain) conclude(p *peer, cs []provider.Completion) int {
	if p.lend.jobs > 0 {
		d.flushLoans(p)
	}
	// Looked at before the rings: what a writer published before it was quiet is then seen in them.
	settled := p.state == stateDown || !p.fencing || p.quiet() || p.timedOut
	n := 0
	if p.state == stateEnding && p.pair != nil && !p.broken {
		n += d.takeImms(p, cs)
		n += d.takeMessages(p, cs[n:])
		if !p.broken && d.left(p) {
			return n
		}
	}
	if !settled || n == len(cs) {
		return n
	}
	if p.state == stateEnding {
		if p.out > 0 {
			return n
		}
		p.state = stateDown
		cs[n] = provider.Completion{Peer: p.handle, Kind: provider.KindPeerDown, Status: p.why}
		n++
	}
	if p.fencing {
		return n + d.concludeFence(p, cs[n:])
	}
	if p.release {
		d.releasePeer(p)
		return n
	}
	d.unlive(p)
	if p.eof {
		d.dropPair(p)
	}
	return n
}

// left reports whether something arrived before the end that the owner can still take.
func (d *domain) left(p *peer) bool {
	if !p.immIn.Empty() && !p.pull.cut {
		return true
	}
	waiting := d.recvs.len() > 0 || p.grace && !p.timedOut
	return waiting && !p.msgIn.Empty()
}

// concludeFence delivers the outcome of Fence, if it is known.
func (d *domain) concludeFence(p *peer, cs []provider.Completion) int {
	quiet := p.quiet()
	if len(cs) == 0 || !quiet && !p.timedOut {
		return 0
	}
	cs[0] = provider.Completion{Peer: p.handle, Kind: provider.KindFenced}
	p.fencing, p.deadline = false, 0
	if quiet {
		d.releasePeer(p)
		return 1
	}
	cs[0].Status = provider.StatusUnfenced
	cs[0].Detail = p.rx.slot.Load() // 1 + the index of the region that it is about to change
	d.unlive(p)
	return 1
}

// Arm makes the epoch odd and then looks at everything that could ring: a peer that publishes later sees the odd epoch.
func (d *domain) Arm() bool {
	if d.closed || d.expects() {
		return true
	}
	// A new odd epoch even when it is odd already: a peer may have rung for this one, and the ring may have been for something
	// that waits for the owner.
	d.epoch += 1 + d.epoch&1
	d.page.epoch.Store(d.epoch)
	d.armed = true
	if d.done.len() > 0 || d.runnable() || d.arrived() || d.pending() {
		d.disarm()
		d.ticks = controlTicks
		return true
	}
	return false
}

// expects reports, once until something comes, that a peer is in the middle of a copy. It will publish within about the time that a
// sleep and a wake take, and the wake would cost it as much again. Only once, because it may have been stopped there.
func (d *domain) expects() bool {
	if d.awaited {
		return false
	}
	for _, p := range d.live {
		if p.state == stateUp && p.rx.slot.Load() != 0 {
			d.awaited = true
			return true
		}
	}
	return false
}

func (d *domain) disarm() {
	d.armed = false
	d.epoch++
	d.page.epoch.Store(d.epoch)
}

// runnable reports whether a job can move on now; the peers of those that cannot are asked to ring when they can.
func (d *domain) runnable() bool {
	for i := range d.active.len() {
		p := *d.active.at(i)
		if p.state != stateUp {
			continue
		}
		if p.writes.len() > 0 {
			j := p.writes.at(0)
			if p.lend.jobs > 0 || j.wr.Len > 0 && p.lends(j.wr.RemoteKey) != nil {
				if p.lendable() {
					return true
				}
			} else if room, err := p.immOut.Room(1); err != nil || room > 0 || j.wr.Op != provider.OpWriteImm || p.immOut.Wait() {
				return true
			}
		}
		if p.sends.len() > 0 && (p.sent == 0 || p.msgOut.Wait()) {
			return true
		}
	}
	return false
}

// arrived reports whether Poll would deliver something of a peer.
func (d *domain) arrived() bool {
	for _, p := range d.live {
		switch {
		case !p.announced && p.wasUp:
			return true
		case p.state == stateUp:
			if !p.immIn.Empty() || p.pull.queue.len() > 0 || d.recvs.len() > 0 && !p.msgIn.Empty() {
				return true
			}
		case d.owes(p):
			return true
		}
	}
	return false
}

// owes reports whether conclude would deliver something, when no WR is waiting for deliver.
func (d *domain) owes(p *peer) bool {
	if p.lend.jobs > 0 {
		return d.sourcesDue(p)
	}
	if p.state == stateEnding && p.pair != nil && !p.broken {
		switch {
		case !p.immIn.Empty() && !p.pull.cut:
			return true
		case !p.msgIn.Empty() && d.recvs.len() > 0:
			return true
		case !p.msgIn.Empty() && p.grace && !p.timedOut:
			return false // the timer rings when they have waited long enough
		}
	}
	return !p.fencing || p.quiet() || p.timedOut
}
