package weights

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// TestVersionPaths: whatever way a rank came to its version, what it says, what the controller says of it, and its bytes agree; ranks that hold the same have one
// content root.
func TestVersionPaths(t *testing.T) {
	m := toy{instances: 2}.withDefaults()
	w := newWorld(t, networks["shm"](), m, change{shadow: true, receiver: func(o *ReceiverOptions) {
		o.Serving = 7
		if err := fillRank(o, 7); err != nil {
			t.Fatal(err)
		}
	}})
	agree := func(how string, want Version) {
		t.Helper()
		w.check(want)
		eventually(t, func() error {
			roots := map[int]string{}
			for _, s := range w.c.Status().Members {
				if s.Role != "receiver" {
					continue
				}
				if s.Version != want || s.Root == "" {
					return fmt.Errorf("%s: the controller says v%d of rank %d, with root %q; want v%d", how, s.Version, s.Rank, s.Root, want)
				}
				shard := s.Rank % m.ranks
				if r, ok := roots[shard]; ok && r != s.Root {
					return fmt.Errorf("%s: shard %d has two roots", how, shard)
				}
				roots[shard] = s.Root
			}
			if len(roots) != m.ranks {
				return fmt.Errorf("%s: %d shards", how, len(roots))
			}
			return nil
		})
	}
	agree("at the start", 7)
	w.mustPush(8)
	agree("pushed", 8)
	if _, err := w.c.Rollback(limit(t), 7); err != nil {
		t.Fatal(err)
	}
	agree("rolled back", 7)
	s := w.pushSlowly(9)
	s.release(0)
	s.verified(1)
	s.cancel()
	s.wg.Wait()
	if !errors.Is(s.err, ErrAborted) {
		t.Fatal(s.err)
	}
	w.settled()
	w.idle()
	agree("aborted", 7)
	for r, x := range w.recs {
		if err := x.Suspend(limit(t)); err != nil {
			t.Fatal(err)
		}
		again, shadow := alloc(t, x.eng, w.dst.Buffers[r]...), alloc(t, x.eng, w.dst.Buffers[r]...)
		copy(again[0].Bytes(), x.Active()[0].Bytes())
		if err := x.Resume(limit(t), again, shadow); err != nil {
			t.Fatal(err)
		}
	}
	agree("slept", 7)
	w.killController()
	w.restart(t.TempDir(), func(o *ControllerOptions) { o.JoinWindow = 50 * time.Millisecond })
	agree("under another controller", 7)
	w.mustPush(10)
	agree("pushed again", 10)
}

// fillRank gives a rank the bytes of a version, as a load from a checkpoint does.
func fillRank(o *ReceiverOptions, v Version) error {
	held, err := o.Layout.Held(o.Rank)
	if err != nil {
		return err
	}
	b := o.Regions[0].Bytes()
	for i := range held {
		tensor := &o.Layout.Tensors[held[i].Tensor]
		each(&held[i], tensor.Shape, func(index, off int64) { le.PutUint16(b[off:], word(tensor.Name, index, v)) })
	}
	return nil
}
