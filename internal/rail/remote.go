package rail

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/hawser-project/hawser/provider"
)

// Remote is memory of a peer as the links to that peer know it. Peer, Tag and Hold, which may be nil, are immutable; the worker owns the rest.
type Remote struct {
	Peer *Peer
	Tag  any // the sink's
	Hold *Hold

	keys   []LinkKey // by link
	asked  bool      // Sink.Keys has been told
	waits  int       // ticks at which a key was missing, since one came or something was written
	closed bool      // it cannot be written to any more
}

// Hold counts the operations on remotes that their owner takes back together. Drained is immutable; the worker owns the rest, but for what
// Revoke does.
type Hold struct {
	// Drained is called by the worker, maybe more than once, when it was revoked and no operation on it is left.
	Drained func()

	ops     int // as far as the worker has seen them
	revoked atomic.Bool
}

// Revoke makes operations that come to the worker later fail with StatusAccess. Group.Drain does the rest.
func (h *Hold) Revoke() { h.revoked.Store(true) }

// Revoked reports whether Revoke was called.
// hot:
func (h *Hold) Revoked() bool { return h.revoked.Load() }

// LinkKey is the key of a remote for one connection of a link.
type LinkKey struct {
	Link  int
	Epoch uint32
	Key   provider.Key
}

// Init makes r ready for use, before anybody else has it.
func (r *Remote) Init(p *Peer, tag any, keys []LinkKey) {
	r.Peer, r.Tag = p, tag
	for _, k := range keys {
		r.set(k)
	}
}

// set notes a key, unless there is one of a later connection.
func (r *Remote) set(k LinkKey) {
	if k.Link < 0 || k.Link >= maxLinkCount {
		return
	}
	for len(r.keys) <= k.Link {
		r.keys = append(r.keys, LinkKey{})
	}
	if k.Epoch > r.keys[k.Link].Epoch {
		r.keys[k.Link] = k
		r.waits = 0
	}
}

// Grant returns the keys under which p may write to [off, off+n) of m, for each of its links that is in service. A link whose network
// gives none is left out: it has failed, and the word of that is on its way. ErrBusy: call again after a Step. ErrUnsupported: no
// link can serve this memory.
func (g *Group) Grant(m *Memory, p *Peer, off, n uint64) ([]LinkKey, error) {
	var keys []LinkKey
	var fault error
	for i, l := range p.links {
		if l.state != ready && l.state != probing {
			continue
		}
		k, err := l.rail.dom.Grant(m.Keys[l.rail.index], l.handle, off, n)
		switch {
		case err == nil:
			keys = append(keys, LinkKey{i, l.epoch, k})
		case errors.Is(err, provider.ErrBusy):
			return nil, fmt.Errorf("grant over rail %d: %w", l.rail.index, err)
		case errors.Is(err, provider.ErrUnsupported):
			fault = fmt.Errorf("grant over rail %d: %w", l.rail.index, err)
		}
	}
	if len(keys) == 0 && fault != nil {
		return nil, fault
	}
	return keys, nil
}

// SetKeys adds keys that the owner of the memory has granted. The sink calls it for a new remote, and to answer Sink.Keys.
func (g *Group) SetKeys(r *Remote, keys []LinkKey) {
	for _, k := range keys {
		r.set(k)
	}
	if r.Peer.ops.head != nil {
		g.queue(r.Peer)
	}
}

// CloseRemote makes operations on r fail with StatusAccess from now on: its owner has taken the memory back.
func (g *Group) CloseRemote(r *Remote) {
	r.closed = true
	g.Withdraw(r.Peer, func(op *Op) bool { return op.Dst == r })
}

// covers reports whether r can be written to over the current connection of l. If not, its owner is asked: the link came up after r
// was made.
// hot:
func (g *Group) covers(r *Remote, l *link) bool {
	if l.index < len(r.keys) && (r.keys[l.index].Epoch == l.epoch || g.without&guardKeys != 0) {
		return true
	}
	if !r.asked {
		r.asked = true
		r.Peer.asking = append(r.Peer.asking, r)
		g.sink.Keys(r)
	}
	return false
}
