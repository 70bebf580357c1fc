package hawser

import (
	"fmt"
	"runtime"

	"github.com/hawser-project/hawser/internal/cpu"
	"github.com/hawser-project/hawser/provider"
)

// fewCores is the number of processors below which nobody may occupy one for long: callers do not spin, because they would hold up
// the worker that they wait for, and the worker has no thread of its own.
const fewCores = 4

// thread is how a worker is put on the machine.
type thread struct {
	own  bool    // it has an OS thread and one more processor of the Go runtime
	cpus cpu.Set // where that thread may run; empty: anywhere
	node int     // NUMA node of the message buffers, -1: wherever
}

// cores is how many processors this process may use, by affinity and by control group.
func cores() (int, error) {
	allowed, err := cpu.Allowed()
	return min(allowed.Count(), runtime.GOMAXPROCS(0)), err
}

// chooseThread decides by the options, the number of processors, and where the first rail's card is that says so. near is cpu.Near.
func chooseThread(o *Options, rails []provider.Device, cores int, near func(node int) (cpu.Set, error)) (thread, error) {
	th := thread{node: -1}
	if len(o.CPUs) > 0 {
		set, err := cpu.Of(o.CPUs)
		if err != nil {
			return th, fmt.Errorf("cpus: %w: %w", ErrInvalid, err)
		}
		allowed, err := cpu.Allowed()
		if err != nil {
			return th, err
		}
		if cpu.Both(set, allowed) != set {
			return th, fmt.Errorf("cpus %v: %w: this process may not use all of them", o.CPUs, ErrInvalid)
		}
		th.own, th.cpus = true, set
		return th, nil
	}
	if cores < fewCores {
		return th, nil
	}
	th.own = o.Poll == PollBusy
	for _, d := range rails {
		if d.NUMA < 0 {
			continue
		}
		set, err := near(d.NUMA)
		if err != nil {
			return th, err
		}
		if set.Count() > 0 {
			th.own, th.cpus, th.node = true, set, d.NUMA
		}
		break
	}
	return th, nil
}
