//go:build cgo

package verbs_test

import (
	"context"
	"maps"
	"os"
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

// spread opens hosts by turns on the first two devices, and the two processes of a property on one each.
func spread(host string, devs []provider.Device) provider.Device {
	if host == "child" {
		return devs[min(1, len(devs)-1)]
	}
	return devs[int(host[len(host)-1])%min(2, len(devs))]
}

// toolsEnv is set by .ci/verbs, whose machines have devices.
const toolsEnv = "HAWSER_VM_TOOLS"

// TestContract runs the contract on the devices of this machine; the first two must reach each other.
func TestContract(t *testing.T) {
	p := verbs.New(verbs.Options{})
	devs, err := p.Devices(context.Background())
	if os.Getenv(toolsEnv) != "" && len(devs) < 2 {
		t.Fatalf("%d devices, want 2 in a virtual machine: %v", len(devs), err)
	}
	if err != nil {
		t.Skipf("NOT TESTED, there is no device: %v", err)
	}
	providertest.Run(t, providertest.Factory{
		Memory: mem.Private,
		Except: except,
		Network: func(*testing.T) providertest.Network {
			return providertest.Network{Provider: func(string) provider.Provider { return p }, Device: spread}
		},
	})
}

// TestContractFake runs it on a libibverbs without devices, which aborts on what a card would only count.
func TestContractFake(t *testing.T) { contractFake(t, nil) }

// TestContractFakeSoft runs it once more, on what ends queue pairs, and refuses long writes for no fault of theirs, as soft-RoCE does.
func TestContractFakeSoft(t *testing.T) {
	t.Setenv("FAKE_VENDOR", "16777215")
	t.Setenv("FAKE_INVALID", "20")
	no := map[string]string{}
	for _, name := range []string{"AddrWorksOnce", "ConnectEndsInTime", "WrongAddrIsRefused", "CrossedAddrsAreRefused", "SteadyStateAllocatesNothing"} {
		no[name] = "it takes seconds, and the other cards have it"
	}
	contractFake(t, no)
}

func contractFake(t *testing.T, no map[string]string) {
	if raceEnabled {
		t.Skip("not again under the race detector: one goroutine owns each Domain, and C moves the payloads")
	}
	p := onFake(t, verbs.Options{})
	all := maps.Clone(except)
	maps.Copy(all, no)
	all["KilledProcess"] = "the fake card is in this process"
	all["StoppedProcess"] = all["KilledProcess"]
	providertest.Run(t, providertest.Factory{
		Memory: mem.Private,
		Except: all,
		Network: func(*testing.T) providertest.Network {
			return providertest.Network{Provider: func(string) provider.Provider { return p }, Device: spread}
		},
	})
}
