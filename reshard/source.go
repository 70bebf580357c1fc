package reshard

import (
	"cmp"
	"slices"
)

// moldKey tells molds apart: those of a pair differ with the variants of its holders.
type moldKey struct{ class, pair, from, to, scale int32 }

// molds makes molds once each.
type molds struct {
	p    *Plan
	made map[moldKey]*mold
}

func (p *Plan) newMolds() *molds { return &molds{p, make(map[moldKey]*mold)} }

func (m *molds) get(c *class, ci, pi int32, from, to *holder) *mold {
	x := &c.pairs[pi]
	k := moldKey{class: ci, pair: pi, from: int32(from.variant), to: int32(to.variant), scale: -1}
	if to.scale >= 0 {
		k.scale = int32(c.scales[to.scale].variant)
	}
	y := m.made[k]
	if y == nil {
		y = m.p.mold(c, x, from, to)
		m.made[k] = y
	}
	return y
}

// parts appends what holder from of a pair's source cell gives to its holder to.
func (m *molds) parts(out []part, ci int32, member int, pi int32, from, to *holder, peer int) []part {
	c := m.p.classes[ci]
	l := &c.members[member]
	mold := m.get(c, ci, pi, from, to)
	dst := m.p.dst.offsets(l.dst)
	x := part{
		class: ci, member: int32(member), pair: pi, stage: int32(l.stage), peer: int32(peer), buffer: int32(to.buffer),
		srcBuffer: int32(from.buffer), to: dst[to.unit] + to.bias, from: m.p.src.offsets(l.src)[from.unit] + from.bias,
	}
	if to.scale >= 0 {
		s := &c.scales[to.scale]
		x.scaleBuffer, x.scaleTo = int32(s.buffer), dst[s.unit]+s.bias
	}
	for i := range mold.pieces {
		x.piece, x.mold = int32(i), &mold.pieces[i]
		out = append(out, x)
	}
	return out
}

// chosen is the holder of the source's cell that serves holder k of the destination's.
func (c *class) chosen(x *pair, member, k int) int {
	if x.first < 0 {
		return 0
	}
	return int(c.choice[x.first+member*len(c.dst[x.dst].holders)+k])
}

// sent is all that a source sends, sorted.
func (p *Plan) sent(rank int) []part {
	m := p.newMolds()
	var out []part
	for ci, c := range p.classes {
		for s := range c.src {
			for r := range c.src[s].holders {
				h := &c.src[s].holders[r]
				if h.rank != rank {
					continue
				}
				for member := range c.members {
					for _, pi := range c.bySrc[s] {
						x := &c.pairs[pi]
						to := c.dst[x.dst].holders
						for k := range to {
							if !p.skips(to[k].rank, c.members[member].stage) && c.chosen(x, member, k) == r {
								out = m.parts(out, int32(ci), member, pi, h, &to[k], to[k].rank)
							}
						}
					}
				}
			}
		}
	}
	return sorted(out)
}

// sorted puts parts in the order of units. It sorts small keys, and moves each part once.
func sorted(parts []part) []part {
	type key struct {
		stage, peer, buffer, at int64
		i                       int32
	}
	keys := make([]key, len(parts))
	for i := range parts {
		x := &parts[i]
		keys[i] = key{int64(x.stage), int64(x.peer), int64(x.buffer), x.at(), int32(i)}
	}
	slices.SortFunc(keys, func(a, b key) int {
		switch {
		case a.stage != b.stage:
			return cmp.Compare(a.stage, b.stage)
		case a.peer != b.peer:
			return cmp.Compare(a.peer, b.peer)
		case a.buffer != b.buffer:
			return cmp.Compare(a.buffer, b.buffer)
		}
		return cmp.Compare(a.at, b.at)
	})
	out := make([]part, len(parts))
	for k := range keys {
		out[k] = parts[keys[k].i]
	}
	return out
}

// received is all that a destination receives, sorted.
func (p *Plan) received(rank int) []part {
	m := p.newMolds()
	var out []part
	for ci, c := range p.classes {
		for d := range c.dst {
			for k := range c.dst[d].holders {
				h := &c.dst[d].holders[k]
				if h.rank != rank {
					continue
				}
				for member := range c.members {
					if p.skips(rank, c.members[member].stage) {
						continue
					}
					for pi := c.byDst[d]; pi < c.byDst[d+1]; pi++ {
						x := &c.pairs[pi]
						from := &c.src[x.src].holders[c.chosen(x, member, k)]
						out = m.parts(out, int32(ci), member, pi, from, h, from.rank)
					}
				}
			}
		}
	}
	return sorted(out)
}

