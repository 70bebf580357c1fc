package tcp_test

import (
	"testing"

	"github.com/hawser-project/hawser/mem"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/providertest"
	"github.com/hawser-project/hawser/provider/tcp"
)

// on runs the contract with all hosts on one address.
func on(t *testing.T, name string, memory mem.Kind, except map[string]string) {
	providertest.Run(t, providertest.Factory{
		Memory: memory,
		Except: except,
		Network: func(*testing.T) providertest.Network {
			return providertest.Network{
				Provider: func(string) provider.Provider { return tcp.New() },
				Device: func(_ string, devs []provider.Device) provider.Device {
					dev := devs[0]
					for _, d := range devs {
						if d.Name == name {
							dev = d
						}
					}
					dev.Name = name // 127.0.0.2 is local without being listed
					return dev
				},
			}
		},
	})
}

// slow is what waits for seconds and does not depend on the address: tested on one.
var slow = map[string]string{"ConnectEndsInTime": "not again: tested on 127.0.0.1"}

func TestContract(t *testing.T)       { on(t, "127.0.0.1", mem.Heap, nil) }
func TestContractOther4(t *testing.T) { on(t, "127.0.0.2", mem.Private, slow) }
func TestContract6(t *testing.T)      { on(t, "::1", mem.Heap, slow) }
