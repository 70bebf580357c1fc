package rail

import (
	"math/bits"

	"github.com/hawser-project/hawser/provider"
)

// Kind is the kind of an operation.
type Kind uint8

const (
	Write  Kind = iota + 1 // one span, cut into Parts
	Pages                  // one part per page
	Signal                 // one empty part
	Send                   // one message
)

// Memory is local memory as the rails know it. Immutable after it is made.
type Memory struct {
	Keys []provider.Key // by rail
}

// Remote is memory of a peer as the links to that peer know it. Immutable after it is made.
type Remote struct {
	Peer *Peer
	Keys []provider.Key // by link
}

// Completer is told about the end of an operation, on the worker. It must not keep op.
type Completer interface {
	Complete(op *Op)
}

// Op is one operation. Its submitter fills the first group of fields, calls Submit, and does not touch it again; then the
// worker owns it until it has called Owner.Complete.
type Op struct {
	Kind   Kind
	HasImm bool
	Imm    uint32
	Peer   *Peer
	Src    *Memory
	Dst    *Remote

	SrcOff, DstOff       uint64
	Len                  uint64 // of the span, of each page
	SrcStride, DstStride uint64
	SrcIdx, DstIdx       []uint32
	Parts                int    // 0 for Write: the group's choice; Pages: the number of pages
	Data                 []byte // of a Send
	Owner                Completer
	Cookie               uint64

	// The result, valid in Complete: the first status that was not OK.
	Status provider.Status

	next     *Op    // in its opList
	cursor   int    // next part to post
	fragOff  uint64 // bytes of part cursor that are posted already, when it is longer than MaxMsg
	frags    int    // fragments of part cursor in flight
	inflight int    // WRs in flight
}

// Reset makes an Op ready to be filled again. It keeps the memory of its slices.
func (o *Op) Reset() {
	*o = Op{SrcIdx: o.SrcIdx[:0], DstIdx: o.DstIdx[:0], Data: o.Data[:0]}
}

// opList is a list of operations, oldest first.
type opList struct{ head, tail *Op }

// hot:
func (l *opList) push(op *Op) {
	if l.tail == nil {
		l.head = op
	} else {
		l.tail.next = op
	}
	l.tail = op
}

// remove takes op out; nothing happens when it is not there. Mostly it is the first.
// hot:
func (l *opList) remove(op *Op) {
	var prev *Op
	for o := l.head; o != nil; prev, o = o, o.next {
		if o != op {
			continue
		}
		if prev == nil {
			l.head = o.next
		} else {
			prev.next = o.next
		}
		if l.tail == o {
			l.tail = prev
		}
		o.next = nil
		return
	}
}

// list is where op waits for its turn.
// hot:
func (o *Op) list() *opList {
	if o.Kind == Send {
		return &o.Peer.messages
	}
	return &o.Peer.ops
}

// part returns where part i of the operation reads and writes, and its length.
// hot:
func (o *Op) part(i int) (src, dst, n uint64) {
	switch o.Kind {
	case Write:
		from, to := cut(o.Len, i, o.Parts), cut(o.Len, i+1, o.Parts)
		return o.SrcOff + from, o.DstOff + from, to - from
	case Pages:
		return o.SrcOff + uint64(o.SrcIdx[i])*o.SrcStride, o.DstOff + uint64(o.DstIdx[i])*o.DstStride, o.Len
	}
	return 0, 0, 0
}

// cut is where part i of n begins in a span of length bytes: floor(length*i/n), exact beyond 64 bits.
func cut(length uint64, i, n int) uint64 {
	hi, lo := bits.Mul64(length, uint64(i))
	q, _ := bits.Div64(hi, lo, uint64(n)) // hi < n: i <= n, and for i = n hi is the carry of length*n, below n
	return q
}
