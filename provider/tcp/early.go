package tcp

import "github.com/hawser-project/hawser/provider"

// Room for messages that came before a receive, per stream. It bounds what a peer can make us hold and is enough for
// two of the largest messages, so that one can travel while another is handed over.
const (
	messageBytes = 2 * maxSend
	messageCount = 256
	// messageTurn is how many early messages of one peer are handed over before it is another's turn.
	messageTurn = 16
)

// early is a ring of whole messages, in the order of arrival, and one at its end that is still arriving. Owned by the
// domain's owner.
type early struct {
	buf    []byte       // messageBytes long, nil before the first message
	lens   fifo[uint32] // of the whole messages
	head   uint32       // first byte of the first message, modulo 2^32
	used   uint32       // bytes of all, the arriving one included
	coming uint32       // length of the arriving one
	start  uint32       // its first byte
}

// reserve makes room for an arriving message of n bytes and reports false when there is none.
//
// hot:
func (e *early) reserve(n int) bool {
	if e.lens.len() == messageCount || e.used+uint32(n) > messageBytes {
		return false
	}
	if e.buf == nil {
		e.buf = make([]byte, messageBytes)
	}
	e.start = e.head + e.used
	e.coming = uint32(n)
	e.used += uint32(n)
	return true
}

// space is where n bytes at offset off of the arriving message go.
//
// hot:
func (e *early) space(off, n int) (a, b []byte) { return e.span(e.start+uint32(off), n) }

func (e *early) span(at uint32, n int) (a, b []byte) {
	i := int(at % messageBytes)
	if k := messageBytes - i; n > k {
		return e.buf[i:], e.buf[:n-k]
	}
	return e.buf[i : i+n], nil
}

// commit makes the arriving message whole.
func (e *early) commit() { e.lens.push(e.coming, messageCount) }

// pop moves the first message into dst and returns its length, which may be more than dst holds.
//
// hot:
func (e *early) pop(dst []byte) int {
	n := e.lens.pop()
	a, b := e.span(e.head, int(n))
	k := copy(dst, a)
	copy(dst[k:], b)
	e.head += n
	e.used -= n
	return int(n)
}

// posted is a receive that waits for a message.
type posted struct {
	buf   []byte
	token uint64
}

// handOver moves p's early messages into receives. What remains waits for its next turn, for receives, or for room in out.
//
// hot:
func (d *domain) handOver(p *peer, out *sink) {
	s := &p.stream
	for turn := messageTurn; turn > 0 && s.early.lens.len() > 0 && d.recvs.len() > 0 && !out.full(); turn-- {
		to := d.recvs.pop()
		n := s.early.pop(to.buf)
		status := provider.StatusOK
		if n > len(to.buf) {
			status = provider.StatusTruncated
		}
		s.taken++
		out.put(provider.Completion{Token: to.token, Len: uint64(n), Peer: p.handle, Kind: provider.KindRecv, Status: status})
	}
	if wait := s.early.lens.len() > 0; wait && !p.listed {
		p.listed = true
		d.earlyPeers = append(d.earlyPeers, p)
	} else if !wait && p.listed {
		d.unlist(p)
	}
}

// unlist takes p off the list of peers whose messages wait for a receive.
//
// hot:
func (d *domain) unlist(p *peer) {
	last := len(d.earlyPeers) - 1
	for i, q := range d.earlyPeers {
		if q == p {
			d.earlyPeers[i] = d.earlyPeers[last]
			d.earlyPeers[last] = nil
			d.earlyPeers = d.earlyPeers[:last]
			break
		}
	}
	p.listed = false
}
