//go:build cgo

package verbs

import "github.com/hawser-project/hawser/provider"

// entry is a request that was accepted.
type entry struct {
	wr     provider.WR
	status provider.Status // other than ok: how it ends, without the card
	posted bool            // a write: at the card; a message: at the card, or has been
	slot   uint32          // 1 + the region that the card reads for it, 0 when none
	mail   uint32          // of a message: how much of the peer's mail it takes
	order  uint32          // of a message: its number among those posted
	seq    uint64          // of a message: its number on the control queue pair
}

// ring holds entries by their number; it grows up to peerDepth.
type ring struct{ buf []entry }

// ringMin is the first capacity of a ring.
const ringMin = 32

func (r *ring) at(i uint64) *entry { return &r.buf[i&uint64(len(r.buf)-1)] }

// push makes room for entry number tail, of which done are gone.
//
// hot:
func (r *ring) push(done, tail uint64, wr *provider.WR) {
	if tail-done == uint64(len(r.buf)) {
		r.grow(done, tail)
	}
	*r.at(tail) = entry{wr: *wr}
}

func (r *ring) grow(done, tail uint64) {
	old := *r
	r.buf = make([]entry, max(ringMin, 2*len(old.buf)))
	for i := done; i != tail; i++ {
		*r.at(i) = *old.at(i)
	}
}

// writes are those to one peer, in order. Cursors only grow, but for sent when the queue pair is renewed: done ≤ acked ≤ sent ≤ tail.
type writes struct {
	ring                    ring
	done, acked, sent, tail uint64
	depth                   int    // most at the card
	inflight                int    // at the card
	round                   uint32 // how often the queue pair was renewed
	immSent, immCredit      uint32 // immediates sent in this round, and for how many the peer has posted a receive again
	disputed                uint64 // 1 + the last write that the peer's card found invalid, which none is
	broken                  bool   // the queue pair has failed or is being renewed
	renew                   renewal
}

func (p *peer) outstanding() uint64 {
	return p.writes.tail - p.writes.done + p.msgs.tail - p.msgs.done
}

// Post implements [provider.Domain].
//
// hot:
func (d *domain) Post(wrs []provider.WR) (int, error) {
	switch {
	case d.closed:
		return 0, d.errorf("post: %w", provider.ErrClosed)
	case d.fatal != nil:
		return 0, d.fatal
	}
	n := 0
	for ; n < len(wrs); n++ {
		if !d.accept(&wrs[n]) {
			break
		}
	}
	for i, p := range d.touched {
		p.touched = false
		d.touched[i] = nil
		d.submitWrites(p)
		d.converse(p)
		d.activate(p)
	}
	d.touched = d.touched[:0]
	d.flush()
	return n, nil
}

// accept queues one request, or completes it as bad; false when there is no room.
//
// hot:
func (d *domain) accept(wr *provider.WR) bool {
	switch wr.Op {
	case provider.OpRecv:
		return d.acceptRecv(wr)
	case provider.OpWrite, provider.OpWriteImm, provider.OpSend:
	default:
		return d.refuse(wr, provider.KindWrite, provider.StatusLocal)
	}
	p := d.peer(wr.Peer)
	if p == nil || p.phase != up {
		kind := provider.KindWrite
		if wr.Op == provider.OpSend {
			kind = provider.KindSend
		}
		return d.refuse(wr, kind, provider.StatusFlushed)
	}
	if p.outstanding() == peerDepth {
		return false
	}
	if wr.Op == provider.OpSend {
		p.msgs.ring.push(p.msgs.done, p.msgs.tail, wr)
		p.msgs.tail++
	} else {
		p.writes.ring.push(p.writes.done, p.writes.tail, wr)
		p.writes.tail++
	}
	if !p.touched {
		p.touched = true
		d.touched = append(d.touched, p)
	}
	return true
}

// refuse completes a request that goes nowhere; false when too many wait for that.
//
// hot:
func (d *domain) refuse(wr *provider.WR, kind provider.Kind, status provider.Status) bool {
	if d.errs.len() == errorDepth {
		return false
	}
	d.errs.push(provider.Completion{Token: wr.Token, Peer: wr.Peer, Kind: kind, Status: status})
	return true
}

