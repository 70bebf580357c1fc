package record

import (
	"cmp"
	"math/bits"
	"slices"
)

// Kind is what happened.
type Kind uint8

const (
	OpEnded    Kind = iota + 1 // an operation
	LinkUp                     // a link carries operations
	LinkLost                   // it does not any more; Text says why
	PeerUp                     // a session
	PeerDown                   // Text says why
	PeerFenced                 // nothing of it can land any more
	Unfenced                   // that is not known
	RailDead                   // Text says why
)

// Op is an operation that has ended, in 32 bytes.
type Op struct {
	Time   int64  // of Now, as good as Recorder.Clock is
	Len    uint64 // bytes of a write, of each page, of a message
	Imm    uint32
	Peer   uint32 // number
	seq    uint32 // of all events, modulo 2^32
	Op     uint8  // the owner's; with HasImm
	Status uint8
	Link   uint8 // over which its last part went
}

// HasImm in Op.Op says that the operation had an immediate.
const HasImm = 0x80

// Event is anything that happened.
type Event struct {
	Op
	Kind Kind
	Rail int // -1: none
	Text string
}

// Recorder keeps the last events, those of operations, of which there are many, apart from the others. Whoever records owns it.
type Recorder struct {
	// Clock is the time that events get. The owner reads the clock when it likes; events come faster than is good for reading it
	// each time.
	Clock int64

	seq  uint32
	nops uint64
	nall uint64
	ops  []Op
	all  []Event
}

// rare is how many operations are kept for each other event.
const rare = 4

// New makes a recorder of the last n ends of operations, and of a quarter as many other events. n is rounded up to a power of two, and to
// 16.
func New(n int) *Recorder {
	size := 1 << bits.Len(uint(max(n, 16)-1))
	return &Recorder{ops: make([]Op, size), all: make([]Event, size/rare)}
}

// Ended records the end of an operation.
// hot:
func (r *Recorder) Ended(op, status, link uint8, peer, imm uint32, n uint64) {
	e := &r.ops[r.nops&uint64(len(r.ops)-1)]
	r.nops++
	r.seq++
	e.Time, e.Len, e.Imm, e.Peer, e.seq, e.Op, e.Status, e.Link = r.Clock, n, imm, peer, r.seq, op, status, link
}

// Count is how many operations have been recorded.
func (r *Recorder) Count() uint64 { return r.nops }

// Note records something else.
func (r *Recorder) Note(kind Kind, peer uint32, rail, link int, text string) {
	r.Clock = Now()
	r.seq++
	r.all[r.nall&uint64(len(r.all)-1)] = Event{
		Op:   Op{Time: r.Clock, Peer: peer, seq: r.seq, Link: uint8(link)},
		Kind: kind, Rail: rail, Text: text,
	}
	r.nall++
}

// Last returns the last n events that match, oldest first: of those that are not operations, and of the operations. 0: all.
func (r *Recorder) Last(n int, match func(*Event) bool) []Event {
	var ops, all []Event
	if n <= 0 {
		n = len(r.ops)
	}
	for i := r.nops; i > 0 && i+uint64(len(r.ops)) > r.nops && len(ops) < n; i-- {
		e := Event{Op: r.ops[(i-1)&uint64(len(r.ops)-1)], Kind: OpEnded, Rail: -1}
		if match == nil || match(&e) {
			ops = append(ops, e)
		}
	}
	for i := r.nall; i > 0 && i+uint64(len(r.all)) > r.nall && len(all) < n; i-- {
		if e := &r.all[(i-1)&uint64(len(r.all)-1)]; match == nil || match(e) {
			all = append(all, *e)
		}
	}
	all = append(all, ops...)
	now := r.seq
	slices.SortFunc(all, func(a, b Event) int { return cmp.Compare(now-b.seq, now-a.seq) }) // the age, so that seq may wrap
	return all
}
