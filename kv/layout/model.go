package layout

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Model is the KV cache of a model, whatever the ranks and the memory it is spread over.
type Model struct {
	Name        string // begins the fingerprint
	Layers      int
	Groups      []Group
	LayerGroups []uint8 // as in Geometry
	TP          int     // tensor-parallel degree with which it is usually run
	PP          int     // pipeline stages, as TP
}

// Builtin are the models that have a name, all of 2-byte elements. Page sizes and degrees are those of published deployments.
func Builtin() []Model {
	gqa := func(page, heads, dim int) []Group {
		return []Group{{PageTokens: page, KVHeads: heads, HeadDim: dim, ElemSize: 2, Planes: 2}}
	}
	return []Model{
		{Name: "mini", Layers: 8, Groups: gqa(128, 2, 64), TP: 1, PP: 1},
		{Name: "qwen3-8b", Layers: 36, Groups: gqa(128, 8, 128), TP: 1, PP: 1},
		{Name: "qwen3-235b-tp4", Layers: 94, Groups: gqa(128, 4, 128), TP: 4, PP: 1},
		{Name: "llama3-70b-tp8", Layers: 80, Groups: gqa(128, 8, 128), TP: 8, PP: 1},
		// The latent of multi-head latent attention and its rotary part, one plane; every rank has a copy.
		{Name: "deepseek-v3", Layers: 61, Groups: []Group{{PageTokens: 64, KVHeads: 1, HeadDim: 512 + 64, ElemSize: 2, Planes: 1}}, TP: 8, PP: 1},
	}
}

// BuiltinModel returns a model by its name. The error of an unknown one lists them.
func BuiltinModel(name string) (Model, error) {
	var names []string
	for _, m := range Builtin() {
		if m.Name == name {
			return m, nil
		}
		names = append(names, m.Name)
	}
	return Model{}, fmt.Errorf("unknown model %q: want one of %s", name, strings.Join(names, ", "))
}

// Scale keeps the share f of the layers, the first ones, and at least one of each group. The shape of a page stays.
func (m Model) Scale(f float64) (Model, error) {
	if !(f > 0 && f <= 1) { // written so that NaN is refused
		return Model{}, fmt.Errorf("scale %v of %s: want more than 0 and at most 1", f, m.Name)
	}
	n := max(1, int(math.Round(float64(m.Layers)*f)))
	for g := range m.Groups {
		if m.LayerGroups != nil {
			n = max(n, slices.Index(m.LayerGroups, uint8(g))+1)
		}
	}
	if n == m.Layers {
		return m, nil
	}
	m.Name = fmt.Sprintf("%s/%d-of-%d-layers", m.Name, n, m.Layers)
	m.Layers = n
	if m.LayerGroups != nil {
		m.LayerGroups = slices.Clone(m.LayerGroups[:n])
	}
	return m, nil
}

// BytesPerToken is what a token takes over all layers and heads, without copies.
func (m Model) BytesPerToken() (n int64) {
	for l := range m.Layers {
		g := m.Groups[0]
		if m.LayerGroups != nil {
			g = m.Groups[m.LayerGroups[l]]
		}
		n += int64(g.KVHeads) * g.HeadBytes() * int64(g.Planes)
	}
	return n
}

// Order is how heads and tokens lie in a page.
type Order uint8

// The orders, named by dimensions from the slowest to the fastest: N tokens, H heads, D elements.
const (
	HND Order = iota
	NHD
)

func (o Order) String() string {
	if o == NHD {
		return "NHD"
	}
	return "HND"
}

// UnmarshalText takes HND and NHD, in either case.
func (o *Order) UnmarshalText(b []byte) error {
	switch strings.ToUpper(string(b)) {
	case "HND":
		*o = HND
	case "NHD":
		*o = NHD
	default:
		return fmt.Errorf("order %q: want HND or NHD", b)
	}
	return nil
}

