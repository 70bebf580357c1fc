package tcp

import (
	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/provider"
)

const (
	// sendBudget bounds the bytes of one socket call: enough that its fixed cost does not matter, little enough that other peers
	// get their turn.
	sendBudget = 512 << 10
	// copyBelow is the payload that is copied behind its header: a piece of its own costs more than copying so much.
	copyBelow = 512
	// scratchSize bounds the headers and copied payloads of one call.
	scratchSize = 32 << 10
	// maxFrames is how many frames one call can have: all of scratchSize in empty frames.
	maxFrames = scratchSize / headerSize
)

// An ack alone costs a packet on both sides. It waits for company until one of these.
const (
	ackWrites = peerDepth / 4 // so many are owed: the writer must not run out of window
	ackBytes  = 1 << 20       // or so many bytes: their memory may be wanted
	ackAsked  = 2             // polls without data, when the writer has nothing else to send and so may be waiting
	ackQuiet  = 64            // polls without data, in any case (some 10 us); Arm waits for nothing
)

// frame is one frame in a batch.
type frame struct {
	kind frameKind
	ack  uint32 // in its header; sent once the frame is
	took uint32 // the same of an ack frame's other count
	hdr  int    // where in the batch's scratch the header is
	size int    // header and payload
}

// partial is a frame that a socket took only the beginning of. The rest must follow with the same bytes, so its header is kept.
type partial struct {
	frame
	off    int // bytes taken; 0 means that there is none
	header [headerSize]byte
}

// batch is what one socket call sends. Owned by the domain and rebuilt for every call.
type batch struct {
	vecs    [][]byte // up to maxVecs
	scratch []byte   // up to scratchSize
	joined  bool     // the last vec is the end of scratch and can grow
	frames  []frame  // up to maxFrames
	bytes   int
}

func (b *batch) init() {
	b.vecs = make([][]byte, 0, maxVecs)
	b.scratch = make([]byte, 0, scratchSize)
	b.frames = make([]frame, 0, maxFrames)
}

func (b *batch) reset() {
	clear(b.vecs) // pointers to memory that the owner may unmap
	b.vecs, b.scratch, b.frames = b.vecs[:0], b.scratch[:0], b.frames[:0]
	b.joined, b.bytes = false, 0
}

// room reports whether one more frame may be added, of any size.
//
// hot:
func (b *batch) room() bool {
	return len(b.vecs)+2 <= maxVecs && len(b.scratch)+headerSize+copyBelow <= scratchSize &&
		len(b.frames) < maxFrames && b.bytes < sendBudget
}

// grow adds n bytes of scratch to the batch and returns them.
//
// hot:
func (b *batch) grow(n int) []byte {
	from := len(b.scratch)
	b.scratch = b.scratch[:from+n]
	if last := len(b.vecs) - 1; b.joined {
		b.vecs[last] = b.scratch[from-len(b.vecs[last]):]
	} else {
		b.vecs = append(b.vecs, b.scratch[from:])
		b.joined = true
	}
	b.bytes += n
	return b.scratch[from:]
}

// payload adds bytes of registered memory, by copy or by reference.
//
// hot:
func (b *batch) payload(data []byte) {
	if len(data) == 0 {
		return
	}
	if len(data) <= copyBelow {
		copy(b.grow(len(data)), data)
		return
	}
	b.vecs = append(b.vecs, data)
	b.joined = false
	b.bytes += len(data)
}

// add appends a frame.
//
// hot:
func (b *batch) add(h *header, data []byte) {
	b.frames = append(b.frames, frame{kind: h.kind, ack: h.ack, took: h.imm, hdr: len(b.scratch), size: headerSize + len(data)})
	h.put(b.grow(headerSize))
	b.payload(data)
}

// transmit gives the socket one batch of what p has to send.
//
// hot:
func (d *domain) transmit(p *peer) {
	s := &p.stream
	b := &d.batch
	s.gather(b, false)
	if b.bytes == 0 {
		return
	}
	n, errno := d.scatter.send(s.fd, s.line, b.vecs)
	switch errno {
	case 0, unix.EAGAIN, unix.EINTR:
		s.sent(b, n)
		d.moved += n
		// The kernel tells when there is room again after it refused some; see tcp_sendmsg.
		s.blocked = n < b.bytes && errno != unix.EINTR
	default:
		// The connection is broken, but what arrived before is still to be read. The reader meets the end.
		s.mute, s.readable, s.ending = true, true, true
	}
	b.reset()
}

