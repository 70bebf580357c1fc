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

// Memory is local memory as the rails know it. Keys are immutable after it is made; the worker owns the rest.
type Memory struct {
	Keys []provider.Key // by rail

	ops     int // that read from it, as far as the worker has seen them
	retired bool
}

// Retired reports whether Group.Retire has ended its use. For Complete.
func (m *Memory) Retired() bool { return m.retired }

// Completer is told about the end of an operation, on the worker. It must not keep op.
type Completer interface {
	Complete(op *Op)
}

// Op is one operation. Its submitter fills the first group of fields, calls Submit, and does not touch it again; then the
// worker owns it until it has called Owner.Complete.
type Op struct {
	Kind    Kind
	HasImm  bool
	ImmLast bool // Pages: one immediate, after all pages; exact on one ordered link, slower when that fails
	Imm     uint32
	Rail    int // 1 + the only rail to use while it has a link; 0: any
	Peer    *Peer
	Src     *Memory
	Dst     *Remote

	SrcOff, DstOff uint64
	Len            uint64    // of the span, of each page
	Parts          int       // 0 for Write: the group's choice; Pages: the number of pages
	Owner          Completer // its Complete is called by Group.end
	Chain          *Op       // further operations, handed to the worker by the same Submit
	Cookie         uint64
	Stamp          int64 // of record.Now, if the operation is to be followed with the clock; else 0

	// What a small write has nothing to do with comes last: it does not pay for these lines of the cache.
	state
	SrcStride, DstStride uint64
	SrcIdx, DstIdx       []uint32
	Data                 []byte  // of a Send
	redo                 []piece // what went down with a link; those with an immediate first, so that they are placed last
}

// state is what the worker knows of an Op.
type state struct {
	// The result, valid in Complete: the first status that was not OK.
	Status provider.Status

	listed   bool   // in its opList
	begun    bool   // cur is not empty
	strict   bool   // of ImmLast: the link failed, so the immediate waits until everything has landed
	via      uint8  // the link over which its last WR ended
	epoch    uint32 // of ImmLast: the connection of only
	next     *Op    // in its opList
	cursor   int    // next part to begin
	inflight int    // WRs in flight, or lost with a link whose fate is not known yet
	frags    int    // pieces that have to land before the next immediate may leave
	only     *link  // of ImmLast: the link that all pages go over
	cur      piece  // what is left of the part that was begun last
}

// Via is the link over which the last part of the operation ended, valid in Complete.
// hot:
func (o *Op) Via() uint8 { return o.via }

// piece is a range of an operation that has to be written. It shrinks as its fragments are placed.
type piece struct {
	src, dst, n uint64 // offsets in the source and in the destination, bytes
	imm         bool   // the immediate goes with its end
	frag        bool   // counted in Op.frags
}

// Reset makes an Op that has ended, or was not submitted, ready to be filled again. It keeps the memory of its slices, and offsets and
// strides, which those kinds of operations fill that have them. To clear everything takes longer than to submit.
// hot:
func (o *Op) Reset() {
	o.Rewind()
	o.Kind, o.HasImm, o.ImmLast, o.Imm, o.Rail, o.Len, o.Parts, o.Cookie = 0, false, false, 0, 0, 0, 0, 0
	o.Peer, o.Src, o.Dst, o.Owner = nil, nil, nil, nil
	o.SrcIdx, o.DstIdx, o.Data = o.SrcIdx[:0], o.DstIdx[:0], o.Data[:0]
}

// Rewind makes an Op that has ended, or was not submitted, ready to be submitted again as it was filled, but for Parts, which the
// group may have chosen.
// hot:
func (o *Op) Rewind() {
	o.state, o.redo, o.Chain, o.Stamp = state{}, o.redo[:0], nil, 0
}

// opList is a list of operations, oldest first.
type opList struct {
	head, tail *Op
	n          int
}

// hot:
func (l *opList) push(op *Op) {
	op.listed = true
	l.n++
	if l.tail == nil {
		l.head = op
	} else {
		l.tail.next = op
	}
	l.tail = op
}

// pushFront puts what was begun before everything else.
func (l *opList) pushFront(op *Op) {
	op.listed, op.next = true, l.head
	l.n++
	l.head = op
	if l.tail == nil {
		l.tail = op
	}
}

