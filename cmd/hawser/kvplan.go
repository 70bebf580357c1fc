package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hawser-project/hawser/kv/layout"
)

type planCmd struct {
	modelFlags

	Src planSide `embed:"" prefix:"src-"`
	Dst planSide `embed:"" prefix:"dst-"`

	Tokens int    `default:"16384" help:"Length of the prompt (default: ${default})."`
	First  int    `default:"0" help:"Tokens that the decode side has (default: ${default})."`
	Seq    uint64 `default:"0" help:"Number of the attempt, by which replicas take turns (default: ${default})."`

	MinWrite         size `default:"4KiB" help:"Smallest write that is feasible (default: ${default})."`
	AllowSmallWrites bool `help:"Plan smaller writes too."`
}

// planSide is one of the two instances.
type planSide struct {
	TP           int          `name:"tp" placeholder:"N" help:"Tensor-parallel ranks (default: the geometry's)."`
	PP           int          `name:"pp" placeholder:"N" help:"Pipeline stages (default: the geometry's)."`
	Page         int          `placeholder:"TOKENS" help:"Tokens of a page (default: the geometry's)."`
	Order        layout.Order `default:"HND" placeholder:"HND|NHD" help:"Order of heads and tokens in a page (default: ${default})."`
	Members      int          `default:"1" placeholder:"N" help:"Processes over which the ranks are spread evenly (default: ${default})."`
	LayerRegions bool         `help:"A memory region for each layer of a rank, instead of one for each rank."`
}

// planResult is a plan in JSON.
type planResult struct {
	Geometry       string     `json:"geometry"`
	Spans          []planSpan `json:"spans"` // by group of layers
	Flows          []planFlow `json:"flows"`
	WritesPerLayer []uint64   `json:"writes_per_layer"`
	Writes         uint64     `json:"writes"`
	Bytes          uint64     `json:"bytes"`
	SmallestWrite  int64      `json:"smallest_write"`
	Expected       []uint64   `json:"expected"` // by member of the prefill side
	Digest         string     `json:"digest"`
	plan           *layout.Plan
}

type planSpan struct {
	First int `json:"first"`
	End   int `json:"end"`
	Units int `json:"units"`
}

// planFlow is what one rank writes to another. Ranks are numbered over the whole instance.
type planFlow struct {
	Src     int         `json:"src_rank"`
	Dst     int         `json:"dst_rank"`
	Group   int         `json:"group"`
	Turns   int         `json:"replicas"` // ranks that take turns
	Arrays  int         `json:"arrays"`   // layers times planes
	SrcFold int         `json:"src_fold"`
	DstFold int         `json:"dst_fold"`
	Entries []planEntry `json:"entries"` // by unit of a period
}

type planEntry struct {
	Len    int64      `json:"len"`
	SrcOff int64      `json:"src_off"`
	DstOff int64      `json:"dst_off"`
	Dims   [2]planDim `json:"dims"` // n writes, so many bytes apart, for each of the other's
}

type planDim struct {
	N   int   `json:"n"`
	Src int64 `json:"src_step"`
	Dst int64 `json:"dst_step"`
}

// Help is shown below the first line of the help.
func (planCmd) Help() string {
	return "Nothing is moved and no network is used. The exit status is 1 when the pair is infeasible."
}

// Run prints the plan.
func (c *planCmd) Run(u *ui) error {
	if err := c.check(); err != nil {
		return err
	}
	m, err := c.model()
	if err != nil {
		return err
	}
	src, err := c.Src.topology("--src", m, c.Tokens)
	if err != nil {
		return err
	}
	dst, err := c.Dst.topology("--dst", m, c.Tokens)
	if err != nil {
		return err
	}
	pair, err := layout.NewPair(src, dst, layout.Options{MinWrite: max(1, int64(c.MinWrite)), AllowSmallWrites: c.AllowSmallWrites})
	if err != nil {
		return fmt.Errorf("kv plan: %w", err)
	}
	p, err := pair.Plan(pair.Spans(c.First, c.Tokens), c.Seq)
	if err != nil {
		return fmt.Errorf("kv plan: %w", err)
	}
	r := newPlanResult(m.Name, p)
	r.print(u)
	return u.result(r)
}

func (c *planCmd) check() error {
	switch {
	case c.Tokens < 0 || c.Tokens > layout.MaxTokens:
		return usage("--tokens: %d, want 0 .. %d", c.Tokens, layout.MaxTokens)
	case c.First < 0 || c.First > c.Tokens:
		return usage("--first: %d, want 0 .. %d, the length of the prompt", c.First, c.Tokens)
	}
	return nil
}

