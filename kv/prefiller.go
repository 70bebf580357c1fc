package kv

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/hawser-project/hawser"
)

// PrefillerConfig is what NewPrefiller needs. Geometry and Views are required.
type PrefillerConfig struct {
	Geometry Geometry
	Views    []View       // one per layer and plane: view v is plane v%Planes of layer v/Planes
	Jobs     int          // that are live at once; DefaultJobs when 0. More are rejected as busy
	Log      *slog.Logger // discarded when nil
}

// DefaultJobs bounds the queue of a Prefiller.
const DefaultJobs = 256

// Handler is the inference engine that computes the prompts. The Prefiller calls it with its lock held: the methods must not block
// and must not call the Prefiller or a Job.
type Handler interface {
	// Admit takes a job into the engine's queue. An error refuses it for good; its text goes to the decoder. A job that only
	// has to wait for pages is admitted and waits.
	Admit(*Job) error

	// Stop ends an admitted job, exactly once: its pages are not read any more, and it must not be computed further. It is
	// called also when everything went well.
	Stop(*Job)
}

// Prefiller writes the caches of prompts to Decoders, layer by layer, while the inference engine computes them. It owns the
// messages of its engine: nothing else may call Receive on it. Safe for concurrent use.
type Prefiller struct {
	net     network
	cfg     PrefillerConfig
	handler Handler
	log     *slog.Logger
	writes  writes
	pages   int // that all views have

	ctx  context.Context // ends in Close, after the last job
	stop context.CancelFunc
	deaf func() // ends the calls of peerEvent
	wg   sync.WaitGroup
	idle chan struct{} // closed when Close has begun and no job is live
	rest func()        // closes idle, once

	mu         sync.Mutex // guards everything below, and the mutable parts of links and jobs
	closing    bool
	links      map[*hawser.Peer]*serveLink
	importing  map[*hawser.Peer]bool // a goroutine imports its memory
	complained map[*hawser.Peer]bool // told once that they speak garbage; only those that are up
	posts      []post                // outstanding writes; the index is the cookie
	freePosts  []uint32              // indices of posts that are not in use
	retrying   bool                  // a goroutine waits to post again what the engine had no room for
	live       int                   // jobs
	stats      PrefillerStats
}

// PrefillerStats is a snapshot, counted since NewPrefiller.
type PrefillerStats struct {
	Live       int    // jobs now
	Accepted   uint64 // jobs
	Done       uint64 // jobs whose writes all completed
	Rejected   uint64
	Bytes      uint64 // of completed writes
	Writes     uint64 // completed without error
	Unexpected uint64 // messages and events that meant nothing where they came
}

// postDepth is how many operations may be outstanding over all links: 32 links with full windows.
const postDepth = 4096

// NewPrefiller starts a Prefiller on an engine. Close ends it, before the engine is closed and the memory of the views is freed.
func NewPrefiller(eng *hawser.Engine, cfg PrefillerConfig, h Handler) (*Prefiller, error) {
	if cfg.Jobs == 0 {
		cfg.Jobs = DefaultJobs
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if err := cfg.Geometry.check(); err != nil {
		return nil, fmt.Errorf("kv: prefiller: %w", err)
	}
	if err := checkViews(cfg.Geometry, cfg.Views, 1); err != nil {
		return nil, fmt.Errorf("kv: prefiller: %w", err)
	}
	p := newPrefiller(onEngine{eng}, cfg, h)
	p.begin()
	return p, nil
}

// newPrefiller makes a Prefiller that does nothing yet, for a configuration that has been checked.
func newPrefiller(net network, cfg PrefillerConfig, h Handler) *Prefiller {
	ctx, stop := context.WithCancel(context.Background())
	idle := make(chan struct{})
	p := &Prefiller{
		net: net, cfg: cfg, handler: h, log: cfg.Log, writes: net.Writes(postDepth),
		pages: cfg.Views[0].Pages, ctx: ctx, stop: stop, idle: idle, rest: sync.OnceFunc(func() { close(idle) }),
		links: map[*hawser.Peer]*serveLink{}, importing: map[*hawser.Peer]bool{}, complained: map[*hawser.Peer]bool{},
	}
	for _, v := range cfg.Views {
		p.pages = min(p.pages, v.Pages)
	}
	return p
}

// begin starts to listen.
func (p *Prefiller) begin() {
	p.deaf = p.net.OnPeer(p.peerEvent)
	p.wg.Go(p.receive)
	p.wg.Go(p.completions)
}

// Stats returns a snapshot.
func (p *Prefiller) Stats() PrefillerStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	s.Live = p.live
	return s
}

// Close refuses new jobs, fails the live ones, waits until no write is outstanding, says goodbye to the decoders and joins all
// goroutines. When ctx ends first the error says how many jobs still have writes outstanding: the engine reads their pages
// until it is closed.
func (p *Prefiller) Close(ctx context.Context) error {
	p.mu.Lock()
	p.closing = true
	for _, l := range p.links {
		for _, j := range l.jobs {
			if j.step.state.live() {
				j.fail(CodeClosed, "prefiller closed")
			}
		}
	}
	if p.live == 0 {
		p.rest()
	}
	p.mu.Unlock()
	select {
	case <-p.idle:
	case <-ctx.Done():
	}
	p.deaf()
	p.mu.Lock()
	var err error
	if p.live > 0 {
		err = fmt.Errorf("kv: close prefiller: %d jobs: %w: writes are outstanding: %w", p.live, hawser.ErrBusy, context.Cause(ctx))
	}
	for _, l := range p.links {
		p.send(l, &bye{"prefiller closed"}) // a decoder that is not reached finds out by itself
	}
	p.stop()
	p.mu.Unlock()
	p.wg.Wait()
	return err
}

// Pass is one forward pass of the inference engine over parts of some prompts. Owned by the engine, which calls its methods from
// one goroutine.
type Pass struct {
	p      *Prefiller
	chunks []passChunk
}

type passChunk struct {
	job  *Job
	span Span
}

// Span is the tokens [First, N) of a prompt.
type Span struct{ First, N int }

// NewPass makes an empty pass.
func (p *Prefiller) NewPass() *Pass { return &Pass{p: p} }

// Add adds part of a prompt. The spans of a job follow each other from pass to pass without gaps.
func (s *Pass) Add(j *Job, span Span) { s.chunks = append(s.chunks, passChunk{j, span}) }

// Begin starts the pass: before its first layer is computed.
func (p *Prefiller) Begin(s *Pass) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range s.chunks {
		c.job.begin()
	}
}

// LayerReady says that the cache of one layer is in the source pages, for all jobs of the pass. Pages that are complete now are
// posted. late says that the layer took longer than it was meant to; it is only counted.
//
// Looking whether a job still wants its writes and submitting them are one critical section: after the answer to a Cancel
// no write can start.
func (s *Pass) LayerReady(layer int, late bool) {
	p := s.p
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range s.chunks {
		c.job.layerReady(layer, c.span.N, late)
	}
	for _, c := range s.chunks {
		p.pump(c.job.link)
	}
}
