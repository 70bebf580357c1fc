package backend

import (
	"errors"
	"testing"

	"github.com/hawser-project/hawser/moe/proto"
)

func layout(t *testing.T, rank int) *proto.Layout {
	t.Helper()
	l, err := proto.NewLayout(proto.Config{MaxRanks: 4, Rank: rank, MaxTokens: 8, Hidden: 8, TopK: 2, Experts: 8, InBytes: 2, WireBytes: 2})
	if err != nil {
		t.Fatal(err)
	}
	return &l
}

func TestDefaultPlacement(t *testing.T) {
	l, p := layout(t, 0), Placement{}
	if p.Experts(l) != 8 || p.Pick(l, 3, 5) != 5 || p.Places(5) != nil || p.Check(l) != nil {
		t.Fatal(p.Experts(l), p.Pick(l, 3, 5), p.Check(l))
	}
}

// An expert's own replica is taken if there is one; else tokens spread over all of them, the same way on every rank that has none.
func TestPick(t *testing.T) {
	p := Placement{Of: []uint32{0, 2, 4, 6, 3, 1}, First: []uint32{0, 1, 4, 6}} // two experts of three have replicas, of which expert 1 has none on rank 0
	if err := p.Check(layout(t, 0)); err != nil {
		t.Fatal(err)
	}
	seen := map[uint32]int{}
	for token := range 3000 {
		at := p.Pick(layout(t, 0), token, 1)
		seen[at]++
		if p.Pick(layout(t, 0), token, 1) != at {
			t.Fatalf("token %d went elsewhere the second time", token)
		}
		if token < 50 {
			if p.Pick(layout(t, 2), token, 1) != 4 || p.Pick(layout(t, 1), token, 1) != 2 || p.Pick(layout(t, 1), token, 0) != 0 {
				t.Fatal("an own replica was passed over")
			}
			if at, other := p.Pick(layout(t, 2), token, 2), p.Pick(layout(t, 3), token, 2); at != other {
				t.Fatalf("token %d goes to %d or %d", token, at, other)
			}
		}
	}
	for _, at := range []uint32{2, 4, 6} {
		if seen[at] < 800 {
			t.Fatalf("place %d was taken %d times of 3000", at, seen[at])
		}
	}
}

func TestPlacementCheck(t *testing.T) {
	for name, p := range map[string]Placement{
		"beyond":          {Of: []uint32{0, 8}},
		"twice":           {Of: []uint32{0, 1, 0}},
		"no place":        {Of: []uint32{0, 1}, First: []uint32{0, 2, 2}},
		"does not begin":  {Of: []uint32{0, 1}, First: []uint32{1, 2}},
		"does not end":    {Of: []uint32{0, 1}, First: []uint32{0, 1}},
		"no experts":      {First: []uint32{0}},
		"goes back":       {Of: []uint32{0, 1, 2}, First: []uint32{0, 2, 1, 3}},
		"beyond in First": {Of: []uint32{0, 1}, First: []uint32{0, 9, 2}},
	} {
		if err := p.Check(layout(t, 0)); !errors.Is(err, proto.ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
