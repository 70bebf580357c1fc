package kv

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser"
)

// chaosGeometry has pages that are so large that a window holds 8 of them. Nothing in this test has bytes.
var chaosGeometry = Geometry{"chaos", 2, Group{PageTokens: 4, KVHeads: 64, HeadDim: 1024, ElemSize: 2, Planes: 2}}

const (
	chaosPages    = 24               // of each pool
	chaosPrompt   = 40               // tokens at most
	chaosTime     = 20 * time.Second // virtual time in which faults happen
	chaosPatience = time.Minute      // virtual time in which everything must have ended once faults have
)

var viewSize = chaosPages * chaosGeometry.Group.PageBytes()

// TestChaos runs the real Decoder and Prefiller on a network that does its worst, for many seeds; see chaos for what that is, and
// for what it checks. HAWSER_CHAOS is for how long, a Go duration; HAWSER_CHAOS_SEED is the only seed to run. Equal seeds give
// similar runs, not equal ones: goroutines run in any order.
func TestChaos(t *testing.T) {
	length := 3 * time.Second
	if s := os.Getenv("HAWSER_CHAOS"); s != "" {
		var err error
		if length, err = time.ParseDuration(s); err != nil {
			t.Fatal(err)
		}
	}
	seeds, last := rand.Uint64(), uint64(1<<63)
	if s := os.Getenv("HAWSER_CHAOS_SEED"); s != "" {
		var err error
		if seeds, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
		last = 1
	}
	total := chaosResult{faults: map[string]int{}}
	start, runs := time.Now(), uint64(0)
	for ; runs < last && time.Since(start) < length && !t.Failed(); runs++ {
		seed := seeds + runs
		synctest.Test(t, func(t *testing.T) { total.add(chaosRun(t, seed)) })
		if t.Failed() {
			t.Errorf("seed %d", seed)
		}
	}
	t.Logf("%d runs: %d requests ready, %d not; %d writes; %v", runs, total.ready, total.failed, total.landed, total.faults)
	if !t.Failed() && runs > 10 && (total.ready < int(runs)*20 || total.failed < int(runs)*5) {
		t.Errorf("too few requests came to either end: this tests nothing")
	}
}

type chaosResult struct {
	ready, failed int
	landed        uint64
	faults        map[string]int
}

func (r *chaosResult) add(o chaosResult) {
	r.ready += o.ready
	r.failed += o.failed
	r.landed += o.landed
	for f, n := range o.faults {
		r.faults[f] += n
	}
}

// chaosRig is one run: two decoders and two prefillers, or those that took the place of dead ones.
type chaosRig struct {
	c        *chaos
	t        *testing.T
	seed     uint64
	births   int
	fetchers sync.WaitGroup
	engines  sync.WaitGroup
	mu       sync.Mutex // guards the rest
	result   chaosResult
	sides    []interface{ end(*testing.T) }
}

func chaosRun(t *testing.T, seed uint64) chaosResult {
	r := newChaosRig(t, seed)
	for range 2 {
		r.prefiller()
		r.decoder().fetchers()
	}
	r.strike(time.Now().Add(chaosTime))
	r.fetchers.Wait()
	r.peace()
	r.end()
	r.result.landed, r.result.faults = r.c.landed, r.c.faults
	return r.result
}

func newChaosRig(t *testing.T, seed uint64) *chaosRig {
	c := &chaos{
		t: t, rng: rand.New(rand.NewPCG(seed, 0)), hosts: map[string]*host{}, faults: map[string]int{},
		remotes: map[*hawser.Remote]chaosRemote{},
	}
	return &chaosRig{c: c, t: t, seed: seed}
}

// end closes everything and looks for what is left.
func (r *chaosRig) end() {
	for _, s := range r.sides {
		s.end(r.t)
	}
	r.engines.Wait()
}

