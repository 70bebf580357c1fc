package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hawser-project/hawser/provider/sim"
	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/weights/schedule"
	"github.com/hawser-project/hawser/weights/weightsim"
)

type weightsSimulateCmd struct {
	quietFlag

	pairFlags

	Plan string `placeholder:"FILE" help:"A plan that hawser weights plan has written, instead of layouts."`

	Window  []int    `default:"16" placeholder:"N" help:"Receivers that a trainer writes to at once; several are simulated one after the other (default: ${default})."`
	PerDest int      `default:"4" placeholder:"N" help:"Writes in flight to each of them (default: ${default})."`
	Order   []string `default:"rotated" enum:"rotated,same" placeholder:"rotated|same" help:"With which receiver trainers begin: each with another one, or all with the same (default: ${default})."`
	NIC     string   `name:"nic" default:"400g" placeholder:"400g|378g|cx7|efa" help:"The network of each rank: a line rate in Gbit/s, of any number, with the costs of a ConnectX-7 (378g is what is measured of 400g), or a calibrated adapter (default: ${default})."`
	Rails   int      `default:"1" placeholder:"N" help:"Adapters that share the rate of each rank (default: ${default})."`
	OnGPU   bool     `name:"on-gpu" help:"The trainers' weights are in GPU memory already; else they are copied from the host's."`
	Fail    []string `placeholder:"SPEC" help:"What goes wrong: train-3@50% or train-3@300ms (the trainer dies), infer-0/nic2@50% (an adapter dies), train-7=0.5 (so fast its adapters are)."`
	Trace   string   `placeholder:"FILE" help:"Write what each rank did when as Chrome trace events."`
}

// Help is shown below the first line of the help.
func (weightsSimulateCmd) Help() string {
	return "Nothing is moved. The plan, the schedule of each publisher, the machines of the protocol and the placement on adapters are those of a real push, on " +
		"a simulated network and virtual time; copies, staging and the handling of messages take assumed times, which are printed."
}

// simulated is the result in JSON. Of several runs it is the first one.
type simulated struct {
	weightsHead
	simulatedRun

	Simulation  bool           `json:"simulation"` // always
	Model       string         `json:"model,omitempty"`
	Case        string         `json:"case,omitempty"`
	Plan        string         `json:"plan"`
	Sources     int            `json:"sources"`
	Dests       int            `json:"destinations"`
	NIC         string         `json:"nic"`
	Rails       int            `json:"rails"`
	PlanMS      float64        `json:"plan_ms"`
	Floor       float64        `json:"floor_ms"`
	Bytes       int64          `json:"bytes"`
	Egress      simulatedOut   `json:"egress"`
	Ingress     simulatedIn    `json:"ingress"`
	Runs        []simulatedRun `json:"runs"`
	Assumptions []string       `json:"assumptions"`

	first *weightsim.Timeline
}

type simulatedOut struct {
	Avg  float64 `json:"avg_bytes"`
	Max  int64   `json:"max_bytes"`
	Skew float64 `json:"max_over_avg"`
}

type simulatedIn struct {
	Max int64 `json:"max_bytes"`
}

// simulatedRun is what one setting took.
type simulatedRun struct {
	Window    int     `json:"window"`
	Order     string  `json:"order"`
	Expected  float64 `json:"expected_ms"` // BEGIN to the last DONE
	OfFloor   float64 `json:"of_floor"`
	Start     float64 `json:"start_ms"`
	FirstByte float64 `json:"first_byte_ms"`
	LastByte  float64 `json:"last_byte_ms"`
	Commit    float64 `json:"commit_ms"`
	Repaired  float64 `json:"repaired_ms,omitempty"`
	// of control connections, from BEGIN on
	Messages     int            `json:"messages"`
	MessageBytes int64          `json:"message_bytes"`
	MessageKinds map[string]int `json:"message_kinds"`
	Controller   float64        `json:"controller_busy_ms"`

	Resent int64 `json:"repaired_bytes,omitempty"`
	Writes int64 `json:"writes"`

	// of the average trainer
	Copy        float64 `json:"trainer_copy_ms"`
	Amax        float64 `json:"trainer_maxima_ms"`
	Stage       float64 `json:"trainer_stage_ms"`
	Post        float64 `json:"trainer_post_ms"`
	PeakStaging int64   `json:"trainer_peak_staging_bytes"`
	Seconds     float64 `json:"simulation_seconds"`
	Events      uint64  `json:"simulation_events"`
}

