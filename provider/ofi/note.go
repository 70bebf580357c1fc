//go:build cgo

package ofi

import (
	"bytes"
	"encoding/binary"
	"unsafe"

	"github.com/hawser-project/hawser/provider"
)

type noteKind uint8

// Control messages. a, b and c are what their meaning says.
const (
	noteHello     noteKind = iota + 1 // active to passive: a handle; payload: both secrets and the sender's name
	noteWelcome                       // the answer: a handle
	noteRefuse                        // the other answer
	noteBye                           // the connection has ended here
	noteAsk                           // what is key a? one at a time
	noteGrant                         // key a is b.. : payload known
	noteDeny                          // key a is none
	noteUngrant                       // key a has ended, when b short writes had arrived
	noteUngranted                     // the answer, where short writes are counted: to b of them
	noteSend                          // message a of b bytes; the payload is there when it fits
	noteClear                         // send c bytes of message a
	noteData                          // bytes at b of message a
	noteTaken                         // message a has been moved into a receive
	noteReady                         // with bySource: the welcome has come, writes may be sent
	lastNote
)

// note is a control message that waits to be sent.
type note struct {
	kind noteKind
	a    uint64
	b, c uint32
}

const (
	noteHead = 40
	noteBody = noteLen - noteHead
	// notesAtOnce is how many control messages of one peer are under way.
	notesAtOnce = 4
	// maxAnswers to a peer may wait until it takes some. One that keeps the protocol is owed one for a question, and one for each message.
	maxAnswers = 4 * maxAnnounced
	// maxRefusals of greetings by strangers may be under way: they leave the buffers to the peers.
	maxRefusals = 16
	// byeNanos is how long an undeliverable control message of a connection that is gone is tried.
	byeNanos = int64(1e9)
)

// noteBox is the buffers of control messages. Owned by the domain.
type noteBox struct {
	out     []op // to be sent, or under way
	outBufs []byte
	outMR   mr
	meta    []noteMeta // of out
	free    []uint16
	retry   fifo[uint16] // encoded and not posted

	refusals int  // that are under way, of greetings by strangers
	farewell bool // a message about a connection that has ended was added to retry: the owner may not poll again

	in     []op
	inBufs []byte
	inMR   mr
	repost fifo[uint16]
	inDest *dest
}

// noteMeta is whose a message is.
type noteMeta struct {
	to       *target
	handle   provider.Peer // of ours; 0 when the connection is gone
	deadline int64
	stranger bool // counted in refusals
}

func (b *noteBox) start(d *domain) (err error) {
	for _, side := range []struct {
		n    int
		ops  *[]op
		bufs *[]byte
		m    *mr
	}{{noteBufs, &b.out, &b.outBufs, &b.outMR}, {noteRecvs, &b.in, &b.inBufs, &b.inMR}} {
		raw, err := d.arena(side.n * int(unsafe.Sizeof(op{})))
		if err != nil {
			return err
		}
		*side.ops = of[op](raw, side.n)
		if *side.bufs, err = d.arena(side.n * noteLen); err != nil {
			return err
		}
		if d.info.desc.mr_mode&mrLocal != 0 {
			if *side.m, err = d.rail.register(unsafe.Pointer(&(*side.bufs)[0]), uint64(len(*side.bufs)), accessLocal, d.newKey()); err != nil {
				return err
			}
		}
		for i := range *side.ops {
			o := &(*side.ops)[i]
			o.buf, o.desc, o.len = unsafe.Pointer(&(*side.bufs)[i*noteLen]), side.m.desc, noteLen
		}
	}
	b.meta = make([]noteMeta, noteBufs)
	b.inDest = d.newDest(d.ctl, addrUnspec)
	for i := range b.out {
		b.out[i].kind = opSend
		b.free = append(b.free, uint16(i))
	}
	for i := range b.in {
		b.in[i].kind, b.in[i].dest = opRecv, b.inDest
		b.repost.push(uint16(i))
	}
	return nil
}

func (b *noteBox) close(d *domain) error {
	err := d.rail.deregister(b.outMR)
	if e := d.rail.deregister(b.inMR); err == nil {
		err = e
	}
	return err
}

