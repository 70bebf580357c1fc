package sim_test

import (
	"testing"
	"time"

	"github.com/hawser-project/hawser/mem"
	"github.com/hawser-project/hawser/provider/providertest"
	"github.com/hawser-project/hawser/provider/sim"
)

// contract runs the contract over fabrics of one kind.
func contract(t *testing.T, cfg sim.Config, except map[string]string) {
	ex := map[string]string{
		"KilledProcess":  "all hosts are in one process",
		"StoppedProcess": "all hosts are in one process",
	}
	for name, why := range except {
		ex[name] = why
	}
	providertest.Run(t, providertest.Factory{
		Memory: mem.Heap,
		Network: func(t *testing.T) providertest.Network {
			cfg := cfg // properties may run in parallel
			cfg.Seed = seed(t)
			return providertest.Network{Provider: sim.New(cfg).Provider}
		},
		Except: ex,
	})
}

// slow is what waits for seconds and does not depend on the NIC: tested on one.
var slow = map[string]string{"ConnectEndsInTime": "not again: tested on the default NIC"}

func TestContract(t *testing.T) { contract(t, sim.Config{}, nil) }

// An ordered NIC with the same jitter: what is overtaken waits.
func TestContractOrdered(t *testing.T) { contract(t, sim.Config{NIC: sim.NIC{Ordered: true}}, slow) }

// A refused write ends its connection, on NICs of both kinds.
func TestContractAccessEnds(t *testing.T) {
	for name, ordered := range map[string]bool{"Unordered": false, "Ordered": true} {
		t.Run(name, func(t *testing.T) {
			contract(t, sim.Config{NIC: sim.NIC{Ordered: ordered, AccessEnds: true}}, slow)
		})
	}
}

// A bad cable: every tenth packet is lost, on NICs of both kinds.
func TestContractLossy(t *testing.T) {
	for name, ordered := range map[string]bool{"Unordered": false, "Ordered": true} {
		t.Run(name, func(t *testing.T) {
			contract(t, sim.Config{NIC: sim.NIC{Ordered: ordered}, Loss: 0.1, RetryDelay: 100 * time.Microsecond}, slow)
		})
	}
}

// The models are providers too.
func TestContractProfiles(t *testing.T) {
	for name, rails := range map[string][]sim.NIC{"ConnectX7": sim.ConnectX7(), "EFA2x200": sim.EFA2x200()} {
		t.Run(name, func(t *testing.T) { contract(t, sim.Config{Rails: rails}, slow) })
	}
}
