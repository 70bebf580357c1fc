package hawser

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	parker, err := cpu.NewParker()
	if err != nil {
		return err
	}
	w := &worker{e: e, parker: parker, mode: e.opts.Poll, done: make(chan struct{}), recorder: record.New(e.opts.FlightEvents)}
	o := &opener{e: e, bell: parker, lists: map[string][]provider.Device{}}
	fail := func(err error) error {
		for _, d := range o.domains {
			err = errors.Join(err, d.Close())
		}
		return errors.Join(err, parker.Close())
	}
	if err := o.openAll(ctx); err != nil {
		return fail(err)
	}
	n, err := cores()
	if err != nil {
		return fail(err)
	}
	if e.opts.Poll != PollEvent && n >= fewCores {
		e.callerSpin = callerSpin
	}
	receives := 0
	for _, d := range o.domains {
		c := d.Caps()
		e.caps = append(e.caps, c)
		receives += c.RecvDepth
	}
	if w.thread, err = chooseThread(&e.opts, o.devices, n, cpu.Near); err != nil {
		return fail(err)
	}
	w.cores = n
	e.rails, e.deadRails, e.leftOut = o.devices, make([]atomic.Bool, len(o.devices)), o.leftOut
	e.inbox = newInbox(e.notes, receives)
	mem.Near(w.thread.node, func() { w.group, err = rail.New(o.domains, w, w.wake) })
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

// AllDevices is a Rail.Device that stands for each device that the provider lists.
const AllDevices = "*"

// maxCards is how many cards of one provider an engine opens that was not told which: more than any device of today is served by.
const maxCards = 8

// minLock is how many bytes a process must be able to pin before cards are used that nobody asked for. With less, the buffers of the
// rails would fit, but then hardly any memory could be registered, and without the cards all of it could. Tests change it.
var minLock uint64 = 256 << 20

// opener opens the rails of an engine. What it has opened is its caller's.
type opener struct {
	e       *Engine
	bell    provider.Bell
	domains []provider.Domain
	devices []provider.Device            // of domains
	lists   map[string][]provider.Device // of providers, by name, as they were listed first
	leftOut map[string]string            // providers, and devices of them, that were not listed and cannot be used: why
	errs    []error                      // the same
}

// openAll opens what Options.Rails lists, all or nothing, or what there is.
func (o *opener) openAll(ctx context.Context) error {
	e := o.e
	for _, r := range e.opts.Rails {
		if err := o.listed(ctx, e.provider(r.Provider), r.Device); err != nil {
			return fmt.Errorf("rail %s/%s: %w", r.Provider, r.Device, err)
		}
	}
	if len(e.opts.Rails) == 0 {
		for _, p := range e.opts.Providers {
			o.found(ctx, p)
		}
		if len(o.domains) == 0 {
			return fmt.Errorf("no network can be used: %w", errors.Join(o.errs...))
		}
	}
	name := e.opts.Require
	switch {
	case name == "" || slices.ContainsFunc(o.devices, func(d provider.Device) bool { return serves(d.Provider, name) }):
		return nil // else no peer could ever be reached
	case len(o.errs) == 0:
		return fmt.Errorf("require %s: %w: none of Rails is of it", name, ErrInvalid)
	}
	return fmt.Errorf("require %s: %w", name, errors.Join(o.errs...))
}

// listed opens a device by name; empty means the first. A name that the provider does not list is handed to it as it is: it may open
// devices that it does not list, such as any local address.
func (o *opener) listed(ctx context.Context, p provider.Provider, name string) error {
	devs, err := o.list(ctx, p)
	if err != nil {
		return err
	}
	if len(devs) == 0 && (name == "" || name == AllDevices) {
		return errNoDevice
	}
	switch name {
	case "":
		devs = devs[:1]
	case AllDevices:
		if n := len(o.domains) + len(devs); n > wire.MaxRails {
			return fmt.Errorf("%d rails: %w: at most %d", n, ErrInvalid, wire.MaxRails)
		}
	default:
		i := slices.IndexFunc(devs, func(d provider.Device) bool { return d.Name == name })
		if i < 0 {
			devs, i = []provider.Device{{Provider: p.Name(), Name: name, NUMA: -1}}, 0
		}
		devs = devs[i : i+1]
	}
	for _, dev := range devs {
		if _, err := o.open(ctx, p, dev); err != nil {
			return err
		}
	}
	return nil
}

