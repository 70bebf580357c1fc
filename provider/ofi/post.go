//go:build cgo

package ofi

import (
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/provider"
)

// Kinds of an op that C does not see.
const (
	opFree       opKind = 0
	opUnresolved opKind = 16 // a write that waits for what its key is; an immediate when data says so
	opMessage    opKind = 17 // a message; data is how far it is
)

// Post implements [provider.Domain]. The writes of one call go to libfabric in one crossing.
//
// hot:
func (d *domain) Post(wrs []provider.WR) (int, error) {
	if d.closed {
		return 0, d.errorf("post: %w", provider.ErrClosed)
	}
	if d.dead != nil {
		return 0, d.dead
	}
	n := 0
	for n < len(wrs) && d.post(&wrs[n]) {
		n++
	}
	if d.active.len() > 0 {
		d.gather()
		if d.nbatch > 0 {
			d.rail.step(d.batch[:d.nbatch], d.flags, d.entries, nil, 0)
			d.settleBatch()
		}
	}
	return n, nil
}

// post takes one WR and reports false when there is no room for it.
//
// hot:
func (d *domain) post(wr *provider.WR) bool {
	switch wr.Op {
	case provider.OpWrite, provider.OpWriteImm:
		return d.postWrite(wr)
	case provider.OpSend:
		return d.postSend(wr)
	case provider.OpRecv:
		return d.postRecv(wr)
	}
	return d.reject(wr, provider.KindWrite, provider.StatusLocal)
}

// reject completes a WR that is not executed.
func (d *domain) reject(wr *provider.WR, kind provider.Kind, status provider.Status) bool {
	if d.out.len() >= errorDepth {
		return false
	}
	d.out.push(provider.Completion{Token: wr.Token, Peer: wr.Peer, Kind: kind, Status: status})
	return true
}

// late rejects a WR to a peer that is not up. While its KindPeerDown is on the way there is no room: the completion would come after it.
func (d *domain) late(p *peer, wr *provider.WR, kind provider.Kind) bool {
	if p != nil && !p.told && (p.failing || p.phase >= ending) {
		return false
	}
	return d.reject(wr, kind, provider.StatusFlushed)
}

// local finds the memory of a WR.
//
// hot:
func (d *domain) local(wr *provider.WR) (buf, desc unsafe.Pointer, ok bool) {
	if wr.Len == 0 {
		buf, desc = d.nothing()
		return buf, desc, true
	}
	r := d.registered(wr.LocalKey)
	if r == nil {
		return nil, nil, false
	}
	off := wr.LocalAddr - r.base
	if off > r.n || wr.Len > r.n-off {
		return nil, nil, false
	}
	// safe: off is within the memory.
	return unsafe.Add(r.ptr, off), r.local.desc, true
}

// nothing is memory of ours for writes of no bytes.
//
// hot:
func (d *domain) nothing() (buf, desc unsafe.Pointer) {
	return unsafe.Pointer(&d.page[0]), d.scratch.desc
}

// hot:
func (d *domain) postWrite(wr *provider.WR) bool {
	p := d.peer(wr.Peer)
	if p == nil || p.phase != up || p.failing {
		return d.late(p, wr, provider.KindWrite)
	}
	if p.nfree == 0 {
		return false
	}
	buf, desc, ok := d.local(wr)
	if !ok || wr.Len > d.caps.MaxMsg {
		return d.reject(wr, provider.KindWrite, provider.StatusLocal)
	}
	slot := p.free[p.nfree-1]
	o := &p.ops[slot]
	o.kind, o.data = opWriteData, uint64(p.remote.handle)<<32|uint64(wr.Imm)
	if d.bySource {
		o.data = uint64(wr.Imm)
	}
	if wr.Op == provider.OpWrite {
		o.kind, o.data = d.plainKind, (uint64(p.remote.handle)|markPlain)<<32
	}
	o.raddr, o.rkey = p.remote.scratch[0], p.remote.scratch[1]
	if wr.Len > 0 {
		if k := p.lookup(wr.RemoteKey); k != nil {
			off := wr.RemoteAddr - k.base
			if off > k.n || wr.Len > k.n-off {
				o.kind = opFree
				return d.reject(wr, provider.KindWrite, provider.StatusAccess)
			}
			o.raddr, o.rkey = k.raddr+off, k.rkey
		} else {
			o.kind, o.raddr, o.rkey = opUnresolved, wr.RemoteAddr, wr.RemoteKey
		}
	}
	p.nfree--
	o.dest, o.buf, o.desc, o.len, o.token = p.data, buf, desc, uint32(wr.Len), wr.Token
	p.queue[p.head+uint8(p.nqueue)] = slot
	p.nqueue++
	d.activate(p)
	return true
}

