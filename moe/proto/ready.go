package proto

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// ID is the identity of an engine: random per Open, so a process that was started again is another.
type ID [16]byte

// MaxDescriptors bounds the descriptors in a Ready, in bytes. They are opaque here.
const MaxDescriptors = 48 << 10

const (
	readyMagic = 0x314d5952 // "RYM1"
	readyHead  = 72
	laneBytes  = 16
)

// Ready is what members say to each other in both rounds of a change of view. It goes as a message:
//
//	offset  0  magic, 4      8  view, 4          32  identity of the recipient, 16
//	        4  round, 1     12  crc32c of all    48  bytes of descriptors, 4
//	        5  lanes, 1          with 0 here, 4  52  flags, 4: bit 0: unfenced
//	        6  source, 2    16  identity, 16     56  hash of the configuration, 8
//	                                             64  view whose descriptors the sender has, 4; zero, 4
//	                                             72  lanes: begun, 8, completed, 8; then the descriptors
//
// Round 2 repeats what round 1 says, so either may come first.
type Ready struct {
	View        uint32
	Round       int // 1 or 2
	Source      int
	From, To    ID
	Config      uint64
	Lanes       [MaxLanes]LaneState // the first of them
	Unfenced    bool                // a write to the recipient may yet land there
	Has         uint32              // latest view in which it imported descriptors of the recipient
	Descriptors []byte              // round 2: for the recipient; empty if those that it has are good
}

// LaneState is how far a lane of a rank is.
type LaneState struct {
	Begun, Completed uint64
}

// Append appends the message.
func (r *Ready) Append(b []byte, lanes int) []byte {
	start := len(b)
	le := binary.LittleEndian
	b = le.AppendUint32(b, readyMagic)
	b = append(b, byte(r.Round), byte(lanes))
	b = le.AppendUint16(b, uint16(r.Source))
	b = le.AppendUint32(b, r.View)
	b = le.AppendUint32(b, 0)
	b = append(b, r.From[:]...)
	b = append(b, r.To[:]...)
	b = le.AppendUint32(b, uint32(len(r.Descriptors)))
	flags := uint32(0)
	if r.Unfenced {
		flags = 1
	}
	b = le.AppendUint32(b, flags)
	b = le.AppendUint64(b, r.Config)
	b = le.AppendUint64(b, uint64(r.Has))
	for _, l := range r.Lanes[:lanes] {
		b = le.AppendUint64(b, l.Begun)
		b = le.AppendUint64(b, l.Completed)
	}
	b = append(b, r.Descriptors...)
	le.PutUint32(b[start+12:], crc32.Checksum(b[start:], castagnoli))
	return b
}

// ParseReady checks all that can be checked without the view. Descriptors are part of b.
func (l *Layout) ParseReady(b []byte) (Ready, error) {
	want := readyHead + laneBytes*l.Lanes
	if len(b) < want || len(b) > want+MaxDescriptors {
		return Ready{}, fmt.Errorf("%w: ready of %d bytes, want %d .. %d", ErrCorrupt, len(b), want, want+MaxDescriptors)
	}
	le := binary.LittleEndian
	bad := func(field string, got, want uint64) (Ready, error) {
		return Ready{}, fmt.Errorf("%w: ready: %s is %#x, want %#x", ErrCorrupt, field, got, want)
	}
	sum := crc32.Update(0, castagnoli, b[:12])
	sum = crc32.Update(sum, castagnoli, zeros[:])
	sum = crc32.Update(sum, castagnoli, b[16:])
	switch {
	case le.Uint32(b) != readyMagic:
		return bad("magic", uint64(le.Uint32(b)), readyMagic)
	case le.Uint32(b[12:]) != sum:
		return bad("crc", uint64(le.Uint32(b[12:])), uint64(sum))
	case b[4] != 1 && b[4] != 2:
		return bad("round", uint64(b[4]), 1)
	case int(b[5]) != l.Lanes:
		return bad("lanes", uint64(b[5]), uint64(l.Lanes))
	case int(le.Uint16(b[6:])) >= l.MaxRanks:
		return bad("source", uint64(le.Uint16(b[6:])), uint64(l.MaxRanks-1))
	case uint64(le.Uint32(b[48:])) != uint64(len(b)-want):
		return bad("bytes of descriptors", uint64(le.Uint32(b[48:])), uint64(len(b)-want))
	case le.Uint32(b[52:]) > 1:
		return bad("flags", uint64(le.Uint32(b[52:])), 1)
	case le.Uint32(b[68:]) != 0:
		return bad("zero", uint64(le.Uint32(b[68:])), 0)
	}
	r := Ready{
		Round: int(b[4]), Source: int(le.Uint16(b[6:])), View: le.Uint32(b[8:]), From: ID(b[16:32]), To: ID(b[32:48]),
		Config: le.Uint64(b[56:]), Unfenced: b[52] == 1, Has: le.Uint32(b[64:]), Descriptors: b[want:],
	}
	at := b[readyHead:]
	for i := range l.Lanes {
		s := LaneState{le.Uint64(at), le.Uint64(at[8:])}
		if s.Completed > s.Begun {
			return bad("completed step", s.Completed, s.Begun)
		}
		r.Lanes[i], at = s, at[laneBytes:]
	}
	if r.Round == 1 && len(r.Descriptors) > 0 {
		return bad("bytes of descriptors in round 1", uint64(len(r.Descriptors)), 0)
	}
	return r, nil
}

// Hash is equal where ranks agree on what they must agree on.
func (l *Layout) Hash() uint64 {
	h := uint64(0xcbf29ce484222325)
	for _, v := range []int{
		l.MaxRanks, l.MaxTokens, l.Hidden, l.TopK, l.Experts, l.InBytes, l.WireBytes, l.ScaleBlock, l.ScaleBytes, l.FirstChunk,
		l.ChunkRecords, l.PoolRecords, l.Lanes, l.Window, l.HeadBytes, l.Dispatch, l.Combine,
	} {
		for range 8 {
			h = (h ^ uint64(v&0xff)) * 0x100000001b3
			v >>= 8
		}
	}
	for i := range 8 {
		h = (h ^ l.Others>>(8*i)&0xff) * 0x100000001b3
	}
	if l.Meta {
		h = (h ^ 1) * 0x100000001b3
	}
	return h
}
