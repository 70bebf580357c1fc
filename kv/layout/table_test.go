package layout

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

func instance(t testing.TB, s Spec) *Topology {
	t.Helper()
	g, sizes, err := Build(s)
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range g.RegionBytes() {
		if sizes[i] != n {
			t.Fatalf("region %d has %d bytes, its views end at %d", i, sizes[i], n)
		}
	}
	return &Topology{Members: []Geometry{g}}
}

func model(t testing.TB, name string, layers int) Model {
	t.Helper()
	m, err := BuiltinModel(name)
	if err != nil {
		t.Fatal(err)
	}
	if layers > 0 {
		m, err = m.Scale(float64(layers) / float64(m.Layers))
		if err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// TestShapes: pairs that are in use, byte by byte, with the number of operations that they need: one WritePages for each plane
// and pair of ranks where that is possible, and the writes of the shortest length.
func TestShapes(t *testing.T) {
	for _, c := range []struct {
		name           string
		model          string
		src, dst       Spec
		flows, entries int // entries of all flows
		repeat         int // writes per unit and entry
		length         int64
		folds          bool
	}{
		{name: "equal", model: "qwen3-8b", flows: 1, entries: 1, repeat: 1, length: 256 << 10},
		{name: "equal NHD", model: "qwen3-8b", src: Spec{Order: NHD}, dst: Spec{Order: NHD}, flows: 1, entries: 1, repeat: 1, length: 256 << 10},
		{name: "equal TP 4", model: "qwen3-235b-tp4", src: Spec{LayerRegions: true}, flows: 4, entries: 4, repeat: 1, length: 32 << 10},
		{name: "TP 4 to 1", model: "qwen3-235b-tp4", dst: Spec{TP: 1}, flows: 4, entries: 4, repeat: 1, length: 32 << 10},
		{name: "TP 1 to 4", model: "qwen3-235b-tp4", src: Spec{TP: 1}, flows: 4, entries: 4, repeat: 1, length: 32 << 10},
		{name: "TP 4 to 2", model: "qwen3-235b-tp4", dst: Spec{TP: 2}, flows: 4, entries: 4, repeat: 1, length: 32 << 10},
		{name: "TP 4 to 1, NHD there", model: "qwen3-235b-tp4", dst: Spec{TP: 1, Order: NHD}, flows: 4, entries: 4, repeat: 128, length: 256},
		{name: "HND to NHD", model: "mini", dst: Spec{Order: NHD}, flows: 1, entries: 1, repeat: 256, length: 128},
		{name: "PP 2 to 1", model: "mini", src: Spec{PP: 2}, flows: 2, entries: 2, repeat: 1, length: 32 << 10},
		{name: "MLA 8 to 1", model: "deepseek-v3", dst: Spec{TP: 1}, flows: 8, entries: 8, repeat: 1, length: 72 << 10},
		{name: "MLA 8 to 1, pages of 128", model: "deepseek-v3", dst: Spec{TP: 1, PageTokens: 128}, flows: 8, entries: 8, repeat: 1, length: 72 << 10, folds: true},
		{name: "MLA 1 to 2", model: "deepseek-v3", src: Spec{TP: 1}, dst: Spec{TP: 2}, flows: 2, entries: 2, repeat: 1, length: 72 << 10},
		{name: "TP 16 to 4 heads", model: "qwen3-235b-tp4", src: Spec{TP: 16}, flows: 16, entries: 16, repeat: 1, length: 32 << 10},
		{name: "pages 64 to 128", model: "qwen3-8b", src: Spec{PageTokens: 64}, flows: 1, entries: 1, repeat: 8, length: 16 << 10, folds: true},
		{name: "pages 16 to 128", model: "qwen3-8b", src: Spec{PageTokens: 16}, flows: 1, entries: 1, repeat: 8, length: 4 << 10, folds: true},
		{name: "pages 16 to 128 NHD", model: "qwen3-8b", src: Spec{PageTokens: 16, Order: NHD}, dst: Spec{Order: NHD}, flows: 1, entries: 1, repeat: 1, length: 32 << 10, folds: true},
		{name: "pages 128 to 64", model: "mini", dst: Spec{PageTokens: 64}, flows: 1, entries: 1, repeat: 2, length: 8 << 10, folds: true},
		{name: "pages 96 to 64", model: "mini", src: Spec{PageTokens: 96}, dst: Spec{PageTokens: 64}, flows: 1, entries: 4, repeat: 2, length: 4 << 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.src.Model = model(t, c.model, 2)
			c.dst.Model = c.src.Model
			c.src.Pages, c.dst.Pages = 40, 40
			src, dst := instance(t, c.src), instance(t, c.dst)
			pair, err := NewPair(src, dst, Options{AllowSmallWrites: true})
			if err != nil {
				t.Fatal(err)
			}
			entries := 0
			for i, f := range pair.Flows() {
				entries += len(f.Entries)
				for _, e := range f.Entries {
					if e.Repeat() != c.repeat {
						t.Errorf("flow %d: %d writes per unit, want %d", i, e.Repeat(), c.repeat)
					}
				}
				if folds := pair.flows[i].srcFold > 1 || pair.flows[i].dstFold > 1; folds != c.folds {
					t.Errorf("flow %d folds pages by %d and %d", i, pair.flows[i].srcFold, pair.flows[i].dstFold)
				}
			}
			if len(pair.Flows()) != c.flows || entries != c.entries || pair.MinWrite() != c.length {
				t.Errorf("%d flows, %d entries, smallest write %d, want %d, %d, %d", len(pair.Flows()), entries, pair.MinWrite(), c.flows, c.entries, c.length)
			}
			p, err := pair.Plan(pair.Spans(dst.Members[0].Groups[0].PageTokens, 517), 7)
			if err != nil {
				t.Fatal(err)
			}
			w := newWorld(*src, *dst, p, func(n, below int) (all []uint32) {
				for _, i := range rand.Perm(below)[:n] {
					all = append(all, uint32(i))
				}
				return all
			})
			w.runAll(t, p, func() int { return 200 }, 32)
			w.check(t, p, 7)
		})
	}
}

// TestOneOperation: a layer's pages of a pair of ranks are one batch for each plane, whatever the heads and page sizes.
func TestOneOperation(t *testing.T) {
	m := model(t, "qwen3-235b-tp4", 1)
	for _, dst := range []Spec{{Model: m}, {Model: m, TP: 2}, {Model: m, TP: 1}, {Model: m, PageTokens: 256}} {
		dst.Pages = 64
		src := instance(t, Spec{Model: m, Pages: 64})
		p, err := MakePlan(src, instance(t, dst), []Span{{0, 8192}}, 0, Options{})
		if err != nil {
			t.Fatal(err)
		}
		for rank := range src.Members[0].Ranks {
			var b Batch
			batches := 0
			for c := p.Cursor(0, rank, 0, 0, 64); c.Next(&b, 1<<20); batches++ {
				if b.N != 64 || b.Len != 32<<10 {
					t.Errorf("TP %d, pages of %d: %d writes of %d bytes, want 64 of 32768", dst.TP, dst.PageTokens, b.N, b.Len)
				}
			}
			if batches != 2 {
				t.Errorf("TP %d, pages of %d, rank %d: %d batches, want one for each plane", dst.TP, dst.PageTokens, rank, batches)
			}
		}
	}
}

// TestPublished: the built-in models have the sizes that are known of them.
func TestPublished(t *testing.T) {
	for _, c := range []struct {
		model        string
		ranks        int
		token, total int64 // bytes of a token, of 16,384 of them
		page         int64
		perRank      uint64 // writes
	}{
		{"qwen3-235b-tp4", 4, 192_512, 3_154_116_608, 32 << 10, 24_064},
		{"qwen3-8b", 1, 147_456, 2_415_919_104, 256 << 10, 9_216},
		{"llama3-70b-tp8", 8, 327_680, 5_368_709_120, 32 << 10, 20_480},
		{"deepseek-v3", 8, 70_272, 1_151_336_448, 72 << 10, 15_616},
		{"mini", 1, 4_096, 67_108_864, 32 << 10, 2_048},
	} {
		m := model(t, c.model, 0)
		topo := instance(t, Spec{Model: m, Pages: 256})
		if n := len(topo.Members[0].Ranks); n != c.ranks {
			t.Errorf("%s has %d ranks, want %d", c.model, n, c.ranks)
		}
		p, err := MakePlan(topo, topo, []Span{{0, 16384}}, 0, Options{})
		if err != nil {
			t.Fatal(err)
		}
		total := int64(p.Bytes())
		if m.Groups[0].KVHeads == 1 {
			total /= int64(c.ranks) // a copy for each rank
		}
		if m.BytesPerToken() != c.token || total != c.total || p.Pair().MinWrite() != c.page || p.Writes() != c.perRank*uint64(c.ranks) {
			t.Errorf("%s: %d bytes per token, %d in all, pages of %d, %d writes, want %+v", c.model, m.BytesPerToken(), total, p.Pair().MinWrite(), p.Writes(), c)
		}
	}
}

// TestStriping: replicas share a prompt evenly, and another attempt begins with another one.
func TestStriping(t *testing.T) {
	m := model(t, "deepseek-v3", 3)
	var src Topology
	for i := range 8 {
		g, _, err := Build(Spec{Model: m, First: i, Ranks: 1, Pages: 32})
		if err != nil {
			t.Fatal(err)
		}
		src.Members = append(src.Members, g)
	}
	pair, err := NewPair(&src, instance(t, Spec{Model: m, TP: 1, Pages: 32}), Options{})
	if err != nil {
		t.Fatal(err)
	}
	digests := map[uint64]bool{}
	for seq := range uint64(16) {
		p, err := pair.Plan([]Span{{0, 64 * 17}}, seq)
		if err != nil {
			t.Fatal(err)
		}
		for member := range 8 {
			want := uint64(3 * 2)
			if member == int(seq%8) { // units 0, 8 and 16
				want = 3 * 3
			}
			if p.Expected(member) != want {
				t.Errorf("attempt %d: member %d writes %d times, want %d", seq, member, p.Expected(member), want)
			}
		}
		digests[p.Digest()] = true
	}
	if len(digests) != 16 {
		t.Errorf("16 attempts have %d digests", len(digests))
	}
}

// TestSpans: prefixes and windows.
func TestSpans(t *testing.T) {
	m := Model{
		Name: "two", Layers: 2, LayerGroups: []uint8{0, 1},
		Groups: []Group{{64, 1, 64, 2, 2, 0}, {64, 1, 64, 2, 2, 100}},
	}
	pair, err := NewPair(instance(t, Spec{Model: m, PageTokens: 32}), instance(t, Spec{Model: m}), Options{MinWrite: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		first, n int
		want     string
	}{
		{0, 1000, "[{0 1000} {896 1000}]"},
		{960, 1000, "[{960 1000} {960 1000}]"},
		{70, 120, "[{64 120} {64 120}]"},
		{0, 80, "[{0 80} {0 80}]"},
		{500, 128, "[{128 128} {128 128}]"},
		{0, 0, "[{0 0} {0 0}]"},
	} {
		spans := pair.Spans(c.first, c.n)
		if fmt.Sprint(spans) != c.want {
			t.Errorf("spans of %d tokens, %d known: %v, want %s", c.n, c.first, spans, c.want)
		}
		if _, err := pair.Plan(spans, 0); err != nil {
			t.Error(err)
		}
	}
	p, err := pair.Plan([]Span{{64, 200}, {128, 128}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	first, end := p.Units(0)
	srcFirst, srcEnd := p.SrcPages(0)
	dstFirst, dstEnd := p.DstPages(0)
	if got := fmt.Sprint(first, end, srcFirst, srcEnd, dstFirst, dstEnd); got != "2 7 2 7 1 4" {
		t.Errorf("units, source pages, destination pages: %s, want 2 7 2 7 1 4", got)
	}
	if first, end := p.Units(1); first != end {
		t.Errorf("an empty span has units %d to %d", first, end)
	}
	for _, bad := range [][]Span{nil, {{0, 10}}, {{1, 10}, {0, 10}}, {{0, 10}, {-64, 10}}, {{64, 10}, {0, 10}}, {{0, MaxTokens + 1}, {0, 10}}} {
		if _, err := pair.Plan(bad, 0); !errors.Is(err, ErrInvalid) {
			t.Errorf("spans %v: %v, want ErrInvalid", bad, err)
		}
	}
}

// TestInfeasible: what cannot be, or is too slow to be wanted, says why.
func TestInfeasible(t *testing.T) {
	mini, other := model(t, "mini", 0), model(t, "mini", 0)
	other.Groups = []Group{{128, 2, 32, 2, 2, 0}}
	half, err := mini.Scale(0.5)
	if err != nil {
		t.Fatal(err)
	}
	half.Name = mini.Name
	renamed := mini
	renamed.Name = "mini@2"
	for _, c := range []struct {
		src, dst Spec
		field    string
		text     string
	}{
		{Spec{Model: mini}, Spec{Model: renamed}, "fingerprint", `fingerprint: the prefill side has "mini", the decode side "mini@2": both must have the same`},
		{Spec{Model: mini}, Spec{Model: half}, "layers", "layers: the prefill side has 8, the decode side 4"},
		{Spec{Model: mini}, Spec{Model: other}, "head dim", "head dim: the prefill side has 64, the decode side 32"},
		{Spec{Model: mini}, Spec{Model: mini, Order: NHD}, "", "needs writes of 128 bytes, want at least 4096: pages have 32768 bytes on the prefill side (strides: head 16384, token 128) and 32768 on the decode side (head 128, token 256)"},
		{Spec{Model: mini, TP: 2, Order: NHD}, Spec{Model: mini, Order: NHD}, "", "writes of 128 bytes, want at least 4096: pages have 16384 bytes on the prefill side"},
		{Spec{Model: mini, TP: 2, Ranks: 1}, Spec{Model: mini}, "", "layer 0: no rank of the prefill side holds head 1, which rank 0 of the decode side wants"},
		{Spec{Model: mini, PP: 2, First: 1}, Spec{Model: mini}, "", "layer 0: no rank of the prefill side holds head 0"},
		{Spec{Model: mini, PageTokens: 1021}, Spec{Model: mini, PageTokens: 1019}, "", "pages of 1021 tokens on the prefill side and of 1019 on the decode side repeat after 2039 units"},
	} {
		_, err := NewPair(instance(t, c.src), instance(t, c.dst), Options{})
		if err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("error %v, want %q", err, c.text)
		}
		var mismatch *MismatchError
		if errors.As(err, &mismatch) != (c.field != "") || mismatch != nil && mismatch.Field != c.field {
			t.Errorf("error %v names field %+v, want %q", err, mismatch, c.field)
		}
		if mismatch == nil && !errors.Is(err, ErrInfeasible) {
			t.Errorf("error %v is not ErrInfeasible", err)
		}
	}
	if _, err := NewPair(instance(t, Spec{Model: mini}), instance(t, Spec{Model: mini, Order: NHD}), Options{MinWrite: 128}); err != nil {
		t.Errorf("writes of 128 bytes are allowed: %v", err)
	}
}

// TestCheck: each rule of a geometry is needed.
func TestCheck(t *testing.T) {
	for _, c := range []struct {
		text string
		harm func(*Topology)
	}{
		{"number of members is 0", func(t *Topology) { t.Members = nil }},
		{"layers: member 1 has 9, member 0 8", func(t *Topology) { t.Members[1].Layers = 9 }},
		{"page tokens: member 1 has 64, member 0 128", func(t *Topology) { t.Members[1].Groups[0].PageTokens = 64 }},
		{"rank index 0 after 0", func(t *Topology) { t.Members[1].Ranks[0].Index = 0 }},
		{"number of ranks is 0", func(t *Topology) { t.Members[1].Ranks = nil }},
		{"length of the fingerprint is 257", func(t *Topology) { t.Members[0].Fingerprint = strings.Repeat("x", 257) }},
		{"number of groups is 0", func(t *Topology) { t.Members[0].Groups = nil }},
		{"element size is 17", func(t *Topology) { t.Members[0].Groups[0].ElemSize = 17 }},
		{"there is one group only", func(t *Topology) { t.Members[0].LayerGroups = make([]uint8, 8) }},
		{"groups of 0 layers are given", func(t *Topology) { t.Members[0].Groups = append(t.Members[0].Groups, t.Members[0].Groups[0]) }},
		{"group 1 has no layer", func(t *Topology) {
			t.Members[0].Groups, t.Members[0].LayerGroups = append(t.Members[0].Groups, t.Members[0].Groups[0]), make([]uint8, 8)
		}},
		{"layers is 9, want 1 .. 8", func(t *Topology) { t.Members[0].Ranks[0].Layers = 9 }},
		{"layers with views is 7", func(t *Topology) { t.Members[0].Ranks[0].Views = t.Members[0].Ranks[0].Views[1:] }},
		{"heads end at 3, there are 2", func(t *Topology) { t.Members[0].Ranks[0].Heads = 3 }},
		{"views of 1 planes, there are 2", func(t *Topology) { t.Members[0].Ranks[0].Views[3] = t.Members[0].Ranks[0].Views[3][:1] }},
		{"a page of one plane has 134217728 bytes", func(t *Topology) { t.Members[0].Groups[0].PageTokens = 1 << 20 }},
		{"layer 2 plane 1: invalid layout: base is -1", func(t *Topology) { t.Members[0].Ranks[0].Views[2][1].Base = -1 }},
		{"pages is 0", func(t *Topology) { t.Members[0].Ranks[0].Views[2][1].Pages = 0 }},
		{"region is 4096", func(t *Topology) { t.Members[0].Ranks[0].Views[2][1].Region = MaxRegions }},
		{"page stride is 16383 bytes, what lies between has 16384", func(t *Topology) { t.Members[0].Ranks[0].Views[2][1].Page-- }},
		{"token stride is 127 bytes, what lies between has 128", func(t *Topology) { t.Members[0].Ranks[0].Views[2][1].Token-- }},
		{"token stride is 0", func(t *Topology) { t.Members[0].Ranks[0].Views[2][1].Token = 0 }},
	} {
		m := model(t, "mini", 0)
		var topo Topology
		for i := range 2 {
			g, _, err := Build(Spec{Model: m, TP: 2, First: i, Ranks: 1, Pages: 4})
			if err != nil {
				t.Fatal(err)
			}
			topo.Members = append(topo.Members, g)
		}
		if err := topo.Check(); err != nil {
			t.Fatal(err)
		}
		c.harm(&topo)
		if err := topo.Check(); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("error %v, want %q", err, c.text)
		}
	}
}

// TestTailWriter: the lowest rank of the last stage.
func TestTailWriter(t *testing.T) {
	m := model(t, "mini", 0)
	var topo Topology
	for i := range 4 {
		g, _, err := Build(Spec{Model: m, TP: 2, PP: 2, First: i, Ranks: 1})
		if err != nil {
			t.Fatal(err)
		}
		topo.Members = append(topo.Members, g)
	}
	if got := topo.TailWriter(); got != 2 {
		t.Errorf("member %d sends the tail, want 2", got)
	}
	topo.Members = topo.Members[:2]
	if got := topo.TailWriter(); got != -1 {
		t.Errorf("member %d sends the tail, want none", got)
	}
}