// remove takes op out; nothing happens when it is not there. Mostly it is the first.
// hot:
func (l *opList) remove(op *Op) {
	if !op.listed {
		return
	}
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
		o.next, o.listed = nil, false
		l.n--
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

// placed reports whether nothing is left to place.
// hot:
func (o *Op) placed() bool { return o.cursor >= o.Parts && o.Parts > 0 && !o.begun && len(o.redo) == 0 }

// piece is what to place next. Only called when something is left.
// hot:
func (o *Op) piece() *piece {
	if n := len(o.redo); n > 0 {
		return &o.redo[n-1]
	}
	if !o.begun {
		o.begin()
	}
	return &o.cur
}

// consumed takes the first n bytes of the piece away, or all of it.
// hot:
func (o *Op) consumed(p *piece, n uint64) {
	if n < p.n {
		p.src, p.dst, p.n = p.src+n, p.dst+n, p.n-n
		return
	}
	if len(o.redo) > 0 {
		if p.frag {
			o.frags-- // the last of its flights has its own count
		}
		o.redo = o.redo[:len(o.redo)-1]
		return
	}
	o.begun = false
}

// maxMerge bounds a run of adjacent pages that go as one, so that runs still spread over the rails.
const maxMerge = 256 << 10

// begin takes the next part.
// hot:
func (o *Op) begin() {
	i := o.cursor
	o.cursor++
	o.begun = true
	switch o.Kind {
	case Write:
		if o.Parts == 1 { // mostly; dividing takes longer than everything else here
			o.cur = piece{src: o.SrcOff, dst: o.DstOff, n: o.Len, imm: o.HasImm}
			return
		}
		from, to := cut(o.Len, i, o.Parts), cut(o.Len, i+1, o.Parts)
		o.cur = piece{src: o.SrcOff + from, dst: o.DstOff + from, n: to - from, imm: o.HasImm}
	case Pages:
		o.beginPage(i)
	case Send:
		o.cur = piece{n: uint64(len(o.Data))}
	default:
		o.cur = piece{imm: o.HasImm}
	}
}

// beginPage takes a page, and those after it that lie behind it on both sides: without an immediate of its own a page is just bytes.
// hot:
func (o *Op) beginPage(i int) {
	if len(o.SrcIdx) == 0 { // ImmLast without pages
		o.cur = piece{imm: o.HasImm}
		return
	}
	src, dst := o.SrcOff+uint64(o.SrcIdx[i])*o.SrcStride, o.DstOff+uint64(o.DstIdx[i])*o.DstStride
	o.cur = piece{src: src, dst: dst, n: o.Len, imm: o.HasImm && (!o.ImmLast || i == o.Parts-1)}
	if o.cur.imm || o.Len == 0 {
		return
	}
	last := o.Parts
	if o.HasImm {
		last--
	}
	for i++; i < last && o.cur.n+o.Len <= maxMerge; i++ {
		s, d := o.SrcOff+uint64(o.SrcIdx[i])*o.SrcStride, o.DstOff+uint64(o.DstIdx[i])*o.DstStride
		if s != src+o.cur.n || d != dst+o.cur.n {
			return
		}
		o.cur.n += o.Len
		o.cursor++
	}
}

// again makes p be placed once more.
func (o *Op) again(p piece) {
	if p.frag {
		o.frags++
	}
	o.redo = append(o.redo, p)
	if p.imm {
		copy(o.redo[1:], o.redo)
		o.redo[0] = p
	}
}

// fail makes the operation post nothing more and end with st, unless it failed before.
func (o *Op) fail(st provider.Status) {
	if o.Status == provider.StatusOK {
		o.Status = st
	}
	if o.Parts == 0 { // a plain write that was never placed
		o.Parts = 1
	}
	o.cursor, o.begun, o.redo = o.Parts, false, o.redo[:0]
}

// cut is where part i of n begins in a span of length bytes: floor(length*i/n), exact beyond 64 bits.
func cut(length uint64, i, n int) uint64 {
	hi, lo := bits.Mul64(length, uint64(i))
	q, _ := bits.Div64(hi, lo, uint64(n)) // hi < n: i <= n, and for i = n hi is the carry of length*n, below n
	return q
}
