package tcp

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/hawser-project/hawser/provider"
)

// Name of the provider.
const Name = "tcp"

type tcp struct{}

// New returns the provider. It holds nothing.
func New() provider.Provider { return tcp{} }

func (tcp) Name() string { return Name }

// Devices lists one device per local address: 127.0.0.1, ::1, then those of the other interfaces that are up.
func (tcp) Devices(ctx context.Context) ([]provider.Device, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	devs, err := devices()
	if err != nil {
		return nil, fmt.Errorf("tcp devices: %w: %w", provider.ErrUnavailable, err)
	}
	if len(devs) == 0 {
		return nil, fmt.Errorf("tcp devices: %w: no interface has an address", provider.ErrUnavailable)
	}
	return devs, nil
}

// Open opens the device whose Name is a local IP address, also one that Devices does not list: all of 127.0.0.0/8 is local.
func (tcp) Open(ctx context.Context, dev provider.Device, cfg provider.Config) (provider.Domain, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ip, err := netip.ParseAddr(dev.Name)
	if err != nil {
		return nil, fmt.Errorf("tcp open %q: %w: not an ip address", dev.Name, provider.ErrInvalid)
	}
	ip = ip.Unmap()
	switch {
	case dev.Provider != "" && dev.Provider != Name:
		return nil, fmt.Errorf("tcp open %q: %w: a device of provider %q", dev.Name, provider.ErrInvalid, dev.Provider)
	case ip.IsUnspecified() || ip.IsMulticast():
		return nil, fmt.Errorf("tcp open %v: %w: not the address of one interface", ip, provider.ErrInvalid)
	case ip.Is6() && ip.IsLinkLocalUnicast():
		return nil, fmt.Errorf("tcp open %v: %w: a link-local address means another host on each link", ip, provider.ErrUnsupported)
	}
	fab, err := fabric(ip)
	if err != nil {
		return nil, fmt.Errorf("tcp open %v: %w: %w", ip, provider.ErrUnavailable, err)
	}
	d, err := openDomain(ip, fab, dev.LinkBits, cfg)
	if err != nil {
		return nil, fmt.Errorf("tcp open %v: %w", ip, err)
	}
	return d, nil
}
