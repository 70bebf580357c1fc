package proto

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// All integers are little-endian.
//
//	offset  0  magic 0x7077, 2 bytes
//	        2  version, 1
//	        3  kind, 1
//	        4  zero, 4
//	        8  seq, 8: for Ack; 0: not to be acknowledged
//	       16  term: number, 8
//	       24  term: id, 16
//	       40  epoch, 8
//	       48  weights' version, 8
//	       56  the fields of the kind
const (
	wireMagic   = 0x7077
	wireVersion = 1
	headBytes   = 56
)

// MaxMessage bounds a message in bytes. What is longer than hawser.Engine.Send takes goes as a stream (SendBulk).
const MaxMessage = 16 << 20

// ErrProtocol: a peer sent what it must not. The message is dropped.
var ErrProtocol = errors.New("protocol error")

// Head is the part that all messages have.
type Head struct {
	Seq     uint64
	Term    Term    // of a controller: its own; of a member to its controller: the one it obeys; between members: the epoch's
	Epoch   uint64  // its number; 0: about none
	Version Version // of the epoch
}

func (h *Head) key() Key { return Key{h.Term, h.Epoch} }

// Body is the part that a kind has. fields goes over all of them, to write or to read.
type Body interface {
	Kind() Kind
	fields(*coder)
}

// KindOf is the kind of an encoded message, for those who count them; 0 of what is none.
func KindOf(data []byte) Kind {
	if len(data) < 4 {
		return 0
	}
	return Kind(data[3])
}

// Encode makes a message.
func Encode(h Head, b Body) []byte {
	c := coder{b: make([]byte, 0, 128)}
	magic, version, kind, zero := uint16(wireMagic), uint8(wireVersion), uint8(b.Kind()), uint32(0)
	c.u16("magic", &magic)
	c.u8("version", &version)
	c.u8("kind", &kind)
	c.u32("zero", &zero)
	h.fields(&c)
	b.fields(&c)
	return c.b
}

func (h *Head) fields(c *coder) {
	c.u64("seq", &h.Seq)
	c.term("term", &h.Term)
	c.u64("epoch", &h.Epoch)
	c.u64("version", (*uint64)(&h.Version))
}

// Decode checks everything that can be checked without knowing the state. What it returns shares no memory with data. Errors wrap
// ErrProtocol.
func Decode(data []byte) (Head, Body, error) {
	if len(data) < headBytes || len(data) > MaxMessage {
		return Head{}, nil, fmt.Errorf("%w: message of %d bytes, want %d .. %d", ErrProtocol, len(data), headBytes, MaxMessage)
	}
	c := coder{b: data, reading: true}
	var magic uint16
	var version, kind uint8
	var zero uint32
	if c.u16("magic", &magic); magic != wireMagic {
		return Head{}, nil, fmt.Errorf("%w: message begins with %#04x, want %#04x: not a message of a weight push", ErrProtocol, magic, wireMagic)
	}
	if c.u8("version", &version); version != wireVersion {
		return Head{}, nil, fmt.Errorf("%w: message version %d, want %d: run the same release everywhere", ErrProtocol, version, wireVersion)
	}
	c.u8("kind", &kind)
	if c.u32("zero", &zero); zero != 0 {
		c.fail("zero", "is %#x, want 0", zero)
	}
	var h Head
	h.fields(&c)
	b := newBody(Kind(kind))
	if b == nil {
		return Head{}, nil, fmt.Errorf("%w: message of unknown %v", ErrProtocol, Kind(kind))
	}
	b.fields(&c)
	if c.err == nil && len(c.b) > 0 {
		c.fail("end", "has %d more bytes", len(c.b))
	}
	if c.err != nil {
		return Head{}, nil, fmt.Errorf("%w: %v message: %w", ErrProtocol, Kind(kind), c.err)
	}
	return h, b, nil
}

// coder goes over the fields of a message: it appends them to b, or takes them off it. After the first fault it reads zeros and keeps
// the fault. Writing, it cuts texts for people at their limit; other lists are bounded by whoever makes them.
type coder struct {
	b       []byte
	reading bool
	err     error
}

func (c *coder) fail(field, format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf("%s %s", field, fmt.Sprintf(format, args...))
	}
}

func (c *coder) bytes(field string, n int) []byte {
	if c.err == nil && n > len(c.b) {
		c.fail(field, "needs %d bytes, %d are left", n, len(c.b))
	}
	if c.err != nil {
		return nil
	}
	b := c.b[:n]
	c.b = c.b[n:]
	return b
}

