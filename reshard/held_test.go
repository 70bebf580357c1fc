package reshard

import (
	"reflect"
	"testing"
)

// Held and Spans name exactly the bytes of a rank, of grids, of strided boxes and of scales.
func TestHeld(t *testing.T) {
	l := &Layout{
		Tensors: []Tensor{{"b", []int64{5, 3}, U8}, {"a", []int64{2, 4}, BF16}},
		Grids: []Grid{{
			Tensors: []int{0}, Mesh: Mesh{Shape: []int{2}}, Place: []Placement{{Kind: "shard"}}, Offsets: []int64{100},
		}},
		Fragments: []Fragment{
			{Tensor: 1, Lo: []int64{0, 2}, Hi: []int64{2, 4}, Rank: 1, Offset: 10, Digits: []Digit{{2, 32}, {4, 2}}},
		},
		Buffers: [][]int64{{200}, {200}},
	}
	type span struct{ off, n int64 }
	for rank, want := range [][]span{{{100, 9}}, {{10, 4}, {42, 4}, {100, 6}}} {
		held, err := l.Held(rank)
		if err != nil {
			t.Fatal(err)
		}
		var got []span
		for i := range held {
			held[i].Spans(func(off, n int64) bool { got = append(got, span{off, n}); return true })
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("rank %d: %v, want %v", rank, got, want)
		}
	}
	if _, err := l.Held(2); err == nil {
		t.Error("a rank that is not there holds something")
	}
}
