package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrMalformed: bytes from a peer, or from whoever handed us an address or a descriptor, do not mean anything.
var ErrMalformed = errors.New("malformed")

// codec appends to b when writing and consumes b when reading. The first fault while reading sticks; later reads give zeros.
type codec struct {
	b       []byte
	reading bool
	err     error
}

// Message is anything that the codec can carry; only this package has such types.
type Message interface {
	fields(c *codec)
}

// Append encodes m after b.
func Append(b []byte, m Message) []byte {
	c := codec{b: b}
	m.fields(&c)
	return c.b
}

// Parse decodes all of b into m.
func Parse(b []byte, m Message) error {
	c := codec{b: b, reading: true}
	m.fields(&c)
	if c.err == nil && len(c.b) > 0 {
		c.err = fmt.Errorf("%d bytes too many", len(c.b))
	}
	if c.err != nil {
		return fmt.Errorf("%w %T: %w", ErrMalformed, m, c.err)
	}
	return nil
}

func (c *codec) take(n int) []byte {
	if c.err != nil {
		return nil
	}
	if n > len(c.b) {
		c.err = fmt.Errorf("%d bytes missing", n-len(c.b))
		return nil
	}
	b := c.b[:n]
	c.b = c.b[n:]
	return b
}

func (c *codec) u8(v *uint8) {
	if !c.reading {
		c.b = append(c.b, *v)
	} else if b := c.take(1); b != nil {
		*v = b[0]
	}
}

func (c *codec) u16(v *uint16) {
	if !c.reading {
		c.b = binary.LittleEndian.AppendUint16(c.b, *v)
	} else if b := c.take(2); b != nil {
		*v = binary.LittleEndian.Uint16(b)
	}
}

func (c *codec) u32(v *uint32) {
	if !c.reading {
		c.b = binary.LittleEndian.AppendUint32(c.b, *v)
	} else if b := c.take(4); b != nil {
		*v = binary.LittleEndian.Uint32(b)
	}
}

func (c *codec) u64(v *uint64) {
	if !c.reading {
		c.b = binary.LittleEndian.AppendUint64(c.b, *v)
	} else if b := c.take(8); b != nil {
		*v = binary.LittleEndian.Uint64(b)
	}
}

// array is a field of fixed length.
func (c *codec) array(v []byte) {
	if !c.reading {
		c.b = append(c.b, v...)
	} else if b := c.take(len(v)); b != nil {
		copy(v, b)
	}
}

// bytes is a field of at most limit bytes. Reading copies.
func (c *codec) bytes(v *[]byte, limit int) {
	n := c.length(len(*v), limit)
	if !c.reading {
		c.b = append(c.b, *v...)
	} else if b := c.take(n); b != nil && n > 0 {
		*v = append([]byte(nil), b...)
	}
}

func (c *codec) str(v *string, limit int) {
	n := c.length(len(*v), limit)
	if !c.reading {
		c.b = append(c.b, *v...)
	} else if b := c.take(n); b != nil {
		*v = string(b)
	}
}

// text is a string for people: what is too long is cut when it is written.
func (c *codec) text(v *string) {
	if !c.reading && len(*v) > maxText {
		cut := (*v)[:maxText]
		v = &cut
	}
	c.str(v, maxText)
}

// length is the count of a variable field, checked against its limit before anybody allocates for it.
func (c *codec) length(n, limit int) int {
	u := uint32(n)
	c.u32(&u)
	if c.reading && c.err == nil && u > uint32(limit) {
		c.err = fmt.Errorf("length %d above the limit of %d", u, limit)
	}
	if c.err != nil {
		return 0
	}
	return int(u)
}

// list is a sequence of at most limit messages.
func list[T any, P interface {
	*T
	Message
}](c *codec, v *[]T, limit int) {
	n := c.length(len(*v), limit)
	if !c.reading {
		for i := range *v {
			P(&(*v)[i]).fields(c)
		}
		return
	}
	*v = nil
	for range n { // grows as elements are found to be there, not by the peer's word
		var e T
		P(&e).fields(c)
		if c.err != nil {
			return
		}
		*v = append(*v, e)
	}
}

// list32 is a sequence of at most limit numbers.
func list32(c *codec, v *[]uint32, limit int) {
	n := c.length(len(*v), limit)
	if !c.reading {
		for i := range *v {
			c.u32(&(*v)[i])
		}
		return
	}
	*v = nil
	for range n {
		var x uint32
		if c.u32(&x); c.err != nil {
			return
		}
		*v = append(*v, x)
	}
}

// list64 is list32 for longer numbers.
func list64(c *codec, v *[]uint64, limit int) {
	n := c.length(len(*v), limit)
	if !c.reading {
		for i := range *v {
			c.u64(&(*v)[i])
		}
		return
	}
	*v = nil
	for range n {
		var x uint64
		if c.u64(&x); c.err != nil {
			return
		}
		*v = append(*v, x)
	}
}

// unknown makes reading fail.
func (c *codec) unknown(what string, v uint64) {
	if c.reading && c.err == nil {
		c.err = fmt.Errorf("unknown %s %d", what, v)
	}
}

// strs is a sequence of at most limit strings.
func (c *codec) strs(v *[]string, limit, each int) {
	n := c.length(len(*v), limit)
	if !c.reading {
		for i := range *v {
			c.str(&(*v)[i], each)
		}
		return
	}
	*v = nil
	for range n {
		var s string
		c.str(&s, each)
		if c.err != nil {
			return
		}
		*v = append(*v, s)
	}
}
