package kv

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Messages between a Decoder (D) and a Prefiller (P). The engine delivers each at most once, in any order, and may lose it
// together with a connection. All integers are little-endian.
//
//	offset  0  magic 0x6b76, 2 bytes
//	        2  version, 1
//	        3  kind, 1
//	        4  zero, 4
//	        8  epoch of the link, 8
//	       16  ticket of the link, 8
//	       24  lowWater, 8: oldest live attempt of D on this link; P to D: 0
//	       32  next, 8: attempt number that D gives next; P to D: 0
//	       40  the fields of the kind
//
// The epoch is D's number of the link, the ticket P's: it comes with the answer to Hello, and D repeats it. So each side knows
// messages of a link that has ended by a number of its own, and keeps nothing for it.
const (
	wireMagic   = 0x6b76
	wireVersion = 1
	headBytes   = 40
)

// maxMessage is what every engine can send (hawser.Engine.Send).
const maxMessage = 64 << 10

type kind uint8

const (
	kindHello       kind = 1 + iota // D to P: geometry and descriptors
	kindHelloAck                    // P to D: every descriptor is imported
	kindHelloReject                 // P to D
	kindDispatch                    // D to P: a request; may come in parts
	kindAccept                      // P to D
	kindReject                      // P to D: implies that nothing was and will be written
	kindCancel                      // D to P: always answered
	kindCancelAck                   // P to D: no write is outstanding and none can start
	kindFailed                      // P to D: the same promise
	kindTiming                      // P to D: statistics, never a completion
	kindBye                         // both: the link ends
	kindEnd
)

func (k kind) String() string {
	names := [...]string{
		kindHello: "hello", kindHelloAck: "hello-ack", kindHelloReject: "hello-reject", kindDispatch: "dispatch", kindAccept: "accept",
		kindReject: "reject", kindCancel: "cancel", kindCancelAck: "cancel-ack", kindFailed: "failed", kindTiming: "timing", kindBye: "bye",
	}
	if int(k) < len(names) && names[k] != "" {
		return names[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// head is the part that all messages have.
type head struct {
	epoch, ticket, lowWater, next uint64
}

// body is the part that a kind has. Both methods go over the same fields in the same order.
type body interface {
	kind() kind
	put(*writer)
	take(*reader)
}

func encode(h head, b body) []byte {
	w := writer{make([]byte, 0, 128)}
	w.u16(wireMagic)
	w.u8(wireVersion)
	w.u8(uint8(b.kind()))
	w.u32(0)
	w.u64(h.epoch)
	w.u64(h.ticket)
	w.u64(h.lowWater)
	w.u64(h.next)
	b.put(&w)
	return w.b
}

// decode checks everything that can be checked without knowing the link. What it returns shares no memory with data.
func decode(data []byte) (head, body, error) {
	if len(data) < headBytes || len(data) > maxMessage {
		return head{}, nil, fmt.Errorf("%w: message of %d bytes, want %d .. %d", ErrProtocol, len(data), headBytes, maxMessage)
	}
	r := reader{b: data}
	if m := r.u16("magic"); m != wireMagic {
		return head{}, nil, fmt.Errorf("%w: message begins with %#04x, want %#04x: not a kv message", ErrProtocol, m, wireMagic)
	}
	if v := r.u8("version"); v != wireVersion {
		return head{}, nil, fmt.Errorf("%w: message version %d, want %d: run the same release on both sides", ErrProtocol, v, wireVersion)
	}
	k := kind(r.u8("kind"))
	if zero := r.u32("zero"); zero != 0 {
		r.fail("zero", fmt.Sprintf("is %#x, want 0", zero))
	}
	h := head{r.u64("epoch"), r.u64("ticket"), r.u64("lowWater"), r.u64("next")}
	if h.lowWater > h.next {
		r.fail("lowWater", fmt.Sprintf("is %d, want at most next, %d", h.lowWater, h.next))
	}
	if k == 0 || k >= kindEnd {
		return head{}, nil, fmt.Errorf("%w: message of unknown %v", ErrProtocol, k)
	}
	b := newBody(k)
	b.take(&r)
	if r.err == nil && len(r.b) > 0 {
		r.fail("end", fmt.Sprintf("has %d more bytes", len(r.b)))
	}
	if r.err != nil {
		return head{}, nil, fmt.Errorf("%w: %v message: %w", ErrProtocol, k, r.err)
	}
	return h, b, nil
}

func newBody(k kind) body {
	switch k {
	case kindHello:
		return &hello{}
	case kindHelloAck:
		return &helloAck{}
	case kindHelloReject:
		return &helloReject{}
	case kindDispatch:
		return &dispatch{}
	case kindAccept:
		return &accept{}
	case kindReject:
		return &reject{}
	case kindCancel:
		return &cancel{}
	case kindCancelAck:
		return &cancelAck{}
	case kindFailed:
		return &failed{}
	case kindTiming:
		return &timing{}
	}
	return &bye{}
}

// writer appends fields. Strings longer than their limit are cut: they are texts for people, or were checked before.
type writer struct{ b []byte }

func (w *writer) u8(v uint8)   { w.b = append(w.b, v) }
func (w *writer) u16(v uint16) { w.b = binary.LittleEndian.AppendUint16(w.b, v) }
func (w *writer) u32(v uint32) { w.b = binary.LittleEndian.AppendUint32(w.b, v) }
func (w *writer) u64(v uint64) { w.b = binary.LittleEndian.AppendUint64(w.b, v) }

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

// number reads a 32-bit value that is used as an int.
func (r *reader) number(field string) int {
	v := r.u32(field)
	if v > math.MaxInt32 {
		r.fail(field, fmt.Sprintf("is %d, want at most %d", v, math.MaxInt32))
		return 0
	}
	return int(v)
}
