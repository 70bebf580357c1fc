package bench

import (
	"errors"
	"fmt"
	"math"

	"github.com/hawser-project/hawser"
)

// Kind is a scenario.
type Kind string

// The scenarios; see the package's table.
const (
	Write   Kind = "write"
	Pages   Kind = "pages"
	Scatter Kind = "scatter"
	Imm     Kind = "imm"
	Message Kind = "message"
	Barrier Kind = "barrier"
)

// Config is one scenario at one block size. Kind and Provider are required.
type Config struct {
	Kind     Kind   `json:"kind"`
	Provider string `json:"provider"`
	Size     uint64 `json:"size"`              // bytes of a block or a message; 8 for Imm, and for Barrier, whose yardstick sends so many
	Pool     uint64 `json:"pool"`              // bytes of memory on each side that the blocks are spread over
	Bytes    uint64 `json:"bytes"`             // moved per sample, rounded to whole blocks
	Rounds   int    `json:"rounds"`            // samples; DefaultRounds when 0
	Depth    int    `json:"depth"`             // operations outstanding at once
	Batch    int    `json:"batch"`             // pages of one operation, for Pages; targets, for Scatter
	Pings    int    `json:"pings"`             // round trips per sample, for Imm and Message; barriers, for Barrier
	Rails    int    `json:"rails"`             // on each device of each side; 1 when 0
	Peers    int    `json:"peers"`             // receiving processes, for Scatter and Barrier; 1 when 0
	Poll     string `json:"poll"`              // how the engines of both sides look for work; "adaptive" when empty
	Cold     bool   `json:"cold"`              // a pool much larger than the caches, each block used once per pass
	Foreign  string `json:"foreign,omitempty"` // whose pools are memory that no engine has made: ForeignDst, ForeignBoth; nobody's when empty
	Seed     uint64 `json:"seed"`              // of the order of the blocks
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

	// Writes in flight. Enough to keep a sender and a receiver that take turns on one core busy, few enough that the
	// blocks in flight stay in a cache.
	windowBytes = 8 << 20
	maxDepth    = 128

	defaultPings = 5_000

	maxRounds = 1000
	maxRails  = 64 // more than any host has ports
	maxPeers  = 64 // more processes than a host has cores, mostly; each pair of them has a stream

	// What a run keeps in memory for each of these stays small: 16 bytes for a block, less than 100 for the others.
	maxSlots = 1 << 24
	maxCount = 1 << 20
)

// Check returns all faults of a config, joined.
func (c Config) Check() error {
	_, err := c.WithDefaults()
	return err
}

// WithDefaults is the config that a run of c has: what is zero is filled, and Pool and Bytes are whole blocks. It returns all faults, joined.
func (c Config) WithDefaults() (Config, error) {
	k, ok := scenarios[c.Kind]
	if !ok {
		return c, fmt.Errorf("bench: scenario is %q, want one of %s", c.Kind, kinds())
	}
	if k.size != 0 {
		c.Size = k.size
	}
	switch {
	case c.Pool != 0:
	case k.pool != 0:
		c.Pool = k.pool
	case c.Cold:
		c.Pool = max(ColdPool, c.Size)
	default:
		c.Pool = max(HotPool, c.Size)
	}
	for _, d := range []struct {
		value    *int
		standard int
	}{{&c.Rounds, DefaultRounds}, {&c.Rails, 1}, {&c.Peers, 1}, {&c.Pings, defaultPings}} {
		if *d.value == 0 {
			*d.value = d.standard
		}
	}
	if c.Poll == "" {
		c.Poll = hawser.PollAdaptive.String()
	}
	if err := c.faults(k); err != nil {
		return c, err
	}
	c.Pool -= c.Pool % c.Size
	if c.Bytes == 0 {
		c.Bytes = min(k.sampleBytes, uint64(k.sampleBlocks)*c.Size)
	}
	c.Bytes = max(c.Bytes-c.Bytes%c.Size, c.Size)
	switch {
	case k.batch == nil:
		c.Batch = 1
	case c.Batch == 0:
		c.Batch = k.batch(c.Size)
	}
	if c.Depth == 0 {
		c.Depth = int(min(max(windowBytes/(c.Size*uint64(c.Batch)), 2), maxDepth))
	}
	return c, nil
}

// faults are all that is wrong with a config of a scenario.
func (c Config) faults(k *scenario) error {
	var faults []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Errorf("bench: "+format, args...))
		}
	}
	_, err := pollMode(c.Poll)
	fault(err != nil, "%w", err)
	fault(c.Provider == "", "no provider")
	fault(c.Foreign != "" && c.Foreign != ForeignDst && c.Foreign != ForeignBoth, "foreign memory is %q, want dst or both", c.Foreign)
	fault(c.Size == 0, "block size is 0")
	fault(c.Size > 0 && c.Pool/c.Size > maxSlots, "a pool of %d blocks, want at most %d: use larger blocks or a smaller pool", c.Pool/max(c.Size, 1), maxSlots)
	fault(c.Size > c.Pool, "blocks of %d bytes do not fit into a pool of %d bytes", c.Size, c.Pool)
	fault(k.maxSize > 0 && c.Size > k.maxSize, "%s of %d bytes, want at most %d", c.Kind, c.Size, k.maxSize)
	fault(c.Size > 0 && c.Bytes/max(c.Size, 1) > math.MaxInt32, "a sample of %d bytes in blocks of %d, want at most %d blocks", c.Bytes, c.Size, math.MaxInt32)
	fault(c.Cold && k.pool == 0 && c.Pool < minColdPool, "a pool of %d bytes is not cold: want %d or more", c.Pool, minColdPool)
	fault(c.Peers > 1 && !k.group, "%d receiving processes, want 1: %s is between two", c.Peers, c.Kind)
	for _, n := range []struct {
		what              string
		value, least, max int
	}{
		{"rounds", c.Rounds, 1, maxRounds},
		{"round trips", c.Pings, 1, maxCount},
		{"rails", c.Rails, 1, maxRails},
		{"receiving processes", c.Peers, 1, maxPeers},
		{"operations outstanding", c.Depth, 0, maxCount},
		{k.batchName(), c.Batch, 0, k.maxBatch()},
	} {
		fault(n.value < n.least || n.value > n.max, "%d %s, want 1 .. %d", n.value, n.what, n.max)
	}
	return errors.Join(faults...)
}

// pollMode finds a mode by its name.
func pollMode(name string) (hawser.PollMode, error) {
	for m := hawser.PollAdaptive; m <= hawser.PollEvent; m++ {
		if m.String() == name {
			return m, nil
		}
	}
	return 0, fmt.Errorf("poll mode is %q, want adaptive, busy or event", name)
}

// blocks is how many blocks a sample moves.
func (c Config) blocks() int { return int(c.Bytes / c.Size) }

// slots is how many blocks the pool holds.
func (c Config) slots() int { return int(c.Pool / c.Size) }

// local reports whether both sides must be on one host: then the yardsticks are its own means.
func (c Config) local() bool { return c.Provider == shmName || c.Provider == ofiShmName }
