package simllm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv"
	"github.com/hawser-project/hawser/kv/pool"
	"github.com/hawser-project/hawser/kv/proto"
	"github.com/hawser-project/hawser/kv/trace"
)

// DecodeConfig is what NewDecoder needs. Shape and Requests are required, the rest has defaults.
type DecodeConfig struct {
	Shape     Shape
	Name      string          // of the instance; "decode" when empty
	From      []string        // addresses of prefillers (hawser.Engine.Addr); SetSources changes them
	Requests  []trace.Request // sorted by Arrival, as trace.Read and trace.Generate return them
	Origin    time.Duration   // of the trace: requests arrive at Begin + (Arrival-Origin)/Speed
	Speed     float64         // divides arrival times and token times, not layer times; 1 when 0
	TokenTime time.Duration   // decode time of one output token, for which the pages stay held; DefaultTokenTime when 0
	Duration  time.Duration   // arrivals end after this wall time, running requests finish; no end when 0
	Cancel    float64         // share of requests, 0 .. 1, that are cancelled at a random time
	CancelN   int             // this many requests are cancelled for certain, soon after they were sent
	Seed      uint64          // of all chance
	Verify    Verify          // VerifyAll when empty
	Digests   bool            // compare digests with the prefillers, which must send them
	Deadline  time.Duration   // of one request from arrival to Ready; DefaultDeadline when 0
	Log       *slog.Logger    // discarded when nil

	// Observe sees what happens, with a lock held: it must not block. nil is allowed.
	Observe func(proto.Note)
	// Fetched tells the number by which notes know a request. nil is allowed.
	Fetched func(n proto.Request, id string, r trace.Request)
	// Ready is told of each request that became ready, before its content is checked. nil is allowed.
	Ready func(id string, r kv.Result)
	// Progress is called about twice a second, on a goroutine of its own; nil is allowed.
	Progress func(DecodeProgress)
}

// Verify says how much of the content a Decoder checks.
type Verify string

// The values of Verify.
const (
	VerifyAll    Verify = "all"    // every byte
	VerifySample Verify = "sample" // every sampleEvery-th page
	VerifyOff    Verify = "off"    // nothing; VerifiedRequests stays 0
)

const (
	// DefaultTokenTime is the decode time of one token.
	DefaultTokenTime = 10 * time.Millisecond
	// DefaultDeadline is generous: a replay above the speed of the machine queues, and that is a result, not a failure.
	DefaultDeadline = 10 * time.Minute
	// sampleEvery keeps the cost of VerifySample below a tenth of the transfer.
	sampleEvery = 16
)

// DecodeProgress is a snapshot of a running Decoder.
type DecodeProgress struct {
	Total, Arrived, Done, Failed, Cancelled int
	Running                                 int // fetching or decoding
	Pool                                    pool.Counts
	Bytes                                   uint64 // landed so far
	CorruptBytes                            uint64
	Elapsed                                 time.Duration
}

