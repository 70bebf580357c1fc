package moe

import (
	"fmt"
	"slices"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/proto"
)

// Placement says where experts are: see backend.Placement. All ranks of a view have the same.
type Placement = backend.Placement

// Member is a rank of a View.
type Member struct {
	Rank int
	Addr string // of its engine (hawser.Engine.Addr): a process that was started again is another engine, and may take its old rank
}

// View is who takes part, from an Activate to the next. Epochs rise.
type View struct {
	Epoch     uint32
	Members   []Member // by ascending rank
	Placement Placement
}

// Activated is how a view began. All its members get the same.
type Activated struct {
	Epoch uint32
	Next  []uint64      // number of the first step, by lane
	Ranks [][]LaneState // how far each member was, by rank and lane; nil for who is no member
	// Unserved are the experts that have no place at a member: what is sent to them counts as nothing.
	Unserved []int
}

// LaneState is how far a lane of a rank was: the last step that was begun there, and the last that was completed. One that was
// begun, and completed by some ranks only, is for the caller to repeat or not.
type LaneState = proto.LaneState

// proto is what the protocol knows of a view.
func (v *View) proto() (proto.View, error) {
	p := proto.View{Epoch: v.Epoch}
	for _, m := range v.Members {
		id, err := hawser.IDOf(m.Addr)
		if err != nil {
			return proto.View{}, fmt.Errorf("member %d: %w", m.Rank, err)
		}
		p.Members = append(p.Members, proto.Member{Rank: m.Rank, ID: proto.ID(id)})
	}
	return p, nil
}

func (v *View) has(rank int) bool {
	return slices.ContainsFunc(v.Members, func(m Member) bool { return m.Rank == rank })
}

// clone is a copy that shares nothing with it.
func (v *View) clone() View {
	p := Placement{Of: slices.Clone(v.Placement.Of), First: slices.Clone(v.Placement.First)}
	return View{Epoch: v.Epoch, Members: slices.Clone(v.Members), Placement: p}
}

// served is the placement without places at ranks that are no members, as far as an expert has others, and the experts that have none.
func (v *View) served(l *proto.Layout) (p Placement, unserved []int) {
	member := make([]bool, l.MaxRanks)
	for _, m := range v.Members {
		member[m.Rank] = true
	}
	here := func(place uint32) bool { return member[int(place)/l.Local] }
	for e := range v.Placement.Experts(l) {
		places := v.Placement.Places(e)
		if places == nil {
			places = []uint32{uint32(e)}
		}
		kept := slices.DeleteFunc(slices.Clone(places), func(at uint32) bool { return !here(at) })
		if len(kept) == 0 {
			unserved, kept = append(unserved, e), places
		}
		p.First = append(p.First, uint32(len(p.Of)))
		p.Of = append(p.Of, kept...)
	}
	if v.Placement.First == nil { // one place each
		return v.Placement, unserved
	}
	p.First = append(p.First, uint32(len(p.Of)))
	return p, unserved
}
