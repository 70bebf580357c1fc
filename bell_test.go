package hawser_test

import (
	"context"
	"errors"
	"math/bits"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
)

// One goroutine waits for counts of a block and for its own ends, and misses none.
func TestABellRingsForBlocksAndQueues(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		p := w.pair(t, 1, 1, 4096)
		r, err := p.b.Imms().Reserve("test", 0x10000, 16, 7)
		if err != nil {
			t.Fatal(err)
		}
		bell := p.b.NewBell()
		block, err := bell.Open(r, 1)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.a.NewBell().Open(r, 2); !errors.Is(err, hawser.ErrInvalid) {
			t.Fatalf("bell of another engine: %v", err)
		}
		back, q, ends := p.back(t), bell.NewQueue(8), make([]hawser.Done, 8)
		counts, ended := map[int]uint64{}, 0
		look := func() {
			ended += q.Poll(ends)
			for word := range block.Words() {
				for m := block.Changed(word); m != 0; m &= m - 1 {
					i := 64*word + bits.TrailingZeros64(m)
					counts[i] = block.Counter(i).Load()
				}
			}
		}
		for round := range uint64(50) {
			seen := bell.Rung()
			look()
			sent := make(chan error, 1)
			go func() {
				for _, v := range []uint32{0x10083, 0x100ff, 0x10083} {
					tr, err := p.a.Signal(hawser.Signal{To: p.rem.Peer(), Imm: v})
					if err == nil {
						err = tr.Wait(context.Background())
					}
					if err != nil {
						sent <- err
						return
					}
				}
				sent <- nil
			}()
			if err := q.Signal(hawser.Signal{To: back, Imm: 1}, 0); err != nil {
				t.Fatal(err)
			}
			for counts[3] < 2*(round+1) || counts[0x7f] < round+1 || ended < int(round)+1 {
				if err := bell.Wait(testContext(t), seen, time.Time{}); err != nil {
					t.Fatalf("%v: %v, %d ends", err, counts, ended)
				}
				seen = bell.Rung()
				look()
			}
			if err := <-sent; err != nil {
				t.Fatal(err)
			}
		}
		if err := block.Counter(3).Wait(testContext(t), 100); err != nil {
			t.Fatal(err)
		}
	})
}

func TestABellThatIsWaitedForEndsWithItsContextDeadlineAndEngine(t *testing.T) {
	e := newWorld(t, "sim").engine(t, 0, 1)
	b := e.NewBell()
	if err := b.Wait(expired(), b.Rung(), time.Time{}); !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	for _, d := range []time.Duration{20 * time.Millisecond, time.Hour, 5 * time.Millisecond} { // the second is cut short by a ring
		start := time.Now()
		if d == time.Hour {
			time.AfterFunc(10*time.Millisecond, b.Ring)
		}
		for seen := b.Rung(); time.Since(start) < d && b.Rung() == seen; {
			if err := b.Wait(testContext(t), seen, start.Add(d)); err != nil {
				t.Fatal(err)
			}
		}
	}
	seen, c := b.Rung(), make(chan struct{}, 1)
	if !b.Arm(&c, seen) {
		t.Fatal("it has not rung")
	}
	b.Ring()
	receive(t, "the ring", c)
	b.Ring()
	if b.Arm(&c, seen) {
		t.Fatal("it has rung")
	}
	ended := make(chan error, 1)
	go func() {
		for {
			if err := b.Wait(context.Background(), b.Rung(), time.Time{}); err != nil {
				ended <- err
				return
			}
		}
	}()
	if err := e.Close(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, "wait", ended); !errors.Is(err, hawser.ErrClosed) {
		t.Fatal(err)
	}
}

func TestABellAllocatesNothing(t *testing.T) {
	for _, name := range hostWorlds() {
		t.Run(name, func(t *testing.T) {
			p := newWorld(t, name).pair(t, 1, 1, 4096)
			r, err := p.b.Imms().Reserve("test", 0x10000, 16, 6)
			if err != nil {
				t.Fatal(err)
			}
			bell := p.b.NewBell()
			block, err := bell.Open(r, 0)
			if err != nil {
				t.Fatal(err)
			}
			q, ends, ctx, n := p.a.NewQueue(8), make([]hawser.Done, 8), testContext(t), uint64(0)
			round := func() {
				n++
				seen := bell.Rung()
				if err := q.Signal(hawser.Signal{To: p.rem.Peer(), Imm: 0x10005}, 0); err != nil {
					t.Fatal(err)
				}
				for block.Counter(5).Load() < n {
					if err := bell.Wait(ctx, seen, time.Now().Add(time.Minute)); err != nil {
						t.Fatal(err)
					}
					seen = bell.Rung()
				}
				if _, err := q.Wait(ctx, ends); err != nil {
					t.Fatal(err)
				}
			}
			for range 20 {
				round()
			}
			if avg := testing.AllocsPerRun(100, round); avg > 0 {
				t.Fatalf("%v allocations for a wait", avg)
			}
		})
	}
}
