package weights

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/weights/proto"
	"github.com/hawser-project/hawser/weights/stage"
)

// slowly pushes a version stage by stage: stage k is ready when the caller has sent k.
type slowly struct {
	w      *world
	v      Version
	gates  []chan int
	report *Report
	err    error // of Update
	errs   []error
	cancel context.CancelFunc // gives up pushes that no epoch took
	wg     sync.WaitGroup
}

// pushSlowly begins an update whose stages the test releases.
func (w *world) pushSlowly(v Version) *slowly {
	w.Helper()
	w.fill(v)
	s := &slowly{w: w, v: v, errs: make([]error, len(w.pubs))}
	ctx, cancel := context.WithCancel(limit(w))
	w.Cleanup(cancel)
	s.cancel = cancel
	for i, p := range w.pubs {
		gate := make(chan int, 64)
		s.gates = append(s.gates, gate)
		s.wg.Go(func() { _, s.errs[i] = p.Push(ctx, v, gate) })
	}
	c := w.c
	s.wg.Go(func() {
		if s.report, s.err = c.Update(limit(w), v); s.err != nil && !errors.Is(s.err, hawser.ErrClosed) {
			cancel() // publishers that no epoch took would wait for ever
		}
	})
	return s
}

// release lets all publishers send a stage.
func (s *slowly) release(stages ...int) {
	for _, g := range s.gates {
		for _, k := range stages {
			g <- k
		}
	}
}

// stages of the toy.
func (s *slowly) stages() int { return s.w.model.layers + 2 }

func (s *slowly) rest(from int) {
	for k := from; k < s.stages(); k++ {
		s.release(k)
	}
}

// verified waits until every receiver of the epoch has verified a stage.
func (s *slowly) verified(stages int) {
	s.w.Helper()
	for _, x := range s.w.recs {
		eventually(s.w, func() error {
			x.mu.Lock()
			defer x.mu.Unlock()
			for _, in := range x.in {
				if in.done.Load() >= int64(stages) {
					return nil
				}
			}
			return fmt.Errorf("receiver %d has not verified %d stages", x.o.Rank, stages)
		})
	}
}

// kill ends a member without a word, then its engine.
func kill(s *station) {
	s.end()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = s.eng.Close(ctx)
}

// TestTrainerDeathRepair: a trainer dies in the middle of a push, another one has all that it had: the same version arrives, in an epoch of its
// own, and what was verified is not sent again.
func TestTrainerDeathRepair(t *testing.T) {
	for name, m := range map[string]toy{"raw": {replicas: 2}, "straddled": {replicas: 2, ranks: 1, fp8: true, rows: 192, cols: 256}} {
		t.Run(name, func(t *testing.T) {
			onNetworks(t, func(t *testing.T, open network) {
				w := newWorld(t, open, m, change{})
				w.mustPush(1)
				s := w.pushSlowly(2)
				s.release(0, 1)
				s.verified(2)
				kill(&w.pubs[3].station)
				s.rest(2)
				s.wg.Wait()
				if s.err != nil {
					t.Fatal(s.err)
				}
				if s.report.Repairs == 0 {
					t.Error("no repair")
				}
				for i, err := range s.errs[:3] {
					if err != nil {
						t.Errorf("publisher %d: %v", i, err)
					}
				}
				w.check(2)
			})
		})
	}
}

// TestTrainerDeathAbort: a trainer dies whose part nobody else has: the epoch aborts and says what is missing. In place the instance is out, a shadow goes on
// serving what it served.
func TestTrainerDeathAbort(t *testing.T) {
	for _, shadow := range []bool{false, true} {
		t.Run(fmt.Sprint("shadow=", shadow), func(t *testing.T) {
			onNetworks(t, func(t *testing.T, open network) {
				w := newWorld(t, open, toy{}, change{shadow: shadow})
				w.mustPush(1)
				s := w.pushSlowly(2)
				s.release(0, 1)
				s.verified(2)
				kill(&w.pubs[3].station)
				s.rest(2)
				s.wg.Wait()
				if !errors.Is(s.err, ErrAborted) || !errors.Is(s.err, ErrNoReplica) {
					t.Errorf("update ends with %v", s.err)
				}
				for i, err := range s.errs[:3] {
					if !errors.Is(err, ErrAborted) {
						t.Errorf("publisher %d: push ends with %v", i, err)
					}
				}
				for r, x := range w.recs {
					eventually(t, func() error {
						want := proto.StateFailed
						if shadow {
							want = proto.StateCommitted
						}
						if s := x.State(); s.State != want {
							return fmt.Errorf("receiver %d is %v, want %v", r, s.State, want)
						}
						return nil
					})
					if shadow {
						w.checkRank(r, 1)
					}
				}
			})
		})
	}
}

