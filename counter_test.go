package hawser_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
)

// back is a as a peer of b.
func (p *pair) back(t testing.TB) *hawser.Peer {
	t.Helper()
	from, err := p.b.Connect(testContext(t), p.a.Addr())
	if err != nil {
		t.Fatal(err)
	}
	return from
}

// signal sends n immediates from a to b and waits until they have been sent.
func (p *pair) signal(t testing.TB, imm uint32, n int) {
	t.Helper()
	for range n {
		tr, err := p.a.Signal(hawser.Signal{To: p.rem.Peer(), Imm: imm})
		wait(t, tr, err)
	}
}

func receive[T any](t testing.TB, what string, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(hang):
		t.Fatalf("%s: not within %v", what, hang)
		panic("unreachable")
	}
}

func TestOnReachRunsOnce(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		p := w.pair(t, 1, 1, 4096)
		c, calls := p.b.Counter(1), make(chan uint64, 16)
		c.OnReach(0, func() { calls <- 0 }) // reached already
		if n := receive(t, "a count that is reached", calls); n != 0 {
			t.Fatalf("call of %d", n)
		}
		for n := uint64(5); n > 0; n-- {
			c.OnReach(n, func() {
				if c.Load() < n {
					t.Errorf("called for %d at %d", n, c.Load())
				}
				calls <- n
			})
		}
		stopped := c.OnReach(2, func() { t.Error("called after stop") })
		stopped()
		seen := map[uint64]int{}
		p.signal(t, 1, 3)
		for range 3 {
			seen[receive(t, "a count that was reached", calls)]++
		}
		p.signal(t, 1, 2)
		for range 2 {
			seen[receive(t, "a count that was reached", calls)]++
		}
		c.OnReach(1, func() { calls <- 99 }) // what was called before is not called again before this
		if n := receive(t, "a count that is reached", calls); n != 99 || len(seen) != 5 {
			t.Fatalf("called %v, then %d", seen, n)
		}
	})
}

// stop also takes back a call that waits for the callback before it.
func TestStoppedCallbackDoesNotRun(t *testing.T) {
	e := newWorld(t, "sim").engine(t, 0, 1)
	c, leave, after := e.Counter(1), make(chan struct{}), make(chan struct{})
	c.OnReach(0, func() { <-leave })
	stop := c.OnReach(0, func() { t.Error("called after stop") })
	stop()
	stop()
	c.OnReach(0, func() { close(after) })
	close(leave)
	receive(t, "the callback after it", after)
}

// One failing callback of a user stops neither the engine nor other callbacks, whichever way it fails and whatever logs it.
func TestFailingCallbackHurtsNobody(t *testing.T) {
	o := newWorld(t, "sim").options(0, 1)
	o.Log = newSlowLog("a callback panicked", func() { panic("so does the log") })
	e := open(t, o)
	after := make(chan struct{}, 2)
	e.Counter(1).OnReach(0, func() { panic("a user's mistake") })
	e.Counter(1).OnReach(0, func() { after <- struct{}{} })
	e.Counter(1).OnReach(0, func() { runtime.Goexit() })
	e.Counter(1).OnReach(0, func() { after <- struct{}{} })
	receive(t, "the callback after one that panicked", after)
	receive(t, "the callback after one that left", after)
	if n := e.Stats().Callbacks.Panics; n != 1 {
		t.Fatalf("%d panics counted, want 1", n)
	}
}

func TestPanicOfACallbackIsLogged(t *testing.T) {
	o := newWorld(t, "sim").options(0, 1)
	r, w := io.Pipe()
	o.Log = slog.New(slog.NewTextHandler(w, nil))
	lines := make(chan string, 1)
	go func() {
		all := make([]byte, 1<<16)
		for {
			n, err := r.Read(all)
			if err != nil {
				return
			}
			if s := string(all[:n]); strings.Contains(s, "a user's mistake") {
				lines <- s
			}
		}
	}()
	t.Cleanup(func() { _ = r.Close() })
	e := open(t, o)
	e.Counter(1).OnReach(0, func() { panic("a user's mistake") })
	if line := receive(t, "the log line", lines); !strings.Contains(line, "counter_test.go") {
		t.Fatalf("the stack is not in the log: %s", line)
	}
}