// strike breaks sessions and kills hosts until the given time, and then lets everything come to rest.
func (r *chaosRig) strike(until time.Time) {
	c := r.c
	for time.Now().Before(until) {
		c.mu.Lock()
		wait := time.Duration(c.rng.Int64N(int64(2 * time.Second)))
		c.mu.Unlock()
		time.Sleep(wait) // virtual
		decoders, prefillers := c.living("d"), c.living("p")
		c.mu.Lock()
		d, p := decoders[c.rng.IntN(len(decoders))], prefillers[c.rng.IntN(len(prefillers))]
		born := func() {}
		switch what := c.rng.Float64(); {
		case what < 0.1:
			p.die()
			born = func() { r.prefiller() }
		case what < 0.15:
			d.die()
			born = func() { r.decoder().fetchers() }
		case what < 0.7:
			if s := d.sessions[p]; s != nil {
				s.snap([]*host{d, p}[c.rng.IntN(2)])
			}
		}
		c.mu.Unlock()
		born()
	}
	c.mu.Lock()
	c.calm = true
	c.note("calm")
	c.mu.Unlock()
}

// snap breaks a session, which is first noticed by h. Needs mu.
func (s *session) snap(h *host) {
	c := s.c
	c.note("session of %s and %s breaks", h.name, s.other(h).name)
	if c.fault("no proof", 0.3) {
		s.unproven = time.Now().Add(time.Duration(c.rng.Int64N(int64(5 * time.Second))))
	}
	s.leave(h)
}

// birth makes a host with the next name of its kind.
func (r *chaosRig) birth(kind string) (*host, []View) {
	r.births++
	h := r.c.host(fmt.Sprintf("%s%03d", kind, r.births))
	r.engines.Go(h.callbacks)
	var views []View
	for v := range chaosGeometry.Views() {
		views = append(views, View{Base: uint64(v) * viewSize, Stride: chaosGeometry.Group.PageBytes(), Pages: chaosPages})
	}
	return h, views
}

// chaosDecoder is a decoder and those who fetch with it.
type chaosDecoder struct {
	r    *chaosRig
	h    *host
	d    *Decoder
	pool *Pool
}

func (r *chaosRig) decoder() *chaosDecoder {
	h, views := r.birth("d")
	pool, err := NewPool(chaosPages, r.seed)
	if err != nil {
		r.t.Fatal(err)
	}
	h.spyOn(pool)
	d := newDecoder(h, DecoderConfig{
		Geometry: chaosGeometry, Views: views, Pool: pool, Queue: 10, Deadline: 20 * time.Second, Stall: DefaultStall, Log: h.log(),
	})
	d.partExtents = 4 // so that a Dispatch may have parts
	d.begin()
	s := &chaosDecoder{r, h, d, pool}
	r.mu.Lock()
	r.sides = append(r.sides, s)
	r.mu.Unlock()
	return s
}

// fetchers starts those who fetch.
func (s *chaosDecoder) fetchers() {
	for i := range uint64(4) {
		rng := rand.New(rand.NewPCG(s.r.seed, uint64(s.r.births)<<8+i))
		s.r.fetchers.Go(func() { s.fetcher(rng) })
	}
}

// fetcher fetches one prompt after the other until the network is calm, or its host is dead.
func (s *chaosDecoder) fetcher(rng *rand.Rand) {
	for n := 0; ; n++ {
		prefillers := s.r.c.living("p")
		s.r.c.mu.Lock()
		end := s.r.c.calm || s.h.dead
		s.r.c.mu.Unlock()
		if end {
			return
		}
		ctx, cancel := context.WithCancelCause(context.Background())
		if rng.IntN(2) == 0 {
			time.AfterFunc(time.Duration(rng.ExpFloat64()*float64(30*time.Millisecond)), func() { cancel(errors.New("changed its mind")) })
		}
		s.one(ctx, prefillers[rng.IntN(len(prefillers))], fmt.Sprintf("r%d", n), 1+rng.IntN(chaosPrompt), time.Duration(rng.Int64N(int64(50*time.Millisecond))))
		cancel(nil)
	}
}

