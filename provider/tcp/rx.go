package tcp

import (
	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/provider"
)

const (
	// bufferSize is what a stream reads ahead of the frame that it is in: enough for 400 small frames a call.
	bufferSize = 16 << 10
	// bigFrame is the payload from which a stream reads exactly to the end of the next header, so that no byte of the next
	// payload has to be copied. Below it one call for several frames is cheaper than a call each.
	bigFrame = 8 << 10
	// receiveBudget bounds the bytes that one visit reads, so that all peers get their turn.
	receiveBudget = 1 << 20
)

// rx is the receiving half of a stream: a buffer of bytes that were not looked at yet, and the frame whose payload is
// being received.
type rx struct {
	buf        []byte // bufferSize long, from Connect's success on
	head, tail int    // buf[head:tail] was received and not parsed
	direct     int    // bytes at the front of the current call that go past the buffer
	big        bool   // the last payload was at least bigFrame

	open    bool   // h is in progress
	refused bool   // its payload is dropped
	h       header // h.addr and rest move as the payload arrives
	rest    int    // payload bytes to come
}

// cuts reports whether the payload of a write under this key has arrived in part.
func (r *rx) cuts(key uint64) bool {
	return r.open && !r.refused && r.h.kind != frameMessage && r.h.key == key && 0 < r.rest && r.rest < int(r.h.len)
}

// receive reads what has arrived for p, up to a budget, and executes it.
//
// hot:
func (d *domain) receive(p *peer, out *sink) {
	s := &p.stream
	for budget := receiveBudget; ; {
		if s.stalled = !d.parse(p, out); s.stalled || !s.readable || budget <= 0 {
			return
		}
		want := d.space(p)
		n, errno := d.scatter.receive(s.fd, s.line, d.vecs)
		clear(d.vecs)
		switch {
		case n > 0:
			s.land(n)
			s.quiet = 0
			d.recent = p
			budget -= n
			d.moved += n
			// Less than there was room for means that the socket is empty; its next byte is an event. The end of the
			// stream may be behind us in the same event, so once it is announced, read on until it comes.
			s.readable = n == want || s.ending
		case errno == unix.EINTR:
		case errno == unix.EAGAIN && !s.mute:
			s.readable, s.ending = false, false
			if budget == receiveBudget { // in vain
				s.quiet++
			}
			return
		default: // the end, or an error; whatever arrived before it has been parsed
			d.fail(p, provider.StatusPeerDown, uint32(errno))
			return
		}
	}
}

// space sets d.vecs to where the next bytes of p belong and returns how many there is room for.
//
// hot:
func (d *domain) space(p *peer) int {
	r := &p.stream.rx
	if r.head > 0 { // less than a header is left over, or nothing
		r.tail = copy(r.buf, r.buf[r.head:r.tail])
		r.head = 0
	}
	d.vecs = d.vecs[:0]
	r.direct = 0
	ahead := r.buf[r.tail:]
	if r.open && r.rest > 0 {
		n := min(r.rest, receiveBudget)
		a, b := d.destination(p, n)
		if a != nil {
			d.vecs = append(d.vecs, a)
			if b != nil {
				d.vecs = append(d.vecs, b)
			}
			r.direct = n
			if n < r.rest {
				return n
			}
		}
	}
	if r.big && !r.refused {
		ahead = ahead[:headerSize-r.tail]
	}
	d.vecs = append(d.vecs, ahead)
	return r.direct + len(ahead)
}

// land accounts for n bytes that were read to where space said.
//
// hot:
func (s *stream) land(n int) {
	r := &s.rx
	k := min(n, r.direct)
	r.rest -= k
	r.h.addr += uint64(k)
	r.tail += n - k
}

// destination is where the next n bytes of the open frame go; nil when they are dropped. Only messages have a second piece.
//
// hot:
func (d *domain) destination(p *peer, n int) (a, b []byte) {
	r := &p.stream.rx
	if r.refused {
		return nil, nil
	}
	if r.h.kind == frameMessage {
		return p.stream.early.space(int(r.h.len)-r.rest, n)
	}
	// Looked up again for each piece: it may have been deregistered since.
	if a = d.target(p, r.h.key, r.h.addr, uint64(n)); a == nil {
		r.refused = true
	}
	return a, nil
}

