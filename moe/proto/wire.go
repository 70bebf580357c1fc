package proto

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// ErrCorrupt: a record of a peer is not what it must be. The peer is missing from then on.
var ErrCorrupt = errors.New("corrupt record")

// Bytes of the records that travel beside headers.
const (
	GrantBytes  = 16
	CancelBytes = 32

	headMagic = 0x314d5748 // "HWM1"
)

// Flags of a header.
const (
	FlagReuse = 1 << iota // the ids are those of an earlier step: RouteHash says of which
	FlagMeta              // records carry token, column and weight
	flagEnd
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Header opens the first chunk of a source:
//
//	offset  0  magic, 4     18  flags, 2       32  bytes of a record, 4
//	        4  view, 4      20  tokens, 4      36  crc32c of the header with 0 here, 4
//	        8  step, 8      24  records, 4     40  hash of all ids of the source, 8
//	       16  source, 2    28  first slot of the results, 4
//	       48  records for each expert of the receiver, 4 each; zero up to a multiple of 64
//
// All integers are little-endian.
type Header struct {
	View      uint32
	Step      uint64
	Source    int
	Flags     uint16
	Tokens    uint32
	Records   uint32
	Base      uint32 // first slot in the source's results
	RouteHash uint64
}

// PutHeader writes the header with its counts, one for each expert of the receiver, into b, which has HeadBytes.
func (l *Layout) PutHeader(b []byte, h *Header, counts []uint32) {
	b = b[:l.HeadBytes]
	clear(b)
	le := binary.LittleEndian
	le.PutUint32(b, headMagic)
	le.PutUint32(b[4:], h.View)
	le.PutUint64(b[8:], h.Step)
	le.PutUint16(b[16:], uint16(h.Source))
	le.PutUint16(b[18:], h.Flags)
	le.PutUint32(b[20:], h.Tokens)
	le.PutUint32(b[24:], h.Records)
	le.PutUint32(b[28:], h.Base)
	le.PutUint32(b[32:], uint32(l.Dispatch))
	le.PutUint64(b[40:], h.RouteHash)
	for i, n := range counts {
		le.PutUint32(b[headFixed+4*i:], n)
	}
	le.PutUint32(b[36:], crc32.Checksum(b, castagnoli))
}

// headField is why a header is refused; its text is made only then.
type headField struct {
	name      string
	got, want uint64
}

func (f *headField) Error() string {
	return fmt.Sprintf("%v: header: %s is %#x, want %#x", ErrCorrupt, f.name, f.got, f.want)
}

func (f *headField) Unwrap() error { return ErrCorrupt }

// ParseHeader checks all that can be checked without knowing the step. It writes nothing, so a peer must not write b meanwhile.
func (l *Layout) ParseHeader(b []byte) (Header, error) {
	if len(b) < l.HeadBytes {
		return Header{}, &headField{"length", uint64(len(b)), uint64(l.HeadBytes)}
	}
	b = b[:l.HeadBytes]
	le := binary.LittleEndian
	if m := le.Uint32(b); m != headMagic {
		return Header{}, &headField{"magic", uint64(m), headMagic}
	}
	if sum, got := headSum(b), le.Uint32(b[36:]); sum != got {
		return Header{}, &headField{"crc", uint64(got), uint64(sum)}
	}
	h := Header{
		View: le.Uint32(b[4:]), Step: le.Uint64(b[8:]), Source: int(le.Uint16(b[16:])), Flags: le.Uint16(b[18:]), Tokens: le.Uint32(b[20:]),
		Records: le.Uint32(b[24:]), Base: le.Uint32(b[28:]), RouteHash: le.Uint64(b[40:]),
	}
	most, flags := uint64(l.Records()), uint16(0)
	if l.Meta {
		flags = FlagMeta
	}
	switch {
	case h.Source >= l.MaxRanks:
		return h, &headField{"source", uint64(h.Source), uint64(l.MaxRanks - 1)}
	case h.Flags&^FlagReuse != flags:
		return h, &headField{"flags", uint64(h.Flags), uint64(flags)}
	case uint64(h.Tokens) > uint64(l.MaxTokens):
		return h, &headField{"tokens", uint64(h.Tokens), uint64(l.MaxTokens)}
	case uint64(h.Records) > most:
		return h, &headField{"records", uint64(h.Records), most}
	case uint64(h.Base)+uint64(h.Records) > most:
		return h, &headField{"slots", uint64(h.Base) + uint64(h.Records), most}
	case le.Uint32(b[32:]) != uint32(l.Dispatch):
		return h, &headField{"bytes of a record", uint64(le.Uint32(b[32:])), uint64(l.Dispatch)}
	}
	sum := uint64(0)
	for i := range l.Local {
		sum += uint64(Count(b, i))
	}
	if sum != uint64(h.Records) {
		return h, &headField{"sum of counts", sum, uint64(h.Records)}
	}
	for i := headFixed + 4*l.Local; i < len(b); i++ {
		if b[i] != 0 {
			return h, &headField{"padding", uint64(b[i]), 0}
		}
	}
	return h, nil
}

// headSum is the crc of a header as if its own field were 0.
func headSum(b []byte) uint32 {
	s := crc32.Update(0, castagnoli, b[:36])
	s = crc32.Update(s, castagnoli, zeros[:])
	return crc32.Update(s, castagnoli, b[40:])
}

var zeros [4]byte

// Count is the number of records for a local expert of the receiver, in a header that was parsed.
func Count(head []byte, expert int) uint32 {
	return binary.LittleEndian.Uint32(head[headFixed+4*expert:])
}

// Grant lends a chunk of the receiver's pool to a source, for its chunk Seq of a step.
type Grant struct {
	Step  uint64 // its lower half travels
	Seq   uint32
	Chunk uint32
}

// Put writes GrantBytes: step, seq, chunk, and a check over them.
func (g *Grant) Put(b []byte) {
	le := binary.LittleEndian
	le.PutUint32(b, uint32(g.Step))
	le.PutUint32(b[4:], g.Seq)
	le.PutUint32(b[8:], g.Chunk)
	le.PutUint32(b[12:], crc32.Checksum(b[:12], castagnoli))
}

// ParseGrant checks a grant for the step, the chunk that is due in this slot, and the chunks of a pool.
func ParseGrant(b []byte, step uint64, seq uint32, chunks int) (Grant, error) {
	if len(b) < GrantBytes {
		return Grant{}, fmt.Errorf("%w: grant of %d bytes, want %d", ErrCorrupt, len(b), GrantBytes)
	}
	le := binary.LittleEndian
	g := Grant{step, le.Uint32(b[4:]), le.Uint32(b[8:])}
	if sum := crc32.Checksum(b[:12], castagnoli); sum != le.Uint32(b[12:]) || le.Uint32(b) != uint32(step) || g.Seq != seq || uint64(g.Chunk) >= uint64(chunks) {
		return g, fmt.Errorf("%w: grant of step %d, chunk %d at %d, check %#x; want step %d, chunk %d below %d, check %#x",
			ErrCorrupt, le.Uint32(b), g.Seq, g.Chunk, le.Uint32(b[12:]), uint32(step), seq, chunks, sum)
	}
	return g, nil
}

// Code says why a lane stopped. The numbers travel: each keeps its meaning.
type Code uint16

// The codes.
const (
	CodeNone     Code = iota
	CodeCanceled      // the caller's context ended
	CodeBackend       // a kernel failed
	CodeLimit         // more records than there is room for, and policy Fail
	CodeMissing       // a peer was missing; Blamed is the first
	CodeView          // a new view begins
	CodeUnfenced      // a write failed that is not known to be quiet
	CodePool          // the whole pool is lent to peers that are missing
	CodeCorrupt       // a record of a peer is not what it must be
	CodeDown          // the session with a peer ended
	CodeLate          // a peer owed something when the time was over
	CodeClosed        // the group is closed
	codeEnd
)

var codeNames = [...]string{
	"none", "canceled", "backend", "over the limit", "peer missing", "new view", "unfenced", "pool lost", "corrupt record", "peer down", "too late", "closed",
}

func (c Code) String() string {
	if c < codeEnd {
		return codeNames[c]
	}
	return fmt.Sprintf("code %d", uint16(c))
}

// Cancel tells that the sender completes no step of its lane from Step on.
type Cancel struct {
	Step   uint64
	View   uint32
	Code   Code
	Blamed int // a rank
}

const cancelMagic = 0x314d5843 // "CXM1"

// Put writes CancelBytes.
func (c *Cancel) Put(b []byte) {
	b = b[:CancelBytes]
	clear(b)
	le := binary.LittleEndian
	le.PutUint32(b, cancelMagic)
	le.PutUint32(b[4:], c.View)
	le.PutUint64(b[8:], c.Step)
	le.PutUint16(b[16:], uint16(c.Code))
	le.PutUint16(b[18:], uint16(c.Blamed))
	le.PutUint32(b[28:], crc32.Checksum(b[:28], castagnoli))
}

// ParseCancel checks all that can be checked without the view.
func (l *Layout) ParseCancel(b []byte) (Cancel, error) {
	if len(b) < CancelBytes {
		return Cancel{}, fmt.Errorf("%w: cancel of %d bytes, want %d", ErrCorrupt, len(b), CancelBytes)
	}
	b = b[:CancelBytes]
	le := binary.LittleEndian
	c := Cancel{le.Uint64(b[8:]), le.Uint32(b[4:]), Code(le.Uint16(b[16:])), int(le.Uint16(b[18:]))}
	if m, sum := le.Uint32(b), crc32.Checksum(b[:28], castagnoli); m != cancelMagic || sum != le.Uint32(b[28:]) || le.Uint64(b[20:]) != 0 {
		return c, fmt.Errorf("%w: cancel with magic %#x and check %#x, want %#x and %#x", ErrCorrupt, m, le.Uint32(b[28:]), cancelMagic, sum)
	}
	if c.Code == CodeNone || c.Code >= codeEnd || c.Blamed >= l.MaxRanks {
		return c, fmt.Errorf("%w: cancel with %v, blames rank %d of %d", ErrCorrupt, c.Code, c.Blamed, l.MaxRanks)
	}
	return c, nil
}
