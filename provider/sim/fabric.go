package sim

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hawser-project/hawser/provider"
)

// NIC is what one simulated port can do. The zero value of each field means the default.
type NIC struct {
	LinkBits  uint64        // bits per second, default 100e9
	Latency   time.Duration // of the first byte, one way, default 5 µs
	Jitter    time.Duration // largest random addition to a delay, default 20 µs; negative is none
	OpCost    time.Duration // time of the port for each WR, beside its bytes; 1/OpCost is its message rate; default 100 ns
	MTU       uint64        // bytes of a fragment, default 4096; a write has at most maxFragments, so long writes have longer ones
	MaxMsg    uint64        // default 1 GiB
	PeerDepth int           // default 128
	RecvDepth int           // default 512
}

// Config describes a fabric. The zero value of each field means the default.
type Config struct {
	Seed uint64
	NICs int // of each host, default 1
	NIC  NIC

	// RetryTimeout is how long a connection survives a cut, default 100 ms.
	RetryTimeout time.Duration

	// Manual leaves it to Step to move time.
	Manual bool
}

// maxFragments bounds the events of one write, whatever its length.
const maxFragments = 64

// orDefault replaces a zero value.
func orDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

func (c Config) withDefaults() Config {
	orDefault(&c.NICs, 1)
	orDefault(&c.RetryTimeout, 100*time.Millisecond)
	orDefault(&c.NIC.LinkBits, 100e9)
	orDefault(&c.NIC.Latency, 5*time.Microsecond)
	orDefault(&c.NIC.Jitter, 20*time.Microsecond)
	orDefault(&c.NIC.OpCost, 100*time.Nanosecond)
	orDefault(&c.NIC.MTU, 4096)
	orDefault(&c.NIC.MaxMsg, 1<<30)
	orDefault(&c.NIC.PeerDepth, 128)
	orDefault(&c.NIC.RecvDepth, 512)
	return c
}

// Fabric is the network that all NICs are plugged into. Its methods may be called from any goroutine.
type Fabric struct {
	cfg   Config
	label string // Device.Fabric of all NICs, so that any two can be connected

	mu      sync.Mutex // guards all that follows, and every domain, end and op of the fabric
	now     time.Duration
	rng     *rand.Rand
	events  eventQueue
	held    []event // of paths that are cut
	trace   uint64
	domains []*domain // open ones, in the order of Open
	ports   map[string]*port
	offers  map[secret]*end
	cuts    map[cut]bool
	free    []*op // for reuse
}

// port is the wire of one NIC, shared by the domains that are open on it: when each direction is idle again.
type port struct{ txFree, rxFree time.Duration }

// New makes a fabric. Nothing has to be closed but the domains.
func New(cfg Config) *Fabric {
	return &Fabric{
		cfg:    cfg.withDefaults(),
		label:  fmt.Sprintf("sim-%#x", cfg.Seed),
		rng:    rand.New(rand.NewPCG(cfg.Seed, ^cfg.Seed)),
		trace:  fnvOffset,
		ports:  map[string]*port{},
		offers: map[secret]*end{},
		cuts:   map[cut]bool{},
	}
}

// Provider is what programs on the named host see: NICs nic0, nic1, ... Every name is a host; equal names are one host.
func (f *Fabric) Provider(host string) provider.Provider { return hostProvider{f, host} }

// Now is the virtual time since New.
func (f *Fabric) Now() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

// Trace is a hash of every event played so far.
func (f *Fabric) Trace() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.trace
}

// Step plays the next event and moves virtual time to it. It reports false when there is none.
func (f *Fabric) Step() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.step()
}

func (f *Fabric) step() bool {
	for {
		ev, ok := f.events.pop()
		if !ok {
			return false
		}
		if ev.kind == evTimer && !ev.timer.pending {
			continue // stopped: as if it had never been
		}
		f.now = max(f.now, ev.at)
		f.hash(uint64(ev.at), uint64(ev.kind), uint64(ev.frag), ev.id())
		f.play(ev)
		return true
	}
}

// FNV-1a, one 64-bit word at a time.
const (
	fnvOffset = 14695981039346656037
	fnvPrime  = 1099511628211
)

func (f *Fabric) hash(words ...uint64) {
	for _, v := range words {
		f.trace = (f.trace ^ v) * fnvPrime
	}
}

// jitter is a random part of the longest delay.
func (f *Fabric) jitter() time.Duration {
	return time.Duration(f.rng.Int64N(max(int64(f.cfg.NIC.Jitter), 0) + 1))
}

// hop is the time that something without bytes takes from one NIC to another.
func (f *Fabric) hop() time.Duration { return f.cfg.NIC.Latency + f.jitter() }

// serial is the time of n bytes on the wire.
func (f *Fabric) serial(n uint64) time.Duration {
	return time.Duration(float64(n) * 8 * float64(time.Second) / float64(f.cfg.NIC.LinkBits))
}
