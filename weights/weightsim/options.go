package weightsim

import (
	"fmt"
	"time"

	"github.com/hawser-project/hawser/provider/sim"
	"github.com/hawser-project/hawser/weights/schedule"
)

// Options say what the machines of a push are like. The zero value of each field means the default.
type Options struct {
	// NICs are the rails of every rank; default one of Line(400e9).
	NICs []sim.NIC
	// Host are those of ranks that differ, by the name of the host: "train-3", "infer-0".
	Hosts map[string][]sim.NIC
	// Fragment is how many bytes of a write the fabric moves as one event, default 4 MiB. Real packets are smaller, and a push of terabytes
	// would be billions of them.
	Fragment uint64

	Limits    schedule.Limits // of each publisher; as weights.PublisherOptions
	Watermark int64           // bytes of staging of each publisher, default 1 GiB, at least twice its largest task
	Same      bool            // every publisher begins with the same destination; the default is that their turns are rotated

	// CopyRate is what a trainer's copy engine moves from host memory to the GPU, bytes per second, default 51e9 (PCIe 5 x16). Negative:
	// the sources are on the GPU already.
	CopyRate float64
	// StageRate is how fast a GPU reads what it casts, quantizes or packs, bytes per second, default 2e12; TaskCost is what each task costs
	// beside that, launches of kernels above all, default 20 µs. CopyCost is the same of each copy, default 10 µs.
	StageRate          float64
	TaskCost, CopyCost time.Duration

	// Instances is the inference engine of each receiver, by rank; default all of one, and those of the plan in Run.
	Instances []int

	// Control is one way of a message over a control connection, default 100 µs; Handling is what the controller needs for each message
	// that it receives or sends, default 2 µs, beside its bytes at ControlRate, bytes per second, default 2e9; Decide is the time of its
	// durable log, default 100 µs.
	Control, Handling, Decide time.Duration
	ControlRate               float64

	Faults []Fault
	// RetryTimeout is when a peer notices the silent death of a card, default 100 ms. Detect is when the controller notices the death of a
	// process, whose control connection ends with it, default 5 ms. Replan is how long the controller needs for a repair of the plan; 0:
	// as long as it took here, slices being made on PlanCores cores, default 16.
	RetryTimeout, Detect, Replan time.Duration
	PlanCores                    int

	Seed uint64 // of the fabric

	// Progress is called now and then with the bytes that have arrived, of all.
	Progress func(at time.Duration, arrived, all int64)
	// Note is told of faults and what follows from them.
	Note func(at time.Duration, text string)
	// Trace keeps when each rank did what of each stage; see Timeline.WriteTrace.
	Trace bool
}

// Line is a NIC with the costs and the latency of sim.ConnectX7 and the given payload bits per second.
func Line(bits uint64) sim.NIC {
	n := sim.ConnectX7()[0]
	n.LinkBits = bits
	return n
}

// Split is n NICs that together do what one of Line does.
func Split(bits uint64, n int) []sim.NIC {
	out := make([]sim.NIC, n)
	for i := range out {
		out[i] = Line(bits / uint64(n))
	}
	return out
}

func (o Options) withDefaults() Options {
	if o.NICs == nil {
		o.NICs = []sim.NIC{Line(400e9)}
	}
	o.Limits = o.Limits.WithDefaults()
	orDefault(&o.Fragment, 4<<20)
	orDefault(&o.Watermark, 1<<30)
	orDefault(&o.CopyRate, 51e9)
	orDefault(&o.StageRate, 2e12)
	orDefault(&o.TaskCost, 20*time.Microsecond)
	orDefault(&o.CopyCost, 10*time.Microsecond)
	orDefault(&o.Control, 100*time.Microsecond)
	orDefault(&o.Handling, 2*time.Microsecond)
	orDefault(&o.Decide, 100*time.Microsecond)
	orDefault(&o.RetryTimeout, 100*time.Millisecond)
	orDefault(&o.Detect, 5*time.Millisecond)
	orDefault(&o.PlanCores, 16)
	orDefault(&o.ControlRate, 2e9)
	o.NICs = withFragment(o.NICs, o.Fragment)
	hosts := make(map[string][]sim.NIC, len(o.Hosts))
	for name, nics := range o.Hosts {
		hosts[name] = withFragment(nics, o.Fragment)
	}
	o.Hosts = hosts
	return o
}

// instance is the inference engine of a receiver.
func (o *Options) instance(rank int) int {
	if rank < len(o.Instances) {
		return o.Instances[rank]
	}
	return 0
}

func orDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

func withFragment(nics []sim.NIC, n uint64) []sim.NIC {
	out := append([]sim.NIC(nil), nics...)
	for i := range out {
		out[i].MTU = n
	}
	return out
}

func (o *Options) note(at time.Duration, format string, args ...any) {
	if o.Note != nil {
		o.Note(at, fmt.Sprintf(format, args...))
	}
}

// took is the time of n bytes at a rate.
func took(n int64, rate float64) time.Duration {
	return time.Duration(float64(n) / rate * float64(time.Second))
}

// Assumptions says in words what the simulation takes for granted.
func (o Options) Assumptions() []string {
	o = o.withDefaults()
	rate := func(bytesPerSecond float64) string { return fmt.Sprintf("%.4g GB/s", bytesPerSecond/1e9) }
	nic := &o.NICs[0]
	out := []string{
		fmt.Sprintf("network: %d x %.4g Gbit/s of payload for each rank, latency %v, %v for each write and %v of the sender's processor; "+
			"switches never block; writes move in pieces of %d KiB", len(o.NICs), float64(nic.LinkBits)/1e9, nic.Latency, nic.OpCost, nic.PostCost+nic.DoorbellCost, o.Fragment>>10),
		fmt.Sprintf("staging: GPUs read %s, and %v for each task; at most %.4g GB at once", rate(o.StageRate), o.TaskCost, float64(o.Watermark)/1e9),
		fmt.Sprintf("control: %v one way, %v of the controller for each message and %s, %v for its log", o.Control, o.Handling, rate(o.ControlRate), o.Decide),
	}
	if o.CopyRate > 0 {
		out = append(out, fmt.Sprintf("copies from host memory: %s, and %v for each", rate(o.CopyRate), o.CopyCost))
	} else {
		out = append(out, "the trainers' weights are in GPU memory")
	}
	if len(o.Faults) > 0 {
		out = append(out, fmt.Sprintf("faults: a silent adapter is noticed after %v, a dead process after %v", o.RetryTimeout, o.Detect))
	}
	return out
}
