package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/hawser-project/hawser/provider"
)

// Config describes a fabric. The zero value of each field means the default.
type Config struct {
	Seed uint64
	NICs int // of each host, default 1
	NIC  NIC // what each of them is

	// Rails are the NICs of each host, in place of NICs and NIC: a profile, or kinds mixed.
	Rails []NIC
	// Hosts are those of the hosts that differ from the others.
	Hosts map[string][]NIC

	// Loss is the probability that a fragment or an acknowledgement is lost, 0 to 0.9. It is sent again after RetryDelay; a
	// fragment whose acknowledgement was lost arrives twice, and the receiver drops the second. One that is lost
	// maxRetries times ends its connection.
	Loss       float64
	RetryDelay time.Duration // default 50 µs

	// RetryTimeout is how long a connection survives a cut, and how late the silent death of a peer is noticed; default 100 ms.
	RetryTimeout time.Duration

	// Manual leaves it to Step to move time.
	Manual bool
}

// maxFragments bounds the events of one write, whatever its length. It is the number of bits of op.seen.
const maxFragments = 64

// maxLoss keeps transmissions finite.
const maxLoss = 0.9

// orDefault replaces a zero value.
func orDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

func (c Config) withDefaults() Config {
	orDefault(&c.RetryDelay, 50*time.Microsecond)
	orDefault(&c.RetryTimeout, 100*time.Millisecond)
	c.Loss = min(max(c.Loss, 0), maxLoss)
	if c.Rails == nil {
		c.Rails = slices.Repeat([]NIC{c.NIC}, max(c.NICs, 1))
	}
	c.Rails = withDefaults(c.Rails)
	hosts := make(map[string][]NIC, len(c.Hosts))
	for name, nics := range c.Hosts {
		hosts[name] = withDefaults(nics)
	}
	c.Hosts = hosts
	return c
}

// nics are those of a host.
func (c *Config) nics(host string) []NIC {
	if nics, ok := c.Hosts[host]; ok {
		return nics
	}
	return c.Rails
}

// Fabric is the network that all NICs are plugged into. Its methods may be called from any goroutine.
type Fabric struct {
	cfg   Config
	label string // Device.Fabric of all NICs, so that any two can be connected

	mu      sync.Mutex // guards all that follows, and every domain, end and op of the fabric
	now     time.Duration
	rng     *rand.Rand
	events  eventQueue
	played  uint64  // events so far
	held    []event // of paths that are cut
	trace   uint64
	stats   Stats
	domains []*domain // open ones, in the order of Open
	ports   map[string]*port
	owners  map[provider.Bell]*owner
	offers  map[secret]*end
	cuts    map[cut]bool
	islands []*island
	stalls  map[string]int // places whose owners get nothing, and how often
	script  []Fault        // to come, by At
	free    []*op          // for reuse
}

// Stats counts what happened on a fabric.
type Stats struct {
	Events     uint64 // played
	Lost       uint64 // fragments and acknowledgements that were lost and sent again
	Duplicates uint64 // fragments that arrived twice and were dropped
	Reordered  uint64 // fragments of ordered NICs that had to wait for an earlier one
	Faults     uint64 // injected
}

// port is the hardware of one NIC, shared by the domains that are open on it: when each part is idle again.
type port struct{ opFree, txFree, rxFree time.Duration }

// owner is whoever sleeps on a bell and posts to the domains that were opened with it: when it is idle again.
type owner struct {
	free    time.Duration
	domains int
}

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
		owners: map[provider.Bell]*owner{},
		stalls: map[string]int{},
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

// Events is the number of events played so far: the next one has this index.
func (f *Fabric) Events() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.played
}

// Stats may be called at any time.
func (f *Fabric) Stats() Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.stats
	s.Events = f.played
	return s
}

// Step plays the next event and moves virtual time to it. It reports false when there is none.
func (f *Fabric) Step() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.step()
}

func (f *Fabric) step() bool {
	for {
		f.playScript()
		ev, ok := f.events.pop()
		if !ok {
			return false
		}
		if ev.kind == evTimer && !ev.timer.pending {
			continue // stopped: as if it had never been
		}
		f.played++
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

// jitter is a random part of a NIC's longest delay.
func (f *Fabric) jitter(n *NIC) time.Duration {
	return time.Duration(f.rng.Int64N(max(int64(n.Jitter), 0) + 1))
}

// hop is the time that something without bytes takes from one NIC to another: half of the latency is of either side.
func (f *Fabric) hop(from, to *NIC) time.Duration {
	if from.Jitter < to.Jitter {
		return (from.Latency+to.Latency)/2 + f.jitter(to)
	}
	return (from.Latency+to.Latency)/2 + f.jitter(from)
}

// trip is the hop from the NIC of an end to that of the other side, which may not be known.
func (e *end) trip() time.Duration {
	if e.other == nil {
		return e.d.f.hop(e.d.nic, e.d.nic)
	}
	return e.d.f.hop(e.d.nic, e.other.d.nic)
}

// again is what losses add to the trip of a fragment or an acknowledgement; ok is false when the NIC gives up.
func (f *Fabric) again() (delay time.Duration, ok bool) {
	for n := 0; f.lose(); n++ {
		if n == maxRetries {
			return delay, false
		}
		delay += f.cfg.RetryDelay
	}
	return delay, true
}

// lose decides whether something is lost.
func (f *Fabric) lose() bool {
	if f.cfg.Loss == 0 || f.rng.Float64() >= f.cfg.Loss {
		return false
	}
	f.stats.Lost++
	return true
}

// maxRetries is how often a NIC sends something again, as RC queue pairs are set up to.
const maxRetries = 7
