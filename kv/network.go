package kv

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/hawser-project/hawser"
)

// network is what a Decoder and a Prefiller use of an engine; see its methods of the same names. A test puts an adversary
// in its place. The Transfer of a Send may be nil.
type network interface {
	Connect(ctx context.Context, addr string) (*hawser.Peer, error)
	Send(to *hawser.Peer, data []byte) (*hawser.Transfer, error)
	Receive(ctx context.Context) (hawser.Message, error)
	OnPeer(f func(hawser.PeerEvent)) (stop func())
	Up(p *hawser.Peer) bool
	Fence(ctx context.Context, p *hawser.Peer) error
	Take() (counter, error) // Imms.Take
	Writes(depth int) writes

	// Describe issues a descriptor of a whole region.
	Describe(r *hawser.Region) ([]byte, error)
	// Import makes what a peer has described writable, and says how many bytes that are. It refuses what belongs to another
	// than the peer.
	Import(ctx context.Context, from *hawser.Peer, descriptor []byte) (*hawser.Remote, uint64, error)
}

// counter is a hawser.Counter.
type counter interface {
	Imm() uint32
	Load() uint64
	From(p *hawser.Peer) uint64
	OnReach(n uint64, f func()) (stop func())
	Close()
}

// writes is a hawser.Queue.
type writes interface {
	WritePages(w hawser.WritePages, cookie uint64) error
	Wait(ctx context.Context, out []hawser.Done) (int, error)
}

// onEngine is the network of an engine.
type onEngine struct{ *hawser.Engine }

func (e onEngine) Up(p *hawser.Peer) bool  { return p.Up() }
func (e onEngine) Take() (counter, error)  { return e.Imms().Take() }
func (e onEngine) Writes(depth int) writes { return e.NewQueue(depth) }

func (e onEngine) Describe(r *hawser.Region) ([]byte, error) {
	return r.Descriptor(r.All(), hawser.RightWrite).MarshalBinary()
}

func (e onEngine) Import(ctx context.Context, from *hawser.Peer, descriptor []byte) (*hawser.Remote, uint64, error) {
	var d hawser.Descriptor
	if err := d.UnmarshalBinary(descriptor); err != nil {
		return nil, 0, err
	}
	if d.Owner() != from.ID() {
		return nil, 0, fmt.Errorf("%w: it belongs to engine %s, not to the sender", hawser.ErrAccess, d.Owner())
	}
	r, err := e.Engine.Import(ctx, d)
	if err != nil {
		return nil, 0, err
	}
	return r, r.Len(), nil
}

// minted is the last number that mint returned.
var minted atomic.Uint64

// mint returns numbers that grow. Epochs and tickets are minted for the whole process, because an engine may serve one Decoder
// or Prefiller after the other, and a message for the one before must not mean anything to the next.
func mint() uint64 { return minted.Add(1) }
