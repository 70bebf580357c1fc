package proto

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// Messages between a decoder (D) and a prefiller (P). The network delivers each at most once, in any order, and may lose it. All
// integers are little-endian.
//
//	offset  0  magic 0x6b76, 2 bytes
//	        2  version, 1
//	        3  kind, 1
//	        4  zero, 4
//	        8  epoch of the link, 8
//	       16  ticket of the link, 8
//	       24  lowWater, 8: oldest live attempt of D on this link; P to D: 0
//	       32  next, 8: attempt number that D gives next on this link; P to D: 0
//	       40  the fields of the kind
//
// The epoch is D's number of the link, the ticket P's: it comes with the answer to Hello, and D repeats it. So each side knows
// messages of a link that has ended by a number of its own, and keeps nothing for it.
const (
	wireMagic   = 0x6b76
	wireVersion = 2
	headBytes   = 40
	kindAt      = 3
)

// MaxMessage bounds a message in bytes. What is longer than the network's own limit goes as a stream (hawser.Engine.SendBulk).
const MaxMessage = 16 << 20

// ErrProtocol: the peer sent what it must not. The link to it ends.
var ErrProtocol = errors.New("protocol error")

// Kind tells messages apart. The numbers travel: each keeps its meaning.
type Kind uint8

// The kinds.
const (
	KindHello       Kind = 1 + iota // D to P: who D is, topology, descriptors
	KindHelloAck                    // P to D: every descriptor is imported
	KindHelloReject                 // P to D
	KindDispatch                    // D to P: a request
	KindAccept                      // P to D
	KindReject                      // P to D: nothing was and will be written
	KindCancel                      // D to P: always answered
	KindCancelAck                   // P to D: no write is outstanding and none can start
	KindFailed                      // P to D: the same promise
	KindDigest                      // P to D: sums over the content that was sent
	KindTiming                      // P to D: statistics, never a completion
	KindBeat                        // both
	KindQuery                       // D to P: what has become of these attempts?
	KindState                       // P to D
	KindDrain                       // both: no new Dispatch
	KindBye                         // both: the link ends
	kindEnd
)

var kindNames = [...]string{
	KindHello: "hello", KindHelloAck: "hello-ack", KindHelloReject: "hello-reject", KindDispatch: "dispatch", KindAccept: "accept",
	KindReject: "reject", KindCancel: "cancel", KindCancelAck: "cancel-ack", KindFailed: "failed", KindDigest: "digest",
	KindTiming: "timing", KindBeat: "beat", KindQuery: "query", KindState: "state", KindDrain: "drain", KindBye: "bye",
}

