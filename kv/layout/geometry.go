package layout

// Strides are distances in bytes within a view. The elements of one head of one token are contiguous.
type Strides struct {
	Page, Head, Token int64
}

// View is where one plane of one layer of one rank lies: token t of page p of the rank's head h begins at
// Base + p*Page + h*Head + t*Token of a region of the member's memory.
type View struct {
	Region int   // index in the member's list of regions
	Base   int64 // bytes from the region's beginning
	Pages  int
	Strides
}

// End is how many bytes a region must have for the view of so many heads.
func (v View) End(g Group, heads int) int64 {
	return v.Base + int64(v.Pages-1)*v.Page + int64(heads-1)*v.Head + int64(g.PageTokens-1)*v.Token + g.HeadBytes()
}

// Group is the shape of the cache in some layers. Most models have one group; those that mix layers of full and of sliding-window
// attention have two, each with its own lists of pages.
type Group struct {
	PageTokens int // tokens of one page; the only field in which two sides may differ
	KVHeads    int // of the model, over all ranks; a compressed latent (MLA) is one head
	HeadDim    int // elements
	ElemSize   int // bytes
	Planes     int // K and V are 2, a compressed latent is 1
	Window     int // only so many tokens before the end are ever read; 0: all
}

// HeadBytes is the size of one head of one token in one plane.
func (g Group) HeadBytes() int64 { return int64(g.HeadDim) * int64(g.ElemSize) }

// PageBytes is what one page takes in one plane of one layer of a rank with so many heads, without padding.
func (g Group) PageBytes(heads int) int64 { return int64(g.PageTokens) * int64(heads) * g.HeadBytes() }

// Rank is a rank of the model: layers [LayerFirst, LayerFirst+Layers) and heads [HeadFirst, HeadFirst+Heads) of them. Heads that
// several ranks hold are replicas.
type Rank struct {
	Index      int // number of the rank in its instance; indices ascend over members and ranks
	LayerFirst int
	Layers     int
	HeadFirst  int
	Heads      int
	Views      [][]View // [layer within the rank][plane]; two views must not overlap, which nobody checks
}

// HasLayer reports whether the rank holds a layer of the model.
func (r *Rank) HasLayer(layer int) bool {
	return layer >= r.LayerFirst && layer < r.LayerFirst+r.Layers
}

// Geometry is the KV cache of one member of an instance. It is plain data.
type Geometry struct {
	// Fingerprint is anything that changes the content: model, revision, element type. It is only compared.
	Fingerprint string
	Layers      int // of the model
	Groups      []Group
	LayerGroups []uint8 // group of each layer; nil with one group
	Ranks       []Rank  // that this member holds
}

// GroupOf is the group of a layer of the model. A layer belongs to one group.
func (g *Geometry) GroupOf(layer int) int {
	if g.LayerGroups == nil {
		return 0
	}
	return int(g.LayerGroups[layer])
}

// RegionBytes are the smallest sizes of the member's regions in which all views end.
func (g *Geometry) RegionBytes() []int64 {
	var sizes []int64
	for i := range g.Ranks {
		r := &g.Ranks[i]
		for l, planes := range r.Views {
			for _, v := range planes {
				for v.Region >= len(sizes) {
					sizes = append(sizes, 0)
				}
				sizes[v.Region] = max(sizes[v.Region], v.End(g.Groups[g.GroupOf(r.LayerFirst+l)], r.Heads))
			}
		}
	}
	return sizes
}

// PoolPages is how many pages every view of a group has: physical indices must be below it. It is 0 when no rank has a layer of
// the group.
func (g *Geometry) PoolPages(group int) int {
	pages := 0
	for i := range g.Ranks {
		r := &g.Ranks[i]
		for l, planes := range r.Views {
			if g.GroupOf(r.LayerFirst+l) != group {
				continue
			}
			for _, v := range planes {
				if pages == 0 || v.Pages < pages {
					pages = v.Pages
				}
			}
		}
	}
	return pages
}

// Topology is an instance: its members in the order of their ranks.
type Topology struct {
	Members []Geometry
}

// TailWriter is the member that sends the tail of a prompt: that of the lowest rank with the last layer. It is -1 when there is none.
func (t *Topology) TailWriter() int {
	for m := range t.Members {
		g := &t.Members[m]
		for i := range g.Ranks {
			if g.Ranks[i].HasLayer(g.Layers - 1) {
				return m
			}
		}
	}
	return -1
}
