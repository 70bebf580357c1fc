package kv

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv/layout"
	"github.com/hawser-project/hawser/kv/proto"
)

// PrefillerConfig is what NewPrefiller needs. Instance, Topology, Regions and Pages are required.
type PrefillerConfig struct {
	Instance string
	Member   int              // of Topology.Members: this prefiller
	Topology *layout.Topology // of all members of the instance; must not change
	Regions  []*hawser.Region // of this member, as its views number them
	Options  layout.Options
	Pages    int           // of the inference engine's pool: decoders get shares of it as credits
	Jobs     int           // live at once; proto.DefaultJobs when 0. More are rejected as busy
	JoinWait time.Duration // how long a job waits for its other half; proto.DefaultJoinWait when 0
	Verify   bool          // send digests of what is written

	// SharedProgress: one progress word speaks for all ranks of this member. That is only right when the word is stored after a
	// collective, of this layer and over all these ranks, whose result depends on each rank's input, and when on each rank the
	// kernel that appends to the cache ended before its part of the collective began.
	SharedProgress bool

	Observer func(proto.ServeNote) // called with a lock held: it must not block or call the Prefiller; nil: none
	// Posted is told how long it took to hand what a report of progress made ready to the engine, as far as the window of a peer let it
	// through; the wait for the lock is part of it. Called as Observer is; nil: none.
	Posted func(took time.Duration)
	Log    *slog.Logger // discarded when nil
}

// Handler is the inference engine that computes the prompts. The Prefiller calls it with its lock held: the methods must not block and
// must not call the Prefiller or a Job.
type Handler interface {
	// Admit takes a job into the engine's queue, or refuses it. A job that only has to wait for pages is admitted as
	// proto.AdmitQueued; Job.Sourced follows.
	Admit(*Job) proto.Admission
	// Start says that the job may be computed.
	Start(*Job)
	// Stop ends the engine's part, exactly once for each job that was started or came of Expect: it must not be computed further.
	Stop(*Job)
	// Unpin says that nothing reads the source pages, or the tail, any more. It comes once for each source that was given, after
	// Stop or Preempt, or during them.
	Unpin(*Job)
}

// Prefiller serves the caches of prompts to Decoders. It owns the messages of its engine: nothing else may call Receive on it. Safe for
// concurrent use.
type Prefiller struct {
	station

	cfg     PrefillerConfig
	m       *proto.Prefiller
	handler Handler
	queue   *hawser.Queue

	// guarded by mu
	closing  bool
	imports  map[proto.LinkID]*imported
	jobs     map[proto.JobID]*Job
	watchers []*hawser.Watcher // by rank, nil until Progress
	src, dst []uint32          // scratch of Post
}

// imported is the memory of a decoder, by the region numbers of its views; nil entries lie in no view.
type imported struct {
	regions []*hawser.Remote
	tails   *hawser.Remote // nil: no tails on this link
	bytes   uint64         // of a slot
}

// postDepth is how many operations may be outstanding over all peers.
const postDepth = 8192

// NewPrefiller starts a Prefiller on an engine. Close ends it, before the engine is closed and the memory of the regions is freed.
func NewPrefiller(eng *hawser.Engine, cfg PrefillerConfig, h Handler) (*Prefiller, error) {
	if cfg.Topology == nil || cfg.Member < 0 || cfg.Member >= len(cfg.Topology.Members) {
		return nil, fmt.Errorf("kv: prefiller: %w: member %d of a topology without it", hawser.ErrInvalid, cfg.Member)
	}
	if err := checkRegions(&cfg.Topology.Members[cfg.Member], cfg.Regions); err != nil {
		return nil, fmt.Errorf("kv: prefiller: %w", err)
	}
	p := &Prefiller{
		station: newStation(eng, cfg.Log), cfg: cfg, handler: h, queue: eng.NewQueue(postDepth),
		imports: map[proto.LinkID]*imported{}, jobs: map[proto.JobID]*Job{}, watchers: make([]*hawser.Watcher, len(cfg.Topology.Members[cfg.Member].Ranks)),
	}
	m, err := proto.NewPrefiller(proto.PrefillerConfig{
		Instance: cfg.Instance, Member: cfg.Member, Topology: cfg.Topology, Options: cfg.Options, Pages: cfg.Pages, Jobs: cfg.Jobs,
		JoinWait: cfg.JoinWait, Verify: cfg.Verify, SharedProgress: cfg.SharedProgress, Origin: p.origin.UnixNano(), Host: hostID(),
	}, prefillerOut{p})
	if err != nil {
		p.stop()
		return nil, err
	}
	p.m = m
	p.begin(m, func(now proto.Time, n proto.Peer, _ error) { m.PeerDown(now, n) })
	p.wg.Go(p.completions)
	return p, nil
}

