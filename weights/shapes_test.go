package weights

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hawser-project/hawser/weights/proto"
)

// TestZeroShard: ranks that hold nothing of a tensor, or nothing at all, take part in a push.
func TestZeroShard(t *testing.T) {
	for name, m := range map[string]toy{
		"trainers": {trainers: 6, rows: 4, cols: 64}, "replicated": {trainers: 8, replicas: 2, rows: 2, cols: 64},
	} {
		t.Run(name, func(t *testing.T) {
			onNetworks(t, func(t *testing.T, open network) {
				m := m.withDefaults()
				src := m.source()
				for r := range src.Buffers {
					if held, err := src.Held(r); err != nil {
						t.Fatal(err)
					} else if len(held) == 0 {
						src.Buffers[r] = []int64{0} // offsets are beyond its end
					}
				}
				w := newWorldOf(t, open, m, src, m.destination(), change{})
				w.mustPush(1)
				w.mustPush(2)
			})
		})
	}
}

// TestSmallTensors: thousands of tensors of a few bytes.
func TestSmallTensors(t *testing.T) {
	onNetworks(t, func(t *testing.T, open network) {
		w := newWorld(t, open, toy{layers: 1500, rows: 4, cols: 8}, change{})
		for v := Version(1); v < 3; v++ {
			r := w.mustPush(v)
			t.Logf("%d tensors: %d writes of %d bytes together in %v", len(w.src.Tensors), r.Writes, r.Bytes, r.Wall)
		}
	})
}

// TestEmptyPush: an update is not well because nobody has said otherwise: without an offer, and without bytes, no rank serves it, and Update says so.
func TestEmptyPush(t *testing.T) {
	w := newWorld(t, networks["shm"](), toy{}, change{receiver: func(o *ReceiverOptions) {
		o.Hooks.Pause = func(_ context.Context, v Version) error {
			if v == 2 {
				t.Error("the engine is stopped for a version that nobody offers")
			}
			return nil
		}
	}})
	w.mustPush(1)
	short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := w.c.Update(short, 2); !errors.Is(err, ErrAborted) {
		t.Errorf("an update that nobody offers ends with %v", err)
	}
	w.check(1)
	s := w.pushSlowly(3) // of which no stage is ever ready
	eventually(t, func() error {
		if s := w.pubs[0].State(); s != proto.StateWriting {
			return fmt.Errorf("publisher 0 is %v", s)
		}
		return nil
	})
	s.cancel()
	s.wg.Wait()
	if !errors.Is(s.err, ErrAborted) {
		t.Errorf("an update without bytes ends with %v", s.err)
	}
	w.settled()
	w.idle()
	for r, x := range w.recs {
		if s := x.State(); s.Version != 0 {
			t.Errorf("receiver %d serves v%d", r, s.Version)
		}
	}
	w.mustPush(4)
}
