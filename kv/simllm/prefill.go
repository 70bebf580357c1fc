package simllm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv"
)

// passTokens bounds a forward pass: prompts are computed in chunks of at most as many tokens.
const passTokens = 16384

// Prefill serves prompts on an engine until ctx ends, which is no error.
func Prefill(ctx context.Context, eng *hawser.Engine, cfg PrefillConfig) (report PrefillReport, err error) {
	cfg, err = cfg.withDefaults()
	if err != nil {
		return PrefillReport{}, fmt.Errorf("simllm: %w", err)
	}
	mem, err := newCache(eng, cfg.Geometry, cfg.Pool, 1)
	if err != nil {
		return PrefillReport{}, fmt.Errorf("simllm: prefill: %w", err)
	}
	h := &model{cfg: cfg, mem: mem, tasks: map[*kv.Job]*task{}, wake: make(chan struct{}, 1)}
	p, err := kv.NewPrefiller(eng, kv.PrefillerConfig{Geometry: cfg.Geometry, Views: mem.views, Log: cfg.Log}, h)
	if err != nil {
		return PrefillReport{}, fmt.Errorf("simllm: %w", errors.Join(err, mem.region.Close()))
	}
	var wg sync.WaitGroup
	running, stop := context.WithCancel(ctx)
	if cfg.Progress != nil {
		wg.Go(func() { every(running, progressGap, func() { cfg.Progress(h.progress(p.Stats())) }) })
	}
	h.run(running, p)
	stop()
	wg.Wait()

	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
	defer cancel()
	err = p.Close(closing)
	if err == nil {
		err = mem.region.Close()
	}
	s := p.Stats()
	report = PrefillReport{
		Jobs: int(s.Accepted), Done: int(s.Done), Stopped: int(s.Accepted - s.Done), Bytes: s.Bytes,
		LeakedPages: mem.pool.Pages() - mem.pool.Free(), Passes: h.passes, Layers: h.layers,
	}
	if h.layers > 0 {
		report.FillBound = float64(h.late) / float64(h.layers)
	}
	return report, err
}

// closeLimit bounds the end of Prefill and Decode: writes and fences take milliseconds unless a peer is stopped.
const closeLimit = 10 * time.Second

// every calls f at a distance until ctx ends.
func every(ctx context.Context, gap time.Duration, f func()) {
	tick := time.NewTicker(gap)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			f()
		case <-ctx.Done():
			return
		}
	}
}

// model is the inference engine. One goroutine runs passes; kv calls Admit and Stop from others.
type model struct {
	cfg  PrefillConfig
	mem  *cache
	wake chan struct{} // capacity 1: the queue or the pool has changed

	mu     sync.Mutex
	queue  []*task           // not computed to the end, oldest first; guarded by mu
	tasks  map[*kv.Job]*task // from Admit to Stop; guarded by mu
	passes uint64            // this and the next two are guarded by mu
	layers uint64
	late   uint64
}

// task is a job in this engine. Guarded by model.mu, but while it is in a pass its pages and done are the pass's.
type task struct {
	job     *kv.Job
	key     uint64
	pages   []uint32 // nil until there are enough
	owner   uint64   // of the pages in the pool
	done    int      // tokens that are computed
	inPass  bool
	stopped bool
}

// Admit implements kv.Handler.
func (m *model) Admit(j *kv.Job) error {
	if need, have := m.cfg.Geometry.Pages(j.Tokens()), m.mem.pool.Pages(); need > have {
		return fmt.Errorf("prompt needs %d pages, pool has %d: raise the pool or lower the maximum length", need, have)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	t := &task{job: j, key: RequestKey(j.ID())}
	m.tasks[j] = t
	m.queue = append(m.queue, t)
	m.changed()
	return nil
}

// Stop implements kv.Handler. A pass that holds the job still fills its pages; they are returned when it ends.
func (m *model) Stop(j *kv.Job) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.tasks[j]
	delete(m.tasks, j)
	t.stopped = true
	if !t.inPass {
		m.retire(t)
	}
}

// retire returns the pages of a stopped task. Needs mu.
func (m *model) retire(t *task) {
	m.queue = slices.DeleteFunc(m.queue, func(q *task) bool { return q == t })
	if err := m.mem.pool.Return(t.pages, t.owner); err != nil {
		m.cfg.Log.Error("pages are lost", "request", t.job.ID(), "err", err)
	}
	t.pages = nil
	m.changed()
}

func (m *model) changed() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