// Memory that a callback may look at goes with the engine: what is queued when Close is called does not run.
func TestOnReachDoesNotRunAfterClose(t *testing.T) {
	w := newWorld(t, "sim")
	p := w.pair(t, 1, 1, 4096)
	c, entered, leave := p.b.Counter(1), make(chan struct{}), make(chan struct{})
	c.OnReach(0, func() {
		close(entered)
		<-leave
	})
	<-entered
	c.OnReach(0, func() { t.Error("a callback ran while the engine closed") })
	c.OnReach(1, func() { t.Error("a callback ran for a count that was not reached") })
	closed := make(chan error, 1)
	go func() { closed <- p.b.Close(context.Background()) }()
	receive(t, "the engine closes", c.Done(1)) // its waits have ended
	close(leave)
	if err := receive(t, "close", closed); err != nil {
		t.Fatal(err)
	}
	c.OnReach(0, func() { t.Error("a callback ran after the engine closed") })
}

// A slow callback delays callbacks and nothing else.
func TestSlowCallbackHoldsUpNoCounting(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		p := w.pair(t, 1, 1, 4096)
		leave := make(chan struct{})
		p.b.Counter(1).OnReach(1, func() { <-leave })
		p.signal(t, 1, 100)
		reach(t, p.b.Counter(1), 100)
		close(leave)
	})
}

func TestClosedCounterEndsWaits(t *testing.T) {
	e := newWorld(t, "sim").engine(t, 0, 1)
	c, ends := e.Counter(1), make(chan error, 4)
	go func() { ends <- c.Wait(testContext(t), 1) }()
	go func() { <-c.Done(1); ends <- hawser.ErrClosed }()
	go func() { _, err := hawser.WaitAny(testContext(t), hawser.Reach{Counter: c, N: 1}); ends <- err }()
	go func() { ends <- hawser.WaitAll(testContext(t), hawser.Reach{Counter: c, N: 1}) }()
	c.OnReach(1, func() { t.Error("called") })
	c.Close()
	for range cap(ends) {
		if err := receive(t, "a wait for a closed counter", ends); !errors.Is(err, hawser.ErrClosed) {
			t.Fatal(err)
		}
	}
	alone := e.Counter(2).Done(1) // nobody comes after Close, who would end it too
	e.Counter(2).Close()
	receive(t, "a channel that waited before", alone)
	if err := e.Counter(1).Wait(done(), 1); !errors.Is(err, context.Canceled) {
		t.Fatalf("the next counter of the value: %v", err)
	}
}

// done is a context that has ended.
func done() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func TestWaitForSets(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		p := w.pair(t, 1, 1, 4096)
		var set []hawser.Reach
		for v := range uint32(20) {
			set = append(set, hawser.Reach{Counter: p.b.Counter(v), N: 2})
		}
		if _, err := hawser.WaitAny(done(), set...); !errors.Is(err, context.Canceled) {
			t.Fatalf("none is reached: %v", err)
		}
		any := make(chan int, 1)
		go func() {
			i, err := hawser.WaitAny(testContext(t), set...)
			if err != nil {
				t.Error(err)
			}
			any <- i
		}()
		p.signal(t, 7, 1)
		p.signal(t, 13, 2)
		if i := receive(t, "any", any); i != 13 {
			t.Fatalf("counter %d is reached, want 13", i)
		}
		if i, err := hawser.WaitAny(done(), set...); i != 13 || err != nil {
			t.Fatalf("one is reached already: %d, %v", i, err)
		}
		err := hawser.WaitAll(done(), set[5:]...)
		if err == nil || !strings.Contains(err.Error(), "counter 0x7: 1 of 2") || strings.Contains(err.Error(), "0xd:") {
			t.Fatalf("some are missing: %v", err)
		}
		all := make(chan error, 1)
		go func() { all <- hawser.WaitAll(testContext(t), set...) }()
		for v := range uint32(20) {
			p.signal(t, v, 2)
		}
		if err := receive(t, "all", all); err != nil {
			t.Fatal(err)
		}
	})
	if _, err := hawser.WaitAny(testContext(t)); !errors.Is(err, hawser.ErrInvalid) {
		t.Fatalf("any of none: %v", err)
	}
}