// one fetches a prompt, and holds its pages for a while if it becomes ready.
func (s *chaosDecoder) one(ctx context.Context, from *host, id string, tokens int, hold time.Duration) error {
	p, err := s.d.Fetch(ctx, FetchRequest{ID: id, Tokens: tokens, From: from.name})
	if err != nil {
		time.Sleep(time.Millisecond) // virtual
		return err
	}
	long, cancel := context.WithTimeout(context.Background(), chaosPatience)
	defer cancel()
	res, err := p.Wait(long)
	if long.Err() != nil {
		s.r.c.mu.Lock()
		defer s.r.c.mu.Unlock()
		s.r.c.broken("%s: request %s has no answer after %v", s.h.name, id, chaosPatience)
		return err
	}
	s.r.count(err)
	if err != nil {
		s.judge(err)
		select {
		case <-p.Quiesced():
		case <-s.h.gone:
		case <-long.Done():
			s.r.c.mu.Lock()
			defer s.r.c.mu.Unlock()
			s.r.c.broken("%s: pages of request %s are not reusable after %v", s.h.name, id, chaosPatience)
		}
		return err
	}
	s.h.check(res.a.seq, res.Pages, chaosGeometry.Views())
	time.Sleep(hold) // virtual
	s.h.check(res.a.seq, res.Pages, chaosGeometry.Views())
	res.Release()
	return nil
}

// judge looks whether an attempt failed although everything was there when its fence had its proof.
func (s *chaosDecoder) judge(err error) {
	var a *AttemptError
	if !errors.As(err, &a) || !errors.Is(err, hawser.ErrPeerDown) {
		return
	}
	s.r.c.mu.Lock()
	defer s.r.c.mu.Unlock()
	if s.h.final[a.Attempt] == a.Expected && !s.h.doubt[a.Attempt] {
		s.r.c.broken("%s: everything of attempt %d was there after the fence, and it failed: %v", s.h.name, a.Attempt, err)
	}
}

func (r *chaosRig) count(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		r.result.ready++
	} else {
		r.result.failed++
	}
}

// peace: nothing may have been broken for good.
func (r *chaosRig) peace() {
	time.Sleep(chaosPatience / 2) // virtual: what the faults left behind ends
	defer time.Sleep(chaosPatience / 2)
	for _, s := range r.sides {
		if s, ok := s.(*chaosDecoder); ok && !s.h.dead {
			for _, p := range r.c.living("p") {
				if err := s.one(context.Background(), p, "peace", chaosPrompt, 0); err != nil {
					r.c.mu.Lock()
					r.c.broken("%s cannot fetch from %s when nothing goes wrong: %v", s.h.name, p.name, err)
					r.c.mu.Unlock()
				}
			}
		}
	}
}

// end closes the decoder and looks for what it left behind.
func (s *chaosDecoder) end(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), chaosPatience)
	defer cancel()
	if s.h.dead {
		cancel()
		_ = s.d.Close(ctx)
		return
	}
	if err := s.d.Close(ctx); err != nil {
		t.Error(err)
	}
	d := s.d
	if free := s.pool.Free(); free != chaosPages || len(d.attempts)+len(d.queue)+len(d.fences)+d.writing+d.quarantined != 0 {
		t.Errorf("%s: %d pages free, %d attempts, %d waiting, %d fences, %d writing, %d quarantined; want all pages free and nothing else",
			s.h.name, free, len(d.attempts), len(d.queue), len(d.fences), d.writing, d.quarantined)
	}
	if n := len(s.h.counts); n != 0 {
		t.Errorf("%s: %d counters left", s.h.name, n)
	}
	s.h.c.mu.Lock()
	defer s.h.c.mu.Unlock()
	s.h.die()
}

// chaosPrefiller is a prefiller and its inference engine, which computes each job in a goroutine of its own.
type chaosPrefiller struct {
	r    *chaosRig
	h    *host
	p    *Prefiller
	pool *Pool

	slow time.Duration // of a layer, beside chance; set before use

	mu   sync.Mutex
	jobs map[*Job]*bool // whether it has been stopped; guarded by mu
	work sync.WaitGroup
}

