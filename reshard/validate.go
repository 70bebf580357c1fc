package reshard

import "slices"

// Limits of layouts.
const (
	MaxDims  = 8       // of tensors; meshes and digits too
	maxRanks = 1 << 16 // of a side
)

// Validate says what is wrong with a layout by itself: all of it that can be known without the other side. The error is a Fault of
// kind ErrLayout. Whether destination bytes overlap is checked for the side "infer", and by Compute for any destination.
func (l *Layout) Validate() error {
	v := &validator{l: l, f: Fault{Kind: ErrLayout, What: "layout"}}
	v.tensors()
	if len(l.Buffers) == 0 || len(l.Buffers) > maxRanks {
		v.f.add("it has %d ranks (the length of Buffers), want 1 to %d", len(l.Buffers), maxRanks)
	}
	for r, sizes := range l.Buffers {
		for b, n := range sizes {
			if n < 0 || n > maxElements {
				v.f.add("rank %d buffer %d has %d bytes", r, b, n)
			}
		}
	}
	if v.f.Total > 0 { // what follows counts on indices
		return v.f.err()
	}
	for i := range l.Grids {
		v.grid(i)
	}
	for i := range l.Fragments {
		v.fragment(i)
	}
	for i, r := range l.Pads {
		if !v.hasBuffer(r.Rank, r.Buffer) || r.Offset < 0 || r.Len < 0 || r.Len > l.Buffers[r.Rank][r.Buffer]-r.Offset {
			v.f.add("pad %d: rank %d buffer %d [%d,+%d) is no range of a buffer", i, r.Rank, r.Buffer, r.Offset, r.Len)
		}
	}
	v.names()
	if l.Side == "infer" && v.f.Total == 0 {
		l.disjoint(&v.f)
	}
	return v.f.err()
}

type validator struct {
	l *Layout
	f Fault
}

func (v *validator) hasBuffer(rank, buffer int) bool {
	return rank >= 0 && rank < len(v.l.Buffers) && buffer >= 0 && buffer < len(v.l.Buffers[rank])
}

func (v *validator) tensors() {
	seen := make(map[string]bool, len(v.l.Tensors))
	for i := range v.l.Tensors {
		t := &v.l.Tensors[i]
		if seen[t.Name] || t.Name == "" {
			v.f.add("tensor %d: the name %q is there twice, or empty", i, t.Name)
		}
		seen[t.Name] = true
		if t.DType.Size() == 0 {
			v.f.add("%s: it has %v; types are named as in safetensors", t.Name, t.DType)
		}
		if len(t.Shape) > MaxDims {
			v.f.add("%s: %d dimensions, at most %d are planned; join some", t.Name, len(t.Shape), MaxDims)
		}
		n := int64(8)
		for _, e := range t.Shape {
			if e < 0 || e > 0 && n > maxElements/e {
				v.f.add("%s: shape %v", t.Name, t.Shape)
				break
			}
			n *= max(e, 1)
		}
	}
}

// names checks aliases, derived tensors and the topology.
func (v *validator) names() {
	l := v.l
	for _, name := range sortedKeys(l.Aliases) {
		at := name
		for range len(l.Aliases) + 1 {
			next, ok := l.Aliases[at]
			if !ok {
				break
			}
			at = next
		}
		if _, ok := l.Aliases[at]; ok {
			v.f.add("alias %s: it leads back to itself; aliases must end in a tensor", name)
		}
	}
	for _, d := range l.Derived {
		if d.Name == "" || len(d.From) == 0 {
			v.f.add("derived tensor %q: it needs a name, and names that it is made from", d.Name)
		}
	}
	for _, t := range []struct {
		name string
		list []int
	}{{"node", l.Topo.Node}, {"rail", l.Topo.Rail}, {"instance", l.Topo.Instance}} {
		if t.list != nil && len(t.list) != len(l.Buffers) {
			v.f.add("topology: %d entries of %s for %d ranks", len(t.list), t.name, len(l.Buffers))
		} else if len(t.list) > 0 && slices.Min(t.list) < 0 {
			v.f.add("topology: a %s is negative", t.name)
		}
	}
}

