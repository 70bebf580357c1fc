package ofi_test

import (
	"math/rand/v2"
	"testing"

	"github.com/hawser-project/hawser/mem"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/ofi"
	"github.com/hawser-project/hawser/provider/providertest"
)

// The way in which EFA tells whose an immediate is keeps the contract, as strict as an EFA, over libfabric's tcp.
func TestContractBySource(t *testing.T) {
	p := ofi.BySource(network(t, "tcp"), false)
	seed := rand.Uint64()
	t.Logf("strict EFA, seed %d", seed)
	providertest.Run(t, providertest.Factory{
		Memory: mem.Private,
		Except: once(map[string]string{
			"LargestWriteArrives": "tested without the decorator: 64 MiB",
			"KilledProcess":       "the decorator knows one process: tested without it",
			"StoppedProcess":      "the decorator knows one process: tested without it",
		}),
		Network: func(t *testing.T) providertest.Network {
			return providertest.Network{Provider: func(string) provider.Provider {
				return providertest.Decorate(p, func(d provider.Domain) provider.Domain {
					seed++
					return providertest.EFA(d, seed, func(err error) { t.Error(err) })
				})
			}}
		},
	})
}
