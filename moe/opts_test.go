package moe

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/moe/backend"
)

// Weights that travel reach the experts' rank, with source and token of each row, and the sums are without; Accumulate and Bias add to them.
func TestSendWeights(t *testing.T) {
	c := small(2, 2)
	c.Lanes, c.Meta = 1, true
	ranks := newRanks(t, "sim", setup{Config: c})
	each(t, ranks, func(r *rank) error {
		w, l, ctx := dummies(rand.New(rand.NewPCG(1, 7)), r, 48), r.lanes[0], within(t)
		w.out.Weights, w.out.SrcRank, w.out.SrcToken = tensor(48, 1), tensor(48, 1), tensor(48, 1)
		for _, x := range []*Tensor{&w.out.Weights, &w.out.SrcRank, &w.out.SrcToken} {
			x.Shape = [3]int{0, 0, 48}
		}
		w.out.SrcRank.Type, w.out.SrcToken.Type = backend.I32, backend.I32
		p, err := l.DispatchSend(ctx, &w.in, SendWeights())
		if err != nil {
			return err
		}
		h, err := p.Recv(ctx, &w.out)
		if err != nil {
			return err
		}
		for row := range int(h.Offsets()[len(h.Offsets())-1]) {
			src, token := le.Uint32(w.out.SrcRank.Data[4*row:]), le.Uint32(w.out.SrcToken.Data[4*row:])
			if x := get(w.out.X, row*r.cfg.Hidden); src > 1 || x != float32(token) || get(w.out.Weights, row) != 0.5 {
				return fmt.Errorf("row %d: rank %d, token %d, weight %v, begins with %v", row, src, token, get(w.out.Weights, row), x)
			}
		}
		r.compute(w, h.Counts(), h.Offsets(), 0)
		s, err := h.CombineSend(ctx, w.y)
		if err != nil {
			return err
		}
		bias := tensor(w.in.N, r.cfg.Hidden)
		for i := range w.want {
			put(w.sum, i, 100)
			put(bias, i, 7)
		}
		if err := s.Recv(ctx, w.sum, CombineOpts{Accumulate: true, Bias: []Tensor{bias}}); err != nil {
			return err
		}
		for i := range w.want {
			if want := 107 + 2*w.want[i]; get(w.sum, i) != want { // half of it was weighted
				return fmt.Errorf("element %d is %v, want %v", i, get(w.sum, i), want)
			}
		}
		return nil
	})
	plain := newRanks(t, "sim", setup{Config: small(2, 2)})
	w := dummies(rand.New(rand.NewPCG(1, 7)), plain[0], 48)
	if _, err := plain[0].lanes[0].DispatchSend(context.Background(), &w.in, SendWeights()); !errors.Is(err, hawser.ErrInvalid) {
		t.Errorf("records without room for weights: %v", err)
	}
}

// Lanes between two steps cost nothing: no goroutine of theirs looks for work.
func TestIdleLanesSleep(t *testing.T) {
	ranks := newRanks(t, "shm", setup{Config: small(2, 2)})
	begin(t, ranks, make([]*work, 2))
	used := func() time.Duration {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
			t.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	for tries := 0; ; tries++ { // what is left of the tests before may still be busy
		before := used()
		time.Sleep(300 * time.Millisecond)
		if took := used() - before; took < 9*time.Millisecond { // of two engines and four lanes: 3 %
			return
		} else if tries == 10 {
			t.Fatalf("%v of 300 ms in which nothing was asked for", took)
		}
	}
}
