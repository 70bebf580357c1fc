package moesim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/proto"
)

// FloorRate is what a floor is computed with: 400 Gbit/s, bytes per second.
const FloorRate = 50e9

// Phase is what dispatch, or combine, came to.
type Phase struct {
	Times []time.Duration // of each step: until the last rank was done
	Posts int             // by NIC: the most of any rank and step
	Bytes float64         // by NIC, of a rank in a step, mean
	Floor time.Duration   // of Bytes without headers, at FloorRate
	// Busiest is the same for the NIC that has the most to send or to receive, median over the steps.
	Busiest time.Duration
}

// Result is a simulation.
type Result struct {
	Layout            proto.Layout
	Dispatch, Combine Phase
	Step              []time.Duration // both, of each step
	Overflow          float64         // records beyond the first chunks, of a rank in a step, mean
	Bytes, Posts      float64         // to other ranks, of a rank in a step, mean; posts to ranks of the own node included
	Events            uint64
	Assumptions       []string
}

// look sees whether the rank has come to the end of the phase.
func (r *rank) look() {
	if failed, why, blamed, err := r.e.Failed(); failed {
		r.w.fail("rank %d: the step failed: %v (rank %d): %w", r.index, why, blamed, err)
		return
	}
	if limit := r.e.Limit(); limit != nil {
		r.w.fail("rank %d: %w", r.index, limit)
		return
	}
	if r.ended != nil && r.ended() {
		r.ended = nil
		r.at = r.w.f.Now()
		r.w.busy--
	}
}

// Run plays steps.
func Run(ctx context.Context, o Options) (res *Result, err error) {
	o, err = o.withDefaults()
	if err != nil {
		return nil, err
	}
	cfg, err := proto.NewLayout(o.Config)
	if err != nil {
		return nil, fmt.Errorf("moesim: %w", err)
	}
	w, err := newWorld(ctx, &o, &cfg)
	if err != nil {
		return nil, fmt.Errorf("moesim: %w", err)
	}
	defer func() { err = errors.Join(err, w.close()) }()
	res = &Result{Layout: cfg, Assumptions: o.Assumptions()}
	var loads []load
	for s := range o.Steps {
		l, err := w.step(ctx, s, res)
		if err != nil {
			return nil, err
		}
		loads = append(loads, l)
		if o.Progress != nil {
			o.Progress(s)
		}
	}
	res.bounds(&o, loads)
	res.Events = w.f.Stats().Events
	return res, nil
}

// step plays one: all dispatch, and when all have received, all combine.
func (w *world) step(ctx context.Context, s int, res *Result) (load, error) {
	l := newLoad(len(w.ranks))
	for _, r := range w.ranks {
		r.b.ids = w.o.IDs(s, r.index)
		if err := r.check(); err != nil {
			return l, err
		}
		l.add(w.o, r)
	}
	dispatch, err := w.phase(ctx, res, &res.Dispatch, func(r *rank) error {
		r.in.N = len(r.b.ids) / r.cfg.TopK
		if err := r.e.Begin(w.f.Now(), &r.in, backend.Quantize{}, false); err != nil {
			return err
		}
		r.ended = r.e.Received
		r.e.Receive(&r.out)
		return nil
	})
	if err != nil {
		return l, err
	}
	if err := w.compare(&l, res); err != nil {
		return l, err
	}
	combine, err := w.phase(ctx, res, &res.Combine, func(r *rank) error {
		if err := r.e.Combine(w.f.Now(), backend.Tensor{}); err != nil {
			return err
		}
		r.ended = r.e.Summed
		r.e.Reduce(&r.sum)
		return nil
	})
	if err != nil {
		return l, err
	}
	res.Step = append(res.Step, dispatch+combine)
	quiet := func() bool { return !slices.ContainsFunc(w.ranks, func(r *rank) bool { return !r.e.Lane().Quiet() }) }
	return l, w.play(ctx, quiet)
}

// phase has all ranks begin, and waits until all are done.
func (w *world) phase(ctx context.Context, res *Result, p *Phase, begin func(*rank) error) (took time.Duration, err error) {
	start := w.f.Now()
	w.busy = len(w.ranks)
	for _, r := range w.ranks {
		r.posts = phasePosts{}
		if err := begin(r); err != nil {
			return 0, err
		}
		r.look()
	}
	if err := w.play(ctx, func() bool { return w.busy == 0 }); err != nil {
		return 0, err
	}
	for _, r := range w.ranks {
		took = max(took, r.at-start)
		p.Posts = max(p.Posts, r.posts.far)
		per := float64(len(w.ranks) * w.o.Steps)
		p.Bytes += float64(r.posts.bytes) / per
		res.Bytes += float64(r.posts.all) / per
		res.Posts += float64(r.posts.far+r.posts.near) / per
	}
	p.Times = append(p.Times, took)
	return took, nil
}

// check refuses ids that are no experts.
func (r *rank) check() error {
	if n := len(r.b.ids); n%r.cfg.TopK != 0 || n > r.cfg.Records() {
		return fmt.Errorf("moesim: rank %d has %d ids, want %d for each of at most %d tokens", r.index, n, r.cfg.TopK, r.cfg.MaxTokens)
	}
	for _, e := range r.b.ids {
		if int(e) >= r.cfg.Experts {
			return fmt.Errorf("moesim: rank %d: id %d is no expert", r.index, e)
		}
	}
	return nil
}

// load is the records of a step that go by NIC: what each rank sends and what it receives. And all that each receives.
type load struct{ out, in, all []int }

func newLoad(ranks int) load {
	return load{make([]int, ranks), make([]int, ranks), make([]int, ranks)}
}

func (l *load) add(o *Options, r *rank) {
	for _, e := range r.b.ids {
		if e < 0 {
			continue
		}
		to := int(e) / r.cfg.Local
		l.all[to]++
		if to != r.index && !o.local(to, r.index) {
			l.out[r.index]++
			l.in[to]++
		}
	}
}

// compare holds what arrived to what was sent, and counts what did not fit the first chunks.
func (w *world) compare(l *load, res *Result) error {
	for _, r := range w.ranks {
		n := 0
		for _, c := range r.e.Counts() {
			n += int(c)
		}
		if n != l.all[r.index] {
			return fmt.Errorf("moesim: rank %d received %d records, want %d", r.index, n, l.all[r.index])
		}
		per := float64(len(w.ranks) * w.o.Steps)
		for to, n := range r.b.plan.Records {
			if to != r.index {
				res.Overflow += float64(max(0, int(n)-r.cfg.FirstChunk)) / per
			}
		}
	}
	return nil
}

// bounds are the floors, which follow from the ids alone.
func (res *Result) bounds(o *Options, loads []load) {
	var mean float64
	var most []int
	for _, l := range loads {
		for _, n := range l.out {
			mean += float64(n) / float64(len(l.out)*len(loads))
		}
		most = append(most, max(slices.Max(l.out), slices.Max(l.in)))
	}
	slices.Sort(most)
	floor := func(records float64, bytes int) time.Duration {
		return time.Duration(records * float64(bytes) / FloorRate * 1e9)
	}
	for _, p := range []struct {
		phase *Phase
		bytes int
	}{{&res.Dispatch, res.Layout.Dispatch}, {&res.Combine, res.Layout.Combine}} {
		p.phase.Floor = floor(mean, p.bytes)
		p.phase.Busiest = floor(float64(most[len(most)/2]), p.bytes)
	}
}
