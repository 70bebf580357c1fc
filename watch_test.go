package hawser_test

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
)

// modes runs f once for each way of looking for work.
func modes(t *testing.T, f func(t *testing.T, m hawser.PollMode)) {
	for _, m := range []hawser.PollMode{hawser.PollAdaptive, hawser.PollBusy, hawser.PollEvent} {
		t.Run(m.String(), func(t *testing.T) { f(t, m) })
	}
}

func (w *world) mode(t testing.TB, m hawser.PollMode) *hawser.Engine {
	t.Helper()
	o := w.options(0, 1)
	o.Poll = m
	return open(t, o)
}

func watch(t testing.TB, e *hawser.Engine, f func(old, new uint64)) *hawser.Watcher {
	t.Helper()
	w, err := e.Watch(f)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// watching reports whether any goroutine looks at words.
func watching() bool {
	buf := make([]byte, 1<<20)
	return strings.Contains(string(buf[:runtime.Stack(buf, true)]), "hawser.(*watches).run")
}

// Each callback begins where the one before has ended, and the last change is always told.
func TestWatchTellsEveryLastChange(t *testing.T) {
	modes(t, func(t *testing.T, m hawser.PollMode) {
		e := newWorld(t, "sim").mode(t, m)
		const words, advances = 8, 3000
		var wg sync.WaitGroup
		for range words {
			var told atomic.Uint64
			w := watch(t, e, func(old, new uint64) {
				if told.Load() != old || new <= old {
					t.Errorf("told %d to %d after %d", old, new, told.Load())
				}
				told.Store(new)
			})
			if n := w.Word().Load(); n != 0 {
				t.Fatalf("a new word is %d", n)
			}
			wg.Go(func() {
				for i := range uint64(advances) {
					w.Word().Add(1)
					if i%100 == 0 {
						eventually(t, "the change is told", func() bool { return told.Load() == i+1 })
					}
				}
				eventually(t, "the last change is told", func() bool { return told.Load() == advances })
				w.Close()
				w.Close()
			})
		}
		wg.Wait()
		eventually(t, "nothing runs without a watcher", func() bool { return !watching() })
		if st := e.Stats(); st.Watchers != 0 || st.Watches.Run == 0 {
			t.Fatalf("stats %+v", st)
		}
	})
}

// After Close has returned there is no callback, however fast the word changes; and its slot is another watcher's.
func TestNoCallbackAfterWatcherClose(t *testing.T) {
	modes(t, func(t *testing.T, m hawser.PollMode) {
		e := newWorld(t, "sim").mode(t, m)
		for range 200 {
			var calls atomic.Uint64
			var closed atomic.Bool
			w := watch(t, e, func(uint64, uint64) {
				calls.Add(1)
				runtime.Gosched() // so that Close comes in between
				if closed.Load() {
					t.Error("a callback runs after Close")
				}
			})
			var wg sync.WaitGroup
			var stop atomic.Bool
			wg.Go(func() {
				for !stop.Load() {
					w.Word().Add(1)
					runtime.Gosched()
				}
			})
			eventually(t, "a callback", func() bool { return calls.Load() > 0 })
			w.Close()
			closed.Store(true)
			for range 20 {
				runtime.Gosched()
			}
			stop.Store(true)
			wg.Wait()
		}
	})
}

func TestWatchCallbackThatBreaksIsCounted(t *testing.T) {
	log := &lines{}
	o := newWorld(t, "sim").options(0, 1)
	o.Log = slog.New(slog.NewTextHandler(log, nil))
	e := open(t, o)
	var calls atomic.Uint64
	w := watch(t, e, func(_, new uint64) {
		calls.Add(1)
		switch new {
		case 1:
			panic("the user's mistake")
		case 2:
			runtime.Goexit()
		}
	})
	for i := range uint64(3) {
		w.Word().Add(1)
		eventually(t, "the change is told", func() bool { return calls.Load() == i+1 })
	}
	eventually(t, "the panic is counted and logged", func() bool {
		st := e.Stats().Watches
		return st.Run == 3 && st.Panics == 1 && log.has("the user's mistake") && log.has("watch_test.go")
	})
	w.Close()
}

func TestWatchLimits(t *testing.T) {
	e := newWorld(t, "sim").mode(t, hawser.PollAdaptive)
	if _, err := e.Watch(nil); !errors.Is(err, hawser.ErrInvalid) {
		t.Fatalf("watch without a function: %v", err)
	}
	words := map[*atomic.Uint64]bool{}
	var all []*hawser.Watcher
	for {
		w, err := e.Watch(func(uint64, uint64) {})
		if errors.Is(err, hawser.ErrLimit) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		words[w.Word()] = true
		all = append(all, w)
	}
	if len(all) != 1024 || len(words) != len(all) {
		t.Fatalf("%d watchers with %d words", len(all), len(words))
	}
	all[7].Word().Store(5)
	old := all[7].Word()
	all[7].Close()
	told := make(chan uint64, 1)
	w := watch(t, e, func(old, _ uint64) { told <- old })
	if w.Word() != old || w.Word().Load() != 0 {
		t.Fatal("the slot of a closed watcher is not used again, or not cleared")
	}
	w.Word().Store(9)
	select {
	case old := <-told:
		if old != 0 {
			t.Fatalf("a new watcher is told about %d", old)
		}
	case <-time.After(hang):
		t.Fatal("no callback")
	}
	if err := e.Close(testContext(t)); err != nil {
		t.Fatal(err)
	}
	for _, w := range all { // too late, and harmless
		w.Kick()
		w.Close()
	}
	if _, err := e.Watch(func(uint64, uint64) {}); !errors.Is(err, hawser.ErrClosed) {
		t.Fatalf("watch on a closed engine: %v", err)
	}
	eventually(t, "nothing runs", func() bool { return !watching() })
}

// Close of the engine waits for a callback that is under way, but not for ever.
func TestEngineCloseWaitsForWatchCallback(t *testing.T) {
	w := newWorld(t, "sim")
	e, err := hawser.Open(testContext(t), w.options(0, 1)) // this test closes it, and no clean-up
	if err != nil {
		t.Fatal(err)
	}
	entered, release := make(chan struct{}), make(chan struct{})
	wt := watch(t, e, func(uint64, uint64) {
		close(entered)
		<-release
	})
	wt.Word().Store(1)
	<-entered
	gone, cancel := context.WithCancel(testContext(t))
	cancel()
	soon(t, "close", func() {
		if err := e.Close(gone); !errors.Is(err, hawser.ErrBusy) {
			t.Errorf("close beside a callback that does not return: %v", err)
		}
	})
	close(release)
	eventually(t, "the watcher's goroutine ends", func() bool { return !watching() })
}
