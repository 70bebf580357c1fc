//go:build cgo

package verbs

import "github.com/hawser-project/hawser/provider"

// messages are those to one peer. They are written behind each other into the peer's inbox, which moves them into receives: a message
// has ended when it was moved. Cursors only grow: done ≤ sent ≤ tail.
type messages struct {
	ring             ring
	done, sent, tail uint64
	posted, taken    uint32 // messages handed to the card, moved into receives; modulo 2^32
	at, used         uint32 // of the peer's mail: where the next one goes, how much is taken
	freed            uint64 // messages below this have given back their mail
}

// mailLine is what messages are rounded up to: it bounds how many messages without bytes can wait.
const mailLine = 64

// place is where a message of n bytes goes when the next free byte is at, and how much of the mail that takes: messages do not
// wrap around. Both ends compute it.
//
// hot:
func place(at, n uint32) (off, size uint32) {
	size = max(mailLine, (n+mailLine-1)&^(mailLine-1))
	if at+size > mailSize {
		return 0, size + mailSize - at
	}
	return at, size
}

// submitMessages hands messages to the card for which the peer has room.
//
// hot:
func (d *domain) submitMessages(p *peer) {
	m := &p.msgs
	for ; m.sent != m.tail; m.sent++ {
		e := m.ring.at(m.sent)
		if e.status == provider.StatusOK {
			e.status = d.checkMessage(&e.wr)
		}
		if e.status != provider.StatusOK {
			continue
		}
		off, size := place(m.at, uint32(e.wr.Len))
		if m.used+size > mailSize || !p.control.room(p, otherReserve) {
			return
		}
		s := sendWR{len: uint32(e.wr.Len), imm: noteMessage, remote: p.remote.inbox + inboxMail + uint64(off), rkey: p.remote.inboxKey}
		slot := uint32(0)
		if e.wr.Len > 0 {
			r, i := d.local(&e.wr)
			s.local, s.lkey = r.addr+e.wr.LocalAddr, r.reg.lkey
			r.posted++
			slot = uint32(i) + 1
		}
		m.at = off + max(mailLine, (s.len+mailLine-1)&^(mailLine-1))
		m.used += size
		e.posted, e.mail, e.seq, e.order = true, size, p.control.sent, m.posted
		m.posted++
		d.notify(p, s, slot)
	}
}

func (d *domain) checkMessage(wr *provider.WR) provider.Status {
	if wr.Len > maxSend {
		return provider.StatusLocal
	}
	if wr.Len > 0 {
		if r, _ := d.local(wr); r == nil {
			return provider.StatusLocal
		}
	}
	return provider.StatusOK
}

// take notes that the peer has moved messages into receives: their mail is free.
//
// hot:
func (m *messages) take(count uint32) {
	m.taken = count
	m.freed = max(m.freed, m.done)
	for ; m.freed != m.sent; m.freed++ {
		e := m.ring.at(m.freed)
		if !e.posted {
			continue
		}
		if int32(e.order-count) >= 0 {
			return
		}
		m.used -= e.mail
	}
}

// deliver completes messages; it reports false when out is full.
//
// hot:
func (m *messages) deliver(p *peer, out *sink) bool {
	for ; m.done != m.sent; m.done++ {
		e := m.ring.at(m.done)
		// Moved, and no more read here: the answer of the card may come later than the word of the peer.
		if e.status == provider.StatusOK && (int32(e.order-m.taken) >= 0 || e.seq >= p.control.done) {
			return true
		}
		if out.full() {
			return false
		}
		out.put(provider.Completion{Token: e.wr.Token, Peer: p.handle, Kind: provider.KindSend, Status: e.status})
	}
	return true
}

// arrived is what has come from one peer.
type arrived struct {
	round       uint32 // of the peer's writes
	count, told uint32 // immediates of this round for which a receive is posted again, and what the peer knows of it
	renew       renewal

	letters          fifo[letter] // messages that wait for receives
	at               uint32       // where the next one comes
	taken, toldTaken uint32       // messages moved into receives
}

// letter is a message in our mail.
type letter struct{ off, n uint32 }

// mailTaken reports whether messages were moved that the peer does not know of.
//
// hot:
func (p *peer) mailTaken() bool { return p.arrived.taken != p.arrived.toldTaken }

// hears reports whether messages of a peer are taken: also those that were there when the connection ended, unless it broke the protocol.
//
// hot:
func (p *peer) hears() bool {
	return p.phase == up || p.phase == leaving && p.status != provider.StatusProtocol
}

// heardMessage notes a message that was written into our mail.
//
// hot:
func (d *domain) heardMessage(p *peer, n uint32) {
	a := &p.arrived
	if n > maxSend || a.letters.len() >= mailSize/mailLine {
		d.violate(p)
		return
	}
	off, _ := place(a.at, n)
	a.at = off + max(mailLine, (n+mailLine-1)&^(mailLine-1))
	a.letters.push(letter{off, n})
	if !p.listed {
		p.listed = true
		d.waiting.push(p)
	}
	d.match()
}

// posted is a receive.
type posted struct {
	token, key, addr, n uint64
}

// match moves messages into receives, peers by turns.
//
// hot:
func (d *domain) match() {
	for d.waiting.len() > 0 && d.recvs.len() > 0 {
		p := d.waiting.pop()
		p.listed = false
		if !p.hears() || p.arrived.letters.len() == 0 {
			continue
		}
		for d.recvs.len() > 0 && !d.move(p) {
		}
		if p.arrived.letters.len() > 0 {
			p.listed = true
			d.waiting.push(p)
		}
		d.activate(p)
	}
}

// move moves one message into the oldest receive; false when the receive's memory has gone meanwhile.
//
// hot:
func (d *domain) move(p *peer) bool {
	to := d.recvs.pop()
	var dst []byte
	if to.n > 0 {
		r, _ := d.region(to.key)
		if r == nil {
			d.ready.push(provider.Completion{Token: to.token, Kind: provider.KindRecv, Status: provider.StatusLocal})
			return false
		}
		dst = r.bytes[to.addr : to.addr+to.n]
	}
	l := p.arrived.letters.pop()
	status := provider.StatusOK
	if uint64(l.n) > to.n {
		status = provider.StatusTruncated
	} else {
		copy(dst, p.inbox.mem[inboxMail+l.off:][:l.n])
	}
	p.arrived.taken++
	d.ready.push(provider.Completion{Token: to.token, Len: uint64(l.n), Peer: p.handle, Kind: provider.KindRecv, Status: status})
	return true
}
