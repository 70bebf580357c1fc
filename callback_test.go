package hawser_test

import (
	"context"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
)

// lines is a log that can be read while it is written.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) has(s string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), s)
}

// A callback that panics, or ends its goroutine, costs the engine nothing: the next callbacks run, transfers go on, Close returns.
func TestCallbackThatBreaksIsCounted(t *testing.T) {
	w := newWorld(t, "sim")
	log := &lines{}
	o := w.options(0, 1)
	o.Log = slog.New(slog.NewTextHandler(log, nil))
	a := open(t, o)
	a.OnPeer(func(ev hawser.PeerEvent) {
		if ev.Kind == hawser.PeerUp {
			panic("the user's mistake")
		}
		runtime.Goexit()
	})
	events := make(chan hawser.PeerEventKind, 8)
	a.OnPeer(func(ev hawser.PeerEvent) { events <- ev.Kind })
	for i := range uint64(2) {
		b := w.engine(t, 1+int(i), 1)
		p, err := a.Connect(testContext(t), b.Addr())
		if err != nil {
			t.Fatal(err)
		}
		tr, err := a.Signal(hawser.Signal{To: p, Imm: 1})
		wait(t, tr, err)
		reach(t, b.Counter(1), 1)
		if err := b.Close(testContext(t)); err != nil {
			t.Fatal(err)
		}
		for _, want := range []hawser.PeerEventKind{hawser.PeerUp, hawser.PeerDown, hawser.PeerFenced} {
			select {
			case kind := <-events:
				if kind != want {
					t.Fatalf("event %v, want %v", kind, want)
				}
			case <-time.After(hang):
				t.Fatalf("no %v event", want)
			}
		}
	}
	if n := a.Stats().Callbacks.Panics; n != 2 {
		t.Fatalf("%d panics are counted, want 2", n)
	}
	if !log.has("the user's mistake") || !log.has("callback_test.go") {
		t.Fatal("the log does not say what panicked and where")
	}
}

// brokenLog panics when it is told that a peer is down, and when it is told about that panic.
type brokenLog struct{ slog.Handler }

func (h brokenLog) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "peer is down" || r.Message == "a callback has panicked" {
		panic("the log")
	}
	return nil
}

// A log handler that panics is no worse than another callback.
func TestLogThatPanicsIsCounted(t *testing.T) {
	w := newWorld(t, "sim")
	o := w.options(0, 1)
	o.Log = slog.New(brokenLog{slog.NewTextHandler(io.Discard, nil)})
	a, b, c := open(t, o), w.engine(t, 1, 1), w.engine(t, 2, 1)
	p, err := a.Connect(testContext(t), b.Addr())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Connect(testContext(t), a.Addr()); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(testContext(t)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "both panics are counted", func() bool { return a.Stats().Callbacks.Panics == 2 })
	tr, err := a.Signal(hawser.Signal{To: p, Imm: 1})
	wait(t, tr, err)
}

// How long the slowest callback took is known: what was behind it waited for as long.
func TestSlowCallbackIsCounted(t *testing.T) {
	w := newWorld(t, "sim")
	a, b := w.engine(t, 0, 1), w.engine(t, 1, 1)
	const pause = 5 * time.Millisecond
	a.OnPeer(func(hawser.PeerEvent) { time.Sleep(pause) }) // it is what the test is about
	if _, err := a.Connect(testContext(t), b.Addr()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the callback has run", func() bool {
		st := a.Stats().Callbacks
		return st.Run > 0 && st.Slowest >= pause
	})
}