func (c *coder) u8(field string, v *uint8) {
	if !c.reading {
		c.b = append(c.b, *v)
		return
	}
	*v = 0
	if b := c.bytes(field, 1); b != nil {
		*v = b[0]
	}
}

func (c *coder) u16(field string, v *uint16) {
	if !c.reading {
		c.b = binary.LittleEndian.AppendUint16(c.b, *v)
		return
	}
	*v = 0
	if b := c.bytes(field, 2); b != nil {
		*v = binary.LittleEndian.Uint16(b)
	}
}

func (c *coder) u32(field string, v *uint32) {
	if !c.reading {
		c.b = binary.LittleEndian.AppendUint32(c.b, *v)
		return
	}
	*v = 0
	if b := c.bytes(field, 4); b != nil {
		*v = binary.LittleEndian.Uint32(b)
	}
}

func (c *coder) u64(field string, v *uint64) {
	if !c.reading {
		c.b = binary.LittleEndian.AppendUint64(c.b, *v)
		return
	}
	*v = 0
	if b := c.bytes(field, 8); b != nil {
		*v = binary.LittleEndian.Uint64(b)
	}
}

func (c *coder) bool(field string, v *bool) {
	var x uint8
	if *v && !c.reading {
		x = 1
	}
	if c.u8(field, &x); x > 1 {
		c.fail(field, "is %d, want 0 or 1", x)
	}
	*v = x == 1
}

// enum is a value from 1 to end-1, or from 0 where zero is allowed.
func (c *coder) enum(field string, v *uint8, least, end uint8) {
	if c.u8(field, v); c.reading && c.err == nil && (*v < least || *v >= end) {
		c.fail(field, "is %d, want %d .. %d", *v, least, end-1)
	}
}

// num is a 32-bit value that is used as an int, below end.
func (c *coder) num(field string, v *int, end int) {
	x := uint32(*v)
	if c.u32(field, &x); c.reading {
		if uint64(x) >= uint64(end) {
			c.fail(field, "is %d, want less than %d", x, end)
			x = 0
		}
		*v = int(x)
	}
}

func (c *coder) id(field string, v *ID) {
	if !c.reading {
		c.b = append(c.b, v[:]...)
		return
	}
	copy(v[:], c.bytes(field, len(v)))
}

func (c *coder) hash(field string, v *Hash) {
	if !c.reading {
		c.b = append(c.b, v[:]...)
		return
	}
	copy(v[:], c.bytes(field, len(v)))
}

func (c *coder) term(field string, v *Term) {
	c.u64(field, &v.Number)
	c.id(field, &v.ID)
}

func (c *coder) key(field string, v *Key) {
	c.term(field, &v.Term)
	c.u64(field, &v.Number)
}

func (c *coder) text(field string, v *string, most int) {
	s := *v
	s = s[:min(len(s), most)]
	n := uint16(len(s))
	if c.u16(field, &n); !c.reading {
		c.b = append(c.b, s...)
		return
	}
	if int(n) > most {
		c.fail(field, "has %d bytes, want at most %d", n, most)
	}
	*v = string(c.bytes(field, int(n)))
}

func (c *coder) blob(field string, v *[]byte, most int) {
	n := c.count(field, len(*v), most, 1)
	if !c.reading {
		c.b = append(c.b, *v...)
		return
	}
	if *v = nil; n > 0 {
		*v = append([]byte(nil), c.bytes(field, n)...)
	}
}

// count is the length of a list whose elements take at least size bytes each: what is read is never longer than the message.
func (c *coder) count(field string, have, most, size int) int {
	n := uint32(have)
	c.u32(field, &n)
	if c.reading && c.err == nil && (uint64(n) > uint64(most) || uint64(n)*uint64(size) > uint64(len(c.b))) {
		c.fail(field, "is %d, want at most %d in %d bytes", n, most, len(c.b))
	}
	if c.err != nil || n > math.MaxInt32 {
		return 0
	}
	return int(n)
}

// list goes over the elements of a list.
func list[T any](c *coder, field string, v *[]T, most, size int, each func(*T)) {
	n := c.count(field, len(*v), most, size)
	if c.reading {
		if *v = nil; n > 0 {
			*v = make([]T, n)
		}
	}
	for i := 0; i < len(*v) && c.err == nil; i++ {
		each(&(*v)[i])
	}
	if c.err != nil {
		*v = nil
	}
}

func (c *coder) ids(field string, v *[]ID) {
	list(c, field, v, MaxMembers, 16, func(id *ID) { c.id(field, id) })
}

func (c *coder) nums(field string, v *[]int, most, end int) {
	list(c, field, v, most, 4, func(n *int) { c.num(field, n, end) })
}