func (r *chaosRig) prefiller() *chaosPrefiller {
	h, views := r.birth("p")
	pool, err := NewPool(chaosPages, r.seed)
	if err != nil {
		r.t.Fatal(err)
	}
	s := &chaosPrefiller{r: r, h: h, pool: pool, jobs: map[*Job]*bool{}}
	s.p = newPrefiller(h, PrefillerConfig{Geometry: chaosGeometry, Views: views, Jobs: 5, Log: h.log()}, s)
	h.p = s.p
	s.p.begin()
	r.mu.Lock()
	r.sides = append(r.sides, s)
	r.mu.Unlock()
	return s
}

func (s *chaosPrefiller) Admit(j *Job) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	stopped := new(bool)
	s.jobs[j] = stopped
	s.work.Go(func() { s.compute(j, stopped) })
	return nil
}

// Stop looks whether the engine still reads the pages of the job.
func (s *chaosPrefiller) Stop(j *Job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.h.c.mu.Lock()
	for x := range s.h.writes {
		if !s.h.dead && s.p.posts[x.cookie].job == j {
			s.h.c.broken("%s: attempt %d is stopped and its pages are still read", s.h.name, j.seq)
		}
	}
	s.h.c.mu.Unlock()
	stopped, ok := s.jobs[j]
	if !ok {
		panic("stopped twice, or never admitted")
	}
	delete(s.jobs, j)
	*stopped = true
}

func (s *chaosPrefiller) compute(j *Job, stopped *bool) {
	ended := func() bool {
		s.h.c.mu.Lock()
		d := s.h.c.delay()
		s.h.c.mu.Unlock()
		time.Sleep(d) // virtual
		select {
		case <-s.h.gone:
			return true
		default:
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		return *stopped
	}
	var pages []uint32
	for pages == nil {
		if ended() {
			return
		}
		pages, _ = s.pool.Reserve(chaosGeometry.Pages(j.Tokens()), j.link.epoch<<32+j.seq)
	}
	defer func() {
		for !ended() { // nobody else may have them as long as they are read
		}
		if err := s.pool.Return(pages, j.link.epoch<<32+j.seq); err != nil {
			panic(err)
		}
	}()
	if j.Source(pages) != nil {
		return // stopped
	}
	const chunk = 16
	for first := 0; first < j.Tokens(); first += chunk {
		pass := s.p.NewPass()
		pass.Add(j, Span{first, min(j.Tokens(), first+chunk)})
		s.p.Begin(pass)
		for layer := range chaosGeometry.Layers {
			if time.Sleep(s.slow); ended() { // virtual
				return
			}
			s.r.c.mu.Lock()
			fails := s.r.c.fault("engine fails", 0.01)
			s.r.c.mu.Unlock()
			if fails {
				j.Fail(errors.New("out of luck"))
			}
			pass.LayerReady(layer, false)
		}
	}
}

// end closes the prefiller and looks for what it left behind.
func (s *chaosPrefiller) end(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), chaosPatience)
	defer cancel()
	if s.h.dead {
		cancel()
		_ = s.p.Close(ctx)
		s.work.Wait()
		return
	}
	if err := s.p.Close(ctx); err != nil {
		t.Error(err)
	}
	s.work.Wait()
	p := s.p
	for _, l := range p.links {
		for seq, j := range l.jobs {
			if seq < l.lowWater {
				t.Errorf("%s: attempt %d, %v, is remembered, the decoder has forgotten those below %d", s.h.name, seq, j.step.state, l.lowWater)
			}
		}
	}
	if free := s.pool.Free(); free != chaosPages || p.live+len(s.jobs)+len(p.importing) != 0 || len(p.freePosts) != len(p.posts) {
		t.Errorf("%s: %d pages free, %d jobs live, %d with the engine, %d imports, %d of %d posts free; want all free and nothing else",
			s.h.name, free, p.live, len(s.jobs), len(p.importing), len(p.freePosts), len(p.posts))
	}
	s.h.c.mu.Lock()
	defer s.h.c.mu.Unlock()
	s.h.die()
}