// allUnits are the units of sorted parts.
func (p *Plan) allUnits(parts []part) (out []unit) {
	var mem unitMemory
	for i := 0; i < len(parts); {
		n := i + 1
		for n < len(parts) && parts[n].stage == parts[i].stage && parts[n].peer == parts[i].peer {
			n++
		}
		out = p.units(out, parts[i:n], &mem)
		i = n
	}
	return out
}

// Dest is what destination rank receives: nothing if the plan has no such rank.
func (p *Plan) Dest(rank int) *Slice {
	s := p.newSlice(false, rank, p.dst)
	if s.Buffers == nil {
		return s
	}
	for _, u := range p.allUnits(p.received(rank)) {
		for _, r := range u.runs {
			r.From = 0
			s.Runs = append(s.Runs, r)
		}
	}
	slices.SortStableFunc(s.Runs, func(a, b Run) int {
		return cmp.Or(a.Stage-b.Stage, a.Peer-b.Peer, a.Buffer-b.Buffer, cmp.Compare(a.Offset, b.Offset))
	})
	for _, r := range p.dst.Pads {
		if r.Rank == rank {
			s.Pads = append(s.Pads, r)
		}
	}
	return s
}

func (p *Plan) newSlice(source bool, rank int, of *side) *Slice {
	s := &Slice{Plan: p.id, Source: source, Rank: rank, Stages: p.stages}
	if rank >= 0 && rank < len(of.Buffers) {
		s.Buffers = slices.Clone(of.Buffers[rank])
	}
	return s
}

// Source is what source rank does: nothing if the plan has no such rank.
func (p *Plan) Source(rank int) *Slice {
	s := p.newSlice(true, rank, p.src)
	if s.Buffers == nil {
		return s
	}
	b := &sourceBuilder{p: p, s: s, codecs: map[Codec]int{}, tensors: map[int]int{}}
	b.turn = rank * len(p.dst.Buffers) / len(p.src.Buffers)
	b.tables(p.sent(rank))
	return s
}

// shared is a unit that goes to several destinations.
type shared struct {
	unit
	runs  []Run
	peers []int32
}

// sourceBuilder makes one source's slice.
type sourceBuilder struct {
	p       *Plan
	s       *Slice
	turn    int // the destination that comes first
	codecs  map[Codec]int
	tensors map[int]int
	maxima  map[region]int
}

// tables gives the pairs of each stage their maxima, then makes the tasks.
func (b *sourceBuilder) tables(parts []part) {
	b.maxima = map[region]int{}
	var size []int
	for i := range parts {
		x := &parts[i]
		c := b.p.classes[x.class]
		if c.codec.Kind != fp8Kind {
			continue
		}
		if size == nil {
			size = make([]int, len(b.p.stages))
		}
		r := region{x.class, x.member, x.pair}
		if _, ok := b.maxima[r]; !ok {
			b.maxima[r] = size[x.stage]
			size[x.stage] += c.blocksOf(&c.pairs[x.pair])
		}
	}
	for stage, n := range size {
		if n > 0 {
			b.s.Amax = append(b.s.Amax, Amax{Stage: stage, Table: n})
		}
	}
	b.exchanges()
	b.tasks(b.group(b.p.allUnits(parts)))
}

// rotated is a destination's place in the order of this source.
func (b *sourceBuilder) rotated(rank int32) int {
	n := len(b.p.dst.Buffers)
	return (int(rank) - b.turn + n) % n
}

// group puts units together that have the same bytes, in order of execution.
func (b *sourceBuilder) group(units []unit) []*shared {
	var out []*shared
	known := map[region][]*shared{} // by their first part
	for i := range units {
		u := &units[i]
		x := &u.parts[0]
		key := region{x.class, x.member, x.pair}
		var g *shared
		for _, h := range known[key] {
			if h.direct == u.direct && slices.EqualFunc(h.parts, u.parts, func(x, y part) bool { return x.same(&y) }) {
				g = h
			}
		}
		if g == nil {
			g = &shared{unit: *u}
			known[key] = append(known[key], g)
			out = append(out, g)
		}
		g.runs = append(g.runs, u.runs...)
		g.peers = append(g.peers, x.peer)
	}
	for _, g := range out {
		slices.SortFunc(g.peers, func(x, y int32) int { return b.rotated(x) - b.rotated(y) })
		slices.SortStableFunc(g.runs, func(x, y Run) int { return b.rotated(int32(x.Peer)) - b.rotated(int32(y.Peer)) })
	}
	slices.SortStableFunc(out, func(x, y *shared) int {
		return cmp.Or(cmp.Compare(x.parts[0].stage, y.parts[0].stage), b.rotated(x.peers[0])-b.rotated(y.peers[0]))
	})
	return out
}

