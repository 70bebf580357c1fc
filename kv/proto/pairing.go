package proto

import (
	"fmt"

	"github.com/hawser-project/hawser/kv/layout"
)

// Pairing is who writes what between this side and that of a Hello or of its answer. It takes longer than everything else about a message,
// a millisecond with a large model and as long as the sender likes with one that nobody has, and depends on nothing that changes: Pair may
// be called without the lock that serializes the other calls of a machine, and Paired then spares the next Message the work.
type Pairing struct {
	encoded string // topology of the other side
	member  int    // of it: the decoder; 0 on D
	theirs  *layout.Topology
	pair    *layout.Pair
	err     error // there is no pair; theirs is nil if there is no topology
}

func (x *Pairing) is(encoded []byte, member int) bool {
	return x != nil && x.member == member && x.encoded == string(encoded)
}

// Pair works out the pairing of a message, nil when it is no Hello. It may be called while others call the machine.
func (p *Prefiller) Pair(data []byte) *Pairing {
	_, b, err := Decode(data)
	m, ok := b.(*Hello)
	if err != nil || !ok {
		return nil
	}
	return p.pairWith(m)
}

// Paired hands a pairing over. The machine keeps the latest.
func (p *Prefiller) Paired(x *Pairing) { p.paired = x }

// pairing is that of a Hello: the latest, if it is of the same topology, as most decoders of a prefiller have.
func (p *Prefiller) pairing(m *Hello) *Pairing {
	if !p.paired.is(m.Topology, m.Member) {
		p.paired = p.pairWith(m)
	}
	return p.paired
}

func (p *Prefiller) pairWith(m *Hello) *Pairing {
	x := &Pairing{encoded: string(m.Topology), member: m.Member}
	if x.theirs, x.err = layout.DecodeTopology(m.Topology); x.err != nil {
		return x
	}
	if n := len(x.theirs.Members); m.Member >= n || n > MaxMembers {
		x.theirs, x.err = nil, fmt.Errorf("member %d of %d, want at most %d members", m.Member, n, MaxMembers)
		return x
	}
	x.pair, x.err = layout.NewPair(p.cfg.Topology, MemberOf(x.theirs, m.Member), p.cfg.Options)
	return x
}

// Pair works out the pairing of a message, nil when it is no HelloAck. It may be called while others call the machine.
func (d *Decoder) Pair(data []byte) *Pairing {
	_, b, err := Decode(data)
	m, ok := b.(*HelloAck)
	if err != nil || !ok {
		return nil
	}
	return d.pairWith(m.Topology)
}

// Paired hands a pairing over. The machine keeps the latest.
func (d *Decoder) Paired(x *Pairing) { d.paired = x }

func (d *Decoder) pairing(topology []byte) *Pairing {
	if !d.paired.is(topology, 0) {
		d.paired = d.pairWith(topology)
	}
	return d.paired
}

func (d *Decoder) pairWith(topology []byte) *Pairing {
	x := &Pairing{encoded: string(topology)}
	if x.theirs, x.err = layout.DecodeTopology(topology); x.err == nil {
		x.pair, x.err = layout.NewPair(x.theirs, d.mine, d.cfg.Options)
	}
	return x
}
