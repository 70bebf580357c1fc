package simllm

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Run computes pass after pass until ctx ends, which is no error. One Run at a time.
func (e *Engine) Run(ctx context.Context, t Transfer) error {
	for ctx.Err() == nil {
		w := e.schedule()
		for _, k := range w.placed {
			if k.job.Sourced(k.source) != nil {
				e.Unpin(k.job)
			}
		}
		for _, k := range w.computed {
			k.job.Computed(e.contentOf(k))
		}
		if w.victim != nil {
			w.victim.job.Preempt()
		}
		if len(w.parts) > 0 {
			if err := e.pass(ctx, t, w.parts); err != nil {
				return fmt.Errorf("simllm: %w", err)
			}
		} else if w.victim == nil {
			select {
			case <-e.wake:
			case <-ctx.Done():
			}
		}
	}
	return nil
}

// work is what Run does next. The parts are busy.
type work struct {
	placed   []placed // have pages since now; some of them are in parts, too
	computed []*task  // were in the prefix cache from end to end
	victim   *task    // to be preempted
	parts    []part   // of the next pass
}

type placed struct {
	job    Job
	source Source
}

type part struct {
	*task
	span Span
}

// schedule decides what to do next.
func (e *Engine) schedule() work {
	e.mu.Lock()
	defer e.mu.Unlock()
	w := work{victim: e.forced}
	if w.victim == nil || !slices.Contains(e.queue, w.victim) {
		w = e.fillPass()
	}
	e.forced = nil
	for _, t := range w.computed {
		e.dequeue(t)
	}
	for _, t := range w.parts {
		t.busy = true
	}
	if t := w.victim; t != nil {
		t.preempted = true
		e.stats.Preempted++
		e.settle(t)
	}
	return w
}

// fillPass fills a pass with the first tasks of the queue. One that waits for pages holds up those behind it, because skipping it
// could starve it; less important ones that have begun give it theirs. Needs mu.
func (e *Engine) fillPass() (w work) {
	room := e.cfg.PassTokens
	for _, t := range e.queue {
		if t.preempted {
			break // until Unpin
		}
		if t.pages == nil {
			if !e.place(t) {
				w.victim = e.victim(t)
				break
			}
			if t.pinned = !own(t.job); t.pinned {
				w.placed = append(w.placed, placed{t.job, t.source()})
			}
		}
		if t.computed() {
			e.publish(t)
			w.computed = append(w.computed, t)
			continue
		}
		n := min(len(t.tokens), t.done+room)
		if n < len(t.tokens) {
			n -= n % e.cfg.PageTokens // whole pages, so that each is sent with the pass that makes it
		}
		if n <= t.done {
			break
		}
		w.parts = append(w.parts, part{t, Span{t.done, n}})
		room -= n - t.done
	}
	return w
}

// victim is the least important, youngest task whose pages t may have, or nil while those of another are waited for. Needs mu.
func (e *Engine) victim(t *task) (victim *task) {
	for _, q := range slices.Backward(e.queue) {
		if q.preempted {
			return nil
		}
		if victim == nil && q.pages != nil && q.job.Priority() < t.job.Priority() {
			victim = q
		}
	}
	return victim
}

// pass computes one pass: for each layer it fills the new tokens and waits until the layer's time is over.
func (e *Engine) pass(ctx context.Context, t Transfer, parts []part) error {
	told := make([]Part, 0, len(parts))
	chunks := make([]chunk, 0, len(parts))
	for _, a := range parts {
		if !own(a.job) {
			told = append(told, Part{a.job, a.span})
		}
		chunks = append(chunks, chunk{a.span.First, a.span.N - a.span.First})
	}
	p, err := t.Begin(told)
	if err != nil {
		e.finish(parts, false)
		return err
	}
	each := e.cfg.Layer.pass(chunks...)
	due := time.Now()
	for layer := range e.cfg.Layers {
		for _, a := range parts {
			for _, r := range e.rows[layer] {
				e.contentOf(a.task).Fill(r, a.pages, a.span)
			}
		}
		due = due.Add(each)
		now := time.Now()
		late := now.After(due)
		if !late {
			e.pause(ctx, due)
			now = time.Now()
		}
		if ctx.Err() != nil {
			p.Abort()
			e.finish(parts, false)
			return nil
		}
		e.ready(p, layer, late)
		if late {
			due = now
		}
		e.observe(told, layer, now, late)
	}
	p.End()
	e.finish(parts, true)
	return nil
}

func (e *Engine) contentOf(t *task) *Content {
	if t.content == nil {
		t.content = NewContent(e.cfg.Fingerprint, t.tokens)
	}
	return t.content
}

// ready tells of a layer.
func (e *Engine) ready(p Pass, layer int, late bool) {
	for _, r := range e.ranks[layer] {
		if e.cfg.Word != nil {
			e.cfg.Word(r.Rank, p.Base()+uint64(layer-r.First)+1)
		} else {
			p.LayerReady(r.Rank, layer, late)
		}
	}
}

func (e *Engine) observe(parts []Part, layer int, at time.Time, late bool) {
	e.mu.Lock()
	e.stats.Layers++
	if late {
		e.stats.FillBound++
	}
	e.mu.Unlock()
	if e.cfg.Observe != nil {
		e.cfg.Observe(parts, layer, at, late)
	}
}

// finish ends a pass: tasks that are computed leave the queue, stopped ones give their pages back.
func (e *Engine) finish(parts []part, computed bool) {
	for _, t := range e.finished(parts, computed) {
		t.job.Computed(e.contentOf(t))
	}
}

func (e *Engine) finished(parts []part, computed bool) (done []*task) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if computed {
		e.stats.Passes++
	}
	force := computed && e.cfg.PreemptEvery > 0 && e.stats.Passes%uint64(e.cfg.PreemptEvery) == 0
	for _, a := range parts {
		t := a.task
		t.busy = false
		if computed {
			t.done = a.span.N
			e.stats.Tokens += uint64(a.span.N - a.span.First)
		}
		switch {
		case t.computed():
			e.publish(t)
			e.dequeue(t)
			if !t.stopped {
				done = append(done, t)
			}
		case force && !t.stopped:
			e.forced = t // of several the last
		}
		e.settle(t)
	}
	e.changed()
	return done
}
