package simllm

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/hawser-project/hawser/kv"
	"github.com/hawser-project/hawser/kv/trace"
)

// PrefillConfig is what Prefill needs. Geometry is required, the rest has defaults.
type PrefillConfig struct {
	Geometry kv.Geometry
	Pool     uint64       // bytes of KV memory; DefaultPool when 0
	Layer    LayerTime    // compute time per layer; DefaultLayerTime(Geometry) when zero
	Log      *slog.Logger // discarded when nil
	// Progress is called about twice a second, on a goroutine of its own; nil is allowed.
	Progress func(PrefillProgress)
}

// DecodeConfig is what Decode needs. Geometry, From and Requests are required, the rest has defaults.
type DecodeConfig struct {
	Geometry  kv.Geometry
	Pool      uint64          // bytes of KV memory; DefaultPool when 0
	From      string          // address of the prefill engine (hawser.Engine.Addr)
	Requests  []trace.Request // sorted by Timestamp, as trace.Read and trace.Generate return them
	Speed     float64         // divides arrival times and token times, not layer times; 1 when 0
	TokenTime time.Duration   // decode time of one output token, for which the pages stay held; DefaultTokenTime when 0
	Duration  time.Duration   // arrivals end after this wall time, running requests finish; no end when 0
	Cancel    float64         // share of requests, 0 .. 1, that are cancelled at a random time
	CancelN   int             // this many requests are cancelled for certain, soon after they were sent
	Seed      uint64          // of all chance
	Verify    Verify          // VerifyAll when empty
	Deadline  time.Duration   // of one request from arrival to Ready; DefaultDeadline when 0
	Log       *slog.Logger    // discarded when nil
	// Progress is called about twice a second, on a goroutine of its own; nil is allowed.
	Progress func(DecodeProgress)
}

// Verify says how much of the content Decode checks.
type Verify string

// The values of Verify.
const (
	VerifyAll    Verify = "all"    // every byte
	VerifySample Verify = "sample" // every sampleEvery-th page
	VerifyOff    Verify = "off"    // nothing; VerifiedRequests stays 0
)

const (
	// DefaultPool is the KV memory of a process in bytes.
	DefaultPool = 1 << 30
	// DefaultTokenTime is the decode time of one token.
	DefaultTokenTime = 10 * time.Millisecond
	// DefaultDeadline is generous: a replay above the speed of the machine queues, and that is a result, not a failure.
	DefaultDeadline = 10 * time.Minute
	// sampleEvery keeps the cost of VerifySample below a tenth of the transfer.
	sampleEvery = 16
	progressGap = 500 * time.Millisecond
)

// PrefillProgress is a snapshot of a running Prefill.
type PrefillProgress struct {
	Done, Stopped     int // jobs that posted everything; that ended before
	Queued            int // jobs that wait for pages or for a pass, or are in one
	PagesFree, Pages  int
	Passes            uint64
	FillBound, Layers uint64 // layers whose content took longer than their time; all layers
}

// DecodeProgress is a snapshot of a running Decode.
type DecodeProgress struct {
	Total, Arrived, Done, Failed, Cancelled int
	Running                                 int // fetching or decoding
	PagesFree, Pages                        int
	Bytes                                   uint64 // landed so far
	CorruptBytes                            uint64
	Elapsed                                 time.Duration
}

func (c PrefillConfig) withDefaults() (PrefillConfig, error) {
	if c.Pool == 0 {
		c.Pool = DefaultPool
	}
	if c.Layer == (LayerTime{}) {
		c.Layer = DefaultLayerTime(c.Geometry)
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if pages := poolPages(c.Geometry, c.Pool); pages < 1 {
		return c, poolTooSmall("prefill", c.Geometry, c.Pool)
	}
	return c, c.Layer.check()
}

func (c DecodeConfig) withDefaults() (DecodeConfig, error) {
	if c.Pool == 0 {
		c.Pool = DefaultPool
	}
	if c.Speed == 0 {
		c.Speed = 1
	}
	if c.TokenTime == 0 {
		c.TokenTime = DefaultTokenTime
	}
	if c.Deadline == 0 {
		c.Deadline = DefaultDeadline
	}
	if c.Verify == "" {
		c.Verify = VerifyAll
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	var faults []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Errorf("decode: "+format, args...))
		}
	}
	fault(c.From == "", "no prefill address")
	fault(len(c.Requests) == 0, "no requests")
	fault(!(c.Speed > 0), "speed is %v, want more than 0", c.Speed)
	fault(c.TokenTime < 0, "token time is %v, want 0 or more", c.TokenTime)
	fault(!(c.Cancel >= 0 && c.Cancel <= 1), "cancelled share is %v, want 0 .. 1", c.Cancel)
	fault(c.Verify != VerifyAll && c.Verify != VerifySample && c.Verify != VerifyOff,
		"verify is %q, want all, sample or off", c.Verify)
	if pages := poolPages(c.Geometry, c.Pool); pages < 1 {
		faults = append(faults, poolTooSmall("decode", c.Geometry, c.Pool))
	}
	return c, errors.Join(faults...)
}

// poolPages is how many pages fit into a pool; kv numbers pages with 32 bits.
func poolPages(g kv.Geometry, pool uint64) int {
	per := g.BytesPerPage()
	if per == 0 {
		return 0
	}
	return int(min(pool/per, kv.MaxPages))
}

func poolTooSmall(who string, g kv.Geometry, pool uint64) error {
	return fmt.Errorf("%s: a pool of %d bytes does not hold one page of geometry %s (%d bytes over all layers): raise the pool or keep fewer layers",
		who, pool, g.Fingerprint, g.BytesPerPage())
}
