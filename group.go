package hawser

import (
	"fmt"
	"slices"
)

// Group is an ordered list of other engines that take part in something together: all members but this one. It does not change, so
// when a member is replaced by its successor, a new Group is made.
type Group struct {
	e     *Engine
	peers []*Peer
}

// NewGroup makes a group of peers, each of which appears once. It may be empty: then this engine is the only member.
func (e *Engine) NewGroup(peers []*Peer) (*Group, error) {
	seen := make(map[ID]int, len(peers))
	for i, p := range peers {
		switch {
		case p == nil || p.e != e:
			return nil, fmt.Errorf("group: peer %d: %w: none, or of another engine", i, ErrInvalid)
		case p.id == e.id:
			return nil, fmt.Errorf("group: peer %d: %w: it is this engine", i, ErrInvalid)
		}
		if j, ok := seen[p.id]; ok {
			return nil, fmt.Errorf("group: peer %d: %w: %s is peer %d already", i, ErrInvalid, p, j)
		}
		seen[p.id] = i
	}
	return &Group{e: e, peers: slices.Clone(peers)}, nil
}

// Peers are the other members, in order.
func (g *Group) Peers() []*Peer { return slices.Clone(g.peers) }

// Len is the number of other members.
func (g *Group) Len() int { return len(g.peers) }