// acceptRecv queues a receive.
//
// hot:
func (d *domain) acceptRecv(wr *provider.WR) bool {
	if wr.Len > 0 {
		if r, _ := d.local(wr); r == nil || r.bytes == nil {
			if d.errs.len() == errorDepth {
				return false
			}
			d.errs.push(provider.Completion{Token: wr.Token, Kind: provider.KindRecv, Status: provider.StatusLocal})
			return true
		}
	}
	if d.recvs.len() == recvDepth {
		return false
	}
	d.recvs.push(posted{wr.Token, wr.LocalKey, wr.LocalAddr, wr.Len})
	return true
}

// submitWrites hands writes to the card as far as the queue pair and the peer's receives allow.
//
// hot:
func (d *domain) submitWrites(p *peer) {
	w := &p.writes
	if w.broken || p.phase != up || w.sent == w.tail {
		return
	}
	before := w.inflight
	for ; w.sent != w.tail; w.sent++ {
		e := w.ring.at(w.sent)
		if e.status != provider.StatusOK {
			continue
		}
		s := sendWR{len: uint32(e.wr.Len)}
		if e.wr.Len > 0 {
			if e.status = d.resolve(p, e, &s); e.status != provider.StatusOK {
				continue
			}
		}
		withImm := e.wr.Op == provider.OpWriteImm
		if w.inflight == w.depth || withImm && w.immSent-w.immCredit >= p.remote.immWindow {
			break
		}
		if e.wr.Len > 0 {
			d.regions[e.slot-1].posted++
		}
		if withImm {
			s.flags, s.imm = sendImm, e.wr.Imm
			w.immSent++
		}
		if w.sent%signalEvery == signalEvery-1 {
			s.flags |= sendSignaled
		}
		s.id, s.qp = identity(p, roleWrites, w.sent), p.out.handle()
		e.posted = true
		w.inflight++
		d.push(&s)
	}
	if w.inflight != before {
		d.signalLast()
	}
}

// resolve finds where a write reads and writes.
//
// hot:
func (d *domain) resolve(p *peer, e *entry, s *sendWR) provider.Status {
	if e.wr.Len > d.caps.MaxMsg {
		return provider.StatusLocal
	}
	r, slot := d.local(&e.wr)
	if r == nil {
		return provider.StatusLocal
	}
	t := p.target(&e.wr)
	if t == nil {
		return provider.StatusAccess
	}
	s.local, s.lkey = r.addr+e.wr.LocalAddr, r.reg.lkey
	s.remote, s.rkey = t.addr+e.wr.RemoteAddr, t.rkey
	e.slot = uint32(slot) + 1
	return provider.StatusOK
}

// push adds a request to the batch, which goes to the card when it is full.
//
// hot:
func (d *domain) push(s *sendWR) {
	if d.batched == batchSize {
		d.signalLast()
		d.flush()
	}
	d.batch[d.batched] = *s
	d.batched++
}

// signalLast has the last request of the batch tell when it is done: with it, those before it are.
//
// hot:
func (d *domain) signalLast() {
	if d.batched > 0 {
		d.batch[d.batched-1].flags |= sendSignaled
	}
}

// flush hands the batch to the card.
//
// hot:
func (d *domain) flush() {
	at := 0
	for at < d.batched {
		d.stats.Posts++
		n, doorbells, e := d.card.post(d.batch[at:d.batched])
		for i := range d.batch[at : at+n] {
			d.stats.Signaled += uint64(d.batch[at+i].flags&sendSignaled) / sendSignaled
		}
		d.stats.Doorbells += uint64(doorbells)
		d.stats.Writes += uint64(n)
		at += n
		if e == 0 {
			break
		}
		at = d.postFailed(at, e)
	}
	d.batched = 0
}

// postFailed ends the connection whose request the card did not take, and returns where in the batch that of another one begins.
func (d *domain) postFailed(at int, e errno) int {
	qp := d.batch[at].qp
	if p := d.peers[d.batch[at].id&(1<<identityRole-1)]; p != nil {
		d.lose(p, provider.StatusPeerDown, uint32(e))
	}
	for at < d.batched && d.batch[at].qp == qp {
		at++
	}
	return at
}
