package layout

import (
	"slices"

	"pgregory.net/rapid"
)

// side is an instance with memory.
type side struct {
	Topology
	mem   [][][]byte // [member][region]
	pages []Pages    // by group
}

// world is two instances, and what was written in the second one.
type world struct {
	src, dst side
	count    [][][]uint8  // as dst.mem: how often each byte was written
	writer   [][][]uint16 // as dst.mem: index of the rank that wrote it last
	writes   []uint64     // by source member
	bytes    uint64
	smallest int64
}

// content is the byte that belongs at a place, whichever side.
func content(layer, plane, head, token int, i int64) byte {
	x := uint64(layer)<<48 ^ uint64(plane)<<44 ^ uint64(head)<<32 ^ uint64(token)<<8 ^ uint64(i)
	x *= 0x9e3779b97f4a7c15
	return byte(x>>56) ^ byte(x>>31)
}

func newSide(t Topology) side {
	s := side{Topology: t}
	for i := range t.Members {
		var regions [][]byte
		for _, n := range t.Members[i].RegionBytes() {
			regions = append(regions, make([]byte, n))
		}
		s.mem = append(s.mem, regions)
	}
	return s
}

// newWorld makes both sides for a plan. physical returns that many different pages below a limit.
func newWorld(src, dst Topology, p *Plan, physical func(n, below int) []uint32) *world {
	w := &world{src: newSide(src), dst: newSide(dst), writes: make([]uint64, len(src.Members))}
	for i := range src.Members[0].Groups {
		for _, s := range []struct {
			*side
			pages func(int) (int, int)
		}{{&w.src, p.SrcPages}, {&w.dst, p.DstPages}} {
			first, end := s.pages(i)
			s.side.pages = append(s.side.pages, Pages{first, physical(end-first, pool(&s.Topology, i))})
		}
	}
	for _, regions := range w.dst.mem {
		var count [][]uint8
		var writer [][]uint16
		for _, r := range regions {
			count = append(count, make([]uint8, len(r)))
			writer = append(writer, make([]uint16, len(r)))
		}
		w.count, w.writer = append(w.count, count), append(w.writer, writer)
	}
	w.src.each(func(at place) {
		for i := range at.bytes {
			at.bytes[i] = content(at.layer, at.plane, at.head, at.token, int64(i))
		}
	})
	return w
}

// pool is how many pages all views of a group have.
func pool(t *Topology, group int) int {
	least := 0
	for i := range t.Members {
		if n := t.Members[i].PoolPages(group); n > 0 && (least == 0 || n < least) {
			least = n
		}
	}
	return least
}

// place is one head of one token somewhere.
type place struct {
	member                    int
	rank                      *Rank
	layer, plane, head, token int
	region                    int
	offset                    int64
	bytes                     []byte
}

// each visits all heads of all tokens that lie in pages.
func (s *side) each(visit func(place)) {
	for m := range s.Members {
		g := &s.Members[m]
		for i := range g.Ranks {
			r := &g.Ranks[i]
			for l, planes := range r.Views {
				group := g.GroupOf(r.LayerFirst + l)
				for p, v := range planes {
					s.eachToken(g.Groups[group], group, r, &v, func(at place) {
						at.member, at.rank, at.layer, at.plane = m, r, r.LayerFirst+l, p
						at.bytes = s.mem[m][v.Region][at.offset:][:g.Groups[group].HeadBytes()]
						visit(at)
					})
				}
			}
		}
	}
}

func (s *side) eachToken(g Group, group int, r *Rank, v *View, visit func(place)) {
	for i, physical := range s.pages[group].Index {
		for h := range r.Heads {
			for t := range g.PageTokens {
				visit(place{
					head: r.HeadFirst + h, token: (s.pages[group].First+i)*g.PageTokens + t, region: v.Region,
					offset: v.Base + int64(physical)*v.Page + int64(h)*v.Head + int64(t)*v.Token,
				})
			}
		}
	}
}

