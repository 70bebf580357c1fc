package simllm

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// randomJob checks that its pages hold its content from the moment the engine says so until it stops.
type randomJob struct {
	testJob
	rows     []Rows
	mu       sync.Mutex // guards source of testJob and the rest
	computed int
	stopped  bool
	done     chan struct{}
}

// check looks at what the job may read.
func (j *randomJob) check() {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, r := range j.rows {
		if v := NewContent("model", j.tokens).Check(r, j.source.Pages, Span{0, j.computed}, 1); v.Wrong != 0 {
			j.rig.t.Errorf("%s: %d of %d computed tokens: %+v", j.id, j.computed, len(j.tokens), v)
		}
	}
}

func (j *randomJob) Sourced(s Source) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.stopped {
		return errors.New("ended")
	}
	j.source, j.computed = s, s.Cached
	return nil
}

// Preempt lets the writes that read the pages end.
func (j *randomJob) Preempt() {
	j.check()
	time.AfterFunc(time.Millisecond, j.unpin)
}

// unpin ends the source, if there is one, once.
func (j *randomJob) unpin() {
	j.check()
	j.mu.Lock()
	had := j.source.Pages != nil
	j.source, j.computed = Source{}, 0
	j.mu.Unlock()
	if had {
		j.rig.engine.Unpin(j)
	}
}

func (j *randomJob) Computed(*Content) { close(j.done) }

// randomRig notes progress in jobs.
type randomRig struct {
	*rig
	parts []Part
}

func (r *randomRig) Begin(parts []Part) (Pass, error) {
	r.parts = parts
	return r, nil
}

func (r *randomRig) Base() uint64              { return 0 }
func (r *randomRig) LayerReady(int, int, bool) {}
func (r *randomRig) Abort()                    {}

func (r *randomRig) End() {
	for _, p := range r.parts {
		j := p.Job.(*randomJob)
		j.mu.Lock()
		if j.source.Pages != nil && p.Span.First != j.computed {
			r.t.Errorf("%s: the pass begins at %d, %d tokens are computed", j.id, p.Span.First, j.computed)
		}
		if j.source.Pages != nil {
			j.computed = p.Span.N
		}
		j.mu.Unlock()
		j.check()
	}
}

// life is one job from Admit to Stop: to the end, or for a random time.
func (r *randomRig) life(id int, seed uint64, rows []Rows) {
	chance := rand.New(rand.NewPCG(seed, uint64(id)))
	time.Sleep(time.Duration(chance.IntN(100)) * time.Millisecond)
	tokens := append(someTokens(chance.IntN(100), uint64(chance.IntN(2))), someTokens(1+chance.IntN(60), chance.Uint64())...)
	j := &randomJob{rows: rows, done: make(chan struct{})}
	j.testJob = testJob{rig: r.rig, id: fmt.Sprintf("seed %d, job %d", seed, id), tokens: tokens, priority: chance.IntN(2), last: chance.IntN(2) == 0}
	j.mu.Lock()
	s, err := r.engine.Admit(j)
	j.source, j.computed = s, s.Cached
	j.mu.Unlock()
	if err != nil {
		r.t.Error(err)
		return
	}
	r.engine.Start(j)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	if chance.IntN(3) == 0 {
		cancel()
		ctx, cancel = context.WithTimeout(context.Background(), time.Duration(chance.IntN(20))*time.Millisecond)
	}
	defer cancel()
	select {
	case <-j.done:
		time.Sleep(time.Duration(chance.IntN(10)) * time.Millisecond) // its writes
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) && time.Since(r.start) > time.Minute {
			r.t.Errorf("%s is never computed: %+v", j.id, r.engine.Stats())
		}
	}
	j.mu.Lock()
	j.stopped = true
	j.mu.Unlock()
	r.engine.Stop(j)
	time.Sleep(time.Duration(chance.IntN(5)) * time.Millisecond) // its last writes
	j.unpin()
}

// TestRandomJobsKeepTheirContent: prompts that share beginnings, come, are preempted, and end at random times in a small pool.
// No page of a job changes while the job may be read.
func TestRandomJobsKeepTheirContent(t *testing.T) {
	for seed := range uint64(30) {
		synctest.Test(t, func(t *testing.T) {
			var rows []Rows
			edit := func(c *Config) {
				c.PreemptEvery = int(seed % 4)
				for layer := range rigLayers {
					r := layRows("pth", 24, rigPage, 1, 16, 0)
					r.Layer = layer
					c.Rows = append(c.Rows, r)
				}
				rows = c.Rows
			}
			r := &randomRig{rig: newRig(t, 24, edit)}
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() { done <- r.engine.Run(ctx, r) }()
			var wg sync.WaitGroup
			for id := range 40 {
				wg.Go(func() { r.life(id, seed, rows) })
			}
			wg.Wait()
			synctest.Wait()
			time.Sleep(time.Second) // a pass may still hold the last jobs
			cancel()
			if err := errors.Join(<-done, r.pool.Check()); err != nil {
				t.Error(err)
			}
			if c := r.pool.Counts(); c.Free+c.Cached != 24 || r.pool.Live() != 0 {
				t.Errorf("seed %d: %+v at the end", seed, c)
			}
			s := r.engine.Stats()
			if s.Cached == 0 || s.Tokens == 0 || seed%4 > 0 && s.Preempted == 0 {
				t.Errorf("seed %d: %+v: want jobs that found a prefix, and preemptions", seed, s)
			}
		})
	}
}
