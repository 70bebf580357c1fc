package ofi_test

import (
	"testing"

	"github.com/hawser-project/hawser/mem"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/ofi"
	"github.com/hawser-project/hawser/provider/providertest"
)

func contract(t *testing.T, name string, except map[string]string) {
	providertest.Run(t, providertest.Factory{
		Memory: mem.Private,
		Except: except,
		Network: func(*testing.T) providertest.Network {
			return providertest.Network{Provider: func(string) provider.Provider { return ofi.New(ofi.Options{Provider: name}) }}
		},
	})
}

func TestContractTCP(t *testing.T) { contract(t, "tcp", nil) }
func TestContractNet(t *testing.T) { contract(t, "net", nil) }
func TestContractSHM(t *testing.T) { contract(t, "shm", nil) }
func TestContractRXD(t *testing.T) { contract(t, "udp;ofi_rxd", nil) }
