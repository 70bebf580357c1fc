package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/hawser-project/hawser/bench"
	"github.com/hawser-project/hawser/moe"
	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/moetest"
)

const (
	// moeSchema is the version of the JSON results of hawser moe check.
	moeSchema = "hawser-moe/1"

	// simName is the network that is all in one process.
	simName = "sim"

	// faultSteps is how long the runs of --faults are: long enough for chunks, memory that is used again, and a step after a change of view.
	faultSteps = 3
)

type (
	moeCheckCmd struct {
		quietFlag

		Ranks    int    `default:"4" placeholder:"N" help:"Ranks: a process each, with sim all in one (default: ${default})."`
		Steps    int    `default:"1000" placeholder:"N" help:"Steps; shapes change from one to the next (default: ${default})."`
		Provider string `default:"shm" placeholder:"NAME" help:"Network: sim, which delivers pieces in any order and watches memory, or ${networks} (default: ${default})."`
		Routing  string `default:"mix" placeholder:"NAME" help:"Which experts tokens choose: ${routings} (default: ${default})."`
		Seed     uint64 `default:"1" placeholder:"N" help:"Seed of all chance (default: ${default})."`
		Tokens   int    `default:"16" placeholder:"N" help:"Tokens of a rank and step, at most (default: ${default})."`
		Hidden   int    `default:"256" placeholder:"N" help:"Elements of a row (default: ${default})."`
		Experts  int    `default:"16" placeholder:"N" help:"Experts of all ranks (default: ${default})."`
		TopK     int    `name:"topk" default:"4" placeholder:"K" help:"Experts of a token (default: ${default})."`
		DType    string `name:"dtype" default:"f32" enum:"f32,bf16" placeholder:"TYPE" help:"Of rows, results and sums: f32 or bf16 (default: ${default})."`
		Faults   bool   `help:"With sim: every fault at every event of short runs, beside the steps without any."`
		Kill     int    `placeholder:"N" help:"With processes: kill a rank so many times, at any time; it comes again."`
		Stop     int    `placeholder:"N" help:"With processes: stop a rank so many times, for longer than the others wait for it."`
	}

	// moeCheckReport is the result in JSON.
	moeCheckReport struct {
		Schema   string        `json:"schema"`
		Command  string        `json:"command"`
		Args     []string      `json:"args"`
		Machine  bench.Machine `json:"machine"`
		Revision string        `json:"revision"`
		Provider string        `json:"provider"`
		Shape    moeShape      `json:"shape"`
		Routing  string        `json:"routing"`
		Seed     uint64        `json:"seed"`
		Ranks    int           `json:"ranks"`
		Steps    int           `json:"steps"`

		Verified   int     `json:"verified_steps"`
		Mismatched int     `json:"mismatched_bytes"`
		First      string  `json:"first_mismatch,omitempty"`
		Partial    int     `json:"partial_steps"` // verified, without who was missing; by any rank
		Lost       int     `json:"lost_steps"`    // ended early, at any rank
		Views      int     `json:"views"`
		Faults     int     `json:"faults"`       // that struck
		Named      int     `json:"named"`        // ranks that named who had been killed, and nobody else
		Recovered  float64 `json:"recovered_ms"` // from a strike until all are in one view again, at most
		Bytes      uint64  `json:"bytes"`        // written to other ranks
		Seconds    float64 `json:"seconds"`
	}

	moeShape struct {
		Tokens  int `json:"tokens"`
		Hidden  int `json:"hidden"`
		Experts int `json:"experts"`
		TopK    int `json:"topk"`

		DType string `json:"dtype"`
	}
)

// dtypes are those of --dtype.
var dtypes = map[string]moe.DType{"f32": backend.F32, "bf16": backend.BF16}

func (c *moeCheckCmd) shape() moetest.Shape {
	return moetest.Shape{Ranks: c.Ranks, Tokens: c.Tokens, Experts: c.Experts, TopK: c.TopK}
}

