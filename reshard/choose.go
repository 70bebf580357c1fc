package reshard

import (
	"cmp"
	"slices"
)

// flow is the regions of one pair of a class whose source can be chosen: count of size bytes each.
type flow struct {
	class, pair int
	size        int64
	count       int64
	quota       []int64 // by holder of the source cell; sums to count
}

// choose decides which of several holders sends. Bytes first: pairs in descending size, each poured over its holders until they stand
// level; then places: regions are dealt in rotation, so that a destination always meets the same few sources and no two destinations of
// a node meet the same one at the same time.
func (p *Plan) choose() {
	p.out, p.in = make([]int64, len(p.src.Buffers)), make([]int64, len(p.dst.Buffers))
	var flows []flow
	for ci, c := range p.classes {
		for i := range c.pairs {
			x := &c.pairs[i]
			from := c.src[x.src].holders
			count := int64(p.moving(c, x))
			p.arrive(c, x)
			switch {
			case count == 0:
			case x.first < 0:
				p.out[from[0].rank] += count * x.bytes
			default:
				flows = append(flows, flow{class: ci, pair: i, size: x.bytes, count: count, quota: make([]int64, len(from))})
			}
		}
	}
	slices.SortStableFunc(flows, func(a, b flow) int { return cmp.Compare(b.size, a.size) })
	for i := range flows {
		p.pour(&flows[i], i)
	}
	for round := 0; round < maxRounds && p.skew() > maxSkew; round++ {
		for i := range flows {
			p.drain(&flows[i])
			p.pour(&flows[i], i)
		}
	}
	for i := range flows {
		p.deal(&flows[i])
	}
}

// arrive counts what the holders of a pair's destination receive.
func (p *Plan) arrive(c *class, x *pair) {
	to := c.dst[x.dst].holders
	if p.skip == nil {
		for k := range to {
			p.in[to[k].rank] += int64(len(c.members)) * x.bytes
		}
		return
	}
	for _, l := range c.members {
		for k := range to {
			if !p.skips(to[k].rank, l.stage) {
				p.in[to[k].rank] += x.bytes
			}
		}
	}
}

const (
	maxRounds = 8    // of refinement
	maxSkew   = 1.02 // greatest egress over the average that needs none
)

// skew is the greatest egress over the average.
func (p *Plan) skew() float64 {
	sum, most := int64(0), int64(0)
	for _, b := range p.out {
		sum, most = sum+b, max(most, b)
	}
	if sum == 0 {
		return 1
	}
	return float64(most) * float64(len(p.out)) / float64(sum)
}

// drain takes a flow off its holders.
func (p *Plan) drain(f *flow) {
	from := p.classes[f.class].src[p.classes[f.class].pairs[f.pair].src].holders
	for r := range from {
		p.out[from[r].rank] -= f.quota[r] * f.size
	}
}

// pour spreads a flow over its holders so that the greatest egress of them is as small as can be; what is left over goes to the least
// loaded, beginning with another holder for each flow.
func (p *Plan) pour(f *flow, turn int) {
	from := p.classes[f.class].src[p.classes[f.class].pairs[f.pair].src].holders
	n := len(from)
	order := make([]int, n)
	for i := range order {
		order[i] = (i + turn) % n
	}
	load := func(r int) int64 { return p.out[from[r].rank] }
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(load(a), load(b)) })
	size := max(f.size, 1)
	total, used, level := f.count*size, 0, int64(0) // total: bytes of the flow and of the holders that it reaches
	for used < n && (used == 0 || load(order[used]) <= level) {
		total += load(order[used])
		used++
		level = total / int64(used)
	}
	clear(f.quota)
	left := f.count
	for _, r := range order[:used] {
		f.quota[r] = max((level-load(r))/size, 0)
		left -= f.quota[r]
	}
	slices.SortStableFunc(order[:used], func(a, b int) int {
		return cmp.Compare(load(a)+f.quota[a]*size, load(b)+f.quota[b]*size)
	})
	for i := int64(0); i < left; i++ {
		f.quota[order[i%int64(used)]]++
	}
	for r := range from {
		p.out[from[r].rank] += f.quota[r] * f.size
	}
}

// deal gives each region of a flow its source: the holder whose turn it is, or the next that has something left. Where ranks have places,
// holders on the destination's node come first, then those on its rail.
func (p *Plan) deal(f *flow) {
	c := p.classes[f.class]
	x := &c.pairs[f.pair]
	from, to := c.src[x.src].holders, c.dst[x.dst].holders
	n := len(from)
	choice := c.choice[x.first:][:len(c.members)*len(to)]
	far := p.distances(from, to)
	r := int(p.opts.Seed % uint64(n))
	for i := range choice {
		k := i % len(to)
		if p.skip != nil && p.skips(to[k].rank, c.members[i/len(to)].stage) {
			continue
		}
		for f.quota[r] == 0 {
			r = next(r, n)
		}
		take := r
		if far != nil {
			for s, left := next(r, n), n-1; left > 0; s, left = next(s, n), left-1 {
				if f.quota[s] > 0 && far[k*n+s] < far[k*n+take] {
					take = s
				}
			}
		}
		f.quota[take]--
		choice[i] = uint16(take)
		r = next(r, n)
	}
}

// distances of holders: 0 on the same node, 1 on the same rail, else 2; by destination, then source. It is nil if no destination has a choice.
func (p *Plan) distances(from, to []holder) []uint8 {
	s, d := &p.src.Topo, &p.dst.Topo
	if (s.Node == nil || d.Node == nil) && (s.Rail == nil || d.Rail == nil) {
		return nil
	}
	far, matters := make([]uint8, len(from)*len(to)), false
	for k := range to {
		for r := range from {
			a, b := from[r].rank, to[k].rank
			x := &far[k*len(from)+r]
			switch {
			case s.Node != nil && d.Node != nil && s.Node[a] == d.Node[b]:
			case s.Rail != nil && d.Rail != nil && s.Rail[a] == d.Rail[b]:
				*x = 1
			default:
				*x = 2
			}
			matters = matters || *x != far[k*len(from)]
		}
	}
	if !matters {
		return nil
	}
	return far
}

func next(r, n int) int {
	if r++; r == n {
		return 0
	}
	return r
}
