//go:build cgo

package verbs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/hawser-project/hawser/provider"
)

type verbs struct {
	opts      Options
	fault     error // of the options
	sys       sysfs
	addresses func(netdev string) []netip.Addr
}

// New returns the provider. It holds nothing; faults of the options are reported by Devices and Open.
func New(o Options) provider.Provider {
	o = o.withDefaults()
	return &verbs{opts: o, fault: o.validate(), sys: systemSysfs, addresses: addressesOf}
}

func (*verbs) Name() string { return Name }

// Devices lists a device for each port that is active and has an address that others can reach.
func (v *verbs) Devices(ctx context.Context) ([]provider.Device, error) {
	if v.fault != nil {
		return nil, v.fault
	}
	if v.sys.bare() { // who has no card is spared the library
		return nil, fmt.Errorf("verbs devices: %w: there is no RDMA device: nothing is in /%s", provider.ErrUnavailable, classIB)
	}
	lib, err := load(v.opts.Library)
	if err != nil {
		return nil, fmt.Errorf("verbs devices: %w", err)
	}
	names, err := lib.deviceNames()
	if err != nil {
		return nil, fmt.Errorf("verbs devices: %w", err)
	}
	var devs []provider.Device
	var faults []error
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		found, err := v.portsOf(lib, name)
		devs = append(devs, found...)
		if err != nil {
			faults = append(faults, err)
		}
	}
	switch {
	case len(devs) > 0:
		return devs, nil
	case len(faults) > 0:
		return nil, fmt.Errorf("verbs devices: %w: %w", provider.ErrUnavailable, errors.Join(faults...))
	case len(names) > 0:
		return nil, fmt.Errorf("verbs devices: %w: Options.Devices %q leaves none of %q", provider.ErrUnavailable, v.opts.Devices, names)
	}
	return nil, fmt.Errorf("verbs devices: %w: the library has no RDMA device, /%s has: its driver's library is missing (ibverbs-providers), or its file in /dev/infiniband",
		provider.ErrUnavailable, classIB)
}

// portsOf lists the ports of one card that can be used; the error says why the others cannot.
func (v *verbs) portsOf(lib *library, name string) ([]provider.Device, error) {
	if !v.wants(name, 0) {
		return nil, nil
	}
	c, err := openCard(lib, name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.close() }() // nothing was made of it
	var devs []provider.Device
	var faults []error
	for port := 1; port <= c.attrs.ports; port++ {
		if !v.wants(name, port) {
			continue
		}
		p, err := v.look(c, name, port)
		if err != nil {
			faults = append(faults, fmt.Errorf("%s/%d: %w", name, port, err))
			continue
		}
		devs = append(devs, provider.Device{
			Provider: Name, Name: fmt.Sprintf("%s/%d", name, port), Fabric: p.fabric, LinkBits: p.linkBits, NUMA: v.sys.numaNode(name),
		})
	}
	return devs, errors.Join(faults...)
}

// wants reports whether Options.Devices has this port, or, for port 0, any port of the card.
func (v *verbs) wants(name string, port int) bool {
	if len(v.opts.Devices) == 0 {
		return true
	}
	return slices.ContainsFunc(v.opts.Devices, func(d string) bool {
		card, p, one := strings.Cut(d, "/")
		return card == name && (!one || port == 0 || p == strconv.Itoa(port))
	})
}

// endpoint is where a port can be reached.
type endpoint struct {
	portAttrs
	port   int
	index  uint8 // of the GID
	gid    [16]byte
	fabric string
}

// look finds out how a port can be reached.
func (v *verbs) look(c *card, name string, port int) (endpoint, error) {
	a, err := c.queryPort(port)
	if err != nil {
		return endpoint{}, err
	}
	if !a.active {
		return endpoint{}, fmt.Errorf("the port is not active (state %d): check the cable, or the interface", a.state)
	}
	p := endpoint{portAttrs: a, port: port}
	if v.opts.MTU != 0 {
		p.mtu = min(p.mtu, mtuNumber(v.opts.MTU))
	}
	if !a.ethernet {
		return p.infiniband(c)
	}
	table, ok, err := c.gids(port)
	if !ok {
		table, err = v.sys.gids(name, port)
	}
	if err != nil {
		return endpoint{}, err
	}
	var chosen gid
	if want := v.opts.GIDIndex; want != nil {
		i := slices.IndexFunc(table, func(g gid) bool { return g.index == *want })
		if i < 0 {
			return endpoint{}, fmt.Errorf("no GID with Options.GIDIndex %d", *want)
		}
		chosen = table[i]
	} else if chosen, err = chooseGID(table, v.addresses); err != nil {
		return endpoint{}, err
	}
	p.index, p.gid = uint8(chosen.index), chosen.addr.As16()
	p.fabric = "roce:v4"
	if chosen.addr.Is6() {
		p.fabric = "roce:v6"
	}
	return p, nil
}

// infiniband fills in what a port in an InfiniBand subnet is reached by: its local identifier, and, where a global header is needed, the GID
// that every port has first. Subnets differ by their prefix.
func (p endpoint) infiniband(c *card) (endpoint, error) {
	g, err := c.gid(p.port, 0)
	if err != nil {
		return endpoint{}, err
	}
	if p.lid == 0 {
		return endpoint{}, fmt.Errorf("the port has no local identifier: is a subnet manager running?")
	}
	p.gid, p.fabric = g, fmt.Sprintf("ib:%x", g[:8])
	return p, nil
}

// Open opens the port that dev.Name names.
func (v *verbs) Open(ctx context.Context, dev provider.Device, cfg provider.Config) (provider.Domain, error) {
	fail := func(err error) (provider.Domain, error) { return nil, fmt.Errorf("verbs open %q: %w", dev.Name, err) }
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if v.fault != nil {
		return fail(v.fault)
	}
	if dev.Provider != "" && dev.Provider != Name {
		return fail(fmt.Errorf("%w: a device of provider %q", provider.ErrInvalid, dev.Provider))
	}
	name, digits, ok := strings.Cut(dev.Name, "/")
	port, err := strconv.Atoi(digits)
	if !ok || err != nil || port < 1 || port > 255 {
		return fail(fmt.Errorf("%w: not a card and a port, as in mlx5_0/1", provider.ErrInvalid))
	}
	lib, err := load(v.opts.Library)
	if err != nil {
		return fail(err)
	}
	c, err := openCard(lib, name)
	if err != nil {
		return fail(fmt.Errorf("%w: %w", provider.ErrUnavailable, err))
	}
	c.port = port
	d, err := v.open(c, name, cfg)
	if err != nil {
		_ = c.close() // there is an error to return already
		return fail(err)
	}
	return d, nil
}

func (v *verbs) open(c *card, name string, cfg provider.Config) (*domain, error) {
	find := func() (endpoint, error) { return v.look(c, name, c.port) }
	return openDomain(c, fmt.Sprintf("%s/%d", name, c.port), find, v.opts, cfg)
}
