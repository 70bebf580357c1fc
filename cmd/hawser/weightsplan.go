package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/reshard/models"
)

type weightsPlanCmd struct {
	quietFlag
	pairFlags

	NIC     string `name:"nic" enum:"400g,378g" default:"400g" placeholder:"400g|378g" help:"Network card of a rank, for the bounds of time: the line rate, or what is measured of it (default: ${default})."`
	Explain string `placeholder:"TENSOR[I,J]" help:"Say where an element comes from, on each rank that gets it: which rank, which rows, which rule."`
	Out     string `short:"o" placeholder:"FILE" help:"Write the plan, for hawser weights simulate and inspect."`
}

// pairFlags name two layouts.
type pairFlags struct {
	Model   string `placeholder:"NAME" help:"A published model, on the meshes of a reference case."`
	Case    string `placeholder:"CASE" help:"Reference case (default: the first of the model)."`
	Reverse bool   `help:"From the inference layout back to the training layout, in the type of the source."`
	Src     string `placeholder:"FILE" help:"Layout of the source."`
	Dst     string `placeholder:"FILE" help:"Layout of the destination; its rules say how names change."`
}

// planned is the result in JSON.
type planned struct {
	weightsHead

	Model     string        `json:"model,omitempty"`
	Case      string        `json:"case,omitempty"`
	Plan      string        `json:"plan,omitempty"` // id
	Tensors   int           `json:"tensors"`        // of the checkpoint, with its scales; of files: of the destination
	Entries   int           `json:"entries"`        // of the plan, where experts may be stacked
	Sources   int           `json:"sources"`
	Dests     int           `json:"destinations"`
	Regions   int64         `json:"regions"`
	Writes    int64         `json:"writes"`
	Staged    int64         `json:"staged_bytes"`
	Bytes     int64         `json:"bytes"`
	Exchanged int64         `json:"exchanged_bytes"` // maxima of blocks that several sources hold parts of
	Grants    int           `json:"grants"`
	Imports   int           `json:"imports"`
	MaxImport int           `json:"max_imports"`
	PlanMS    float64       `json:"plan_ms"`
	Uncovered int64         `json:"uncovered_bytes"`
	Egress    egressJSON    `json:"egress"`
	Ingress   ingressJSON   `json:"ingress"`
	Dedup     dedupJSON     `json:"node_dedup"`
	NIC       string        `json:"nic"`
	Floor     float64       `json:"floor_ms"`
	Expected  float64       `json:"expected_ms"`
	Warnings  []string      `json:"warnings,omitempty"`
	Problems  []string      `json:"problems,omitempty"` // why there is no plan
	Explained []explainJSON `json:"explained,omitempty"`
}

type egressJSON struct {
	Avg  float64 `json:"avg_bytes"`
	Max  int64   `json:"max_bytes"`
	Skew float64 `json:"max_over_avg"`
	Rank int     `json:"busiest_rank"`
}

type ingressJSON struct {
	Avg float64 `json:"avg_bytes"`
	Max int64   `json:"max_bytes"`
}

type dedupJSON struct {
	Saved      int64 `json:"saved_bytes"`
	IngressMax int64 `json:"ingress_max_bytes"`
}

// explainJSON is where the element comes from on one rank of the destination.
type explainJSON struct {
	Rank   int     `json:"rank"`
	Source int     `json:"source_rank"`
	Tensor string  `json:"source_tensor"`
	Lo     []int64 `json:"lo"` // the box that it moves with
	Hi     []int64 `json:"hi"`
	Rule   string  `json:"rule"` // empty: the names are equal
	Stage  string  `json:"stage"`
	Others []int   `json:"other_source_ranks"`
	Text   string  `json:"text"`
}

// Help is shown below the first line of the help.
func (weightsPlanCmd) Help() string {
	return "Nothing is moved and no network is used. It takes --model, or --src and --dst. The exit status is 3 when there is no plan: the destination " +
		"needs bytes that no source has, or the layouts do not fit."
}

