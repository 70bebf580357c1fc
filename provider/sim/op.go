package sim

import (
	"slices"
	"time"

	"github.com/hawser-project/hawser/provider"
)

// op is a WR in flight. It is used again once it is done and no event names it.
type op struct {
	wr     provider.WR
	from   *end
	src    span
	idx    int    // in from.ops
	chunk  uint64 // bytes of a fragment
	seq    uint64 // of its first fragment among those of from
	seen   uint64 // fragments that have arrived, by bit
	left   uint32 // fragments that have not arrived
	total  uint32 // all of them
	events int    // in the fabric's queue, or held by a cut
	status provider.Status

	done    bool // its completion is queued, or its domain is dead
	waiting bool // a message in the other domain's waiting list
	stalled bool // a write in the other end's stalled list
}

// queued marks a fragment that has already queued for the receiver's port.
const queued = 1 << 31

// start puts a WR on the wire.
func (f *Fabric) start(e *end, wr *provider.WR, src span) {
	var o *op
	if n := len(f.free); n > 0 {
		o, f.free = f.free[n-1], f.free[:n-1]
	} else {
		o = new(op)
	}
	to := e.other
	nic := e.d.nic
	chunk := max(min(nic.MTU, to.d.nic.MTU), (wr.Len+maxFragments-1)/maxFragments)
	frags := max(1, (wr.Len+chunk-1)/chunk)
	*o = op{wr: *wr, from: e, src: src, idx: len(e.ops), seq: e.sent, chunk: chunk, left: uint32(frags), total: uint32(frags)}
	e.ops = append(e.ops, o)
	e.sent += frags
	e.d.busy(nic.PostCost)
	p := e.d.port
	// The engine works on one WR while the wire carries another.
	p.opFree = max(p.opFree, e.d.owner.free) + nic.OpCost
	p.txFree = max(p.txFree, p.opFree)
	for i := range uint32(frags) {
		p.txFree += nic.serial(o.bytes(i))
		f.transmit(p.txFree-f.now, o, i)
	}
}

// transmit sends a fragment that leaves the port after a time.
func (f *Fabric) transmit(after time.Duration, o *op, frag uint32) {
	e := o.from
	late, ok := f.again()
	if !ok {
		f.schedule(after+late, event{kind: evBroken, end: e})
		return
	}
	f.schedule(after+late+e.trip(), event{kind: evFragment, op: o, frag: frag})
	if f.lose() { // its acknowledgement
		f.schedule(after+late+f.cfg.RetryDelay+e.trip(), event{kind: evFragment, op: o, frag: frag})
	}
}

// bytes is the length of a fragment.
func (o *op) bytes(frag uint32) uint64 { return min(o.chunk, o.wr.Len-o.chunk*uint64(frag)) }

// fragment: one reaches the receiver's NIC, whose port takes one at a time.
func (f *Fabric) fragment(ev event) {
	o, to := ev.op, ev.op.from.other
	if ev.frag&queued == 0 {
		n := o.bytes(ev.frag)
		took := to.d.nic.serial(n)
		p := to.d.port
		// It has been coming in for as long as it was sent, but for no longer than it takes here.
		p.rxFree = max(p.rxFree, f.now-min(took, o.from.d.nic.serial(n))) + took
		if wait := p.rxFree - f.now; wait > 0 {
			f.schedule(wait, event{kind: evFragment, op: o, frag: ev.frag | queued})
			return
		}
	}
	frag := ev.frag &^ queued
	f.accepted(to)
	if to.state != up && to.state != closing {
		return // lost; the writer flushes it when it notices
	}
	if o.seen>>frag&1 != 0 {
		f.stats.Duplicates++
		return
	}
	o.seen |= 1 << frag
	if to.d.nic.Ordered {
		f.inOrder(to, o, frag)
		return
	}
	f.arrive(o, frag)
}