// unsent is how many messages libfabric has not sent.
func (b *noteBox) unsent() int { return len(b.out) - len(b.free) }

func indexOf(ops []op, o *op) int {
	// safe: the difference of two addresses in one arena.
	return int((uintptr(unsafe.Pointer(o)) - uintptr(unsafe.Pointer(&ops[0]))) / unsafe.Sizeof(op{}))
}

// inside reports whether o is an element of ops.
func inside(ops []op, o *op) bool {
	// safe: addresses are compared, not followed.
	at := uintptr(unsafe.Pointer(o)) - uintptr(unsafe.Pointer(unsafe.SliceData(ops)))
	return at < uintptr(len(ops))*unsafe.Sizeof(op{})
}

// note queues a control message.
func (p *peer) note(d *domain, n note) {
	p.notes.push(n)
	d.activate(p)
}

// reply queues what the peer has asked for.
func (p *peer) reply(d *domain, n note) {
	p.answers++
	p.note(d, n)
}

// write encodes a note to p into a free buffer; there is one.
func (d *domain) write(p *peer, n note) *op {
	b := &d.notes
	i := b.free[len(b.free)-1]
	b.free = b.free[:len(b.free)-1]
	o := &b.out[i]
	buf := b.outBufs[int(i)*noteLen:][:noteLen:noteLen]
	p.to.refs++
	b.meta[i] = noteMeta{to: p.to, handle: p.handle, deadline: d.now + byeNanos}
	o.dest = p.to.dest
	if n.kind == noteUngranted {
		n.b, p.ungranted = p.ungranted, 0
	}
	head(buf, n, p.remote.handle, p.toThem)
	body := buf[noteHead:noteHead]
	switch n.kind {
	case noteHello:
		binary.LittleEndian.PutUint64(buf[16:], uint64(p.handle))
		body = append(body, p.remote.secret[:]...)
		body = append(body, p.secret[:]...)
		body = append(body, d.ctlName...)
	case noteWelcome:
		binary.LittleEndian.PutUint64(buf[16:], uint64(p.handle))
	case noteAsk:
		p.asked = true
	case noteDeny, noteClear, noteTaken:
		p.answers--
	case noteGrant:
		p.answers--
		g := &p.grants[n.b]
		if g.id != n.a { // it has ended since
			buf[0] = byte(noteDeny)
			break
		}
		for _, v := range [...]uint64{g.raddr, g.n, g.raddr, g.m.key} {
			body = binary.LittleEndian.AppendUint64(body, v)
		}
	case noteSend:
		if n.b <= noteBody {
			body = append(body, p.payload(uint8(n.a))[:n.b]...)
		}
		p.ops[n.a].data = sendAnnounced
	case noteData:
		body = append(body, p.payload(uint8(n.a))[n.b:n.b+n.c]...)
		if o := &p.ops[n.a]; n.b+n.c == o.len {
			o.data = sendWritten
		}
	}
	o.len = uint32(noteHead + len(body))
	p.sent++
	return o
}

func head(buf []byte, n note, to provider.Peer, token uint64) {
	buf[0], buf[1], buf[2], buf[3] = byte(n.kind), addrVersion, 0, 0
	binary.LittleEndian.PutUint32(buf[4:], uint32(to))
	binary.LittleEndian.PutUint64(buf[8:], token)
	binary.LittleEndian.PutUint64(buf[16:], n.a)
	binary.LittleEndian.PutUint32(buf[24:], n.b)
	binary.LittleEndian.PutUint32(buf[28:], n.c)
	binary.LittleEndian.PutUint64(buf[32:], 0)
}

// goodbye tells the other side that the connection has ended.
//
// Where writes are waited for it is also the answer to the other side's: from here on its memory is not read.
func (d *domain) goodbye(p *peer) {
	if p.to == nil || p.parted || p.bye && !d.inert {
		return
	}
	p.parted = true
	d.last(p.to, note{kind: noteBye}, p.remote.handle, p.toThem)
}