// TestTrainerGone: a trainer has died before a push. It goes on without, or says at once what nobody has any more.
func TestTrainerGone(t *testing.T) {
	for _, replicas := range []int{1, 2} {
		t.Run(fmt.Sprint("replicas=", replicas), func(t *testing.T) {
			w := newWorld(t, networks["shm"](), toy{replicas: replicas}, change{controller: func(o *ControllerOptions) { o.Limits.Return = time.Millisecond }})
			w.mustPush(1)
			kill(&w.pubs[3].station)
			w.pubs = w.pubs[:3]
			if replicas > 1 {
				w.mustPush(2)
				return
			}
			_, err := w.push(2)
			if !errors.Is(err, ErrAborted) || !errors.Is(err, ErrNoReplica) {
				t.Fatal(err)
			}
			for _, want := range []string{"publisher 3 is gone", "model.embed_tokens.weight", "rows [192,256)"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
			w.check(1)
		})
	}
}

// TestTrainerLeft: a trainer that was closed is waited for, as long as for one that never was there.
func TestTrainerLeft(t *testing.T) {
	w := newWorld(t, networks["shm"](), toy{}, change{controller: func(o *ControllerOptions) { o.Limits.Return = time.Millisecond }})
	w.mustPush(1)
	closeOf(t, w.pubs[3].Publisher.Close)
	ended := make(chan error, 1)
	go func() {
		_, err := w.c.Update(limit(t), 2)
		ended <- err
	}()
	eventually(t, func() error {
		select {
		case err := <-ended:
			t.Fatal(err)
		default:
		}
		if why := w.c.Status().Waits; why != "publisher 3 is not there, of 4" {
			return fmt.Errorf("update waits for %q", why)
		}
		return nil
	})
	w.pubs[3] = w.newTrainer(3, change{})
	w.fill(2)
	var wg sync.WaitGroup
	for _, p := range w.pubs {
		wg.Go(func() {
			if _, err := p.Push(limit(t), 2, nil); err != nil {
				t.Error(err)
			}
		})
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	w.check(2)
}

// TestInferenceDeath: a rank dies in the middle of a push, the leader or another: its instance is out, the other one commits.
func TestInferenceDeath(t *testing.T) {
	for _, dead := range []int{2, 3} { // of instance 1: its leader, and the other one
		t.Run(fmt.Sprint("rank ", dead), func(t *testing.T) {
			onNetworks(t, func(t *testing.T, open network) {
				w := newWorld(t, open, toy{instances: 2}, change{})
				w.mustPush(1)
				s := w.pushSlowly(2)
				s.release(0, 1)
				s.verified(2)
				kill(&w.recs[dead].station)
				s.rest(2)
				s.wg.Wait()
				if s.err != nil {
					t.Fatal(s.err)
				}
				if !slices.Equal(s.report.Serving, []int{0}) || len(s.report.Out) != 1 || s.report.Out[0].Instance != 1 {
					t.Errorf("instances %v serve, out are %v", s.report.Serving, s.report.Out)
				}
				w.checkRank(0, 2)
				w.checkRank(1, 2)
				if s := w.recs[5-dead].State(); s.State == proto.StateCommitted {
					t.Errorf("the other rank of the instance is %v", s.State)
				}
			})
		})
	}
}

// TestSecondUpdate: pushing the same version twice gives the same bytes, and another one in between leaves nothing behind.
func TestSecondUpdate(t *testing.T) {
	w := newWorld(t, networks["shm"](), toy{fp8: true}, change{})
	rootOf := func(v Version) proto.Hash {
		w.mustPush(v)
		eventually(t, func() error { return w.rooted(v) })
		return w.recs[0].State().Root
	}
	root := rootOf(1)
	if rootOf(2) == root {
		t.Error("two versions have one content root")
	}
	if rootOf(1) != root {
		t.Error("the same version has another content root")
	}
}

// TestPoisonTwoPatterns: whatever was there before, every byte is written.
func TestPoisonTwoPatterns(t *testing.T) {
	for _, pattern := range []uint16{0x7fff, 0x8000} {
		w := newWorld(t, networks["shm"](), toy{fp8: true, trainers: 3}, change{receiver: func(o *ReceiverOptions) { o.Poison = pattern }})
		w.mustPush(1)
		for r, x := range w.recs {
			pad := w.dst.Pads[r]
			if b := x.memory[0].Bytes()[pad.Offset : pad.Offset+pad.Len]; slices.ContainsFunc(b, func(b byte) bool { return b != 0 }) {
				t.Errorf("rank %d: the pad is not zero", r)
			}
		}
	}
}

// TestPushNothing: tensors without elements are pushed like others, though nobody has a byte to send.
func TestPushNothing(t *testing.T) {
	for _, shadow := range []bool{false, true} {
		w := newWorld(t, networks["shm"](), toy{cols: 128}, change{shadow: shadow})
		for v := Version(1); v <= 2; v++ {
			if r := w.mustPush(v); r.Bytes != 0 || len(r.Serving) != 1 {
				t.Errorf("report %+v", r)
			}
		}
	}
}

// TestBitFlip: one bit changes on the way: the digest says so, and nobody commits.
func TestBitFlip(t *testing.T) {
	onNetworks(t, func(t *testing.T, open network) {
		var w *world
		var flipped atomic.Bool
		w = newWorld(t, open, toy{}, change{
			publisher: func(o *PublisherOptions) { o.Verify = stage.All },
			receiver: func(o *ReceiverOptions) {
				o.Verify = stage.All
				if o.Rank != 1 {
					return
				}
				o.Hooks.PostLoad = func(_ context.Context, s int) error {
					if s != 0 {
						return nil
					}
					eventually(t, func() error { // all other stages are here, and not yet looked at
						if m := w.recs[1].State().Missing; len(m) > 0 {
							return fmt.Errorf("missing: %v", m)
						}
						return nil
					})
					flip := w.recs[1].extents[0]
					w.recs[1].memory[0].Bytes()[flip.off+flip.ln-1] ^= 0x10 // the head, which comes last
					flipped.Store(true)
					return nil
				}
			},
		})
		_, err := w.push(1)
		if !flipped.Load() || !errors.Is(err, ErrDigest) || !errors.Is(err, ErrAborted) {
			t.Errorf("flipped %v, update ends with %v", flipped.Load(), err)
		}
		for r, x := range w.recs {
			if s := x.State(); s.Version != 0 {
				t.Errorf("receiver %d serves v%d", r, s.Version)
			}
		}
	})
}

var _ = time.Second
