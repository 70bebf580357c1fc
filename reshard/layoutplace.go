package reshard

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// autoAlign is where tensors begin that a layout places automatically.
const autoAlign = 256

// maxAutoBuffer bounds the numbers of buffers that auto makes.
const maxAutoBuffer = 1 << 10

// placeRule is a place that has been checked.
type placeRule struct {
	*placeFile
	pattern Pattern
	mesh    Mesh
	place   []Placement
	grids   map[int]int // item of the list of tensors -> grid; it has all but the offset in common
}

// places puts every tensor where the first place that matches says.
func (p *layoutParser) places() error {
	p.used, p.grids = map[[2]int]int64{}, map[string]int{}
	rules := make([]placeRule, len(p.file.Place))
	for i := range rules {
		r := &rules[i]
		r.placeFile = &p.file.Place[i]
		if err := p.check(r); err != nil {
			return fmt.Errorf("place %d, %q: %w", i, r.Match, err)
		}
	}
	candidates := make([][]*placeRule, len(p.file.Tensors))
	for item := range candidates {
		for i := range rules {
			if maybe(rules[i].Match, p.file.Tensors[item].Name) {
				candidates[item] = append(candidates[item], &rules[i])
			}
		}
	}
	for t, n := range p.named {
		for _, scales := range []bool{false, true} {
			for _, r := range candidates[n.item] {
				if c, ok := p.fits(r, t, scales); ok {
					if err := p.put(r, t, scales, c); err != nil {
						return fmt.Errorf("place %q: %s: %w", r.Match, p.layout.Tensors[t].Name, err)
					}
					break
				}
			}
		}
	}
	p.sortGrids(rules)
	return nil
}

// sortGrids puts grids in the order of the places that made them.
func (p *layoutParser) sortGrids(rules []placeRule) {
	first := make([]int, len(p.layout.Grids))
	for i := len(rules) - 1; i >= 0; i-- {
		for _, g := range rules[i].grids {
			first[g] = i
		}
	}
	order := make([]int, len(first))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return first[a] - first[b] })
	sorted := make([]Grid, 0, len(order))
	for _, i := range order {
		sorted = append(sorted, p.layout.Grids[i])
	}
	p.layout.Grids = sorted
}

// maybe says whether a pattern can match a name that comes from an item of the list of tensors. It spares the comparison of every tensor
// of a large model with every place: without digits and stars, only the same text can.
func maybe(match, item string) bool {
	return match == item || strings.Contains(match, star) || strings.ContainsAny(match, "0123456789") || strings.ContainsAny(item, "0123456789")
}

// fits says whether a place is for a tensor's values or scales.
func (p *layoutParser) fits(r *placeRule, tensor int, scales bool) (Captures, bool) {
	n := &p.named[tensor]
	c := Captures{Layer: n.layer, Expert: n.expert}
	if scales && (p.codec(tensor).Kind != fp8Kind || !r.Auto && !r.Scales) || !scales && r.Scales {
		return c, false
	}
	if r.Match != p.file.Tensors[n.item].Name {
		var ok bool
		if c, ok = r.pattern.Match(p.layout.Tensors[tensor].Name); !ok {
			return c, false
		}
	}
	return c, within(r.Layer, c.Layer) && within(r.Expert, c.Expert)
}

func within(r *[2]int, i int) bool { return r == nil || r[0] <= i && i < r[1] }

func (p *layoutParser) check(r *placeRule) (err error) {
	if r.pattern, err = ParsePattern(r.Match); err != nil {
		return err
	}
	m, ok := p.file.Meshes[r.Mesh]
	if !ok {
		return fmt.Errorf("no mesh %q", r.Mesh)
	}
	r.mesh = Mesh(m)
	r.grids = map[int]int{}
	if len(r.Placements) != len(m.Shape) {
		return fmt.Errorf("%d placements on a mesh of %d dimensions", len(r.Placements), len(m.Shape))
	}
	for i, text := range r.Placements {
		place, err := parsePlacement(text)
		if err != nil {
			return err
		}
		if place.Kind == "partial" {
			return fmt.Errorf("it is Partial on mesh dim %q; reduce it before describing the model", m.Dims[i])
		}
		r.place = append(r.place, place)
	}
	switch {
	case r.Auto && (r.Offset != 0 || r.LayerStep != 0 || r.ExpertStep != 0 || r.Strides != nil || r.Digits != nil || r.Scales):
		return errors.New("auto finds the offsets of values and scales itself: it goes with no offset, step, strides, digits and scales")
	case r.Buffer < 0 || r.Auto && r.Buffer > maxAutoBuffer:
		return fmt.Errorf("buffer %d", r.Buffer)
	case r.Strides != nil && r.Digits != nil:
		return errors.New("strides and digits both say how the tensor lies")
	case r.Layer != nil && !r.pattern.Has(layerMark) || r.Expert != nil && !r.pattern.Has(expertMark):
		return errors.New("a range of layers or experts, but the pattern captures none")
	}
	return nil
}

// parsePlacement reads "shard0", "strided1", "replicate" or "partial".
func parsePlacement(s string) (Placement, error) {
	for _, kind := range []string{"shard", "strided"} {
		if rest, ok := strings.CutPrefix(s, kind); ok {
			if d, err := strconv.Atoi(rest); err == nil && d >= 0 && d < maxLayoutDims {
				return Placement{Kind: kind, Dim: d}, nil
			}
		}
	}
	if s == "replicate" || strings.HasPrefix(s, "partial") {
		kind, _, _ := strings.Cut(s, "(")
		return Placement{Kind: kind}, nil
	}
	return Placement{}, fmt.Errorf("placement %q: want shardN, stridedN or replicate", s)
}

