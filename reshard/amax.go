package reshard

import (
	"slices"
	"sync"
)

// straddle says that two pairs of one destination cell have parts of the same blocks: the box [lo, hi), in blocks.
type straddle struct {
	p, q   int32
	lo, hi []int64
}

// straddles finds the blocks that sources share.
func (c *class) straddles(shape []int64) {
	for d := range c.dst {
		pairs := c.pairs[c.byDst[d]:c.byDst[d+1]]
		boxes, cut := make([]cell, len(pairs)), false
		for i := range pairs {
			lo, hi, whole := c.blockBox(pairs[i].lo, pairs[i].hi, shape)
			boxes[i] = cell{lo: lo, hi: hi}
			cut = cut || !whole
		}
		if !cut {
			continue
		}
		o := newOverlaps(boxes, len(shape))
		for i := range boxes {
			from := len(c.shared)
			o.each(boxes[i].lo, boxes[i].hi, func(j int32) {
				if int(j) > i {
					lo, hi := intersect(boxes[i].lo, boxes[i].hi, boxes[j].lo, boxes[j].hi)
					c.shared = append(c.shared, straddle{c.byDst[d] + int32(i), c.byDst[d] + j, lo, hi})
				}
			})
			slices.SortFunc(c.shared[from:], func(a, b straddle) int { return int(a.q - b.q) })
		}
	}
}

// senders appends the holders of a pair's source cell that send it to anybody, in order.
func (p *Plan) senders(out []int32, c *class, pair int32, member int) []int32 {
	x := &c.pairs[pair]
	to := c.dst[x.dst].holders
	from := len(out)
	for k := range to {
		if p.skips(to[k].rank, c.members[member].stage) {
			continue
		}
		if r := int32(c.chosen(x, member, k)); !slices.Contains(out[from:], r) {
			out = append(out, r)
		}
		if x.first < 0 {
			break
		}
	}
	slices.Sort(out[from:])
	return out
}

// partners calls f for the ranks that exchange the maxima of a straddle of a member, the sender of pair p first. Every sender of either
// pair meets at least one of the other. It uses and returns scratch.
func (p *Plan) partners(c *class, s *straddle, member int, scratch []int32, f func(x, y int)) []int32 {
	scratch = p.senders(scratch[:0], c, s.p, member)
	n := len(scratch)
	scratch = p.senders(scratch, c, s.q, member)
	a, b := scratch[:n], scratch[n:]
	for i := 0; len(a) > 0 && len(b) > 0 && i < max(len(a), len(b)); i++ {
		f(c.src[c.pairs[s.p].src].holders[a[i%len(a)]].rank, c.src[c.pairs[s.q].src].holders[b[i%len(b)]].rank)
	}
	return scratch
}

// inboxes says where in whose inbox the maxima of a stage go: how many blocks each two ranks exchange in each stage. Both ways are the
// same number, in the same order.
type inboxes struct {
	once   sync.Once
	ranks  int
	blocks [][]int32 // by stage: a matrix of ranks; nil: none in this stage
	before [][]int64 // by stage, rank: entries of the rank's inbox that earlier stages use
}

// fill counts, once.
func (b *inboxes) fill(p *Plan) {
	b.once.Do(func() {
		b.ranks = len(p.src.Buffers)
		b.blocks = make([][]int32, len(p.stages))
		var scratch []int32
		for _, c := range p.classes {
			for k := range c.shared {
				n := int32(boxVolume(c.shared[k].lo, c.shared[k].hi))
				for m := range c.members {
					stage := c.members[m].stage
					if b.blocks[stage] == nil {
						b.blocks[stage] = make([]int32, b.ranks*b.ranks)
					}
					t := b.blocks[stage]
					scratch = p.partners(c, &c.shared[k], m, scratch, func(x, y int) {
						if x != y {
							t[x*b.ranks+y] += n
							t[y*b.ranks+x] += n
						}
					})
				}
			}
		}
		sum := make([]int64, b.ranks)
		for _, t := range b.blocks {
			b.before = append(b.before, slices.Clone(sum))
			for i, n := range t {
				sum[i/b.ranks] += int64(n)
			}
		}
	})
}