func sortedKeys(m map[string]string) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// grid checks one grid. Bounds are those of its pieces; tensors differ in offsets only.
func (v *validator) grid(i int) {
	g := &v.l.Grids[i]
	before := v.f.Total
	if len(g.Tensors) == 0 {
		return
	}
	if len(g.Tensors) != len(g.Offsets) {
		v.f.add("grid %d: %d tensors, %d offsets", i, len(g.Tensors), len(g.Offsets))
		return
	}
	for _, t := range g.Tensors {
		if t < 0 || t >= len(v.l.Tensors) {
			v.f.add("grid %d: no tensor %d", i, t)
			return
		}
	}
	t := &v.l.Tensors[g.Tensors[0]]
	for _, k := range g.Tensors[1:] {
		if u := &v.l.Tensors[k]; u.DType != t.DType || !slices.Equal(u.Shape, t.Shape) {
			v.f.add("grid %d: %s is %v %v, %s %v %v; a grid has tensors of one shape and type", i, t.Name, t.DType, t.Shape, u.Name, u.DType, u.Shape)
			return
		}
	}
	v.mesh(i, g, t)
	v.codec(t.Name, g.Codec, g.Scales, t)
	if g.Strides != nil && len(g.Strides) != len(t.Shape) {
		v.f.add("grid %d: %s has %d dimensions, %d strides are given", i, t.Name, len(t.Shape), len(g.Strides))
	}
	if v.f.Total > before {
		return
	}
	shape, size := t.Shape, t.DType.Size()
	if g.Scales {
		shape, size = blocks(shape, g.Codec), g.Codec.scale().Size()
	}
	least, most := slices.Min(g.Offsets), slices.Max(g.Offsets)
	v.aligned(t.Name, size, append(slices.Clone(g.Strides), g.Offsets...)...)
	for _, p := range g.placements(shape, size, 0) {
		v.bounds(t.Name, &p, shape, size, least, most)
	}
}

func (v *validator) mesh(i int, g *Grid, t *Tensor) {
	m := &g.Mesh
	cells := 1
	for _, n := range m.Shape {
		if n < 1 || cells > maxRanks/n {
			v.f.add("grid %d: mesh %v: every dimension has at least 1, all together at most %d", i, m.Shape, maxRanks)
			return
		}
		cells *= n
	}
	if len(m.Shape) > MaxDims || len(g.Place) != len(m.Shape) || m.Dims != nil && len(m.Dims) != len(m.Shape) || m.Ranks != nil && len(m.Ranks) != cells {
		v.f.add("grid %d: mesh %v (at most %d dimensions): %d names, %d ranks for %d cells, %d placements", i, m.Shape, MaxDims, len(m.Dims), len(m.Ranks),
			cells, len(g.Place))
		return
	}
	seen := make([]bool, len(v.l.Buffers))
	for c := range cells {
		r := m.rank(c)
		if !v.hasBuffer(r, g.Buffer) {
			v.f.add("grid %d: %s: rank %d has no buffer %d", i, t.Name, r, g.Buffer)
			return
		}
		if seen[r] {
			v.f.add("grid %d: %s: rank %d is twice in the mesh; use another grid for its other piece", i, t.Name, r)
			return
		}
		seen[r] = true
	}
	for k, p := range g.Place {
		name := ""
		if m.Dims != nil {
			name = m.Dims[k]
		}
		switch p.Kind {
		case "replicate":
		case "shard", "strided":
			if p.Dim < 0 || p.Dim >= len(t.Shape) {
				v.f.add("grid %d: %s has %d dimensions, mesh dim %q shards dimension %d", i, t.Name, len(t.Shape), name, p.Dim)
			}
		case "partial":
			v.f.add("%s is Partial(sum) on mesh dim %q; reduce it before describing the model", t.Name, name)
		default:
			v.f.add("grid %d: %s: placement %q on mesh dim %q; there are shard, strided, replicate", i, t.Name, p.Kind, name)
		}
	}
}

