package simllm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv"
	"github.com/hawser-project/hawser/kv/layout"
	"github.com/hawser-project/hawser/kv/pool"
	"github.com/hawser-project/hawser/kv/proto"
)

// PrefillConfig is what NewPrefiller needs. Shape is required, the rest has defaults.
type PrefillConfig struct {
	Shape Shape
	Name  string    // of the instance; "prefill" when empty
	Layer LayerTime // compute time per layer; DefaultLayerTime when zero
	// Calls makes it tell that a layer is ready by calls, not by progress words.
	Calls  bool
	Verify bool         // send digests
	Log    *slog.Logger // discarded when nil

	// Observe sees what the protocol does, with a lock held: it must not block. nil is allowed.
	Observe func(proto.ServeNote)
	// Layers is told of each layer that is computed. Parts are not kept. nil is allowed.
	Layers func(parts []Part, layer int, begun, at time.Time, late bool)
	// Progress is called about twice a second, on a goroutine of its own; nil is allowed.
	Progress func(PrefillProgress)
}

// PrefillProgress is a snapshot of a running Prefiller.
type PrefillProgress struct {
	Engine Stats
	Served proto.PrefillerStats
	Pool   pool.Counts
}

// PrefillReport is what Prefiller.Run returns.
type PrefillReport struct {
	Attempts    uint64  `json:"attempts"` // dispatched and accepted
	Done        uint64  `json:"done"`     // everything posted and completed
	Stopped     uint64  `json:"stopped"`
	Bytes       uint64  `json:"bytes"` // posted and completed
	LeakedPages int     `json:"leaked_pages"`
	Drained     bool    `json:"drained"`          // it ended because of Drain
	Tokens      uint64  `json:"tokens"`           // computed
	Cached      uint64  `json:"cached_tokens"`    // found in the prefix cache
	Preempted   uint64  `json:"preempted"`        // jobs that had to give their pages to others
	Passes      uint64  `json:"passes"`           // forward passes
	Layers      uint64  `json:"layers"`           // layers computed over all passes
	FillBound   float64 `json:"fill_bound_share"` // share of the layers whose content took longer than their time
}

// Prefiller is a prefill instance of one member.
type Prefiller struct {
	cfg    PrefillConfig
	mem    *memory
	engine *Engine
	kv     *kv.Prefiller
	words  []*hawser.Watcher // by rank
	drain  chan struct{}     // closed by Drain
	once   sync.Once
	begun  time.Time // of the layer that is computed; the engine's Run's

	mu    sync.Mutex // guards the rest
	jobs  map[*kv.Job]*served
	slots []uint32 // of tails, that are free
	post  Histogram
}

// served is a job of kv as the engine sees it.
type served struct {
	p *Prefiller
	j *kv.Job

	// guarded by Prefiller.mu
	slot    int // of the tail, -1: none
	pinned  bool
	stopped bool
}

