package hawser

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/hawser-project/hawser/internal/cpu"
	"github.com/hawser-project/hawser/internal/rail"
	"github.com/hawser-project/hawser/internal/record"
	"github.com/hawser-project/hawser/internal/wire"
	"github.com/hawser-project/hawser/mem"
	"github.com/hawser-project/hawser/provider"
)

// openRails opens the devices and starts the worker that owns them.
func (e *Engine) openRails(ctx context.Context) error {
	devices, err := e.chooseDevices(ctx)
	if err != nil {
		return err
	}
	parker, err := cpu.NewParker()
	if err != nil {
		return err
	}
	w := &worker{e: e, parker: parker, mode: e.opts.Poll, done: make(chan struct{}), recorder: record.New(e.opts.FlightEvents)}
	var domains []provider.Domain
	fail := func(err error) error {
		for _, d := range domains {
			err = errors.Join(err, d.Close())
		}
		return errors.Join(err, parker.Close())
	}
	n, err := cores()
	if err != nil {
		return fail(err)
	}
	if e.opts.Poll != PollEvent && n >= fewCores {
		e.callerSpin = callerSpin
	}
	receives := 0
	for i, dev := range devices {
		d, err := e.provider(dev.Provider).Open(ctx, dev, provider.Config{Bell: parker})
		if err != nil {
			return fail(fmt.Errorf("rail %s/%s: %w", dev.Provider, dev.Name, err))
		}
		domains = append(domains, d)
		if d.Caps().CrossHost && e.opts.TLS != nil && !e.opts.PlainData {
			return fail(fmt.Errorf("rail %s/%s: %w: TLS does not reach its data, which leaves this host in plain: set PlainData if that is wanted", dev.Provider, dev.Name, ErrInvalid))
		}
		receives += d.Caps().RecvDepth
		devices[i].Fabric, devices[i].LinkBits = d.Caps().Fabric, d.Caps().LinkBits
	}
	if w.thread, err = chooseThread(&e.opts, devices, n, cpu.Near); err != nil {
		return fail(err)
	}
	w.cores = n
	e.rails, e.deadRails = devices, make([]atomic.Bool, len(devices))
	e.inbox = newInbox(e.notes, receives)
	mem.Near(w.thread.node, func() { w.group, err = rail.New(domains, w, w.wake) })
	if err != nil {
		return errors.Join(err, parker.Close()) // the group has closed the domains
	}
	w.group.StallTicks = int(e.opts.PeerTimeout / heartTick)
	e.worker = w
	if err := w.start(); err != nil {
		e.worker = nil
		return errors.Join(err, w.group.Close(), parker.Close())
	}
	if w.thread.own {
		e.opts.Log.Info("worker has a thread of its own", "poll", w.mode.String(), "cpus", w.thread.cpus.Count(), "node", w.thread.node)
	}
	return nil
}

// chooseDevices turns Options.Rails into devices. Without them, a provider that is not available is left out; at least one must
// be.
func (e *Engine) chooseDevices(ctx context.Context) ([]provider.Device, error) {
	var out []provider.Device
	if len(e.opts.Rails) > 0 {
		for _, r := range e.opts.Rails {
			dev, err := findDevice(ctx, e.provider(r.Provider), r.Device)
			if err != nil {
				return nil, fmt.Errorf("rail %s/%s: %w", r.Provider, r.Device, err)
			}
			out = append(out, dev)
		}
		return out, e.checkRequired(out, nil)
	}
	var errs []error
	for _, p := range e.opts.Providers {
		dev, err := findDevice(ctx, p, "")
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", p.Name(), err))
			continue
		}
		out = append(out, dev)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no network can be used: %w", errors.Join(errs...))
	}
	for _, err := range errs {
		e.opts.Log.Warn("provider left out", "err", err)
	}
	return out, e.checkRequired(out, errs)
}

