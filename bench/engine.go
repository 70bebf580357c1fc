package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/mem"
	"github.com/hawser-project/hawser/provider"
)

// Immediates of a run.
const (
	immData    = 1 // a block
	immAnswer  = 2 // a receiver has everything, or answers a ping
	immBarrier = 3
)

// Host is what the engines of one process of a run need to know about the host that it is on. The zero value is for runs on one host.
type Host struct {
	// Devices are those of the config's provider to open, with the config's number of rails on each. Default: the address of Listen, where that
	// names one and the provider is TCP; else the first device.
	Devices []string

	// Listen is the address (host:port) of a server's control listener; engines of runs listen on other ports of the same host. Default:
	// a port of 127.0.0.1.
	Listen string

	// ClusterKey is the secret that both sides share. Needed when Listen is not a loopback address.
	ClusterKey []byte

	// Log is a file to which the engines append what they log. Default: none.
	Log string
}

// ip is the host of Listen, "" when it has none that names a device.
func (h Host) ip() string {
	host, _, err := net.SplitHostPort(h.Listen)
	if ip := net.ParseIP(host); err != nil || ip == nil || ip.IsUnspecified() {
		return ""
	}
	return host
}

// options are those of an engine with so many rails on each of some devices.
func (h Host) options(name, network string, devices []string, rails int) (o hawser.Options, err error) {
	p, err := Provider(network)
	if err != nil {
		return o, err
	}
	if len(devices) == 0 {
		devices = []string{""} // the first
	}
	if n := rails * len(devices); n > maxRails {
		return o, fmt.Errorf("bench: %d rails on each of %d devices, want at most %d in all", rails, len(devices), maxRails)
	}
	o = hawser.Options{Name: name, Providers: []provider.Provider{p}, Require: network, ClusterKey: h.ClusterKey}
	for range rails {
		for _, d := range devices {
			o.Rails = append(o.Rails, hawser.Rail{Provider: network, Device: d})
		}
	}
	return o, nil
}

// address is the IP address of this host that others reach: of the first device that is one, else that of Listen; "" when there is none.
func (h Host) address() string {
	for _, d := range h.Devices {
		if net.ParseIP(d) != nil {
			return d
		}
	}
	return h.ip()
}

// open opens the engine of a run, which listens on a port of the host that nobody has chosen.
func (h Host) open(ctx context.Context, c Config, name string) (*engine, error) {
	devices := h.Devices
	if ip := h.ip(); len(devices) == 0 && c.Provider == tcpName && ip != "" {
		devices = []string{ip}
	}
	o, err := h.options(name, c.Provider, devices, c.Rails)
	if err != nil {
		return nil, err
	}
	if host, _, err := net.SplitHostPort(h.Listen); err == nil {
		o.Listen = net.JoinHostPort(host, "0")
	}
	if o.Poll, err = pollMode(c.Poll); err != nil {
		return nil, err
	}
	return h.start(ctx, o)
}

// engine is an engine and the file that it logs to.
type engine struct {
	*hawser.Engine
	log     *os.File  // nil without
	foreign *mem.Span // the pool, if the engine has not made it
}

func (h Host) start(ctx context.Context, o hawser.Options) (e *engine, err error) {
	e = &engine{}
	if h.Log != "" {
		if e.log, err = os.OpenFile(h.Log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644); err != nil {
			return nil, fmt.Errorf("bench: log: %w", err)
		}
		o.Log = slog.New(slog.NewTextHandler(e.log, nil)).With("process", o.Name)
	}
	if e.Engine, err = hawser.Open(ctx, o); err != nil {
		return nil, errors.Join(err, e.closeLog())
	}
	return e, nil
}

// close closes both. The context of the run may have ended: that is why the engine closes.
func (e *engine) close(ctx context.Context) error {
	if e == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	return errors.Join(e.Close(ctx), e.freeForeign(), e.closeLog())
}

func (e *engine) closeLog() error {
	if e.log == nil {
		return nil
	}
	return e.log.Close()
}

// closeTimeout bounds how long an engine of a run drains at its end.
const closeTimeout = 5 * time.Second

// export gives a peer the right to write to a whole region, as text.
func export(r *hawser.Region) (string, error) {
	text, err := r.Descriptor(r.All(), hawser.RightWrite).MarshalText()
	return string(text), err
}

func importText(ctx context.Context, eng *engine, text string) (*hawser.Remote, error) {
	var d hawser.Descriptor
	if err := d.UnmarshalText([]byte(text)); err != nil {
		return nil, err
	}
	return eng.Import(ctx, d)
}