// completions takes the ends of writes; the machine posts more.
func (p *Prefiller) completions() {
	ends := make([]hawser.Done, 128)
	for {
		n, err := p.queue.Wait(p.ctx, ends)
		if err != nil {
			return // closing
		}
		p.mu.Lock()
		for _, e := range ends[:n] {
			p.m.Completed(p.now(), e.Cookie, e.Err)
		}
		p.unlock()
	}
}

// Expect tells of a prompt that came to this side first, and waits in the engine for its Dispatch, JoinWait at most. The engine may
// compute it meanwhile; no page is promised to anybody.
func (p *Prefiller) Expect(id string, prompt proto.Prompt) (*Job, error) {
	p.mu.Lock()
	defer p.unlock()
	n, err := p.m.Expect(p.now(), id, prompt)
	if err != nil {
		return nil, err
	}
	j := p.jobs[n]
	if j == nil {
		j = &Job{p: p, number: n, info: proto.JobInfo{Request: id, Prompt: prompt, Expected: true}, over: make(chan struct{})}
		p.jobs[n] = j
	}
	return j, nil
}

// Stats returns a snapshot.
func (p *Prefiller) Stats() proto.PrefillerStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.m.Stats()
}

// Attempts calls f for every attempt that is live.
func (p *Prefiller) Attempts(f func(proto.ServeInfo)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.m.Live(f)
}

// Links calls f for every decoder that there is a link to; name is that of its engine.
func (p *Prefiller) Links(f func(name string, i proto.LinkInfo)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.m.Links(func(i proto.LinkInfo) { f(p.peer(i.Peer).Name(), i) })
}

// FailID ends all jobs of a request and reports how many there were.
func (p *Prefiller) FailID(id, reason string) (n int) {
	p.mu.Lock()
	defer p.unlock()
	for number, j := range p.jobs {
		if j.info.Request == id && !j.stopped {
			p.m.Fail(p.now(), number, proto.CodeEngine, reason)
			n++
		}
	}
	return n
}

// Drain takes no new jobs, tells the decoders so, and waits until those that are there have ended and each decoder has said that it
// waits for nothing more from here.
func (p *Prefiller) Drain(ctx context.Context) error {
	p.mu.Lock()
	p.m.Drain(p.now())
	p.unlock()
	return p.done(ctx, "drain")
}

func (p *Prefiller) done(ctx context.Context, what string) error {
	for {
		p.mu.Lock()
		done, s := p.m.Done(), p.m.Stats()
		p.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("kv: %s prefiller: %w: %d jobs, %d links, %d writes outstanding: %w", what, hawser.ErrBusy, s.Jobs, s.Links, s.Outstanding, context.Cause(ctx))
		}
	}
}

// Close fails the live jobs, waits until no write is outstanding and the decoders know, and joins all goroutines. When ctx ends first
// the error says how many writes are still outstanding: the engine reads their pages until it is closed.
func (p *Prefiller) Close(ctx context.Context) error {
	p.mu.Lock()
	p.closing = true
	p.m.Close(p.now())
	p.unlock()
	err := p.done(ctx, "close")
	p.mu.Lock()
	watchers := p.watchers
	p.watchers = nil
	p.mu.Unlock()
	for _, w := range watchers {
		if w != nil {
			w.Close()
		}
	}
	p.end()
	return err
}

// Progress is the word by which rank (numbered within this member) tells its progress: after layer l of a pass it stores the
// pass's base + l + 1, when what the layer appended can be read by whatever carries it. The word is made at the first call.
func (p *Prefiller) Progress(rank int) (*hawser.Watcher, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closing:
		return nil, fmt.Errorf("kv: progress: prefiller: %w", hawser.ErrClosed)
	case rank < 0 || rank >= len(p.watchers):
		return nil, fmt.Errorf("kv: progress: %w: rank %d of %d", hawser.ErrInvalid, rank, len(p.watchers))
	case p.watchers[rank] != nil:
		return p.watchers[rank], nil
	}
	w, err := p.eng.Watch(func(_, word uint64) {
		began := p.now()
		p.mu.Lock()
		defer p.unlock()
		p.m.Progress(p.now(), rank, word)
		p.posted(began)
	})
	if err != nil {
		return nil, fmt.Errorf("kv: progress: %w", err)
	}
	p.watchers[rank] = w
	return w, nil
}

