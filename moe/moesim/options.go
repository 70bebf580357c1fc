package moesim

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/hawser-project/hawser/moe/proto"
	"github.com/hawser-project/hawser/provider/sim"
)

// Options say what is played.
type Options struct {
	Config proto.Config // of every rank; Rank is not used, and a step is always received in one piece
	NICs   []sim.NIC    // of every rank
	Node   int          // ranks of a node, which reach each other by Local; 0: all go by NIC
	Local  sim.NIC      // zero value: NVLink
	Costs  Costs
	Steps  int
	Seed   uint64
	// Fragment is how many bytes of a write the fabric moves as one event, default 16 KiB. Real packets are smaller.
	Fragment uint64

	// IDs are those of a rank's tokens in a step, Config.TopK of each; negative ones are none.
	IDs func(step, rank int) []int32
	// Progress is called after each step; may be nil.
	Progress func(step int)
}

// Costs are what a rank's GPU and its worker take for each other. The zero value of each field means the default.
type Costs struct {
	Launch time.Duration // from the call to a kernel that runs: once for dispatch, once for combine; default 5 µs
	Count  time.Duration // counting and sorting the ids; default 3 µs
	Signal time.Duration // a flag between GPU and worker, one way, over PCIe; default 1 µs
	Rate   float64       // bytes per second that kernels read and write; default 2e12, as weightsim has it
}

// NVLink is what connects the GPUs of a node: round numbers below those of its fourth generation, and the costs of a post to a NIC.
func NVLink() sim.NIC {
	n := sim.ConnectX7()[0]
	n.LinkBits, n.Latency = 2400e9, 2*time.Microsecond
	return n
}

func orDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

func (o Options) withDefaults() (Options, error) {
	orDefault(&o.Costs.Launch, 5*time.Microsecond)
	orDefault(&o.Costs.Count, 3*time.Microsecond)
	orDefault(&o.Costs.Signal, time.Microsecond)
	orDefault(&o.Costs.Rate, 2e12)
	orDefault(&o.Fragment, 16<<10)
	orDefault(&o.Local, NVLink())
	nics := append([]sim.NIC(nil), o.NICs...)
	for i := range nics {
		nics[i].MTU = o.Fragment
	}
	o.NICs, o.Local.MTU = nics, o.Fragment
	o.Config.Budget, o.Config.MaxRecv, o.Config.StepTimeout = math.MaxInt64, 0, time.Hour // memory costs nothing here, and nobody dies
	switch {
	case o.Config.MaxRanks < 2:
		return o, fmt.Errorf("moesim: %d ranks, want at least 2", o.Config.MaxRanks)
	case o.Steps < 1 || o.IDs == nil || len(nics) == 0:
		return o, errors.New("moesim: no steps, ids or NICs")
	case o.Node < 0 || o.Node > 0 && o.Config.MaxRanks%o.Node != 0:
		return o, fmt.Errorf("moesim: %d ranks are no whole nodes of %d", o.Config.MaxRanks, o.Node)
	}
	return o, nil
}

// local: two ranks are of one node.
func (o *Options) local(a, b int) bool { return o.Node > 0 && a/o.Node == b/o.Node }

// Assumptions says in words what is taken for granted.
func (o Options) Assumptions() []string {
	o, err := o.withDefaults()
	if err != nil {
		return nil
	}
	n := &o.NICs[0]
	all := []string{
		fmt.Sprintf("network: %d x %.4g Gbit/s of payload for each rank, latency %v, %v for each write and %v of the worker; switches never block; "+
			"writes move in pieces of %d KiB", len(o.NICs), float64(n.LinkBits)/1e9, n.Latency, n.OpCost, n.PostCost+n.DoorbellCost, o.Fragment>>10),
		fmt.Sprintf("GPU: %v to launch, %v to count and sort, %v for a flag between it and the worker, %.4g GB/s read and written",
			o.Costs.Launch, o.Costs.Count, o.Costs.Signal, o.Costs.Rate/1e9),
		"all ranks begin at once, and combine when all have received; each step has other ids",
		"a step is received in one piece, whatever memory that needs",
	}
	if o.Node == 0 {
		return append(all, "every peer is reached by NIC")
	}
	l := &o.Local
	return append(all, fmt.Sprintf("nodes of %d ranks, between which rows move at %.4g GB/s with a latency of %v and %v of the worker for each write",
		o.Node, float64(l.LinkBits)/8e9, l.Latency, l.PostCost+l.DoorbellCost))
}
