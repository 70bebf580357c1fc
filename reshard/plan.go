package reshard

import (
	"context"
	"fmt"
	"slices"
)

// Options of Compute. The zero value is the default.
type Options struct {
	Split       bool  // cut regions that are large (average egress / 64) across replicas
	MaxWrite    int64 // bytes of the longest run; default 16 MiB
	SmallTensor int64 // bytes below which runs are staged together; default 64 KiB
	MaxRegions  int64 // more are ErrLimit; default 2^26
	Seed        uint64
}

const (
	defaultMaxWrite    = 16 << 20
	defaultSmallTensor = 64 << 10
	defaultMaxRegions  = 1 << 26
)

func (o Options) normal() (Options, error) {
	if o.MaxWrite == 0 {
		o.MaxWrite = defaultMaxWrite
	}
	if o.SmallTensor == 0 {
		o.SmallTensor = defaultSmallTensor
	}
	if o.MaxRegions == 0 {
		o.MaxRegions = defaultMaxRegions
	}
	if o.MaxWrite < 1 || o.SmallTensor < 1 || o.MaxRegions < 1 {
		return o, planFault(ErrLayout, "options: MaxWrite %d, SmallTensor %d, MaxRegions %d: want at least 1, or 0 for the default", o.MaxWrite, o.SmallTensor, o.MaxRegions)
	}
	return o, nil
}

// Plan says which source rank writes which bytes where. Immutable; use it from any goroutine.
type Plan struct {
	id       ID
	src, dst *side
	rules    []Rule
	opts     Options
	stages   []string
	classes  []*class
	regions  int64
	out, in  []int64 // bytes by source rank, by destination rank
	skip     []bool  // repaired plans: by destination rank and stage, what is there already; nil: nothing
	gone     []bool  // repaired plans: source ranks that are lost
	inbox    inboxes
}

// Compute plans how the tensors of src become those of dst. Rules rename and reshape; without rules names are equal. It fails with a
// Fault, of kind ErrLayout, ErrCoverage or ErrLimit, before anything moves.
func Compute(ctx context.Context, src, dst *Layout, rules []Rule, o Options) (*Plan, error) {
	o, err := o.normal()
	if err != nil {
		return nil, err
	}
	if err := src.Validate(); err != nil {
		return nil, fmt.Errorf("source: %w", err)
	}
	if err := dst.Validate(); err != nil {
		return nil, fmt.Errorf("destination: %w", err)
	}
	if dst.Side != "infer" { // else Validate looked
		f := &Fault{Kind: ErrLayout, What: "layout"}
		if dst.disjoint(f); f.Total > 0 {
			return nil, fmt.Errorf("destination: %w", f)
		}
	}
	p := &Plan{src: newSide(src), dst: newSide(dst), rules: rules, opts: o}
	links, err := matchAll(p.src, p.dst, rules)
	if err != nil {
		return nil, err
	}
	p.setStages(links)
	if err := p.classify(ctx, links); err != nil {
		return nil, err
	}
	p.choose()
	p.id = p.hash()
	return p, nil
}

// setStages numbers the stages of the links, in order.
func (p *Plan) setStages(links []link) {
	order, name := map[string]int{}, []string(nil)
	for i := range links {
		s, at := stageOf(p.dst.Tensors[links[i].dst].Name)
		if _, ok := order[s]; !ok {
			order[s] = at
			name = append(name, s)
		}
		links[i].stage = order[s]
	}
	slices.SortFunc(name, func(a, b string) int { return order[a] - order[b] })
	number := make(map[int]int, len(name))
	for i, s := range name {
		number[order[s]] = i
	}
	for i := range links {
		links[i].stage = number[links[i].stage]
	}
	p.stages = name
}

// classKey is what the links of a class have in common.
type classKey struct {
	src, dst int // ways
	rule     int
	how      fit
	index    int64
}

// classify groups links, and plans each class.
func (p *Plan) classify(ctx context.Context, links []link) error {
	known := map[classKey]*class{}
	for _, l := range links {
		k := classKey{p.src.way[l.src], p.dst.way[l.dst], l.rule, l.how, l.index}
		c := known[k]
		if c == nil {
			c = &class{link: l}
			known[k] = c
			p.classes = append(p.classes, c)
		}
		c.members = append(c.members, l)
	}
	faults := &faults{cover: Fault{Kind: ErrCoverage, What: "plan"}, layout: Fault{Kind: ErrLayout, What: "plan"}, said: map[string]bool{}}
	for _, c := range p.classes {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := p.build(c, faults); err != nil {
			return err
		}
	}
	if err := faults.err(); err != nil {
		return err
	}
	if p.opts.Split {
		p.split()
	}
	p.count()
	if p.regions > p.opts.MaxRegions {
		return planFault(ErrLimit, "%d regions, Options.MaxRegions is %d: raise it, or describe the tensors with fewer cuts", p.regions, p.opts.MaxRegions)
	}
	return nil
}

