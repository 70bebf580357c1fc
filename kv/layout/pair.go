package layout

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
)

// DefaultMinWrite is Options.MinWrite when that is 0. Below, the cost per write is that of the network's slowest part.
const DefaultMinWrite = 4 << 10

// Limits of a pattern. The largest instances in use need a tenth.
const (
	maxLanes   = 1 << 19
	maxEntries = 1 << 16
)

// ErrInfeasible: the two sides fit together, but not well enough, or the source lacks something.
var ErrInfeasible = errors.New("infeasible")

// Options of a pair. Each side may have its own: they change no plan.
type Options struct {
	MinWrite         int64 // bytes that the smallest write must have; 0: DefaultMinWrite
	AllowSmallWrites bool
}

// Pair is what the plans of one source and one destination have in common: which ranks write what to whom, in a pattern that
// repeats. It is immutable.
type Pair struct {
	src, dst  *Topology
	srcRanks  []rankRef
	firstRank []int // by member: number of its first rank in srcRanks
	dstRanks  []rankRef
	grids     []*grid // by group
	wanted    []bool  // by group: the destination has a layer of it
	flows     []flow
	lanes     []Lane
	starts    [][]int // [source rank][layer within it], and one more: first of its lanes
	templates []Template
	minWrite  int64
	hash      [sha256.Size]byte // of both topologies
}

// rankRef is a rank of a topology.
type rankRef struct {
	member, rank int
	*Rank
}

// Lane is all that one source rank writes of one plane of one layer into one destination rank. A destination that takes the heads
// of several source ranks has a lane of each, or several.
type Lane struct {
	flow     uint32
	Template uint32 // number of what the writes have in common, below Pair.Templates
	Layer    uint16 // of the model
	Plane    uint8
}

// Template is what a prepared WritePages must know. Many lanes share one.
type Template struct {
	SrcMember, SrcRegion int
	SrcStride            int64
	DstMember, DstRegion int
	DstStride            int64
}

// NewPair works out the pattern of writes from src to dst. It keeps both, which must not change. The errors are ErrInvalid, a
// *MismatchError, or ErrInfeasible, of which *SmallWriteError is one.
func NewPair(src, dst *Topology, o Options) (*Pair, error) {
	if err := src.Check(); err != nil {
		return nil, fmt.Errorf("prefill side: %w", err)
	}
	if err := dst.Check(); err != nil {
		return nil, fmt.Errorf("decode side: %w", err)
	}
	if f := src.Members[0].differs(&dst.Members[0], false); f != nil {
		return nil, f
	}
	p := &Pair{src: src, dst: dst, srcRanks: src.ranks(), dstRanks: dst.ranks()}
	for i, g := range src.Members[0].Groups {
		gr, err := newGrid(g.PageTokens, dst.Members[0].Groups[i].PageTokens)
		if err != nil {
			return nil, fmt.Errorf("%w: group %d: %w", ErrInfeasible, i, err)
		}
		p.grids = append(p.grids, gr)
	}
	for i, r := range p.srcRanks {
		if r.rank == 0 {
			p.firstRank = append(p.firstRank, i)
		}
	}
	p.wanted = make([]bool, len(p.grids))
	b := builder{Pair: p, flowOf: map[flowKey]uint32{}, templateOf: map[Template]uint32{}}
	if err := b.build(); err != nil {
		return nil, err
	}
	b.sum()
	return p, p.checkSmall(o)
}

func (t *Topology) ranks() []rankRef {
	var all []rankRef
	for m := range t.Members {
		for i := range t.Members[m].Ranks {
			all = append(all, rankRef{m, i, &t.Members[m].Ranks[i]})
		}
	}
	return all
}

// sum hashes both topologies, for the digests of the plans.
func (p *Pair) sum() {
	b := p.src.AppendBinary(nil)
	p.hash = sha256.Sum256(p.dst.AppendBinary(b))
}

// Src is the source that the pair was made with, and Dst the destination.
func (p *Pair) Src() *Topology { return p.src }

// Dst is the destination that the pair was made with.
func (p *Pair) Dst() *Topology { return p.dst }

