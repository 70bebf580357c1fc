package kv

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/hawser-project/hawser"
)

// DecoderConfig is what NewDecoder needs. Geometry, Views and Pool are required.
type DecoderConfig struct {
	Geometry Geometry
	Views    []View        // one per layer and plane: view v is plane v%Planes of layer v/Planes
	Pool     *Pool         // of the pages that all views have
	Queue    int           // requests that wait for pages; DefaultQueue when 0
	Deadline time.Duration // from Fetch to ready; DefaultDeadline when 0
	// Stall is how long a peer that is up may send neither a write nor an answer before a request is cancelled, and how long
	// it may leave that Cancel unanswered before it is fenced; DefaultStall when 0.
	Stall time.Duration
	Log   *slog.Logger // discarded when nil
}

// Defaults of a DecoderConfig.
const (
	DefaultQueue    = 1024
	DefaultDeadline = 2 * time.Minute
	DefaultStall    = 5 * time.Second
)

// Time limits of the protocol. Safety does not depend on any of them: they bound waits.
const (
	repeatFirst  = 200 * time.Millisecond // Hello and Dispatch are repeated, at twice the distance each time
	cancelFirst  = 50 * time.Millisecond  // Cancel too; pages wait for its answer
	repeatMost   = time.Second
	settleLimit  = time.Second     // the last writes after the answer
	linkLimit    = 5 * time.Second // to connect and agree on the geometry
	fenceLimit   = time.Second     // one try of a fence, and the pause between two
	decoderTick  = 25 * time.Millisecond
	maxSeqWindow = 65536 // attempts between the oldest live one and the next: bounds what P remembers of ended ones
)

// Decoder fetches the caches of prompts from Prefillers into pages of its pool. It owns the messages of its engine: nothing else
// may call Receive on it. Safe for concurrent use.
type Decoder struct {
	net network
	cfg DecoderConfig
	log *slog.Logger

	ctx  context.Context // ends in Close, after the last attempt
	stop context.CancelFunc
	deaf func() // ends the calls of peerEvent
	wg   sync.WaitGroup

	partExtents int // extents of a Dispatch part: maxExtents, but in tests

	busy chan struct{} // capacity 1: there is something that time can change
	idle chan struct{} // closed when Close has begun and no write of any attempt may land any more
	rest func()        // closes idle, once

	mu          sync.Mutex // guards everything below and the mutable parts of links, attempts and Pendings
	closing     bool
	links       map[string]*fetchLink       // by the address in FetchRequest; usable or being set up
	peers       map[*hawser.Peer]*fetchLink // by peer; usable
	fences      map[*hawser.Peer]*fence     // under way
	attempts    map[uint64]*attempt         // from Dispatch until the pages are free
	queue       []*Pending                  // wait for pages, oldest first
	nextSeq     uint64                      // of the next attempt, from 1
	writing     int                         // attempts whose pages may still be written
	quarantined int                         // pages
	unexpected  uint64
}

// NewDecoder starts a Decoder on an engine. Close ends it, before the engine is closed and the memory of the views is freed.
func NewDecoder(eng *hawser.Engine, cfg DecoderConfig) (*Decoder, error) {
	cfg.Queue = cmp.Or(cfg.Queue, DefaultQueue)
	cfg.Deadline = cmp.Or(cfg.Deadline, DefaultDeadline)
	cfg.Stall = cmp.Or(cfg.Stall, DefaultStall)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if err := cfg.Geometry.check(); err != nil {
		return nil, fmt.Errorf("kv: decoder: %w", err)
	}
	if cfg.Pool == nil {
		return nil, fmt.Errorf("kv: decoder: %w: no pool", hawser.ErrInvalid)
	}
	if err := checkViews(cfg.Geometry, cfg.Views, cfg.Pool.Pages()); err != nil {
		return nil, fmt.Errorf("kv: decoder: %w", err)
	}
	d := newDecoder(onEngine{eng}, cfg)
	if _, err := d.describe(); err != nil {
		return nil, fmt.Errorf("kv: decoder: %w", err)
	}
	d.begin()
	return d, nil
}

// newDecoder makes a Decoder that does nothing yet, for a configuration that has been checked.
func newDecoder(net network, cfg DecoderConfig) *Decoder {
	ctx, stop := context.WithCancel(context.Background())
	idle := make(chan struct{})
	return &Decoder{
		net: net, cfg: cfg, log: cfg.Log, ctx: ctx, stop: stop, partExtents: maxExtents,
		busy: make(chan struct{}, 1), idle: idle, rest: sync.OnceFunc(func() { close(idle) }),
		links: map[string]*fetchLink{}, peers: map[*hawser.Peer]*fetchLink{}, fences: map[*hawser.Peer]*fence{},
		attempts: map[uint64]*attempt{}, nextSeq: 1,
	}
}

// begin starts to listen.
func (d *Decoder) begin() {
	d.deaf = d.net.OnPeer(d.peerEvent)
	d.wg.Go(d.receive)
	d.wg.Go(d.timers)
}