func (c DecodeConfig) withDefaults() (DecodeConfig, error) {
	if c.Name == "" {
		c.Name = "decode"
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
	if c.Shape.Pool == 0 {
		c.Shape.Pool = DefaultPool
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
	fault(len(c.Requests) == 0, "no requests")
	fault(!(c.Speed > 0), "speed is %v, want more than 0", c.Speed)
	fault(c.TokenTime < 0, "token time is %v, want 0 or more", c.TokenTime)
	fault(!(c.Cancel >= 0 && c.Cancel <= 1), "cancelled share is %v, want 0 .. 1", c.Cancel)
	fault(c.Verify != VerifyAll && c.Verify != VerifySample && c.Verify != VerifyOff,
		"verify is %q, want all, sample or off", c.Verify)
	if _, _, err := c.Shape.Pages(); err != nil {
		faults = append(faults, fmt.Errorf("decode: %w", err))
	}
	return c, errors.Join(faults...)
}

// Decoder replays requests against prefillers.
type Decoder struct {
	cfg     DecodeConfig
	mem     *memory
	kv      *kv.Decoder
	run     string // random, so that request ids of two runs differ
	sources sources
	deaf    func() // ends peerEvent
	warming sync.WaitGroup
	cooling context.CancelFunc // ends warming
	warm    context.Context    // of the goroutines of SetSources
	drain   chan struct{}      // closed by Drain
	once    sync.Once
	ended   chan struct{} // closed when Run has no request left
	start   time.Time

	verifying sync.Mutex // held while a request is checked

	mu      sync.Mutex // guards the rest
	tally   Tally
	retried map[proto.Request]struct{}
	times   times
	running int
	life    time.Duration // moving average from arrival to ready
	claimed int           // of CancelN
}

// firstLife is the guess at how long a request lives before one has ended.
const firstLife = 20 * time.Millisecond

// NewDecoder makes a decoder and connects to the prefillers. Run replays, and takes everything down.
func NewDecoder(eng *hawser.Engine, cfg DecodeConfig) (*Decoder, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("simllm: %w", err)
	}
	const tails = 256
	mem, err := newMemory(eng, cfg.Shape, tails, cfg.Seed)
	if err != nil {
		return nil, fmt.Errorf("simllm: decode: %w", err)
	}
	d := &Decoder{
		cfg: cfg, mem: mem, run: strconv.FormatUint(rand.Uint64(), 36), life: firstLife, retried: map[proto.Request]struct{}{}, times: newTimes(),
		drain: make(chan struct{}), ended: make(chan struct{}),
	}
	d.warm, d.cooling = context.WithCancel(context.Background())
	d.tally = Tally{Geometry: cfg.Shape.Model.Name, Verify: cfg.Verify, PoolBytes: cfg.Shape.Pool, Causes: map[string]int{}}
	d.kv, err = kv.NewDecoder(eng, kv.DecoderConfig{
		Instance: cfg.Name, Topology: mem.topology(), Regions: mem.regions, Pools: []*pool.Pool{mem.pool}, Tails: mem.tails, TailBytes: tailBytes,
		Verify: cfg.Digests, Queue: len(cfg.Requests), Deadline: cfg.Deadline, Observer: d.note, Log: cfg.Log,
	})
	if err != nil {
		return nil, fmt.Errorf("simllm: %w", errors.Join(err, mem.close()))
	}
	d.deaf = eng.OnPeer(d.peerEvent)
	d.sources.set(cfg.From)
	return d, nil
}

// Warm connects to the prefillers of the config, all at once. It is an error when none of them can be used.
func (d *Decoder) Warm(ctx context.Context) error {
	errs := make([]error, len(d.cfg.From))
	var wg sync.WaitGroup
	for i, addr := range d.cfg.From {
		wg.Go(func() {
			if errs[i] = d.kv.Warm(ctx, addr); errs[i] != nil {
				d.cfg.Log.Warn("prefiller cannot be used yet", "err", errs[i])
			}
		})
	}
	wg.Wait()
	if slices.Contains(errs, nil) {
		return nil
	}
	return errors.Join(errs...)
}

// SetSources replaces the list of prefillers. Requests that run keep those that they know.
func (d *Decoder) SetSources(addrs []string) {
	for _, addr := range d.sources.set(addrs) {
		d.warming.Go(func() {
			if err := d.kv.Warm(d.warm, addr); err != nil && d.warm.Err() == nil {
				d.cfg.Log.Warn("prefiller cannot be used yet", "err", err)
			}
		})
	}
}

// Run lets the requests arrive and returns when all have ended, or when ctx ends: then it cancels what runs, and the error is ctx's. The
// tally is valid in both cases. Requests that fail are no error; they are in the tally. Begin is when requests may arrive; zero: now.
func (d *Decoder) Run(ctx context.Context, begin time.Time) (*Tally, error) {
	if begin.IsZero() {
		begin = time.Now()
	}
	err := d.all(ctx, begin)
	close(d.ended)
	d.cooling()
	d.warming.Wait()
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
	defer cancel()
	closed := d.kv.Close(closing)
	d.deaf()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tally.Leaked, d.tally.Stuck = d.mem.held()
	d.tally.Retried = len(d.retried)
	if closed == nil {
		closed = d.mem.close()
	}
	return &d.tally, errors.Join(err, closed)
}

// all lets the requests arrive and waits until they have ended.
func (d *Decoder) all(ctx context.Context, begin time.Time) error {
	var wg, watch sync.WaitGroup
	watching, stop := context.WithCancel(ctx)
	d.mu.Lock()
	d.start = begin
	d.tally.Began, d.tally.Ended = begin.UnixNano(), begin.UnixNano()
	d.mu.Unlock()
	if d.cfg.Progress != nil {
		watch.Go(func() { every(watching, progressGap, func() { d.cfg.Progress(d.Progress()) }) })
	}
	arrivals, endArrivals := context.WithCancel(ctx)
	if d.cfg.Duration > 0 {
		arrivals, endArrivals = context.WithDeadline(ctx, begin.Add(d.cfg.Duration))
	}
	watch.Go(func() {
		select {
		case <-d.drain:
			endArrivals()
		case <-watching.Done():
		}
	})
	for i, q := range d.cfg.Requests {
		due := begin.Add(time.Duration(float64(q.Arrival-d.cfg.Origin) / d.cfg.Speed))
		if !sleep(arrivals, time.Until(due)) {
			break
		}
		d.arrived()
		wg.Go(func() {
			d.one(ctx, i, q, due)
			d.left()
		})
	}
	endArrivals()
	wg.Wait()
	stop()
	watch.Wait()
	return context.Cause(ctx)
}

func (d *Decoder) arrived() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tally.Requests++
	d.running++
}

