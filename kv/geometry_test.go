package kv

import (
	"math"
	"strings"
	"testing"
)

func TestBuiltinGeometries(t *testing.T) {
	const prompt = 16384
	for _, c := range []struct {
		name                      string
		page, bytes, writes       uint64
		layers, planes, pageCount int
	}{
		{"mini", 32 << 10, 67108864, 2048, 8, 2, 128},
		{"qwen3-8b", 256 << 10, 2415919104, 9216, 36, 2, 128},
		{"qwen3-235b-tp4", 32 << 10, 788529152, 24064, 94, 2, 128},
	} {
		g, err := BuiltinGeometry(c.name)
		if err != nil {
			t.Fatal(err)
		}
		if err := g.check(); err != nil {
			t.Error(err)
		}
		if g.Group.PageBytes() != c.page || g.Bytes(prompt) != c.bytes || g.Writes(prompt) != c.writes || g.Layers != c.layers || g.Pages(prompt) != c.pageCount {
			t.Errorf("%s: page %d bytes, prompt %d bytes in %d writes, %d layers, %d pages; want %+v",
				c.name, g.Group.PageBytes(), g.Bytes(prompt), g.Writes(prompt), g.Layers, g.Pages(prompt), c)
		}
		if g.BytesPerPage() != c.page*uint64(c.layers*c.planes) {
			t.Errorf("%s: a page takes %d bytes", c.name, g.BytesPerPage())
		}
		if g.Pages(1) != 1 || g.Pages(128) != 1 || g.Pages(129) != 2 {
			t.Errorf("%s: 1, 128, 129 tokens take %d, %d, %d pages", c.name, g.Pages(1), g.Pages(128), g.Pages(129))
		}
	}
	_, err := BuiltinGeometry("gpt-5")
	if err == nil || err.Error() != `kv: unknown geometry "gpt-5": want one of mini, qwen3-8b, qwen3-235b-tp4` {
		t.Errorf("got %v", err)
	}
}

func TestScaleKeepsTheShapeOfAPage(t *testing.T) {
	g, err := BuiltinGeometry("qwen3-235b-tp4")
	if err != nil {
		t.Fatal(err)
	}
	for f, layers := range map[float64]int{1: 94, 0.5: 47, 0.1: 9, 0.001: 1} {
		s, err := g.Scale(f)
		if err != nil || s.Layers != layers || s.Group != g.Group {
			t.Errorf("scale %v: got %+v, %v; want %d layers", f, s, err, layers)
		}
		if (s.Fingerprint == g.Fingerprint) != (layers == 94) {
			t.Errorf("scale %v has fingerprint %q: a part of a model must not pass for the whole", f, s.Fingerprint)
		}
	}
	for _, f := range []float64{0, -1, 1.01, math.NaN(), math.Inf(1)} {
		if _, err := g.Scale(f); err == nil || !strings.Contains(err.Error(), "want more than 0 and at most 1") {
			t.Errorf("scale %v: got %v", f, err)
		}
	}
}

func TestMismatchNamesTheField(t *testing.T) {
	a := small
	if m := a.mismatch(a); m != nil {
		t.Errorf("equal geometries differ: %v", m)
	}
	for field, change := range map[string]func(*Geometry){
		"fingerprint":  func(g *Geometry) { g.Fingerprint = "small@r2" },
		"layers":       func(g *Geometry) { g.Layers++ },
		"page tokens":  func(g *Geometry) { g.Group.PageTokens++ },
		"kv heads":     func(g *Geometry) { g.Group.KVHeads++ },
		"head dim":     func(g *Geometry) { g.Group.HeadDim++ },
		"element size": func(g *Geometry) { g.Group.ElemSize++ },
		"planes":       func(g *Geometry) { g.Group.Planes-- },
	} {
		b := a
		change(&b)
		if m := a.mismatch(b); m == nil || m.Field != field || m.Here == m.There {
			t.Errorf("%s: got %v", field, m)
		}
	}
}
