//go:build cgo

package verbs

import (
	"encoding/binary"
)

// A record is what one end tells the other over the control queue pair: 64 bytes written into a slot of the other's inbox, with an
// immediate that says so. Each carries the counts that give credit. All integers are big endian.
//
//	byte 0   kind
//	4, 8, 12 counts, modulo 2^32: immediates and notifications for which a receive is posted again; messages moved into receives
//	16       what the kind needs, 48 bytes
const recordSize = 64

type recordKind uint8

const (
	recHello   recordKind = iota + 1 // proof
	recCredit                        // nothing but the counts
	recGrant                         // slot, serial, rkey, address, length: the receiver may write there
	recGranted                       // slot, serial: a grant has arrived
	recEnd                           // slot, serial: a grant has ended
	recRenew                         // round, queue pair: write over this new one from now on
	recRenewed                       // round, queue pair: the other end of it
	recBye                           // the sender has left
)

// record is one of them, decoded; which fields count depends on the kind.
type record struct {
	kind                  recordKind
	imms, notifies, taken uint32
	proof                 [16]byte
	slot, serial, rkey    uint32
	addr, n               uint64
	round, qpn            uint32
}

// put lays r out in b.
func (r *record) put(b *[recordSize]byte) {
	clear(b[:])
	b[0] = byte(r.kind)
	binary.BigEndian.PutUint32(b[4:], r.imms)
	binary.BigEndian.PutUint32(b[8:], r.notifies)
	binary.BigEndian.PutUint32(b[12:], r.taken)
	switch r.kind {
	case recHello:
		copy(b[16:], r.proof[:])
	case recRenew, recRenewed:
		binary.BigEndian.PutUint32(b[16:], r.round)
		binary.BigEndian.PutUint32(b[20:], r.qpn)
	default:
		binary.BigEndian.PutUint32(b[16:], r.slot)
		binary.BigEndian.PutUint32(b[20:], r.serial)
		binary.BigEndian.PutUint32(b[24:], r.rkey)
		binary.BigEndian.PutUint64(b[32:], r.addr)
		binary.BigEndian.PutUint64(b[40:], r.n)
	}
}

// readRecord decodes what a peer wrote. Any bytes are some record; its kind may be unknown.
func readRecord(b *[recordSize]byte) (r record) {
	r.kind = recordKind(b[0])
	r.imms = binary.BigEndian.Uint32(b[4:])
	r.notifies = binary.BigEndian.Uint32(b[8:])
	r.taken = binary.BigEndian.Uint32(b[12:])
	switch r.kind {
	case recHello:
		copy(r.proof[:], b[16:])
	case recRenew, recRenewed:
		r.round = binary.BigEndian.Uint32(b[16:])
		r.qpn = binary.BigEndian.Uint32(b[20:])
	default:
		r.slot = binary.BigEndian.Uint32(b[16:])
		r.serial = binary.BigEndian.Uint32(b[20:])
		r.rkey = binary.BigEndian.Uint32(b[24:])
		r.addr = binary.BigEndian.Uint64(b[32:])
		r.n = binary.BigEndian.Uint64(b[40:])
	}
	return r
}
