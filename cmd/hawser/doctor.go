package main

import (
	"context"
	"fmt"
	"time"

	"github.com/hawser-project/hawser/bench"
	"github.com/hawser-project/hawser/internal/doctor"
)

type doctorCmd struct {
	childFlag
	Sysfs    string        `placeholder:"DIR" help:"Judge the machine that hawser topo capture has copied to DIR, instead of this one."`
	Memory   size          `default:"1GiB" help:"How much memory is meant to be registered with NICs (default: ${default})."`
	Provider []network     `placeholder:"NAME" help:"Networks to send over, within this host: ${networks} (default: all that can be used)."`
	Timeout  time.Duration `default:"10s" help:"How long each of these may take (default: ${default})."`
	Device   []string      `placeholder:"NAME" help:"Devices to send over, of those that hawser topo lists (default: all of a network)."`
}

// Help is shown below the first line of the help.
func (doctorCmd) Help() string {
	return `
Each line is ok, warn (it works, slower or not everywhere), fail (a network that this machine has does not work) or skip (it does not apply, or
cannot be known), and says what to do. At the end two engines of this host exchange a write over each network. Nothing is changed. The exit
status is 0, 1 when the worst is a warning, 2 when it is a failure.`
}

// diagnosis is what is written as JSON.
type diagnosis struct {
	Worst    doctor.Status `json:"worst"`
	Lines    []doctor.Line `json:"lines"`
	Facts    *doctor.Facts `json:"facts"`
	Machine  bench.Machine `json:"machine"`
	Revision string        `json:"revision"`
}

// verdict is a worst line that is not ok.
type verdict struct {
	worst       doctor.Status
	warns, bads int
}

func (v *verdict) Error() string {
	return fmt.Sprintf("doctor: %d failed, %d to be warned of", v.bads, v.warns)
}

// code is the exit status.
func (v *verdict) code() int {
	if v.worst == doctor.Fail {
		return exitBad
	}
	return exitWarned
}

// Exit codes of doctor.
const (
	exitWarned = 1
	exitBad    = 2
)

// Run examines the machine.
func (c *doctorCmd) Run(ctx context.Context, u *ui) error {
	if parent, ctx := c.attach(ctx); parent != nil {
		return tell(parent, c.loopback(ctx, parent))
	}
	if c.Timeout <= 0 {
		return usage("--timeout: %v, want more than 0", c.Timeout)
	}
	if c.Provider != nil && len(c.Provider) == 0 {
		return usage("--provider is empty, want names of networks")
	}
	if c.Sysfs != "" && len(c.Provider) > 0 {
		return usage("--provider: nothing can be sent on the machine of --sysfs")
	}
	u.status.show("doctor: looking")
	facts, err := doctor.Gather(c.Sysfs, uint64(c.Memory))
	if err != nil {
		return usage("--sysfs: %w", err)
	}
	lines := doctor.Check(facts)
	u.printf("%s", doctor.Text(lines))
	if !facts.Captured {
		for _, n := range c.networks() {
			more := c.loopbacks(ctx, u, n)
			if err := ctx.Err(); err != nil {
				return context.Cause(ctx)
			}
			u.printf("%s", doctor.Text(more))
			lines = append(lines, more...)
		}
	}
	d := diagnosis{Worst: doctor.Worst(lines), Lines: lines, Facts: facts, Machine: bench.ThisMachine(), Revision: thisVersion().Revision}
	if err := u.result(d); err != nil {
		return err
	}
	return judge(lines)
}

// judge is nil when nothing is worse than ok.
func judge(lines []doctor.Line) error {
	v := &verdict{worst: doctor.Worst(lines)}
	for _, l := range lines {
		switch l.Status {
		case doctor.Warn:
			v.warns++
		case doctor.Fail:
			v.bads++
		}
	}
	if v.worst == doctor.OK {
		return nil
	}
	return v
}
