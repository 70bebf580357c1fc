package hawser

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/hawser-project/hawser/internal/imm"
	"github.com/hawser-project/hawser/internal/wire"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/ofi"
	"github.com/hawser-project/hawser/provider/shm"
	"github.com/hawser-project/hawser/provider/tcp"
	"github.com/hawser-project/hawser/provider/verbs"
)

// Options configure Open. The zero value serves peers on this host over shared memory and loopback TCP; with Listen, peers elsewhere over
// RDMA cards, if there are any.
type Options struct {
	// Name is a stable name of this process, told to peers. It need not be unique. Default: none.
	Name string

	// Providers are the networks to use, most preferred first. Default: shared memory, RDMA cards (verbs, then ofi, which has those that verbs
	// has not), TCP; what is not there costs a look at sysfs or for a library. With a peer, the best one that works carries everything, over all
	// its rails; the others stand by until none of those is left.
	Providers []provider.Provider

	// Rails are the devices to open; one that cannot be opened is an error. The same device may be listed more than once; each entry is a
	// rail of its own. Default: the first device of each provider, of those that are made of cards the first 8, and what cannot be used is
	// left out (Stats.LeftOut). Cards are left out, too, when the process may pin less than 256 MiB (ulimit -l).
	Rails []Rail

	// Listen is the address of the control listener for peers that cannot use this host's unix sockets. Default
	// "127.0.0.1:0". An address that is not loopback needs ClusterKey, TLS or Insecure.
	Listen string

	// Advertise are the addresses (host:port) that peers dial, at most 16. Default: what Listen was bound to, or, when that is an
	// unspecified address such as 0.0.0.0, the addresses of all interfaces with its port.
	Advertise []string

	// ClusterKey is a secret that all engines of a cluster share. Peers prove it to each other before anything else.
	ClusterKey []byte

	// TLS makes control connections over TCP use TLS 1.3 with certificates on both sides. It may be combined with ClusterKey. The data
	// connections of the networks are not encrypted: see PlainData.
	TLS *TLS

	// PlainData allows rails that leave this host beside TLS: their data is not encrypted. Peers are still authenticated, because
	// the one-time secrets of data connections travel over the control connection; who can read or change packets on the way can
	// read and change data.
	PlainData bool

	// Insecure allows a listener that anybody on the network can talk to.
	Insecure bool

	// Require names a provider, or a family of them ("ofi" is "ofi" and "ofi:tcp" alike): peers that cannot be reached over it are
	// refused, instead of being reached over another.
	Require string

	// PeerTimeout is the silence after which a peer counts as dead that anything depends on: an operation or a message to it is under
	// way, anybody waits for a counter, or something came or went within the last 10 s. Such a peer is asked for a sign of life
	// every 300 ms, others every 10 s, and then have as long to answer. It is counted in steps of 0.1 s, the one that has begun not
	// included: with the default of 1.3 s a dead peer is known before 1.5 s have passed. At least 1 s. A process that ends is
	// noticed at once, always.
	PeerTimeout time.Duration

	// ImmBase and ImmBits name the immediate values that Imms.Take lends: 2^ImmBits from ImmBase, which is a multiple of that.
	// ImmBits is 1 to 31. Default, when it is 0: the 2^20 values whose top 12 bits are ones.
	ImmBase uint32
	ImmBits int

	// ReconnectTime is for how long the side that dialed tries to bring a peer back whose session was lost, with pauses that
	// grow from 50 ms to 5 s. A peer that was fenced, has left, or broke the protocol is not brought back, and neither are remotes: they
	// are imported again. Default 1 minute; negative: never.
	ReconnectTime time.Duration

	// Poll is how the engine looks for work. Default PollAdaptive.
	Poll PollMode

	// CPUs are the processors, by Linux's numbers, that the worker's thread is kept on. Default: when this process may use 4
	// or more, those of the NUMA node that the first rail's card says it is on, if there is another node too; else any. A worker that
	// is kept somewhere, or that is PollBusy with 4 processors or more, has an OS thread of its own, and as long as the engine is open
	// GOMAXPROCS is higher by 1.
	CPUs []int

	// FlightEvents is how many ends of operations the flight recorder keeps, a power of two (others are rounded up); see Engine.Flight. Default
	// 1024; at most 2^20.
	FlightEvents int

	// Trace are functions that are told what happens. Default: none, which costs nothing.
	Trace *Trace

	// Log receives one line for each connection, path and failure. Default: nothing is logged.
	Log *slog.Logger

	anyNetwork bool // Providers was empty
}

// DefaultProviders returns new ones of those that an engine uses whose Options.Providers is empty, most preferred first. Loads nothing.
func DefaultProviders() []provider.Provider {
	return []provider.Provider{shm.New(), verbs.New(verbs.Options{}), ofi.New(ofi.Options{}), tcp.New()}
}

// Rail names a device of a provider.
type Rail struct {
	Provider string // "shm", "verbs", "tcp", ...
	Device   string // provider.Device.Name; empty means its first device, AllDevices each one
}

