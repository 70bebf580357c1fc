//go:build cgo

package ofi

import (
	"unsafe"

	"github.com/hawser-project/hawser/provider"
)

// maxAnnounced is how many messages of a peer may wait at the receiver for a receive to be posted.
const maxAnnounced = 8

// How far a message of ours is: op.data. What the peer says of one that is not so far breaks the protocol: what waits in peer.notes still
// reads the message.
const (
	sendWaits     = iota // the announcement has not been written
	sendAnnounced        // it has, with the payload if that is short
	sendCleared          // the peer asked for the payload; pieces are not all written
	sendWritten          // they are
)

// posting is a receive that the owner has posted.
type posting struct {
	buf   unsafe.Pointer
	n     uint64
	token uint64
}

// earlyMessage is an announced message that waits for a receive.
type earlyMessage struct {
	n    uint32
	slot uint8 // of the sender
	room uint8 // where its payload is; noRoom: still with the sender
}

const noRoom = maxAnnounced

// incoming is a long message on its way into a receive.
type incoming struct {
	live bool
	slot uint8
	got  uint32
	to   posting
	n    uint32
}

// payload is the bytes of a message of ours.
func (p *peer) payload(slot uint8) []byte {
	o := &p.ops[slot]
	if o.len == 0 {
		return nil
	}
	// safe: the memory was checked by Post and is the owner's promise until the completion.
	return unsafe.Slice((*byte)(o.buf), o.len)
}

// send announces messages.
func (d *domain) send(p *peer) {
	for p.announce < maxAnnounced && p.sends.len() > 0 {
		slot := p.sends.pop()
		p.announce++
		p.notes.push(note{kind: noteSend, a: uint64(slot), b: p.ops[slot].len})
	}
}

// mine finds a message of ours that the peer speaks of, if all that was to be sent has been written.
func (p *peer) mine(a uint64) *op {
	if a >= peerDepth || p.ops[a].kind != opMessage || p.ops[a].data != sendAnnounced && p.ops[a].data != sendWritten {
		return nil
	}
	return &p.ops[a]
}

// cleared: the peer has a receive for a long message.
func (d *domain) cleared(p *peer, m message) bool {
	o := p.mine(m.a)
	if o == nil || o.data != sendAnnounced || o.len <= noteBody || m.c != o.len {
		return false
	}
	o.data = sendCleared
	for off := uint32(0); off < o.len; off += noteBody {
		p.notes.push(note{kind: noteData, a: m.a, b: off, c: min(noteBody, o.len-off)})
	}
	d.activate(p)
	return true
}

// taken: the peer's owner has a message of ours.
func (d *domain) taken(p *peer, m message) bool {
	o := p.mine(m.a)
	if o == nil {
		return false
	}
	p.announce--
	d.complete(p, o, provider.StatusOK)
	d.activate(p)
	return true
}

// announced: the peer has a message for us.
func (d *domain) announced(p *peer, m message) bool {
	whole := m.b <= noteBody
	if m.a >= peerDepth || m.b > maxSend || whole && len(m.body) != int(m.b) || !whole && len(m.body) > 0 {
		return false
	}
	if p.waitlist.len()+p.underWay() >= maxAnnounced || p.answers >= maxAnswers {
		return false
	}
	e := earlyMessage{n: m.b, slot: uint8(m.a), room: noRoom}
	if p.waitlist.len() == 0 && d.recvs.len() > 0 {
		d.match(p, e, m.body)
		return true
	}
	if whole && m.b > 0 {
		if p.room == nil {
			p.room = make([]byte, maxAnnounced*noteBody)
			for i := range maxAnnounced {
				p.roomFree = append(p.roomFree, uint8(i))
			}
		}
		n := len(p.roomFree) - 1
		e.room, p.roomFree = p.roomFree[n], p.roomFree[:n]
		copy(p.room[int(e.room)*noteBody:], m.body)
	}
	p.waitlist.push(e)
	if !p.hungry {
		p.hungry = true
		d.early.push(p)
	}
	return true
}

// underWay is how many receives wait for the rest of a long message of p's.
func (p *peer) underWay() (n int) {
	for i := range p.incoming {
		if p.incoming[i].live {
			n++
		}
	}
	return n
}

// feed gives receives to the messages that wait for one.
func (d *domain) feed() {
	for d.recvs.len() > 0 && d.early.len() > 0 {
		p := d.early.pop()
		if p.waitlist.len() > 0 {
			e := p.waitlist.pop()
			var body []byte
			if e.room != noRoom {
				body = p.room[int(e.room)*noteBody:][:e.n]
				p.roomFree = append(p.roomFree, e.room)
			}
			d.match(p, e, body)
		}
		if p.waitlist.len() > 0 {
			d.early.push(p)
			continue
		}
		p.hungry = false
	}
}

// match moves a message into the oldest receive, or asks for it.
func (d *domain) match(p *peer, e earlyMessage, body []byte) {
	r := d.recvs.pop()
	c := provider.Completion{Token: r.token, Len: uint64(e.n), Peer: p.handle, Kind: provider.KindRecv}
	switch {
	case uint64(e.n) > r.n:
		c.Status = provider.StatusTruncated
	case e.n <= noteBody:
		if e.n > 0 {
			// safe: the receive was checked by Post.
			copy(unsafe.Slice((*byte)(r.buf), r.n), body)
		}
	default:
		for i := range p.incoming {
			if in := &p.incoming[i]; !in.live {
				*in = incoming{live: true, slot: e.slot, to: r, n: e.n}
				break
			}
		}
		p.reply(d, note{kind: noteClear, a: uint64(e.slot), c: e.n})
		return
	}
	d.out.push(c)
	p.reply(d, note{kind: noteTaken, a: uint64(e.slot)})
}

// data is a piece of a long message.
func (d *domain) data(p *peer, m message) bool {
	for i := range p.incoming {
		in := &p.incoming[i]
		if !in.live || uint64(in.slot) != m.a {
			continue
		}
		if m.b > in.n || uint32(len(m.body)) > in.n-m.b || m.c != uint32(len(m.body)) || m.c == 0 {
			return false
		}
		// safe: within the receive, which is at least n bytes.
		copy(unsafe.Slice((*byte)(in.to.buf), in.n)[m.b:], m.body)
		if in.got += m.c; in.got >= in.n {
			in.live = false
			d.out.push(provider.Completion{Token: in.to.token, Len: uint64(in.n), Peer: p.handle, Kind: provider.KindRecv})
			p.reply(d, note{kind: noteTaken, a: m.a})
		}
		return true
	}
	return false
}

// abandon drops the messages of a peer that has gone; receives that waited for the rest of one wait for another.
func (d *domain) abandon(p *peer) {
	for i := range p.incoming {
		if in := &p.incoming[i]; in.live {
			in.live = false
			d.recvs.unpop(in.to)
		}
	}
	p.waitlist = fifo[earlyMessage]{}
	p.room, p.roomFree = nil, nil
	d.feed()
}