// maxChecked bounds processes, and what they allocate.
const maxChecked = 64

func (c *moeCheckCmd) check() error {
	if _, err := moetest.ParseDist(c.Routing); err != nil {
		return usage("--routing: %w", err)
	}
	if _, err := moetest.NewRouting(c.shape()); err != nil {
		return usage("%w", err)
	}
	switch sim := c.Provider == simName; {
	case c.Ranks > maxChecked:
		return usage("--ranks: %d, want 1 .. %d", c.Ranks, maxChecked)
	case c.Steps < 1 || c.Hidden < 1:
		return usage("--steps and --hidden: want 1 or more")
	case c.Faults && !sim:
		return usage("--faults needs --provider sim; processes are killed by --kill and stopped by --stop")
	case sim && c.Kill+c.Stop > 0:
		return usage("--kill and --stop need processes; --provider sim has --faults")
	case c.Kill < 0 || c.Stop < 0 || c.Kill+c.Stop > 0 && c.Ranks < 2:
		return usage("--kill and --stop: want 0 or more, and --ranks 2 or more")
	case sim:
		return nil
	}
	var n network
	if err := n.UnmarshalText([]byte(c.Provider)); err != nil {
		return usage("--provider: %w", err)
	}
	return nil
}

// Run checks, and says how it went.
func (c *moeCheckCmd) Run(ctx context.Context, u *ui) error {
	c.hush(u)
	if err := c.check(); err != nil {
		return err
	}
	r, err := c.all(ctx, u)
	if r == nil {
		return err
	}
	if err == nil {
		u.printf("%s\n", r)
	}
	return errors.Join(err, u.result(r))
}

// all does the steps. There is a report whenever steps were done.
func (c *moeCheckCmd) all(ctx context.Context, u *ui) (*moeCheckReport, error) {
	r := &moeCheckReport{
		Schema: moeSchema, Command: "check", Args: os.Args, Machine: bench.ThisMachine(), Revision: thisVersion().Revision, Provider: c.Provider,
		Shape: moeShape{c.Tokens, c.Hidden, c.Experts, c.TopK, c.DType}, Routing: c.Routing, Seed: c.Seed, Ranks: c.Ranks, Steps: c.Steps,
	}
	began := time.Now()
	check := c.processes
	if c.Provider == simName {
		check = c.simulate
	}
	err := check(ctx, u, r)
	r.Seconds = time.Since(began).Seconds()
	return r, err
}

func (r *moeCheckReport) String() string {
	text := fmt.Sprintf("ok: %d of %d steps verified, %d bytes differ", r.Verified, r.Steps, r.Mismatched)
	if r.Faults > 0 {
		over := ""
		if r.Recovered > 0 {
			over = fmt.Sprintf(", over within %.0f ms", r.Recovered)
		}
		return fmt.Sprintf("%d faults%s, %d changes of view, %d partial steps, %d lost\n%s", r.Faults, over, r.Views, r.Partial, r.Lost, text)
	}
	return text
}

// failed is the error of a check that failed: what was wrong, and how to see it again.
func (c *moeCheckCmd) failed(what error, steps int, more ...string) error {
	args := []string{
		"hawser moe check", fmt.Sprint("--ranks ", c.Ranks), fmt.Sprint("--steps ", steps), "--provider " + c.Provider, "--routing " + c.Routing,
		fmt.Sprint("--seed ", c.Seed), fmt.Sprint("--tokens ", c.Tokens), fmt.Sprint("--hidden ", c.Hidden), fmt.Sprint("--experts ", c.Experts),
		fmt.Sprint("--topk ", c.TopK), "--dtype " + c.DType,
	}
	return fmt.Errorf("moe check: %w: again: %s", what, strings.Join(append(args, more...), " "))
}

