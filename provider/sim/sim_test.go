package sim_test

import (
	"testing"

	"github.com/hawser-project/hawser/mem"
	"github.com/hawser-project/hawser/provider/providertest"
	"github.com/hawser-project/hawser/provider/sim"
)

func TestContract(t *testing.T) {
	providertest.Run(t, providertest.Factory{
		Memory: mem.Heap,
		Network: func(t *testing.T) providertest.Network {
			return providertest.Network{Provider: sim.New(sim.Config{Seed: seed(t)}).Provider}
		},
		Except: map[string]string{
			"KilledProcess":  "all hosts are in one process",
			"StoppedProcess": "all hosts are in one process",
		},
	})
}