func (m *model) progress(s kv.PrefillerStats) PrefillProgress {
	m.mu.Lock()
	defer m.mu.Unlock()
	return PrefillProgress{
		Done: int(s.Done), Stopped: int(s.Accepted) - int(s.Done) - s.Live, Queued: len(m.queue),
		PagesFree: m.mem.pool.Free(), Pages: m.mem.pool.Pages(),
		Passes: m.passes, FillBound: m.late, Layers: m.layers,
	}
}

// part is the share of one task in a pass.
type part struct {
	t           *task
	span        kv.Span
	first, last int // logical pages that are complete after it and were not before
}

// run computes pass after pass until ctx ends.
func (m *model) run(ctx context.Context, p *kv.Prefiller) {
	for ctx.Err() == nil {
		parts := m.schedule()
		if len(parts) == 0 {
			select {
			case <-m.wake:
			case <-ctx.Done():
			}
			continue
		}
		m.pass(ctx, p, parts)
		m.finish(parts)
	}
}

// schedule fills a pass with the oldest prompts that have pages. A prompt without pages holds up those behind it: skipping
// it could starve it.
func (m *model) schedule() []part {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.cfg.Geometry
	var parts []part
	room := passTokens
	for _, t := range m.queue {
		if t.pages == nil {
			owner := m.passes<<16 + uint64(len(parts)) + 1 // unique: a pass never has as many parts
			pages, err := m.mem.pool.Reserve(g.Pages(t.job.Tokens()), owner)
			if err != nil {
				break
			}
			t.pages, t.owner = pages, owner
		}
		n := min(t.job.Tokens(), t.done+room)
		if n < t.job.Tokens() {
			n -= n % g.Group.PageTokens // whole pages, so that each is sent with the pass that makes it
		}
		if n <= t.done {
			break
		}
		t.inPass = true
		parts = append(parts, part{t, kv.Span{First: t.done, N: n}, t.done / g.Group.PageTokens, g.Pages(n)})
		room -= n - t.done
	}
	if len(parts) > 0 {
		m.passes++
	}
	return parts
}

// pass computes one pass: for each layer it fills the new pages and waits until the layer's time is over.
func (m *model) pass(ctx context.Context, p *kv.Prefiller, parts []part) {
	pass := p.NewPass()
	chunks := make([]chunk, 0, len(parts))
	for _, a := range parts {
		if a.span.First == 0 && a.t.job.Source(a.t.pages) != nil {
			continue // stopped since it was scheduled; finish sees that
		}
		pass.Add(a.t.job, a.span)
		chunks = append(chunks, chunk{a.span.First, a.span.N - a.span.First})
	}
	p.Begin(pass)
	var late uint64
	each := m.cfg.Layer.pass(chunks...)
	due := time.Now()
	for layer := range m.cfg.Geometry.Layers {
		for _, a := range parts {
			m.fill(a, layer)
		}
		due = due.Add(each)
		now := time.Now()
		over := now.After(due)
		if over {
			late++
			due = now
		} else {
			pause(ctx, due)
		}
		if ctx.Err() != nil {
			return
		}
		pass.LayerReady(layer, over)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.layers += uint64(m.cfg.Geometry.Layers)
	m.late += late
}

// fill writes the content of one layer's new pages.
func (m *model) fill(a part, layer int) {
	planes := m.cfg.Geometry.Group.Planes
	var polite yielder
	for page := a.first; page < a.last; page++ {
		for plane := range planes {
			Fill(m.mem.page(layer*planes+plane, a.t.pages[page]), Key{a.t.key, layer, plane, page})
			polite.did(m.mem.size)
		}
	}
}

// finish ends a pass: prompts that are computed leave the queue, stopped ones give their pages back.
func (m *model) finish(parts []part) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range parts {
		t := a.t
		t.inPass, t.done = false, a.span.N
		if t.stopped {
			m.retire(t)
		} else if t.done == t.job.Tokens() {
			m.queue = slices.DeleteFunc(m.queue, func(q *task) bool { return q == t })
		}
	}
}

const (
	// The runtime's timers are late by up to a millisecond when the process is idle (it sleeps in epoll_wait, which counts in
	// milliseconds); nanosleep is late by some 60 us. So the last part of a pause is slept there.
	coarse = 1500 * time.Microsecond
)

// pause returns at the given time, or soon after ctx ends.
func pause(ctx context.Context, until time.Time) {
	if d := time.Until(until); d > coarse {
		timer := time.NewTimer(d - coarse)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
	}
	if d := time.Until(until); d > 0 {
		ts := syscall.NsecToTimespec(int64(d))
		_ = syscall.Nanosleep(&ts, nil) // a signal ends it early, which makes one layer a little short
	}
}