// gather fills b with the rest of a cut frame, then what the peer waits for (nacks, ack), then messages as far as there is room
// for them at the peer, then writes. With countsOnly it stops before the last two.
//
// hot:
func (s *stream) gather(b *batch, countsOnly bool) {
	b.reset()
	msg, write := s.msgs.sent, s.writes.sent
	msgBytes, told := s.msgBytes, s.takenSent
	if s.cut.off > 0 {
		data := s.resume(b)
		switch s.cut.kind {
		case frameMessage:
			msg++
			msgBytes += uint32(data)
		case frameWrite, frameWriteImm:
			write++
		case frameAck:
			told = s.cut.took
		}
	}
	ack := s.nacks(b)
	if s.taken != told && b.room() {
		b.add(&header{kind: frameAck, ack: ack, imm: s.taken}, nil)
	}
	if !countsOnly {
		for ; msg != s.msgs.tail; msg++ {
			r := s.msgs.at(msg)
			if msg-s.msgs.settled >= messageCount || int(msgBytes)+len(r.data) > messageBytes || !b.room() {
				break
			}
			msgBytes += uint32(len(r.data))
			b.add(&header{kind: frameMessage, flags: ask(msg+1 == s.msgs.tail), ack: ack, len: uint32(len(r.data))}, r.data)
		}
		for ; write != s.writes.tail; write++ {
			r := s.writes.at(write)
			if !b.room() {
				break
			}
			h := header{kind: frameWrite, flags: ask(write+1 == s.writes.tail), ack: ack, len: uint32(len(r.data)), key: r.key, addr: r.addr}
			if r.op == provider.OpWriteImm {
				h.kind, h.imm = frameWriteImm, r.imm
			}
			b.add(&h, r.data)
		}
	}
	if last := len(b.frames) - 1; ack != s.ackSent && (last < 0 || b.frames[last].ack != ack) && b.room() {
		b.add(&header{kind: frameAck, ack: ack, imm: s.taken}, nil)
	}
}

func ask(last bool) uint8 {
	if last {
		return flagAsk
	}
	return 0
}

// resume adds the rest of the frame that was cut and returns the length of its whole payload.
//
// hot:
func (s *stream) resume(b *batch) int {
	var data []byte
	switch s.cut.kind {
	case frameMessage:
		data = s.msgs.at(s.msgs.sent).data
	case frameWrite, frameWriteImm:
		data = s.writes.at(s.writes.sent).data
	}
	f := s.cut.frame
	f.size -= s.cut.off
	b.frames = append(b.frames, f)
	if k := headerSize - s.cut.off; k > 0 {
		copy(b.grow(k), s.cut.header[s.cut.off:])
		b.payload(data)
	} else {
		b.payload(data[-k:])
	}
	return len(data)
}

// nacks adds the refusals that fit and returns the count that may be acked behind them: a refusal must be named before it is counted.
//
// hot:
func (s *stream) nacks(b *batch) uint32 {
	first := 0
	if s.cut.off > 0 && s.cut.kind == frameNack {
		first = 1 // it is on its way
	}
	for i := first; i < s.refusals.len(); i++ {
		seq := *s.refusals.at(i)
		if !b.room() {
			return seq - 1
		}
		b.add(&header{kind: frameNack, ack: seq}, nil)
	}
	return s.placed
}

// sent moves the cursors over n bytes of b that the socket has taken.
//
// hot:
func (s *stream) sent(b *batch, n int) {
	for i := range b.frames {
		f := &b.frames[i]
		if n < f.size {
			if i > 0 || s.cut.off == 0 {
				if n == 0 {
					break // the next batch rebuilds it
				}
				s.cut = partial{frame: *f}
				copy(s.cut.header[:], b.scratch[f.hdr:])
			}
			s.cut.off += n
			break
		}
		n -= f.size
		s.cut.off = 0
		s.ackSent = f.ack
		switch f.kind {
		case frameAck:
			s.takenSent = f.took
		case frameNack:
			s.refusals.pop()
		case frameMessage:
			s.msgBytes += uint32(len(s.msgs.at(s.msgs.sent).data))
			s.msgs.sent++
		case frameWrite, frameWriteImm:
			s.writes.sent++
		}
	}
	if !s.owing() {
		s.ask, s.unacked = false, 0
	}
}

// sendable reports whether a call of transmit would send a message or a write.
//
// hot:
func (s *stream) sendable() bool {
	if s.blocked || s.mute {
		return false
	}
	if s.cut.off > 0 || s.writes.sent != s.writes.tail {
		return true
	}
	if s.msgs.sent == s.msgs.tail {
		return false
	}
	return s.msgs.sent-s.msgs.settled < messageCount && int(s.msgBytes)+len(s.msgs.at(s.msgs.sent).data) <= messageBytes
}

// owing reports whether the peer does not know yet what we have placed or taken.
//
// hot:
func (s *stream) owing() bool { return s.placed != s.ackSent || s.taken != s.takenSent }

// due reports whether what we owe should be sent even alone.
//
// hot:
func (s *stream) due() bool {
	if !s.owing() || s.blocked || s.mute {
		return false
	}
	return s.ask && s.quiet >= ackAsked || s.quiet >= ackQuiet ||
		s.placed-s.ackSent >= ackWrites || s.unacked >= ackBytes || s.taken-s.takenSent >= messageCount/4
}
