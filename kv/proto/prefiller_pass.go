package proto

import (
	"fmt"
	"slices"

	"github.com/hawser-project/hawser"
)

// PassSpan is the part of a prompt that a pass computes: tokens [First, N).
type PassSpan struct {
	Job  JobID
	Span Span
}

// pass is one forward pass that has begun. Owned by the Prefiller.
type pass struct {
	id    PassID
	spans []passSpan
	done  []int // by rank: layers [0, done) are ready
}

type passSpan struct {
	job        *job
	generation uint32 // of the job's source pages when the pass began
	span       Span
}

// passShift is where the number of the pass begins in a progress word.
const passShift = 16

// Begin begins a pass, before its first layer is computed. Passes run in the order in which they begin. The spans of a job follow
// each other without gaps; a span of a job that has ended, or has no source pages, means nothing. base is what the first of the
// pass's progress words follows: see Progress. hawser.ErrBusy: MaxPasses have begun and not ended.
func (p *Prefiller) Begin(now Time, spans []PassSpan) (id PassID, base uint64, err error) {
	p.enter(now)
	defer p.leave()
	for len(p.passes) >= MaxPasses && p.computed(p.passes[0]) {
		p.endPass(p.passes[0])
	}
	if len(p.passes) >= MaxPasses {
		return 0, 0, fmt.Errorf("kv: begin pass: %w: %d passes have begun and not ended", hawser.ErrBusy, len(p.passes))
	}
	for _, s := range spans {
		j, err := p.findLive("begin pass", s.Job)
		if err != nil {
			return 0, 0, err
		}
		if j != nil && (s.Span.First < 0 || s.Span.First > s.Span.N || s.Span.N > j.prompt.Tokens) {
			return 0, 0, fmt.Errorf("kv: begin pass: request %s: %w: span %d .. %d of %d tokens", j.request, hawser.ErrInvalid, s.Span.First, s.Span.N, j.prompt.Tokens)
		}
	}
	p.lastPass++
	r := &pass{id: p.lastPass, done: make([]int, len(p.own.Ranks))}
	for _, s := range spans {
		j := p.jobs[s.Job]
		if j == nil || !j.pinned || j.pausing {
			continue
		}
		r.spans = append(r.spans, passSpan{j, j.generation, s.Span})
		if !j.ran {
			j.ran, j.begun = true, p.now
			p.begun++
		}
		if !j.anything {
			j.anything = true
			p.startAll(j)
		}
	}
	p.passes = append(p.passes, r)
	return r.id, uint64(r.id) << passShift, nil
}

func (p *Prefiller) findPass(id PassID) *pass {
	for _, r := range p.passes {
		if r.id == id {
			return r
		}
	}
	return nil
}

// LayerReady says that a layer of a rank, both counted within this member, is in the source pages for all jobs of a pass. It is for
// callers whose host knows; see Progress for words. A pass that has ended is ignored.
// hot:
func (p *Prefiller) LayerReady(now Time, id PassID, rank, layer int) {
	p.enter(now)
	if r := p.findPass(id); r != nil {
		if rank < 0 || rank >= len(p.own.Ranks) || layer < 0 || layer >= p.own.Ranks[rank].Layers {
			p.failPass(r, fmt.Sprintf("layer %d of rank %d of pass %d: there is none", layer, rank, id))
		} else {
			p.layerReady(r, rank, layer)
			if r.done[rank] == layer {
				r.done[rank]++
			}
		}
	}
	p.leave()
}

// layerReady lets the attempts of all jobs of a pass post a layer.
// hot:
func (p *Prefiller) layerReady(r *pass, rank, layer int) {
	lane := p.firstLane[rank] + layer
	for i := range r.spans {
		c := &r.spans[i]
		j := c.job
		if j.step.state != jobLive || j.generation != c.generation {
			continue
		}
		if int(j.computed[lane]) < c.span.First {
			p.failJob(j, CodeEngine, fmt.Sprintf("layer %d of rank %d: tokens %d .. %d were computed after %d", layer, rank, c.span.First, c.span.N, j.computed[lane]))
			continue
		}
		if rank == 0 {
			j.layers++
		}
		if int32(c.span.N) <= j.computed[lane] {
			continue
		}
		j.computed[lane] = int32(c.span.N)
		j.done = p.now
		for _, s := range j.attempts {
			if s.step.open() {
				p.raise(s, lane, c.span.N)
				p.ready(s)
			}
		}
	}
}

