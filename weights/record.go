package weights

import (
	"fmt"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/weights/proto"
)

// A record in the journal, little-endian: seq u64, term, epoch, version u64, flags u8 (1: commit, 2: by an operator), the epoch that continues it, and the
// instances that switch, u32 each. A term is a number u64 and 16 bytes, an epoch a term and a number u64.
const (
	recordCommit   = 1
	recordOperator = 2
)

func encodeRecord(r *proto.Record) []byte {
	b := le.AppendUint64(nil, r.Seq)
	b = appendTerm(b, r.Term)
	b = appendKey(b, r.Decision.Of)
	b = le.AppendUint64(b, uint64(r.Decision.Version))
	flags := byte(0)
	if r.Decision.Commit {
		flags |= recordCommit
	}
	if r.Decision.Operator {
		flags |= recordOperator
	}
	b = appendKey(append(b, flags), r.By)
	for _, i := range r.Decision.Instances {
		b = le.AppendUint32(b, uint32(i))
	}
	return b
}

func appendTerm(b []byte, t proto.Term) []byte {
	return append(le.AppendUint64(b, t.Number), t.ID[:]...)
}

func appendKey(b []byte, k proto.Key) []byte {
	return le.AppendUint64(appendTerm(b, k.Term), k.Number)
}

// recordBytes is a record without instances.
const recordBytes = 8 + 24 + 32 + 8 + 1 + 32

func decodeRecord(b []byte) (r proto.Record, err error) {
	if len(b) < recordBytes || (len(b)-recordBytes)%4 != 0 {
		return r, fmt.Errorf("%w: a record of %d bytes", hawser.ErrInvalid, len(b))
	}
	u64 := func() uint64 {
		v := le.Uint64(b)
		b = b[8:]
		return v
	}
	term := func() (t proto.Term) {
		t.Number = u64()
		b = b[copy(t.ID[:], b):]
		return t
	}
	key := func() (k proto.Key) {
		k.Term = term()
		k.Number = u64()
		return k
	}
	r.Seq, r.Term, r.Decision.Of, r.Decision.Version = u64(), term(), key(), proto.Version(u64())
	r.Decision.Commit, r.Decision.Operator = b[0]&recordCommit != 0, b[0]&recordOperator != 0
	b = b[1:]
	r.By = key()
	for ; len(b) > 0; b = b[4:] {
		r.Decision.Instances = append(r.Decision.Instances, int(le.Uint32(b)))
	}
	return r, nil
}
