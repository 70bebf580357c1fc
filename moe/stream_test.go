package moe

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/internal/exec"
)

// streamStep is step in chunks.
func (r *rank) streamStep(ctx context.Context, lane int, w *work) error {
	p, err := r.lanes[lane].DispatchSend(ctx, &w.in)
	if err != nil {
		return err
	}
	return r.streamRest(ctx, p, w)
}

func (r *rank) streamRest(ctx context.Context, p *Pending, w *work) error {
	for c, err := range p.Chunks(ctx, &w.out) {
		if err != nil {
			return err
		}
		r.compute(w, c.Counts(), c.Offsets(), 0)
		if err := c.Combine(w.y); err != nil {
			return err
		}
	}
	h, err := p.Handle()
	if err != nil {
		return err
	}
	s, err := h.CombineSend(ctx, Tensor{})
	if err != nil {
		return err
	}
	return s.Recv(ctx, w.sum, CombineOpts{})
}

// Ranks that receive in chunks and in one piece work together, whichever each does in a step.
func TestChunks(t *testing.T) {
	for _, network := range []string{"sim", "shm"} {
		for n := 1; n <= 4; n++ {
			t.Run(fmt.Sprintf("%s %d", network, n), func(t *testing.T) {
				c := small(n, uint64(n))
				c.FirstChunk = max(c.FirstChunk, 1)
				c.StreamRows, c.Lanes = max(c.FirstChunk, c.ChunkRecords, 3), 1
				ranks := newRanks(t, network, setup{Config: c})
				each(t, ranks, func(r *rank) error {
					rng := rand.New(rand.NewPCG(uint64(r.i), 7))
					for range 40 {
						w := newWork(rng, r.cfg, n*24)
						do := r.streamStep
						if rng.IntN(3) == 0 {
							do = func(ctx context.Context, lane int, w *work) error { return r.step(ctx, lane, w, 0) }
						}
						if err := do(within(t), 0, w); err != nil {
							return err
						}
						w.check(t, r)
					}
					return nil
				})
			})
		}
	}
}

// dummies are what serving engines send to warm up: the same experts for every token.
func dummies(rng *rand.Rand, r *rank, rows int) *work {
	w := newWork(rng, r.cfg, rows)
	w.in.N = r.cfg.MaxTokens
	w.in.X, w.in.IDs, w.in.Weights, w.sum = tensor(w.in.N, r.cfg.Hidden), tensor(w.in.N, r.cfg.TopK), tensor(w.in.N, r.cfg.TopK), tensor(w.in.N, r.cfg.Hidden)
	w.in.IDs.Type = backend.I32
	w.want = make([]float32, w.in.N*r.cfg.Hidden)
	for t := range w.in.N {
		for j := range r.cfg.TopK {
			w.route(r.cfg, t, j, j, 0.5)
		}
		for h := range r.cfg.Hidden {
			put(w.in.X, t*r.cfg.Hidden+h, float32(t+h))
		}
	}
	w.expect(r.cfg)
	return w
}

// Identical tokens everywhere bring more rows to one rank than it has room for. By policy Stream the step goes on, in chunks or with a
// larger Output.
func TestWarmupDummyTokens(t *testing.T) {
	for _, larger := range []bool{false, true} {
		c := small(3, 4)
		c.Experts, c.Lanes, c.StreamRows = 6, 1, 8
		if !larger {
			c.MaxRecv = 8
		}
		ranks := newRanks(t, "sim", setup{Config: c})
		each(t, ranks, func(r *rank) error {
			rng := rand.New(rand.NewPCG(uint64(r.i), 7))
			for range 3 {
				w, ctx := dummies(rng, r, 8), within(t)
				p, err := r.lanes[0].DispatchSend(ctx, &w.in)
				if err != nil {
					return err
				}
				h, err := p.Recv(ctx, &w.out)
				var limit *LimitError
				switch {
				case r.i > 0 && err != nil:
					return err
				case r.i == 0 && (!errors.Is(err, hawser.ErrLimit) || !errors.As(err, &limit) || limit.Need != 3*12*2):
					return fmt.Errorf("room for 8 rows of 72: %w", err)
				}
				if r.i == 0 && larger {
					w.out.X, w.y = tensor(limit.Need, r.cfg.Hidden), tensor(limit.Need, r.cfg.Hidden)
					h, err = p.Recv(ctx, &w.out)
				} else if r.i == 0 {
					if err := r.streamRest(ctx, p, w); err != nil {
						return err
					}
					w.check(t, r)
					continue
				}
				if err != nil {
					return err
				}
				r.compute(w, h.Counts(), h.Offsets(), 0)
				s, err := h.CombineSend(ctx, w.y)
				if err != nil {
					return err
				}
				if err := s.Recv(ctx, w.sum, CombineOpts{}); err != nil {
					return err
				}
				w.check(t, r)
			}
			return nil
		})
	}
}

// By policy Fail all ranks learn that the step has failed, whose doing it was, and that it is a matter of room.
func TestOverflowFails(t *testing.T) {
	c := small(3, 4)
	c.Experts, c.Lanes, c.MaxRecv = 6, 1, 8
	ranks := newRanks(t, "shm", setup{Config: c, policy: Fail, options: exec.Options{}})
	each(t, ranks, func(r *rank) error {
		w := dummies(rand.New(rand.NewPCG(1, 7)), r, 100)
		err := r.step(within(t), 0, w, 0)
		var e *StepError
		if !errors.Is(err, hawser.ErrLimit) || !errors.As(err, &e) || e.Rank != 0 {
			return fmt.Errorf("overflow of rank 0: %w", err)
		}
		if err := r.step(within(t), 0, w, 0); !errors.Is(err, hawser.ErrStale) {
			return fmt.Errorf("the view goes on: %w", err)
		}
		return nil
	})
}

// A chunk that is not combined, or a loop that ends early, does not leave others waiting.
func TestChunkNotCombined(t *testing.T) {
	c := small(2, 3)
	c.Lanes, c.StreamRows = 1, 4
	ranks := newRanks(t, "sim", setup{Config: c})
	each(t, ranks, func(r *rank) error {
		w := dummies(rand.New(rand.NewPCG(1, 7)), r, 100)
		if r.i == 1 {
			if err := r.step(within(t), 0, w, 0); !errors.Is(err, ErrCanceled) {
				return fmt.Errorf("the other rank has not combined: %w", err)
			}
			return nil
		}
		p, err := r.lanes[0].DispatchSend(within(t), &w.in)
		if err != nil {
			return err
		}
		n := 0
		for _, err := range p.Chunks(within(t), &w.out) {
			if n++; n == 2 && !errors.Is(err, hawser.ErrBusy) || n > 2 {
				return fmt.Errorf("chunk %d: %w", n, err)
			}
		}
		if n < 2 {
			return errors.New("no error")
		}
		return nil
	})
}