// last sends a message that is about no connection of ours; it is lost, and the result nil, where there is no buffer for it.
func (d *domain) last(to *target, n note, handle provider.Peer, token uint64) *noteMeta {
	b := &d.notes
	if len(b.free) == 0 {
		return nil
	}
	i := b.free[len(b.free)-1]
	b.free = b.free[:len(b.free)-1]
	to.refs++
	b.meta[i] = noteMeta{to: to, deadline: d.now + byeNanos}
	head(b.outBufs[int(i)*noteLen:], n, handle, token)
	b.out[i].dest, b.out[i].len = to.dest, noteHead
	b.retry.push(i)
	b.farewell = true
	return &b.meta[i]
}

// noteDone frees the buffer of a message that has been sent, or given up.
func (d *domain) noteDone(o *op) {
	b := &d.notes
	i := indexOf(b.out, o)
	m := b.meta[i]
	if m.to == nil {
		return
	}
	if p := d.peer(m.handle); p != nil && m.handle != 0 && p.phase != down {
		p.reached = true
		p.sent--
		if p.notes.len() > 0 {
			d.activate(p)
		}
	}
	if m.stranger {
		b.refusals--
	}
	b.meta[i] = noteMeta{}
	b.free = append(b.free, uint16(i))
	d.leave(m.to)
}

// heard is a control message that arrived: n bytes in the buffer of o, which is posted again.
func (d *domain) heard(o *op, n uint64) {
	i := indexOf(d.notes.in, o)
	buf := d.notes.inBufs[i*noteLen:][:min(n, noteLen)]
	d.notes.repost.push(uint16(i))
	if len(buf) < noteHead || buf[1] != addrVersion {
		d.unknown++
		return
	}
	m := message{
		note: note{noteKind(buf[0]), binary.LittleEndian.Uint64(buf[16:]), binary.LittleEndian.Uint32(buf[24:]), binary.LittleEndian.Uint32(buf[28:])},
		body: buf[noteHead:],
	}
	p := d.peer(provider.Peer(binary.LittleEndian.Uint32(buf[4:])))
	if m.kind == noteHello {
		d.hear(p, m)
		return
	}
	if p == nil || binary.LittleEndian.Uint64(buf[8:]) != p.toUs || p.to == nil {
		d.unknown++
		return
	}
	if p.failing {
		switch m.kind { // why it ends
		case noteUngrant:
			d.unlearn(p, m.a)
		case noteBye:
			p.bye = true
		}
		return
	}
	if !d.take(p, m) {
		d.fail(p, provider.StatusProtocol, uint32(m.kind))
	}
}

// message is a control message that arrived.
type message struct {
	note
	body []byte
}

// take acts on a message of p and reports false when it breaks the protocol.
func (d *domain) take(p *peer, m message) bool {
	switch m.kind {
	case noteWelcome:
		if p.phase == greeting && provider.Peer(m.a) == p.remote.handle {
			if p.welcomed = d.bySource; !d.bySource {
				d.up(p)
			}
			return true
		}
		return p.phase == up
	case noteRefuse:
		p.bye = true
		if p.phase != up {
			d.fail(p, provider.StatusRefused, m.b)
		}
		return true
	case noteBye:
		p.bye = true
		d.fail(p, provider.StatusPeerDown, 0)
		return true
	}
	switch {
	case p.phase == greeting && !d.bySource, p.phase == welcomed: // its welcome is on the way, or that it is ready
		d.up(p)
	case p.phase == greeting && m.kind == noteUngrant:
		d.unlearn(p, m.a) // no write of this connection has been posted
		return true
	}
	if p.phase != up {
		return false
	}
	switch m.kind {
	case noteAsk:
		if p.answers >= maxAnswers {
			return false
		}
		d.tell(p, m.a)
	case noteGrant:
		if len(m.body) != 4*8 || m.a == 0 {
			return false
		}
		v := func(i int) uint64 { return binary.LittleEndian.Uint64(m.body[8*i:]) }
		if p.answered(d, m.a) {
			p.learn(known{id: m.a, base: v(0), n: v(1), raddr: v(2), rkey: v(3)})
		}
	case noteDeny:
		if p.answered(d, m.a) {
			p.denied = m.a
		}
	case noteUngrant:
		if (d.acks || d.covers) && !d.count(p, m.b) {
			return false
		}
		if d.acks {
			if p.ungranted++; p.ungranted == 1 {
				p.note(d, note{kind: noteUngranted})
			}
		}
		d.unlearn(p, m.a)
	case noteUngranted:
		if m.b == 0 || uint64(m.b) > uint64(p.ack.barrier) {
			return false
		}
		p.ack.barrier -= int(m.b)
		d.activate(p)
	case noteSend:
		return d.announced(p, m)
	case noteClear:
		return d.cleared(p, m)
	case noteData:
		return d.data(p, m)
	case noteTaken:
		return d.taken(p, m)
	case noteReady:
		return d.bySource
	default:
		return false
	}
	return true
}

