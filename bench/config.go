package bench

import (
	"errors"
	"fmt"
)

// Kind is a scenario.
type Kind string

// The scenarios; see the package's table.
const (
	Write Kind = "write"
	Pages Kind = "pages"
	Imm   Kind = "imm"
)

// Config is one scenario at one block size. Kind and Provider are required.
type Config struct {
	Kind     Kind   `json:"kind"`
	Provider string `json:"provider"`
	Size     uint64 `json:"size"`          // bytes of a block; immSize for Imm
	Pool     uint64 `json:"pool"`          // bytes of memory on each side that the blocks are spread over
	Bytes    uint64 `json:"bytes"`         // moved per sample, rounded to whole blocks
	Rounds   int    `json:"rounds"`        // samples; DefaultRounds when 0
	Depth    int    `json:"depth"`         // operations outstanding at once
	Batch    int    `json:"batch"`         // pages per operation, for Pages
	Pings    int    `json:"pings"`         // round trips per sample, for Imm
	Rails    int    `json:"rails"`         // on each side; 1 when 0
	Cold     bool   `json:"cold"`          // a pool much larger than the caches, each block used once per pass
	Seed     uint64 `json:"seed"`          // of the order of the blocks
	Log      string `json:"log,omitempty"` // file to which the engines of both processes append what they log
}

const (
	// DefaultRounds is odd, so that the median is a sample.
	DefaultRounds = 7
	// ColdPool is 32 times a large last-level cache of 32 MiB.
	ColdPool = 1 << 30
	// minColdPool is 8 times such a cache.
	minColdPool = 256 << 20
	// HotPool leaves room for source and destination in a last-level cache of 32 MiB.
	HotPool = 4 << 20

	immSize = 8        // bytes of the block that comes with an immediate in Imm
	immPool = 64 << 10 // memory that these go to: always in a cache

	// A sample moves this much: 20 ms or more of copying, so that the start and the confirmation do not count.
	sampleBytes = 256 << 20
	// Small blocks cost per operation, not per byte: a sample has no more than these.
	sampleBlocks = 1 << 17
	// Operations of Imm per sample, for latency and for rate.
	defaultPings = 5_000
	rateOps      = 200_000

	// Writes in flight. Enough to keep a sender and a receiver that take turns on one core busy, few enough that the
	// blocks in flight stay in a cache.
	windowBytes = 8 << 20
	maxDepth    = 128
	// Pages of one operation: as many as a layer of a short prompt, at most a quarter of the window in bytes.
	maxBatch = 256

	maxRounds = 1000
	maxRails  = 64 // more than any host has ports

	// What a run keeps in memory for each of these stays small: 16 bytes for a block, less than 100 for the others.
	maxSlots = 1 << 24
	maxCount = 1 << 20
)

// Sizes is the default sweep.
func Sizes() []uint64 {
	return []uint64{1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 32 << 20}
}

// Check returns all faults of a config, joined.
func (c Config) Check() error {
	_, err := c.withDefaults()
	return err
}

// withDefaults fills what is zero and returns all faults.
func (c Config) withDefaults() (Config, error) {
	if c.Kind == Imm {
		c.Size = immSize
	}
	switch {
	case c.Pool != 0:
	case c.Kind == Imm:
		c.Pool = immPool
	case c.Cold:
		c.Pool = max(ColdPool, c.Size)
	default:
		c.Pool = max(HotPool, c.Size)
	}
	if c.Rounds == 0 {
		c.Rounds = DefaultRounds
	}
	if c.Rails == 0 {
		c.Rails = 1
	}
	if c.Pings == 0 {
		c.Pings = defaultPings
	}
	var faults []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Errorf("bench: "+format, args...))
		}
	}
	fault(c.Kind != Write && c.Kind != Pages && c.Kind != Imm, "scenario is %q, want write, pages or imm", c.Kind)
	fault(c.Provider == "", "no provider")
	fault(c.Size == 0, "block size is 0")
	fault(c.Size > 0 && c.Pool/c.Size > maxSlots, "a pool of %d blocks, want at most %d: use larger blocks or a smaller pool", c.Pool/max(c.Size, 1), maxSlots)
	fault(c.Size > c.Pool, "blocks of %d bytes do not fit into a pool of %d bytes", c.Size, c.Pool)
	fault(c.Cold && c.Kind != Imm && c.Pool < minColdPool, "a pool of %d bytes is not cold: want %d or more", c.Pool, minColdPool)
	for _, n := range []struct {
		what              string
		value, least, max int
	}{
		{"rounds", c.Rounds, 1, maxRounds},
		{"round trips", c.Pings, 1, maxCount},
		{"rails", c.Rails, 1, maxRails},
		{"operations outstanding", c.Depth, 0, maxCount},
		{"pages of one operation", c.Batch, 0, maxCount},
	} {
		fault(n.value < n.least || n.value > n.max, "%d %s, want 1 .. %d", n.value, n.what, n.max)
	}
	if len(faults) > 0 {
		return c, errors.Join(faults...)
	}
	c.Pool -= c.Pool % c.Size
	if c.Bytes == 0 {
		c.Bytes = min(sampleBytes, sampleBlocks*c.Size)
		if c.Kind == Imm {
			c.Bytes = rateOps * immSize
		}
	}
	c.Bytes = max(c.Bytes-c.Bytes%c.Size, c.Size)
	if c.Batch == 0 {
		c.Batch = int(min(max(windowBytes/4/c.Size, 1), maxBatch))
	}
	if c.Depth == 0 {
		per := c.Size
		if c.Kind == Pages {
			per *= uint64(c.Batch)
		}
		c.Depth = int(min(max(windowBytes/per, 2), maxDepth))
	}
	if c.Kind != Pages {
		c.Batch = 1
	}
	return c, nil
}

// blocks is how many blocks a sample moves.
func (c Config) blocks() int { return int(c.Bytes / c.Size) }

// slots is how many blocks the pool holds.
func (c Config) slots() int { return int(c.Pool / c.Size) }