func TestExpectNamesWhoOwes(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		b := w.engine(t, 0, 1)
		froms, want := make([]*hawser.Peer, 3), map[*hawser.Peer]uint64{}
		for i := range froms {
			o := w.options(1+i, 1)
			o.Name = string(rune('x' + i))
			a := open(t, o)
			to, err := a.Connect(testContext(t), b.Addr())
			if err != nil {
				t.Fatal(err)
			}
			if froms[i], err = b.Connect(testContext(t), a.Addr()); err != nil {
				t.Fatal(err)
			}
			want[froms[i]] = 2
			for range i + 1 { // x 1, y 2, z 3
				tr, err := a.Signal(hawser.Signal{To: to, Imm: 7})
				wait(t, tr, err)
			}
		}
		c := b.Counter(7)
		reach(t, c, 6) // as many as are expected, and not from whom they are
		var missing *hawser.MissingError
		err := c.Expect(done(), want)
		if !errors.As(err, &missing) || !errors.Is(err, context.Canceled) || errors.Is(err, hawser.ErrPeerDown) {
			t.Fatalf("x owes one: %v", err)
		}
		if missing.Imm != 7 || missing.Have != 5 || missing.Want != 6 || len(missing.Missing) != 1 {
			t.Fatalf("%+v", missing)
		}
		if m := missing.Missing[0]; m.Peer != froms[0] || m.Have != 1 || m.Want != 2 || m.Down != nil {
			t.Fatalf("%+v", m)
		}
		if text := err.Error(); !strings.Contains(text, "counter 0x7: 5 of 6, peer x/") || !strings.Contains(text, " 1 of 2: context canceled") {
			t.Fatal(text)
		}
		delete(want, froms[0])
		if err := c.Expect(done(), want); err != nil {
			t.Fatalf("nobody else owes: %v", err)
		}
		if err := c.Expect(testContext(t), map[*hawser.Peer]uint64{nil: 1}); !errors.Is(err, hawser.ErrInvalid) {
			t.Fatalf("nobody is expected: %v", err)
		}
	})
}

func TestExpectEndsWhenAllHaveSent(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		p := w.pair(t, 1, 1, 4096)
		c, want := p.b.Counter(1), map[*hawser.Peer]uint64{p.back(t): 50}
		ends := make(chan error, 1)
		go func() { ends <- c.Expect(testContext(t), want) }()
		p.signal(t, 1, 50)
		if err := receive(t, "expect", ends); err != nil {
			t.Fatal(err)
		}
	})
}

// A wait for a peer that owes something ends when it goes down, even when it is back at once; one without expectations goes on.
// lookedAt is a context that tells when somebody waits for its end.
type lookedAt struct {
	context.Context
	once   sync.Once
	looked chan struct{}
}

func (c *lookedAt) Done() <-chan struct{} {
	c.once.Do(func() { close(c.looked) })
	return c.Context.Done()
}

func TestDeadPeerEndsExpect(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		p := w.pair(t, 1, 1, 4096)
		from, c := p.back(t), p.b.Counter(1)
		p.signal(t, 1, 2)
		reach(t, c, 2)
		ends := make(chan error, 1)
		begun := &lookedAt{Context: context.Background(), looked: make(chan struct{})}
		go func() { ends <- c.Expect(begun, map[*hawser.Peer]uint64{from: 3}) }()
		<-begun.looked // else it may expect of the one that comes back
		patient, stop := context.WithCancel(context.Background())
		waits := make(chan error, 1)
		go func() { waits <- c.Wait(patient, 3) }()
		if err := p.b.Fence(testContext(t), from); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it is back", func() bool {
			_, err := p.a.Connect(testContext(t), p.b.Addr())
			return err == nil && from.Up()
		})
		err := receive(t, "expect", ends)
		var missing *hawser.MissingError
		if !errors.As(err, &missing) || !errors.Is(err, hawser.ErrPeerDown) {
			t.Fatalf("a peer that owes is down: %v", err)
		}
		if m := missing.Missing[0]; m.Peer != from || m.Have != 2 || m.Want != 3 || !errors.Is(m.Down, hawser.ErrPeerDown) {
			t.Fatalf("%+v", m)
		}
		if err := c.Expect(testContext(t), map[*hawser.Peer]uint64{from: 2}); err != nil {
			t.Fatalf("a peer that owes nothing: %v", err)
		}
		if err := p.a.Close(testContext(t)); err != nil {
			t.Fatal(err)
		}
		if err := c.Expect(context.Background(), map[*hawser.Peer]uint64{from: 3}); !errors.Is(err, hawser.ErrPeerDown) {
			t.Fatalf("a peer that is down already: %v", err)
		}
		select {
		case err := <-waits:
			t.Fatalf("a wait without expectations ended: %v", err)
		default:
		}
		stop()
		if err := receive(t, "wait", waits); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	})
}

