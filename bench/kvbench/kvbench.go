package kvbench

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/bench"
	"github.com/hawser-project/hawser/internal/proc"
)

// Config says how a benchmark is run.
type Config struct {
	Network string       `json:"network"`         // shm, tcp, ...
	Rounds  int          `json:"rounds"`          // that count, after a warm-up
	Procs   int          `json:"gomaxprocs"`      // of each of the two processes; 0: half of the processors, as they share them
	Short   bool         `json:"short,omitempty"` // fewer rows and less of each, for tests of the program
	Child   proc.Spec    `json:"-"`               // of the prefilling process, which calls Serve
	Rivals  Rivals       `json:"-"`               // none when it has no names
	Replay  []string     `json:"-"`               // arguments of this program that replay a trace, for B3
	Profile string       `json:"-"`               // folder for processor profiles of both processes, of the last row; empty: none
	Only    string       `json:"only,omitempty"`  // rows whose name has this; empty: all
	Tell    func(string) `json:"-"`               // progress; may be nil
}

// Row is one line of a table.
type Row struct {
	Name   string  `json:"name"`
	Values []Value `json:"values"`
	Layers []Layer `json:"layers,omitempty"` // of B2: the round in the middle
	Note   string  `json:"note,omitempty"`

	Peers []string `json:"peers,omitempty"` // version and settings of each that was measured, or why it was not
}

// Value is one number of a row.
type Value struct {
	Name   string       `json:"name"`
	Unit   string       `json:"unit,omitempty"`
	Spread bench.Spread `json:"spread"`
	Goal   string       `json:"goal,omitempty"` // in words
	Missed bool         `json:"missed,omitempty"`
}

// Layer is when one layer of a prompt was computed and when all of it was counted on the other side, since the first layer began.
type Layer struct {
	Layer    int     `json:"layer"`
	Computed float64 `json:"computed_ms"`
	Landed   float64 `json:"landed_ms"`
}

// Benchmark is one of B1 to B8.
type Benchmark struct {
	ID, Help string
	run      func(ctx context.Context, c Config) ([]Row, error)
}

// Benchmarks are all of them, in order.
func Benchmarks() []Benchmark {
	return []Benchmark{
		{"B1", "bursts of a layer's pages: rate against the yardstick", runBursts},
		{"B2", "a prompt of 16,384 tokens of qwen3-235b-tp4, layer by layer: what is not hidden behind the computation", runHidden},
		{"B3", "replay of a trace at several speeds", runReplays},
		{"B4", "cancellation under load: until the pages can be used again", runCancels},
		{"B5", "death and stop of the prefiller: until the decoder knows", runDeaths},
		{"B6", "10,000 attempts that wait: memory and processor time", runIdle},
		{"B7", "the control plane: requests without pages, and the notification after the last layer of a small prompt", runControl},
		{"B8", "sides that differ in ranks, pages and rails, against equal ones", runShapes},
	}
}

// Run runs the benchmark of an id.
func Run(ctx context.Context, id string, c Config) ([]Row, error) {
	all := Benchmarks()
	i := slices.IndexFunc(all, func(b Benchmark) bool { return b.ID == id })
	switch {
	case i < 0:
		return nil, fmt.Errorf("kvbench: %w: benchmark %q: there are B1 to B8", hawser.ErrInvalid, id)
	case c.Rounds < 1:
		return nil, fmt.Errorf("kvbench: %w: %d rounds", hawser.ErrInvalid, c.Rounds)
	}
	if c.Tell == nil {
		c.Tell = func(string) {}
	}
	c.Procs = c.procs()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(c.Procs))
	c.Child.Env = append(c.Child.Env[:len(c.Child.Env):len(c.Child.Env)], fmt.Sprintf("GOMAXPROCS=%d", c.Procs))
	rows, err := all[i].run(ctx, c)
	rows = slices.DeleteFunc(rows, func(r Row) bool { return len(r.Values) == 0 })
	if err != nil {
		return rows, fmt.Errorf("kvbench: %s on %s: %w", id, c.Network, err)
	}
	return rows, nil
}

// procs is how many processors each process uses.
func (c *Config) procs() int {
	if c.Procs > 0 {
		return c.Procs
	}
	return max(1, runtime.NumCPU()/2)
}

// wants reports whether a row is to be measured.
func (c *Config) wants(row Row) bool { return strings.Contains(row.Name, c.Only) }

// value makes a value of the rounds.
func value(name, unit string, rounds []float64) Value {
	return Value{Name: name, Unit: unit, Spread: bench.SpreadOf(rounds)}
}

// most says what the median should be at most.
func (v Value) most(goal float64) Value {
	v.Goal, v.Missed = fmt.Sprintf("<= %g", goal), v.Spread.Median > goal
	return v
}

// least says what the median should be at least.
func (v Value) least(goal float64) Value {
	v.Goal, v.Missed = fmt.Sprintf(">= %g", goal), v.Spread.Median < goal
	return v
}

// quantile of a list, which it sorts.
func quantile(all []float64, q float64) float64 {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[min(len(all)-1, int(q*float64(len(all))))]
}

func micros(d time.Duration) float64 { return float64(d) / 1e3 }
func millis(d time.Duration) float64 { return float64(d) / 1e6 }