func (k Kind) String() string {
	if int(k) < len(kindNames) && kindNames[k] != "" {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Head is the part that all messages have.
type Head struct {
	Epoch, Ticket, LowWater, Next uint64
}

// Body is the part that a kind has. Both of its unexported methods go over the same fields in the same order.
type Body interface {
	Kind() Kind
	put(*writer)
	take(*reader)
}

// Encode makes a message.
func Encode(h Head, b Body) []byte { return AppendMessage(make([]byte, 0, 128), h, b) }

// AppendMessage appends a message to data.
func AppendMessage(data []byte, h Head, b Body) []byte {
	w := writer{data}
	w.u16(wireMagic)
	w.u8(wireVersion)
	w.u8(uint8(b.Kind()))
	w.u32(0)
	w.u64(h.Epoch)
	w.u64(h.Ticket)
	w.u64(h.LowWater)
	w.u64(h.Next)
	b.put(&w)
	return w.b
}

// Decode checks everything that can be checked without knowing the link. What it returns shares no memory with data. Errors wrap
// ErrProtocol.
func Decode(data []byte) (Head, Body, error) {
	if len(data) < headBytes || len(data) > MaxMessage {
		return Head{}, nil, fmt.Errorf("%w: message of %d bytes, want %d .. %d", ErrProtocol, len(data), headBytes, MaxMessage)
	}
	r := reader{b: data}
	if m := r.u16("magic"); m != wireMagic {
		return Head{}, nil, fmt.Errorf("%w: message begins with %#04x, want %#04x: not a kv message", ErrProtocol, m, wireMagic)
	}
	if v := r.u8("version"); v != wireVersion {
		return Head{}, nil, fmt.Errorf("%w: message version %d, want %d: run the same release on both sides", ErrProtocol, v, wireVersion)
	}
	k := Kind(r.u8("kind"))
	if zero := r.u32("zero"); zero != 0 {
		r.fail("zero", fmt.Sprintf("is %#x, want 0", zero))
	}
	h := Head{r.u64("epoch"), r.u64("ticket"), r.u64("lowWater"), r.u64("next")}
	if h.LowWater > h.Next {
		r.fail("lowWater", fmt.Sprintf("is %d, want at most next, %d", h.LowWater, h.Next))
	}
	b := newBody(k)
	if b == nil {
		return Head{}, nil, fmt.Errorf("%w: message of unknown %v", ErrProtocol, k)
	}
	b.take(&r)
	if r.err == nil && len(r.b) > 0 {
		r.fail("end", fmt.Sprintf("has %d more bytes", len(r.b)))
	}
	if r.err != nil {
		return Head{}, nil, fmt.Errorf("%w: %v message: %w", ErrProtocol, k, r.err)
	}
	return h, b, nil
}

// Peek looks at a message without decoding it: its kind, and what follows the head, in most kinds the attempt that it is about. Each is 0
// when data is too short for it.
func Peek(data []byte) (k Kind, about uint64) {
	if len(data) >= headBytes {
		k = Kind(data[kindAt])
	}
	if len(data) >= headBytes+8 {
		about = binary.LittleEndian.Uint64(data[headBytes:])
	}
	return k, about
}

func newBody(k Kind) Body {
	switch k {
	case KindHello:
		return &Hello{}
	case KindHelloAck:
		return &HelloAck{}
	case KindHelloReject:
		return &HelloReject{}
	case KindDispatch:
		return &Dispatch{}
	case KindAccept:
		return &Accept{}
	case KindReject:
		return &Reject{}
	case KindCancel:
		return &Cancel{}
	case KindCancelAck:
		return &CancelAck{}
	case KindFailed:
		return &Failed{}
	case KindDigest:
		return &Digest{}
	case KindTiming:
		return &Timing{}
	case KindBeat:
		return &Beat{}
	case KindQuery:
		return &Query{}
	case KindState:
		return &State{}
	case KindDrain:
		return &Drain{}
	case KindBye:
		return &Bye{}
	}
	return nil
}

// writer appends fields. Texts longer than their limit are cut: they are for people, or were checked before.
type writer struct{ b []byte }

func (w *writer) u8(v uint8)   { w.b = append(w.b, v) }
func (w *writer) u16(v uint16) { w.b = binary.LittleEndian.AppendUint16(w.b, v) }
func (w *writer) u32(v uint32) { w.b = binary.LittleEndian.AppendUint32(w.b, v) }
func (w *writer) u64(v uint64) { w.b = binary.LittleEndian.AppendUint64(w.b, v) }
func (w *writer) num(v int)    { w.u32(uint32(v)) }

func (w *writer) bool(v bool) {
	if v {
		w.u8(1)
	} else {
		w.u8(0)
	}
}

func (w *writer) str(s string, most int) {
	s = s[:min(len(s), most)]
	w.u16(uint16(len(s)))
	w.b = append(w.b, s...)
}

func (w *writer) blob(b []byte) {
	w.num(len(b))
	w.b = append(w.b, b...)
}

// reader takes fields off b. After the first fault it returns zeros and keeps the fault in err.
type reader struct {
	b   []byte
	err error
}

func (r *reader) fail(field, what string) {
	if r.err == nil {
		r.err = fmt.Errorf("%s %s", field, what)
	}
}

func (r *reader) bytes(field string, n int) []byte {
	if r.err == nil && n > len(r.b) {
		r.fail(field, fmt.Sprintf("needs %d bytes, %d are left", n, len(r.b)))
	}
	if r.err != nil {
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) u8(field string) uint8 {
	if b := r.bytes(field, 1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) u16(field string) uint16 {
	if b := r.bytes(field, 2); b != nil {
		return binary.LittleEndian.Uint16(b)
	}
	return 0
}

func (r *reader) u32(field string) uint32 {
	if b := r.bytes(field, 4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *reader) u64(field string) uint64 {
	if b := r.bytes(field, 8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (r *reader) bool(field string) bool {
	v := r.u8(field)
	if v > 1 {
		r.fail(field, fmt.Sprintf("is %d, want 0 or 1", v))
	}
	return v == 1
}

func (r *reader) str(field string, most int) string {
	n := int(r.u16(field))
	if n > most {
		r.fail(field, fmt.Sprintf("has %d bytes, want at most %d", n, most))
	}
	return string(r.bytes(field, n))
}

func (r *reader) blob(field string, most int) []byte {
	n := r.count(field, most, 1)
	if n == 0 {
		return nil
	}
	return append([]byte(nil), r.bytes(field, n)...)
}

// count reads the length of a list whose elements take at least size bytes, so that a list is never longer than the message.
func (r *reader) count(field string, most, size int) int {
	n := r.u32(field)
	if r.err == nil && (uint64(n) > uint64(most) || uint64(n)*uint64(size) > uint64(len(r.b))) {
		r.fail(field, fmt.Sprintf("is %d, want at most %d in %d bytes", n, most, len(r.b)))
	}
	if r.err != nil {
		return 0
	}
	return int(n)
}

// num reads a 32-bit value that is used as an int.
func (r *reader) num(field string) int {
	v := r.u32(field)
	if v > math.MaxInt32 {
		r.fail(field, fmt.Sprintf("is %d, want at most %d", v, math.MaxInt32))
		return 0
	}
	return int(v)
}
