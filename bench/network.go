package bench

import (
	"fmt"
	"strings"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/ofi"
	"github.com/hawser-project/hawser/provider/shm"
	"github.com/hawser-project/hawser/provider/tcp"
	"github.com/hawser-project/hawser/provider/verbs"
)

// Names of providers.
const (
	shmName = "shm"
	tcpName = "tcp"

	ofiShmName = "ofi:shm" // libfabric's shared memory
)

// Network is a kind of provider that can be had by name.
type Network struct {
	Name  string
	Parts []string // what may follow the name and a colon, as examples; none: nothing may
	New   func(part string) provider.Provider
}

// Networks are all that this program has, in the order in which they are worth trying.
func Networks() []Network {
	return []Network{
		{shmName, nil, func(string) provider.Provider { return shm.New() }},
		{tcpName, nil, func(string) provider.Provider { return tcp.New() }},
		{"verbs", nil, func(string) provider.Provider { return verbs.New(verbs.Options{}) }},
		{"ofi", []string{"tcp", "shm", "udp;ofi_rxd"}, func(part string) provider.Provider { return ofi.New(ofi.Options{Provider: part}) }},
	}
}

// Provider makes the provider of a name: shm, tcp, or, where a network has parts, its name, a colon and a part. The error lists the names.
// That there is such a provider does not mean that it can be used here: ask its Devices.
func Provider(name string) (provider.Provider, error) {
	network, part, colon := strings.Cut(name, ":")
	for _, n := range Networks() {
		if n.Name == network && (!colon || len(n.Parts) > 0 && part != "") {
			return n.New(part), nil
		}
	}
	return nil, fmt.Errorf("provider %q: %w: there are %s", name, hawser.ErrInvalid, NetworkNames())
}

// NetworkNames lists what Provider takes, for people.
func NetworkNames() string {
	var names []string
	for _, n := range Networks() {
		names = append(names, n.Name)
		for _, p := range n.Parts {
			names = append(names, n.Name+":"+p)
		}
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " and " + names[last]
}
