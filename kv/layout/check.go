package layout

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
)

// ErrInvalid: a geometry or a span cannot be, whatever the other side.
var ErrInvalid = errors.New("invalid layout")

// Limits of what a topology may say; it also comes from peers. They keep every product of sizes far from overflow.
const (
	// MaxPages is how many pages a view may have.
	MaxPages = 1 << 20
	// MaxTokens is how long a prompt may be.
	MaxTokens = 1 << 30
	// MaxFingerprint is the length of a fingerprint in bytes.
	MaxFingerprint = 256
	// MaxRegions is how many regions the views of one member may lie in.
	MaxRegions = 4096

	maxLayers    = 1024
	maxGroups    = 8
	maxMembers   = 1024
	maxRanks     = 1024 // of a topology
	maxViews     = 1 << 16
	maxPlanes    = 4
	maxDim       = 1 << 16
	maxTokenPage = 1 << 20
	maxWindow    = 1 << 30
	maxIndex     = 1 << 20
	maxElem      = 16
	maxPageBytes = 64 << 20 // of one plane of one rank: one write
	maxStride    = 1 << 40
	maxBase      = 1 << 56
)

// MismatchError names the first field in which the two sides of a link differ although they must not.
type MismatchError struct {
	Field    string
	Src, Dst string // values of the prefill and of the decode side
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("%s: the prefill side has %s, the decode side %s: both must have the same", e.Field, e.Src, e.Dst)
}

// number is a field that must be in a range.
type number struct {
	name              string
	value, low, limit int
}

func inRange(fields ...number) error {
	for _, f := range fields {
		if f.value < f.low || f.value > f.limit {
			return fmt.Errorf("%w: %s is %d, want %d .. %d", ErrInvalid, f.name, f.value, f.low, f.limit)
		}
	}
	return nil
}

// Check says what in t cannot be: sizes beyond the limits, views whose pages overlap themselves, members that differ in
// what they must share, ranks out of order. The members need not hold the whole model. All errors are ErrInvalid.
func (t *Topology) Check() error {
	if err := inRange(number{"number of members", len(t.Members), 1, maxMembers}); err != nil {
		return err
	}
	last, ranks, views := -1, 0, 0
	for m := range t.Members {
		g := &t.Members[m]
		if err := g.Check(); err != nil {
			return fmt.Errorf("member %d: %w", m, err)
		}
		if f := g.differs(&t.Members[0], true); f != nil {
			return fmt.Errorf("%w: %s: member %d has %s, member 0 %s: members of an instance must have the same", ErrInvalid, f.Field, m, f.Src, f.Dst)
		}
		for i := range g.Ranks {
			if g.Ranks[i].Index <= last {
				return fmt.Errorf("%w: member %d: rank index %d after %d: indices must ascend over the members", ErrInvalid, m, g.Ranks[i].Index, last)
			}
			last = g.Ranks[i].Index
			ranks++
		}
		views += g.views()
	}
	return inRange(number{"number of ranks", ranks, 1, maxRanks}, number{"number of views", views, 1, maxViews})
}

// Check is Topology.Check for one member.
func (g *Geometry) Check() error {
	err := inRange(
		number{"length of the fingerprint", len(g.Fingerprint), 0, MaxFingerprint}, number{"layers", g.Layers, 1, maxLayers},
		number{"number of groups", len(g.Groups), 1, maxGroups}, number{"number of ranks", len(g.Ranks), 1, maxRanks})
	if err != nil {
		return err
	}
	for i := range g.Groups {
		if err := g.Groups[i].check(); err != nil {
			return fmt.Errorf("group %d: %w", i, err)
		}
	}
	if err := checkLayerGroups(g); err != nil {
		return err
	}
	last := -1
	for i := range g.Ranks {
		r := &g.Ranks[i]
		if err := g.checkRank(r); err != nil {
			return fmt.Errorf("rank %d: %w", r.Index, err)
		}
		if r.Index <= last {
			return fmt.Errorf("%w: rank index %d after %d: indices must ascend", ErrInvalid, r.Index, last)
		}
		last = r.Index
	}
	return inRange(number{"number of views", g.views(), 1, maxViews})
}

func (g *Geometry) views() (n int) {
	for i := range g.Ranks {
		for _, planes := range g.Ranks[i].Views {
			n += len(planes)
		}
	}
	return n
}

func (g Group) check() error {
	return inRange(
		number{"page tokens", g.PageTokens, 1, maxTokenPage}, number{"kv heads", g.KVHeads, 1, maxDim}, number{"head dim", g.HeadDim, 1, maxDim},
		number{"element size", g.ElemSize, 1, maxElem}, number{"planes", g.Planes, 1, maxPlanes}, number{"window", g.Window, 0, maxWindow})
}

