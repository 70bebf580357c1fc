//go:build cgo

package verbs

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/hawser-project/hawser/provider"
)

// offer is what an Addr says: where to connect to, and with which secret. All integers are big endian.
type offer struct {
	secret       [secretSize]byte
	gid          [16]byte
	lid          uint16
	mtu          uint8
	ethernet     bool
	global       bool   // it must be sent to, and sends, with a global header
	ctl          uint32 // number of the queue pair for control and messages
	out, in      uint32 // of those that the offerer writes over, and is written to over
	inbox        uint64 // where its memory for control and messages is
	inboxKey     uint32
	immWindow    uint32 // immediates that it has receives for
	notifyWindow uint32 // notifications on the control queue pair, likewise
}

const (
	secretSize   = 16
	offerVersion = 1
	offerSize    = 2 + secretSize + 16 + 2 + 1 + 1 + 3*4 + 8 + 4 + 2*4 + 4
)

// Bits of an offer's link.
const (
	linkEthernet = 1 << iota
	linkGlobal
)

// addr lays an offer out: the version, the fields, a checksum.
func (o *offer) addr() provider.Addr {
	b := make([]byte, 0, offerSize)
	b = append(b, 'v', offerVersion)
	b = append(b, o.secret[:]...)
	b = append(b, o.gid[:]...)
	b = binary.BigEndian.AppendUint16(b, o.lid)
	link := byte(0)
	if o.ethernet {
		link |= linkEthernet
	}
	if o.global {
		link |= linkGlobal
	}
	b = append(b, o.mtu, link)
	for _, v := range [...]uint32{o.ctl, o.out, o.in} {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	b = binary.BigEndian.AppendUint64(b, o.inbox)
	for _, v := range [...]uint32{o.inboxKey, o.immWindow, o.notifyWindow} {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
}

// parseOffer reads what a peer offered. The checksum finds an address that was damaged on its way; it proves nothing.
func parseOffer(a provider.Addr) (o offer, err error) {
	if len(a) != offerSize || a[0] != 'v' || a[1] != offerVersion {
		return o, fmt.Errorf("%w: not an address of verbs, version %d", provider.ErrInvalid, offerVersion)
	}
	if crc32.ChecksumIEEE(a[:offerSize-4]) != binary.BigEndian.Uint32(a[offerSize-4:]) {
		return o, fmt.Errorf("%w: a damaged address", provider.ErrInvalid)
	}
	b := a[2:]
	b = b[copy(o.secret[:], b):]
	b = b[copy(o.gid[:], b):]
	o.lid, o.mtu, o.ethernet, o.global = binary.BigEndian.Uint16(b), b[2], b[3]&linkEthernet != 0, b[3]&linkGlobal != 0
	b = b[4:]
	for _, v := range [...]*uint32{&o.ctl, &o.out, &o.in} {
		*v, b = binary.BigEndian.Uint32(b), b[4:]
	}
	o.inbox, b = binary.BigEndian.Uint64(b), b[8:]
	for _, v := range [...]*uint32{&o.inboxKey, &o.immWindow, &o.notifyWindow} {
		*v, b = binary.BigEndian.Uint32(b), b[4:]
	}
	switch {
	case o.mtu < 1 || o.mtu > 5:
		return o, fmt.Errorf("%w: mtu number %d", provider.ErrInvalid, o.mtu)
	case o.immWindow < 1 || o.immWindow > queueLimit || o.notifyWindow != notifyWindow:
		return o, fmt.Errorf("%w: windows of %d and %d", provider.ErrInvalid, o.immWindow, o.notifyWindow)
	}
	return o, nil
}

// What derived says two secrets are used for.
const (
	forControl = "control"
	forWrites  = "writes"
	forHello   = "hello"
)

// derived is what only the two ends of a connection know, for one direction, use and round: packet sequence numbers, so that nobody
// else's packets are accepted, and the proof in a hello.
func derived(from, to *[secretSize]byte, use string, round uint32) [sha256.Size]byte {
	b := append(make([]byte, 0, 64), from[:]...)
	b = append(b, to[:]...)
	b = binary.BigEndian.AppendUint32(b, round)
	return sha256.Sum256(append(b, use...))
}

// psn is the first packet sequence number of one direction. They have 24 bits.
func psn(from, to *[secretSize]byte, use string, round uint32) uint32 {
	h := derived(from, to, use, round)
	return binary.BigEndian.Uint32(h[:]) >> 8
}