// arrive: a fragment that arrived takes effect.
func (f *Fabric) arrive(o *op, frag uint32) {
	to := o.from.other
	if o.wr.Op != provider.OpSend {
		dst, ok := to.remote(&o.wr)
		if !ok {
			o.status = provider.StatusAccess
			if to.d.nic.AccessEnds {
				f.down(to, provider.StatusAccess)
				return
			}
		}
		if o.status == provider.StatusOK {
			copySpan(dst, o.src, o.chunk*uint64(frag), o.bytes(frag))
		}
	}
	if o.left--; o.left > 0 {
		return
	}
	if !to.d.nic.Ordered && f.rng.Uint32()&3 == 0 { // the NIC takes its time to tell
		f.schedule(f.jitter(to.d.nic), event{kind: evPlaced, op: o})
		return
	}
	f.placed(o)
}

// placed: all bytes of an op are where they belong, or were refused.
func (f *Fabric) placed(o *op) {
	to := o.from.other
	switch {
	case to.state != up && to.state != closing:
	case o.wr.Op == provider.OpWrite:
		f.ack(o)
	case o.wr.Op == provider.OpWriteImm && to.unpolled == to.d.nic.PeerDepth:
		o.stalled = true
		to.stalled = append(to.stalled, o)
	case o.wr.Op == provider.OpWriteImm:
		f.immediate(o)
	case to.d.recvs.len() > 0:
		f.match(o)
	default:
		o.waiting = true
		to.d.waiting = append(to.d.waiting, o)
	}
}

func (f *Fabric) ack(o *op) {
	late, _ := f.again() // whoever does not hear it asks again, and is told again
	f.schedule(late+o.from.trip(), event{kind: evAck, op: o})
}

// immediate tells the receiver's owner of a write that was placed or refused.
func (f *Fabric) immediate(o *op) {
	to := o.from.other
	to.unpolled++
	c := provider.Completion{Len: o.wr.Len, Peer: to.peer, Imm: o.wr.Imm, Kind: provider.KindImm}
	if o.status != provider.StatusOK {
		c.Kind, c.Status = provider.KindRefused, o.status
	}
	to.d.complete(entry{c, to})
	f.ack(o)
}

// unstall lets the peer's immediates through for which there is room now.
func (f *Fabric) unstall(e *end) {
	for len(e.stalled) > 0 && e.unpolled < e.d.nic.PeerDepth {
		o := e.stalled[0]
		e.stalled = slices.Delete(e.stalled, 0, 1)
		o.stalled = false
		f.immediate(o)
	}
}

// match puts a message that has arrived into the oldest receive.
func (f *Fabric) match(o *op) {
	to := o.from.other
	r := to.d.recvs.pop()
	c := provider.Completion{Token: r.token, Len: o.wr.Len, Peer: to.peer, Kind: provider.KindRecv}
	if o.wr.Len > r.span.n {
		c.Status = provider.StatusTruncated
	} else {
		copySpan(r.span, o.src, 0, o.wr.Len)
	}
	to.d.complete(entry{c: c})
	f.ack(o)
}

// unwait takes a message out of the waiting list.
func (d *domain) unwait(o *op) {
	o.waiting = false
	for i, x := range d.waiting {
		if x == o {
			last := len(d.waiting) - 1
			d.waiting[i], d.waiting[last] = d.waiting[last], nil
			d.waiting = d.waiting[:last]
			return
		}
	}
}

// finish tells the owner how an op ended.
func (f *Fabric) finish(o *op, st provider.Status) {
	kind := provider.KindWrite
	if o.wr.Op == provider.OpSend {
		kind = provider.KindSend
	}
	e := o.from
	e.d.complete(entry{provider.Completion{Token: o.wr.Token, Peer: e.peer, Kind: kind, Status: st}, e})
	f.retire(o)
}

// retire takes an op out of every list. No byte of it moves after that.
func (f *Fabric) retire(o *op) {
	e := o.from
	last := len(e.ops) - 1
	e.ops[o.idx] = e.ops[last]
	e.ops[o.idx].idx = o.idx
	e.ops[last] = nil
	e.ops = e.ops[:last]
	if o.waiting {
		e.other.d.unwait(o)
	}
	if o.stalled {
		to := e.other
		i := slices.Index(to.stalled, o)
		to.stalled = slices.Delete(to.stalled, i, i+1)
	}
	o.done = true
	f.recycle(o)
}

func (f *Fabric) recycle(o *op) {
	if o.events == 0 {
		*o = op{}
		f.free = append(f.free, o)
	}
}