// show is the progress: a bar where it can be overwritten.
func (c *moeCheckCmd) show(u *ui, what string, done, all int) {
	const width = 30
	if n := width * done / max(all, 1); u.status.tty {
		u.status.show("%s [%s%s] %d of %d", what, strings.Repeat("#", n), strings.Repeat(".", width-n), done, all)
		return
	}
	u.status.show("%s: %d of %d", what, done, all)
}

// world is what sim checks. Its chunks are so small that most routings need some.
func (c *moeCheckCmd) world(steps int, seed uint64) moetest.Config {
	d, _ := moetest.ParseDist(c.Routing) // check has
	chunk := max(1, c.Tokens*c.TopK/16)
	rows, t := c.Ranks*c.Tokens*c.TopK, dtypes[c.DType]
	return moetest.Config{
		In: t, Wire: t, Out: t,
		Shape: c.shape(), Hidden: c.Hidden, Dist: d, Seed: seed, Steps: steps, Align: 4, FirstChunk: 2 * chunk, ChunkRecords: chunk,
		PoolRecords: 4 * chunk * c.Ranks, MaxRecv: rows, StreamRows: max(2*chunk, rows/4), Style: moetest.Style(seed % moetest.Styles),
	}
}

// simulate does the steps in this process.
func (c *moeCheckCmd) simulate(ctx context.Context, u *ui, r *moeCheckReport) error {
	w, err := moetest.NewWorld(c.world(c.Steps, c.Seed))
	if err != nil {
		return err
	}
	report, err := w.Run(func(done int) bool {
		c.show(u, "moe check", done, c.Steps)
		return ctx.Err() != nil
	})
	err = errors.Join(err, w.Close())
	r.add(report)
	r.Verified = report.Steps
	switch {
	case err != nil:
		return c.failed(err, report.Steps+1)
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case c.Faults:
		return c.strike(ctx, u, r)
	}
	return nil
}

// add sums up what happened.
func (r *moeCheckReport) add(w moetest.Report) {
	r.Partial += w.Partial
	r.Lost += w.Failed
	r.Views += w.Views - 1
	r.Mismatched += w.Wrong.Bytes
	if r.First == "" {
		r.First = w.Wrong.First
	}
}

// strike runs a short world again and again, with every fault at every event.
func (c *moeCheckCmd) strike(ctx context.Context, u *ui, r *moeCheckReport) error {
	base := c.world(faultSteps, c.Seed)
	base.Hidden = min(base.Hidden, 8) // what matters is the order of events
	events, err := c.one(base, r)
	if err != nil {
		return err
	}
	if c.Ranks < 2 {
		return nil
	}
	kinds := moetest.FaultKinds()
	all := events * len(kinds)
	for i, kind := range kinds {
		for at := range events {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			c.show(u, "moe check: faults at events", i*events+at, all)
			for rank := range c.Ranks {
				f := moetest.Fault{Kind: kind, At: at, Rank: rank, Peer: (rank + 1 + at%(c.Ranks-1)) % c.Ranks}
				base.Faults = []moetest.Fault{f}
				if _, err := c.one(base, r); err != nil {
					return fmt.Errorf("fault %v: %w", f, err)
				}
				r.Faults++
			}
		}
	}
	return nil
}

func (c *moeCheckCmd) one(w moetest.Config, r *moeCheckReport) (events int, err error) {
	world, err := moetest.NewWorld(w)
	if err != nil {
		return 0, err
	}
	report, err := world.Run(nil)
	err = errors.Join(err, world.Close())
	r.add(report)
	if err != nil {
		err = c.failed(err, c.Steps, "--faults")
	}
	return report.Events, err
}

// processes does the steps between processes.
func (c *moeCheckCmd) processes(ctx context.Context, u *ui, r *moeCheckReport) error {
	s := &moeSession{cmd: c, ui: u, report: r, events: make(chan moeEvent), rng: rand.New(rand.NewPCG(c.Seed, 0x6b))}
	err := s.run(ctx)
	var w *wrongStep
	if errors.As(err, &w) {
		return c.failed(err, int(w.step))
	}
	return err
}
