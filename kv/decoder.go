package kv

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv/layout"
	"github.com/hawser-project/hawser/kv/pool"
	"github.com/hawser-project/hawser/kv/proto"
)

// DecoderConfig is what NewDecoder needs. Instance, Topology and Regions are required.
type DecoderConfig struct {
	Instance string
	Member   int              // of Topology.Members: this decoder
	Topology *layout.Topology // of all members of the instance; must not change
	Regions  []*hawser.Region // of this member, as its views number them
	Options  layout.Options

	// Pools lend the pages, one for each group of layers; with one group the pool is the prefix cache, too. nil: every Fetch brings its
	// pages, as it must when the instance has several members.
	Pools []*pool.Pool

	Tails     *hawser.Region // slots for tails; nil when no Fetch wants one
	TailBytes int            // of a slot: the longest tail

	Verify   bool          // compare digests of what was sent and what is here before a request is ready
	Queue    int           // requests that wait; proto.DefaultQueue when 0
	Tries    int           // attempts of a request; proto.DefaultTries when 0
	Deadline time.Duration // from Fetch to ready; proto.DefaultDeadline when 0
	Stall    time.Duration // silence of a peer that is up; proto.DefaultStall when 0

	Observer func(proto.Note) // called with a lock held: it must not block or call the Decoder; nil: none
	Log      *slog.Logger     // discarded when nil
}

// Decoder fetches the caches of prompts from Prefillers. It owns the messages of its engine: nothing else may call Receive on it.
// Safe for concurrent use.
type Decoder struct {
	station

	cfg DecoderConfig
	m   *proto.Decoder

	// guarded by mu
	starting *Pending // of the Fetch that runs
	requests map[proto.Request]*Pending
	counters map[uint64]*awaited // by attempt
	events   events
}

// awaited is the immediate of an attempt. Guarded by Decoder.mu, but for want.
type awaited struct {
	seq  uint64
	c    *hawser.Counter
	stop func()        // takes the last OnReach back; nil: none
	want atomic.Uint64 // the count at which the machine wants to be told; 0: it does not
}

// reached reports whether the machine wants to be told. Without the lock that is a guess.
// hot:
func (a *awaited) reached() bool {
	want := a.want.Load()
	return want > 0 && a.c.Load() >= want
}

// NewDecoder starts a Decoder on an engine. Close ends it, before the engine is closed and the memory of the regions is freed.
func NewDecoder(eng *hawser.Engine, cfg DecoderConfig) (*Decoder, error) {
	d := &Decoder{
		station: newStation(eng, cfg.Log), cfg: cfg,
		requests: map[proto.Request]*Pending{}, counters: map[uint64]*awaited{},
	}
	if err := d.check(); err != nil {
		d.stop()
		return nil, fmt.Errorf("kv: decoder: %w", err)
	}
	slots := 0
	if cfg.Tails != nil {
		slots = int(cfg.Tails.Len() / uint64(cfg.TailBytes))
	}
	m, err := proto.NewDecoder(proto.DecoderConfig{
		Instance: cfg.Instance, Member: cfg.Member, Topology: cfg.Topology, Options: cfg.Options, Pools: cfg.Pools,
		TailSlots: slots, TailBytes: cfg.TailBytes, Verify: cfg.Verify, Epoch: mint(),
		Queue: cfg.Queue, Tries: cfg.Tries, Deadline: cfg.Deadline, Stall: cfg.Stall,
	}, decoderOut{d})
	if err != nil {
		d.stop()
		return nil, fmt.Errorf("kv: decoder: %w", err)
	}
	d.m = m
	d.begin(m, m.PeerDown)
	return d, nil
}

func (d *Decoder) check() error {
	c := &d.cfg
	if c.Topology == nil || c.Member < 0 || c.Member >= len(c.Topology.Members) {
		return fmt.Errorf("%w: member %d of a topology without it", hawser.ErrInvalid, c.Member)
	}
	if c.Tails != nil && (c.TailBytes < 1 || uint64(c.TailBytes) > c.Tails.Len()) {
		return fmt.Errorf("%w: tails of %d bytes in a region of %d", hawser.ErrInvalid, c.TailBytes, c.Tails.Len())
	}
	if c.Tails == nil {
		c.TailBytes = 0
	}
	return checkRegions(&c.Topology.Members[c.Member], c.Regions)
}

