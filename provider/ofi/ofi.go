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
func New(o Options) provider.Provider { return network{o} }

type network struct{ Options }

// Name is "ofi", or "ofi:" and Options.Provider.
func (n network) Name() string {
	if n.Provider == "" {
		return "ofi"
	}
	return "ofi:" + n.Provider
}

// Devices lists the domains of libfabric that have reliable datagrams, messages and writes with at least 4 bytes of data.
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

// Error is an error of libfabric: Code is one of its numbers (an errno below 256), Text is fi_strerror's.
type Error struct {
	Call string
	Code int
	Text string
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s (%d)", e.Call, e.Text, e.Code) }
