package moe

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
)

// begin has all ranks make one good step, and then rank 1 .. begin another one.
func begin(t *testing.T, ranks []*rank, works []*work) {
	t.Helper()
	each(t, ranks, func(r *rank) error {
		works[r.i] = dummies(rand.New(rand.NewPCG(uint64(r.i), 7)), r, 24*len(ranks))
		return r.step(within(t), 0, works[r.i], 0)
	})
}

// A context that ends ends every call within 100 ms, and the step at everybody.
func TestContextEnds(t *testing.T) {
	cause := errors.New("the user has gone")
	for _, phase := range []string{"receive", "sum", "before"} {
		t.Run(phase, func(t *testing.T) {
			ranks := newRanks(t, "sim", setup{Config: small(3, 3)})
			works := make([]*work, 3)
			begin(t, ranks, works)
			over := make(chan struct{})
			each(t, ranks, func(r *rank) error {
				w, ctx := works[r.i], within(t)
				if r.i > 0 && phase == "receive" { // rank 0 waits for them
					<-over
					return r.stopped(0, w)
				}
				if r.i == 0 {
					defer close(over)
				}
				if r.i == 0 && phase == "before" {
					ended, cancel := context.WithCancelCause(ctx)
					cancel(cause)
					if _, err := r.lanes[0].DispatchSend(ended, &w.in); !errors.Is(err, cause) {
						return fmt.Errorf("dispatch after the end: %w", err)
					}
				}
				p, err := r.lanes[0].DispatchSend(ctx, &w.in)
				if err != nil {
					return err
				}
				ended, cancel := context.WithCancelCause(ctx)
				start := time.Now()
				end := func() {
					start = time.Now().Add(20 * time.Millisecond)
					time.AfterFunc(20*time.Millisecond, func() { cancel(cause) })
				}
				if phase == "receive" {
					end()
				}
				h, err := p.Recv(ended, &w.out)
				if phase != "receive" {
					if err != nil {
						return err
					}
					if r.i > 0 && phase == "sum" {
						_, err = p.Recv(ctx, &w.out)
						if !errors.Is(err, hawser.ErrBusy) {
							return fmt.Errorf("received twice: %w", err)
						}
						<-over
						s, err := h.CombineSend(ctx, w.y)
						if err == nil {
							err = s.Recv(ctx, w.sum, CombineOpts{})
						}
						if err != nil && !errors.Is(err, ErrCanceled) { // nil: all results had come
							return fmt.Errorf("a step that rank 0 gave up: %w", err)
						}
						return r.stopped(0, w)
					}
					r.compute(w, h.Counts(), h.Offsets(), 0)
					c, err2 := h.CombineSend(ctx, w.y)
					if err2 != nil {
						return err2
					}
					if r.i == 0 && phase == "sum" {
						end()
					}
					err = c.Recv(ended, w.sum, CombineOpts{})
				}
				if phase == "before" {
					return err
				}
				var e *StepError
				if !errors.Is(err, cause) || !errors.As(err, &e) || e.Step != 2 {
					return fmt.Errorf("%s: %w", phase, err)
				}
				if late := time.Since(start); late > 100*time.Millisecond {
					return fmt.Errorf("returned %v after the end", late)
				}
				if _, err := r.lanes[0].DispatchSend(ctx, &w.in); !errors.Is(err, hawser.ErrStale) {
					return fmt.Errorf("dispatch in a view that has ended: %w", err)
				}
				return nil
			})
		})
	}
}

// stopped makes a step after rank 0 has given up one: it does not begin, or fails.
func (r *rank) stopped(lane int, w *work) error {
	err := r.step(context.Background(), lane, w, 0)
	var e *StepError
	if errors.Is(err, hawser.ErrStale) || errors.Is(err, ErrCanceled) && errors.As(err, &e) && e.Rank == 0 {
		return nil
	}
	return fmt.Errorf("a step after rank 0 gave up: %w", err)
}

// Cancel from another goroutine ends a call that waits, here and elsewhere; and before a step it ends the lane.
func TestCancel(t *testing.T) {
	cause := errors.New("enough")
	ranks := newRanks(t, "shm", setup{Config: small(2, 3)})
	works := make([]*work, 2)
	begin(t, ranks, works)
	time.AfterFunc(10*time.Millisecond, func() { ranks[0].lanes[0].Cancel(cause) })
	if err := ranks[0].step(within(t), 0, works[0], 0); !errors.Is(err, cause) {
		t.Fatal(err)
	}
	if err := ranks[1].stopped(0, works[1]); err != nil {
		t.Fatal(err)
	}
	ranks[0].lanes[1].Cancel(cause)
	if _, err := ranks[0].lanes[1].DispatchSend(within(t), &works[0].in); !errors.Is(err, hawser.ErrStale) {
		t.Fatalf("dispatch in a view that has ended: %v", err)
	}
	if err := ranks[1].stopped(1, works[1]); err != nil {
		t.Fatal(err)
	}
}

