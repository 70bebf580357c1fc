package layout

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
)

// Span is tokens [First, N) of a prompt: those that the destination lacks.
type Span struct {
	First, N int
}

// Plan is what one attempt moves. It is immutable, and small: the pattern is the pair's.
type Plan struct {
	pair     *Pair
	seq      uint64
	spans    []Span
	units    []Span // by group: first and end
	expected []uint64
	bytes    uint64
	digest   uint64
}

// MakePlan is NewPair and Pair.Plan, for a pair that has only one plan.
func MakePlan(src, dst *Topology, spans []Span, seq uint64, o Options) (*Plan, error) {
	p, err := NewPair(src, dst, o)
	if err != nil {
		return nil, err
	}
	return p.Plan(spans, seq)
}

// Spans are those of a prompt of n tokens of which the destination has the first, by group. With a window, only what lies in it
// moves. First is rounded down to a page of the destination.
func (p *Pair) Spans(first, n int) []Span {
	var spans []Span
	for _, g := range p.dst.Members[0].Groups {
		from := min(first, n)
		if g.Window > 0 {
			from = max(from, n-g.Window)
		}
		spans = append(spans, Span{from - from%g.PageTokens, n})
	}
	return spans
}

// Plan plans an attempt: a span per group, and the attempt's number, which decides who of several replicas sends what. A span's
// first token begins a page of the destination, or is the span's end: then nothing of the group moves, as when the destination has
// no layer of it. Errors are ErrInvalid.
func (p *Pair) Plan(spans []Span, seq uint64) (*Plan, error) {
	if len(spans) != len(p.grids) {
		return nil, fmt.Errorf("%w: %d spans, there are %d groups", ErrInvalid, len(spans), len(p.grids))
	}
	pl := &Plan{pair: p, seq: seq, spans: append([]Span(nil), spans...), units: make([]Span, len(spans)), expected: make([]uint64, len(p.src.Members))}
	for i, s := range spans {
		page := p.grids[i].dstPage
		switch {
		case s.First < 0 || s.N < s.First || s.N > MaxTokens:
			return nil, fmt.Errorf("%w: span of group %d: [%d, %d), want 0 <= first <= end <= %d", ErrInvalid, i, s.First, s.N, MaxTokens)
		case s.First == s.N || !p.wanted[i]: // nothing, at unit 0
		case s.First%page != 0:
			return nil, fmt.Errorf("%w: span of group %d begins at token %d, want a multiple of the decode side's page, %d tokens", ErrInvalid, i, s.First, page)
		default:
			pl.units[i] = Span{p.grids[i].whole(s.First), p.grids[i].cover(s.N)}
		}
	}
	for i := range p.flows {
		f := &p.flows[i]
		u := pl.units[f.group]
		writes, bytes := f.count(u.First, u.N, f.turn(seq))
		pl.expected[p.srcRanks[f.src].member] += writes * uint64(f.lanes)
		pl.bytes += bytes * uint64(f.lanes)
	}
	pl.digest = pl.sum()
	return pl, nil
}

// sum is the digest: of both topologies, the spans, seq, and what every member owes.
func (p *Plan) sum() uint64 {
	b := append(make([]byte, 0, 256), p.pair.hash[:]...)
	for _, s := range p.spans {
		b = binary.LittleEndian.AppendUint64(b, uint64(s.First))
		b = binary.LittleEndian.AppendUint64(b, uint64(s.N))
	}
	b = binary.LittleEndian.AppendUint64(b, p.seq)
	for _, n := range p.expected {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	h := sha256.Sum256(b)
	return binary.LittleEndian.Uint64(h[:])
}

// Pair is the pair that made the plan.
func (p *Plan) Pair() *Pair { return p.pair }

// Expected is how many writes, each with an immediate, a member of the source posts. The tail is not among them.
func (p *Plan) Expected(member int) uint64 { return p.expected[member] }

// Writes is the sum of Expected over all members.
func (p *Plan) Writes() (n uint64) {
	for _, e := range p.expected {
		n += e
	}
	return n
}

// LayerWrites is how many writes of one layer a rank of a source member posts.
func (p *Plan) LayerWrites(member, rank, layer int) (n uint64) {
	u := p.units[p.pair.src.Members[0].GroupOf(layer)]
	for _, l := range p.pair.Lanes(member, rank, layer) {
		f := &p.pair.flows[l.flow]
		writes, _ := f.count(u.First, u.N, f.turn(p.seq))
		n += writes
	}
	return n
}

// Bytes is what all writes together move.
func (p *Plan) Bytes() uint64 { return p.bytes }

// Digest is the same on both sides exactly if they have the same topologies, spans and seq, and plan the same counts.
func (p *Plan) Digest() uint64 { return p.digest }

// Span is what was planned of a group.
func (p *Plan) Span(group int) Span { return p.spans[group] }

// Units are the units [first, end) of a group that move.
func (p *Plan) Units(group int) (first, end int) { return p.units[group].First, p.units[group].N }

// UnitStart is the first token of a unit. It may be beyond the span.
func (p *Plan) UnitStart(group, unit int) int { return p.pair.grids[group].start(unit) }

// Ready is the end of the units that may be sent when tokens [0, computed) of a layer are computed: those that end there or before, and
// all when the whole span is computed. It is never below the first unit.
func (p *Plan) Ready(group, computed int) int {
	u := p.units[group]
	if computed >= p.spans[group].N {
		return u.N
	}
	return min(max(p.pair.grids[group].whole(max(computed, 0)), u.First), u.N)
}

// SrcPages are the logical pages [first, end) of the source that the writes of a group read, and DstPages those of the destination
// that they write.
func (p *Plan) SrcPages(group int) (first, end int) {
	g := p.pair.grids[group]
	return g.pages(p.units[group].First, p.units[group].N, g.srcPage)
}

// DstPages are the logical pages [first, end) of the destination that the writes of a group write.
func (p *Plan) DstPages(group int) (first, end int) {
	g := p.pair.grids[group]
	return g.pages(p.units[group].First, p.units[group].N, g.dstPage)
}
