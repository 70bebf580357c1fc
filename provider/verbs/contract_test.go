package verbs_test

import (
	"context"
	"testing"

	"github.com/hawser-project/hawser/mem"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/providertest"
	"github.com/hawser-project/hawser/provider/verbs"
)

// except is what cards cannot give.
var except = map[string]string{
	"GrantIsEnforcedToItsRange": "the card enforces whole registrations; ranges are checked by the writer",
}

// TestContract runs the contract on the devices of this machine, hosts by turns on the first two of one subnet.
func TestContract(t *testing.T) {
	p := verbs.New(verbs.Options{})
	if _, err := p.Devices(context.Background()); err != nil {
		t.Skipf("NOT TESTED, there is no device: %v", err)
	}
	providertest.Run(t, providertest.Factory{
		Memory: mem.Private,
		Except: except,
		Network: func(*testing.T) providertest.Network {
			return providertest.Network{
				Provider: func(string) provider.Provider { return p },
				Device: func(host string, devs []provider.Device) provider.Device {
					return devs[int(host[len(host)-1])%min(2, len(devs))]
				},
			}
		},
	})
}
