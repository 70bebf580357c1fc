package reshard

import (
	"fmt"
	"slices"
	"testing"
)

// What lies on the ranks is what a direct reading of the layout says, byte by byte.
func TestOnRank(t *testing.T) {
	l := &Layout{
		Side:    "train",
		Tensors: []Tensor{{"a", []int64{5, 4}, U8}, {"b", []int64{5, 4}, U8}, {"c", []int64{6}, U8}, {"s", nil, U8}},
		Grids: []Grid{
			{Tensors: []int{0, 1}, Offsets: []int64{0, 20}, Mesh: Mesh{Shape: []int{4}}, Place: []Placement{{Kind: "shard"}}},
			{Tensors: []int{0}, Offsets: []int64{100}, Mesh: Mesh{Shape: []int{2}, Ranks: []int{3, 1}}, Place: []Placement{{Kind: "shard", Dim: 1}}, Strides: []int64{10, 2}},
		},
		Fragments: []Fragment{
			{Tensor: 2, Lo: []int64{0, 1}, Hi: []int64{2, 3}, Rank: 2, Offset: 50, Digits: []Digit{{2, 10}, {3, 1}}},
			{Tensor: 3, Rank: 2, Offset: 90},
			{Tensor: 2, Lo: []int64{3}, Hi: []int64{3}, Rank: 2},
		},
		Buffers: [][]int64{{200}, {200}, {200}, {200}},
	}
	if err := l.Validate(); err != nil {
		t.Fatal(err)
	}
	got := make([]map[string]int64, 4)
	for rank := range got {
		got[rank] = map[string]int64{}
		for _, f := range l.OnRank(rank) {
			x := l.Tensors[f.Tensor]
			if err := f.Each(x.Shape, 1, func(index []int64, at int64) { got[rank][fmt.Sprint(x.Name, index)] = at }); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		rank int
		want map[string]int64
	}{
		{2, map[string]int64{"a[4 0]": 0, "a[4 3]": 3, "b[4 0]": 20, "c[1]": 50, "c[2]": 51, "c[4]": 60, "c[5]": 61, "s[]": 90}},
		{3, map[string]int64{"a[0 0]": 100, "a[4 1]": 142}},
		{1, map[string]int64{"a[0 2]": 100, "a[4 3]": 142, "b[2 0]": 20, "b[3 3]": 27}},
	} {
		for name, at := range c.want {
			if x, ok := got[c.rank][name]; !ok || x != at {
				t.Errorf("rank %d: %s at %d, %v, want %d", c.rank, name, x, ok, at)
			}
		}
	}
	sizes := []int{len(got[0]), len(got[1]), len(got[2]), len(got[3])}
	if !slices.Equal(sizes, []int{16, 22, 13, 10}) { // rows 2, 2, 1 and none of a and b; rank 3 and 1 have columns of a, four elements of which rank 1 has already
		t.Errorf("%v elements", sizes)
	}
}
