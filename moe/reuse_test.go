package moe

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/hawser-project/hawser"
)

// A step with the ids of the step before gives the same as a fresh one; with other ids it does not begin, and the lane goes on.
func TestReuse(t *testing.T) {
	c := small(3, 2)
	c.Lanes = 1
	ranks := newRanks(t, "shm", setup{Config: c})
	each(t, ranks, func(r *rank) error {
		w, l, ctx := newWork(rand.New(rand.NewPCG(uint64(r.i), 3)), r.cfg, 72), r.lanes[0], within(t)
		for i := range 4 {
			var opts []Opt
			if i > 0 {
				opts = append(opts, Reuse(&l.handle))
			}
			for h := range w.in.N * r.cfg.Hidden {
				put(w.in.X, h, float32(h*(i+1)))
			}
			w.expect(r.cfg)
			if err := r.step(ctx, 0, w, 0, opts...); err != nil {
				return fmt.Errorf("step %d: %w", i, err)
			}
			w.check(t, r)
		}
		old := l.handle
		other := dummies(rand.New(rand.NewPCG(1, 7)), r, 72)
		if _, err := l.DispatchSend(ctx, &other.in, Reuse(&l.handle)); err == nil {
			return errors.New("other ids were taken for the same")
		}
		if err := r.step(ctx, 0, other, 0); err != nil {
			return err
		}
		other.check(t, r)
		if _, err := l.DispatchSend(ctx, &w.in, Reuse(&old)); !errors.Is(err, hawser.ErrStale) {
			return fmt.Errorf("the handle of other ids: %w", err)
		}
		return nil
	})
}

// Ids that are no expert are refused before anything is sent, and named; -1 is none; a rank may have no tokens at all.
func TestIDs(t *testing.T) {
	c := small(2, 2)
	c.Lanes = 1
	ranks := newRanks(t, "sim", setup{Config: c})
	each(t, ranks, func(r *rank) error {
		w := dummies(rand.New(rand.NewPCG(1, 7)), r, 48)
		w.route(r.cfg, 3, 1, r.cfg.Experts, 1)
		if _, err := r.lanes[0].DispatchSend(within(t), &w.in); !errors.Is(err, hawser.ErrInvalid) {
			return fmt.Errorf("id %d of %d experts: %w", r.cfg.Experts, r.cfg.Experts, err)
		}
		for i := range w.in.N * r.cfg.TopK { // one rank has no experts, the other no tokens
			w.route(r.cfg, i/r.cfg.TopK, i%r.cfg.TopK, -1, 1)
		}
		if r.i == 1 {
			w.in.N, w.want = 0, nil
		}
		w.expect(r.cfg)
		if err := r.step(within(t), 0, w, 0); err != nil {
			return err
		}
		w.check(t, r)
		return nil
	})
}
