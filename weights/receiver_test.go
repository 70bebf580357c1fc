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
	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/weights/proto"
	"github.com/hawser-project/hawser/weights/stage"
)

// TestSuspendResume: a suspended rank makes an update fail before anybody is stopped, or its instance is left out; with its content kept it serves again, with its content
// lost it is empty, and the next push fills it.
func TestSuspendResume(t *testing.T) {
	var pauses atomic.Int64
	w := newWorld(t, networks["shm"](), toy{instances: 2}, change{receiver: func(o *ReceiverOptions) {
		o.Hooks.Pause = func(context.Context, Version) error { pauses.Add(1); return nil }
	}})
	w.mustPush(1)
	before := pauses.Load()
	for _, x := range w.recs[2:] {
		if err := x.Suspend(limit(t)); err != nil {
			t.Fatal(err)
		}
	}
	told(w, 3, proto.StateSuspended)
	if _, err := w.push(2); !errors.Is(err, ErrSuspended) || !strings.Contains(err.Error(), "instance 1") {
		t.Errorf("an update of a suspended instance ends with %v", err)
	}
	if n := pauses.Load(); n != before {
		t.Errorf("%d instances were stopped by an update that was refused", n-before)
	}
	w.c.o.SkipSuspended = true
	report, err := w.push(2)
	if err != nil || !slices.Equal(report.Serving, []int{0}) {
		t.Fatalf("%v serve: %v", report, err)
	}
	// The memory is mapped anew: of rank 2 with what it held, of rank 3 without.
	for i, x := range w.recs[2:] {
		again := alloc(t, x.eng, w.dst.Buffers[2+i]...)
		if i == 0 {
			copy(again[0].Bytes(), x.memory[0].Bytes())
		}
		if err := x.memory[0].Close(); err != nil {
			t.Fatal(err)
		}
		x.memory = again
		if err := x.Resume(limit(t), again, nil); err != nil {
			t.Fatal(err)
		}
	}
	if s := w.recs[2].State(); s.State != proto.StateCommitted || s.Version != 1 {
		t.Errorf("with its content kept: %v v%d", s.State, s.Version)
	}
	if s := w.recs[3].State(); s.State != proto.StateEmpty || s.Version != 0 {
		t.Errorf("with its content lost: %v v%d", s.State, s.Version)
	}
	w.mustPush(3)
}

// told waits until the controller knows the state of a receiver.
func told(w *world, rank int, s proto.State) {
	w.Helper()
	eventually(w, func() error {
		for _, m := range w.c.Status().Members {
			if m.Role == "receiver" && m.Rank == rank && m.State != s.String() {
				return fmt.Errorf("receiver %d is %s, want %v", rank, m.State, s)
			}
		}
		return nil
	})
}

// TestHookFailure: Pause, PostLoad or Flip that fails, hangs or panics makes its instance fail within its time, and the push ends with an error that says so; nothing is
// written where Pause failed.
func TestHookFailure(t *testing.T) {
	broken := errors.New("the engine says no")
	ways := map[string]func(context.Context) error{
		"fails":  func(context.Context) error { return broken },
		"hangs":  func(ctx context.Context) error { <-ctx.Done(); <-make(chan int); return nil },
		"panics": func(context.Context) error { panic("no") },
	}
	for way, f := range ways {
		for _, hook := range []string{"Pause", "PostLoad", "Flip"} {
			t.Run(hook+" "+way, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, networks["shm"](), toy{}, change{receiver: func(o *ReceiverOptions) {
					o.Limits.Pause, o.Limits.PostLoad = 200*time.Millisecond, 200*time.Millisecond
					if o.Rank != 0 {
						return
					}
					switch hook {
					case "Pause":
						o.Hooks.Pause = func(ctx context.Context, _ Version) error { return f(ctx) }
					case "PostLoad":
						o.Hooks.PostLoad = func(ctx context.Context, _ int) error { return f(ctx) }
					case "Flip":
						o.Hooks.Flip = func(ctx context.Context, _ Version) error { return f(ctx) }
					}
				}})
				noise(w.recs[1].memory[0].Bytes(), 7)
				before := slices.Clone(w.recs[1].memory[0].Bytes())
				_, err := w.push(1)
				if err == nil || !strings.Contains(err.Error(), hook) {
					t.Errorf("push ends with %v", err)
				}
				if hook == "Pause" && !slices.Equal(before, w.recs[1].memory[0].Bytes()) {
					t.Error("something was written though the engine was not stopped")
				}
				for r, x := range w.recs {
					eventually(t, func() error {
						if s := x.State(); s.Version != 0 {
							return fmt.Errorf("receiver %d serves v%d", r, s.Version)
						}
						return nil
					})
				}
			})
		}
	}
}