// Spec says how an instance holds a model.
type Spec struct {
	Model      Model
	TP, PP     int // 0: those of the model
	PageTokens int // of all groups; 0: those of the model
	Pages      int // of every view; 0: 1
	Order      Order
	// LayerRegions gives each layer of each rank a region of its own, as engines do that allocate a tensor per layer. Otherwise a
	// rank has one.
	LayerRegions bool
	// Ranks that the member holds, First of them before; 0: all.
	First, Ranks int
}

// Build makes the geometry of one member, and the sizes of its regions. Heads are spread over the TP ranks of a stage, or
// copied when there are more ranks than heads; layers over the PP stages, in order.
func Build(s Spec) (Geometry, []int64, error) {
	g := Geometry{Fingerprint: s.Model.Name, Layers: s.Model.Layers, Groups: slices.Clone(s.Model.Groups), LayerGroups: s.Model.LayerGroups}
	tp, pp := or(s.TP, s.Model.TP, 1), or(s.PP, s.Model.PP, 1)
	count := or(s.Ranks, tp*pp-s.First)
	err := inRange(
		number{"tensor-parallel degree", tp, 1, maxRanks}, number{"pipeline stages", pp, 1, max(1, g.Layers)}, number{"ranks", tp * pp, 1, maxRanks},
		number{"first rank of the member", s.First, 0, tp*pp - 1}, number{"ranks of the member", count, 1, tp*pp - s.First})
	if err != nil {
		return g, nil, err
	}
	for i := range g.Groups {
		if g.Groups[i].PageTokens = or(s.PageTokens, g.Groups[i].PageTokens); g.Groups[i].KVHeads%tp != 0 && (g.Groups[i].KVHeads < 1 || tp%g.Groups[i].KVHeads != 0) {
			return g, nil, fmt.Errorf("%w: %d kv heads over %d ranks: want one to divide the other", ErrInvalid, g.Groups[i].KVHeads, tp)
		}
		if g.Groups[i].KVHeads != g.Groups[0].KVHeads {
			return g, nil, fmt.Errorf("%w: group %d has %d kv heads, group 0 has %d: a rank holds the same heads of all layers", ErrInvalid, i, g.Groups[i].KVHeads, g.Groups[0].KVHeads)
		}
	}
	if err := checkLayerGroups(&g); err != nil {
		return g, nil, err
	}
	b := placer{Geometry: &g, spec: &s}
	for i := s.First; i < s.First+count; i++ {
		stage, heads := i/tp, max(1, g.Groups[0].KVHeads/tp)
		r := Rank{Index: i, LayerFirst: stage * g.Layers / pp, HeadFirst: i % tp * g.Groups[0].KVHeads / tp, Heads: heads}
		r.Layers = (stage+1)*g.Layers/pp - r.LayerFirst
		b.place(&r)
		g.Ranks = append(g.Ranks, r)
	}
	return g, b.sizes, g.Check()
}

// placer gives views their places.
type placer struct {
	*Geometry
	spec  *Spec
	sizes []int64 // of the regions so far
}

func (b *placer) place(r *Rank) {
	for l := range r.Layers {
		if l == 0 || b.spec.LayerRegions {
			b.sizes = append(b.sizes, 0)
		}
		group := b.Groups[b.GroupOf(r.LayerFirst+l)]
		region := len(b.sizes) - 1
		var planes []View
		for range group.Planes {
			v := View{Region: region, Base: b.sizes[region], Pages: or(b.spec.Pages, 1), Strides: b.spec.Order.strides(group, r.Heads)}
			b.sizes[region] += int64(v.Pages) * v.Page
			planes = append(planes, v)
		}
		r.Views = append(r.Views, planes)
	}
}

// strides are those of pages without padding.
func (o Order) strides(g Group, heads int) Strides {
	s := Strides{Page: g.PageBytes(heads), Head: int64(g.PageTokens) * g.HeadBytes(), Token: g.HeadBytes()}
	if o == NHD {
		s.Head, s.Token = g.HeadBytes(), int64(heads)*g.HeadBytes()
	}
	return s
}

// or is the first that is not 0.
func or(v ...int) int {
	for _, x := range v {
		if x != 0 {
			return x
		}
	}
	return 0
}