func (d *domain) postSend(wr *provider.WR) bool {
	p := d.peer(wr.Peer)
	if p == nil || p.phase != up || p.failing {
		return d.late(p, wr, provider.KindSend)
	}
	if p.nfree == 0 {
		return false
	}
	buf, _, ok := d.local(wr)
	if !ok || wr.Len > maxSend {
		return d.reject(wr, provider.KindSend, provider.StatusLocal)
	}
	p.nfree--
	slot := p.free[p.nfree]
	o := &p.ops[slot]
	o.kind, o.data, o.buf, o.len, o.token = opMessage, 0, buf, uint32(wr.Len), wr.Token
	p.sends.push(slot)
	d.activate(p)
	return true
}

func (d *domain) postRecv(wr *provider.WR) bool {
	if d.recvs.len() >= recvDepth {
		return false
	}
	buf, _, ok := d.local(wr)
	if !ok {
		return d.reject(wr, provider.KindRecv, provider.StatusLocal)
	}
	d.recvs.push(posting{buf: buf, n: wr.Len, token: wr.Token})
	if d.early.len() > 0 {
		d.feed()
	}
	return true
}

// activate has p visited by the next gather.
//
// hot:
func (d *domain) activate(p *peer) {
	if !p.queued {
		p.queued = true
		d.active.push(p)
	}
}

// visitMax is what a visit may add to the batch: writes, control messages, a count.
const visitMax = perVisit + notesAtOnce + 1

// gather collects what can be posted now.
//
// hot:
func (d *domain) gather() {
	d.nbatch, d.put = 0, false
	for _, t := range d.stuck {
		t.stuck = 0
	}
	d.stuck = d.stuck[:0]
	d.gatherNotes()
	for n := d.active.len(); n > 0 && d.nbatch <= batchLimit-visitMax; n-- {
		p := d.active.pop()
		p.queued = false
		if p.phase == down || p.phase == ending || p.failing || p.to == nil {
			continue
		}
		if p.phase == up && p.sends.len() > 0 {
			d.send(p)
		}
		for p.notes.len() > 0 && p.sent < notesAtOnce && len(d.notes.free) > 0 {
			d.add(d.write(p, p.notes.pop()))
		}
		if p.phase == up {
			d.gatherAck(p)
			d.gatherWrites(p)
		}
		if p.notes.len() > 0 && p.sent < notesAtOnce {
			d.activate(p)
		}
	}
}

// hot:
func (d *domain) add(o *op) {
	d.batch[d.nbatch] = o
	d.nbatch++
}

func (d *domain) gatherNotes() {
	b := &d.notes
	for n := min(b.repost.len(), perVisit); n > 0; n-- {
		d.add(&b.in[b.repost.pop()])
	}
	for n := min(b.retry.len(), perVisit); n > 0; n-- {
		i := b.retry.pop()
		if m := &b.meta[i]; d.now > m.deadline && (m.handle == 0 || d.peer(m.handle) == nil) {
			d.noteDone(&b.out[i])
			continue
		}
		d.add(&b.out[i])
	}
}

// gatherWrites adds writes of p that may be posted now; they leave the queue when they have been.
//
// hot:
func (d *domain) gatherWrites(p *peer) {
	var last *op
	for i := 0; i < p.nqueue && i < perVisit; {
		o := &p.ops[p.queue[p.head+uint8(i)]]
		if o.kind == opUnresolved {
			ready, refused := d.resolve(p, o)
			if refused && i == 0 {
				p.head++
				p.nqueue--
				d.complete(p, o, provider.StatusAccess)
				continue
			}
			if !ready {
				break // one that is refused waits until it is at the head
			}
		}
		switch {
		case d.covers && o.len >= coverLen:
			o.kind = opCover
		case d.acks && o.len <= ackMax:
			o.kind = opQuiet
		}
		d.add(o)
		last = o
		i++
	}
	if d.covers && last != nil {
		last.kind = opCover
	}
}

