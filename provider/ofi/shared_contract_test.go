package ofi_test

import (
	"flag"
	"testing"

	"github.com/hawser-project/hawser/mem"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/ofi"
	"github.com/hawser-project/hawser/provider/providertest"
)

var shared = flag.Bool("shared", false, "test the contract over one shared endpoint")

// One endpoint for everything, as a NIC has, keeps the contract over libfabric's tcp but for what such an endpoint cannot, and for what only closing it
// would end there. It has a stage of its own (make shared): it takes as long as the rest of the package.
func TestContractShared(t *testing.T) {
	if !*shared {
		t.Skip("not asked for by -shared: make shared does")
	}
	p := ofi.BySource(network(t, "tcp"), true)
	const (
		second = "it has two connections of one pair of endpoints at a time: the second is refused (ofi.DetailBusy)"
		partly = "libfabric's tcp goes on with a write of which a part has come when its registration ends; only closing the endpoint would stop it"
		socket = "libfabric's tcp ends the socket of a refused write, here the only one of two endpoints, and the word that the key has ended is lost with it"
	)
	except := map[string]string{"FenceWhileTheWriterRuns": partly, "StoppedProcess": partly, "DeregisterWhileTheWriterRuns": socket}
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
