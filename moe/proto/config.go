package proto

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"time"
)

// Time is the time since an origin of the caller's choosing. It never goes back.
type Time = time.Duration

// Bounds of a Config.
const (
	MaxRanks = 4096
	MaxLanes = 8
	Window   = 4 // slots of grants per pair and lane, and values of each windowed kind

	defaultChunk  = 64
	defaultPool   = 4096
	defaultStream = 4096
	defaultBudget = 1 << 30
	metaBytes     = 16
	headFixed     = 48
	lineBytes     = 64
)

// Config is what all ranks of a group agree on, but for Rank and the fields of the last group. 0 means the default where one is named.
type Config struct {
	MaxRanks  int // fixed slots of ranks
	MaxTokens int // of a rank and step
	Hidden    int // elements of a row
	TopK      int
	Experts   int

	InBytes    int // of an element in dispatch
	WireBytes  int // of an element in combine
	ScaleBlock int // elements that share a scale; 0: no scales
	ScaleBytes int // of a scale
	Meta       bool

	FirstChunk   int // records that travel with the header; 0: the mean and four sigma; -1: none
	ChunkRecords int // records of a chunk of the pool; 0: 64
	PoolRecords  int // 0: 4096
	Lanes        int // 0: 2
	Window       int // chunks of one source under way; 0: 4

	Others uint64 // a hash of what else ranks must agree on and what nothing here depends on, as types of elements

	// These may differ between ranks.
	Rank        int
	MaxRecv     int   // records that are taken in one piece; 0: the most there can be, if Budget allows, else StreamRows
	StreamRows  int   // 0: 4096, but at least FirstChunk and ChunkRecords
	Budget      int64 // bytes of a lane up to which MaxRecv is the most there can be; 0: 1 GiB
	StepTimeout Time  // 0: 30 s
}

// ErrConfig: a Config contradicts itself.
var ErrConfig = errors.New("invalid configuration")

func (c *Config) check() error {
	for _, f := range []struct {
		name      string
		v, lo, hi int
	}{
		{"MaxRanks", c.MaxRanks, 1, MaxRanks},
		{"Rank", c.Rank, 0, c.MaxRanks - 1},
		{"MaxTokens", c.MaxTokens, 1, 1 << 24},
		{"Hidden", c.Hidden, 1, 1 << 20},
		{"Experts", c.Experts, 1, 1 << 16},
		{"TopK", c.TopK, 1, min(c.Experts, 1<<10)},
		{"InBytes", c.InBytes, 1, 8},
		{"WireBytes", c.WireBytes, 2, 4},
		{"ScaleBlock", c.ScaleBlock, 0, 1 << 20},
		{"ScaleBytes", c.ScaleBytes, 0, 8},
		{"FirstChunk", c.FirstChunk, -1, math.MaxInt32},
		{"ChunkRecords", c.ChunkRecords, 0, 1 << 20},
		{"PoolRecords", c.PoolRecords, 0, 1 << 24},
		{"Lanes", c.Lanes, 0, MaxLanes},
		{"Window", c.Window, 0, Window},
		{"MaxRecv", c.MaxRecv, 0, math.MaxInt32},
		{"StreamRows", c.StreamRows, 0, math.MaxInt32},
	} {
		if f.v < f.lo || f.v > f.hi {
			return fmt.Errorf("%w: %s is %d, want %d .. %d", ErrConfig, f.name, f.v, f.lo, f.hi)
		}
	}
	if c.MaxTokens*c.TopK > math.MaxInt32 {
		return fmt.Errorf("%w: MaxTokens %d times TopK %d, want at most 2^31-1 records", ErrConfig, c.MaxTokens, c.TopK)
	}
	if c.Budget < 0 || c.StepTimeout < 0 {
		return fmt.Errorf("%w: Budget %d and StepTimeout %v, want neither below 0", ErrConfig, c.Budget, c.StepTimeout)
	}
	if (c.ScaleBlock == 0) != (c.ScaleBytes == 0) {
		return fmt.Errorf("%w: ScaleBlock %d and ScaleBytes %d, want both or neither", ErrConfig, c.ScaleBlock, c.ScaleBytes)
	}
	return nil
}

// Layout is a Config with every default decided: what lies where. Plain data.
type Layout struct {
	Config
	Local      int // experts of a rank, at most
	Full       int // the most records that distinct ids can bring to a rank in a step
	HeadBytes  int // of a header
	Dispatch   int // bytes of a dispatch record
	Combine    int // of a combine record
	PoolChunks int
	YRows      int  // records that Y holds
	HalfRows   int  // records of a half of Y, when a step is streamed
	Streamed   bool // by default: what Full needs does not fit Budget
}