// layersReady is layerReady for all layers of a rank below one.
func (p *Prefiller) layersReady(r *pass, rank, layers int) {
	for ; r.done[rank] < layers; r.done[rank]++ {
		p.layerReady(r, rank, r.done[rank])
	}
}

// LayerLate counts a layer of a pass that took longer than it was meant to, for Timing.
func (p *Prefiller) LayerLate(id PassID) {
	if r := p.findPass(id); r != nil {
		for i := range r.spans {
			r.spans[i].job.late++
		}
	}
}

// PassEnd says that all layers of a pass are ready on all ranks.
func (p *Prefiller) PassEnd(now Time, id PassID) {
	p.enter(now)
	if r := p.findPass(id); r != nil {
		for rank := range r.done {
			p.layersReady(r, rank, p.own.Ranks[rank].Layers)
		}
		p.endPass(r)
	}
	p.leave()
}

// PassAbort says that the layers of a pass that are not ready will not be: before a later pass is launched. What is computed stays.
func (p *Prefiller) PassAbort(now Time, id PassID) {
	p.enter(now)
	if r := p.findPass(id); r != nil {
		p.endPass(r)
	}
	p.leave()
}

func (p *Prefiller) endPass(r *pass) {
	i := slices.Index(p.passes, r)
	p.passes = slices.Delete(p.passes, i, i+1)
}

// Progress takes the progress word of a rank: base+l+1 says that layer l of the pass with that base is ready on this rank, and
// with it all layers before, and all earlier passes that were not aborted, as they run in order on one stream. So values may
// be skipped. A value that makes no sense fails the jobs of its pass, or of all passes if there is no such pass.
//
// With PrefillerConfig.SharedProgress the word of rank 0 speaks for all ranks, and others are refused.
func (p *Prefiller) Progress(now Time, rank int, word uint64) {
	p.enter(now)
	defer p.leave()
	if rank < 0 || rank >= len(p.words) || p.cfg.SharedProgress && rank != 0 {
		p.stats.BadWords++
		return
	}
	last := p.words[rank]
	if word == last {
		return
	}
	id, layers := PassID(word>>passShift), int(word&(1<<passShift-1))
	r := p.findPass(id)
	switch {
	case id == 0 || id > p.lastPass || word < last:
		p.badWord(r, rank, word, fmt.Sprintf("passes up to %d have begun, the last value was %#x", p.lastPass, last))
		return
	case layers > p.own.Ranks[rank].Layers:
		p.badWord(r, rank, word, fmt.Sprintf("the rank has %d layers", p.own.Ranks[rank].Layers))
		return
	}
	p.words[rank] = word
	if r == nil {
		p.stats.LateWords++
	}
	for i := 0; i < len(p.passes) && p.passes[i].id <= id; {
		o, n := p.passes[i], layers
		if o.id < id {
			n = p.own.Ranks[rank].Layers
		}
		if p.cfg.SharedProgress {
			for k := range o.done {
				p.layersReady(o, k, n)
			}
		} else {
			p.layersReady(o, rank, n)
		}
		if o.id < id && p.computed(o) {
			p.endPass(o)
			continue
		}
		i++
	}
}

// computed reports whether all layers of a pass are ready.
func (p *Prefiller) computed(r *pass) bool {
	for rank, done := range r.done {
		if done < p.own.Ranks[rank].Layers {
			return false
		}
	}
	return true
}

func (p *Prefiller) badWord(r *pass, rank int, word uint64, why string) {
	p.stats.BadWords++
	text := fmt.Sprintf("progress word of rank %d: value %#x is layer %d of pass %d: %s", rank, word, int(word&(1<<passShift-1))-1, word>>passShift, why)
	if r != nil {
		p.failPass(r, text)
		return
	}
	for _, o := range p.passes {
		p.failPass(o, text)
	}
}

// failPass fails the jobs of a pass.
func (p *Prefiller) failPass(r *pass, text string) {
	for i := range r.spans {
		if j := r.spans[i].job; j.step.state == jobLive {
			p.failJob(j, CodeProgress, text)
		}
	}
}