func (v *validator) fragment(i int) {
	f := &v.l.Fragments[i]
	if f.Tensor < 0 || f.Tensor >= len(v.l.Tensors) {
		v.f.add("fragment %d: no tensor %d", i, f.Tensor)
		return
	}
	t, before := &v.l.Tensors[f.Tensor], v.f.Total
	if !v.hasBuffer(f.Rank, f.Buffer) {
		v.f.add("%s: fragment %d: rank %d has no buffer %d", t.Name, i, f.Rank, f.Buffer)
	}
	v.codec(t.Name, f.Codec, f.Scales, t)
	if v.f.Total > before {
		return
	}
	shape, size := t.Shape, t.DType.Size()
	if f.Scales {
		shape, size = blocks(shape, f.Codec), f.Codec.scale().Size()
	}
	extents := shape
	if f.Digits != nil {
		if _, err := group(shape, f.Digits); err != nil || len(f.Digits) > maxDigits {
			v.f.add("%s: fragment %d: %d digits, at most %d: %v", t.Name, i, len(f.Digits), maxDigits, err)
			return
		}
		extents = make([]int64, len(f.Digits))
		for k, d := range f.Digits {
			extents[k] = d.Extent
			v.aligned(t.Name, size, d.Stride)
		}
	}
	if len(f.Lo) != len(extents) || len(f.Hi) != len(extents) {
		v.f.add("%s: fragment %d: a box of %d and %d bounds in %d dimensions", t.Name, i, len(f.Lo), len(f.Hi), len(extents))
		return
	}
	for d, n := range extents {
		if f.Lo[d] < 0 || f.Lo[d] > f.Hi[d] || f.Hi[d] > n {
			v.f.add("%s: fragment %d: [%d,%d) of %d in dimension %d", t.Name, i, f.Lo[d], f.Hi[d], n, d)
			return
		}
	}
	v.aligned(t.Name, size, f.Offset)
	places, err := f.placements(shape, size, 0)
	if err != nil {
		v.f.add("%s: fragment %d: %v", t.Name, i, err)
	}
	for k := range places {
		v.bounds(t.Name, &places[k], shape, size, f.Offset, f.Offset)
	}
}

// maxDigits of a fragment.
const maxDigits = 3 * MaxDims

func (v *validator) codec(name string, c Codec, scales bool, t *Tensor) {
	n := c.normal()
	switch n.Kind {
	case rawKind, castKind:
		if scales {
			v.f.add("%s: scales of codec %q; only fp8block has scales", name, n.Kind)
		}
	case fp8Kind:
		if n.Block[0] < 1 || n.Block[1] < 1 || n.Scale != F32 && n.Scale != F8E8M0 || !(n.Floor > 0) || len(t.Shape) < 2 {
			v.f.add("%s %v: fp8block with blocks %v, scales %v, floor %v; want two dimensions, blocks of 1x1 or more, F32 or F8_E8M0, a positive floor",
				name, t.Shape, n.Block, n.Scale, n.Floor)
		}
	default:
		v.f.add("%s: no codec %q; there are raw, cast, fp8block", name, c.Kind)
	}
}

// aligned checks that offsets and strides are those of whole elements.
func (v *validator) aligned(name string, size int64, bytes ...int64) {
	for _, b := range bytes {
		if b%size != 0 {
			v.f.add("%s: offset or stride %d is not a multiple of the element's %d bytes", name, b, size)
			return
		}
	}
}

// bounds checks that a piece lies in its buffer for offsets from least to most.
func (v *validator) bounds(name string, p *placement, shape []int64, size, least, most int64) {
	from, to := p.bias, p.bias+size
	for d, a := range p.axes {
		for _, x := range a {
			n := x.Extent
			if len(a) == 1 {
				n = p.hi[d]
			}
			if x.Stride < -maxElements || x.Stride > maxElements || x.Stride != 0 && n > maxElements/max(x.Stride, -x.Stride) {
				v.f.add("%s: stride %d", name, x.Stride)
				return
			}
		}
		l, m := a.span(p.lo[d], p.hi[d])
		from, to = from+l, to+m
	}
	if n := v.l.Buffers[p.rank][p.buffer]; least < 0 || most > n || from+least < 0 || to+most > n {
		v.f.add("%s %s: rank %d buffer %d: bytes [%d,%d) of %d", name, boxText(p.lo, p.hi, shape), p.rank, p.buffer, from+least, to+most, n)
	}
}
