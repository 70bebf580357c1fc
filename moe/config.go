package moe

import (
	"fmt"
	"hash/fnv"
	"strconv"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/internal/exec"
	"github.com/hawser-project/hawser/moe/proto"
)

// Config is what a group does, and how much memory it may take for that. 0 means the default where one is named.
type Config struct {
	MaxRanks  int // fixed slots of ranks; a View says which of them take part
	Rank      int // this one
	MaxTokens int // of a rank and step
	Hidden    int // elements of a row
	TopK      int
	Experts   int // places for experts, of all ranks together: one for each expert, or more, to have replicas

	In    DType   // of the rows that dispatch sends: F32, BF16, F16, E4M3, E5M2 or Bytes
	Wire  DType   // of the results that combine sends: F32, BF16 or F16
	Scale Scaling // that rows carry
	Meta  bool    // rows carry token, column and weight, too

	Layout      Layout // of received rows
	ExpertAlign int    // rows to a multiple of which the group of an expert begins; 0: 1
	BatchCap    int    // rows for each expert, if Batched; 0: as many as there can be

	FirstChunk   int // records that travel with the header; 0: the mean of a uniform routing and four sigma; -1: none
	ChunkRecords int // of the chunks in which others follow; 0: 64
	PoolRecords  int // for all chunks under way to this rank; 0: 4096

	MaxRecv    int    // records that are received in one piece; 0: the most that distinct ids can bring, if Budget allows, else StreamRows
	StreamRows int    // rows of a Chunk; 0: 4096, but at least a piece
	Budget     int64  // bytes of a lane up to which MaxRecv is the most there can be; 0: 1 GiB
	OnOverflow Policy // what happens when more come

	Lanes int // 0: 2
	Tag   int // 1 .. 62, of the immediates, one group each on an engine; 0: rank 0 proposes its lowest that is free

	StepTimeout time.Duration // after which a rank that owes something is missing; 0: 30 s
}

// Layout is how received rows lie.
type Layout uint8

// The layouts.
const (
	ExpertMajor Layout = iota // one expert after the other
	Batched                   // BatchCap rows for each expert
)

// SizeReport says what a Config costs.
type SizeReport = proto.SizeReport

// Sizes says what a lane of a group costs in memory, before anything is allocated. New allocates just that, Lanes times.
func Sizes(c Config) (SizeReport, error) {
	p, err := c.proto()
	if err != nil {
		return SizeReport{}, fmt.Errorf("sizes: %w", err)
	}
	r, err := proto.Sizes(p)
	if err != nil {
		return SizeReport{}, fmt.Errorf("sizes: %w: %w", hawser.ErrInvalid, err)
	}
	return r, nil
}

// bytesOf are the element types that travel.
var bytesOf = map[DType]int{backend.F32: 4, backend.BF16: 2, backend.F16: 2, backend.E4M3: 1, backend.E5M2: 1, backend.Bytes: 1}

// scalings are the elements that share a scale, and the bytes of it.
var scalings = map[Scaling][2]int{backend.NoScale: {0, 0}, backend.F32x128: {128, 4}, backend.UE8M0x128: {128, 1}, backend.UE8M0x32: {32, 1}}