// run does the writes of one cursor as the engine would do them.
func (w *world) run(t rapid.TB, p *Plan, c Cursor, most int) {
	var b Batch
	src, dst := make([]uint32, most), make([]uint32, most)
	for c.Next(&b, most) {
		if b.N < 1 || b.N > most {
			t.Fatalf("batch of %d writes, want 1 .. %d", b.N, most)
		}
		b.Fill(w.src.pages[b.Group()], w.dst.pages[b.Group()], src, dst)
		for i := range b.N {
			tm := b.Template
			from, to := b.SrcOff+int64(src[i])*tm.SrcStride, b.DstOff+int64(dst[i])*tm.DstStride
			w.same(t, b.Write(i), tm, from, to, b.Len)
			copy(w.dst.mem[tm.DstMember][tm.DstRegion][to:to+b.Len], w.src.mem[tm.SrcMember][tm.SrcRegion][from:from+b.Len])
			index := w.src.Members[tm.SrcMember].Ranks[b.Write(i).SrcRank].Index
			for x := to; x < to+b.Len; x++ {
				w.count[tm.DstMember][tm.DstRegion][x]++
				w.writer[tm.DstMember][tm.DstRegion][x] = uint16(index)
			}
			w.writes[tm.SrcMember]++
			w.bytes += uint64(b.Len)
			if w.smallest == 0 || b.Len < w.smallest {
				w.smallest = b.Len
			}
		}
	}
}

// same checks that the two descriptions of a write agree.
func (w *world) same(t rapid.TB, x Write, tm *Template, from, to, length int64) {
	group := w.src.Members[0].GroupOf(x.Layer)
	src, dst := w.src.pages[group], w.dst.pages[group]
	f := x.Src.Base + int64(src.Index[x.SrcPage-src.First])*x.Src.Page + x.SrcOff
	d := x.Dst.Base + int64(dst.Index[x.DstPage-dst.First])*x.Dst.Page + x.DstOff
	if f != from || d != to || x.Len != length || x.Src.Region != tm.SrcRegion || x.Dst.Region != tm.DstRegion || x.SrcMember != tm.SrcMember || x.DstMember != tm.DstMember {
		t.Fatalf("write %+v is %d to %d, the batch has %d to %d, %d bytes", x, f, d, from, to, length)
	}
}

// runAll does all writes of a plan in steps of progress that chunk decides: how many more tokens of a layer are computed.
func (w *world) runAll(t rapid.TB, p *Plan, chunk func() int, most int) {
	for m := range w.src.Members {
		g := &w.src.Members[m]
		for r := range g.Ranks {
			for layer := range g.Layers {
				before := w.writes[m]
				group := g.GroupOf(layer)
				next, end := p.Units(group)
				for computed := 0; next < end; {
					computed += chunk()
					ready := p.Ready(group, computed)
					if ready < next || ready > end || computed >= p.Span(group).N && ready != end {
						t.Fatalf("%d tokens computed: units up to %d are ready, %d were, there are %d", computed, ready, next, end)
					}
					if ready > next && ready < end && p.UnitStart(group, ready) > computed {
						t.Fatalf("unit %d is ready, it ends at token %d, %d are computed", ready-1, p.UnitStart(group, ready), computed)
					}
					w.run(t, p, p.Cursor(m, r, layer, next, ready), most)
					next = ready
				}
				if n := w.writes[m] - before; n != p.LayerWrites(m, r, layer) {
					t.Fatalf("member %d rank %d wrote layer %d with %d writes, the plan says %d", m, r, layer, n, p.LayerWrites(m, r, layer))
				}
			}
		}
	}
}

