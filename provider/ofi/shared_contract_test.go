package ofi_test

import (
	"testing"

	"github.com/hawser-project/hawser/mem"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/ofi"
	"github.com/hawser-project/hawser/provider/providertest"
)

// One endpoint for everything, as a NIC has, keeps the contract over libfabric's tcp but for what such an endpoint cannot, and for what only closing it
// would end there.
func TestContractShared(t *testing.T) {
	p := ofi.BySource(network(t, "tcp"), true)
	const (
		second = "it has two connections of one pair of endpoints at a time: the second is refused (ofi.DetailBusy)"
		partly = "libfabric's tcp goes on with a write of which a part has come when its registration ends; only closing the endpoint would stop it"
	)
	except := map[string]string{"StoppedProcess": partly}
	for _, name := range []string{
		"AnythingAtAnyTime", "CloseLeavesNothing", "EitherSideMayComeFirst", "ImmediateNamesValueLengthAndPeer", "OwnersOnManyGoroutines",
		"ReconnectAfterDisconnect", "RefusalEndsOneConnection", "SecondFenceWaitsForTheFirst",
	} {
		except[name] = second
	}
	providertest.Run(t, providertest.Factory{
		Memory: mem.Private,
		Except: once(except),
		Network: func(*testing.T) providertest.Network {
			return providertest.Network{Provider: func(string) provider.Provider { return p }}
		},
	})
}
