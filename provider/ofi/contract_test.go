package ofi_test

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/hawser-project/hawser/mem"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/ofi"
	"github.com/hawser-project/hawser/provider/providertest"
)

// network is libfabric's provider of a name, where libfabric is installed. In CI it must be.
func network(t *testing.T, name string) provider.Provider {
	t.Helper()
	p := ofi.New(ofi.Options{Provider: name})
	_, err := p.Devices(context.Background())
	switch {
	case err == nil:
		return p
	case errors.Is(err, provider.ErrUnavailable) && os.Getenv("HAWSER_TEST_COUNTS") == "":
		t.Skipf("libfabric is not here: %v", err)
	case errors.Is(err, provider.ErrUnavailable) && !cgo:
		t.Skip("built without cgo")
	default:
		t.Fatal(err)
	}
	return nil
}

func contract(t *testing.T, name string, except map[string]string) {
	p := network(t, name)
	providertest.Run(t, providertest.Factory{
		Memory: mem.Private,
		Except: except,
		Network: func(*testing.T) providertest.Network {
			return providertest.Network{Provider: func(string) provider.Provider { return p }}
		},
	})
}

// once are the properties that wait for seconds and are the same code for every provider of libfabric.
func once(rows map[string]string) map[string]string {
	for _, name := range []string{"ConnectEndsInTime", "GibibyteInPieces", "ManyPeers", "NoWakeIsLost"} {
		rows[name] = "not again: tested over tcp"
	}
	return rows
}

func TestContractTCP(t *testing.T) {
	contract(t, "tcp", nil)
}

func TestContractSHM(t *testing.T) {
	const lock = "a process that is stopped or killed while it holds the spin lock in another's shared memory stops that one within libfabric"
	contract(t, "shm", once(map[string]string{"KilledProcess": lock, "StoppedProcess": lock}))
}

func TestContractRXD(t *testing.T) {
	if raceEnabled {
		t.Skip("not again under the race detector: it sees no payload that C moves")
	}
	const slow = "not again: ofi_rxd sends again after seconds what its peer did not take in time, and this property makes many such"
	contract(t, "udp;ofi_rxd", once(map[string]string{"DeregisterWhileTheWriterRuns": slow, "FenceWhileTheWriterRuns": slow}))
}