// Who sends everything and leaves at once owes nothing, whatever is seen first: its farewell or what it sent.
func TestWhoSentAllAndLeftOwesNothing(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		b := w.engine(t, 0, 1)
		c := b.Counter(1)
		for range 20 {
			t.Run("leave", func(t *testing.T) {
				a := w.engine(t, 1, 1)
				to, err := a.Connect(testContext(t), b.Addr())
				if err != nil {
					t.Fatal(err)
				}
				from, err := b.Connect(testContext(t), a.Addr())
				if err != nil {
					t.Fatal(err)
				}
				ends := make(chan error, 1)
				go func() { ends <- c.Expect(testContext(t), map[*hawser.Peer]uint64{from: 10}) }()
				for range 10 {
					if _, err := a.Signal(hawser.Signal{To: to, Imm: 1}); err != nil {
						t.Fatal(err)
					}
				}
				if err := a.Close(testContext(t)); err != nil {
					t.Fatal(err)
				}
				if err := receive(t, "expect", ends); err != nil {
					t.Fatal(err)
				}
			})
		}
	})
}

func TestExpectEndsWithTheEngine(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		p := w.pair(t, 1, 1, 4096)
		from, ends := p.back(t), make(chan error, 1)
		go func() { ends <- p.b.Counter(1).Expect(context.Background(), map[*hawser.Peer]uint64{from: 1}) }()
		if err := p.b.Close(testContext(t)); err != nil {
			t.Fatal(err)
		}
		if err := receive(t, "expect", ends); !errors.Is(err, hawser.ErrClosed) {
			t.Fatal(err)
		}
	})
}

// Waiters of every kind, some of whom give up, against counting: nobody is forgotten, nobody wakes early.
func TestWaitersOfAllKindsTogether(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		p := w.pair(t, 1, 1, 4096)
		from, c := p.back(t), p.b.Counter(1)
		const total = 300
		var wg sync.WaitGroup
		var called atomic.Int64
		check := func(n uint64, err error) {
			if err != nil || c.Load() < n || c.From(from) < n {
				t.Errorf("woken for %d at %d: %v", n, c.Load(), err)
			}
		}
		for n := uint64(1); n <= total; n += 7 {
			wg.Go(func() { check(n, c.Wait(testContext(t), n)) })
			wg.Go(func() { <-c.Done(n); check(n, nil) })
			wg.Go(func() { check(n, c.Expect(testContext(t), map[*hawser.Peer]uint64{from: n})) })
			wg.Go(func() {
				_, err := hawser.WaitAny(testContext(t), hawser.Reach{Counter: p.b.Counter(2), N: 1}, hawser.Reach{Counter: c, N: n})
				check(n, err)
			})
			wg.Go(func() {
				ctx, cancel := context.WithCancel(context.Background())
				stop := c.OnReach(n, cancel)
				defer stop()
				_ = c.Wait(ctx, total+1)
				check(n, nil)
				called.Add(1)
			})
		}
		p.signal(t, 1, total)
		soon(t, "everybody wakes", wg.Wait)
		if n := called.Load(); n != (total+6)/7 {
			t.Fatalf("%d callbacks, want %d", n, (total+6)/7)
		}
	})
}
