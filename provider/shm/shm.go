package shm

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/internal/host"
	"github.com/hawser-project/hawser/provider"
)

const (
	providerName = "shm"
	deviceName   = "shm0"

	// linkBits is what one core copies between cold buffers, bits per second: about 10 GB/s on the slower of today's servers.
	// Only its order of magnitude matters, as this network is never striped with another one.
	linkBits = 80e9

	// maxMsg has no cause in the mechanism, which works in chunks; it keeps sums of lengths far from overflow.
	maxMsg = 1 << 40

	maxSend = provider.MinMaxSend

	// peerDepth is the writes and sends of one peer that may be outstanding: enough to keep the copying busy between two
	// visits of the owner, 20 KiB a peer when it is all used.
	peerDepth = 256

	recvDepth = 1024

	// maxPeersLimit is the number of indexes that a handle can hold.
	maxPeersLimit = 1 << provider.PeerIndexBits

	// drainBound covers noticing the end of a socket (controlTicks), graceTime, and a peer that was stopped while it read a source
	// (fenceBound), with room for a busy machine.
	drainBound = 300 * time.Millisecond
)

// Provider is the shm network. It holds nothing; all values are alike.
type Provider struct{}

// New returns the provider.
func New() Provider { return Provider{} }

// Name is "shm".
func (Provider) Name() string { return providerName }

// Devices returns the one device of this host. Its fabric differs between processes that cannot reach each other: other boots,
// network namespaces (abstract sockets belong to one) and users.
func (Provider) Devices(context.Context) ([]provider.Device, error) {
	dev, err := device()
	if err == nil {
		err = probe()
	}
	if err != nil {
		return nil, fmt.Errorf("shm devices: %w: %w", provider.ErrUnavailable, err)
	}
	return []provider.Device{dev}, nil
}

func device() (provider.Device, error) {
	id, err := host.ID()
	if err != nil {
		return provider.Device{}, err
	}
	return provider.Device{
		Provider: providerName,
		Name:     deviceName,
		Fabric:   fmt.Sprintf("shm:%s:%d", id, unix.Geteuid()),
		LinkBits: linkBits,
		NUMA:     -1,
		Loopback: true,
	}, nil
}

// probe looks whether the kernel can make what a Domain needs.
func probe() error {
	fd, b, err := newBellPage()
	if err != nil {
		return err
	}
	return errors.Join(unmap(b), unix.Close(fd))
}

// Open opens the device of Devices. It takes four descriptors and a page; each peer takes two descriptors and at first one page.
func (Provider) Open(_ context.Context, dev provider.Device, cfg provider.Config) (provider.Domain, error) {
	d, err := open(dev, cfg)
	if err != nil {
		return nil, fmt.Errorf("open %s %s: %w", providerName, dev.Name, err)
	}
	return d, nil
}

func open(dev provider.Device, cfg provider.Config) (*domain, error) {
	own, err := device()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", provider.ErrUnavailable, err)
	}
	switch {
	case dev.Provider != own.Provider || dev.Name != own.Name || dev.Fabric != own.Fabric:
		return nil, fmt.Errorf("%w: device %s/%s of fabric %q, have %s/%s of %q",
			provider.ErrInvalid, dev.Provider, dev.Name, dev.Fabric, own.Provider, own.Name, own.Fabric)
	case cfg.Bell == nil:
		return nil, fmt.Errorf("%w: no bell", provider.ErrInvalid)
	case cfg.MaxPeers < 0 || cfg.MaxPeers > maxPeersLimit:
		return nil, fmt.Errorf("%w: %d peers, at most %d", provider.ErrInvalid, cfg.MaxPeers, maxPeersLimit)
	case cfg.MaxPeers == 0:
		cfg.MaxPeers = provider.DefaultMaxPeers
	}
	d := &domain{bell: cfg.Bell, maxPeers: cfg.MaxPeers, fabric: own.Fabric, start: time.Now(), pageFD: -1, listener: -1, timer: -1, epoll: -1}
	if err := d.init(); err != nil {
		return nil, errors.Join(err, d.free())
	}
	return d, nil
}