// NewPrefiller makes an instance on an engine. Run serves, and takes everything down.
func NewPrefiller(eng *hawser.Engine, cfg PrefillConfig) (*Prefiller, error) {
	if cfg.Layer == (LayerTime{}) {
		cfg.Layer = DefaultLayerTime(cfg.Shape.Model.Name)
	}
	if cfg.Name == "" {
		cfg.Name = "prefill"
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if err := cfg.Layer.check(); err != nil {
		return nil, fmt.Errorf("simllm: %w", err)
	}
	const tails = 2 * proto.DefaultJobs // a job that has ended may have a tail under way
	mem, err := newMemory(eng, cfg.Shape, tails, 1)
	if err != nil {
		return nil, fmt.Errorf("simllm: prefill: %w", err)
	}
	p := &Prefiller{
		cfg: cfg, mem: mem, post: Histogram{Help: "Report of progress to its writes being posted, as far as the window of a peer lets them."}, jobs: map[*kv.Job]*served{}, drain: make(chan struct{}),
	}
	for i := range tails {
		p.slots = append(p.slots, uint32(i))
	}
	if err := p.start(eng); err != nil {
		return nil, fmt.Errorf("simllm: prefill: %w", errors.Join(err, mem.close()))
	}
	return p, nil
}

func (p *Prefiller) start(eng *hawser.Engine) (err error) {
	g := &p.mem.geometry
	c := Config{
		Pool: p.mem.pool, PageTokens: g.Groups[0].PageTokens, Layers: g.Layers, Layer: p.cfg.Layer, Fingerprint: g.Fingerprint,
		Rows: p.mem.rows, Log: p.cfg.Log, Observe: p.observe,
	}
	for i := range g.Ranks {
		c.Ranks = append(c.Ranks, RankLayers{i, g.Ranks[i].LayerFirst, g.Ranks[i].LayerFirst + g.Ranks[i].Layers})
	}
	if !p.cfg.Calls {
		c.Word = func(rank int, value uint64) {
			p.words[rank].Word().Store(value)
			p.words[rank].Kick()
		}
	}
	if p.engine, err = New(c); err != nil {
		return err
	}
	p.kv, err = kv.NewPrefiller(eng, kv.PrefillerConfig{
		Instance: p.cfg.Name, Topology: p.mem.topology(), Regions: p.mem.regions, Pages: p.mem.pool.Pages(), Verify: p.cfg.Verify,
		Observer: p.cfg.Observe, Posted: p.posted, Log: p.cfg.Log,
	}, handler{p})
	if err != nil || p.cfg.Calls {
		return err
	}
	for rank := range g.Ranks {
		w, err := p.kv.Progress(rank)
		if err != nil {
			return errors.Join(err, p.close(context.Background()))
		}
		p.words = append(p.words, w)
	}
	return nil
}

// posted is called by kv, with its lock held.
func (p *Prefiller) posted(took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.post.add(took)
}

// observe is called by the engine's Run.
func (p *Prefiller) observe(parts []Part, layer int, at time.Time, late bool) {
	if p.cfg.Layers != nil {
		p.cfg.Layers(parts, layer, p.begun, at, late)
	}
	p.begun = at
}

// closeLimit bounds the end of a Prefiller and a Decoder: writes and fences take milliseconds unless a peer is stopped.
const closeLimit = 10 * time.Second

func (p *Prefiller) close(ctx context.Context) error {
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
	defer cancel()
	return p.kv.Close(closing)
}

// Run serves until ctx ends, which is no error, or until all is drained after Drain. Then it closes everything but the engine.
func (p *Prefiller) Run(ctx context.Context) (PrefillReport, error) {
	var wg sync.WaitGroup
	running, stop := context.WithCancel(ctx)
	defer stop()
	if p.cfg.Progress != nil {
		wg.Go(func() { every(running, progressGap, func() { p.cfg.Progress(p.Progress()) }) })
	}
	wg.Go(func() {
		select {
		case <-p.drain:
			if p.kv.Drain(running) == nil {
				stop()
			}
		case <-running.Done():
		}
	})
	err := p.engine.Run(running, transfer{p})
	stop()
	wg.Wait()
	err = errors.Join(err, p.close(ctx))
	s, e := p.kv.Stats(), p.engine.Stats()
	r := PrefillReport{
		Attempts: s.Accepted, Done: s.Done, Stopped: s.Accepted - s.Done, Bytes: s.Bytes, Tokens: e.Tokens, Cached: e.Cached,
		Preempted: e.Preempted, Passes: e.Passes, Layers: e.Layers,
	}
	if e.Layers > 0 {
		r.FillBound = float64(e.FillBound) / float64(e.Layers)
	}
	r.LeakedPages, _ = p.mem.held()
	r.Drained = p.Draining()
	if err == nil {
		err = p.mem.close()
	}
	return r, err
}

// Progress returns a snapshot.
func (p *Prefiller) Progress() PrefillProgress {
	return PrefillProgress{Engine: p.engine.Stats(), Served: p.kv.Stats(), Pool: p.mem.pool.Counts()}
}

// Attempts calls f for every attempt that is live.
func (p *Prefiller) Attempts(f func(proto.ServeInfo)) { p.kv.Attempts(f) }

// Links calls f for every decoder that there is a link to, by the name of its engine.
func (p *Prefiller) Links(f func(name string, i proto.LinkInfo)) { p.kv.Links(f) }

// Cancel ends all jobs of a request and reports how many there were.
func (p *Prefiller) Cancel(id, reason string) int { return p.kv.FailID(id, reason) }

// Drain takes no new jobs and waits until those that are there have ended; then Run ends, also when ctx ends first.
func (p *Prefiller) Drain(ctx context.Context) error {
	p.once.Do(func() { close(p.drain) })
	return p.kv.Drain(ctx)
}

// Draining reports whether Drain was called.
func (p *Prefiller) Draining() bool {
	select {
	case <-p.drain:
		return true
	default:
		return false
	}
}

// handler is what kv calls, with its lock held.
type handler struct{ *Prefiller }

func (p handler) Admit(j *kv.Job) proto.Admission {
	info := j.Info()
	if len(info.Prompt.IDs) == 0 {
		return proto.Admission{Verdict: proto.AdmitRefused, Code: proto.CodeInfeasible, Text: "the prompt came without its tokens"}
	}
	s := &served{p: p.Prefiller, j: j, slot: -1}
	source, err := p.engine.Admit(s)
	if err != nil {
		return proto.Admission{Verdict: proto.AdmitRefused, Code: proto.CodeInfeasible, Text: err.Error()}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.jobs[j] = s
	if s.pinned = source.Pages != nil; !s.pinned {
		return proto.Admission{Verdict: proto.AdmitQueued}
	}
	return proto.Admission{Verdict: proto.AdmitReady, Source: source.pages()}
}

func (s Source) pages() proto.SourcePages {
	return proto.SourcePages{Pages: []layout.Pages{{Index: s.Pages}}, Cached: s.Cached}
}

func (p handler) Start(j *kv.Job) { p.engine.Start(p.job(j)) }

func (p handler) Stop(j *kv.Job) {
	s := p.job(j)
	p.mu.Lock()
	s.stopped = true
	p.forget(s)
	p.mu.Unlock()
	p.engine.Stop(s)
}

// Unpin also gives the tail's slot back: nobody reads it any more.
func (p handler) Unpin(j *kv.Job) {
	s := p.job(j)
	p.mu.Lock()
	s.pinned = false
	if s.slot >= 0 {
		p.slots = append(p.slots, uint32(s.slot))
		s.slot = -1
	}
	p.forget(s)
	p.mu.Unlock()
	p.engine.Unpin(s)
}

func (p *Prefiller) job(j *kv.Job) *served {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.jobs[j]
}

// forget drops a job of which kv speaks no more. Needs mu.
func (p *Prefiller) forget(s *served) {
	if s.stopped && !s.pinned {
		delete(p.jobs, s.j)
	}
}

// The methods of a Job. The engine calls them without a lock.

func (s *served) ID() string       { return s.j.ID() }
func (s *served) Tokens() []uint32 { return s.j.Info().Prompt.IDs }
func (s *served) Priority() int    { return int(s.j.Info().Priority) }
func (s *served) NeedsLast() bool  { return s.j.Info().Tail }
func (s *served) Preempt()         { s.j.Preempt() }

func (s *served) Sourced(source Source) error {
	s.setPinned(true)
	err := s.j.Sourced(source.pages())
	if err != nil {
		s.setPinned(false)
	}
	return err
}

func (s *served) setPinned(pinned bool) {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	s.pinned = pinned
	if !pinned {
		s.p.forget(s)
	}
}

// Computed makes the tail.
func (s *served) Computed(c *Content) {
	if !s.NeedsLast() {
		return
	}
	slot, err := s.takeSlot()
	if err != nil {
		s.j.Fail(err)
		return
	}
	tail := s.p.mem.tails.Slice(uint64(slot)*tailBytes, tailBytes)
	c.FillTail(s.p.mem.tails.Bytes()[tail.Off : tail.Off+tail.Len])
	if err := s.j.Tail(tail); err != nil && !errors.Is(err, hawser.ErrClosed) {
		s.j.Fail(err)
	}
}

// takeSlot takes a slot for the tail until Unpin.
func (s *served) takeSlot() (int, error) {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	n := len(s.p.slots)
	switch {
	case !s.pinned:
		return 0, fmt.Errorf("tail: %w: the job has no pages", hawser.ErrClosed)
	case n == 0:
		return 0, fmt.Errorf("tail: %w: all %d slots are in use", hawser.ErrLimit, 2*proto.DefaultJobs)
	}
	s.slot = int(s.p.slots[n-1])
	s.p.slots = s.p.slots[:n-1]
	return s.slot, nil
}

// transfer tells kv of the passes.
type transfer struct{ *Prefiller }

func (t transfer) Begin(parts []Part) (Pass, error) {
	t.begun = time.Now()
	p := running{Pass: t.kv.NewPass(), ranks: t.mem.geometry.Ranks, words: !t.cfg.Calls}
	for _, a := range parts {
		if s, ok := a.Job.(*served); ok {
			p.Add(s.j, proto.Span(a.Span))
		}
	}
	for {
		var err error
		if p.base, err = t.kv.Begin(p.Pass); !errors.Is(err, hawser.ErrBusy) {
			return p, err
		}
		time.Sleep(time.Millisecond) // who looks at the words is behind
	}
}

// running is a pass of kv.
type running struct {
	*kv.Pass

	base  uint64
	ranks []layout.Rank
	words bool
}

func (p running) Base() uint64 { return p.base }

func (p running) LayerReady(rank, layer int, late bool) {
	p.Pass.LayerReady(rank, layer-p.ranks[rank].LayerFirst, late)
}

// End says nothing where the words have said it.
func (p running) End() {
	if !p.words {
		p.Pass.End()
	}
}
