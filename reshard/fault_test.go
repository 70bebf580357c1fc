package reshard

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// whole is a layout of one rank that holds each tensor as it is.
func whole(side string, tensors ...Tensor) *Layout {
	p := newPacker(side, 1, tensors)
	for i := range tensors {
		p.grid(Grid{Tensors: []int{i}, Mesh: Mesh{Shape: []int{1}}, Place: []Placement{{Kind: "replicate"}}})
	}
	return p.layout()
}

// wants checks the kind of an error and a part of its text.
func wants(t *testing.T, err, kind error, text string) {
	t.Helper()
	if !errors.Is(err, kind) || !strings.Contains(err.Error(), text) {
		t.Errorf("got %v\nwant %v with %q", err, kind, text)
	}
}

func compute(src, dst *Layout, rules ...Rule) error {
	_, err := Compute(context.Background(), src, dst, rules, Options{})
	return err
}

func TestGap(t *testing.T) {
	tensors := []Tensor{{"model.layers.3.w", []int64{2048, 8}, BF16}}
	p := newPacker("train", 16, tensors)
	for r := range 16 {
		if lo := int64(r) * 128; lo != 448-64 && lo != 512 {
			p.fragment(Fragment{Tensor: 0, Lo: []int64{lo, 0}, Hi: []int64{lo + 128, 8}, Rank: r}, nil)
		}
	}
	err := compute(p.layout(), whole("infer", tensors...))
	wants(t, err, ErrCoverage, "plan: model.layers.3.w rows [384,640) of 2048: no source rank holds them "+
		"(ranks 0-2 5-15 hold [0,384) [640,2048)); 1 gap, 4096 bytes")
	var f *Fault
	if !errors.As(err, &f) || f.Total != 1 || f.Bytes != 4096 {
		t.Errorf("%+v", f)
	}
	if err := compute(whole("train", tensors...), whole("infer", tensors...)); err != nil {
		t.Error(err)
	}
}

func TestOffendersAreCounted(t *testing.T) {
	var src, dst []Tensor
	for i := range 50 {
		dst = append(dst, Tensor{fmt.Sprintf("layers.%d.w", i), []int64{4}, BF16})
		src = append(src, Tensor{fmt.Sprintf("layers.%d.v", i), []int64{4}, BF16})
	}
	err := compute(whole("train", src...), whole("infer", dst...))
	wants(t, err, ErrLayout, "plan: layers.0.w: the destination needs it, no source tensor has this name; add a rule or an alias")
	wants(t, err, ErrLayout, "and 80 more of the kind (100 in all)")
	if n := strings.Count(err.Error(), "\n"); n != maxOffenders {
		t.Errorf("%d lines", n+1)
	}
}

func TestUnmatched(t *testing.T) {
	a, b := Tensor{"a", []int64{4}, BF16}, Tensor{"b", []int64{4}, BF16}
	wants(t, compute(whole("train", a, b), whole("infer", a)), ErrLayout, "b: the source has it, the destination does not want it")
	if err := compute(whole("train", a, b), whole("infer", a), Rule{Match: "b", Into: Drop}); err != nil {
		t.Errorf("dropped by a rule: %v", err)
	}
	l := whole("infer", a, b)
	wants(t, compute(whole("train", a), l), ErrLayout, "b: the destination needs it")
	l.Derived = []Derived{{Name: "b", From: []string{"a"}, Hook: "h"}}
	if err := compute(whole("train", a), l); err != nil {
		t.Errorf("derived: %v", err)
	}
	l.Derived = nil
	s := whole("train", a)
	s.Aliases = map[string]string{"b": "a"}
	if err := compute(s, l); err != nil {
		t.Errorf("the source calls a b too: %v", err)
	}
	s.Aliases = map[string]string{"b": "c", "c": "b"}
	wants(t, compute(s, l), ErrLayout, "layout: alias b: it leads back to itself")
	l.Aliases = map[string]string{"b": "a"}
	wants(t, compute(whole("train", a), l), ErrLayout, "b: it is an alias of a in the destination, and lies elsewhere")
	wants(t, compute(whole("train", a, a), whole("infer", a)), ErrLayout, `the name "a" is there twice`)
	wants(t, compute(whole("train", a), whole("infer", Tensor{"a", []int64{5}, BF16})), ErrLayout, "a [5]: the source has a [4]")
	if err := compute(whole("train", a), whole("infer", Tensor{"a", []int64{4}, I16})); err != nil {
		t.Errorf("other type of the same size, as it is: %v", err)
	}
	wants(t, compute(whole("train", a), whole("infer", Tensor{"a", []int64{4}, I32})), ErrLayout, "a: no codec raw from BF16 to I32")
	wants(t, compute(whole("train", a, b), whole("infer", a), Rule{Match: "{layer", Into: "a"}), ErrLayout, "only {layer}, {expert} and * are wildcards")
	wants(t, compute(whole("train", a, b), whole("infer", a), Rule{Match: "b", Into: "a"}), ErrLayout, "a: comes from both a and b")
}

