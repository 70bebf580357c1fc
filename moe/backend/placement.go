package backend

import (
	"fmt"

	"github.com/hawser-project/hawser/moe/proto"
)

// Placement says where experts are. A place is rank*Local + local index; an expert with replicas has several. The zero value is the
// default: expert e at place e. All ranks of a view have the same.
type Placement struct {
	Of    []uint32 // places of expert 0, then those of expert 1, and so on
	First []uint32 // where those of each expert begin in Of, and one more, where the last's end; absent: one place each
}

// Experts is how many experts ids name. With replicas they are fewer than Layout.Experts, which counts places.
func (p *Placement) Experts(l *proto.Layout) int {
	switch {
	case p.First != nil:
		return len(p.First) - 1
	case p.Of != nil:
		return len(p.Of)
	}
	return l.Experts
}

// Places are those of an expert; of the default none.
func (p *Placement) Places(expert int) []uint32 {
	switch {
	case p.First != nil:
		return p.Of[p.First[expert]:p.First[expert+1]]
	case p.Of != nil:
		return p.Of[expert : expert+1]
	}
	return nil
}

// Pick is the place to which the rank l.Rank sends a token for an expert: its own, if it has one, else one by a hash of token and expert.
// It is a pure function, so a step that is repeated goes where it went.
//
// hot: no allocation.
func (p *Placement) Pick(l *proto.Layout, token, expert int) uint32 {
	places := p.Places(expert)
	switch len(places) {
	case 0:
		return uint32(expert)
	case 1:
		return places[0]
	}
	for _, at := range places {
		if int(at)/l.Local == l.Rank {
			return at
		}
	}
	h := (uint64(token)<<32 | uint64(expert)) * 0x9e3779b97f4a7c15
	h = (h ^ h>>29) * 0xbf58476d1ce4e5b9
	return places[h>>32*uint64(len(places))>>32]
}

// Check reports what contradicts the layout: an expert without place, a place that does not exist or that two experts have.
func (p *Placement) Check(l *proto.Layout) error {
	if p.Of == nil && p.First == nil {
		return nil
	}
	if p.First != nil && (len(p.First) < 2 || p.First[0] != 0 || int(p.First[len(p.First)-1]) != len(p.Of)) {
		return fmt.Errorf("%w: placement: First does not span the %d places of Of", proto.ErrConfig, len(p.Of))
	}
	for e := 1; e < len(p.First); e++ {
		if p.First[e] <= p.First[e-1] {
			return fmt.Errorf("%w: placement: expert %d has no place", proto.ErrConfig, e-1)
		}
	}
	taken := make(map[uint32]bool, len(p.Of))
	for i, at := range p.Of {
		if int(at) >= l.MaxRanks*l.Local || taken[at] {
			return fmt.Errorf("%w: placement: place %d, number %d, does not exist or is taken twice (%d ranks of %d)", proto.ErrConfig, at, i, l.MaxRanks, l.Local)
		}
		taken[at] = true
	}
	return nil
}