// build fills a class: cells, pairs and bytes.
func (p *Plan) build(c *class, f *faults) error {
	from, to := &p.src.ways[p.src.way[c.link.src]], &p.dst.ways[p.dst.way[c.link.dst]]
	c.from, c.to = from.dtype, to.dtype
	if !p.setCodec(c, to, f) {
		return nil
	}
	src, err := from.placements(false)
	if err != nil {
		return err
	}
	var view []int64
	if c.link.rule >= 0 {
		view = p.rules[c.link.rule].View
	}
	if src, err = c.link.apply(src, from.shape, view); err != nil {
		return planFault(ErrLayout, "%s: %v", p.src.Tensors[c.link.src].Name, err)
	}
	dst, err := to.placements(false)
	if err != nil {
		return err
	}
	scales, err := to.placements(true)
	if err != nil {
		return err
	}
	if c.link.how == insert {
		dst, scales = window(dst, c.link.index), window(scales, c.link.index)
	}
	c.src, c.dst = cells(src), cells(dst)
	if gaps := c.cover(); gaps != nil {
		f.gaps(p, c, gaps)
		return nil
	}
	if c.codec.Kind == fp8Kind {
		c.place(scales, p, f)
	}
	c.finish(to.shape)
	return nil
}

// setCodec decides how values are made: the destination's codec, else the rule's.
func (p *Plan) setCodec(c *class, to *way, f *faults) bool {
	codec, scales := Codec{}, false
	for i := range to.units {
		scales = scales || to.units[i].scales
		if x := to.codec(&to.units[i]); x.Kind != "" {
			codec = x
		}
	}
	if codec.Kind == "" && c.link.rule >= 0 {
		codec = p.rules[c.link.rule].Codec
	}
	name := p.dst.Tensors[c.link.dst].Name
	b, ok := bridge(codec, c.from, c.to)
	switch {
	case !ok:
		f.layout.add("%s: no codec %s from %v to %v; raw needs equal types, cast and fp8block F32, F16 or BF16 at the source", name, b.Kind, c.from, c.to)
	case scales && b.Kind != fp8Kind:
		f.layout.add("%s: it has scales, but its codec is %s; give it fp8block", name, b.Kind)
		ok = false
	case b.Kind == fp8Kind && len(to.shape) < 2:
		f.layout.add("%s: fp8block needs two dimensions, the tensor has %d", name, len(to.shape))
		ok = false
	}
	c.codec = b
	return ok
}

// finish fills what follows from the pairs.
func (c *class) finish(shape []int64) {
	if c.codec.Kind == fp8Kind {
		c.straddles(shape)
	}
	c.bySrc = make([][]int32, len(c.src))
	size := c.to.Size()
	for i := range c.pairs {
		p := &c.pairs[i]
		c.bySrc[p.src] = append(c.bySrc[p.src], int32(i))
		p.bytes = boxVolume(p.lo, p.hi) * size
		if c.codec.Kind == fp8Kind {
			lo, hi := c.owned(p)
			p.bytes += boxVolume(lo, hi) * c.codec.Scale.Size()
		}
	}
	c.makeChoices()
}

// makeChoices makes room for the choices of pairs with several sources.
func (c *class) makeChoices() {
	n := 0
	for i := range c.pairs {
		p := &c.pairs[i]
		p.first = -1
		if len(c.src[p.src].holders) > 1 {
			p.first = n
			n += len(c.members) * len(c.dst[p.dst].holders)
		}
	}
	c.choice = make([]uint16, n)
}

// count counts regions.
func (p *Plan) count() {
	p.regions = 0
	for _, c := range p.classes {
		for i := range c.pairs {
			p.regions += int64(p.moving(c, &c.pairs[i]))
		}
	}
}

// moving is how many regions a pair has: one for each member and holder that has it not yet.
func (p *Plan) moving(c *class, x *pair) int {
	to := c.dst[x.dst].holders
	if p.skip == nil {
		return len(c.members) * len(to)
	}
	n := 0
	for _, l := range c.members {
		for k := range to {
			if !p.skips(to[k].rank, l.stage) {
				n++
			}
		}
	}
	return n
}

// owned is the box of blocks whose scales the source of a pair sends: those whose first element it has.
func (c *class) owned(p *pair) (lo, hi []int64) {
	lo, hi = slices.Clone(p.lo), slices.Clone(p.hi)
	for i, d := 0, len(lo)-2; i < 2; i, d = i+1, d+1 {
		b := int64(c.codec.Block[i])
		lo[d], hi[d] = ceil(lo[d], b), ceil(hi[d], b)
	}
	return lo, hi
}

// skips says that a destination has a stage already.
func (p *Plan) skips(rank, stage int) bool {
	return p.skip != nil && p.skip[rank*len(p.stages)+stage]
}