// MinWrite is the length of the shortest write, in bytes.
func (p *Pair) MinWrite() int64 { return p.minWrite }

// Templates are what the batches of all plans refer to. They must not be changed.
func (p *Pair) Templates() []Template { return p.templates }

// Lanes are those of one layer of the model on one rank of a source member, numbered as in the member: what Plan.Cursor goes
// over. There are none when the rank does not hold the layer, or nobody wants it from there.
func (p *Pair) Lanes(member, rank, layer int) []Lane {
	i := p.firstRank[member] + rank
	if !p.srcRanks[i].HasLayer(layer) {
		return nil
	}
	s := p.starts[i][layer-p.srcRanks[i].LayerFirst:]
	return p.lanes[s[0]:s[1]]
}

// Flow describes the lanes of one source rank, one destination rank and one layout, for people.
type Flow struct {
	SrcMember, SrcRank int // SrcRank and DstRank are numbers within the member
	DstMember, DstRank int
	Group              int
	Replicas           int     // source ranks that take turns
	Lanes              int     // layers times planes that have it
	SrcFold, DstFold   int     // parts of the page stride; where there are several, one entry stands for all units, each one part after the last
	Entries            []Entry // by unit of a period; a single one stands for all units
}

// Flows are all flows of the pair.
func (p *Pair) Flows() []Flow {
	var all []Flow
	for i := range p.flows {
		f := &p.flows[i]
		s, d := p.srcRanks[f.src], p.dstRanks[f.dst]
		all = append(all, Flow{s.member, s.rank, d.member, d.rank, f.group, f.replicas, f.lanes, f.srcFold, f.dstFold, slices.Clone(f.entries)})
	}
	return all
}

// SmallWriteError says that a pair needs writes that are too short. It is ErrInfeasible.
type SmallWriteError struct {
	Len, Min         int64
	Layer            int
	Src, Dst         Strides
	SrcPage, DstPage int64 // bytes of a page of one plane on the rank
}

func (e *SmallWriteError) Error() string {
	return fmt.Sprintf("infeasible: layer %d needs writes of %d bytes, want at least %d: pages have %d bytes on the prefill side (strides: head %d, token %d) "+
		"and %d on the decode side (head %d, token %d): use the same order of heads and tokens, head first when ranks differ, or larger pages, or allow small writes",
		e.Layer, e.Len, e.Min, e.SrcPage, e.Src.Head, e.Src.Token, e.DstPage, e.Dst.Head, e.Dst.Token)
}

// Unwrap makes it ErrInfeasible.
func (e *SmallWriteError) Unwrap() error { return ErrInfeasible }

// checkSmall finds the shortest write, and refuses it if it is too short.
func (p *Pair) checkSmall(o Options) error {
	var worst *Lane
	for i := range p.lanes {
		for _, e := range p.flows[p.lanes[i].flow].entries {
			if worst == nil || e.Len < p.minWrite {
				p.minWrite, worst = e.Len, &p.lanes[i]
			}
		}
	}
	limit := o.MinWrite
	if limit == 0 {
		limit = DefaultMinWrite
	}
	if worst == nil || o.AllowSmallWrites || p.minWrite >= limit {
		return nil
	}
	f := &p.flows[worst.flow]
	src, dst := p.views(worst)
	sg, dg := p.src.Members[0].Groups[f.group], p.dst.Members[0].Groups[f.group]
	return &SmallWriteError{
		Len: p.minWrite, Min: limit, Layer: int(worst.Layer), Src: src.Strides, Dst: dst.Strides,
		SrcPage: sg.PageBytes(p.srcRanks[f.src].Heads), DstPage: dg.PageBytes(p.dstRanks[f.dst].Heads),
	}
}

// views are the two ends of a lane.
func (p *Pair) views(l *Lane) (src, dst *View) {
	f := &p.flows[l.flow]
	s, d := p.srcRanks[f.src], p.dstRanks[f.dst]
	return &s.Views[int(l.Layer)-s.LayerFirst][l.Plane], &d.Views[int(l.Layer)-d.LayerFirst][l.Plane]
}
