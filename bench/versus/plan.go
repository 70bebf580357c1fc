package versus

import (
	"errors"
	"fmt"
	"slices"
)

// Scenario is a kind of work.
type Scenario string

// The scenarios.
const (
	// Pages moves blocks between random places of two pools; the sender knows that the receiver's application has all of them.
	Pages Scenario = "pages"
	// Latency is a ping-pong of 8 bytes between two applications.
	Latency Scenario = "latency"
	// Rate is as many messages of 8 bytes as possible, counted by the receiver's application.
	Rate Scenario = "rate"
)

// Case is one piece of work that ours and the peers do in turn.
type Case struct {
	Path     string   `json:"path"` // shm or tcp
	Scenario Scenario `json:"scenario"`
	Size     uint64   `json:"size"` // bytes of a block or message
	Cold     bool     `json:"cold"` // the pools are much larger than the caches
	// Foreign pools were not made by Hawser, which registers them. They are like those of most peers in all cases.
	Foreign bool   `json:"foreign,omitempty"`
	Pool    uint64 `json:"pool"`  // bytes on each side
	Count   int    `json:"count"` // blocks or messages of a sample
	Depth   int    `json:"depth"` // batches in flight
	Batch   int    `json:"batch"` // blocks
	Pings   int    `json:"pings"` // round trips of a sample
}

const (
	smallSize = 8        // bytes of a message of Latency and Rate
	smallPool = 64 << 10 // bytes that these go to
	rateCount = 200_000
	ratePace  = 128 // messages of Rate in flight
	pingCount = 5_000

	// ColdPool is 16 times a large last-level cache of 32 MiB.
	ColdPool = 512 << 20
	// hotBlocks in a pool: few, like the one buffer of iperf3, and enough for a batch.
	hotBlocks = 4
	// smallHot is the least size of a hot pool: small blocks must fill batches.
	smallHot = 4 << 10

	sampleBytes = 256 << 20 // of Pages: 20 ms or more
	// In flight. Enough to keep both sides busy, few enough to stay in a cache.
	windowBytes  = 8 << 20
	windowBlocks = 2048 // as many of small ones: what queues hold
	countedBelow = 64   // bytes of a block whose result is blocks a second
	maxBatch     = 256

	// Bounds of what a caller may ask for: 8 bytes a slot are kept, and a sample is seconds.
	maxSlots = 1 << 24
	maxCount = 1 << 24
)

// Kinds of work, as a user names them.
const (
	KindPages   = "pages"   // cold
	KindHot     = "hot"     // pages of a pool that the caches hold
	KindForeign = "foreign" // cold pages of memory that Hawser did not make
	KindLatency = "latency" // of 8 bytes
	KindRate    = "rate"    // of 8 bytes
)

// Choice is a part of the plan. Empty fields take what Hawser has goals for.
type Choice struct {
	Paths []string // shm, tcp
	Kinds []string
	Sizes []uint64 // bytes of the blocks of pages
	Pool  uint64   // bytes of a cold pool; ColdPool when 0
	Bytes uint64   // of a sample of pages; 256 MiB when 0
}

// goals are the sizes of the blocks at which there is a goal.
var goals = map[string]map[string][]uint64{
	"shm": {KindPages: {64 << 10, 1 << 20, 32 << 20}, KindForeign: {64 << 10, 1 << 20}},
	"tcp": {KindPages: {64 << 10, 1 << 20}, KindHot: {64 << 10, 1 << 20}},
}

// Plan is the cases of a choice.
func Plan(c Choice) ([]Case, error) {
	if len(c.Paths) == 0 {
		c.Paths = []string{"shm", "tcp"}
	}
	every := len(c.Kinds) == 0
	if every {
		c.Kinds = []string{KindPages, KindHot, KindForeign, KindLatency, KindRate}
	}
	var all []Case
	for _, path := range c.Paths {
		for _, kind := range c.Kinds {
			switch kind {
			case KindLatency:
				all = append(all, small(path, Latency))
			case KindRate:
				all = append(all, small(path, Rate))
			default:
				sizes := goals[path][kind]
				if len(c.Sizes) > 0 && (!every || len(sizes) > 0) {
					sizes = c.Sizes
				} else if len(sizes) == 0 && !every {
					sizes = []uint64{64 << 10, 1 << 20}
				}
				for _, size := range sizes {
					all = append(all, c.pages(path, kind, size))
				}
			}
		}
	}
	for _, k := range all {
		if err := k.check(); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (c Choice) pages(path, kind string, size uint64) Case {
	k := Case{Path: path, Scenario: Pages, Size: size, Cold: kind != KindHot, Foreign: kind == KindForeign, Pings: 1}
	per := max(size, 1)
	k.Pool = max(hotBlocks, smallHot/per) * size
	if k.Cold {
		pool := c.Pool
		if pool == 0 {
			pool = ColdPool
		}
		k.Pool = max(pool/per, 1) * size
	}
	bytes := c.Bytes
	if bytes == 0 {
		bytes = sampleBytes
	}
	k.Count = int(max(bytes/per, 1))
	k.Batch = int(min(max(windowBytes/4/per, 1), maxBatch, k.Pool/per))
	k.Depth = int(max(min(windowBytes/per, windowBlocks)/uint64(max(k.Batch, 1)), 2))
	return k
}

func small(path string, s Scenario) Case {
	return Case{Path: path, Scenario: s, Size: smallSize, Pool: smallPool, Count: rateCount, Depth: ratePace, Batch: 1, Pings: pingCount}
}

// Name is the case in a table.
func (c Case) Name() string {
	switch {
	case c.Scenario != Pages:
		return string(c.Scenario)
	case c.Foreign:
		return "foreign pages, cold"
	case c.Cold:
		return "pages, cold"
	}
	return "pages, hot"
}

// check returns all faults.
func (c Case) check() error {
	var faults []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Errorf("versus: "+format, args...))
		}
	}
	fault(c.Path != "shm" && c.Path != "tcp", "path is %q, want shm or tcp", c.Path)
	fault(!slices.Contains([]Scenario{Pages, Latency, Rate}, c.Scenario), "scenario is %q, want pages, latency or rate", c.Scenario)
	fault(c.Size == 0 || c.Size%8 != 0, "blocks of %d bytes, want a multiple of 8", c.Size)
	fault(c.Size > c.Pool, "blocks of %d bytes do not fit into a pool of %d bytes", c.Size, c.Pool)
	fault(c.Size > 0 && c.Pool/max(c.Size, 1) > maxSlots, "a pool of %d blocks, want at most %d", c.Pool/max(c.Size, 1), maxSlots)
	for _, n := range []struct {
		what  string
		value int
	}{{"blocks of a sample", c.Count}, {"batches in flight", c.Depth}, {"blocks of a batch", c.Batch}, {"round trips", c.Pings}} {
		fault(n.value < 1 || n.value > maxCount, "%d %s, want 1 .. %d", n.value, n.what, maxCount)
	}
	return errors.Join(faults...)
}

// bytes is what a sample moves.
func (c Case) bytes() uint64 { return uint64(c.Count) * c.Size }

// slots is how many blocks a pool holds.
func (c Case) slots() uint64 { return c.Pool / c.Size }