// tasks appends a task for each group, small ones for the same destinations together.
func (b *sourceBuilder) tasks(groups []*shared) {
	for _, g := range groups {
		n := len(b.s.Tasks)
		small := !g.direct && g.size < b.p.opts.SmallTensor
		if small && n > 0 && b.joins(&b.s.Tasks[n-1], g) {
			b.fill(&b.s.Tasks[n-1], g)
			continue
		}
		t := Task{Stage: int(g.parts[0].stage)}
		if g.direct {
			t.Buffer = int(g.parts[0].srcBuffer)
		}
		b.s.Tasks = append(b.s.Tasks, t)
		b.fill(&b.s.Tasks[n], g)
	}
}

// joins says that a group may go with the task before: one with the same destinations that is small.
func (b *sourceBuilder) joins(t *Task, g *shared) bool {
	if t.Stage != int(g.parts[0].stage) || t.Size == 0 || t.Size+g.size+align > max(b.p.opts.SmallTensor, 1) {
		return false
	}
	n := 0
	for i := range t.Runs {
		if i == 0 || t.Runs[i].Peer != t.Runs[i-1].Peer {
			if n == len(g.peers) || int(g.peers[n]) != t.Runs[i].Peer {
				return false
			}
			n++
		}
	}
	return n == len(g.peers)
}

// fill appends a group's pieces and runs to a task.
func (b *sourceBuilder) fill(t *Task, g *shared) {
	if g.direct {
		t.Runs = g.runs
		return
	}
	base := ceil(t.Size, align) * align
	for i := range g.parts {
		t.Pieces = append(t.Pieces, b.piece(&g.parts[i], base+g.values[i], base+g.scales[i]))
	}
	merged := len(t.Runs) > 0
	for _, r := range g.runs {
		r.From += base
		t.Runs = append(t.Runs, r)
	}
	if merged {
		slices.SortStableFunc(t.Runs, func(x, y Run) int { return b.rotated(int32(x.Peer)) - b.rotated(int32(y.Peer)) })
	}
	t.Size = base + g.size
}

func (b *sourceBuilder) piece(x *part, values, scales int64) Piece {
	c, q := b.p.classes[x.class], x.mold
	p := Piece{
		Codec: b.codec(c.codec), Tensor: b.tensor(c.members[x.member].dst), From: c.from, To: c.to, Shape: q.extent, Buffer: int(x.srcBuffer),
		Offset: x.from + q.from, SrcStride: q.src, Dst: values, DstStride: q.values.stride, Origin: q.lo,
	}
	if c.codec.Kind == fp8Kind {
		p.Maxima = b.maxima[region{x.class, x.member, x.pair}] + q.maxima
		p.BlockRows, p.BlockCols, p.ScaleLo, p.ScaleHi = q.rows, q.cols, q.scaleLo, q.scaleHi
		p.Scale, p.ScaleStride = scales, q.scales.stride
	}
	return p
}

func (b *sourceBuilder) codec(c Codec) int {
	i, ok := b.codecs[c]
	if !ok {
		i = len(b.s.Codecs)
		b.codecs[c] = i
		b.s.Codecs = append(b.s.Codecs, c)
	}
	return i
}

func (b *sourceBuilder) tensor(t int) int {
	i, ok := b.tensors[t]
	if !ok {
		i = len(b.s.Tensors)
		b.tensors[t] = i
		b.s.Tensors = append(b.s.Tensors, b.p.dst.Tensors[t].Name)
	}
	return i
}

// blocksOf is how many blocks a pair has parts of.
func (c *class) blocksOf(x *pair) int {
	n := len(x.lo) - 2
	r, s := int64(c.codec.Block[0]), int64(c.codec.Block[1])
	return int(boxVolume(x.lo[:n], x.hi[:n]) * (ceil(x.hi[n], r) - x.lo[n]/r) * (ceil(x.hi[n+1], s) - x.lo[n+1]/s))
}
