package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/hawser-project/hawser/bench"
	"github.com/hawser-project/hawser/internal/proc"
)

// benchFlags are common to all scenarios.
type benchFlags struct {
	Provider []string `default:"shm" placeholder:"NAME" enum:"shm,tcp" help:"Networks to measure: shm, tcp (default: ${default})."`
	Rounds   int      `default:"7" help:"Samples of each side; the two sides alternate (default: ${default})."`
	Rails    int      `default:"1" help:"Rails on each side (default: ${default})."`
	Depth    int      `placeholder:"N" help:"Operations outstanding at once (default: by size)."`
	Seed     uint64   `default:"1" help:"Seed of the order of the blocks (default: ${default})."`
	Log      string   `placeholder:"FILE" help:"Append what the engines log to FILE."`
}

// blockFlags are for the scenarios that move blocks.
type blockFlags struct {
	Size  []size `placeholder:"SIZE" help:"Block sizes, such as 64KiB (default: 1KiB to 32MiB)."`
	Cold  bool   `xor:"cache" help:"Spread the blocks over 1 GiB on each side, much more than the caches hold."`
	Hot   bool   `xor:"cache" help:"Use the same few blocks again and again (default)."`
	Pool  size   `placeholder:"SIZE" help:"Memory that the blocks are spread over, on each side (default: 1 GiB cold, 4 MiB hot, or one block)."`
	Bytes size   `placeholder:"SIZE" help:"Bytes moved per sample (default: 256 MiB, or 131072 blocks when that is less)."`
}

type (
	benchWriteCmd struct {
		benchFlags
		blockFlags
	}
	benchPagesCmd struct {
		benchFlags
		blockFlags
		Batch int `placeholder:"N" help:"Pages of one operation (default: by size)."`
	}
	benchImmCmd struct {
		benchFlags
		Pings int `default:"5000" help:"Round trips per sample (default: ${default})."`
	}

	// benchPeerCmd is the receiving process.
	benchPeerCmd struct{}
)

// Run measures single writes.
func (c *benchWriteCmd) Run(ctx context.Context, u *ui) error {
	return c.run(ctx, u, c.configs(bench.Write, c.blockFlags, 0))
}

// Run measures paged writes.
func (c *benchPagesCmd) Run(ctx context.Context, u *ui) error {
	return c.run(ctx, u, c.configs(bench.Pages, c.blockFlags, c.Batch))
}

// Run measures immediates.
func (c *benchImmCmd) Run(ctx context.Context, u *ui) error {
	if c.Pings < 1 {
		return usage("--pings: %d, want 1 or more", c.Pings)
	}
	configs := c.configs(bench.Imm, blockFlags{Size: []size{8}}, 0)
	for i := range configs {
		configs[i].Pings = c.Pings
	}
	return c.run(ctx, u, configs)
}

// Run serves the measuring process.
func (benchPeerCmd) Run(ctx context.Context) error { return bench.Serve(ctx) }

func (f *benchFlags) configs(kind bench.Kind, b blockFlags, batch int) []bench.Config {
	sizes := b.Size
	if len(sizes) == 0 {
		for _, s := range bench.Sizes() {
			sizes = append(sizes, size(s))
		}
	}
	var all []bench.Config
	for _, p := range f.Provider {
		for _, s := range sizes {
			all = append(all, bench.Config{
				Kind: kind, Provider: p, Size: uint64(s), Pool: uint64(b.Pool), Bytes: uint64(b.Bytes), Rounds: f.Rounds,
				Depth: f.Depth, Batch: batch, Rails: f.Rails, Cold: b.Cold, Seed: f.Seed, Log: f.Log,
			})
		}
	}
	return all
}

// check refuses zeros that package bench would take for a default.
func (f *benchFlags) check() error {
	switch {
	case len(f.Provider) == 0:
		return usage("--provider is empty, want shm, tcp or both")
	case f.Rounds < 1:
		return usage("--rounds: %d, want 1 or more", f.Rounds)
	case f.Rails < 1:
		return usage("--rails: %d, want 1 or more", f.Rails)
	}
	return nil
}