// topology is the side with pages for so many tokens.
func (s *planSide) topology(flag string, m layout.Model, tokens int) (*layout.Topology, error) {
	spec := layout.Spec{Model: m, TP: s.TP, PP: s.PP, PageTokens: s.Page, Order: s.Order, LayerRegions: s.LayerRegions}
	whole, _, err := layout.Build(spec)
	if err != nil {
		return nil, usage("%s-tp, %[1]s-pp, %[1]s-page: %w", flag, err)
	}
	for _, g := range whole.Groups {
		spec.Pages = max(1, spec.Pages, (tokens+g.PageTokens-1)/g.PageTokens)
	}
	if s.Members < 1 || len(whole.Ranks)%s.Members != 0 {
		return nil, usage("%s-members: %d, want a divisor of the %d ranks", flag, s.Members, len(whole.Ranks))
	}
	t := &layout.Topology{}
	spec.Ranks = len(whole.Ranks) / s.Members
	for range s.Members {
		g, _, err := layout.Build(spec)
		if err != nil {
			return nil, usage("--tokens, %s-page: %w", flag, err)
		}
		t.Members = append(t.Members, g)
		spec.First += spec.Ranks
	}
	return t, nil
}

func newPlanResult(name string, p *layout.Plan) *planResult {
	pair := p.Pair()
	src, dst := pair.Src(), pair.Dst()
	r := &planResult{Geometry: name, Writes: p.Writes(), Bytes: p.Bytes(), SmallestWrite: pair.MinWrite(), Digest: fmt.Sprintf("%016x", p.Digest()), plan: p}
	for i := range src.Members[0].Groups {
		first, end := p.Units(i)
		r.Spans = append(r.Spans, planSpan{p.Span(i).First, p.Span(i).N, end - first})
	}
	r.WritesPerLayer = make([]uint64, src.Members[0].Layers)
	for m := range src.Members {
		r.Expected = append(r.Expected, p.Expected(m))
		for rank := range src.Members[m].Ranks {
			for layer := range r.WritesPerLayer {
				r.WritesPerLayer[layer] += p.LayerWrites(m, rank, layer)
			}
		}
	}
	for _, f := range pair.Flows() {
		flow := planFlow{
			Src: src.Members[f.SrcMember].Ranks[f.SrcRank].Index, Dst: dst.Members[f.DstMember].Ranks[f.DstRank].Index,
			Group: f.Group, Turns: f.Replicas, Arrays: f.Lanes, SrcFold: f.SrcFold, DstFold: f.DstFold,
		}
		for _, e := range f.Entries {
			flow.Entries = append(flow.Entries, planEntry{e.Len, e.SrcOff, e.DstOff, [2]planDim{planDim(e.Dims[0]), planDim(e.Dims[1])}})
		}
		r.Flows = append(r.Flows, flow)
	}
	return r
}

// maxPlanRows is how many entries are printed; JSON has all.
const maxPlanRows = 32

func (r *planResult) print(u *ui) {
	var rows [][]string
	for _, f := range r.Flows {
		for i, e := range f.Entries {
			each := "all"
			if len(f.Entries) > 1 {
				each = fmt.Sprintf("%d of %d", i, len(f.Entries))
			}
			rows = append(rows, []string{
				fmt.Sprint(f.Src), fmt.Sprint(f.Dst), fmt.Sprint(f.Group), fmt.Sprint(f.Turns), fmt.Sprint(f.Arrays), each, size(e.Len).String(),
				fmt.Sprint(e.Dims[0].N * e.Dims[1].N), offset(e.SrcOff, e.Dims[0].Src, e.Dims[1].Src, f.SrcFold), offset(e.DstOff, e.Dims[0].Dst, e.Dims[1].Dst, f.DstFold),
			})
		}
	}
	more := len(rows) - maxPlanRows
	u.table("plan of "+r.Geometry, []string{
		"from rank", "to rank", "group", "take turns", "layers × planes", "unit", "bytes", "writes per unit", "at, in the source page", "at, in the destination page",
	}, rows[:min(len(rows), maxPlanRows)])
	if more > 0 {
		u.printf("and %d more, all of them with --json\n", more)
	}
	for i, s := range r.Spans {
		u.printf("group %d: tokens %d to %d in %d units\n", i, s.First, s.End, s.Units)
	}
	least, most := slices.Min(r.WritesPerLayer), slices.Max(r.WritesPerLayer)
	perLayer := strconv.FormatUint(least, 10)
	if least != most {
		perLayer = fmt.Sprintf("%d to %d", least, most)
	}
	var owed []string
	for _, n := range r.Expected {
		owed = append(owed, strconv.FormatUint(n, 10))
	}
	u.printf("%d writes, %s per layer, %d bytes, smallest write %v\n", r.Writes, perLayer, r.Bytes, size(r.SmallestWrite))
	u.printf("expected of each writer: %s\ndigest %s\n", strings.Join(owed, ", "), r.Digest)
}

// offset is where the writes of a unit begin: "512 + 128i + 4096j", and "+ 1/8 page" from unit to unit.
func offset(first, step0, step1 int64, fold int) string {
	s := strconv.FormatInt(first, 10)
	if step0 != 0 {
		s += fmt.Sprintf(" + %di", step0)
	}
	if step1 != 0 {
		s += fmt.Sprintf(" + %dj", step1)
	}
	if fold > 1 {
		s += fmt.Sprintf(" + 1/%d page per unit", fold)
	}
	return s
}