// TestNoWriteBeforePause: nothing is written before the leader's Pause has returned, on any rank of the instance.
func TestNoWriteBeforePause(t *testing.T) {
	var w *world
	w = newWorld(t, networks["shm"](), toy{}, change{receiver: func(o *ReceiverOptions) {
		o.Hooks.Pause = func(context.Context, Version) error {
			before := slices.Clone(w.recs[1].memory[0].Bytes())
			time.Sleep(100 * time.Millisecond) // time for a write that must not come
			if !slices.Equal(before, w.recs[1].memory[0].Bytes()) {
				t.Error("written before the engine was stopped")
			}
			return nil
		}
	}})
	w.mustPush(1)
	w.mustPush(2)
}

// TestPushLeaves: a Push whose context ends is quiet when it returns, and its rank is lost to the epoch.
func TestPushLeaves(t *testing.T) {
	onNetworks(t, func(t *testing.T, open network) {
		w := newWorld(t, open, toy{}, change{})
		w.fill(1)
		gates := make([]chan int, len(w.pubs))
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		errs := make([]error, len(w.pubs))
		for i, p := range w.pubs {
			gates[i] = make(chan int, 64)
			c := limit(t)
			if i == 1 {
				c = ctx
			}
			wg.Go(func() { _, errs[i] = p.Push(c, 1, gates[i]) })
		}
		wg.Go(func() {
			_, err := w.c.Update(limit(t), 1)
			if !errors.Is(err, ErrAborted) {
				t.Errorf("update ends with %v", err)
			}
		})
		for _, g := range gates {
			g <- 0
		}
		s := &slowly{w: w}
		s.verified(1)
		cancel()
		wg.Wait()
		if !errors.Is(errs[1], ErrInDoubt) {
			t.Errorf("the push that left ends with %v", errs[1])
		}
		if n := w.pubs[1].eng.Stats().Inflight; n != 0 {
			t.Errorf("%d operations are in flight after Push has returned", n)
		}
		if !errors.Is(errs[0], ErrAborted) {
			t.Errorf("the others end with %v", errs[0])
		}
	})
}

// TestLostRun and TestDuplicateRun: a publisher that leaves a run out is named; one that writes another one in its place is found by the digest.
func TestLostRun(t *testing.T)      { testWrongRuns(t, false, "publisher 2") }
func TestDuplicateRun(t *testing.T) { testWrongRuns(t, true, "digest") }

func testWrongRuns(t *testing.T, again bool, says string) {
	onNetworks(t, func(t *testing.T, open network) {
		w := newWorld(t, open, toy{}, change{
			publisher: func(o *PublisherOptions) { o.Verify = stage.All },
			receiver:  func(o *ReceiverOptions) { o.Verify = stage.All; o.Poison = 0x7fff },
			controller: func(o *ControllerOptions) {
				o.Limits.Push, o.Limits.PostLoad = time.Second, time.Second
			},
		})
		p := w.pubs[2]
		p.mu.Lock()
		fits := p.fits
		p.fits = func(m proto.Mode, s *reshard.Slice) error {
			spoil(s, again)
			return fits(m, s)
		}
		p.mu.Unlock()
		_, err := w.push(1)
		if !errors.Is(err, ErrAborted) || !strings.Contains(err.Error(), says) {
			t.Errorf("update ends with %v, want a word about %q", err, says)
		}
		if again && !errors.Is(err, ErrDigest) {
			t.Errorf("update ends with %v", err)
		}
	})
}

// spoil removes the first run of a slice's second stage, or replaces it by the next one.
func spoil(s *reshard.Slice, again bool) {
	for i := range s.Tasks {
		if t := &s.Tasks[i]; t.Stage == 1 {
			if again {
				for k := i + 1; k < len(s.Tasks); k++ {
					if o := &s.Tasks[k]; o.Stage == 1 && o.Runs[0].Peer == t.Runs[0].Peer {
						s.Tasks[i] = *o
						return
					}
				}
			}
			t.Runs = t.Runs[1:]
			return
		}
	}
}