func TestBlockCuts(t *testing.T) {
	name := "model.layers.0.mlp.experts.5.gate_proj.weight"
	src := whole("train", Tensor{name, []int64{1536, 256}, BF16})
	at := func(tp int) *Layout {
		p := newPacker("infer", tp, []Tensor{{name, []int64{1536, 256}, F8E4M3}})
		g := Grid{Tensors: []int{0}, Mesh: Mesh{Dims: []string{"tp"}, Shape: []int{tp}}, Place: []Placement{{Kind: "shard"}}, Codec: Codec{Kind: fp8Kind}}
		p.grid(g)
		g.Scales = true
		p.grid(g)
		return p.layout()
	}
	wants(t, compute(src, at(8)), ErrLayout, "plan: model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight: TP8 leaves 192-row shards, "+
		"fp8 blocks need multiples of 128; use TP<=4")
	if err := compute(src, at(4)); err != nil {
		t.Errorf("TP4: %v", err)
	}
	l := at(4)
	l.Grids = l.Grids[:1]
	wants(t, compute(src, l), ErrLayout, "has the values and no place for their scales")
	l = at(1)
	l.Grids = l.Grids[:1]
	l.Buffers[0][0] += 1 << 10
	l.Fragments = []Fragment{{
		Tensor: 0, Lo: []int64{0, 0, 0}, Hi: []int64{6, 2, 2}, Offset: 1536 * 256, Digits: []Digit{{6, 4}, {2, 48}, {2, 24}},
		Codec: Codec{Kind: fp8Kind}, Scales: true,
	}}
	wants(t, compute(src, l), ErrLayout, "scales in digits are not planned")
	l = at(4)
	l.Grids = l.Grids[1:]
	if err := compute(src, l); err == nil {
		t.Error("scales without values are planned")
	}
}

func TestPartial(t *testing.T) {
	l := whole("train", Tensor{"o_proj.weight", []int64{4}, BF16})
	l.Grids[0].Mesh.Dims, l.Grids[0].Place = []string{"tp"}, []Placement{{Kind: "partial"}}
	wants(t, l.Validate(), ErrLayout, `layout: o_proj.weight is Partial(sum) on mesh dim "tp"; reduce it before describing the model`)
}

// TestBytesBelongToOne gives bytes to two tensors in every way there is.
func TestBytesBelongToOne(t *testing.T) {
	a, b := Tensor{"a", []int64{4, 4}, BF16}, Tensor{"b", []int64{4, 4}, BF16}
	for name, change := range map[string]func(l *Layout){
		"one byte": func(l *Layout) { l.Grids[1].Offsets[0] -= 2 },
		"the same": func(l *Layout) { l.Grids[1].Offsets[0] = 0 },
		"a pad":    func(l *Layout) { l.Pads = []Range{{0, 0, 30, 4}} },
		"inside rows": func(l *Layout) {
			l.Grids[0].Strides, l.Grids[1].Strides, l.Grids[1].Offsets[0] = []int64{16, 2}, []int64{16, 2}, 6
		},
		"itself": func(l *Layout) { l.Grids[0].Strides = []int64{4, 2} },
		"a fragment": func(l *Layout) {
			l.Fragments = []Fragment{{Tensor: 0, Lo: []int64{0, 0}, Hi: []int64{1, 1}, Offset: 8}}
		},
	} {
		l := whole("infer", a, b)
		if l.Buffers[0][0] += 64; l.Validate() != nil {
			t.Fatalf("%s: wrong before: %v", name, l.Validate())
		}
		change(l)
		wants(t, l.Validate(), ErrLayout, "belong to both")
		l.Side = "train"
		if err := l.Validate(); err != nil {
			t.Errorf("%s: a source may: %v", name, err)
		}
		wants(t, compute(whole("train", a, b), l), ErrLayout, "destination: layout: ")
	}
	l := whole("infer", a, b)
	l.Buffers[0][0] = 64
	l.Grids[0].Strides, l.Grids[1].Strides, l.Grids[1].Offsets[0] = []int64{16, 2}, []int64{16, 2}, 8
	if err := l.Validate(); err != nil {
		t.Errorf("rows in turn: %v", err)
	}
	l = whole("infer", a, b)
	l.Grids[1].Offsets[0], l.Aliases = 0, map[string]string{"b": "a"}
	if err := l.Validate(); err != nil {
		t.Errorf("an alias: %v", err)
	}
	s := whole("train", a)
	if err := compute(s, l); err != nil {
		t.Errorf("plan with an alias: %v", err)
	}
}

