package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/hawser-project/hawser/bench/weightbench"
	"github.com/hawser-project/hawser/provider/sim"
	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/weights/weightsim"
)

// prediction is what a simulation says of a push that was measured. It knows two other measurements of the same machine: how fast it copies,
// from the floor, and what the protocol takes, from pushes of one small tensor.
type prediction struct {
	Simulated float64 `json:"simulated_ms"` // BEGIN to the last DONE
	Measured  float64 `json:"measured_ms"`
	Off       float64 `json:"off"` // simulated / measured - 1

	CopyRate float64 `json:"copy_bytes_per_second"` // of all processors together
	Staged   int64   `json:"staged_bytes"`          // copied once more
	Control  float64 `json:"control_us"`            // one way of a message
	Small    float64 `json:"small_push_ms"`
}

// predict simulates what was measured.
func (c *weightsBenchCmd) predict(ctx context.Context, u *ui, config weightbench.Config, r *weightbench.Result) (*prediction, error) {
	p := &prediction{Measured: r.Begin}
	for _, s := range r.Systems {
		if s.Name == "floor" {
			p.CopyRate = float64(r.Bytes) / (s.Millis.Median / 1000)
		}
	}
	config.Case = weightbench.Case{Model: "one", Src: 4, Dst: 2, Codec: "raw"}
	config.Peers = nil
	small, err := weightbench.Run(ctx, config)
	if err != nil {
		return nil, err
	}
	p.Small = small.Begin
	one, err := planOf(ctx, config.Case)
	if err != nil {
		return nil, err
	}
	total := func(plan *reshard.Plan, control time.Duration) (time.Duration, error) {
		t, err := weightsim.Run(ctx, plan, p.options(plan, control))
		if err != nil {
			return 0, err
		}
		return t.Total, nil
	}
	a, err1 := total(one, 100*time.Microsecond)
	b, err2 := total(one, 200*time.Microsecond)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	hops := float64(b-a) / float64(100*time.Microsecond)
	control := time.Duration((p.Small*float64(time.Millisecond)-float64(a))/hops) + 100*time.Microsecond
	control = max(control, time.Microsecond)
	p.Control = float64(control) / float64(time.Microsecond)
	plan, err := planOf(ctx, r.Config.Case)
	if err != nil {
		return nil, err
	}
	d, err := total(plan, control)
	if err != nil {
		return nil, err
	}
	p.Simulated = millis(d)
	p.Off = p.Simulated/p.Measured - 1
	u.printf("SIMULATION of the push in the middle: %.1f ms, measured %.1f ms (%+.1f %%); from copies at %.2f GB/s, of %s once more for staging, and %.0f us for a message, so that a push of one tensor takes its %.1f ms\n",
		p.Simulated, p.Measured, 100*p.Off, p.CopyRate/1e9, bytesText(p.Staged), p.Control, p.Small)
	return p, nil
}

func planOf(ctx context.Context, c weightbench.Case) (*reshard.Plan, error) {
	src, dst, err := c.Layouts()
	if err != nil {
		return nil, err
	}
	return reshard.Compute(ctx, src, dst, nil, reshard.Options{})
}

// options are a machine whose trainers share the processors that copy: into staging, and from there or from the source to the destination.
func (p *prediction) options(plan *reshard.Plan, control time.Duration) weightsim.Options {
	s, d := plan.Ranks()
	bytes := int64(0)
	p.Staged = 0
	for i := range s {
		tasks := plan.Source(i).Tasks
		for k := range tasks {
			p.Staged += tasks[k].Size
			for _, r := range tasks[k].Runs {
				bytes += r.Len
			}
		}
	}
	rate := p.CopyRate * float64(bytes) / float64(bytes+p.Staged)
	o := weightsim.Options{Hosts: map[string][]sim.NIC{}, CopyRate: -1, StageRate: math.MaxFloat64, TaskCost: time.Microsecond, Control: control, Fragment: 64 << 10}
	for i := range s {
		o.Hosts[fmt.Sprintf("train-%d", i)] = []sim.NIC{weightsim.Line(uint64(8 * rate / float64(s)))}
	}
	for i := range d {
		o.Hosts[fmt.Sprintf("infer-%d", i)] = []sim.NIC{weightsim.Line(uint64(8 * rate))}
	}
	return o
}
