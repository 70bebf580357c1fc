package tcp

import "encoding/binary"

// headerSize is the length of a frame's header in bytes.
const headerSize = 32

// frameKind is the first byte of a header.
type frameKind uint8

const (
	frameWrite    frameKind = iota + 1 // payload for {key, addr}
	frameWriteImm                      // the same, with an immediate
	frameMessage                       // payload for a receive
	frameAck                           // nothing but the counts: ack, and in imm the messages taken
	frameNack                          // the write number ack was refused
)

// flagAsk on a write or message: the sender has nothing else to send, so an early ack is worth a packet of its own.
const flagAsk = 1

// header is a decoded frame header. On the wire, little endian:
//
//	0 kind  1 flags  2 zero(2)  4 ack(4)  8 len(4)  12 imm(4)  16 key(8)  24 addr(8)
type header struct {
	kind  frameKind
	flags uint8
	ack   uint32 // writes of the other direction that were placed or refused, modulo 2^32
	len   uint32 // payload bytes
	imm   uint32
	key   uint64
	addr  uint64
}

// violation is a rule of the protocol that a peer broke; it is the Detail of KindPeerDown with StatusProtocol.
type violation uint32

const (
	badNothing  violation = iota
	badKind               // unknown frame kind
	badReserved           // a field that must be zero is not
	badLength             // more payload than MaxMsg or MaxSend
	badAck                // acks more than was sent
	badTaken              // takes more messages than were sent
	badWindow             // more unacked writes than peerDepth
	badCredit             // a message without room for it
	badTarget             // far more writes to where it may not write than to where it may
)

// put encodes h into the first headerSize bytes of b.
//
// hot:
func (h *header) put(b []byte) {
	_ = b[headerSize-1]
	b[0] = byte(h.kind)
	b[1] = h.flags
	b[2], b[3] = 0, 0
	binary.LittleEndian.PutUint32(b[4:], h.ack)
	binary.LittleEndian.PutUint32(b[8:], h.len)
	binary.LittleEndian.PutUint32(b[12:], h.imm)
	binary.LittleEndian.PutUint64(b[16:], h.key)
	binary.LittleEndian.PutUint64(b[24:], h.addr)
}

// parseHeader decodes the first headerSize bytes of b and checks all that can be checked without knowing the stream.
//
// hot:
func parseHeader(b []byte) (h header, bad violation) {
	_ = b[headerSize-1]
	h.kind = frameKind(b[0])
	h.flags = b[1]
	h.ack = binary.LittleEndian.Uint32(b[4:])
	h.len = binary.LittleEndian.Uint32(b[8:])
	h.imm = binary.LittleEndian.Uint32(b[12:])
	h.key = binary.LittleEndian.Uint64(b[16:])
	h.addr = binary.LittleEndian.Uint64(b[24:])
	if b[2]|b[3] != 0 || h.flags&^flagAsk != 0 {
		return h, badReserved
	}
	switch h.kind {
	case frameWriteImm:
	case frameWrite:
		if h.imm != 0 {
			return h, badReserved
		}
	case frameMessage:
		if h.len > maxSend {
			return h, badLength
		}
		if h.imm != 0 || h.key|h.addr != 0 {
			return h, badReserved
		}
	case frameAck:
		if h.len != 0 || h.flags != 0 || h.key|h.addr != 0 {
			return h, badReserved
		}
	case frameNack:
		if h.len|h.imm != 0 || h.flags != 0 || h.key|h.addr != 0 {
			return h, badReserved
		}
	default:
		return h, badKind
	}
	if h.len > maxMsg {
		return h, badLength
	}
	return h, badNothing
}
