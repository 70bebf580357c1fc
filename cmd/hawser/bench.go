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
	Provider []string `default:"shm" enum:"shm,tcp" help:"Networks to measure: shm, tcp."`
	Rounds   int      `default:"7" help:"Samples of each side; the two sides alternate."`
	Rails    int      `default:"1" help:"Rails on each side."`
	Depth    int      `placeholder:"N" help:"Operations outstanding at once (default: by size)."`
	Seed     uint64   `default:"1" help:"Seed of the order of the blocks."`
	Log      string   `placeholder:"FILE" help:"Append what the engines log to FILE."`
}

// blockFlags are for the scenarios that move blocks.
type blockFlags struct {
	Size  []size `placeholder:"SIZE,..." help:"Block sizes, such as 64KiB (default: 1KiB to 32MiB)."`
	Cold  bool   `xor:"cache" help:"Spread the blocks over 1 GiB on each side, much more than the caches hold."`
	Hot   bool   `xor:"cache" help:"Use the same few blocks again and again (default)."`
	Pool  size   `placeholder:"SIZE" help:"Memory that the blocks are spread over, on each side."`
	Bytes size   `placeholder:"SIZE" help:"Bytes moved per sample."`
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
		Pings int `placeholder:"N" help:"Round trips per sample."`
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

func (f *benchFlags) run(ctx context.Context, u *ui, configs []bench.Config) error {
	for _, c := range configs {
		if err := c.Check(); err != nil {
			return &usageError{err}
		}
	}
	r := bench.Report{Machine: bench.ThisMachine(), Revision: thisVersion().Revision, Command: os.Args, Began: time.Now().UTC()}
	u.printf("%s, %d cores, linux %s; %d rounds, ours and the yardstick alternate; median (min .. max)\n",
		r.Machine.CPU, r.Machine.Cores, r.Machine.Kernel, f.Rounds)
	var failed error
	for i, c := range configs {
		row, err := bench.Run(ctx, c, proc.Spec{Args: []string{"bench", "receive"}}, func(round, rounds int) {
			u.status.show("bench %s over %s, %s: round %d of %d (%d of %d)", c.Kind, c.Provider, size(c.Size), round, rounds, i+1, len(configs))
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
		cache := "hot"
		if r.Config.Cold {
			cache = "cold"
		}
		cells = append(cells, []string{
			size(r.Config.Size).String(), r.Config.Provider, cache,
			spreadText(r.Ours.GBPerS, "%.2f"), spreadText(r.Yard.GBPerS, "%.2f"), spreadText(r.RatioSpread, "%.2f"),
			fmt.Sprintf("%.3g", r.Ours.OpsPerS.Median/1e6), fmt.Sprintf("%.3f", r.Ours.CPUPerGiB), fmt.Sprintf("%.3f", r.Yard.CPUPerGiB), r.Yard.Name,
		})
	}
	u.table(string(rows[0].Config.Kind), []string{
		"block", "provider", "cache", "hawser GB/s", "yardstick GB/s", "ratio", "M op/s", "CPU s/GiB", "yardstick", "yardstick is",
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
				s.Name, fmt.Sprintf("%.1f", s.Latency.P50), fmt.Sprintf("%.1f", s.Latency.P99), fmt.Sprintf("%.1f", s.Latency.P999), ratio,
				spreadText(scaled(s.OpsPerS, 1e-6), "%.3f"), rate, fmt.Sprintf("%.2f", s.CPUPerOp),
			})
		}
	}
	u.table("imm: 8 bytes and an immediate, one way", []string{
		"", "p50 us", "p99 us", "p99.9 us", "latency ratio", "M imm/s", "rate ratio", "CPU us/imm",
	}, cells)
}

func spreadText(s bench.Spread, format string) string {
	return fmt.Sprintf(format+" ("+format+" .. "+format+")", s.Median, s.Min, s.Max)
}

func scaled(s bench.Spread, f float64) bench.Spread {
	return bench.Spread{Median: s.Median * f, Min: s.Min * f, Max: s.Max * f}
}