// Run simulates.
func (c *weightsSimulateCmd) Run(ctx context.Context, u *ui) (err error) {
	c.hush(u)
	faults, slow, err := parseFaults(c.Fail)
	if err == nil {
		err = c.check()
	}
	if err != nil {
		return err
	}
	var trace *os.File
	if c.Trace != "" { // before the work, so that a wrong path costs nothing
		if trace, err = os.Create(c.Trace); err != nil {
			return usage("--trace: %w", err)
		}
		defer func() { err = errors.Join(err, trace.Close()) }()
	}
	u.status.show("weights simulate: planning")
	r := &simulated{weightsHead: weightsResult("simulate"), Simulation: true, NIC: c.NIC, Rails: c.Rails}
	plan, err := c.plan(ctx, r)
	if err != nil {
		return err
	}
	id := plan.ID()
	r.Plan = fmt.Sprintf("%x", id[:])
	r.Sources, r.Dests = plan.Ranks()
	if err := c.simulate(ctx, u, plan, faults, slow, r); err != nil {
		return err
	}
	if trace != nil {
		if err := r.first.WriteTrace(trace); err != nil {
			return err
		}
	}
	r.print(u)
	return u.result(r)
}

// simulate runs every setting.
func (c *weightsSimulateCmd) simulate(ctx context.Context, u *ui, plan *reshard.Plan, faults []weightsim.Fault, slow map[string]float64, r *simulated) error {
	var notes []string
	for _, order := range c.Order {
		for _, window := range c.Window {
			o := c.options(slow)
			o.Faults, o.Same, o.Limits.Window = faults, order == "same", window
			o.Trace = c.Trace != "" && r.first == nil
			o.Progress = func(at time.Duration, n, of int64) {
				u.status.show("weights simulate, window %d, %s: %v, %s of %s", window, order, at.Round(time.Millisecond), bytesText(n), bytesText(of))
			}
			o.Note = func(at time.Duration, s string) { notes = append(notes, fmt.Sprintf("%.1f ms: %s", millis(at), s)) }
			begin := time.Now()
			t, err := weightsim.Run(ctx, plan, o)
			if err != nil {
				return err
			}
			r.add(t, window, order, time.Since(begin))
			if r.first == nil {
				r.first = t
				r.Assumptions = append(assumptions(o), notes...)
			}
		}
	}
	r.simulatedRun = r.Runs[0]
	return nil
}

func (c *weightsSimulateCmd) check() error {
	for _, w := range c.Window {
		if w < 1 {
			return usage("--window: %d, want at least 1", w)
		}
	}
	switch {
	case len(c.Window) == 0 || len(c.Order) == 0:
		return usage("--window, --order: nothing to simulate")
	case c.PerDest < 1:
		return usage("--per-dest: %d, want at least 1", c.PerDest)
	case c.Rails < 1 || c.Rails > 16:
		return usage("--rails: %d, want 1 .. 16", c.Rails)
	case c.line() == 0 && c.NIC != "cx7" && c.NIC != "efa":
		return usage("--nic %s: want a rate in Gbit/s as 400g or 378g, cx7 or efa", c.NIC)
	case c.Rails > 1 && c.line() == 0:
		return usage("--rails: --nic %s says how many adapters there are", c.NIC)
	}
	return nil
}

// plan reads or computes the plan; without any flag it is that of the reference case of Kimi-K2.
func (c *weightsSimulateCmd) plan(ctx context.Context, r *simulated) (*reshard.Plan, error) {
	if c.Plan != "" {
		if c.pairFlags != (pairFlags{}) {
			return nil, usage("--plan goes without --model, --case, --reverse, --src and --dst")
		}
		f, err := os.Open(c.Plan)
		if err != nil {
			return nil, usage("--plan: %w", err)
		}
		defer f.Close()
		p, err := reshard.ReadPlan(f)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.Plan, err)
		}
		return p, nil
	}
	if c.pairFlags == (pairFlags{}) {
		c.Case = "k2"
	}
	pair, err := c.read()
	if err != nil {
		return nil, err
	}
	r.Model, r.Case = pair.model, pair.name
	begin := time.Now()
	p, err := reshard.Compute(ctx, pair.src, pair.dst, pair.rules, reshard.Options{})
	r.PlanMS = millis(time.Since(begin))
	return p, err
}

