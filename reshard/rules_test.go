package reshard

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// TestViewRandom splits and joins dimensions between the sides.
func TestViewRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fine := rapid.SliceOfN(rapid.Int64Range(1, 5), 2, 4).Draw(t, "fine")
		join := func(label string) (shape []int64) {
			for i, n := range fine {
				if i > 0 && rapid.Bool().Draw(t, label) {
					shape[len(shape)-1] *= n
				} else {
					shape = append(shape, n)
				}
			}
			return shape
		}
		from := []Tensor{{"a", join("src"), BF16}}
		into := []Tensor{{"b", join("dst"), BF16}}
		src, dst := drawLayout(t, "train", from), drawLayout(t, "infer", into)
		rules := []Rule{{Match: "a", Into: "b", View: into[0].Shape}}
		if _, err := regroup(from[0].Shape, into[0].Shape); err != nil {
			wantsKind(t, compute(src, dst, rules...))
			return
		}
		if err := compute(src, dst, rules...); err != nil { // digits that a view cuts through
			wantsKind(t, err)
			return
		}
		check(t, src, dst, rules, drawOptions(t), func(_ int, x []int64) (int, int64) { return 0, flat(x, into[0].Shape) })
	})
}

func TestViewCutsDigits(t *testing.T) {
	p := newPacker("train", 1, []Tensor{{"a", []int64{6}, BF16}})
	p.fragment(Fragment{Tensor: 0, Lo: []int64{0, 0}, Hi: []int64{3, 2}, Digits: []Digit{{Extent: 3}, {Extent: 2}}}, []int{0, 1})
	into := whole("infer", Tensor{"b", []int64{2, 3}, BF16})
	wants(t, compute(p.layout(), into, Rule{Match: "a", Into: "b", View: []int64{2, 3}}), ErrLayout, "view [2 3] cuts through the digits of dimension 0")
}

func wantsKind(t *rapid.T, err error) {
	if f, ok := err.(*Fault); !ok || f.Kind != ErrLayout {
		t.Fatalf("%v is no fault of a layout", err)
	}
}

// TestStacks makes stacks of single tensors, and single tensors of stacks.
func TestStacks(t *testing.T) {
	const experts = 4
	stack := []Tensor{{"layers.0.w13", []int64{experts, 6, 4}, BF16}}
	var single []Tensor
	for e := range experts {
		single = append(single, Tensor{fmt.Sprintf("layers.0.experts.%d.w", e), []int64{6, 4}, BF16})
	}
	byGrid := func(side string, tensors []Tensor, dim int) *Layout {
		p := newPacker(side, 2, tensors)
		for i := range tensors {
			p.grid(Grid{Tensors: []int{i}, Mesh: Mesh{Shape: []int{2}}, Place: []Placement{{Kind: "shard", Dim: dim}}})
		}
		return p.layout()
	}
	into := Rule{Match: "layers.{layer}.experts.{expert}.w", Into: "layers.{layer}.w13", View: []int64{experts, 6, 4}, Slot: -1}
	apart := Rule{Match: "layers.{layer}.w13", Into: "layers.{layer}.experts.{expert}.w"}
	for dim := range 3 {
		for other := range 2 {
			check(t, byGrid("train", single, other), byGrid("infer", stack, dim), []Rule{into}, Options{}, func(_ int, x []int64) (int, int64) {
				return int(x[0]), flat(x[1:], single[0].Shape)
			})
			check(t, byGrid("train", stack, dim), byGrid("infer", single, other), []Rule{apart}, Options{}, func(e int, x []int64) (int, int64) {
				return 0, int64(e)*24 + flat(x, single[0].Shape)
			})
		}
	}
	wants(t, compute(byGrid("train", single[:3], 0), byGrid("infer", stack, 0), into), ErrLayout, "layers.0.w13: no source tensor for index 3 of 4")
	none := into
	none.Match = "layers.{layer}.experts.*.w"
	wants(t, compute(byGrid("train", single, 0), byGrid("infer", stack, 0), none), ErrLayout, "has slot -1, but captures no {expert}")
}

func TestPattern(t *testing.T) {
	for _, c := range []struct {
		pattern, name, want string
	}{
		{"a.{layer}.b", "a.12.b", "12/-1[]"},
		{"a.{layer}.b", "a.x.b", "no"},
		{"a.{layer}.b", "a.012.b", "no"},
		{"a.{layer}.{expert}", "a.1.2", "1/2[]"},
		{"{layer}.{layer}", "3.3", "3/-1[]"},
		{"{layer}.{layer}", "3.4", "no"},
		{"*.w", "a.w.w", "-1/-1[a.w]"},
		{"*", "", "-1/-1[]"},
		{"*.{expert}.*", "a.b.7.c", "-1/7[a.b c]"},
		{"a", "ab", "no"},
		{"a.{layer}", "a.99999999999999999999", "no"},
	} {
		p, err := ParsePattern(c.pattern)
		if err != nil {
			t.Fatal(err)
		}
		got := "no"
		if x, ok := p.Match(c.name); ok {
			got = fmt.Sprintf("%d/%d%v", x.Layer, x.Expert, x.Stars)
			if back := p.Expand(x); back != c.name {
				t.Errorf("%s: %s expands to %s", c.pattern, c.name, back)
			}
		}
		if got != c.want {
			t.Errorf("%s of %s: %s, want %s", c.pattern, c.name, got, c.want)
		}
	}
}