// list asks a provider for its devices, once for all rails: a host with many cards takes time to look at all of them.
func (o *opener) list(ctx context.Context, p provider.Provider) ([]provider.Device, error) {
	if devs, ok := o.lists[p.Name()]; ok {
		return devs, nil
	}
	devs, err := p.Devices(ctx)
	if err == nil {
		o.lists[p.Name()] = devs
	}
	return devs, err
}

var errNoDevice = fmt.Errorf("%w: no device", ErrUnavailable)

// found opens what a provider has: its first device, and of one that is made of cards, which pin memory, the others too.
func (o *opener) found(ctx context.Context, p provider.Provider) {
	devs, err := p.Devices(ctx)
	if err == nil && len(devs) == 0 {
		err = errNoDevice
	}
	if err != nil {
		o.leave(p.Name(), err)
		return
	}
	devs = preferred(devs)
	cards := 0
	for i := 0; i < len(devs) && cards < maxCards; i++ {
		d, err := o.open(ctx, p, devs[i])
		switch {
		case err != nil:
			o.leave(p.Name()+"/"+devs[i].Name, err)
		case !d.Caps().PinsMemory:
			return
		default:
			if cards++; cards > 1 {
				continue
			}
			if err := mem.CheckLock(minLock); err != nil {
				o.leave(p.Name(), errors.Join(err, o.closeLast()))
				return
			}
		}
	}
}

// open opens one device.
func (o *opener) open(ctx context.Context, p provider.Provider, dev provider.Device) (provider.Domain, error) {
	d, err := p.Open(ctx, dev, provider.Config{Bell: o.bell})
	if err != nil {
		return nil, err
	}
	c := d.Caps()
	dev.Fabric, dev.LinkBits = c.Fabric, c.LinkBits
	o.domains, o.devices = append(o.domains, d), append(o.devices, dev)
	if c.CrossHost && o.e.opts.TLS != nil && !o.e.opts.PlainData {
		err := fmt.Errorf("%w: TLS does not reach its data, which leaves this host in plain: set PlainData if that is wanted", ErrInvalid)
		return nil, errors.Join(err, o.closeLast())
	}
	return d, nil
}

// closeLast takes back what was opened last.
func (o *opener) closeLast() error {
	last := len(o.domains) - 1
	d := o.domains[last]
	o.domains, o.devices = o.domains[:last], o.devices[:last]
	return d.Close()
}

// leave notes what was not listed and cannot be used. That a network is not there is how most machines are; that it is there and does not
// work is not.
func (o *opener) leave(what string, err error) {
	if o.leftOut == nil {
		o.leftOut = map[string]string{}
	}
	o.leftOut[what] = err.Error()
	o.errs = append(o.errs, fmt.Errorf("%s: %w", what, err))
	level := slog.LevelWarn
	if o.e.opts.anyNetwork && errors.Is(err, ErrUnavailable) {
		level = slog.LevelDebug
	}
	o.e.opts.Log.Log(o.e.ctx, level, "network left out", "network", what, "err", err)
}

func (e *Engine) provider(name string) provider.Provider {
	for _, p := range e.opts.Providers {
		if p.Name() == name {
			return p
		}
	}
	return nil // withDefaults has checked the names
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

// cards reports whether a network is made of cards, here.
func (e *Engine) cards(network string) bool {
	for i, d := range e.rails {
		if d.Provider == network && e.caps[i].PinsMemory {
			return true
		}
	}
	return false
}
