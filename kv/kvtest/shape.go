package kvtest

import "github.com/hawser-project/hawser/kv/layout"

// Everything is small, so that a run is short: an element is a word that tells what it is of.
const (
	wordBytes = 4
	maxTokens = 24 // of a prompt
)

// shape is how the caches of the two sides lie.
type shape struct {
	name     string
	src, dst *layout.Topology
}

// rank is a rank as a shape says it.
type rank struct{ layerFirst, layers, headFirst, heads int }

// cache is what both sides have in common, and how long the pages of one side are.
type cache struct {
	layers int
	heads  int
	planes int
	groups []uint8 // of the layers; nil: one group
	window int     // of the second group
	page   int     // tokens
	pages  int     // of a group
	nhd    bool
}

// topology lays the ranks of some members out, each member's in one region.
func (c cache) topology(members ...[]rank) *layout.Topology {
	groups := []layout.Group{{PageTokens: c.page, KVHeads: c.heads, HeadDim: 1, ElemSize: wordBytes, Planes: c.planes}}
	if c.groups != nil {
		second := groups[0]
		second.Window = c.window
		groups = append(groups, second)
	}
	t := &layout.Topology{}
	index := 0
	for _, ranks := range members {
		g := layout.Geometry{Fingerprint: "kvtest", Layers: c.layers, Groups: groups, LayerGroups: c.groups}
		base := int64(0)
		for _, r := range ranks {
			k := layout.Rank{Index: index, LayerFirst: r.layerFirst, Layers: r.layers, HeadFirst: r.headFirst, Heads: r.heads}
			index++
			for range r.layers {
				views := make([]layout.View, c.planes)
				for p := range views {
					views[p] = layout.View{Base: base, Pages: c.pages, Strides: c.strides(r.heads)}
					base += int64(c.pages) * views[p].Page
				}
				k.Views = append(k.Views, views)
			}
			g.Ranks = append(g.Ranks, k)
		}
		t.Members = append(t.Members, g)
	}
	return t
}

func (c cache) strides(heads int) layout.Strides {
	s := layout.Strides{Page: int64(c.page * heads * wordBytes), Head: int64(c.page * wordBytes), Token: wordBytes}
	if c.nhd {
		s.Head, s.Token = wordBytes, int64(heads*wordBytes)
	}
	return s
}

// tp is one member with the heads split over so many ranks, or copied when there are fewer.
func (c cache) tp(n int) []rank {
	all := make([]rank, n)
	for i := range all {
		all[i] = rank{0, c.layers, 0, c.heads}
		if c.heads >= n {
			all[i] = rank{0, c.layers, i * c.heads / n, c.heads / n}
		}
	}
	return all
}

// spread puts each rank into a member of its own.
func spread(ranks []rank) [][]rank {
	var members [][]rank
	for _, r := range ranks {
		members = append(members, []rank{r})
	}
	return members
}

// shapes are those that scenarios choose from.
var shapes = makeShapes()

func makeShapes() []*shape {
	gqa := cache{layers: 2, heads: 2, planes: 2, page: 4, pages: 16}
	mla := cache{layers: 3, heads: 1, planes: 1, page: 4, pages: 16}
	two := cache{layers: 3, heads: 1, planes: 1, groups: []uint8{0, 1, 0}, window: 6, page: 4, pages: 16}
	with := func(c cache, page, pages int) cache {
		c.page, c.pages = page, pages
		return c
	}
	nhd := gqa
	nhd.nhd = true
	gqaSrc := with(gqa, 4, 20)
	mlaSrc := with(mla, 4, 20)
	stages := []rank{{0, 1, 0, 2}, {1, 1, 0, 2}}
	return []*shape{
		{"one", gqaSrc.topology(gqaSrc.tp(1)), gqa.topology(gqa.tp(1))},
		{"tight", with(gqa, 4, 7).topology(gqa.tp(1)), with(gqa, 4, 7).topology(gqa.tp(1))},
		{"tp2-1", gqaSrc.topology(gqaSrc.tp(2)), gqa.topology(gqa.tp(1))},
		{"tp1-2", gqaSrc.topology(gqaSrc.tp(1)), gqa.topology(gqa.tp(2))},
		{"members2-1", gqaSrc.topology(spread(gqaSrc.tp(2))...), gqa.topology(gqa.tp(1))},
		{"members1-2", gqaSrc.topology(gqaSrc.tp(1)), gqa.topology(spread(gqa.tp(2))...)},
		{"members2-2", gqaSrc.topology(spread(gqaSrc.tp(2))...), gqa.topology(spread(gqa.tp(2))...)},
		{"stages2-1", gqaSrc.topology(spread(stages)...), gqa.topology(gqa.tp(1))},
		{"mla2-1", mlaSrc.topology(mlaSrc.tp(2)), mla.topology(mla.tp(1))},
		{"mla-members2-1", mlaSrc.topology(spread(mlaSrc.tp(2))...), mla.topology(mla.tp(1))},
		{"page2-4", with(gqa, 2, 40).topology(gqa.tp(1)), gqa.topology(gqa.tp(1))},
		{"page8-4", with(mla, 8, 10).topology(mla.tp(1)), mla.topology(mla.tp(1))},
		{"page6-4", with(mla, 6, 14).topology(mla.tp(1)), mla.topology(mla.tp(1))},
		{"window", with(two, 4, 20).topology(two.tp(1)), two.topology(two.tp(1))},
		{"nhd2-1", nhd.topology(nhd.tp(2)), nhd.topology(nhd.tp(1))},
	}
}

func shapeOf(name string) *shape {
	for _, s := range shapes {
		if s.name == name {
			return s
		}
	}
	return nil
}
