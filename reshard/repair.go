package reshard

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
)

// Repair plans again without lost source ranks. What verified says is there already, by destination rank and stage, is not sent again;
// nil: nothing is. The new plan has an id of its own, made from this one's and what was lost and verified. If a lost rank was the only one to hold
// something that is still needed, the error is ErrNoReplica and names it.
func (p *Plan) Repair(lost []int, verified func(dst, stage int) bool) (*Plan, error) {
	gone := make([]bool, len(p.src.Buffers))
	copy(gone, p.gone)
	for _, r := range lost {
		if r < 0 || r >= len(gone) {
			return nil, planFault(ErrLayout, "repair: there is no source rank %d, of %d", r, len(gone))
		}
		gone[r] = true
	}
	q := &Plan{src: p.src, dst: p.dst, rules: p.rules, opts: p.opts, stages: p.stages, gone: gone}
	q.skip = make([]bool, len(p.dst.Buffers)*len(p.stages))
	for i := range q.skip {
		q.skip[i] = p.skip != nil && p.skip[i] || verified != nil && verified(i/len(p.stages), i%len(p.stages))
	}
	f := &Fault{Kind: ErrNoReplica, What: "plan"}
	for _, c := range p.classes {
		q.classes = append(q.classes, q.without(c, f))
	}
	if err := f.err(); err != nil {
		return nil, err
	}
	q.choose()
	q.count()
	q.id = q.hash()
	return q, nil
}

// without is a class without the holders that are gone.
func (p *Plan) without(c *class, f *Fault) *class {
	d := *c
	d.src, d.pairs, d.choice = slices.Clone(c.src), slices.Clone(c.pairs), nil
	for i := range d.src {
		var left []holder
		for _, h := range c.src[i].holders {
			if !p.gone[h.rank] {
				left = append(left, h)
			}
		}
		if len(left) == 0 {
			p.missing(c, int32(i), f)
		}
		d.src[i].holders = left
	}
	d.makeChoices()
	return &d
}

// missing notes what only lost ranks held and somebody still needs.
func (p *Plan) missing(c *class, src int32, f *Fault) {
	s := &c.src[src]
	var ranks []int
	for _, h := range s.holders {
		ranks = append(ranks, h.rank)
	}
	slices.Sort(ranks)
	for m, l := range c.members {
		for _, pi := range c.bySrc[src] {
			if !p.needed(c, pi, m) {
				continue
			}
			f.add("%s %s: lost with %s, no other source rank holds it", p.dst.Tensors[l.dst].Name, boxText(s.lo, s.hi, p.dst.Tensors[l.dst].Shape),
				plural(len(slices.Compact(ranks)), "rank")+" "+rankText(slices.Compact(ranks)))
			break
		}
	}
}

// needed says that some destination still needs a pair of a member.
func (p *Plan) needed(c *class, pair int32, member int) bool {
	for _, h := range c.dst[c.pairs[pair].dst].holders {
		if !p.skips(h.rank, c.members[member].stage) {
			return true
		}
	}
	return false
}

// hash is the plan's id: of the inputs, and for a repaired plan also of what is lost and verified.
func (p *Plan) hash() ID {
	h := sha256.New()
	h.Write(p.inputs())
	if p.gone != nil {
		h.Write(p.repairs(nil))
	}
	return ID(h.Sum(nil))
}

// repairs encodes what was lost and what is skipped, as lists of ranks and of places.
func (p *Plan) repairs(b []byte) []byte {
	b = appendBits(append(b, 'r'), p.gone)
	return appendBits(b, p.skip)
}

func appendBits(b []byte, bits []bool) []byte {
	b = binary.AppendUvarint(b, uint64(len(bits)))
	at := len(b)
	b = append(b, make([]byte, (len(bits)+7)/8)...)
	for i, x := range bits {
		if x {
			b[at+i/8] |= 1 << (i % 8)
		}
	}
	return b
}

// Origin is where one element of a destination comes from.
type Origin struct {
	Rank   int    // destination
	Tensor string // source's name for it
	Source int    // rank
	Buffer int    // source's
	Offset int64  // of the element there
	To     Place
	Lo, Hi []int64 // the region that it moves with, in the destination tensor's index space
	Codec  Codec
	Rule   string // "" if the names are equal
	Stage  string
	Others []int // other source ranks that hold it
}

// Place is where an element lies in a destination.
type Place struct {
	Buffer int
	Offset int64
}

// Explain says where element index of a destination's tensor comes from, for each rank that has it, sorted by rank. A name that is an alias
// is followed.
func (p *Plan) Explain(tensor string, index []int64) ([]Origin, error) {
	for range p.dst.Aliases {
		if _, ok := p.dst.byName[tensor]; ok {
			break
		}
		next, ok := p.dst.Aliases[tensor]
		if !ok {
			break
		}
		tensor = next
	}
	t, ok := p.dst.byName[tensor]
	if !ok {
		return nil, planFault(ErrLayout, "%s: the destination has no tensor of this name", tensor)
	}
	shape := p.dst.Tensors[t].Shape
	if len(index) != len(shape) {
		return nil, planFault(ErrLayout, "%s: index %v, the shape is %v", tensor, index, shape)
	}
	for d, x := range index {
		if x < 0 || x >= shape[d] {
			return nil, planFault(ErrLayout, "%s: index %v is outside the shape %v", tensor, index, shape)
		}
	}
	var out []Origin
	for _, c := range p.classes {
		for m := range c.members {
			if c.members[m].dst == t {
				out = p.origins(out, c, m, index)
			}
		}
	}
	slices.SortStableFunc(out, func(a, b Origin) int { return cmp.Compare(a.Rank, b.Rank) })
	return out, nil
}

func (p *Plan) origins(out []Origin, c *class, m int, index []int64) []Origin {
	l := &c.members[m]
	for i := range c.pairs {
		x := &c.pairs[i]
		if !holds(x.lo, x.hi, index) {
			continue
		}
		for k, to := range c.dst[x.dst].holders {
			if p.skips(to.rank, l.stage) {
				continue
			}
			from := &c.src[x.src].holders[c.chosen(x, m, k)]
			o := Origin{Rank: to.rank, Tensor: p.src.Tensors[l.src].Name, Source: from.rank, Buffer: from.buffer, Lo: x.lo, Hi: x.hi, Codec: c.codec, Stage: p.stages[l.stage]}
			o.Offset = place(from, p.src.offsets(l.src), index)
			o.To = Place{to.buffer, place(&to, p.dst.offsets(l.dst), index)}
			if l.rule >= 0 {
				o.Rule = p.rules[l.rule].Match + " -> " + p.rules[l.rule].Into
			}
			for _, h := range c.src[x.src].holders {
				if h.rank != from.rank {
					o.Others = append(o.Others, h.rank)
				}
			}
			out = append(out, o)
		}
	}
	return out
}

func holds(lo, hi, index []int64) bool {
	for d, x := range index {
		if x < lo[d] || x >= hi[d] {
			return false
		}
	}
	return true
}

// place is the offset of an element.
func place(h *holder, offsets, index []int64) int64 {
	at := offsets[h.unit] + h.bias
	for d, a := range h.axes {
		at += a.at(index[d])
	}
	return at
}
