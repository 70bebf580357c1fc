package ofi

import (
	"context"
	"fmt"

	"github.com/hawser-project/hawser/provider"
)

// Options choose among the networks of libfabric.
type Options struct {
	// Provider is libfabric's name of one of its providers: "efa", "tcp", "shm", "udp;ofi_rxd", "verbs;ofi_rxm". Empty takes all that
	// drive network hardware, and none that only emulate one in software; cards with a verbs driver are left to package verbs.
	Provider string
}

// New returns the provider. It holds nothing; libfabric is loaded by the first call of Devices or Open and stays loaded.
func New(o Options) provider.Provider { return network{Options: o} }

type network struct {
	Options

	// Of tests: a network with 8 bytes of data is used as one with 4, and one in software as a NIC, with an endpoint for all.
	narrow, shared bool
}

// Name is "ofi", or "ofi:" and Options.Provider.
func (n network) Name() string {
	if n.Provider == "" {
		return "ofi"
	}
	return "ofi:" + n.Provider
}

// Devices lists the domains of libfabric that have reliable datagrams, messages and writes with 8 bytes of data, or with
// 4 and the source of a completion.
func (n network) Devices(ctx context.Context) ([]provider.Device, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	devs, err := n.devices()
	if err != nil {
		return nil, fmt.Errorf("%s devices: %w", n.Name(), err)
	}
	return devs, nil
}

// Open opens a device that Devices has listed.
func (n network) Open(ctx context.Context, dev provider.Device, cfg provider.Config) (provider.Domain, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	d, err := n.open(dev, cfg)
	if err != nil {
		return nil, fmt.Errorf("%s open %s: %w", n.Name(), dev.Name, err)
	}
	return d, nil
}

// DetailBusy is the Detail of StatusRefused when the two endpoints have another connection, or writes of an older one are still under way,
// on a network that tells connections by their endpoints: EFA.
const DetailBusy = 1 << 16

// Error is an error of libfabric: Code is one of its numbers (an errno below 256), Text is fi_strerror's.
type Error struct {
	Call string
	Code int
	Text string
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s (%d)", e.Call, e.Text, e.Code) }