// check compares all of the destination's memory with what the span says, token by token.
func (w *world) check(t rapid.TB, p *Plan, seq uint64) {
	w.dst.each(func(at place) {
		g := &w.dst.Members[at.member]
		group := g.GroupOf(at.layer)
		sp, dp := w.src.Members[0].Groups[group].PageTokens, g.Groups[group].PageTokens
		span := p.Span(group)
		end := span.N
		for end%sp != 0 && end%dp != 0 {
			end++
		}
		moved := at.token >= span.First && at.token < end && span.First < span.N
		count := w.count[at.member][at.region][at.offset:][:len(at.bytes)]
		for i, b := range at.bytes {
			switch {
			case moved && (count[i] != 1 || b != content(at.layer, at.plane, at.head, at.token, int64(i))):
				t.Fatalf("byte %d of layer %d plane %d head %d token %d: written %d times, has %#x", i, at.layer, at.plane, at.head, at.token, count[i], b)
			case !moved && count[i] != 0:
				t.Fatalf("byte %d of layer %d plane %d head %d token %d is not in the span, written %d times", i, at.layer, at.plane, at.head, at.token, count[i])
			}
			count[i] = 0 // what remains lies nowhere
		}
		if moved {
			w.checkWriter(t, at, sp, dp, seq)
		}
	})
	for m, regions := range w.count {
		for r, count := range regions {
			if i := slices.IndexFunc(count, func(n uint8) bool { return n != 0 }); i >= 0 {
				t.Fatalf("byte %d of member %d region %d was written and belongs to no token", i, m, r)
			}
		}
	}
	var bytes uint64
	for m, n := range w.writes {
		if p.Expected(m) != n {
			t.Fatalf("member %d wrote %d times, the plan expects %d", m, n, p.Expected(m))
		}
	}
	if bytes = p.Bytes(); bytes != w.bytes {
		t.Fatalf("%d bytes were written, the plan says %d", w.bytes, bytes)
	}
	if w.smallest > 0 && w.smallest < p.Pair().MinWrite() {
		t.Fatalf("the smallest write has %d bytes, the pair says %d", w.smallest, p.Pair().MinWrite())
	}
}

// checkWriter checks that the right one of several replicas wrote.
func (w *world) checkWriter(t rapid.TB, at place, sp, dp int, seq uint64) {
	var holders []int
	for m := range w.src.Members {
		for i := range w.src.Members[m].Ranks {
			r := &w.src.Members[m].Ranks[i]
			if r.HasLayer(at.layer) && r.HeadFirst <= at.head && at.head < r.HeadFirst+r.Heads {
				holders = append(holders, r.Index)
			}
		}
	}
	unit := uint64(at.token/sp + at.token/dp - at.token/lcm(sp, dp)) // boundaries of either side's pages up to here
	r := uint64(len(holders))
	want := holders[(unit%r+uint64(at.rank.Index)%r+seq%r)%r]
	writers := w.writer[at.member][at.region][at.offset:][:len(at.bytes)]
	if i := slices.IndexFunc(writers, func(wrote uint16) bool { return int(wrote) != want }); i >= 0 {
		t.Fatalf("layer %d head %d token %d of rank %d: unit %d was written by rank %d, want %d of %v", at.layer, at.head, at.token, at.rank.Index, unit, writers[i], want, holders)
	}
}

// The generators.

type shape struct {
	fingerprint string
	layers      int
	groups      []Group
	layerGroups []uint8
}

func drawShape(t *rapid.T) shape {
	s := shape{fingerprint: rapid.StringN(0, 8, 32).Draw(t, "fingerprint"), layers: rapid.IntRange(1, 4).Draw(t, "layers")}
	n := rapid.IntRange(1, min(2, s.layers)).Draw(t, "groups")
	heads := rapid.SampledFrom([]int{1, 2, 3, 4, 6}).Draw(t, "kv heads")
	for range n {
		s.groups = append(s.groups, Group{
			KVHeads: heads, HeadDim: rapid.IntRange(1, 3).Draw(t, "dim"), ElemSize: rapid.IntRange(1, 2).Draw(t, "elem"),
			Planes: rapid.IntRange(1, 2).Draw(t, "planes"), Window: rapid.SampledFrom([]int{0, 0, 5, 17}).Draw(t, "window"),
		})
	}
	if n == 1 {
		return s
	}
	s.layerGroups = []uint8{0, 1}
	for len(s.layerGroups) < s.layers {
		s.layerGroups = append(s.layerGroups, uint8(rapid.IntRange(0, 1).Draw(t, "group")))
	}
	return s
}

