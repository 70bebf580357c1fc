package weightbench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/bench"
	"github.com/hawser-project/hawser/internal/proc"
	"github.com/hawser-project/hawser/weights"
	"github.com/hawser-project/hawser/weights/stage"
)

// Config says how a benchmark is run.
type Config struct {
	Network string       `json:"provider"` // shm, tcp, ...
	Case    Case         `json:"case"`
	Verify  stage.Verify `json:"verify"` // 0: sampled, 1: all, 2: off
	Rounds  int          `json:"rounds"` // that count, after two that do not
	Child   proc.Spec    `json:"-"`      // of a rank, which calls Serve
	Peers   *Peers       `json:"-"`      // nil: only the floor
	Tell    func(string) `json:"-"`      // progress; may be nil
}

// warmups are rounds that do not count.
const warmups = 2

// System is what took part in a benchmark.
type System struct {
	Name    string       `json:"name"`
	Millis  bench.Spread `json:"wall_ms"`
	Ratio   bench.Spread `json:"ours_over_this"`    // of the same round; of ours: 1
	Wrong   *int64       `json:"wrong_bytes"`       // of all rounds; null: it moves nothing that can be compared
	Skipped string       `json:"skipped,omitempty"` // why it did not take part
	samples []time.Duration
}

// Phases are those of the push in the middle, ms.
type Phases struct {
	Pause     float64 `json:"pause_ms"`
	FirstByte float64 `json:"first_byte_ms"`
	LastByte  float64 `json:"last_byte_ms"`
	Verify    float64 `json:"verify_ms"`
	Commit    float64 `json:"commit_ms"`
	PostLoad  float64 `json:"post_load_ms"`
	Resume    float64 `json:"resume_ms"`
}

// Result is that of one benchmark.
type Result struct {
	Config  Config   `json:"config"`
	Version uint64   `json:"version"` // the last one
	Bytes   int64    `json:"bytes"`
	Wall    float64  `json:"wall_ms"` // median
	GBPerS  float64  `json:"gb_per_s"`
	Begin   float64  `json:"begin_to_done_ms"` // of the push in the middle: without the offers of the publishers
	Wrong   int64    `json:"wrong_bytes"`      // of all rounds
	Phases  Phases   `json:"phases"`
	Writes  uint64   `json:"writes"`
	Epoch   uint64   `json:"epoch"`
	CPU     float64  `json:"cpu_seconds"` // of all ranks, a round, median
	RSS     uint64   `json:"peak_rss"`    // bytes, of the largest rank
	Staging int64    `json:"peak_staging"`
	Load    float64  `json:"load"` // mean number of runnable processes of the host in the minute before
	Systems []System `json:"systems"`
}

// turn is one system's part of a round.
type turn struct {
	System
	run func(ctx context.Context) (d time.Duration, wrong int64, err error)
}

// Run runs a benchmark: rounds in which all systems take their turns, in an order that rotates.
func Run(ctx context.Context, c Config) (r *Result, err error) {
	if c.Rounds < 1 {
		return nil, fmt.Errorf("weightbench: %w: %d rounds", hawser.ErrInvalid, c.Rounds)
	}
	if c.Tell == nil {
		c.Tell = func(string) {}
	}
	r = &Result{Config: c, Load: bench.LoadAverage()}
	c.Tell("starting the ranks")
	w, err := newWorld(ctx, c, c.Case, c.Verify)
	if err != nil {
		return nil, err
	}
	defer func() {
		if e := w.close(); err == nil && e != nil {
			err = e
		}
	}()
	floor, err := newCopier(w.bytes)
	if err != nil {
		return nil, err
	}
	defer floor.close()
	var pushes []pushed
	turns := []*turn{
		{System{Name: "hawser"}, func(ctx context.Context) (time.Duration, int64, error) {
			p, err := w.push(ctx)
			pushes = append(pushes, p)
			return p.wall, p.wrong, err
		}},
		{System{Name: "floor"}, func(context.Context) (time.Duration, int64, error) { return floor.run(), -1, nil }},
	}
	if c.Case.Codec == "fp8block" {
		turns = append(turns, &turn{System{Name: "quantize alone"}, func(ctx context.Context) (time.Duration, int64, error) {
			d, err := w.quantize(ctx)
			return d, -1, err
		}})
	}
	parts := len(turns)
	if c.Peers != nil {
		defer func() { err = errors.Join(err, c.Peers.stop()) }()
		turns = append(turns, c.Peers.turns(ctx, w, c)...)
	}
	if err := rounds(ctx, c, turns); err != nil {
		return nil, err
	}
	if parts == 3 {
		turns = append(turns, sum("quantize + floor", turns[1], turns[2]))
	}
	r.fill(w, turns, pushes[warmups:])
	return r, nil
}

func rounds(ctx context.Context, c Config, turns []*turn) error {
	for round := range warmups + c.Rounds {
		for i := range turns {
			t := turns[(round+i)%len(turns)]
			if t.Skipped != "" {
				continue
			}
			c.Tell(fmt.Sprintf("round %d of %d: %s", round+1, warmups+c.Rounds, t.Name))
			d, wrong, err := t.run(ctx)
			if err != nil {
				return fmt.Errorf("%s: %w", t.Name, err)
			}
			if wrong >= 0 {
				if t.Wrong == nil {
					t.Wrong = new(int64)
				}
				*t.Wrong += wrong
			}
			if round >= warmups {
				t.samples = append(t.samples, d)
			}
		}
	}
	return nil
}

// sum is what two systems take together, round by round.
func sum(name string, a, b *turn) *turn {
	t := &turn{System: System{Name: name}}
	for i := range a.samples {
		t.samples = append(t.samples, a.samples[i]+b.samples[i])
	}
	return t
}

func (r *Result) fill(w *world, turns []*turn, pushes []pushed) {
	ours := turns[0]
	for _, t := range turns {
		var ms, ratio []float64
		for i, d := range t.samples {
			ms = append(ms, millis(d))
			ratio = append(ratio, ours.samples[i].Seconds()/d.Seconds())
		}
		if len(ms) > 0 {
			t.Millis, t.Ratio = bench.SpreadOf(ms), bench.SpreadOf(ratio)
		}
		r.Systems = append(r.Systems, t.System)
	}
	r.Version, r.Bytes, r.Wall = w.version, w.bytes, ours.Millis.Median
	r.GBPerS = float64(w.bytes) / (r.Wall / 1000) / 1e9
	r.Wrong = *ours.Wrong
	var cpu []float64
	best := 0
	for i, p := range pushes {
		cpu = append(cpu, p.CPU)
		r.RSS, r.Staging = max(r.RSS, p.RSS), max(r.Staging, p.report.Staging)
		if abs(millis(p.wall)-r.Wall) < abs(millis(pushes[best].wall)-r.Wall) {
			best = i
		}
	}
	r.CPU = bench.SpreadOf(cpu).Median
	mid := pushes[best].report
	r.Begin = millis(mid.Wall)
	r.Phases, r.Writes, r.Epoch = phasesOf(mid.Phases), mid.Writes, mid.Epoch
}

func phasesOf(p weights.Phases) Phases {
	return Phases{
		Pause: millis(p.Pause), FirstByte: millis(p.FirstByte), LastByte: millis(p.LastByte), Verify: millis(p.Verify), Commit: millis(p.Commit),
		PostLoad: millis(p.PostLoad), Resume: millis(p.Resume),
	}
}

func millis(d time.Duration) float64 { return d.Seconds() * 1000 }

func abs(x float64) float64 { return max(x, -x) }