// line is the line rate of --nic, 0 for adapters that have their own.
func (c *weightsSimulateCmd) line() uint64 {
	text, ok := strings.CutSuffix(c.NIC, "g")
	g, err := strconv.ParseFloat(text, 64)
	if !ok || err != nil || !(g >= 0.1 && g <= 1e5) {
		return 0
	}
	return uint64(g * 1e9)
}

func (c *weightsSimulateCmd) nics() []sim.NIC {
	switch c.NIC {
	case "cx7":
		return sim.ConnectX7()
	case "efa":
		return sim.EFA2x200()
	}
	return weightsim.Split(c.line(), c.Rails)
}

func (c *weightsSimulateCmd) options(slow map[string]float64) weightsim.Options {
	o := weightsim.Options{NICs: c.nics(), Limits: schedule.Limits{PerDest: c.PerDest}, Hosts: map[string][]sim.NIC{}}
	for host, speed := range slow {
		nics := c.nics()
		for i := range nics {
			nics[i].LinkBits = uint64(float64(nics[i].LinkBits) * speed)
		}
		o.Hosts[host] = nics
	}
	if c.OnGPU {
		o.CopyRate = -1
	}
	return o
}

// parseFaults reads --fail: places that fail at a time or a share, and hosts with their speed.
func parseFaults(specs []string) (faults []weightsim.Fault, slow map[string]float64, err error) {
	slow = map[string]float64{}
	for _, s := range specs {
		if host, text, ok := strings.Cut(s, "="); ok {
			speed, err := strconv.ParseFloat(text, 64)
			if err != nil || !(speed > 0 && speed <= 1) {
				return nil, nil, usage("--fail %s: a speed above 0 and up to 1 follows the '='", s)
			}
			slow[host] = speed
			continue
		}
		place, when, ok := strings.Cut(s, "@")
		f := weightsim.Fault{Place: place}
		if share, percent := strings.CutSuffix(when, "%"); percent {
			f.Share, err = strconv.ParseFloat(share, 64)
			f.Share /= 100
			ok = ok && f.Share > 0 && f.Share < 1
		} else {
			f.At, err = time.ParseDuration(when)
			ok = ok && f.At > 0
		}
		if err != nil || !ok || place == "" {
			return nil, nil, usage("--fail %s: want HOST@50%%, HOST@300ms, HOST/nicN@... or HOST=0.5, with hosts train-N and infer-N", s)
		}
		faults = append(faults, f)
	}
	return faults, slow, nil
}

func (r *simulated) add(t *weightsim.Timeline, window int, order string, took time.Duration) {
	m := t.Mean()
	r.Runs = append(r.Runs, simulatedRun{
		Window: window, Order: order, Expected: millis(t.Total), OfFloor: float64(t.Total) / float64(t.Floor),
		Start: millis(t.Start), FirstByte: millis(t.FirstByte), LastByte: millis(t.LastByte), Commit: millis(t.Commit()),
		Repaired: millis(t.Repaired), Resent: t.Resent, Writes: t.Writes,
		Messages: t.Control.Messages, MessageBytes: t.Control.Bytes, MessageKinds: t.Control.Kinds, Controller: millis(t.Control.Busy),
		Copy: millis(m.Copy), Amax: millis(m.Amax), Stage: millis(m.Stage), Post: millis(m.Post), PeakStaging: m.Peak,
		Seconds: took.Seconds(), Events: t.Events,
	})
	r.Floor, r.Bytes = millis(t.Floor), t.Bytes
	r.Egress = simulatedOut{t.AvgOut, t.MaxOut, float64(t.MaxOut) / max(t.AvgOut, 1)}
	r.Ingress = simulatedIn{t.MaxIn}
}

// paper is what the reference published of a push with the same numbers of ranks (arXiv 2510.27656), ms of one rank.
type paper struct {
	total                                    float64
	copy, gather, fuse, quantize, post, wait float64 // 0: not published
}