// drawSide spreads a shape over members and memory. With whole, every head of every layer is somewhere.
func drawSide(t *rapid.T, s shape, pageTokens []int, whole bool) Topology {
	ranks := drawRanks(t, s, whole)
	var topo Topology
	for len(ranks) > 0 {
		n := rapid.IntRange(1, len(ranks)).Draw(t, "ranks of member")
		g := Geometry{Fingerprint: s.fingerprint, Layers: s.layers, Groups: slices.Clone(s.groups), LayerGroups: s.layerGroups, Ranks: ranks[:n:n]}
		for i := range g.Groups {
			g.Groups[i].PageTokens = pageTokens[i]
		}
		drawViews(t, &g)
		topo.Members = append(topo.Members, g)
		ranks = ranks[n:]
	}
	return topo
}

func drawRanks(t *rapid.T, s shape, whole bool) []Rank {
	var ranks []Rank
	index := rapid.IntRange(0, 3).Draw(t, "first index")
	heads := s.groups[0].KVHeads
	for first := 0; first < s.layers; {
		layers := rapid.IntRange(1, s.layers-first).Draw(t, "layers of stage")
		for h := 0; h < heads; {
			n := rapid.IntRange(1, heads-h).Draw(t, "new heads")
			back := rapid.IntRange(0, h).Draw(t, "heads held before")
			for range rapid.IntRange(1, 3).Draw(t, "replicas") {
				if whole || len(ranks) == 0 || rapid.Bool().Draw(t, "present") {
					ranks = append(ranks, Rank{Index: index, LayerFirst: first, Layers: layers, HeadFirst: h - back, Heads: n + back})
				}
				index += rapid.IntRange(1, 2).Draw(t, "index step")
			}
			h += n
		}
		first += layers
	}
	return ranks
}

func drawViews(t *rapid.T, g *Geometry) {
	perm := rapid.Permutation([]int{0, 1, 2})
	region, base := 0, int64(0)
	for i := range g.Ranks {
		r := &g.Ranks[i]
		for l := range r.Layers {
			group := g.Groups[g.GroupOf(r.LayerFirst+l)]
			var planes []View
			order := perm.Draw(t, "order of token, head, page")
			together := rapid.Bool().Draw(t, "planes in one page")
			pages := rapid.IntRange(0, 2).Draw(t, "spare pages") + (maxSpan+group.PageTokens-1)/group.PageTokens + 8
			pad := rapid.SliceOfN(rapid.SampledFrom([]int64{0, 0, 0, 1, 5}), 3, 3).Draw(t, "padding")
			for p := range group.Planes {
				v := View{Region: region, Base: base, Pages: pages}
				v.Strides = strides(group, r.Heads, pages, order, pad)
				if together && order[2] == 2 {
					size := v.Page
					v.Page *= int64(group.Planes)
					v.Base += int64(p) * size
				} else {
					base = v.End(group, r.Heads) + rapid.Int64Range(0, 3).Draw(t, "gap")
				}
				planes = append(planes, v)
			}
			base = max(base, planes[len(planes)-1].End(group, r.Heads))
			r.Views = append(r.Views, planes)
			if rapid.Bool().Draw(t, "new region") {
				region, base = region+1, rapid.Int64Range(0, 9).Draw(t, "base")
			}
		}
	}
}

// strides nest token (0), head (1) and page (2) in an order, from the inside to the outside.
func strides(g Group, heads, pages int, order []int, pad []int64) (s Strides) {
	size := g.HeadBytes()
	for i, axis := range order {
		size += pad[i]
		switch axis {
		case 0:
			s.Token, size = size, size*int64(g.PageTokens)
		case 1:
			s.Head, size = size, size*int64(heads)
		default:
			s.Page, size = size, size*int64(pages)
		}
	}
	return s
}

// maxSpan is the longest prompt of the generators, in tokens.
const maxSpan = 60

func drawPageTokens(t *rapid.T, groups int, label string) []int {
	return rapid.SliceOfN(rapid.SampledFrom([]int{1, 2, 3, 4, 4, 6, 8, 8, 12, 16}), groups, groups).Draw(t, label)
}