const (
	defaultPeerTimeout = 1300 * time.Millisecond // a dead peer is known within 1.5 s: see heartTick
	minPeerTimeout     = time.Second             // some beats may be late
	defaultImmBase     = 0xfff << 20
	defaultImmBits     = 20
)

// withDefaults fills what is zero and returns all faults at once.
func (o Options) withDefaults() (Options, error) {
	var errs []error
	if o.anyNetwork = len(o.Providers) == 0; o.anyNetwork {
		o.Providers = DefaultProviders()
	}
	if o.Listen == "" {
		o.Listen = "127.0.0.1:0"
	}
	if o.PeerTimeout == 0 {
		o.PeerTimeout = defaultPeerTimeout
	}
	if o.ReconnectTime == 0 {
		o.ReconnectTime = defaultReconnectTime
	}
	if o.PeerTimeout < minPeerTimeout {
		errs = append(errs, fmt.Errorf("peer timeout %v: %w: at least %v", o.PeerTimeout, ErrInvalid, minPeerTimeout))
	}
	if o.ImmBits == 0 {
		o.ImmBase, o.ImmBits = defaultImmBase, defaultImmBits
	}
	lent := imm.Range{Base: o.ImmBase, Bits: o.ImmBits, BlockBits: -1}
	if err := lent.Check(); err != nil {
		errs = append(errs, fmt.Errorf("imm base and bits: %w: %w", ErrInvalid, err))
	}
	if o.FlightEvents == 0 {
		o.FlightEvents = defaultFlightEvents
	}
	if o.FlightEvents < 0 || o.FlightEvents > maxFlightEvents {
		errs = append(errs, fmt.Errorf("flight events: %w: %d is not within 0 .. %d", ErrInvalid, o.FlightEvents, maxFlightEvents))
	}
	if o.Poll > PollEvent {
		errs = append(errs, fmt.Errorf("poll: %w: %s", ErrInvalid, o.Poll))
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if len(o.Name) > 256 {
		errs = append(errs, fmt.Errorf("name of %d bytes: %w: at most 256", len(o.Name), ErrInvalid))
	}
	names := map[string]bool{}
	for _, p := range o.Providers {
		names[p.Name()] = true
	}
	for _, r := range o.Rails {
		if !names[r.Provider] {
			errs = append(errs, fmt.Errorf("rail %s: %w: no such provider, there are %s", r.Provider, ErrInvalid, list(o.Providers)))
		}
	}
	if len(o.Rails) > wire.MaxRails {
		errs = append(errs, fmt.Errorf("%d rails: %w: at most %d", len(o.Rails), ErrInvalid, wire.MaxRails))
	}
	if o.Require != "" && !slices.ContainsFunc(o.Providers, func(p provider.Provider) bool { return serves(p.Name(), o.Require) }) {
		errs = append(errs, fmt.Errorf("require %s: %w: no such provider, there are %s", o.Require, ErrInvalid, list(o.Providers)))
	}
	for _, err := range []error{o.checkListen(), o.checkAdvertise(), o.TLS.check()} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return o, errors.Join(errs...)
}

func (o *Options) checkListen() error {
	host, _, err := net.SplitHostPort(o.Listen)
	if err != nil {
		return fmt.Errorf("listen %q: %w: want host:port: %w", o.Listen, ErrInvalid, err)
	}
	ip, _ := netip.ParseAddr(host) // a name is not an address; neither is one that is not valid
	if ip.IsLinkLocalUnicast() {
		return fmt.Errorf("listen %q: %w: %s", o.Listen, ErrInvalid, linkLocalText)
	}
	loopback := host == "localhost" || ip.IsLoopback()
	if !loopback && len(o.ClusterKey) == 0 && o.TLS == nil && !o.Insecure {
		return fmt.Errorf("listen %q: %w: not a loopback address: set ClusterKey or TLS, or Insecure if anybody on that network may connect", o.Listen, ErrInvalid)
	}
	return nil
}

// checkAdvertise checks addresses that peers are told to dial.
func (o *Options) checkAdvertise() error {
	var errs []error
	for _, a := range o.Advertise {
		if err := checkEndpoint(a); err != nil {
			errs = append(errs, fmt.Errorf("advertise %q: %w", a, err))
		}
	}
	return errors.Join(errs...)
}

const linkLocalText = "a link-local address means another host on each link: use a global or private one"

// checkEndpoint checks a host:port that is to be dialed.
func checkEndpoint(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	ip, _ := netip.ParseAddr(host)
	switch {
	case ip.IsLinkLocalUnicast():
		return fmt.Errorf("%w: %s", ErrInvalid, linkLocalText)
	case host == "" || ip.IsUnspecified():
		return fmt.Errorf("%w: an address to bind, which cannot be dialed: name a host", ErrInvalid)
	case port == "" || port == "0":
		return fmt.Errorf("%w: no port", ErrInvalid)
	}
	return nil
}

func list(ps []provider.Provider) string {
	s := ""
	for i, p := range ps {
		if i > 0 {
			s += ", "
		}
		s += p.Name()
	}
	return s
}