// Run plans.
func (c *weightsPlanCmd) Run(ctx context.Context, u *ui) error {
	c.hush(u)
	element, err := parseElement(c.Explain)
	if err != nil {
		return err
	}
	pair, err := c.pairFlags.read()
	if err != nil {
		return err
	}
	r := &planned{weightsHead: weightsResult("plan"), Model: pair.model, Case: pair.name, NIC: c.NIC, Tensors: pair.tensors}
	r.Sources, r.Dests = len(pair.src.Buffers), len(pair.dst.Buffers)
	u.status.show("weights plan: planning")
	begin := time.Now()
	p, err := reshard.Compute(ctx, pair.src, pair.dst, pair.rules, reshard.Options{})
	r.PlanMS = millis(time.Since(begin))
	if err != nil {
		return r.refused(u, err)
	}
	r.count(p, map[string]reshard.NIC{"400g": reshard.NIC400G, "378g": reshard.NIC378G}[c.NIC])
	if element != nil {
		if err := r.explain(p, element); err != nil {
			return err
		}
	}
	if c.Out != "" {
		err := writeFile(c.Out, func(w io.Writer) error { _, err := p.WriteTo(w); return err })
		if err != nil {
			return err
		}
	}
	r.print(u)
	return u.result(r)
}

// refused reports a pair without a plan.
func (r *planned) refused(u *ui, err error) error {
	var f *reshard.Fault
	if errors.As(err, &f) {
		r.Uncovered, r.Problems = f.Bytes, f.Lines
	}
	return errors.Join(err, u.result(r))
}

// count fills in what the plan costs.
func (r *planned) count(p *reshard.Plan, nic reshard.NIC) {
	s := p.Stats(nic)
	id := p.ID()
	r.Plan = fmt.Sprintf("%x", id[:])
	if r.Entries = s.Tensors; r.Tensors == 0 {
		r.Tensors = s.Tensors
	}
	r.Regions, r.Writes, r.Staged, r.Bytes, r.Exchanged, r.Uncovered = s.Regions, s.Writes, s.Staged, s.Bytes, s.Exchanged, s.Uncovered
	r.Grants, r.Imports, r.MaxImport = s.Grants, s.Imports, s.MaxImports
	r.Egress = egressJSON{s.Egress.Avg, s.Egress.Max, s.Egress.MaxOverAvg, s.Egress.BusiestRank}
	r.Ingress = ingressJSON{s.Ingress.Avg, s.Ingress.Max}
	r.Dedup = dedupJSON{s.Dedup, s.DedupMax}
	r.Floor, r.Expected, r.Warnings = s.FloorMS, s.ExpectedMS, s.Warnings
}

// pair is two layouts and how names of the source become names of the destination.
type layoutPair struct {
	src, dst    *reshard.Layout
	rules       []reshard.Rule
	model, name string
	tensors     int // of the checkpoint; 0: not known
}

// read generates the layouts, or reads them.
func (f *pairFlags) read() (*layoutPair, error) {
	files := f.Src != "" || f.Dst != ""
	switch {
	case files && (f.Model != "" || f.Case != "" || f.Reverse):
		return nil, usage("--src and --dst go without --model, --case and --reverse")
	case files && (f.Src == "" || f.Dst == ""):
		return nil, usage("--src and --dst come together")
	case files:
		src, rules, err := readLayout(f.Src)
		if err != nil {
			return nil, err
		}
		dst, more, err := readLayout(f.Dst)
		if err != nil {
			return nil, err
		}
		return &layoutPair{src: src, dst: dst, rules: append(rules, more...)}, nil
	case f.Model == "" && f.Case == "":
		return nil, usage("what to plan: give --model, or --src and --dst; models are %s", strings.Join(models.Names(), ", "))
	}
	c, err := models.Reference(f.Model, f.Case)
	if err != nil {
		return nil, usage("%w", err)
	}
	m, err := models.Lookup(c.Model)
	if err != nil {
		return nil, err
	}
	src, dst, err := c.Layouts(f.Reverse)
	if err != nil {
		return nil, err
	}
	return &layoutPair{src: src, dst: dst, model: c.Model, name: c.Name, tensors: m.Totals().Tensors}, nil
}

func readLayout(path string) (*reshard.Layout, []reshard.Rule, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, usage("%w", err)
	}
	defer f.Close()
	l, rules, err := reshard.ParseLayout(f)
	if err != nil {
		return nil, nil, layoutInput(path, err)
	}
	return l, rules, nil
}