// A rank that dies while others wait for it is missing: the step ends without it, and its tokens are named.
func TestDeathWhileWaiting(t *testing.T) {
	for _, network := range []string{"sim", "shm", "tcp"} {
		for _, phase := range []string{"dispatch", "combine"} {
			t.Run(network+" "+phase, func(t *testing.T) {
				c := small(3, 3)
				c.Experts = 6
				ranks := newRanks(t, network, setup{Config: c})
				works := make([]*work, 3)
				begin(t, ranks, works)
				each(t, ranks, func(r *rank) error {
					w, ctx := works[r.i], within(t)
					if r.i == 0 {
						if phase == "combine" {
							p, err := r.lanes[0].DispatchSend(ctx, &w.in)
							if err != nil {
								return err
							}
							if _, err := p.Recv(ctx, &w.out); err != nil {
								return err
							}
						}
						time.Sleep(10 * time.Millisecond) // so that the others wait by then, mostly
						return r.e.Close(ctx)
					}
					p, err := r.lanes[0].DispatchSend(ctx, &w.in)
					if err != nil {
						return err
					}
					h, err := p.Recv(ctx, &w.out)
					if err != nil && !missing(err, 0) || phase == "dispatch" && err == nil {
						return fmt.Errorf("receive without rank 0: %w", err)
					}
					r.compute(w, h.Counts(), h.Offsets(), 0)
					s, err := h.CombineSend(ctx, w.y)
					if err != nil {
						return err
					}
					err = s.Recv(ctx, w.sum, CombineOpts{})
					if !missing(err, 0) {
						return fmt.Errorf("sum without rank 0: %w", err)
					}
					var p0 *PartialError
					errors.As(err, &p0)
					for t := range w.in.N { // all experts of dummies are rank 0's
						if !p0.Tokens.Has(t) {
							return fmt.Errorf("token %d is not named", t)
						}
					}
					for i := range w.want {
						if got := get(w.sum, i); got != 0 {
							return fmt.Errorf("element %d is %v, want 0", i, got)
						}
					}
					if _, err := r.lanes[0].DispatchSend(ctx, &w.in); !errors.Is(err, hawser.ErrStale) {
						return fmt.Errorf("dispatch in a view that has ended: %w", err)
					}
					return nil
				})
			})
		}
	}
}

func missing(err error, rank int) bool {
	var p *PartialError
	return errors.As(err, &p) && slices.Equal(p.Missing, []int{rank})
}

// A rank that does not call is missing when the time of a step is over.
func TestLateRank(t *testing.T) {
	c := small(2, 3)
	c.StepTimeout = 100 * time.Millisecond
	ranks := newRanks(t, "sim", setup{Config: c})
	w := dummies(rand.New(rand.NewPCG(1, 7)), ranks[0], 48)
	start := time.Now()
	err := ranks[0].step(within(t), 0, w, 0)
	if took := time.Since(start); !missing(err, 1) || took < 100*time.Millisecond || took > 5*time.Second {
		t.Fatalf("after %v: %v", took, err)
	}
}

// Closing a lane ends calls that wait.
func TestDestroyWhileWaiting(t *testing.T) {
	ranks := newRanks(t, "sim", setup{Config: small(2, 3)})
	w := dummies(rand.New(rand.NewPCG(1, 7)), ranks[0], 48)
	ended := make(chan error)
	go func() { ended <- ranks[0].step(within(t), 0, w, 0) }()
	time.Sleep(5 * time.Millisecond)
	ranks[0].lanes[0].mail.cancel(hawser.ErrClosed, 11)
	ranks[0].lanes[0].handled()
	if err := <-ended; !errors.Is(err, hawser.ErrClosed) {
		t.Fatal(err)
	}
}

// A rank that has received everything and does not call for a while is no reason for others to wait: what they need is given by the lane.
func TestServesWhileNobodyCalls(t *testing.T) {
	c := small(2, 0)
	c.FirstChunk, c.StepTimeout = -1, hang
	ranks := newRanks(t, "sim", setup{Config: c})
	over := make(chan struct{})
	each(t, ranks, func(r *rank) error {
		w := dummies(rand.New(rand.NewPCG(1, 7)), r, 48)
		for i := range w.in.N * r.cfg.TopK { // all of it goes to rank 0
			le.PutUint32(w.in.IDs.Data[4*i:], 0)
		}
		p, err := r.lanes[0].DispatchSend(within(t), &w.in)
		if err != nil {
			return err
		}
		if r.i == 1 {
			if _, err := p.Recv(within(t), &w.out); err != nil {
				return err
			}
			select {
			case <-over:
				return nil
			case <-within(t).Done():
				return errors.New("rank 0 waits for what this one has")
			}
		}
		_, err = p.Recv(within(t), &w.out)
		close(over)
		return err
	})
}