// checkRequired refuses to start without a rail of the network that is required: no peer could ever be reached.
func (e *Engine) checkRequired(devices []provider.Device, leftOut []error) error {
	name := e.opts.Require
	if name == "" || slices.ContainsFunc(devices, func(d provider.Device) bool { return d.Provider == name }) {
		return nil
	}
	if len(leftOut) == 0 {
		return fmt.Errorf("require %s: %w: none of Rails is of it", name, ErrInvalid)
	}
	return fmt.Errorf("require %s: %w", name, errors.Join(leftOut...))
}

func (e *Engine) provider(name string) provider.Provider {
	for _, p := range e.opts.Providers {
		if p.Name() == name {
			return p
		}
	}
	return nil // withDefaults has checked the names
}

// findDevice finds a device by name; empty means the first. A name that is not listed is handed to the provider as it is:
// it may open devices that it does not list, such as any local address.
func findDevice(ctx context.Context, p provider.Provider, name string) (provider.Device, error) {
	devs, err := p.Devices(ctx)
	if err != nil {
		return provider.Device{}, err
	}
	for _, d := range devs {
		if d.Name == name || name == "" {
			return d, nil
		}
	}
	if len(devs) == 0 {
		return provider.Device{}, fmt.Errorf("%w: no device", ErrUnavailable)
	}
	return provider.Device{Provider: p.Name(), Name: name, NUMA: -1}, nil
}

// wireRails is what peers are told about our rails.
func (e *Engine) wireRails() []wire.Rail {
	out := make([]wire.Rail, len(e.rails))
	for i, d := range e.rails {
		out[i] = wire.Rail{Provider: d.Provider, Fabric: d.Fabric, LinkBits: d.LinkBits}
		if e.deadRails[i].Load() {
			out[i].Down = 1
		}
	}
	return out
}

// plan is one way to reach a peer: a provider, and which rails of both sides are paired.
type plan struct {
	path  string
	pairs []wire.Link // rails only
	text  string
	ds    []uint16 // rails of the dialer
}

// alternatives are the rails of the dialer that a link may join, the paired one first.
func (p *plan) alternatives(paired uint16) []uint16 {
	i := max(slices.Index(p.ds, paired), 0)
	return append(slices.Clone(p.ds[i:]), p.ds[:i]...)
}

// plans lists the ways between two engines, most preferred first: by the answerer's order of providers, and only those that
// every non-empty string of require names. Rails are paired when provider and fabric are equal; rail r of the longer list
// meets rail r mod n of the shorter one.
func plans(prefer []provider.Provider, require []string, dialer, answerer []wire.Rail) []plan {
	var out []plan
	for _, p := range prefer {
		if slices.ContainsFunc(require, func(r string) bool { return r != "" && r != p.Name() }) {
			continue
		}
		for _, fabric := range fabrics(answerer, p.Name()) {
			ds, as := indexes(dialer, p.Name(), fabric), indexes(answerer, p.Name(), fabric)
			if len(ds) == 0 || len(as) == 0 {
				continue
			}
			pl := plan{ds: ds, path: p.Name(), text: fmt.Sprintf("%s, %d x %d rails", p.Name(), len(ds), len(as))}
			for r := range max(len(ds), len(as)) {
				pl.pairs = append(pl.pairs, wire.Link{Dialer: ds[r%len(ds)], Answerer: as[r%len(as)]})
			}
			out = append(out, pl)
		}
	}
	return out
}

func fabrics(rails []wire.Rail, name string) []string {
	var out []string
	seen := map[string]bool{}
	for _, r := range rails {
		if r.Provider == name && !seen[r.Fabric] {
			seen[r.Fabric] = true
			out = append(out, r.Fabric)
		}
	}
	return out
}

func indexes(rails []wire.Rail, name, fabric string) []uint16 {
	var out []uint16
	for i, r := range rails {
		if r.Provider == name && r.Fabric == fabric && r.Down == 0 {
			out = append(out, uint16(i))
		}
	}
	return out
}