// NewLayout checks a Config and decides its defaults.
func NewLayout(c Config) (Layout, error) {
	if err := c.check(); err != nil {
		return Layout{}, err
	}
	l := Layout{Config: c}
	l.Local = (c.Experts + c.MaxRanks - 1) / c.MaxRanks
	l.Full = c.MaxRanks * c.MaxTokens * min(c.TopK, l.Local)
	l.HeadBytes = align(headFixed+4*l.Local, lineBytes)
	l.Dispatch = align(c.Hidden*c.InBytes, 16)
	if c.ScaleBlock > 0 {
		l.Dispatch += align((c.Hidden+c.ScaleBlock-1)/c.ScaleBlock*c.ScaleBytes, 16)
	}
	if c.Meta {
		l.Dispatch += metaBytes
	}
	l.Combine = align(c.Hidden*c.WireBytes, 16)
	def := func(v *int, to int) {
		if *v == 0 {
			*v = to
		}
	}
	switch l.FirstChunk {
	case 0:
		l.FirstChunk = l.firstChunk()
	case -1:
		l.FirstChunk = 0
	}
	def(&l.ChunkRecords, defaultChunk)
	def(&l.PoolRecords, max(defaultPool, l.ChunkRecords))
	def(&l.Lanes, 2)
	def(&l.Window, Window)
	if l.PoolRecords < l.ChunkRecords {
		return Layout{}, fmt.Errorf("%w: PoolRecords is %d, want at least one chunk of %d", ErrConfig, l.PoolRecords, l.ChunkRecords)
	}
	l.PoolChunks = l.PoolRecords / l.ChunkRecords
	piece := max(l.FirstChunk, l.ChunkRecords)
	def(&l.StreamRows, max(min(l.Full, max(defaultStream, l.FirstChunk)), piece))
	if l.StreamRows < piece {
		return Layout{}, fmt.Errorf("%w: StreamRows is %d, want at least one piece of %d", ErrConfig, l.StreamRows, piece)
	}
	if l.Budget == 0 {
		l.Budget = defaultBudget
	}
	if l.StepTimeout == 0 {
		l.StepTimeout = 30 * time.Second
	}
	l.YRows = max(l.MaxRecv, 2*piece)
	if l.MaxRecv == 0 {
		l.MaxRecv, l.YRows = l.Full, max(l.Full, 2*piece)
		if l.regions().Total() > l.Budget {
			l.MaxRecv, l.YRows, l.Streamed = l.StreamRows, 2*l.StreamRows, true
		}
	}
	l.HalfRows = min(l.StreamRows, l.YRows/2)
	return l, nil
}

// firstChunk is what a uniform routing brings to a peer, and four sigma more.
func (l *Layout) firstChunk() int {
	mean := float64(l.MaxTokens) * float64(l.TopK) * float64(l.Local) / float64(l.Experts)
	v := mean * (1 - float64(l.Local)/float64(l.Experts))
	if l.Experts > 1 {
		v *= float64(l.Experts-l.TopK) / float64(l.Experts-1)
	}
	return min(l.MaxTokens*l.TopK, align(int(math.Ceil(mean+4*math.Sqrt(max(v, 0)))), 8))
}

// Records is the most that one rank sends in a step.
func (l *Layout) Records() int { return l.MaxTokens * l.TopK }

// Chunks is how many chunks n records from one rank to another need beside the first.
func (l *Layout) Chunks(n int) int {
	return (max(0, n-l.FirstChunk) + l.ChunkRecords - 1) / l.ChunkRecords
}

// Pieces is in how many pieces n records travel, in both directions; at least one.
func (l *Layout) Pieces(n int) int { return 1 + l.Chunks(n) }

// Piece is where piece p of n records begins, and how many it has.
func (l *Layout) Piece(n, p int) (first, count int) {
	if p == 0 {
		return 0, min(n, l.FirstChunk)
	}
	first = l.FirstChunk + (p-1)*l.ChunkRecords
	return first, max(0, min(n-first, l.ChunkRecords))
}

// Order calls f for each rank, in the order in which this one writes to all. At any time each rank is written to by another one: pairs
// trade places, first those whose numbers differ least, so inside a node, and then of nodes. If all began with rank 0, all would write to it
// at once and then to the next, and the last one would get its first byte when all had sent most of theirs.
func (l *Layout) Order(f func(rank int)) {
	for k := range 1 << log2(l.MaxRanks) {
		if rank := l.Rank ^ k; rank < l.MaxRanks {
			f(rank)
		}
	}
}

// combOf is how many of n records' pieces come back with the value w.
func (l *Layout) combOf(n, w int) uint64 { return uint64((l.Pieces(n) - w + l.Window - 1) / l.Window) }

func align(n, to int) int { return (n + to - 1) / to * to }

// log2 is how many bits the numbers below n need.
func log2(n int) int { return bits.Len(uint(n - 1)) }
