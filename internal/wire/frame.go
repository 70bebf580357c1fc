package wire

import (
	"encoding/binary"
	"fmt"
	"io"
)

// HeaderLen is the length of a control header: {length u32, type u16, flags u16, request u64}.
const HeaderLen = 16

// MaxPayload bounds one control message, bytes. A handshake with 64 rails fits with room to spare.
const MaxPayload = 128 << 10

// Frame is one control message as it travels.
type Frame struct {
	Type    Type
	Flags   uint16
	Request uint64 // answers carry the number of their question
	Payload []byte
}

// ErrTLS: the other side speaks TLS where plain messages are expected.
var ErrTLS = fmt.Errorf("%w: a TLS handshake where a plain message is expected", ErrMalformed)

// AppendFrame encodes a message with its header. m may be nil.
func AppendFrame(b []byte, t Type, request uint64, m Message) []byte {
	var payload []byte
	if m != nil {
		payload = Append(nil, m)
	}
	return AppendRaw(b, t, request, payload)
}

// AppendRaw is AppendFrame for a payload that is no Message.
func AppendRaw(b []byte, t Type, request uint64, payload []byte) []byte {
	start := len(b)
	b = append(b, make([]byte, HeaderLen)...)
	b = append(b, payload...)
	h := b[start:]
	binary.LittleEndian.PutUint32(h, uint32(len(h)-HeaderLen))
	binary.LittleEndian.PutUint16(h[4:], uint16(t))
	binary.LittleEndian.PutUint64(h[8:], request)
	return b
}

// ReadFrame reads one message. buf is used for the payload when it is large enough.
func ReadFrame(r io.Reader, buf []byte) (Frame, error) {
	var h [HeaderLen]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return Frame{}, err
	}
	n := binary.LittleEndian.Uint32(h[:])
	if n > MaxPayload && h[0] == 22 && h[1] == 3 { // RFC 8446, 5.1: a handshake record
		return Frame{}, ErrTLS
	}
	if n > MaxPayload {
		return Frame{}, fmt.Errorf("control message of %d bytes: %w: above the limit of %d", n, ErrMalformed, MaxPayload)
	}
	f := Frame{
		Type:    Type(binary.LittleEndian.Uint16(h[4:])),
		Flags:   binary.LittleEndian.Uint16(h[6:]),
		Request: binary.LittleEndian.Uint64(h[8:]),
	}
	if int(n) > cap(buf) {
		buf = make([]byte, n)
	}
	f.Payload = buf[:n]
	if _, err := io.ReadFull(r, f.Payload); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return Frame{}, err
	}
	return f, nil
}
