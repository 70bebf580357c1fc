package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/bench"
	"github.com/hawser-project/hawser/bench/moebench"
	"github.com/hawser-project/hawser/bench/versus"
	"github.com/hawser-project/hawser/internal/proc"
	"github.com/hawser-project/hawser/moe"
	"github.com/hawser-project/hawser/moe/proto"
)

type (
	moeBenchCmd struct {
		quietFlag

		Ranks    int     `default:"2" placeholder:"N" help:"Processes (default: ${default})."`
		Shape    string  `default:"decode" placeholder:"NAME" help:"decode, prefill: DeepSeek-V3 with 128 or 2048 tokens of each rank; small: 8 tokens; pair: rows of 1 KiB, one for each pair of ranks (default: ${default})."`
		Tokens   int     `placeholder:"N" help:"Tokens of each rank, in place of the shape's; pair: rows that each rank sends."`
		Hidden   int     `placeholder:"N" help:"Elements of a row, likewise."`
		Experts  int     `placeholder:"N" help:"Experts, likewise."`
		TopK     int     `name:"topk" placeholder:"N" help:"Experts of a token, likewise."`
		DType    string  `name:"dtype" placeholder:"TYPE" help:"Of rows, likewise: fp8 with a scale for 128 elements, or bf16. Results are bf16."`
		Routing  string  `placeholder:"NAME|FILE" help:"Which experts tokens choose, likewise: ${routings}, each (all in turn), or a routing file."`
		Seed     uint64  `default:"1" help:"Of the routing (default: ${default})."`
		Provider network `default:"shm" placeholder:"NAME" help:"Network: ${networks} (default: ${default})."`

		Peer   []string `placeholder:"NAME" help:"Measure others beside ours: mpi (MPI_Alltoallv of OpenMPI), gloo (all_to_all_single of torch.distributed)."`
		Torch  string   `default:"python3" placeholder:"PYTHON" help:"The Python that has torch, for gloo (default: ${default})."`
		Keep   string   `placeholder:"DIR" help:"Install peers into DIR, and leave them there."`
		Rounds int      `default:"7" help:"Rounds that count, after one that does not; everybody takes a turn in each (default: ${default})."`
		Warm   int      `default:"50" help:"Steps of a turn that do not count (default: ${default})."`
		Steps  int      `placeholder:"N" help:"Steps of a turn that count (default: 500, or 50 with more than 1024 tokens; of a simulation 20, or 3)."`

		SVG     string `name:"svg" placeholder:"FILE" help:"Draw the result: a simulation by ranks, a measurement as distributions."`
		Sizes   bool   `help:"Print what the shape costs in memory, and measure nothing."`
		Sim     string `placeholder:"ep=N,N" help:"Simulate so many ranks in place of measuring: ep=8,16,32,64."`
		Profile string `default:"cx7" enum:"cx7,efa" placeholder:"NAME" help:"Adapters of a simulation: cx7 (one of 400 Gbit/s) or efa (two of 200) (default: ${default})."`
	}

	// moeRankCmd is the process of a rank.
	moeRankCmd struct{}
)

// Run serves the measuring process.
func (moeRankCmd) Run(ctx context.Context) error { return moebench.Serve(ctx) }

// manyTokens is from where on a step is long.
const manyTokens = 1024

// Run measures, or simulates.
func (c *moeBenchCmd) Run(ctx context.Context, u *ui) error {
	c.hush(u)
	s, err := c.shape()
	if err != nil {
		return err
	}
	if c.Steps == 0 {
		c.Steps = c.steps(s.Tokens > manyTokens)
	}
	var r *moebench.Report
	switch {
	case c.Sizes:
		r, err = c.sizes(u, s)
	case c.Sim != "":
		r, err = c.simulate(ctx, u, s)
	default:
		r, err = c.measure(ctx, u, s)
	}
	if errors.Is(err, hawser.ErrInvalid) {
		return &usageError{err}
	}
	if err != nil {
		return err
	}
	r.Command, r.Machine, r.Revision, r.Began = os.Args, bench.ThisMachine(), thisVersion().Revision, time.Now().UTC()
	if err := u.result(r); err != nil {
		return err
	}
	if c.SVG != "" && !c.Sizes {
		if err := drawInto(c.SVG, func(w io.Writer) error { return drawMoE(w, r) }); err != nil {
			return fmt.Errorf("moe bench: %w", err)
		}
	}
	if r.Row != nil && r.MismatchedBytes != nil && *r.MismatchedBytes > 0 {
		return fmt.Errorf("moe bench: %d bytes were wrong", *r.MismatchedBytes)
	}
	return nil
}