// checkRegions checks that every view ends inside its region.
func checkRegions(g *layout.Geometry, regions []*hawser.Region) error {
	if err := g.Check(); err != nil {
		return err
	}
	sizes := g.RegionBytes()
	if len(sizes) != len(regions) {
		return fmt.Errorf("%w: %d regions, the views lie in %d", hawser.ErrInvalid, len(regions), len(sizes))
	}
	for i, n := range sizes {
		if regions[i] == nil || regions[i].Len() < uint64(n) {
			return fmt.Errorf("%w: region %d is too short: the views need %d bytes", hawser.ErrInvalid, i, n)
		}
	}
	return nil
}

// Warm connects to prefillers and agrees with them on the layout, ahead of traffic.
func (d *Decoder) Warm(ctx context.Context, addrs ...string) error {
	var errs []error
	for _, addr := range addrs {
		if err := d.warm(ctx, addr); err != nil {
			errs = append(errs, fmt.Errorf("kv: warm %s: %w", short(addr), err))
		}
	}
	return errors.Join(errs...)
}

func (d *Decoder) warm(ctx context.Context, addr string) error {
	d.mu.Lock()
	l := d.m.Warm(d.now(), addr)
	d.unlock()
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		d.mu.Lock()
		up, err := d.m.LinkState(l)
		d.mu.Unlock()
		if up || err != nil {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-d.ctx.Done():
			return fmt.Errorf("decoder: %w", hawser.ErrClosed)
		}
	}
}

// Health is of this process: it never depends on a peer.
func (d *Decoder) Health() proto.Health {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.m.Health()
}

// Stats returns a snapshot.
func (d *Decoder) Stats() proto.DecoderStats {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.m.Stats()
}

// Requests calls f for every request that is not over.
func (d *Decoder) Requests(f func(proto.AttemptInfo)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.m.Live(f)
}

// Links calls f for every prefiller that there is a link to; name is that of its engine.
func (d *Decoder) Links(f func(name string, i proto.LinkInfo)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.m.Links(func(i proto.LinkInfo) { f(d.peer(i.Peer).Name(), i) })
}

// CancelID cancels all requests with an id and reports how many there were.
func (d *Decoder) CancelID(id, reason string) (n int) {
	d.mu.Lock()
	defer d.unlock()
	for r, p := range d.requests {
		if p.id == id && !p.isDone() {
			d.m.Cancel(d.now(), r, fmt.Errorf("%w: %s", proto.ErrCancelled, reason))
			n++
		}
	}
	return n
}

// Room says that pages may have come back to a pool in another way than by Result.Release.
func (d *Decoder) Room() {
	d.mu.Lock()
	defer d.unlock()
	d.m.Room(d.now())
}

// Drain refuses new requests with proto.ErrDraining and waits until those that are there have come to an end: ready, failed or
// cancelled, and quiet.
func (d *Decoder) Drain(ctx context.Context) error {
	d.mu.Lock()
	d.m.Drain(d.now())
	d.unlock()
	for {
		d.mu.Lock()
		live := d.m.Stats()
		d.mu.Unlock()
		if live.Waiting == 0 && live.Live == 0 {
			return nil
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("kv: drain decoder: %d requests wait, %d are written to: %w", live.Waiting, live.Live, context.Cause(ctx))
		}
	}
}

// Close cancels what is not ready, waits until no write can land any more, says goodbye to the prefillers and joins all goroutines.
// Results stay valid until they are released. When ctx ends first, because a fence has no proof for example, the error wraps
// ErrUnfenced: the memory of the regions must not be used for anything else while the engine lives.
func (d *Decoder) Close(ctx context.Context) error {
	d.mu.Lock()
	d.m.Close(d.now())
	d.unlock()
	var err error
	for err == nil {
		d.mu.Lock()
		done, live := d.m.Done(), d.m.Stats().Live
		d.mu.Unlock()
		if done {
			break
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			err = fmt.Errorf("kv: close decoder: %d attempts are %w: %w", live, hawser.ErrUnfenced, context.Cause(ctx))
		}
	}
	d.end()
	return err
}