func (d *Decoder) left() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.running--
	d.tally.Ended = time.Now().UnixNano()
}

// sleep waits for d and reports true, or false when ctx has ended.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Progress returns a snapshot.
func (d *Decoder) Progress() DecodeProgress {
	d.mu.Lock()
	defer d.mu.Unlock()
	return DecodeProgress{
		Total: len(d.cfg.Requests), Arrived: d.tally.Requests, Done: d.tally.Done, Failed: d.tally.Failed, Cancelled: d.tally.Cancelled,
		Running: d.running, Pool: d.mem.pool.Counts(), Bytes: d.tally.Bytes, CorruptBytes: d.tally.Corrupt, Elapsed: time.Since(d.start),
	}
}

// Stats returns a snapshot.
func (d *Decoder) Stats() proto.DecoderStats { return d.kv.Stats() }

// Health is of this process: it never depends on a peer.
func (d *Decoder) Health() proto.Health { return d.kv.Health() }

// Requests calls f for every request that is not over.
func (d *Decoder) Requests(f func(proto.AttemptInfo)) { d.kv.Requests(f) }

// Links calls f for every prefiller that there is a link to, by the name of its engine.
func (d *Decoder) Links(f func(name string, i proto.LinkInfo)) { d.kv.Links(f) }

// Cancel cancels all requests with an id and reports how many there were.
func (d *Decoder) Cancel(id, reason string) int { return d.kv.CancelID(id, reason) }

// Drain lets no more requests arrive and waits until those that run have ended; then Run ends.
func (d *Decoder) Drain(ctx context.Context) error {
	d.once.Do(func() { close(d.drain) })
	select {
	case <-d.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("drain: %w: %d requests run: %w", hawser.ErrBusy, d.Progress().Running, context.Cause(ctx))
	}
}

// Draining reports whether Drain was called.
func (d *Decoder) Draining() bool {
	select {
	case <-d.drain:
		return true
	default:
		return false
	}
}

func (d *Decoder) peerEvent(e hawser.PeerEvent) {
	if e.Kind != hawser.PeerDown {
		return
	}
	down := PeerDown{Peer: e.Peer.Name(), At: time.Now().UnixNano()}
	if e.Cause != nil {
		down.Cause = e.Cause.Error()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tally.PeerDowns = append(d.tally.PeerDowns, down)
}

// note is called by kv, with its lock held.
func (d *Decoder) note(n proto.Note) {
	d.mu.Lock()
	switch n.Kind {
	case proto.NoteReserve:
		d.tally.Attempts++
	case proto.NoteRetry:
		d.retried[n.Request] = struct{}{}
	}
	d.times.note(n, time.Now)
	d.mu.Unlock()
	if d.cfg.Observe != nil {
		d.cfg.Observe(n)
	}
}