// TestPostLoadScope: PostLoad comes once for each stage, when all of its bytes are here, whatever becomes of the others.
func TestPostLoadScope(t *testing.T) {
	var w *world
	var mu sync.Mutex
	calls := map[int][]int{}
	w = newWorld(t, networks["shm"](), toy{}, change{receiver: func(o *ReceiverOptions) {
		o.Hooks.PostLoad = func(_ context.Context, s int) error {
			mu.Lock()
			defer mu.Unlock()
			calls[o.Rank] = append(calls[o.Rank], s)
			x := w.recs[o.Rank]
			for _, m := range x.State().Missing {
				if m.Stage == w.pubs[0].Stages()[s] {
					t.Errorf("PostLoad of %s while it is missing from publisher %d", m.Stage, m.Publisher)
				}
			}
			return nil
		}
	}})
	w.mustPush(1)
	for r := range w.recs {
		if want := []int{0, 1, 2, 3, 4, 5}; !slices.Equal(calls[r], want) {
			t.Errorf("receiver %d: PostLoad of %v, want %v", r, calls[r], want)
		}
	}
}

// TestDerivedRebuilt: the hook of a derived tensor runs on every rank after Flip and before Resume; a layout that wants one that is not there cannot switch.
func TestDerivedRebuilt(t *testing.T) {
	var mu sync.Mutex
	var events []string
	note := func(what string) func(context.Context, Version) error {
		return func(context.Context, Version) error {
			mu.Lock()
			defer mu.Unlock()
			events = append(events, what)
			return nil
		}
	}
	m := toy{ranks: 1}
	layout := m.withDefaults().destination()
	layout.Derived = []reshard.Derived{{Name: "w_kc", From: []string{"lm_head.weight"}, Hook: "absorb"}}
	w := newWorld(t, networks["shm"](), m, change{receiver: func(o *ReceiverOptions) {
		o.Layout = layout
		o.Hooks = Hooks{
			Pause: note("pause"), Resume: note("resume"), Flip: note("flip"), Committed: note("committed"),
			Derived: map[string]func(context.Context, Version) error{"absorb": note("derived")},
		}
	}})
	w.mustPush(1)
	if want := []string{"pause", "flip", "derived", "committed", "resume"}; !slices.Equal(events, want) {
		t.Errorf("%v, want %v", events, want)
	}
	w.recs[0].mu.Lock()
	w.recs[0].Receiver.o.Hooks.Derived = nil
	w.recs[0].mu.Unlock()
	if _, err := w.push(2); err == nil || !strings.Contains(err.Error(), "absorb") {
		t.Errorf("a switch without the hook ends with %v", err)
	}
}

// TestJoinMidPush: an instance that comes in the middle of a push changes nothing for the push, and gets the version from one that serves it.
func TestJoinMidPush(t *testing.T) {
	onNetworks(t, func(t *testing.T, open network) {
		ch := change{controller: func(o *ControllerOptions) { o.Copy = true; o.Expect = 6 }}
		w := newWorld(t, open, toy{instances: 2}, ch)
		late := w.recs[2:]
		w.recs = w.recs[:2]
		for _, x := range late { // they go, and come back as empty ones in the middle of the push
			kill(&x.station)
		}
		s := w.pushSlowly(1)
		s.release(0, 1)
		s.verified(2)
		for r := 2; r < 4; r++ {
			w.recs = append(w.recs, w.newRank(r, ch))
		}
		s.rest(2)
		s.wg.Wait()
		if s.err != nil || !slices.Equal(s.report.Serving, []int{0}) {
			t.Fatalf("%+v: %v", s.report, s.err)
		}
		for _, x := range w.recs[2:] {
			eventually(t, func() error {
				if s := x.State(); s.Version != 1 {
					return fmt.Errorf("receiver %d is %v, v%d", s.Rank, s.State, s.Version)
				}
				return nil
			})
		}
		w.check(1)
		w.mustPush(2)
	})
}

// TestRollback: with a shadow the version before is taken back without a byte on the wire.
func TestRollback(t *testing.T) {
	w := newWorld(t, networks["shm"](), toy{}, change{shadow: true})
	w.mustPush(1)
	w.mustPush(2)
	eventually(t, func() error {
		for _, m := range w.c.Status().Members {
			if m.Role == "receiver" && m.Held != 1 {
				return fmt.Errorf("receiver %d keeps v%d", m.Rank, m.Held)
			}
		}
		return nil
	})
	if _, err := w.c.Rollback(limit(t), 1); err != nil {
		t.Fatal(err)
	}
	w.check(1)
	if _, err := w.c.Rollback(limit(t), 7); !errors.Is(err, ErrVersion) {
		t.Errorf("rollback to a version that nobody has ends with %v", err)
	}
	w.mustPush(3)
}

