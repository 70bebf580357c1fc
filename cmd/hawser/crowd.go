package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/hawser-project/hawser/bench"
	"github.com/hawser-project/hawser/internal/proc"
)

type (
	benchCrowdCmd struct {
		Provider []network     `default:"shm,tcp" placeholder:"NAME" help:"Networks to measure: ${networks} (default: ${default})."`
		Peers    int           `default:"1000" help:"Engines that are connected to the one that is measured (default: ${default})."`
		Rest     time.Duration `default:"21s" help:"How long they are watched when all are up (default: ${default})."`
	}

	// crowdCmd is one of the processes.
	crowdCmd struct{}
)

// Run serves the measuring process.
func (crowdCmd) Run(ctx context.Context) error { return bench.ServeCrowd(ctx) }

// crowdReport is what is written as JSON.
type crowdReport struct {
	Machine  bench.Machine    `json:"machine"`
	Revision string           `json:"revision"`
	Command  []string         `json:"command"`
	Began    time.Time        `json:"began"`
	Rows     []bench.CrowdRow `json:"rows"`
}

// Run measures crowds.
func (c *benchCrowdCmd) Run(ctx context.Context, u *ui) error {
	var configs []bench.CrowdConfig
	for _, p := range c.Provider {
		config := bench.CrowdConfig{Provider: string(p), Peers: c.Peers, Rest: c.Rest}
		if c.Peers < 1 {
			return usage("--peers: %d, want 1 or more", c.Peers)
		}
		if err := config.Fault(); err != nil {
			return &usageError{err}
		}
		if _, err := p.open(ctx); err != nil {
			return err
		}
		configs = append(configs, config)
	}
	r := crowdReport{Machine: bench.ThisMachine(), Revision: thisVersion().Revision, Command: os.Args, Began: time.Now().UTC()}
	var failed error
	for _, config := range configs {
		row, err := bench.Crowd(ctx, config, proc.Spec{Args: []string{"bench", "crowd"}}, func(what string) {
			u.status.show("bench peers over %s, %d: %s", config.Provider, config.Peers, what)
		})
		if err != nil {
			failed = err
			break
		}
		r.Rows = append(r.Rows, row)
	}
	if len(r.Rows) > 0 {
		printCrowds(u, r.Rows)
		if err := u.result(r); err != nil {
			return err
		}
	}
	return failed
}

func printCrowds(u *ui, rows []bench.CrowdRow) {
	for _, r := range rows {
		b, a, n := r.Before, r.After, r.Config.Peers
		mib := func(name string, before, after uint64) []string {
			grown := int64(after) - int64(before)
			return []string{name, fmt.Sprintf("%.1f", float64(before)/(1<<20)), fmt.Sprintf("%.1f", float64(after)/(1<<20)), fmt.Sprintf("%.1f KiB", float64(grown)/1024/float64(n))}
		}
		count := func(name string, before, after int) []string {
			return []string{name, fmt.Sprint(before), fmt.Sprint(after), fmt.Sprintf("%.2f", float64(after-before)/float64(n))}
		}
		u.table(fmt.Sprintf("%d idle peers over %s, in %d processes: connected in %.1f s, the slowest took %.2f s; %.2f %% of a core at rest",
			n, r.Config.Provider, r.Holders, r.Connect, r.Slowest, r.CPU*100),
			[]string{"counted process, MiB", "alone", "with them", "a peer"}, [][]string{
				mib("resident, shared pages in full", b.RSS, a.RSS),
				mib("  shared pages by their share", b.PSS, a.PSS),
				mib("  pages of its own", b.Private, a.Private),
				mib("live Go heap", b.Heap, a.Heap), mib("goroutine stacks", b.Stacks, a.Stacks),
				count("goroutines", b.Goroutines, a.Goroutines), count("descriptors", b.FDs, a.FDs), count("mappings", b.Mappings, a.Mappings),
			})
	}
}