// tell answers what a key is.
func (d *domain) tell(p *peer, id uint64) {
	if i := id & (maxGrants - 1); i < uint64(len(p.grants)) && p.grants[i].id == id && id != 0 {
		p.reply(d, note{kind: noteGrant, a: id, b: uint32(i)})
		return
	}
	p.reply(d, note{kind: noteDeny, a: id})
}

// answered reports whether the answer about a key is to a question, which is settled by it.
func (p *peer) answered(d *domain, id uint64) bool {
	if !p.asked || id != p.asking {
		return false
	}
	p.asking, p.asked = 0, false
	d.activate(p)
	return true
}

// hello is what a greeting says.
type hello struct {
	handle provider.Peer
	secret [secretSize]byte
}

// hear takes a greeting for p, which is nil when the handle is unknown.
func (d *domain) hear(p *peer, m message) {
	const fixed = 2 * secretSize
	if len(m.body) <= fixed || !d.named(m.body[fixed:]) {
		d.unknown++
		return
	}
	h := hello{handle: provider.Peer(m.a), secret: [secretSize]byte(m.body[secretSize:])}
	name := m.body[fixed:]
	if p == nil || p.spent || p.failing || p.phase != offered && p.phase != waiting || !bytes.Equal(m.body[:secretSize], p.secret[:]) {
		d.refuse(h, [secretSize]byte(m.body), name)
		return
	}
	p.spent, p.hello = true, h
	if p.phase == waiting && !d.bySource { // else see admit
		d.answer(p)
	}
}

// named reports whether a name has the form of this network's: as long as ours or, over shm, a text and its end. So no two are one address.
func (d *domain) named(name []byte) bool {
	if d.acks {
		return len(name) <= maxName && bytes.IndexByte(name, 0) == len(name)-1
	}
	return len(name) == len(d.ctlName)
}

// answer decides about the greeting that p has received: it must be of whom Connect was told. It reports whether it is.
func (d *domain) answer(p *peer) bool {
	if p.hello.secret != p.remote.secret || p.hello.handle != p.remote.handle {
		d.refused++
		d.last(p.to, note{kind: noteRefuse}, p.hello.handle, token(&p.hello.secret, &p.secret))
		p.bye = true // the one that was expected never spoke
		d.fail(p, provider.StatusRefused, 0)
		return false
	}
	p.note(d, note{kind: noteWelcome})
	if d.bySource {
		p.phase = welcomed
	} else {
		d.up(p)
	}
	return true
}

// refuse answers a greeting that nobody waits for.
func (d *domain) refuse(h hello, claim [secretSize]byte, name []byte) {
	d.refused++
	if d.notes.refusals >= maxRefusals {
		return // it learns it by time
	}
	t, err := d.targetOf(name)
	if err != nil {
		return
	}
	if m := d.last(t, note{kind: noteRefuse}, h.handle, token(&h.secret, &claim)); m != nil {
		m.stranger = true
		d.notes.refusals++
	}
	d.leave(t)
}

func (d *domain) up(p *peer) {
	p.phase = up
	d.out.push(provider.Completion{Peer: p.handle, Kind: provider.KindPeerUp})
	d.activate(p)
}