// TestClient: another process sees what the controller sees, and its errors.
func TestClient(t *testing.T) {
	w := newWorld(t, networks["tcp"](), toy{}, change{})
	c, err := Dial(limit(t), w.open(t, "client"), w.ctl.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	w.fill(1)
	var wg sync.WaitGroup
	for _, p := range w.pubs {
		wg.Go(func() {
			if _, err := p.Push(limit(t), 1, nil); err != nil {
				t.Error(err)
			}
		})
	}
	report, err := c.Update(limit(t), 1, false)
	wg.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if want := w.model.rows * w.model.cols * 2 * int64(len(w.src.Tensors)); report.Bytes != want || report.Wall <= 0 || !slices.Equal(report.Serving, []int{0}) {
		t.Errorf("report %+v, want %d bytes", report, want)
	}
	s, err := c.Status(limit(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Members) != 6 || s.Version != 1 || s.Members[5].Version != 1 {
		t.Errorf("status %+v", s)
	}
	eventually(t, func() error {
		if s, err := c.Status(limit(t)); err != nil || s.Members[5].Root == "" {
			return fmt.Errorf("status %+v: %w", s, err)
		}
		return nil
	})
	if _, err := c.Rollback(limit(t), 9); !errors.Is(err, ErrVersion) {
		t.Errorf("rollback ends with %v", err)
	}
	if _, err := c.Decide(limit(t), 99, true, false); !errors.Is(err, hawser.ErrInvalid) {
		t.Errorf("decide ends with %v", err)
	}
}

// A rank that is alone with what it holds takes its root when it serves the version; until then, and with digests off, the root is not known. It is when the rank is
// suspended, and so the rank serves again afterwards, and with other content it does not.
func TestRootOfOneAlone(t *testing.T) {
	for _, verify := range []stage.Verify{stage.Sampled, stage.Off} {
		t.Run(fmt.Sprint("verify ", verify), func(t *testing.T) {
			w := newWorld(t, networks["shm"](), toy{}, change{
				receiver:  func(o *ReceiverOptions) { o.Verify = verify },
				publisher: func(o *PublisherOptions) { o.Verify = verify },
			})
			for v := Version(1); v <= 3; v++ { // with the root of the one before under way
				w.mustPush(v)
			}
			if verify == stage.Off {
				if root := w.recs[0].State().Root; root != (proto.Hash{}) {
					t.Errorf("digests are off, and there is a root, %v", root)
				}
			} else {
				eventually(t, func() error { return w.rooted(3) })
			}
			w.mustPush(4)
			for r, x := range w.recs {
				if err := x.Suspend(limit(t)); err != nil {
					t.Fatal(err)
				}
				again := alloc(t, x.eng, w.dst.Buffers[r]...)
				copy(again[0].Bytes(), x.memory[0].Bytes())
				again[0].Bytes()[64] ^= byte(r) // of rank 1 another bit
				if err := x.memory[0].Close(); err != nil {
					t.Fatal(err)
				}
				x.memory = again
				if err := x.Resume(limit(t), again, nil); err != nil {
					t.Fatal(err)
				}
			}
			if s := w.recs[0].State(); s.State != proto.StateCommitted || s.Version != 4 {
				t.Errorf("with its content kept: %v v%d", s.State, s.Version)
			}
			if s := w.recs[1].State(); s.State != proto.StateEmpty || s.Version != 0 {
				t.Errorf("with other content: %v v%d", s.State, s.Version)
			}
			told(w, 0, proto.StateCommitted)
			told(w, 1, proto.StateEmpty)
			w.mustPush(5)
		})
	}
}

// rooted reports whether the roots of all receivers are those of a version, as the memory has it.
func (w *world) rooted(v Version) error {
	for i, x := range w.recs {
		want, err := x.rootOf(w.Context(), x.Active())
		if err != nil {
			return err
		}
		if s := x.State(); s.Version != v || s.Root != want {
			return fmt.Errorf("receiver %d: v%d with the root %v, want v%d with %v", i, s.Version, s.Root, v, want)
		}
	}
	return nil
}
