package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/hawser-project/hawser/provider"
)

// secret is what proves that a connection comes from whoever got the Addr. 128 bits cannot be guessed.
type secret [16]byte

// address is what an Addr says: magic, handle, name, secret, without padding.
type address struct {
	handle provider.Peer
	name   [16]byte // random; socketName makes the socket's name of it
	secret secret
}

const (
	addrMagic = 0x326d6873 // "shm2"; the digit is the version of everything that two sides exchange or share
	addrSize  = 4 + 4 + 16 + 16
)

func (a address) encode() provider.Addr {
	b := make([]byte, 0, addrSize)
	b = binary.LittleEndian.AppendUint32(b, addrMagic)
	b = binary.LittleEndian.AppendUint32(b, uint32(a.handle))
	b = append(b, a.name[:]...)
	return append(b, a.secret[:]...)
}

func decodeAddr(b provider.Addr) (a address, err error) {
	if len(b) != addrSize {
		return a, fmt.Errorf("%w: address of %d bytes, want %d", provider.ErrInvalid, len(b), addrSize)
	}
	if m := binary.LittleEndian.Uint32(b); m != addrMagic {
		return a, fmt.Errorf("%w: address starts with %#x, want %#x: it is of another network or version", provider.ErrInvalid, m, addrMagic)
	}
	a.handle = provider.Peer(binary.LittleEndian.Uint32(b[4:]))
	copy(a.name[:], b[8:])
	copy(a.secret[:], b[24:])
	return a, nil
}

// kind is the first byte of a datagram on a connection's socket.
type kind uint8

const (
	kindHello   kind = iota + 1 // active side's first: handle, to, from, proof; descriptors: pair page, bell page, bell
	kindWelcome                 // passive side's answer: proof; descriptors: bell page, bell
	kindGrant                   // region, size; descriptor: the region's memfd
	kindSweep                   // some regions have ended: see the bell page
	kindForeign                 // region, size of memory that has no memfd: only the sender can write to it
	kindSource                  // region, size; descriptor: memfd of memory that the sender lends, for reading
)

// datagram is one message. Which fields count depends on the kind.
type datagram struct {
	kind     kind
	handle   provider.Peer // hello: of the receiver
	to, from secret        // hello: the receiver's secret and the sender's
	region   uint64        // grant: the key
	size     uint64        // grant: bytes
	proof    proof         // hello, welcome: the sender's
}

// fdsOf is the number of descriptors that travel with each kind.
var fdsOf = [...]int{kindHello: 3, kindWelcome: 2, kindGrant: 1, kindSweep: 0, kindForeign: 0, kindSource: 1}

const (
	maxDatagram = 1 + 4 + 16 + 16 + 8 + proofSize
	maxFDs      = 3
)

// append encodes m behind b.
func (m *datagram) append(b []byte) []byte {
	b = append(b, byte(m.kind))
	switch m.kind {
	case kindHello:
		b = binary.LittleEndian.AppendUint32(b, uint32(m.handle))
		b = append(b, m.to[:]...)
		b = append(b, m.from[:]...)
		b = m.proof.append(b)
	case kindWelcome:
		b = m.proof.append(b)
	case kindGrant, kindForeign, kindSource:
		b = binary.LittleEndian.AppendUint64(b, m.region)
		b = binary.LittleEndian.AppendUint64(b, m.size)
	}
	return b
}

// append encodes p behind b.
func (p *proof) append(b []byte) []byte {
	return append(binary.LittleEndian.AppendUint64(b, p.addr), p.value[:]...)
}

// decode is the inverse of append.
func (p *proof) decode(b []byte) {
	p.addr = binary.LittleEndian.Uint64(b)
	copy(p.value[:], b[8:])
}

// errDatagram: a datagram is not as it must be.
var errDatagram = errors.New("malformed datagram")

// decode decodes one whole datagram. Keys and sizes of a grant are those that a region can have.
func decode(b []byte) (m datagram, err error) {
	if len(b) == 0 {
		return m, fmt.Errorf("%w: it is empty", errDatagram)
	}
	m.kind = kind(b[0])
	want := 1
	switch m.kind {
	case kindHello:
		want += 4 + 16 + 16 + 8 + proofSize
	case kindWelcome:
		want += 8 + proofSize
	case kindGrant, kindForeign, kindSource:
		want += 8 + 8
	case kindSweep:
	default:
		return m, fmt.Errorf("%w: unknown kind %d", errDatagram, m.kind)
	}
	if len(b) != want {
		return m, fmt.Errorf("%w: kind %d has %d bytes, want %d", errDatagram, m.kind, len(b), want)
	}
	switch b = b[1:]; m.kind {
	case kindHello:
		m.handle = provider.Peer(binary.LittleEndian.Uint32(b))
		copy(m.to[:], b[4:])
		copy(m.from[:], b[20:])
		m.proof.decode(b[36:])
	case kindWelcome:
		m.proof.decode(b)
	case kindGrant, kindForeign, kindSource:
		m.region, m.size = binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])
		if regionIndex(m.region) >= maxRegions || regionGen(m.region)&1 == 0 || m.size == 0 || m.size > math.MaxInt64/2 {
			return m, fmt.Errorf("%w: grant of key %#x with %d bytes", errDatagram, m.region, m.size)
		}
	}
	return m, nil
}

// A key is the generation of a region above its index.
func regionKey(index, gen uint32) uint64 { return uint64(gen)<<32 | uint64(index) }
func regionIndex(key uint64) uint32      { return uint32(key) }
func regionGen(key uint64) uint32        { return uint32(key >> 32) }
