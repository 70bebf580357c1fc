package layout

import (
	"bytes"
	"errors"
	"runtime"
	"strings"
	"testing"
)

// TestTight: a page may begin where the last element of the one before ends, although a stride is longer.
func TestTight(t *testing.T) {
	g := Group{PageTokens: 4, KVHeads: 1, HeadDim: 4, ElemSize: 2, Planes: 1}
	v := View{Pages: 3, Strides: Strides{Page: 3*16 + 8, Head: 1, Token: 16}}
	if err := v.check(g, 1); err != nil {
		t.Error(err)
	}
	if v.Page--; v.check(g, 1) == nil {
		t.Error("pages that share a byte are accepted")
	}
}

// TestFoldLimit: an index stays within 32 bits, however far pages are apart.
func TestFoldLimit(t *testing.T) {
	m := model(t, "mini", 1)
	src := instance(t, Spec{Model: m, TP: 2, PageTokens: 16, Pages: 2})
	for _, c := range []struct {
		fold    int64
		entries int
	}{{maxFold, 1}, {2 * maxFold, 8}} {
		dst := instance(t, Spec{Model: m, TP: 2, Pages: 2})
		for i := range dst.Members[0].Ranks {
			for p := range dst.Members[0].Ranks[i].Views[0] {
				dst.Members[0].Ranks[i].Views[0][p].Page = c.fold * 16 * 128
			}
		}
		pair, err := NewPair(src, dst, Options{AllowSmallWrites: true})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range pair.Flows() {
			if len(f.Entries) != c.entries {
				t.Errorf("pages of %d units: %d entries, want %d", c.fold, len(f.Entries), c.entries)
			}
		}
	}
}

// TestPairLimits: what two large topologies may make of each other is bounded.
func TestPairLimits(t *testing.T) {
	latent := Model{Name: "latent", Layers: 16, Groups: []Group{{64, 1, 576, 2, 1, 0}}}
	one := latent
	one.Layers = 1
	for _, c := range []struct {
		model Model
		tp    int
		text  string
	}{
		{latent, 256, "more than 524288 pairs of ranks, layers and planes"},
		{one, 300, "the pattern has more than 65536 entries"},
	} {
		side := instance(t, Spec{Model: c.model, TP: c.tp})
		if _, err := NewPair(side, side, Options{}); !errors.Is(err, ErrInfeasible) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%v, want %q", err, c.text)
		}
	}
}

// TestDecodeBomb: a short encoding of many views is refused before it takes memory.
func TestDecodeBomb(t *testing.T) {
	m := Model{Name: "bomb", Layers: 1024, Groups: []Group{{1, 1, 1, 1, 4, 0}}}
	var g Geometry
	for i := range 64 {
		part, _, err := Build(Spec{Model: m, TP: 64, First: i, Ranks: 1})
		if err != nil {
			t.Fatal(err)
		}
		g.Fingerprint, g.Layers, g.Groups = part.Fingerprint, part.Layers, part.Groups
		g.Ranks = append(g.Ranks, part.Ranks...)
	}
	b := g.AppendBinary(nil)
	if len(b) > 64<<10 {
		t.Fatalf("the encoding has %d bytes, want one that is short", len(b))
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := DecodeGeometry(b); err == nil || !strings.Contains(err.Error(), "more than 65536 views") {
		t.Errorf("%v, want that there are too many views", err)
	}
	runtime.ReadMemStats(&after)
	allocated := after.TotalAlloc - before.TotalAlloc
	if allocated > 16<<20 {
		t.Errorf("decoding took %d bytes", allocated)
	}
}

// TestCodeStep: a run of one view has no steps, although a view follows.
func TestCodeStep(t *testing.T) {
	g, _, err := Build(Spec{Model: model(t, "mini", 2), LayerRegions: true, Pages: 77})
	if err != nil {
		t.Fatal(err)
	}
	for p := range g.Ranks[0].Views[1] {
		g.Ranks[0].Views[1][p].Pages = 78
	}
	b := g.AppendBinary(nil)
	step := bytes.IndexByte(b, 77) - 3 // then base, step of the base, pages
	if step < 0 || b[step] != 0 {
		t.Fatalf("% x: the first run has a step of the region at %d", b, step)
	}
	b[step] = 2
	if _, err := DecodeGeometry(b); !errors.Is(err, ErrInvalid) {
		t.Errorf("a step that does nothing: %v, want ErrInvalid", err)
	}
}

// TestDigest: all that a plan depends on is in it.
func TestDigest(t *testing.T) {
	m := model(t, "mini", 2)
	other := m
	other.Name = "mini@2"
	seen := map[uint64]string{}
	for _, c := range []struct {
		name     string
		src, dst Spec
		span     Span
		seq      uint64
	}{
		{"first", Spec{Model: m}, Spec{Model: m}, Span{0, 500}, 0},
		{"source", Spec{Model: m, Pages: 2}, Spec{Model: m}, Span{0, 500}, 0},
		{"destination", Spec{Model: m}, Spec{Model: m, Pages: 2}, Span{0, 500}, 0},
		{"fingerprint", Spec{Model: other}, Spec{Model: other}, Span{0, 500}, 0},
		{"end", Spec{Model: m}, Spec{Model: m}, Span{0, 501}, 0},
		{"beginning", Spec{Model: m}, Spec{Model: m}, Span{128, 500}, 0},
		{"seq", Spec{Model: m}, Spec{Model: m}, Span{0, 500}, 1},
	} {
		p, err := MakePlan(instance(t, c.src), instance(t, c.dst), []Span{c.span}, c.seq, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if was, ok := seen[p.Digest()]; ok {
			t.Errorf("another %s has the digest of %s", c.name, was)
		}
		seen[p.Digest()] = c.name
	}
}
