package simllm

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
	"github.com/hawser-project/hawser/kv/pool"
)

// PassTokens bounds a forward pass: longer prompts are computed in chunks, shorter ones share a pass.
const PassTokens = 16384

// Job is a prompt that somebody waits for, as the engine sees it. The engine calls Sourced, Preempt and Computed from Run, without
// a lock. A call may cross Stop, and then must do no harm.
type Job interface {
	ID() string
	Tokens() []uint32 // what is to be computed, at least one; they do not change
	Priority() int    // higher ones are first
	NeedsLast() bool  // the last token is computed even if its page is cached: a tail is wanted
	// Sourced gives the job its pages when Admit had none, or again after Preempt. An error means that the job has ended and Unpin
	// will not come.
	Sourced(Source) error
	// Preempt takes the pages of the job's source away. Engine.Unpin says when nobody reads them any more, perhaps before Preempt
	// returns.
	Preempt()
	// Computed is called once, after the last pass of the job.
	Computed(*Content)
}

// Source is where the cache of a job's prompt lies. Pages are nil when the job waits for them.
type Source struct {
	Pages  []uint32 // by logical page of the prompt; they do not change until Unpin
	Cached int      // tokens that are there already
}

// Part is the share of one job in a pass.
type Part struct {
	Job  Job
	Span Span // the new tokens
}

// Transfer is the prefiller of the KV transfer, told of what is computed.
type Transfer interface {
	// Begin is called before a pass runs; parts are not kept. An error ends Run.
	Begin(parts []Part) (Pass, error)
}

// Pass is a pass that runs. LayerReady is not called where Config.Word is set.
type Pass interface {
	Base() uint64 // of the progress words
	// LayerReady: the new tokens of a layer of the model are in the pages of a rank. late: their content took longer than the
	// layer's time.
	LayerReady(rank, layer int, late bool)
	End()
	Abort()
}

// Config of New. Pool, PageTokens, Layers and Layer are required.
type Config struct {
	Pool        *pool.Pool
	PageTokens  int
	Layers      int
	Layer       LayerTime
	Fingerprint string // of the content
	Rows        []Rows // where the content goes: all ranks, layers and planes; nil: none is made
	Ranks       []RankLayers
	PassTokens  int // PassTokens when 0
	// PreemptEvery preempts a job of every so many passes as if pages were short; 0: only when they are.
	PreemptEvery int
	// Word stores a rank's progress word; nil: Pass.LayerReady is called instead.
	Word func(rank int, value uint64)
	// Observe is called after each layer; parts are not kept, late means that the content took longer than the layer's time.
	Observe func(parts []Part, layer int, at time.Time, late bool)
	Log     *slog.Logger // discarded when nil
}

// RankLayers is a rank and its layers [First, N) of the model.
type RankLayers struct{ Rank, First, N int }

// Engine is an inference engine that computes nothing: it takes the time that computing would take and fills the cache with
// content that can be checked. It schedules as real ones do: passes of chunks of several prompts, the most important and oldest
// first; a prefix cache; preemption when pages are short. The other methods may be called while Run runs, and do not block.
type Engine struct {
	cfg   Config
	rows  [][]Rows       // by layer
	ranks [][]RankLayers // by layer
	wake  chan struct{}  // capacity 1: the queue or the pool has changed
	pause func(ctx context.Context, until time.Time)

	mu     sync.Mutex // guards the rest
	queue  []*task    // not computed to the end, the most important and oldest first
	tasks  map[Job]*task
	orders uint64
	forced *task // to be preempted, see Config.PreemptEvery
	stats  Stats
}

// task is a job in the engine. While it is busy its pages and done are Run's, otherwise mu guards them, as all the rest.
type task struct {
	job     Job
	order   uint64
	tokens  []uint32
	hashes  []pool.Hash
	content *Content // Run's, made when it is needed: a long prompt takes a millisecond
	prefix  pool.Prefix
	lease   pool.Lease
	pages   []uint32 // prefix and lease; nil while it waits for them
	done    int      // tokens that are computed
	writing bool     // the pool knows of a writer of the lease

	// The pages are given back when it is stopped or preempted, and neither busy nor pinned.
	busy      bool // in a pass
	pinned    bool // the job has a source, of which Unpin has not come
	preempted bool // and has its pages still
	stopped   bool
}