// resolve finds out what the key of a write is: asking the peer takes a while.
func (d *domain) resolve(p *peer, o *op) (ready, refused bool) {
	k := p.lookup(o.rkey)
	if k == nil {
		if p.denied == o.rkey {
			return false, true
		}
		if p.asking == 0 {
			p.asking = o.rkey
			p.note(d, note{kind: noteAsk, a: o.rkey})
		}
		return false, false
	}
	off := o.raddr - k.base
	if off > k.n || uint64(o.len) > k.n-off {
		return false, true
	}
	o.kind = opWriteData
	if o.data>>32&markPlain != 0 {
		o.kind = d.plainKind
	}
	o.raddr, o.rkey = k.raddr+off, k.rkey
	return true, false
}

// settleBatch looks at what has become of each operation of the batch.
//
// hot:
func (d *domain) settleBatch() {
	for _, o := range d.batch[:d.nbatch] {
		switch o.kind {
		case opWrite, opWriteData, opQuiet, opCover:
			p := d.peers[o.peer]
			if o == p.ack.op {
				d.settleAck(p, o)
				continue
			}
			switch o.outcome {
			case posted:
				if d.counts(uint64(o.len)) {
					p.ack.posted(p.queue[p.head])
				}
				p.head++
				p.nqueue--
				if o.kind == opQuiet {
					o.outcome = sent
				} else {
					p.inflight++
				}
			case failed:
				p.head++
				p.nqueue--
				d.complete(p, o, provider.StatusFlushed)
				d.fail(p, provider.StatusPeerDown, uint32(-d.rail.out.failed))
			case waits:
				d.noteStuck(o.dest)
				if d.covers && p.bare() {
					d.fail(p, provider.StatusPeerDown, uint32(unix.EAGAIN))
				}
			}
			if p.nqueue > 0 {
				d.activate(p)
			}
		case opSend:
			switch o.outcome {
			case failed:
				d.lost(o, uint32(-d.rail.out.failed))
			case waits:
				d.noteStuck(o.dest)
				d.notes.retry.push(uint16(indexOf(d.notes.out, o)))
			}
		case opRecv:
			if o.outcome != posted {
				d.noteStuck(o.dest)
				d.notes.repost.push(uint16(indexOf(d.notes.in, o)))
			}
		}
	}
	d.nbatch = 0
}

// noteStuck has the next gather try t again. One that is freed before stays listed: clearing it then does no harm.
//
// hot:
func (d *domain) noteStuck(t *dest) {
	if t.stuck == 1 {
		t.stuck = 2 // listed
		d.stuck = append(d.stuck, t)
	}
}

// complete ends a request.
//
// hot:
func (d *domain) complete(p *peer, o *op, status provider.Status) {
	kind := provider.KindWrite
	if o.kind == opMessage {
		kind = provider.KindSend
	}
	d.out.push(provider.Completion{Token: o.token, Peer: p.handle, Kind: kind, Status: status})
	o.kind = opFree
	p.free[p.nfree] = uint8(indexOf(p.ops, o))
	p.nfree++
}

// unlearn: a key of the peer's has ended. Writes that were to be posted under it are refused; of those that are under way one may be, and
// end the connection.
func (d *domain) unlearn(p *peer, id uint64) {
	k := p.lookup(id)
	if k == nil {
		return
	}
	for i := range p.nqueue {
		if o := &p.ops[p.queue[p.head+uint8(i)]]; o.kind != opUnresolved && o.rkey == k.rkey && o.len > 0 {
			o.kind, o.raddr, o.rkey = opUnresolved, o.raddr-k.raddr+k.base, id
		}
	}
	d.refuseCounted(p, k.rkey)
	for i := range p.ops {
		if o := &p.ops[i]; o.kind.writes() && o.rkey == k.rkey && o.len > 0 && o.outcome != acked {
			o.outcome = dead
			if d.silent && !slices.Contains(d.suspects, p) {
				p.suspect = d.now + int64(d.patience)
				d.suspects = append(d.suspects, p)
			}
		}
	}
	*k = known{}
}

// flushQueue completes what was not posted.
func (d *domain) flushQueue(p *peer) {
	for ; p.nqueue > 0; p.nqueue-- {
		if o := &p.ops[p.queue[p.head]]; o.kind != opFree {
			d.complete(p, o, provider.StatusFlushed)
		}
		p.head++
	}
	for p.sends.len() > 0 {
		d.complete(p, &p.ops[p.sends.pop()], provider.StatusFlushed)
	}
}
