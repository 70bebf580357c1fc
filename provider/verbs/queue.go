//go:build cgo

package verbs

import "github.com/hawser-project/hawser/provider"

// sink is what Poll fills.
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

// fifo is a growable ring. It allocates only when it holds more than ever before; zero is empty.
type fifo[T any] struct {
	buf        []T // len is a power of two
	head, tail uint
}

// fifoMin is the first capacity.
const fifoMin = 16

func (q *fifo[T]) len() int { return int(q.tail - q.head) }

// at is the i-th oldest element, valid until the next push.
func (q *fifo[T]) at(i int) *T { return &q.buf[(q.head+uint(i))&uint(len(q.buf)-1)] }

// push appends v.
//
// hot:
func (q *fifo[T]) push(v T) {
	if q.len() == len(q.buf) {
		q.grow()
	}
	q.buf[q.tail&uint(len(q.buf)-1)] = v
	q.tail++
}

// pop removes the oldest; the caller checks that there is one.
//
// hot:
func (q *fifo[T]) pop() (v T) {
	slot := &q.buf[q.head&uint(len(q.buf)-1)]
	q.head++
	v, *slot = *slot, v
	return v
}

func (q *fifo[T]) grow() {
	buf := make([]T, max(fifoMin, 2*len(q.buf)))
	n := q.len()
	for i := range n {
		buf[i] = *q.at(i)
	}
	q.buf, q.head, q.tail = buf, 0, uint(n)
}

// pool shares out what a device has of something among peers: each gets a floor, which is there for every one that may still come,
// and a part of what is left beside, the more the fewer came before.
type pool struct {
	free   int
	floor  int
	absent int // peers for whom a floor is kept
	most   int // for one peer
}

// bonusPart of what is free beyond all floors goes to the next peer.
const bonusPart = 8

// take returns the share of one more peer, 0 when there is none.
func (p *pool) take() int {
	if p.absent == 0 {
		return 0
	}
	p.absent--
	spare := p.free - p.floor - p.floor*p.absent
	n := p.floor + min(spare/bonusPart, p.most-p.floor)
	p.free -= n
	return n
}

func (p *pool) give(n int) {
	p.free += n
	p.absent++
}

// newPool shares total among peers, each of which needs floor and can use most; less than floor for each where total is too small
// for all peers makes them fewer.
func newPool(total, peers, floor, most int) pool {
	return pool{free: total, floor: floor, absent: min(peers, total/floor), most: max(most, floor)}
}

// qpTable finds the peer of a queue pair by its number: open addressing, at most half full.
type qpTable struct {
	slots []qpSlot // len is a power of two
	shift uint
}

type qpSlot struct {
	qpn  uint32
	peer uint32 // index + 1, 0 when free
}

func (t *qpTable) init(most int) {
	bits := uint(4)
	for 1<<bits < 2*most {
		bits++
	}
	t.slots, t.shift = make([]qpSlot, 1<<bits), 32-bits
}

// home is where the search begins. The factor is Knuth's for multiplicative hashing: 2^32 divided by the golden ratio.
func (t *qpTable) home(qpn uint32) uint32 { return qpn * 2654435769 >> t.shift }

func (t *qpTable) next(i uint32) uint32 { return (i + 1) & uint32(len(t.slots)-1) }

// find returns the index of a peer, or -1.
//
// hot:
func (t *qpTable) find(qpn uint32) int {
	for i := t.home(qpn); t.slots[i].peer != 0; i = t.next(i) {
		if t.slots[i].qpn == qpn {
			return int(t.slots[i].peer) - 1
		}
	}
	return -1
}

func (t *qpTable) add(qpn uint32, peer int) {
	i := t.home(qpn)
	for t.slots[i].peer != 0 {
		i = t.next(i)
	}
	t.slots[i] = qpSlot{qpn, uint32(peer) + 1}
}

// remove takes an entry out and closes the gap, so that no search ends too early.
func (t *qpTable) remove(qpn uint32) {
	i := t.home(qpn)
	for t.slots[i].qpn != qpn || t.slots[i].peer == 0 {
		if t.slots[i].peer == 0 {
			return
		}
		i = t.next(i)
	}
	t.slots[i] = qpSlot{}
	for j := t.next(i); t.slots[j].peer != 0; j = t.next(j) {
		e := t.slots[j]
		t.slots[j] = qpSlot{}
		t.add(e.qpn, int(e.peer)-1)
	}
}
