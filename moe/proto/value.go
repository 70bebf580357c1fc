package proto

import "fmt"

// Kind is what an immediate tells. The numbers travel: each keeps its meaning.
type Kind uint8

// The kinds; windowed ones have a value for each slot.
const (
	KindHead   Kind = 0
	KindCancel Kind = 1
	KindComb   Kind = 4
	KindGrant  Kind = 8
	KindChunk  Kind = 12
	Kinds           = 16
)

func (k Kind) String() string {
	switch {
	case k == KindHead:
		return "head"
	case k == KindCancel:
		return "cancel"
	case k >= KindComb && k < KindGrant:
		return fmt.Sprintf("comb %d", k-KindComb)
	case k >= KindGrant && k < KindChunk:
		return fmt.Sprintf("grant %d", k-KindGrant)
	case k >= KindChunk && k < Kinds:
		return fmt.Sprintf("chunk %d", k-KindChunk)
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

const (
	tagShift   = 26
	kindBits   = 5
	freeBits   = tagShift - kindBits // for view, lane and rank
	minView    = 4
	MaxTag     = 62 // of a group; 63 is the engine's own, 0 left to others
	rankBitsHi = freeBits - minView
)

// Values lays out immediates: tag, view, lane, kind, and the rank that sends.
type Values struct{ tag, view, lane, rank int }

// Values fails if ranks and lanes leave too few bits for the view.
func (l *Layout) Values(tag int) (Values, error) {
	if tag < 1 || tag > MaxTag {
		return Values{}, fmt.Errorf("%w: Tag is %d, want 1 .. %d", ErrConfig, tag, MaxTag)
	}
	v := Values{tag: tag, lane: log2(l.Lanes), rank: log2(l.MaxRanks)}
	if v.lane+v.rank > rankBitsHi {
		return Values{}, fmt.Errorf("%w: %d ranks and %d lanes need %d bits of an immediate, want at most %d", ErrConfig, l.MaxRanks, l.Lanes, v.lane+v.rank, rankBitsHi)
	}
	v.view = freeBits - v.lane - v.rank
	return v, nil
}

// Of is the value that rank sends. Those of all ranks are adjacent, in their order.
func (v Values) Of(view uint32, lane int, k Kind, rank int) uint32 {
	x := uint32(v.tag)<<v.view | view&(1<<v.view-1)
	x = x<<v.lane | uint32(lane)
	x = x<<kindBits | uint32(k)
	return x<<v.rank | uint32(rank)
}
