package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hawser-project/hawser/bench"
	"github.com/hawser-project/hawser/bench/kvbench"
	"github.com/hawser-project/hawser/internal/proc"
)

type (
	benchKVCmd struct {
		Which    []string  `arg:"" optional:"" name:"benchmark" help:"B1 to B8 (default: all)."`
		Provider []network `default:"shm" placeholder:"NAME" help:"Networks to measure: ${networks} (default: ${default})."`
		Rounds   int       `default:"7" help:"Samples of each side; what is compared alternates (default: ${default})."`
		Procs    int       `placeholder:"N" help:"Processors that each of the two processes uses (default: half of them, as they share them)."`
		Short    bool      `help:"Fewer rows and less work in each: a look whether everything runs, not a measurement."`
		Row      string    `placeholder:"TEXT" help:"Only the rows of B1, B2, B7 and B8 whose name has this."`
		Peers    []string  `placeholder:"NAME" help:"Other libraries that do the same work in the same rounds of B1, B2 and B8: nixl, mooncake (default: none)."`
		Keep     string    `placeholder:"DIR" help:"Install them into DIR, or use what is there, and leave it (default: a temporary folder)."`
		Profile  string    `placeholder:"DIR" help:"Write processor profiles of both processes to this existing folder; of several rows those of the last are kept. B3 has none."`
	}

	// benchPrefillCmd is the prefilling process.
	benchPrefillCmd struct{}
)

// Help lists the benchmarks.
func (benchKVCmd) Help() string {
	var b strings.Builder
	b.WriteString("The benchmarks are:\n\n") // kong trims what the text begins with
	for _, x := range kvbench.Benchmarks() {
		fmt.Fprintf(&b, "  %s  %s\n", x.ID, x.Help)
	}
	return b.String()
}

// Run serves the measuring process.
func (benchPrefillCmd) Run(ctx context.Context) error { return kvbench.Serve(ctx) }

// kvBenchReport is what is written as JSON.
type kvBenchReport struct {
	Machine  bench.Machine `json:"machine"`
	Revision string        `json:"revision"`
	Command  []string      `json:"command"`
	Began    time.Time     `json:"began"`
	Tables   []kvTable     `json:"tables"`
}

type kvTable struct {
	Benchmark string         `json:"benchmark"`
	Config    kvbench.Config `json:"config"`
	Load      float64        `json:"load"` // mean number of runnable processes of the host in the minute before
	Rows      []kvbench.Row  `json:"rows"`
}

// Run measures package kv.
func (c *benchKVCmd) Run(ctx context.Context, u *ui) (err error) {
	if err := c.check(); err != nil {
		return err
	}
	for _, p := range c.Provider {
		if _, err := p.open(ctx); err != nil {
			return err
		}
	}
	rivals := kvbench.Rivals{Names: c.Peers}
	if len(c.Peers) > 0 {
		exe, err := os.Executable()
		if err != nil {
			return fmt.Errorf("bench kv: %w", err)
		}
		if rivals.Env, err = newVersusEnv(c.Keep, exe); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, rivals.Env.Close()) }()
	}
	r := kvBenchReport{Machine: bench.ThisMachine(), Revision: thisVersion().Revision, Command: os.Args, Began: time.Now().UTC()}
	failed := c.measure(ctx, u, rivals, &r)
	if len(r.Tables) > 0 {
		if err := u.result(r); err != nil {
			return err
		}
	}
	return failed
}

// check completes the choice of benchmarks, and refuses what cannot be measured.
func (c *benchKVCmd) check() error {
	if c.Rounds < 1 {
		return usage("--rounds: %d, want 1 or more", c.Rounds)
	}
	if c.Procs < 0 {
		return usage("--procs: %d, want 1 or more", c.Procs)
	}
	if err := kvbench.CheckRivals(c.Peers); err != nil {
		return usage("--peers: %v", err)
	}
	known := kvbench.Benchmarks()
	for i, id := range c.Which {
		c.Which[i] = strings.ToUpper(id)
		if !slices.ContainsFunc(known, func(b kvbench.Benchmark) bool { return b.ID == c.Which[i] }) {
			return usage("benchmark %q: there are B1 to B8", id)
		}
	}
	if len(c.Which) == 0 {
		for _, b := range known {
			c.Which = append(c.Which, b.ID)
		}
	}
	return nil
}

// measure adds a table for each benchmark and network, up to the first that fails.
func (c *benchKVCmd) measure(ctx context.Context, u *ui, rivals kvbench.Rivals, r *kvBenchReport) error {
	for _, id := range c.Which {
		for _, p := range c.Provider {
			config := kvbench.Config{
				Network: string(p), Rounds: c.Rounds, Procs: c.Procs, Short: c.Short, Profile: c.Profile, Only: c.Row, Rivals: rivals,
				Child:  proc.Spec{Name: "prefiller", Args: []string{"bench", "prefill"}},
				Replay: []string{"kv", "replay", "--provider", string(p)},
				Tell:   func(what string) { u.status.show("bench kv %s over %s: %s", id, p, what) },
			}
			t := kvTable{Benchmark: id, Config: config, Load: bench.LoadAverage()}
			var err error
			if t.Rows, err = kvbench.Run(ctx, t.Benchmark, config); len(t.Rows) > 0 {
				printKVTable(u, &t)
				r.Tables = append(r.Tables, t)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// printKVTable prints a line for each value, as rows have different ones.
func printKVTable(u *ui, t *kvTable) {
	var cells [][]string
	for _, row := range t.Rows {
		name := row.Name
		for _, v := range row.Values {
			goal := v.Goal
			if v.Missed {
				goal += " MISSED"
			}
			cells = append(cells, []string{name, v.Name, v.Unit, figure(v.Spread.Median), figure(v.Spread.Min), figure(v.Spread.Max), goal})
			name = ""
		}
		if row.Note != "" {
			cells = append(cells, []string{"", row.Note, "", "", "", "", ""})
		}
	}
	u.table(fmt.Sprintf("%s over %s, %d rounds, load %.1f", t.Benchmark, t.Config.Network, t.Config.Rounds, t.Load),
		[]string{"", "value", "unit", "median", "min", "max", "goal"}, cells)
	var told []string
	for _, row := range t.Rows {
		for _, p := range row.Peers {
			if !slices.Contains(told, p) {
				told = append(told, p)
				u.printf("%s\n", p)
			}
		}
	}
	for _, row := range t.Rows {
		printLayers(u, &row)
	}
}

// shownLayers is how many layers of a row are printed; all are in the JSON.
const shownLayers = 12

func printLayers(u *ui, row *kvbench.Row) {
	n := len(row.Layers)
	if n == 0 {
		return
	}
	var cells [][]string
	for i, l := range row.Layers {
		if n > shownLayers && i >= shownLayers/2 && i < n-shownLayers/2 {
			continue
		}
		cells = append(cells, []string{fmt.Sprint(l.Layer), fmt.Sprintf("%.3f", l.Computed), fmt.Sprintf("%.3f", l.Landed), fmt.Sprintf("%.3f", l.Landed-l.Computed)})
	}
	u.table(row.Name+": the round in the middle", []string{"layer", "computed ms", "landed ms", "later ms"}, cells)
}

// figure has four digits.
func figure(x float64) string {
	if x >= 1000 || x <= -1000 {
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.4g", x)
}