func (c *moeBenchCmd) steps(long bool) int {
	switch {
	case c.Sim != "" && long:
		return 3
	case c.Sim != "":
		return 20
	case long:
		return 50
	}
	return 500
}

func (c *moeBenchCmd) shape() (moebench.Shape, error) {
	s, err := moebench.Named(c.Shape, c.Ranks)
	if err != nil {
		return s, &usageError{err}
	}
	for _, f := range []struct {
		flag string
		v    int
		to   *int
	}{{"tokens", c.Tokens, &s.Tokens}, {"hidden", c.Hidden, &s.Hidden}, {"experts", c.Experts, &s.Experts}, {"topk", c.TopK, &s.TopK}} {
		if f.v < 0 {
			return s, usage("--%s: %d, want 1 or more", f.flag, f.v)
		}
		if f.v > 0 {
			*f.to = f.v
		}
	}
	if c.DType != "" {
		s.DType = c.DType
	}
	if c.Routing != "" {
		s.Routing = c.Routing
	}
	switch {
	case c.Ranks < 1:
		return s, usage("--ranks: %d, want 1 or more", c.Ranks)
	case c.Rounds < 1 || c.Warm < 0 || c.Steps < 0:
		return s, usage("--rounds, --steps: want 1 or more; --warm: 0 or more")
	}
	for _, p := range c.Peer {
		if !slices.Contains(versus.Exchangers(), p) {
			return s, usage("--peer %s: want %s", p, strings.Join(versus.Exchangers(), ", "))
		}
	}
	return s, nil
}

func (c *moeBenchCmd) sizes(u *ui, s moebench.Shape) (*moebench.Report, error) {
	config, err := s.Config()
	if err != nil {
		return nil, err
	}
	z, err := moe.Sizes(config)
	if err != nil {
		return nil, err
	}
	printSizes(u, s, &z)
	return &moebench.Report{Schema: moebench.Schema, Shape: s, Routing: s.Routing, Seed: c.Seed, Sizes: &z}, nil
}

func printSizes(u *ui, s moebench.Shape, z *proto.SizeReport) {
	l, g := &z.Layout, &z.Regions
	u.table(fmt.Sprintf("memory of a lane: %d ranks, %d tokens, hidden %d, %d experts, top-%d, %s", s.Ranks, s.Tokens, s.Hidden, s.Experts, s.TopK, s.DType),
		[]string{"region", "bytes", ""}, [][]string{
			{"headers and first records", bytesText(g.Heads), fmt.Sprintf("%d records of %d bytes of each source", l.FirstChunk, l.Dispatch)},
			{"pool", bytesText(g.Pool), fmt.Sprintf("%d chunks of %d records", l.PoolChunks, l.ChunkRecords)},
			{"results", bytesText(g.Results), fmt.Sprintf("%d records of %d bytes", l.Records(), l.Combine)},
			{"to send", bytesText(g.Send), ""},
			{"results to send", bytesText(g.Y), fmt.Sprintf("%d records", l.YRows)},
			{"grants, cancels", bytesText(g.Small), ""},
			{"total", bytesText(g.Total()), fmt.Sprintf("at most %d records in one piece: %s", l.MaxRecv, z.Why)},
			{"output of the caller", bytesText(z.Output), "for one piece, without padding"},
		})
}

func (c *moeBenchCmd) simulate(ctx context.Context, u *ui, s moebench.Shape) (*moebench.Report, error) {
	text, ok := strings.CutPrefix(c.Sim, "ep=")
	var ep []int
	for _, n := range strings.Split(text, ",") {
		x := 0
		if _, err := fmt.Sscanf(n, "%d", &x); err != nil || x < 2 {
			ok = false
		}
		ep = append(ep, x)
	}
	if !ok {
		return nil, usage("--sim %s: want ep= and numbers of ranks, as ep=8,16,32,64", c.Sim)
	}
	r, err := moebench.Simulate(ctx, moebench.Simulation{
		Shape: s, EP: ep, Profile: c.Profile, Seed: c.Seed, Steps: c.Steps, Tell: func(what string) { u.status.show("moe bench: simulating %s", what) },
	})
	if err != nil {
		return nil, err
	}
	printMoESim(u, r)
	return r, nil
}