// element names an element of a tensor.
type element struct {
	tensor string
	index  []int64
}

// parseElement reads "model.norm.weight[5]"; nil for nothing.
func parseElement(s string) (*element, error) {
	if s == "" {
		return nil, nil
	}
	name, rest, ok := strings.Cut(s, "[")
	inner, closed := strings.CutSuffix(rest, "]")
	e := &element{tensor: name}
	if !ok || !closed || name == "" {
		return nil, usage("--explain %s: want TENSOR[I,J], with an index for each dimension", s)
	}
	if inner == "" {
		return e, nil
	}
	for part := range strings.SplitSeq(inner, ",") {
		i, err := strconv.ParseInt(strings.TrimSpace(part), 10, 64)
		if err != nil || i < 0 {
			return nil, usage("--explain %s: %q is no index", s, part)
		}
		e.index = append(e.index, i)
	}
	return e, nil
}

func (r *planned) print(u *ui) {
	row := func(name, format string, args ...any) []string { return []string{name, fmt.Sprintf(format, args...)} }
	title := "plan"
	if r.Model != "" {
		title = fmt.Sprintf("plan of %s, case %s", r.Model, r.Case)
	}
	rows := [][]string{
		row("plan", "%.16s, in %.0f ms", r.Plan, r.PlanMS),
		row("tensors", "%d, %d entries of the plan", r.Tensors, r.Entries),
		row("ranks", "%d sources, %d destinations", r.Sources, r.Dests),
		row("regions, writes", "%d, %d", r.Regions, r.Writes),
		row("delivered", "%s; %s of it staged once", bytesText(r.Bytes), bytesText(r.Staged)),
		row("a source sends", "%s on average, rank %d most: %s, %.3f times as much", bytesText(int64(r.Egress.Avg)), r.Egress.Rank, bytesText(r.Egress.Max), r.Egress.Skew),
		row("a destination receives", "%s on average, %s at most", bytesText(int64(r.Ingress.Avg)), bytesText(r.Ingress.Max)),
		row("grants, imports", "%d, %d, of one source %d", r.Grants, r.Imports, r.MaxImport),
		row("once per node", "would save %s; %s at most for a destination", bytesText(r.Dedup.Saved), bytesText(r.Dedup.IngressMax)),
		row("floor, expected", "%.0f ms, %.0f ms at %s: bounds by arithmetic, nothing was measured", r.Floor, r.Expected, r.NIC),
	}
	if r.Exchanged > 0 {
		rows = append(rows, row("maxima exchanged", "%s, for blocks that several sources hold parts of", bytesText(r.Exchanged)))
	}
	u.table(title, []string{"", ""}, rows)
	for _, w := range r.Warnings {
		u.printf("warning: %s\n", w)
	}
	for _, e := range r.Explained {
		u.printf("%s\n", e.Text)
	}
}

// explain says where an element comes from, for each rank that gets it.
func (r *planned) explain(p *reshard.Plan, e *element) error {
	origins, err := p.Explain(e.tensor, e.index)
	if err != nil {
		return err
	}
	for _, o := range origins {
		rule := "the names are equal"
		if o.Rule != "" {
			rule = "rule " + o.Rule
		}
		codec := "as it is"
		if o.Codec.Kind != "" && o.Codec.Kind != "raw" {
			codec = "through " + o.Codec.Kind
		}
		text := fmt.Sprintf("%s%s on rank %d, buffer %d byte %d: from rank %d, %s, buffer %d byte %d, in the box %v to %v, %s; %s; stage %s",
			e.tensor, indexText(e.index), o.Rank, o.To.Buffer, o.To.Offset, o.Source, o.Tensor, o.Buffer, o.Offset, o.Lo, o.Hi, codec, rule, o.Stage)
		if n := len(o.Others); n > 0 {
			text += fmt.Sprintf("; %d other ranks hold it too", n)
		}
		r.Explained = append(r.Explained, explainJSON{o.Rank, o.Source, o.Tensor, o.Lo, o.Hi, o.Rule, o.Stage, o.Others, text})
	}
	return nil
}

func indexText(index []int64) string { return strings.ReplaceAll(fmt.Sprint(index), " ", ",") }
