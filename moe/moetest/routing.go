package moetest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// Shape bounds a routing. Expert e is on rank e / Local.
type Shape struct {
	Ranks, Tokens, Experts, TopK int // Tokens of a rank at most
}

// Local is how many experts a rank has, at most; the last ranks may have fewer, or none.
func (s Shape) Local() int { return (s.Experts + s.Ranks - 1) / s.Ranks }

// RankOf is the rank of an expert.
func (s Shape) RankOf(expert int) int { return expert / s.Local() }

// experts of a rank: the first and the end.
func (s Shape) experts(rank int) (first, end int) {
	return min(rank*s.Local(), s.Experts), min((rank+1)*s.Local(), s.Experts)
}

func (s Shape) check() error {
	for _, f := range []struct {
		name      string
		v, lo, hi int
	}{
		{"ranks", s.Ranks, 1, 4096},
		{"tokens", s.Tokens, 1, 1 << 24},
		{"experts", s.Experts, 1, 1 << 16},
		{"top-k", s.TopK, 1, min(max(s.Experts, 1), 1<<10)},
	} {
		if f.v < f.lo || f.v > f.hi {
			return fmt.Errorf("routing: %s %d, want %d .. %d", f.name, f.v, f.lo, f.hi)
		}
	}
	if ids := int64(s.Ranks) * int64(s.Tokens) * int64(s.TopK); ids > maxIDs {
		return fmt.Errorf("routing: %d ids, want at most %d", ids, maxIDs)
	}
	return nil
}

// maxIDs of a routing: 2 GiB of ids and weights.
const maxIDs = 1 << 28

// kind of a distribution.
type kind uint8

const (
	distUniform kind = iota
	distZipf         // expert number i, in an order of the seed, has a chance in proportion to 1/(i+1)^s
	distHot          // a share of all ids goes to few experts
	distOne          // one expert
	distRank         // all experts of one rank
	distDummy        // all tokens of all ranks are alike
	distSelf         // experts of the own rank
	distNone         // no experts: all ids are -1
	distSingle       // one token in the world
	distDup          // all ids of a token are the same
	distCycle        // experts of the next rank, or of the one so many ranks on as the step says
	distNode         // experts of few nodes, other ones for each token
	distMix          // another one each step
	dists
)

var kindNames = [dists]string{"uniform", "zipf", "hot", "one", "rank", "dummy", "self", "none", "single", "dup", "cycle", "node", "mix"}

// Dist is a distribution of ids. The zero value is uniform.
type Dist struct {
	kind  kind
	param float64 // zipf: the exponent; hot: the share
}

// DistNames lists all distributions, for help and usage.
func DistNames() string {
	names := slices.Clone(kindNames[:])
	names[distZipf], names[distHot] = "zipf[:s]", "hot[:p]"
	return strings.Join(names, ", ")
}

// ParseDist parses "uniform", "zipf:1.2" and the like.
func ParseDist(text string) (Dist, error) {
	name, param, with := strings.Cut(text, ":")
	k := kind(slices.Index(kindNames[:], name))
	if k >= dists {
		return Dist{}, fmt.Errorf("routing %q: want one of %s", text, DistNames())
	}
	d := Dist{kind: k}
	lo, hi := 0.0, 0.0
	switch k {
	case distZipf:
		d.param, lo, hi = 1.2, 0.01, 8
	case distHot:
		d.param, lo, hi = 0.9, 0.01, 1
	}
	if !with {
		return d, nil
	}
	p, err := strconv.ParseFloat(param, 64)
	if err != nil || !(p >= lo && p <= hi) || hi == 0 {
		return Dist{}, fmt.Errorf("routing %q: want one of %s, s from 0.01 to 8, p from 0.01 to 1", text, DistNames())
	}
	d.param = p
	return d, nil
}

// String is what ParseDist takes.
func (d Dist) String() string {
	if d.kind == distZipf || d.kind == distHot {
		return kindNames[d.kind] + ":" + strconv.FormatFloat(d.param, 'g', -1, 64)
	}
	return kindNames[d.kind]
}