// TestValidate breaks a layout in one place at a time.
func TestValidate(t *testing.T) {
	for name, change := range map[string]func(l *Layout){
		"no ranks":             func(l *Layout) { l.Buffers = nil },
		"a buffer below zero":  func(l *Layout) { l.Buffers[0][0] = -1 },
		"no type":              func(l *Layout) { l.Tensors[0].DType = Invalid },
		"too many dims":        func(l *Layout) { l.Tensors[0].Shape = make([]int64, MaxDims+1) },
		"too many elements":    func(l *Layout) { l.Tensors[0].Shape = []int64{1 << 40, 1 << 40} },
		"extent below zero":    func(l *Layout) { l.Tensors[0].Shape[0] = -1 },
		"outside the buffer":   func(l *Layout) { l.Grids[0].Offsets[0] += 2 },
		"before the buffer":    func(l *Layout) { l.Grids[0].Offsets[0] = -2 },
		"far outside":          func(l *Layout) { l.Grids[0].Offsets[0] = 1<<63 - 2 },
		"half an element":      func(l *Layout) { l.Grids[0].Offsets[0] = 1 },
		"no such buffer":       func(l *Layout) { l.Grids[0].Buffer = 1 },
		"no such rank":         func(l *Layout) { l.Grids[0].Mesh.Ranks = []int{0, 2} },
		"a rank twice":         func(l *Layout) { l.Grids[0].Mesh.Ranks = []int{1, 1} },
		"no such tensor":       func(l *Layout) { l.Grids[0].Tensors[0] = 1 },
		"offsets missing":      func(l *Layout) { l.Grids[0].Offsets = nil },
		"placements missing":   func(l *Layout) { l.Grids[0].Place = nil },
		"placement unknown":    func(l *Layout) { l.Grids[0].Place[0].Kind = "cut" },
		"shards a wrong dim":   func(l *Layout) { l.Grids[0].Place[0].Dim = 2 },
		"an empty mesh":        func(l *Layout) { l.Grids[0].Mesh.Shape[0] = 0 },
		"a huge mesh":          func(l *Layout) { l.Grids[0].Mesh.Shape[0] = 1 << 62 },
		"strides missing":      func(l *Layout) { l.Grids[0].Strides = []int64{2} },
		"stride past the end":  func(l *Layout) { l.Grids[0].Strides = []int64{16, 2} },
		"a huge stride":        func(l *Layout) { l.Grids[0].Strides = []int64{1 << 62, 2} },
		"codec unknown":        func(l *Layout) { l.Grids[0].Codec.Kind = "zip" },
		"scales of raw":        func(l *Layout) { l.Grids[0].Scales = true },
		"blocks of nothing":    func(l *Layout) { l.Grids[0].Codec = Codec{Kind: fp8Kind, Block: [2]int{-1, 2}} },
		"fragment of nothing":  func(l *Layout) { l.Fragments = []Fragment{{Tensor: 7}} },
		"fragment nowhere":     func(l *Layout) { l.Fragments = []Fragment{{Rank: 2, Lo: []int64{0, 0}, Hi: []int64{1, 1}}} },
		"fragment of few dims": func(l *Layout) { l.Fragments = []Fragment{{Lo: []int64{0}, Hi: []int64{1}}} },
		"fragment too large":   func(l *Layout) { l.Fragments = []Fragment{{Lo: []int64{0, 0}, Hi: []int64{9, 1}}} },
		"digits that lack": func(l *Layout) {
			l.Fragments = []Fragment{{Lo: []int64{0, 0}, Hi: []int64{1, 1}, Digits: []Digit{{2, 8}, {2, 2}}}}
		},
		"pad outside":          func(l *Layout) { l.Pads = []Range{{0, 0, 1 << 62, 1 << 62}} },
		"pad nowhere":          func(l *Layout) { l.Pads = []Range{{3, 0, 0, 1}} },
		"nodes missing":        func(l *Layout) { l.Topo.Node = []int{1} },
		"derived from nothing": func(l *Layout) { l.Derived = []Derived{{Name: "x"}} },
	} {
		p := newPacker("train", 2, []Tensor{{"a", []int64{4, 4}, BF16}})
		p.grid(Grid{Tensors: []int{0}, Mesh: Mesh{Shape: []int{2}}, Place: []Placement{{Kind: "shard"}}})
		l := p.layout()
		if err := l.Validate(); err != nil {
			t.Fatal(err)
		}
		change(l)
		if err := l.Validate(); !errors.Is(err, ErrLayout) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLimits(t *testing.T) {
	tensors := []Tensor{{"a", []int64{64}, BF16}}
	p := newPacker("train", 16, tensors)
	p.grid(Grid{Tensors: []int{0}, Mesh: Mesh{Shape: []int{16}}, Place: []Placement{{Kind: "shard"}}})
	_, err := Compute(context.Background(), p.layout(), whole("infer", tensors...), nil, Options{MaxRegions: 15})
	wants(t, err, ErrLimit, "16 regions, Options.MaxRegions is 15")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = Compute(ctx, p.layout(), whole("infer", tensors...), nil, Options{})
	wants(t, err, context.Canceled, "")
	_, err = Compute(context.Background(), p.layout(), whole("infer", tensors...), nil, Options{MaxWrite: -1})
	wants(t, err, ErrLayout, "MaxWrite -1")
}