func printMoESim(u *ui, r *moebench.Report) {
	both := func(a, b float64) string { return fmt.Sprintf("%.0f / %.0f", a, b) }
	var rows [][]string
	for i := range r.Rows {
		x := &r.Rows[i]
		published := func(who string) string {
			p, ok := x.Published[who]
			if !ok {
				return ""
			}
			if p.Combine == 0 {
				return fmt.Sprintf("%.0f / -", p.Dispatch)
			}
			return both(p.Dispatch, p.Combine)
		}
		rows = append(rows, []string{
			fmt.Sprintf("EP%d", x.Ranks), both(*x.Dispatch, *x.Combine), both(x.DispatchFloor, x.CombineFloor), published("reference"), published("deepep"),
			fmt.Sprintf("%.2f / %.2f", x.DispatchBusiest, x.CombineBusiest), fmt.Sprintf("%d + %d", x.PostsByNIC.Dispatch, x.PostsByNIC.Combine),
			fmt.Sprintf("%.1f", x.Overflow), bytesText(x.Memory),
		})
	}
	u.table(fmt.Sprintf("SIMULATED on %s, %d tokens, %s: dispatch / combine, us, median of steps", r.Profile, r.Shape.Tokens, r.Routing), []string{
		"", "simulated", "floor", "reference", "DeepEP", "of busiest NIC", "posts by NIC", "overflow", "memory",
	}, rows)
	u.printf("reference, DeepEP: published, measured (arXiv 2510.27656). Assumed:\n")
	for _, a := range r.Assumptions {
		u.printf("  - %s\n", a)
	}
}

func (c *moeBenchCmd) measure(ctx context.Context, u *ui, s moebench.Shape) (r *moebench.Report, err error) {
	if _, err := c.Provider.open(ctx); err != nil {
		return nil, err
	}
	config := moebench.Config{
		Provider: string(c.Provider), Shape: s, Seed: c.Seed, Rounds: c.Rounds, Warm: c.Warm, Steps: c.Steps,
		Child: proc.Spec{Name: "rank", Args: []string{"moe", "rank"}}, Peers: c.Peer, Python: c.Torch,
		Tell: func(what string) { u.status.show("moe bench: %s", what) },
	}
	if len(c.Peer) > 0 {
		exe, err := os.Executable()
		if err != nil {
			return nil, err
		}
		if config.Env, err = newVersusEnv(c.Keep, exe); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, config.Env.Close()) }()
	}
	if r, err = moebench.Run(ctx, config); err != nil {
		return nil, err
	}
	printMoEBench(u, r)
	return r, nil
}

func printMoEBench(u *ui, r *moebench.Report) {
	var rows [][]string
	for _, name := range moebench.Measured() {
		d := r.Samples[name]
		rows = append(rows, distribution(name, d, "", ""))
	}
	for _, p := range r.Peers {
		if p.Why != "" {
			rows = append(rows, []string{p.Name, p.Why, "", "", "", "", "", "", ""})
			continue
		}
		rows = append(rows, distribution(p.Name+" exchange", &p.Exchange, rangeText(p.Ratio), rangeText(p.Step)))
	}
	u.table(fmt.Sprintf("%s over %s: %d ranks, %d tokens, hidden %d, %d experts, top-%d, %s, %s; %d rounds, us", r.Shape.Name, r.Provider, r.Shape.Ranks,
		r.Shape.Tokens, r.Shape.Hidden, r.Shape.Experts, r.Shape.TopK, r.Shape.DType, r.Routing, r.Rounds),
		[]string{"", "min", "p50", "p90", "p99", "p50 of rounds", "CPU s/GiB", "ours / its exchange", "ours / its step"}, rows)
	u.printf("a rank and step: %s to others in %.1f posts, %.1f records beyond first chunks; %d steps compared, %d bytes wrong\n",
		bytesText(int64(r.Bytes)), r.Posts, r.Overflow, *r.VerifiedSteps, *r.MismatchedBytes)
}

func distribution(name string, d *moebench.Distribution, ratio, step string) []string {
	cpu := ""
	if d.CPU > 0 {
		cpu = figure(d.CPU)
	}
	return []string{
		name, figure(d.Min), figure(d.P50), figure(d.P90), figure(d.P99), rangeText(d.Rounds), cpu, ratio, step,
	}
}

func rangeText(s bench.Spread) string {
	if s.Median == 0 {
		return ""
	}
	return fmt.Sprintf("%s (%s .. %s)", figure(s.Median), figure(s.Min), figure(s.Max))
}
