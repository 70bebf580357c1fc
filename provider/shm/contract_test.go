package shm_test

import (
	"testing"

	"github.com/hawser-project/hawser/mem"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/providertest"
	"github.com/hawser-project/hawser/provider/shm"
)

// TestForeignContract is the contract with memory that has no memfd: the receiver fetches what is written to it.
func TestForeignContract(t *testing.T) {
	providertest.Run(t, providertest.Factory{
		Memory: mem.Private,
		Network: func(*testing.T) providertest.Network {
			return providertest.Network{Provider: func(string) provider.Provider { return shm.New() }}
		},
		Except: map[string]string{
			"GrantIsEnforcedToItsRange": "grants of this network are of whole memory",
			"ConnectEndsInTime":         "not again: it waits for seconds and has no memory",
		},
	})
}

func TestContract(t *testing.T) {
	providertest.Run(t, providertest.Factory{
		Memory:  mem.Shared,
		MidCopy: shm.MidCopy,
		Network: func(*testing.T) providertest.Network {
			return providertest.Network{Provider: func(string) provider.Provider { return shm.New() }}
		},
		Except: map[string]string{
			"GrantIsEnforcedToItsRange": "the writer maps whole memory, and its process is of the same user",
		},
	})
}
