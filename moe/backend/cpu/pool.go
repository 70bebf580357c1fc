package cpu

import (
	"slices"
	"sync"
	"sync/atomic"
)

const (
	partBytes   = 16 << 10 // of a part: what a core moves in one or two microseconds
	inlineBytes = 64 << 10 // for each that is woken: for less it costs more than it saves
	patience    = 4000     // looks at a job whose last parts others are doing, before sleeping: some microseconds
)

// work is what the parts of a job are. Parts are done in any order, by several at once.
type work interface {
	part(i int, s *scratch)
	stopped() bool
}

// job is work that is cut into parts, one at a time. Whoever works on it takes the next part.
type job struct {
	work   work
	parts  int
	done   sync.Cond // of pool.mu: inside is 0
	inside atomic.Int32
	_      [64]byte
	next   atomic.Int64 // on a line of its own: all write it
	_      [56]byte
}

// do takes parts until none is left.
func (j *job) do(s *scratch) {
	for {
		i := int(j.next.Add(1)) - 1
		if i >= j.parts || j.work.stopped() {
			return
		}
		j.work.part(i, s)
	}
}

// pool is the workers of a backend. They sleep while there is no job that has parts left.
type pool struct {
	closed atomic.Bool
	mu     sync.Mutex
	wake   sync.Cond
	idle   int    // workers that sleep
	jobs   []*job // that may have parts left; each at most once
	wg     sync.WaitGroup
}

func (p *pool) start(workers int) {
	p.wake.L = &p.mu
	p.jobs = make([]*job, 0, 64)
	for range workers {
		p.wg.Go(p.worker)
	}
}

func (p *pool) close() {
	p.mu.Lock()
	p.closed.Store(true)
	p.wake.Broadcast()
	p.mu.Unlock()
	p.wg.Wait()
}

func (p *pool) worker() {
	s := newScratch()
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		for len(p.jobs) == 0 {
			if p.closed.Load() {
				return
			}
			p.idle++
			p.wake.Wait()
			p.idle--
		}
		j := p.jobs[0]
		j.inside.Add(1)
		p.mu.Unlock()
		j.do(s)
		p.mu.Lock()
		p.drop(j)
		if j.inside.Add(-1) == 0 {
			j.done.Signal()
		}
	}
}

// drop takes a job without parts left from the list.
func (p *pool) drop(j *job) {
	if i := slices.Index(p.jobs, j); i >= 0 {
		p.jobs = slices.Delete(p.jobs, i, i+1)
	}
}

// run does all parts of a job, unless its work is stopped, with whoever is idle, but no more of them than most.
//
// hot: no allocation.
func (p *pool) run(j *job, parts, most int, s *scratch) {
	j.parts = parts
	j.next.Store(0)
	helpers := min(parts-1, most)
	if helpers > 0 {
		p.mu.Lock()
		if helpers = min(p.idle, helpers); helpers > 0 {
			p.jobs = append(p.jobs, j)
		}
		p.mu.Unlock()
		for range helpers {
			p.wake.Signal()
		}
	}
	j.do(s)
	if helpers <= 0 {
		return
	}
	p.mu.Lock()
	p.drop(j)
	p.mu.Unlock()
	for range patience {
		if j.inside.Load() == 0 {
			break
		}
	}
	p.mu.Lock()
	for j.inside.Load() > 0 {
		j.done.Wait()
	}
	p.mu.Unlock()
}

// scratch is what one worker needs for itself.
type scratch struct {
	acc [4 * sumColumns]byte
	at  [maxTopK]int
	w   [maxTopK]float32
	_   [64]byte
}

func newScratch() *scratch { return new(scratch) }