func (t *task) computed() bool { return t.pages != nil && t.done == len(t.tokens) }

// Stats of an Engine. The sums grow over its life.
type Stats struct {
	Queued    int    // jobs that are not computed to the end
	Waiting   int    // of these, without pages
	Jobs      uint64 // admitted
	Tokens    uint64 // computed
	Cached    uint64 // tokens found in the prefix cache
	Preempted uint64
	Passes    uint64
	Layers    uint64 // layers of all passes
	FillBound uint64 // of these, those whose content took longer than their time
}

// New makes an engine. It owns nothing: the pool and the memory of Config.Rows are the caller's.
func New(cfg Config) (*Engine, error) {
	if cfg.PassTokens == 0 {
		cfg.PassTokens = PassTokens
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Pool == nil || cfg.PageTokens < 1 || cfg.Layers < 1 || cfg.PassTokens < cfg.PageTokens || cfg.PreemptEvery < 0 {
		return nil, fmt.Errorf("simllm: %w: pages of %d tokens, %d layers, passes of %d tokens: want a pool, and passes of at least a page",
			hawser.ErrInvalid, cfg.PageTokens, cfg.Layers, cfg.PassTokens)
	}
	if err := cfg.Layer.check(); err != nil {
		return nil, fmt.Errorf("simllm: %w", err)
	}
	e := &Engine{
		cfg: cfg, rows: make([][]Rows, cfg.Layers), ranks: make([][]RankLayers, cfg.Layers),
		wake: make(chan struct{}, 1), pause: pause, tasks: map[Job]*task{},
	}
	for _, r := range cfg.Rows {
		if r.Layer < 0 || r.Layer >= cfg.Layers || r.PageTokens != cfg.PageTokens {
			return nil, fmt.Errorf("simllm: %w: rows of layer %d with pages of %d tokens, the cache has %d layers and pages of %d",
				hawser.ErrInvalid, r.Layer, r.PageTokens, cfg.Layers, cfg.PageTokens)
		}
		e.rows[r.Layer] = append(e.rows[r.Layer], r)
	}
	for _, r := range cfg.Ranks {
		for l := max(0, r.First); l < min(r.N, cfg.Layers); l++ {
			e.ranks[l] = append(e.ranks[l], r)
		}
	}
	return e, nil
}

// Admit takes a job, which Start lets begin. It has its pages at once when there are some and nobody waits for them; otherwise
// Job.Sourced is called later. The error is ErrLimit for a prompt that the pool can never hold.
func (e *Engine) Admit(j Job) (Source, error) {
	tokens := j.Tokens()
	if need := e.pagesOf(len(tokens)); need > e.cfg.Pool.Pages() || need == 0 {
		return Source{}, fmt.Errorf("request %s: prompt needs %d pages, pool has %d: %w: raise the pool or lower the maximum length",
			j.ID(), need, e.cfg.Pool.Pages(), hawser.ErrLimit)
	}
	t := &task{job: j, tokens: tokens, hashes: pool.Hashes(pool.Hash{}, tokens, e.cfg.PageTokens)}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.tasks[j] != nil {
		return Source{}, fmt.Errorf("request %s: %w: admitted twice", j.ID(), hawser.ErrInvalid)
	}
	e.orders++
	t.order = e.orders
	e.tasks[j] = t
	e.stats.Jobs++
	if slices.ContainsFunc(e.queue, func(q *task) bool { return q.pages == nil }) || !e.place(t) {
		return Source{}, nil
	}
	t.pinned = !own(j)
	return t.source(), nil
}

// Start lets Run begin with an admitted job. One that was stopped meanwhile is ignored.
func (e *Engine) Start(j Job) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if t := e.tasks[j]; t != nil && !t.stopped && !slices.Contains(e.queue, t) {
		at, _ := slices.BinarySearchFunc(e.queue, t, compareTasks)
		e.queue = slices.Insert(e.queue, at, t)
		e.changed()
	}
}