func (p Placement) text() string {
	if p.Kind == "shard" || p.Kind == "strided" {
		return p.Kind + strconv.Itoa(p.Dim)
	}
	return p.Kind
}

// put places a tensor's values or scales.
func (p *layoutParser) put(r *placeRule, tensor int, scales bool, c Captures) error {
	t := &p.layout.Tensors[tensor]
	codec := p.codec(tensor)
	shape, elem := t.Shape, t.DType.Size()
	if scales {
		if len(shape) < 2 {
			return fmt.Errorf("%d dimensions have no blocks", len(shape))
		}
		shape, elem = blocks(shape, codec), codec.scale().Size()
	}
	grid := Grid{Mesh: r.mesh, Place: r.place, Buffer: r.Buffer, Strides: r.Strides, Codec: codec, Scales: scales}
	dims := len(shape)
	if r.Digits != nil {
		dims = len(r.Digits)
	}
	for _, place := range r.place {
		if place.Kind != "replicate" && place.Dim >= dims {
			return fmt.Errorf("%s of %d dimensions", place.text(), dims)
		}
	}
	at, err := p.offset(r, &grid, shape, elem, c)
	if err != nil {
		return err
	}
	if r.Digits != nil {
		return p.digitFragments(&grid, digits(r.Digits), tensor, at)
	}
	key := p.named[tensor].item * 2
	if scales {
		key++
	}
	g, ok := r.grids[key]
	if !ok {
		g = p.grid(t, grid)
		r.grids[key] = g
	}
	p.layout.Grids[g].Tensors = append(p.layout.Grids[g].Tensors, tensor)
	p.layout.Grids[g].Offsets = append(p.layout.Grids[g].Offsets, at)
	return nil
}

// grid is the index of a grid for tensors of a shape and type: an old one if it is the same but for tensors and offsets.
func (p *layoutParser) grid(t *Tensor, g Grid) int {
	key := fmt.Sprint(t.Shape, t.DType, g)
	i, ok := p.grids[key]
	if !ok {
		i = len(p.layout.Grids)
		p.grids[key] = i
		p.layout.Grids = append(p.layout.Grids, g)
	}
	return i
}

// offset is where the pieces of a tensor begin.
func (p *layoutParser) offset(r *placeRule, g *Grid, shape []int64, elem int64, c Captures) (int64, error) {
	if !r.Auto {
		return affineOffset(r.Offset, step{r.LayerStep, c.Layer, r.Layer}, step{r.ExpertStep, c.Expert, r.Expert})
	}
	at := int64(0)
	for _, rank := range r.mesh.Ranks {
		at = max(at, p.used[[2]int{rank, r.Buffer}])
	}
	at = (at + autoAlign - 1) / autoAlign * autoAlign
	lo, hi := make([]int64, len(shape)), make([]int64, len(shape))
	for cell, rank := range r.mesh.Ranks {
		g.box(cell, shape, lo, hi)
		size := elem
		for d := range lo {
			size *= max(0, hi[d]-lo[d])
		}
		if at > math.MaxInt64-autoAlign-size {
			return 0, errors.New("offset beyond 2^63")
		}
		p.used[[2]int{rank, r.Buffer}] = at + size
	}
	return at, nil
}

// step is how an offset grows with a captured number.
type step struct {
	by   int64
	at   int
	from *[2]int
}

func affineOffset(at int64, steps ...step) (int64, error) {
	for _, s := range steps {
		n := int64(s.at)
		if s.from != nil {
			n -= int64(s.from[0])
		}
		if s.at < 0 || s.by == 0 || n == 0 {
			continue
		}
		if s.by < 0 || s.by > (math.MaxInt64-at)/n {
			return 0, fmt.Errorf("step %d: negative, or beyond 2^63", s.by)
		}
		at += n * s.by
	}
	return at, nil
}

// digitFragments places a tensor whose dimensions are refined: a fragment for each rank, cut in digits.
func (p *layoutParser) digitFragments(g *Grid, d []Digit, tensor int, at int64) error {
	if len(d) > maxLayoutDims {
		return fmt.Errorf("%d digits: the limit is %d", len(d), maxLayoutDims)
	}
	extent := make([]int64, len(d))
	for i := range d {
		extent[i] = d[i].Extent
	}
	if len(p.layout.Fragments)+len(g.Mesh.Ranks) > maxLayoutPieces {
		return fmt.Errorf("more than %d fragments", maxLayoutPieces)
	}
	for cell, rank := range g.Mesh.Ranks {
		f := Fragment{Tensor: tensor, Lo: make([]int64, len(d)), Hi: make([]int64, len(d)), Rank: rank, Buffer: g.Buffer, Offset: at, Digits: d, Codec: g.Codec, Scales: g.Scales}
		g.box(cell, extent, f.Lo, f.Hi)
		p.layout.Fragments = append(p.layout.Fragments, f)
	}
	return nil
}

func comparePads(a, b Range) int {
	return slices.Compare([]int64{int64(a.Rank), int64(a.Buffer), a.Offset, a.Len}, []int64{int64(b.Rank), int64(b.Buffer), b.Offset, b.Len})
}
