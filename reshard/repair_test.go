package reshard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestRepairRandom loses ranks in the middle of a push: what was verified stays, the rest comes from the others.
func TestRepairRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tensors []Tensor
		for i := range rapid.IntRange(1, 3).Draw(t, "tensors") {
			shape := rapid.SliceOfN(rapid.Int64Range(1, 9), 2, 2).Draw(t, "shape")
			tensors = append(tensors, Tensor{fmt.Sprintf("layers.%d.w", i), shape, BF16})
		}
		into := slices.Clone(tensors)
		codec := Codec{Kind: "fp8block", Block: [2]int{2, 3}}
		mesh := Mesh{Shape: []int{2, 2}}
		p := newPacker("train", 4, tensors)
		q := newPacker("infer", 2, into)
		for i := range tensors {
			cut := Placement{Kind: "shard", Dim: rapid.IntRange(0, 1).Draw(t, "dim")}
			p.grid(Grid{Tensors: []int{i}, Mesh: mesh, Place: []Placement{{Kind: "replicate"}, cut}})
			g := Grid{Tensors: []int{i}, Mesh: Mesh{Shape: []int{2}}, Place: []Placement{{Kind: "replicate"}}}
			if rapid.Bool().Draw(t, "fp8") {
				into[i].DType, g.Codec = F8E4M3, codec
				s := g
				s.Scales = true
				q.grid(s)
			}
			q.grid(g)
		}
		src, dst := p.layout(), q.layout()
		plan, err := Compute(context.Background(), src, dst, nil, drawOptions(t))
		if err != nil {
			t.Fatal(err)
		}
		done := rapid.SliceOfN(rapid.Bool(), 2*len(plan.stages), 2*len(plan.stages)).Draw(t, "verified")
		verified := func(d, stage int) bool { return done[d*len(plan.stages)+stage] }
		lost := rapid.SampledFrom([][]int{{0}, {3}, {0, 1}, {0, 3}, {2, 1}}).Draw(t, "lost")
		repaired, err := plan.Repair(lost, verified)
		if err != nil {
			t.Fatal(err)
		}
		w := newWorld(src, dst, 1)
		w.keep = verified
		if err := w.execute(plan); err != nil {
			t.Fatal(err)
		}
		w.keep = nil
		for _, r := range lost {
			clear(w.from[r][0])
			if s := repaired.Source(r); len(s.Tasks) > 0 || len(s.Amax) > 0 {
				t.Fatalf("lost rank %d has work: %+v", r, s)
			}
		}
		if err := w.execute(repaired); err != nil {
			t.Fatal(err)
		}
		if err := w.expect(byName(src, dst)); err != nil {
			t.Fatal(err)
		}
		again, err := repaired.Repair(nil, nil)
		if err != nil || again.ID() != repaired.ID() {
			t.Fatalf("repaired for nothing: id %x and %x, %v", again.ID(), repaired.ID(), err)
		}
	})
}

func TestRepairNoReplica(t *testing.T) {
	src, dst := smallPair()
	p := mustCompute(t, src, dst, nil, Options{})
	_, err := p.Repair([]int{1, 3}, nil)
	if !errors.Is(err, ErrNoReplica) || !strings.Contains(err.Error(), "layers.0.a rows [5,10) of 10: lost with ranks 1 3") {
		t.Fatalf("both holders lost: %v", err)
	}
	if _, err := p.Repair([]int{1, 3}, func(int, int) bool { return true }); err != nil {
		t.Fatalf("both holders lost, nothing needed: %v", err)
	}
	if _, err := p.Repair([]int{4}, nil); !errors.Is(err, ErrLayout) {
		t.Fatalf("a rank that is not there: %v", err)
	}
	one, err := p.Repair([]int{1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := one.Repair([]int{3}, nil); !errors.Is(err, ErrNoReplica) {
		t.Fatalf("one after the other: %v", err)
	}
}

func TestExplain(t *testing.T) {
	src, dst := smallPair()
	p := mustCompute(t, src, dst, nil, Options{})
	w := newWorld(src, dst, 1)
	for ti, tensor := range dst.Tensors {
		each(make([]int64, len(tensor.Shape)), tensor.Shape, func(x []int64) {
			all, err := p.Explain(tensor.Name, x)
			if err != nil || len(all) == 0 {
				t.Fatalf("%s %v: %d origins, %v", tensor.Name, x, len(all), err)
			}
			for _, o := range all {
				from := src.Tensors[ti].DType
				if v := get(w.from[o.Source][o.Buffer][o.Offset:], from); v != w.values[ti][flat(x, tensor.Shape)] {
					t.Fatalf("%s %v: %+v holds %v", tensor.Name, x, o, v)
				}
				found := false
				elements(dst, func(k int, y []int64, s spot) {
					found = found || k == ti && !s.scales && slices.Equal(x, y) && s.rank == o.Rank && s.buffer == o.To.Buffer && s.off == o.To.Offset
				})
				if !found {
					t.Fatalf("%s %v does not lie at %+v", tensor.Name, x, o)
				}
			}
		})
	}
	if o, err := p.Explain("head", []int64{3}); err != nil || len(o) != 2 || o[0].Tensor != "embed" {
		t.Fatalf("an alias: %+v, %v", o, err)
	}
	for _, x := range [][]int64{{9}, {-1}, {1, 1}, nil} {
		if _, err := p.Explain("embed", x); !errors.Is(err, ErrLayout) {
			t.Fatalf("index %v: %v", x, err)
		}
	}
	if _, err := p.Explain("nothing", nil); !errors.Is(err, ErrLayout) {
		t.Fatal(err)
	}
}