// Pass is one forward pass of the inference engine over parts of some prompts. Owned by the engine, which calls its methods from one
// goroutine, or one for each rank.
type Pass struct {
	p     *Prefiller
	n     proto.PassID
	spans []proto.PassSpan
}

// NewPass makes an empty pass.
func (p *Prefiller) NewPass() *Pass { return &Pass{p: p} }

// Add adds part of a prompt. The spans of a job follow each other from pass to pass without gaps.
func (s *Pass) Add(j *Job, span proto.Span) {
	s.spans = append(s.spans, proto.PassSpan{Job: j.number, Span: span})
}

// Begin says that the pass will run after those that have begun: before its first layer is computed. At most proto.MaxPasses have
// begun and not ended. base is what the pass's progress words are counted from.
func (p *Prefiller) Begin(s *Pass) (base uint64, err error) {
	p.mu.Lock()
	defer p.unlock()
	s.n, base, err = p.m.Begin(p.now(), s.spans)
	return base, err
}

// LayerReady says that the cache of a layer of the pass can be read on a rank of this member, for engines that do not use progress
// words. Layers are counted within the rank, as in a word. late says that the layer took longer than it was meant to; it is only counted.
//
// Looking whether a job still wants its writes and submitting them are one critical section: after the answer to a Cancel no write can
// start.
func (s *Pass) LayerReady(rank, layer int, late bool) {
	p := s.p
	began := p.now()
	p.mu.Lock()
	defer p.unlock()
	if late {
		p.m.LayerLate(s.n)
	}
	p.m.LayerReady(p.now(), s.n, rank, layer)
	p.posted(began)
}

// posted needs mu.
func (p *Prefiller) posted(began proto.Time) {
	if p.cfg.Posted != nil {
		p.cfg.Posted(p.now() - began)
	}
}

// End says that all layers of the pass are done on all ranks.
func (s *Pass) End() {
	s.p.mu.Lock()
	defer s.p.unlock()
	s.p.m.PassEnd(s.p.now(), s.n)
}

// Abort says that the layers of the pass that are not done will never be. Call it before the next pass is launched.
func (s *Pass) Abort() {
	s.p.mu.Lock()
	defer s.p.unlock()
	s.p.m.PassAbort(s.p.now(), s.n)
}

// Job is one request on the prefill side.
type Job struct {
	p      *Prefiller
	number proto.JobID
	info   proto.JobInfo
	over   chan struct{} // closed at Stop

	// guarded by Prefiller.mu
	tail    hawser.Slice
	stopped bool
	sources int // given and not unpinned
}

// Info is what the decoder, or Expect, said of the job. It must not be changed.
func (j *Job) Info() *proto.JobInfo { return &j.info }

// ID is the request's.
func (j *Job) ID() string { return j.info.Request }

// Done is closed when the job has been stopped.
func (j *Job) Done() <-chan struct{} { return j.over }

// Sourced gives a job that was admitted as queued its pages.
func (j *Job) Sourced(s proto.SourcePages) error {
	j.p.mu.Lock()
	defer j.p.unlock()
	if err := j.p.m.Sourced(j.p.now(), j.number, s); err != nil {
		return err
	}
	j.sources++
	return nil
}

// Tail says that the tail of the prompt, the caller's own data, is in t, which must not change until Unpin. It is sent when all pages
// have been.
func (j *Job) Tail(t hawser.Slice) error {
	j.p.mu.Lock()
	defer j.p.unlock()
	before := j.tail
	j.tail = t
	if err := j.p.m.Tail(j.p.now(), j.number); err != nil {
		j.tail = before
		return err
	}
	return nil
}

// Fail ends the job because the engine cannot compute it. The decoder gets the text.
func (j *Job) Fail(err error) {
	j.p.mu.Lock()
	defer j.p.unlock()
	j.p.m.Fail(j.p.now(), j.number, proto.CodeEngine, err.Error())
}

// Preempt takes the job's pages away: no further write begins. They may be overwritten after Unpin. The job is queued again, and
// Sourced gives it pages when it goes on. What was sent is not sent again.
func (j *Job) Preempt() {
	j.p.mu.Lock()
	defer j.p.unlock()
	j.p.m.Preempt(j.p.now(), j.number)
}