// parse executes the frames in the buffer as far as they have arrived. It reports false when it had to stop before: out is
// full, or the connection has failed.
//
// hot:
func (d *domain) parse(p *peer, out *sink) bool {
	r := &p.stream.rx
	for {
		have := r.buf[r.head:r.tail]
		switch {
		case !r.open:
			if len(have) < headerSize {
				return true
			}
			h, bad := parseHeader(have)
			r.head += headerSize
			if bad == badNothing {
				bad = d.begin(p, h)
			}
			if bad != badNothing {
				d.violations++
				d.fail(p, provider.StatusProtocol, uint32(bad))
				return false
			}
		case r.rest == 0:
			if !d.finish(p, out) {
				return false
			}
			r.open = false
		case len(have) == 0:
			return true
		default:
			n := min(r.rest, len(have))
			if a, b := d.destination(p, n); a != nil {
				k := copy(a, have)
				copy(b, have[k:])
			}
			r.head += n
			r.rest -= n
			r.h.addr += uint64(n)
		}
	}
}

// begin handles a header: the counts at once; a payload becomes the open frame.
//
// hot:
func (d *domain) begin(p *peer, h header) violation {
	s := &p.stream
	if h.ack != s.writes.settled || h.kind == frameNack {
		if h.kind == frameNack && h.ack == s.writes.settled || !s.writes.settle(h.ack) {
			return badAck
		}
	}
	r := &s.rx
	switch h.kind {
	case frameAck:
		if !s.took(h.imm) {
			return badTaken
		}
		return badNothing
	case frameNack:
		s.writes.at(h.ack - 1).status = provider.StatusAccess
		return badNothing
	case frameMessage:
		if !s.early.reserve(int(h.len)) {
			return badCredit
		}
		r.refused = false
	default:
		// What the peer has seen acked is at most what we have sent.
		if s.placed-s.ackSent >= peerDepth {
			return badWindow
		}
		r.refused = h.len > 0 && d.target(p, h.key, h.addr, uint64(h.len)) == nil
		if !s.patient(r.refused, h.len) {
			return badTarget
		}
	}
	r.open, r.h, r.rest = true, h, int(h.len)
	r.big = h.len >= bigFrame
	return badNothing
}

// A writer whose memory goes away has a window of writes on their way, and then knows. One that goes on and on makes us read for
// nothing: each refused write counts, and once more for each refusedUnit of its bytes; a good one makes up for a bad one.
const (
	refusedUnit = 256 << 10
	maxRefused  = 4 * peerDepth
)

// patient reports whether the peer may go on.
//
// hot:
func (s *stream) patient(refused bool, n uint32) bool {
	if refused {
		s.wrongs += 1 + n/refusedUnit
	} else if s.wrongs > 0 {
		s.wrongs--
	}
	return s.wrongs <= maxRefused
}

// finish ends a frame whose payload is complete. It reports false when out has no room for what it completes.
//
// hot:
func (d *domain) finish(p *peer, out *sink) bool {
	s := &p.stream
	h := &s.rx.h
	if h.kind == frameMessage {
		s.early.commit()
		d.handOver(p, out)
		s.ask = s.ask || h.flags&flagAsk != 0
		return true
	}
	if h.kind == frameWriteImm {
		if out.full() {
			return false
		}
		c := provider.Completion{Peer: p.handle, Kind: provider.KindImm, Imm: h.imm, Len: uint64(h.len)}
		if s.rx.refused {
			c.Kind, c.Status = provider.KindRefused, provider.StatusAccess
		}
		out.put(c)
	}
	if s.rx.refused {
		s.refusals.push(s.placed+1, peerDepth)
	}
	s.placed++
	s.unacked += uint64(h.len)
	s.ask = s.ask || h.flags&flagAsk != 0
	return true
}

// took settles the messages that the peer has moved into receives, up to count.
//
// hot:
func (s *stream) took(count uint32) bool {
	from := s.msgs.settled
	if !s.msgs.settle(count) {
		return false
	}
	for ; from != count; from++ {
		s.msgBytes -= uint32(len(s.msgs.at(from).data))
	}
	return true
}
