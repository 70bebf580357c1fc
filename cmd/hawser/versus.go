package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/hawser-project/hawser/bench"
	"github.com/hawser-project/hawser/bench/versus"
	"github.com/hawser-project/hawser/internal/proc"
)

type versusCmd struct {
	Path     []string `placeholder:"NAME" enum:"shm,tcp" help:"Networks: shm, tcp (default: both)."`
	Scenario []string `placeholder:"NAME" enum:"pages,hot,foreign,latency,rate" help:"What to measure: pages (cold), hot (pages that the caches hold), foreign (pages of memory that was registered), latency, rate (default: what there are goals for)."`
	Size     []size   `placeholder:"SIZE" help:"Block sizes of pages and hot (default: those that there are goals for)."`
	Rounds   int      `default:"7" help:"Samples of each; a round has one of each, in an order that rotates (default: ${default})."`
	Peers    []string `placeholder:"NAME" help:"Only these peers, as the table names them."`
	Pool     size     `placeholder:"SIZE" help:"Memory that the blocks of pages are spread over, on each side (default: 512 MiB)."`
	Bytes    size     `placeholder:"SIZE" help:"Bytes of a sample of pages and hot (default: 256 MiB)."`
	Seed     uint64   `default:"1" help:"Seed of the order of the blocks (default: ${default})."`
	Keep     string   `placeholder:"DIR" help:"Install the peers into DIR, or use what is there, and leave it (default: a temporary folder)."`
}

// driveCmd is a driver of package versus, or the receiving process of ours.
type driveCmd struct {
	Name string `arg:""`
}

// receiverName is the receiving process of ours.
const receiverName = "receiver"

// Run serves the measuring process.
func (c *driveCmd) Run(ctx context.Context) error {
	if c.Name == receiverName {
		return versus.Receive(ctx)
	}
	return versus.Drive(ctx, c.Name, proc.Spec{Args: []string{"bench", "drive", receiverName}}, os.Stdin, os.Stdout)
}

// Run compares.
func (c *versusCmd) Run(ctx context.Context, u *ui) (err error) {
	if c.Rounds < 1 {
		return usage("--rounds: %d, want 1 or more", c.Rounds)
	}
	choice := versus.Choice{Paths: c.Path, Kinds: c.Scenario, Pool: uint64(c.Pool), Bytes: uint64(c.Bytes)}
	for _, s := range c.Size {
		choice.Sizes = append(choice.Sizes, uint64(s))
	}
	cases, err := versus.Plan(choice)
	if err != nil {
		return &usageError{err}
	}
	peers, unknown := versus.Choose(c.Peers)
	if unknown != "" {
		return usage("--peers: %q is unknown: there are %s", unknown, strings.Join(peerNames(), ", "))
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("bench versus: %w", err)
	}
	env, err := newVersusEnv(c.Keep, exe)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, env.Close()) }()
	r := versus.Report{
		Machine: bench.ThisMachine(), Revision: thisVersion().Revision, Command: os.Args, Began: time.Now().UTC(),
		Rounds: c.Rounds, Seed: c.Seed, Congestion: versus.DefaultCongestion,
	}
	u.printf("%s, %d cores, linux %s; %d interleaved rounds after one that does not count; median (min .. max)\n",
		r.Machine.CPU, r.Machine.Cores, r.Machine.Kernel, c.Rounds)
	config := versus.Config{
		Cases: cases, Peers: peers, Rounds: c.Rounds, Seed: c.Seed,
		Progress: func(k versus.Case, step string) {
			u.status.show("bench versus: %s, %s of %s: %s", k.Path, k.Name(), size(k.Size), step)
		},
	}
	err = versus.Run(ctx, config, env, func(one versus.Result) error {
		r.Results = append(r.Results, one)
		return nil
	})
	if len(r.Results) == 0 {
		return err
	}
	printVersus(u, r.Results)
	return errors.Join(err, u.result(r), versusVerdict(r.Results))
}

func peerNames() []string {
	var names []string
	for _, p := range versus.Field() {
		names = append(names, p.Name)
	}
	return names
}

// versusVerdict is an error when ours has failed; a peer that has is a row.
func versusVerdict(results []versus.Result) error {
	var faults []error
	for _, r := range results {
		if ours := r.Rows[0]; ours.Why != "" {
			faults = append(faults, fmt.Errorf("bench versus: %s over %s, %s: %s", r.Case.Name(), r.Case.Path, size(r.Case.Size), ours.Why))
		}
	}
	return errors.Join(faults...)
}

// printVersus prints a table for each path, and below it what each peer was told to do.
func printVersus(u *ui, results []versus.Result) {
	for _, path := range []string{"shm", "tcp"} {
		var cells, notes [][]string
		for _, r := range results {
			if r.Case.Path != path {
				continue
			}
			for i, row := range r.Rows {
				work := ""
				if i == 0 {
					work = r.Case.Name() + ", " + size(r.Case.Size).String()
				}
				cells = append(cells, versusCells(work, row))
				notes = addNote(notes, row)
			}
		}
		if len(cells) == 0 {
			continue
		}
		u.table(path+"; ratio: hawser / peer in the same round, of GB/s and M/s higher is better, of us lower", []string{
			"work", "", "result", "unit", "ratio", "CPU", "",
		}, cells)
		u.table("", []string{"", "version", "settings"}, notes)
	}
}

func versusCells(work string, row versus.Row) []string {
	if row.Why != "" {
		return []string{work, row.Peer, "", "", "", "", row.Why}
	}
	ratio, cpu := "", fmt.Sprintf("%.2f us each", row.CPU)
	if row.Ratio > 0 {
		ratio = spreadText(row.RatioSpread, "%.2f")
		if row.Beside != "" {
			ratio += " of " + row.Beside
		}
	}
	if row.Unit == "GB/s" {
		cpu = fmt.Sprintf("%.3f s/GiB", row.CPU)
	}
	return []string{work, row.Peer, spreadText(row.Value, "%.2f"), row.Unit, ratio, cpu, ""}
}

// addNote adds the settings of a row, unless they are there.
func addNote(notes [][]string, row versus.Row) [][]string {
	for _, n := range notes {
		if n[0] == row.Peer && n[2] == row.Settings {
			return notes
		}
	}
	if row.Settings == "" {
		return notes
	}
	return append(notes, []string{row.Peer, row.Version, row.Settings})
}

// newVersusEnv is where the peers are; exe is this program.
func newVersusEnv(keep, exe string) (*versus.Env, error) {
	return versus.NewEnv(keep, func(driver string) (args, env []string) { return []string{exe, "bench", "drive", driver}, nil })
}