func checkLayerGroups(g *Geometry) error {
	if len(g.Groups) == 1 {
		if g.LayerGroups != nil {
			return fmt.Errorf("%w: groups of the layers are given, but there is one group only", ErrInvalid)
		}
		return nil
	}
	if len(g.LayerGroups) != g.Layers {
		return fmt.Errorf("%w: groups of %d layers are given, there are %d", ErrInvalid, len(g.LayerGroups), g.Layers)
	}
	var used [maxGroups]bool
	for l, i := range g.LayerGroups {
		if int(i) >= len(g.Groups) {
			return fmt.Errorf("%w: layer %d is of group %d, there are %d", ErrInvalid, l, i, len(g.Groups))
		}
		used[i] = true
	}
	if i := slices.Index(used[:len(g.Groups)], false); i >= 0 {
		return fmt.Errorf("%w: group %d has no layer", ErrInvalid, i)
	}
	return nil
}

func (g *Geometry) checkRank(r *Rank) error {
	err := inRange(
		number{"rank index", r.Index, 0, maxIndex}, number{"first layer", r.LayerFirst, 0, g.Layers - 1}, number{"layers", r.Layers, 1, g.Layers - r.LayerFirst},
		number{"first head", r.HeadFirst, 0, maxDim}, number{"heads", r.Heads, 1, maxDim}, number{"layers with views", len(r.Views), r.Layers, r.Layers})
	if err != nil {
		return err
	}
	for l, planes := range r.Views {
		layer := r.LayerFirst + l
		group := g.Groups[g.GroupOf(layer)]
		switch {
		case r.HeadFirst+r.Heads > group.KVHeads:
			return fmt.Errorf("%w: layer %d: heads end at %d, there are %d", ErrInvalid, layer, r.HeadFirst+r.Heads, group.KVHeads)
		case group.PageBytes(r.Heads) > maxPageBytes:
			return fmt.Errorf("%w: layer %d: a page of one plane has %d bytes, want at most %d", ErrInvalid, layer, group.PageBytes(r.Heads), maxPageBytes)
		case len(planes) != group.Planes:
			return fmt.Errorf("%w: layer %d: views of %d planes, there are %d", ErrInvalid, layer, len(planes), group.Planes)
		}
		for p, v := range planes {
			if err := v.check(group, r.Heads); err != nil {
				return fmt.Errorf("layer %d plane %d: %w", layer, p, err)
			}
		}
	}
	return nil
}

// axis is one dimension of a view.
type axis struct {
	name   string
	n      int
	stride int64
}

// check refuses views in which two elements share a byte: each stride must reach over all that the smaller ones span.
func (v View) check(g Group, heads int) error {
	err := inRange(number{"region", v.Region, 0, MaxRegions - 1}, number{"base", int(v.Base), 0, maxBase}, number{"pages", v.Pages, 1, MaxPages})
	if err != nil {
		return err
	}
	axes := [...]axis{{"token", g.PageTokens, v.Token}, {"head", heads, v.Head}, {"page", v.Pages, v.Page}}
	for _, a := range axes {
		if err := inRange(number{a.name + " stride", int(a.stride), 1, maxStride}); err != nil {
			return err
		}
	}
	slices.SortStableFunc(axes[:], func(a, b axis) int { return cmp.Compare(a.stride, b.stride) })
	span := g.HeadBytes()
	for _, a := range axes {
		if a.n == 1 {
			continue
		}
		if a.stride < span {
			return fmt.Errorf("%w: %s stride is %d bytes, what lies between has %d", ErrInvalid, a.name, a.stride, span)
		}
		span += int64(a.n-1) * a.stride
	}
	return nil
}

// differs names the first field in which g and o differ: one that the two sides of a link must share, or with whole also one
// that the members of an instance must share. Src is of g, Dst of o.
func (g *Geometry) differs(o *Geometry, whole bool) *MismatchError {
	if g.Fingerprint != o.Fingerprint {
		return &MismatchError{"fingerprint", strconv.Quote(g.Fingerprint), strconv.Quote(o.Fingerprint)}
	}
	if f := unequal(field{"layers", g.Layers, o.Layers}, field{"groups", len(g.Groups), len(o.Groups)}); f != nil {
		return f
	}
	for i, a := range g.Groups {
		b := o.Groups[i]
		of := fmt.Sprintf(" of group %d", i)
		if len(g.Groups) == 1 {
			of = ""
		}
		f := unequal(
			field{"kv heads" + of, a.KVHeads, b.KVHeads}, field{"head dim" + of, a.HeadDim, b.HeadDim}, field{"element size" + of, a.ElemSize, b.ElemSize},
			field{"planes" + of, a.Planes, b.Planes}, field{"window" + of, a.Window, b.Window})
		if f == nil && whole {
			f = unequal(field{"page tokens" + of, a.PageTokens, b.PageTokens})
		}
		if f != nil {
			return f
		}
	}
	for l := range g.Layers {
		if f := unequal(field{fmt.Sprintf("group of layer %d", l), g.GroupOf(l), o.GroupOf(l)}); f != nil {
			return f
		}
	}
	return nil
}

// field is a number that two sides have.
type field struct {
	name     string
	src, dst int
}

func unequal(fields ...field) *MismatchError {
	for _, f := range fields {
		if f.src != f.dst {
			return &MismatchError{f.name, strconv.Itoa(f.src), strconv.Itoa(f.dst)}
		}
	}
	return nil
}