// Routing is which experts the tokens of all ranks go to in one step, with which weights.
type Routing struct {
	Shape

	Seed    uint64
	Dist    Dist
	N       []int     // tokens of each rank
	IDs     []int32   // [Ranks][Tokens][TopK]; -1 is no expert, as are all of tokens that a rank does not have
	Weights []float32 // likewise; 0 where there is no token
}

// NewRouting makes a routing of a shape, without tokens.
func NewRouting(s Shape) (*Routing, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	n := s.Ranks * s.Tokens * s.TopK
	return &Routing{Shape: s, N: make([]int, s.Ranks), IDs: make([]int32, n), Weights: make([]float32, n)}, nil
}

// ID and Weight are those of a column of a token.
func (r *Routing) ID(rank, token, column int) int { return int(r.IDs[r.at(rank, token)+column]) }

// Weight is that of a column of a token.
func (r *Routing) Weight(rank, token, column int) float32 { return r.Weights[r.at(rank, token)+column] }

// Row are the ids and weights of a rank, of the tokens that it has.
func (r *Routing) Row(rank int) (ids []int32, weights []float32) {
	lo := r.at(rank, 0)
	hi := lo + r.N[rank]*r.TopK
	return r.IDs[lo:hi], r.Weights[lo:hi]
}

func (r *Routing) at(rank, token int) int { return (rank*r.Tokens + token) * r.TopK }

// Records counts the records from each rank to each rank: [from*Ranks + to].
func (r *Routing) Records() []int {
	n := make([]int, r.Ranks*r.Ranks)
	for i := range r.Ranks {
		ids, _ := r.Row(i)
		for _, e := range ids {
			if e >= 0 {
				n[i*r.Ranks+r.RankOf(int(e))]++
			}
		}
	}
	return n
}

// Draw makes routings of one distribution, a step each. Not for several goroutines.
type Draw struct {
	dist  Dist
	seed  uint64
	vary  bool
	rng   *rand.Rand
	pcg   *rand.PCG
	order []int     // experts, the most wanted first
	sums  []float64 // of zipf: the chance of one of the first i+1
	of    Shape     // that order and sums are for
}

// NewDraw makes the routings of a seed. vary: ranks have any number of tokens, 0 included; else all have as many as there may be.
func NewDraw(d Dist, seed uint64, vary bool) *Draw {
	pcg := rand.NewPCG(0, 0)
	return &Draw{dist: d, seed: seed, vary: vary, rng: rand.New(pcg), pcg: pcg}
}

// Step fills r with the routing of a step, which depends on nothing but the step and what the Draw was made of.
func (d *Draw) Step(r *Routing, step uint64) {
	if d.of != r.Shape {
		d.prepare(r.Shape)
	}
	d.pcg.Seed(d.seed, step)
	r.Seed, r.Dist = d.seed, d.dist
	k, masked := d.dist, false
	if k.kind == distMix {
		if k.kind = kind(d.rng.IntN(int(distMix))); k.kind == distHot {
			k.param = 0.9
		}
		masked = d.rng.IntN(4) == 0
	}
	d.tokens(r, k.kind)
	for i := range r.IDs {
		r.IDs[i], r.Weights[i] = -1, 0
	}
	p := d.plan(r.Shape, k, step)
	for from := range r.Ranks {
		p.rank = from
		for t := range r.N[from] {
			lo := r.at(from, t)
			ids, weights := r.IDs[lo:lo+r.TopK], r.Weights[lo:lo+r.TopK]
			d.token(p, ids)
			for j := range weights {
				weights[j] = float32(1+d.rng.IntN(1<<10)) / (1 << 10)
				if masked && d.rng.IntN(8) == 0 {
					ids[j] = -1
				}
			}
		}
	}
}

// prepare makes what depends on the shape and the seed only.
func (d *Draw) prepare(s Shape) {
	d.of = s
	d.pcg.Seed(d.seed, math.MaxUint64)
	d.order = d.rng.Perm(s.Experts)
	exponent := d.dist.param
	if d.dist.kind != distZipf {
		exponent = 1.2
	}
	d.sums = make([]float64, s.Experts)
	sum := 0.0
	for i := range d.sums {
		sum += math.Pow(float64(i+1), -exponent)
		d.sums[i] = sum
	}
}