func (f *benchFlags) run(ctx context.Context, u *ui, configs []bench.Config) error {
	if err := f.check(); err != nil {
		return err
	}
	for _, c := range configs {
		if err := c.Check(); err != nil {
			return &usageError{err}
		}
	}
	r := bench.Report{Machine: bench.ThisMachine(), Revision: thisVersion().Revision, Command: os.Args, Began: time.Now().UTC()}
	u.printf("%s, %d cores, linux %s; %d rounds after a warm-up, hawser and the yardstick alternate; median (min .. max)\n",
		r.Machine.CPU, r.Machine.Cores, r.Machine.Kernel, f.Rounds)
	var failed error
	for i, c := range configs {
		row, err := bench.Run(ctx, c, proc.Spec{Args: []string{"bench", "receive"}}, func(round, rounds int) {
			done := "warming up"
			if round > 0 {
				done = fmt.Sprintf("round %d of %d", round, rounds)
			}
			u.status.show("bench %s over %s, %s: %s (%d of %d)", c.Kind, c.Provider, size(c.Size), done, i+1, len(configs))
		})
		if row.Ratio > 0 {
			r.Rows = append(r.Rows, row)
		}
		if err != nil {
			failed = err
			break
		}
	}
	if len(r.Rows) > 0 {
		printRows(u, r.Rows)
		if err := u.result(r); err != nil {
			return err
		}
	}
	return failed
}

func printRows(u *ui, rows []bench.Row) {
	if rows[0].Config.Kind == bench.Imm {
		printImm(u, rows)
		return
	}
	var cells [][]string
	for _, r := range rows {
		memory := "hot, "
		if r.Config.Cold {
			memory = "cold, "
		}
		cells = append(cells, []string{
			size(r.Config.Size).String(), r.Config.Provider, memory + size(r.Config.Pool).String(),
			spreadText(r.Ours.GBPerS, "%.2f"), spreadText(r.Yard.GBPerS, "%.2f"), spreadText(r.RatioSpread, "%.2f"),
			fmt.Sprintf("%.3g", r.Ours.OpsPerS.Median/1e6), fmt.Sprintf("%.3f", r.Ours.CPUPerGiB), fmt.Sprintf("%.3f", r.Yard.CPUPerGiB), r.Yard.Name,
		})
	}
	u.table(string(rows[0].Config.Kind)+"; ratio: hawser / yardstick, higher is better", []string{
		"block", "network", "pool", "hawser GB/s", "yardstick GB/s", "ratio", "hawser M op/s", "hawser CPU s/GiB", "yardstick CPU s/GiB", "yardstick",
	}, cells)
}

func printImm(u *ui, rows []bench.Row) {
	var cells [][]string
	for _, r := range rows {
		for _, s := range []bench.Series{r.Ours, r.Yard} {
			ratio, rate := "", ""
			if s.Name == r.Ours.Name {
				ratio, rate = spreadText(r.RatioSpread, "%.2f"), fmt.Sprintf("%.2f", r.RateRatio)
			}
			cells = append(cells, []string{
				s.Name, fmt.Sprintf("%.1f", s.Latency.P50), fmt.Sprintf("%.1f", s.Latency.P99), fmt.Sprintf("%.1f", s.Latency.P999),
				fmt.Sprintf("%.1f", s.Latency.CPUPerTrip), ratio, spreadText(scaled(s.OpsPerS, 1e-6), "%.3f"), fmt.Sprintf("%.2f", s.CPUPerOp), rate,
			})
		}
	}
	u.table("imm: 8 bytes and an immediate; latency is one way, half a round trip; ratio: hawser / yardstick, of latency lower is better, of rate higher", []string{
		"", "p50 us", "p99 us", "p99.9 us", "CPU us/trip", "latency ratio", "M imm/s", "CPU us/imm", "rate ratio",
	}, cells)
}

func spreadText(s bench.Spread, format string) string {
	return fmt.Sprintf(format+" ("+format+" .. "+format+")", s.Median, s.Min, s.Max)
}

func scaled(s bench.Spread, f float64) bench.Spread {
	return bench.Spread{Median: s.Median * f, Min: s.Min * f, Max: s.Max * f}
}