// proto is the protocol's part of it.
func (c *Config) proto() (proto.Config, error) {
	in, ok := bytesOf[c.In]
	if !ok {
		return proto.Config{}, fmt.Errorf("%w: In is type %d, want F32, BF16, F16, E4M3, E5M2 or Bytes", hawser.ErrInvalid, c.In)
	}
	wire := bytesOf[c.Wire]
	if wire < 2 {
		return proto.Config{}, fmt.Errorf("%w: Wire is type %d, want F32, BF16 or F16", hawser.ErrInvalid, c.Wire)
	}
	scale, ok := scalings[c.Scale]
	switch {
	case !ok:
		return proto.Config{}, fmt.Errorf("%w: Scale is %d, want NoScale, F32x128, UE8M0x128 or UE8M0x32", hawser.ErrInvalid, c.Scale)
	case c.Layout > Batched:
		return proto.Config{}, fmt.Errorf("%w: Layout is %d, want ExpertMajor or Batched", hawser.ErrInvalid, c.Layout)
	case c.OnOverflow > Fail:
		return proto.Config{}, fmt.Errorf("%w: OnOverflow is %d, want Stream or Fail", hawser.ErrInvalid, c.OnOverflow)
	case c.ExpertAlign < 0 || c.BatchCap < 0:
		return proto.Config{}, fmt.Errorf("%w: ExpertAlign %d and BatchCap %d, want neither below 0", hawser.ErrInvalid, c.ExpertAlign, c.BatchCap)
	case c.Tag < 0 || c.Tag > proto.MaxTag:
		return proto.Config{}, fmt.Errorf("%w: Tag is %d, want 0 .. %d", hawser.ErrInvalid, c.Tag, proto.MaxTag)
	}
	others := fnv.New64a()
	_, _ = fmt.Fprint(others, c.In, c.Wire, c.Scale) // it never fails
	return proto.Config{
		MaxRanks: c.MaxRanks, Rank: c.Rank, MaxTokens: c.MaxTokens, Hidden: c.Hidden, TopK: c.TopK, Experts: c.Experts,
		InBytes: in, WireBytes: wire, ScaleBlock: scale[0], ScaleBytes: scale[1], Meta: c.Meta,
		FirstChunk: c.FirstChunk, ChunkRecords: c.ChunkRecords, PoolRecords: c.PoolRecords, Lanes: c.Lanes,
		MaxRecv: c.MaxRecv, StreamRows: c.StreamRows, Budget: c.Budget, StepTimeout: c.StepTimeout, Others: others.Sum64(),
	}, nil
}

// layout decides all defaults.
func (c *Config) layout() (*proto.Layout, error) {
	p, err := c.proto()
	if err != nil {
		return nil, err
	}
	l, err := proto.NewLayout(p)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", hawser.ErrInvalid, err)
	}
	if _, err := l.Values(1); err != nil {
		return nil, fmt.Errorf("%w: %w", hawser.ErrInvalid, err)
	}
	return &l, nil
}

// options are what an executor does with it.
func (c *Config) options(l *proto.Layout) exec.Options {
	o := exec.Options{ExpertAlign: c.ExpertAlign, Batched: c.Layout == Batched, BatchCap: c.BatchCap}
	if o.Batched && o.BatchCap == 0 {
		o.BatchCap = l.MaxRanks * l.MaxTokens
	}
	return o
}

// Term is a field of Config on which all ranks agree.
type Term struct{ Name, Value string }

// terms are those of a Config, whose defaults l has decided. All ranks have the same, in the same order, or refuse each other.
func (c *Config) terms(l *proto.Layout) []Term {
	n := strconv.Itoa
	return []Term{
		{"MaxRanks", n(l.MaxRanks)},
		{"MaxTokens", n(l.MaxTokens)},
		{"Hidden", n(l.Hidden)},
		{"TopK", n(l.TopK)},
		{"Experts", n(l.Experts)},
		{"In", n(int(c.In))},
		{"Wire", n(int(c.Wire))},
		{"Scale", n(int(c.Scale))},
		{"Meta", strconv.FormatBool(c.Meta)},
		{"FirstChunk", n(l.FirstChunk)},
		{"ChunkRecords", n(l.ChunkRecords)},
		{"PoolRecords", n(l.PoolRecords)},
		{"Lanes", n(l.Lanes)},
	}
}

// disagreement names the first field in which terms differ, or nil.
func disagreement(here, there []Term, rank int) error {
	for i, t := range here {
		switch {
		case i >= len(there) || there[i].Name != t.Name:
			return fmt.Errorf("%w: rank %d knows no %s: it is of another version", hawser.ErrInvalid, rank, t.Name)
		case there[i].Value != t.Value:
			return fmt.Errorf("%w: %s is %s here and %s at rank %d", hawser.ErrInvalid, t.Name, t.Value, there[i].Value, rank)
		}
	}
	if len(there) > len(here) {
		return fmt.Errorf("%w: %s of rank %d is not known here: it is of another version", hawser.ErrInvalid, there[len(here)].Name, rank)
	}
	return nil
}