func (t *task) source() Source { return Source{Pages: t.pages, Cached: t.done} }

// compareTasks orders the queue.
func compareTasks(a, b *task) int {
	return cmp.Or(cmp.Compare(b.job.Priority(), a.job.Priority()), cmp.Compare(a.order, b.order))
}

func (e *Engine) pagesOf(tokens int) int { return (tokens + e.cfg.PageTokens - 1) / e.cfg.PageTokens }

// place gives a task its pages: those of the prefix cache that hold its beginning, and new ones. Needs mu.
func (e *Engine) place(t *task) bool {
	known := t.hashes
	if t.job.NeedsLast() {
		known = known[:(len(t.tokens)-1)/e.cfg.PageTokens]
	}
	x := e.cfg.Pool.Lookup(known)
	l, err := e.cfg.Pool.Reserve(e.pagesOf(len(t.tokens)) - len(x.Pages))
	if err != nil {
		e.check(t, e.cfg.Pool.Unpin(x))
		return false
	}
	e.check(t, e.cfg.Pool.Hold(l, pool.OwnerWriter))
	t.prefix, t.lease = x, l
	t.pages = slices.Concat(x.Pages, l.Pages)
	t.done = len(x.Pages) * e.cfg.PageTokens
	t.writing = true
	e.stats.Cached += uint64(t.done)
	return true
}

// unplace gives the pages back. What is computed stays in the prefix cache. Nobody may read or write the pages. Needs mu.
func (e *Engine) unplace(t *task) {
	if t.pages == nil {
		return
	}
	if t.writing {
		e.publish(t)
	}
	e.check(t, errors.Join(e.cfg.Pool.Drop(t.lease, pool.OwnerRequest), e.cfg.Pool.Unpin(t.prefix)))
	t.pages, t.lease, t.prefix, t.done = nil, pool.Lease{}, pool.Prefix{}, 0
}

// publish lets others find what is computed; nothing more is written. Needs mu.
func (e *Engine) publish(t *task) {
	t.writing = false
	full := t.hashes[len(t.prefix.Pages):max(len(t.prefix.Pages), t.done/e.cfg.PageTokens)]
	e.check(t, errors.Join(e.cfg.Pool.Drop(t.lease, pool.OwnerWriter), e.cfg.Pool.Publish(t.lease, full)))
}

// check reports what cannot happen: the pool refuses a lease that it gave.
func (e *Engine) check(t *task, err error) {
	if err != nil {
		e.cfg.Log.Error("pages are lost", "request", t.job.ID(), "err", err)
	}
}

// Stop ends a job: it is computed no further than the pass that runs. Its pages come back when that ends, and after Unpin if it
// has a source. A job that was not admitted is ignored.
func (e *Engine) Stop(j Job) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if t := e.tasks[j]; t != nil {
		t.stopped = true
		e.dequeue(t)
		e.settle(t)
	}
}

// Unpin says that nobody reads a job's source any more. It comes once for each source, after Stop or Job.Preempt or during them.
func (e *Engine) Unpin(j Job) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if t := e.tasks[j]; t != nil {
		t.pinned = false
		e.settle(t)
	}
}

// settle gives the pages of a stopped or preempted task back when it is time. Needs mu.
func (e *Engine) settle(t *task) {
	if t.busy || t.pinned || !t.stopped && !t.preempted {
		return
	}
	e.unplace(t)
	t.preempted = false
	if t.stopped {
		delete(e.tasks, t.job)
	}
	e.changed()
}

func (e *Engine) dequeue(t *task) {
	e.queue = slices.DeleteFunc(e.queue, func(q *task) bool { return q == t })
}

func (e *Engine) changed() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// Stats returns a snapshot.
func (e *Engine) Stats() Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.stats
	s.Queued = len(e.queue)
	for _, t := range e.queue {
		if t.pages == nil {
			s.Waiting++
		}
	}
	return s
}