func (d *Draw) tokens(r *Routing, k kind) {
	lucky := -1
	if k == distSingle {
		lucky = d.rng.IntN(r.Ranks)
	}
	for i := range r.N {
		switch {
		case k == distSingle && i == lucky:
			r.N[i] = 1
		case k == distSingle:
			r.N[i] = 0
		case !d.vary:
			r.N[i] = r.Tokens
		case d.rng.IntN(8) == 0:
			r.N[i] = 0
		default:
			r.N[i] = d.rng.IntN(r.Tokens + 1)
		}
	}
}

// plan is what a step decides for all its tokens.
type plan struct {
	Shape

	dist  Dist
	rank  int     // whose tokens are made
	all   []int32 // dummy, one: the ids of every token
	to    int     // rank: the rank that all want
	shift int     // cycle
	hots  int
	nodes int // ranks of a node
	width int // nodes that a token may want
}

func (d *Draw) plan(s Shape, k Dist, step uint64) *plan {
	p := &plan{Shape: s, dist: k, to: d.rng.IntN(s.Ranks), shift: 1 + int(step%uint64(max(1, s.Ranks-1))), hots: max(s.TopK, s.Experts/16)}
	p.nodes = max(1, min(8, s.Ranks/8))
	p.width = max(1, min(4, s.Ranks/p.nodes/2))
	switch k.kind {
	case distOne:
		p.all = []int32{int32(d.rng.IntN(s.Experts))}
	case distDummy:
		p.all = make([]int32, s.TopK)
		d.among(p.all, 0, s.Experts)
	}
	return p
}

// token chooses the ids of one token, which are -1 before.
func (d *Draw) token(p *plan, ids []int32) {
	switch p.dist.kind {
	case distUniform, distSingle:
		d.among(ids, 0, p.Experts)
	case distZipf:
		d.distinct(ids, func() int {
			x := d.rng.Float64() * d.sums[len(d.sums)-1]
			return d.order[min(sort.SearchFloat64s(d.sums, x), len(d.order)-1)]
		})
	case distHot:
		d.distinct(ids, func() int {
			if d.rng.Float64() < p.dist.param {
				return d.order[d.rng.IntN(p.hots)]
			}
			return d.rng.IntN(p.Experts)
		})
	case distOne, distDummy:
		copy(ids, p.all)
	case distRank:
		d.ofRank(p, ids, p.to)
	case distSelf:
		d.ofRank(p, ids, p.rank)
	case distCycle:
		d.ofRank(p, ids, (p.rank+p.shift)%p.Ranks)
	case distDup:
		e := int32(d.rng.IntN(p.Experts))
		for j := range ids {
			ids[j] = e
		}
	case distNode:
		d.ofNodes(p, ids)
	}
}

// distinct draws ids until all are different. After many draws it takes what is left, in order.
func (d *Draw) distinct(ids []int32, draw func() int) {
	for j := range ids {
		for tries := 0; ; tries++ {
			e := int32(draw())
			if tries > 64 {
				for e = 0; slices.Contains(ids[:j], e); e++ {
				}
			}
			if !slices.Contains(ids[:j], e) {
				ids[j] = e
				break
			}
		}
	}
}

// among chooses different experts from first to end, as many as there are; other ids stay -1.
func (d *Draw) among(ids []int32, first, end int) {
	if n := end - first; n > 0 {
		d.distinct(ids[:min(len(ids), n)], func() int { return first + d.rng.IntN(n) })
	}
}

func (d *Draw) ofRank(p *plan, ids []int32, rank int) {
	first, end := p.experts(rank)
	d.among(ids, first, end)
}

// ofNodes chooses nodes, then experts of all of them in turn.
func (d *Draw) ofNodes(p *plan, ids []int32) {
	nodes := (p.Ranks + p.nodes - 1) / p.nodes
	chosen := make([]int32, p.width)
	d.among(chosen, 0, nodes)
	for i, j := 0, 0; j < len(ids) && i < 4*len(ids); i++ {
		n := int(chosen[i%len(chosen)])
		first, _ := p.experts(n * p.nodes)
		_, end := p.experts(min((n+1)*p.nodes, p.Ranks) - 1)
		if end <= first {
			continue
		}
		if e := int32(first + d.rng.IntN(end-first)); !slices.Contains(ids[:j], e) {
			ids[j] = e
			j++
		}
	}
}
