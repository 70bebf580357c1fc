package tcp

import "github.com/hawser-project/hawser/provider"

// request is a WR that was accepted: what is needed to send it and to complete it.
type request struct {
	data   []byte // local memory, nil when empty
	token  uint64
	key    uint64
	addr   uint64
	imm    uint32
	op     provider.Op
	status provider.Status // valid once settled
}

// sendq is the ring of one stream's writes, or of its messages, in the order of sending. The cursors only grow (modulo 2^32):
//
//	done ≤ settled ≤ sent ≤ tail
//
// [done, settled) have their outcome and wait for room in the owner's completions, [settled, sent) are with the peer, [sent,
// tail) wait to be sent. Owned by the domain's owner.
type sendq struct {
	ring                      []request // peerDepth long, nil before the first push
	done, settled, sent, tail uint32
}

func (q *sendq) at(i uint32) *request { return &q.ring[i%peerDepth] }

// held is the number of requests that were pushed and whose completion was not delivered.
func (q *sendq) held() uint32 { return q.tail - q.done }

// push makes room for a request; the caller checks that fewer than peerDepth are held, and fills it.
//
// hot:
func (q *sendq) push() *request {
	if q.ring == nil {
		q.ring = make([]request, peerDepth)
	}
	r := q.at(q.tail)
	q.tail++
	return r
}

// settle moves the settled cursor up to count and reports false when that is not among the requests with the peer.
//
// hot:
func (q *sendq) settle(count uint32) bool {
	if count-q.settled > q.sent-q.settled {
		return false
	}
	q.settled = count
	return true
}

// deliver completes requests up to the cursor end; those that are not settled get the status of the connection's end. It
// reports false when out is full.
//
// hot:
func (q *sendq) deliver(p provider.Peer, kind provider.Kind, end uint32, out *sink) bool {
	for ; q.done != end; q.done++ {
		if out.full() {
			return false
		}
		r := q.at(q.done)
		status := r.status
		if int32(q.done-q.settled) >= 0 {
			status = provider.StatusFlushed
		}
		out.put(provider.Completion{Token: r.token, Peer: p, Kind: kind, Status: status})
		r.data = nil // the memory is the owner's again, who may unmap it
	}
	return true
}

// sink is the owner's slice of completions while Poll fills it.
type sink struct {
	cs []provider.Completion
	n  int
}

func (s *sink) full() bool { return s.n == len(s.cs) }

// put appends one; the caller has checked that there is room.
func (s *sink) put(c provider.Completion) {
	s.cs[s.n] = c
	s.n++
}

// fifo is a ring of fixed capacity, a power of two, allocated with the first push.
type fifo[T any] struct {
	ring       []T
	head, tail uint32
}

func (f *fifo[T]) len() int { return int(f.tail - f.head) }

func (f *fifo[T]) at(i int) *T { return &f.ring[(f.head+uint32(i))%uint32(len(f.ring))] }

// push appends v; the caller checks that len is below capacity.
//
// hot:
func (f *fifo[T]) push(v T, capacity int) {
	if f.ring == nil {
		f.ring = make([]T, capacity)
	}
	f.ring[f.tail%uint32(len(f.ring))] = v
	f.tail++
}

// pop removes the first; the caller checks that there is one. Its slot is cleared, so that it keeps nothing alive.
//
// hot:
func (f *fifo[T]) pop() (v T) {
	slot := &f.ring[f.head%uint32(len(f.ring))]
	f.head++
	v, *slot = *slot, v
	return v
}