// FetchRequest asks for the cache of one prompt.
type FetchRequest struct {
	ID     string // the same on both sides; at most MaxRequestID bytes, never matched by prefix
	Tokens int    // length of the prompt
	From   string // address of the prefiller's engine
}

// Fetch asks a prefiller for a prompt. It connects first if there is no link to that prefiller yet, and returns once there is;
// Warm does that ahead of traffic. The request then waits for pages: all of them or none. When ctx ends before the
// pages are ready the request is cancelled. ErrLimit: the prompt can never fit, or too many requests wait.
func (d *Decoder) Fetch(ctx context.Context, r FetchRequest) (*Pending, error) {
	fail := func(err error) (*Pending, error) {
		return nil, fmt.Errorf("kv: request %s: %w", r.ID, err)
	}
	switch {
	case len(r.ID) == 0 || len(r.ID) > MaxRequestID:
		return fail(fmt.Errorf("%w: the id has %d bytes, want 1 .. %d", hawser.ErrInvalid, len(r.ID), MaxRequestID))
	case r.Tokens < 1 || r.Tokens > MaxPages*d.cfg.Geometry.Group.PageTokens:
		return fail(fmt.Errorf("%w: prompt of %d tokens", hawser.ErrInvalid, r.Tokens))
	}
	pages := d.cfg.Geometry.Pages(r.Tokens)
	if pages > d.cfg.Pool.Pages() {
		return fail(fmt.Errorf("%w: prompt needs %d pages, pool has %d: raise the pool or lower the maximum length",
			hawser.ErrLimit, pages, d.cfg.Pool.Pages()))
	}
	if err := ctx.Err(); err != nil {
		return fail(fmt.Errorf("%w: %w", ErrCancelled, context.Cause(ctx)))
	}
	p := &Pending{
		d: d, req: r, n: pages, done: make(chan struct{}), quiet: make(chan struct{}),
		arrived: time.Now(), deadline: time.Now().Add(d.cfg.Deadline),
	}
	link, err := d.link(ctx, r.From)
	if err != nil {
		return fail(err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closing:
		return fail(fmt.Errorf("decoder: %w", hawser.ErrClosed))
	case link.ended:
		return fail(link.err)
	case len(d.queue) >= d.cfg.Queue:
		return fail(fmt.Errorf("%w: %d requests wait for pages", hawser.ErrLimit, len(d.queue)))
	}
	p.link = link
	d.queue = append(d.queue, p)
	p.stopWatch = context.AfterFunc(ctx, func() { d.cancel(p, fmt.Errorf("%w: %w", ErrCancelled, context.Cause(ctx))) })
	d.admit()
	signal(d.busy)
	return p, nil
}

// Warm makes links ahead of traffic.
func (d *Decoder) Warm(ctx context.Context, addrs ...string) error {
	var errs []error
	for _, a := range addrs {
		if _, err := d.link(ctx, a); err != nil {
			errs = append(errs, fmt.Errorf("kv: warm: %w", err))
		}
	}
	return errors.Join(errs...)
}

// DecoderStats is a snapshot.
type DecoderStats struct {
	Waiting     int    // requests that wait for pages
	Writing     int    // attempts whose pages may be written
	Quarantined int    // pages out of service until a fence has its proof
	Unexpected  uint64 // messages and events that meant nothing where they came
}

// Stats returns a snapshot.
func (d *Decoder) Stats() DecoderStats {
	d.mu.Lock()
	defer d.mu.Unlock()
	return DecoderStats{Waiting: len(d.queue), Writing: d.writing, Quarantined: d.quarantined, Unexpected: d.unexpected}
}

// Close cancels what is not ready, waits until no write can land any more, says goodbye to the prefillers and joins all
// goroutines. Results stay valid until they are released. When ctx ends first, because a fence has no proof for example, the error
// wraps ErrUnfenced: the memory of the views must not be used for anything else while the engine lives.
func (d *Decoder) Close(ctx context.Context) error {
	d.mu.Lock()
	if !d.closing {
		d.closing = true
		cause := fmt.Errorf("decoder: %w", hawser.ErrClosed)
		for _, p := range slices.Clone(d.queue) {
			d.drop(p, cause)
		}
		for _, a := range d.attempts {
			d.step(a, fetchEvent{kind: evCancel, cause: cause})
		}
		if d.writing == 0 {
			d.rest()
		}
	}
	d.mu.Unlock()
	select {
	case <-d.idle:
	case <-ctx.Done():
	}
	d.deaf()
	d.mu.Lock()
	var err error
	if d.writing > 0 {
		err = fmt.Errorf("kv: close decoder: %d attempts are %w: %w", d.writing, hawser.ErrUnfenced, context.Cause(ctx))
	}
	for _, l := range d.peers {
		d.send(l, &bye{"decoder closed"}) // a prefiller that is not reached finds out by itself
	}
	d.stop()
	d.mu.Unlock()
	d.wg.Wait()
	return err
}

// signal fills a channel of capacity 1.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