// at is where in the inbox of rank its partner writes, in bytes.
func (b *inboxes) at(stage, rank, partner int) int64 {
	n := b.before[stage][rank]
	for _, k := range b.blocks[stage][rank*b.ranks:][:partner] {
		n += int64(k)
	}
	return n * 4
}

// exchanges fills in what a source trades with which partner, in the order of classes, members and straddles, which is theirs too.
func (b *sourceBuilder) exchanges() {
	rank := b.s.Rank
	var scratch []int32
	byStage := make([]map[int]*Exchange, len(b.p.stages))
	for ci, c := range b.p.classes {
		for k := range c.shared {
			s := &c.shared[k]
			if !c.holds(s.p, rank) && !c.holds(s.q, rank) {
				continue
			}
			for m := range c.members {
				stage := c.members[m].stage
				scratch = b.p.partners(c, s, m, scratch, func(x, y int) {
					p := region{int32(ci), int32(m), s.p}
					q := region{int32(ci), int32(m), s.q}
					switch {
					case x == rank && y == rank:
						b.merge(stage, c, p, q, s)
					case x == rank:
						b.trade(byStage, stage, y, c, p, s)
					case y == rank:
						b.trade(byStage, stage, x, c, q, s)
					}
				})
			}
		}
	}
	for i := range b.s.Amax {
		a := &b.s.Amax[i]
		for partner, x := range byStage[a.Stage] {
			x.Rank = partner
			x.Inbox, x.Answer = b.p.inbox.at(a.Stage, partner, rank), b.p.inbox.at(a.Stage, rank, partner)
			a.Peers = append(a.Peers, *x)
		}
		slices.SortFunc(a.Peers, func(x, y Exchange) int { return x.Rank - y.Rank })
	}
}

func (c *class) holds(pair int32, rank int) bool {
	return slices.ContainsFunc(c.src[c.pairs[pair].src].holders, func(h holder) bool { return h.rank == rank })
}

func (b *sourceBuilder) trade(byStage []map[int]*Exchange, stage, partner int, c *class, r region, s *straddle) {
	if byStage[stage] == nil {
		byStage[stage] = map[int]*Exchange{}
	}
	x := byStage[stage][partner]
	if x == nil {
		b.p.inbox.fill(b.p)
		x = &Exchange{}
		byStage[stage][partner] = x
	}
	x.Blocks = c.ranges(x.Blocks, &c.pairs[r.pair], b.maxima[r], s)
}

// merge notes blocks of which this source has two pieces itself.
func (b *sourceBuilder) merge(stage int, c *class, p, q region, s *straddle) {
	one, two := c.ranges(nil, &c.pairs[p.pair], b.maxima[p], s), c.ranges(nil, &c.pairs[q.pair], b.maxima[q], s)
	i := slices.IndexFunc(b.s.Amax, func(a Amax) bool { return a.Stage == stage })
	b.s.Amax[i].Own = append(b.s.Amax[i].Own, Same{one, two})
}

// ranges appends the entries that a straddle has in the table of a pair, which begins at base: matrix by matrix, row by row.
func (c *class) ranges(out []BlockRange, x *pair, base int, s *straddle) []BlockRange {
	n := len(x.lo) - 2
	h, w := int64(c.codec.Block[0]), int64(c.codec.Block[1])
	rows, cols := ceil(x.hi[n], h)-x.lo[n]/h, ceil(x.hi[n+1], w)-x.lo[n+1]/w
	index := slices.Clone(s.lo)
	for {
		at := int64(0)
		for d := range n {
			at = at*(x.hi[d]-x.lo[d]) + index[d] - x.lo[d]
		}
		at = (at*rows+index[n]-x.lo[n]/h)*cols + s.lo[n+1] - x.lo[n+1]/w
		r := BlockRange{base + int(at), int(s.hi[n+1] - s.lo[n+1])}
		if k := len(out); k > 0 && out[k-1].First+out[k-1].Len == r.First {
			out[k-1].Len += r.Len
		} else {
			out = append(out, r)
		}
		d := n
		for ; d >= 0; d-- {
			if index[d]++; index[d] < s.hi[d] {
				break
			}
			index[d] = s.lo[d]
		}
		if d < 0 {
			return out
		}
	}
}