var papers = map[string]paper{
	"Kimi-K2":         {total: 1233, copy: 184, gather: 518, fuse: 18, quantize: 88, post: 26, wait: 357 + 42},
	"Qwen3-235B-A22B": {total: 1690},
}

func (r *simulated) print(u *ui) {
	what := strings.TrimSuffix(r.Model+", "+r.Case, ", ")
	if r.Model == "" {
		what = "a push"
	}
	u.printf("SIMULATION of %s: %d trainers to %d inference ranks, %d x %s each\n", what, r.Sources, r.Dests, r.Rails, r.NIC)
	u.printf("plan %.16s: %s; busiest trainer sends %s (%.3f of the average), busiest receiver gets %s\n",
		r.Plan, bytesText(r.Bytes), bytesText(r.Egress.Max), r.Egress.Skew, bytesText(r.Ingress.Max))
	r.printStages(u)
	if len(r.Runs) > 1 {
		r.printRuns(u)
	}
	u.printf("%.1f ms, %.3f of the floor of %.1f ms (the busiest adapter at line rate)\n", r.Expected, r.OfFloor, r.Floor)
	u.printf("simulated in %.1f s, %d events. Assumed:\n", r.Seconds, r.Events)
	for _, a := range r.Assumptions {
		u.printf("  - %s\n", a)
	}
}

// printStages is what an average trainer is busy with, beside what the reference published of its own.
func (r *simulated) printStages(u *ui) {
	p, known := papers[r.Model]
	cell := func(v float64) string {
		if v == 0 {
			return ""
		}
		return fmt.Sprintf("%.0f", v)
	}
	rest := max(r.LastByte-max(r.Copy, r.Amax+r.Stage, r.Post), 0)
	rows := [][]string{
		{"copy from host memory", cell(p.copy), fmt.Sprintf("%.1f", r.Copy), "hidden behind the writes"},
		{"gather whole tensors", cell(p.gather), "0.0", "shards are written directly"},
		{"fuse projections", cell(p.fuse), "0.0", "staging packs in the receiver's order"},
		{"quantize: maxima", "", fmt.Sprintf("%.1f", r.Amax), "of blocks that straddle shards, hidden"},
		{"quantize, pack", cell(p.quantize), fmt.Sprintf("%.1f", r.Stage), "hidden"},
		{"post writes", cell(p.post), fmt.Sprintf("%.1f", r.Post), fmt.Sprintf("%d writes of a trainer, hidden", r.Writes/int64(max(r.Sources, 1)))},
		{"wait for adapters", cell(p.wait), fmt.Sprintf("%.1f", rest), "what no other step hides"},
		{"until START", "", fmt.Sprintf("%.1f", r.Start), "BEGIN, grants; part of the total"},
		{"until the first byte", "", fmt.Sprintf("%.1f", r.FirstByte), ""},
		{"until the last byte", "", fmt.Sprintf("%.1f", r.LastByte), ""},
		{"commit", "", fmt.Sprintf("%.1f", r.Commit), "digests, PREPARED, decision, DONE"},
		{"controller is busy", "", fmt.Sprintf("%.1f", r.Controller), fmt.Sprintf("%d messages, %s, hidden but for START and commit", r.Messages, bytesText(r.MessageBytes))},
		{"total", cell(p.total), fmt.Sprintf("%.1f", r.Expected), ""},
	}
	if p.gather == 0 {
		rows = slices.Delete(rows, 1, 3)
	}
	title := "ms of an average trainer, window " + strconv.Itoa(r.Window) + ", " + r.Order
	header := []string{"step", "published", "simulated", ""}
	if !known {
		header[1] = ""
	}
	u.table(title, header, rows)
}

func (r *simulated) printRuns(u *ui) {
	var rows [][]string
	for _, x := range r.Runs {
		rows = append(rows, []string{x.Order, strconv.Itoa(x.Window), fmt.Sprintf("%.1f", x.Expected), fmt.Sprintf("%.3f", x.OfFloor)})
	}
	u.table("receivers in flight", []string{"order", "window", "ms", "of the floor"}, rows)
}

// assumptions are what a simulation took for granted.
func assumptions(o weightsim.Options) []string {
	return slices.Concat(o.Assumptions(), []string{
		"pause and resume of the engines, hooks and digests take no time",
	})
}
