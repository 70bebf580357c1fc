package hawser

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser/mem"
)

const (
	// watchSpin is for how long words are looked at without a pause after one has changed: about the time between two layers of a model.
	watchSpin = 200 * time.Microsecond

	// Then a pause comes between two looks. It doubles from the first to the last, which is the longest that an idle word's change waits
	// for a look (plus what the machine adds to a sleep, mostly 1 ms). A thousand looks a second cost less than 1 % of a processor.
	watchFirstPause = 20 * time.Microsecond
	watchLastPause  = time.Millisecond

	// watchTurn is how many looks the watcher takes before it gives its processor away and reads the clock.
	watchTurn = 32

	// Each word has a cache line of its own, so that who advances one disturbs nobody who advances another.
	watchSlot  = 64
	watchSlots = 1024 // words per engine: 64 KiB
)

// Watcher watches a 64-bit word that anything may advance: a thread, another process, a GPU. See Engine.Watch.
type Watcher struct {
	ws   *watches
	f    func(old, new uint64)
	word *atomic.Uint64
	addr uintptr
	slot int

	mu     sync.Mutex // held during a callback, so that Close waits for it
	last   uint64     // what f was told last; guarded by mu
	closed bool       // guarded by mu
}

// Watch makes a word, 0 at first, and calls f whenever it is seen to have changed, with what f was told last and what the word is now.
// Values in between may be skipped, the last one is not. Calls run one at a time on one goroutine for all watchers of the engine, which
// looks without a pause while words change, and after 200 us without a change every 1 to 2 ms (Options.Poll changes that). A
// panic of f is logged and counted. f must not close its own Watcher, nor wait for another one's callback. At most 1024 words, else
// ErrLimit.
func (e *Engine) Watch(f func(old, new uint64)) (*Watcher, error) {
	if f == nil {
		return nil, fmt.Errorf("watch: function: %w: none", ErrInvalid)
	}
	w, err := e.watches.open(f)
	if err != nil {
		return nil, fmt.Errorf("watch: %w", err)
	}
	return w, nil
}

// Word is the word. It is not on the Go heap, so the race detector does not see that what was written before a store to it can be
// read by the callback. Nobody may touch it after Engine.Close, nor after Close, when it may be another watcher's.
func (w *Watcher) Word() *atomic.Uint64 { return w.word }

// Addr is the address of the word, which a GPU may be given: 8 bytes with a cache line to themselves.
func (w *Watcher) Addr() uintptr { return w.addr }

// Kick makes the engine look at the words now. A Go program that changes a word after a long time calls it to save the pause; while
// words change often it does nothing.
func (w *Watcher) Kick() { signal(w.ws.kick) }

// Close ends the watch. A callback that is under way has returned when Close returns, and no other comes. It is safe to call
// twice, but not by the watcher's own callback, for which it would wait.
func (w *Watcher) Close() {
	w.mu.Lock()
	again := w.closed
	w.closed = true
	w.mu.Unlock()
	if !again {
		w.ws.drop(w)
	}
}

// look calls f when the word has changed, and reports that.
func (w *Watcher) look() bool {
	v := w.word.Load()
	if v == w.last { // only this goroutine writes it
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return false
	}
	old := w.last
	w.last = v
	w.call(old, v)
	return true
}

func (w *Watcher) call(old, v uint64) {
	start := time.Now()
	defer func() {
		w.ws.ran.add(time.Since(start))
		if p := recover(); p != nil {
			w.ws.ran.panics.Add(1)
			stack := string(debug.Stack())
			w.ws.e.calls.add(func() { w.ws.e.opts.Log.Error("a callback of Watch has panicked", "panic", p, "stack", stack) })
		}
	}()
	w.f(old, v)
}

// watches are the watchers of an engine and the goroutine that looks at their words, which runs only while there are any.
type watches struct {
	e    *Engine
	kick chan struct{}              // capacity 1: ends a pause
	list atomic.Pointer[[]*Watcher] // those that are open; replaced, not changed
	ran  runs

	firstPause, lastPause time.Duration // constant, but for tests

	mu      sync.Mutex
	span    *mem.Span     // made for the first watcher; guarded by mu, as all below
	free    []int         // slots of span
	running chan struct{} // closed when the goroutine has ended; nil when there is none
	closed  bool
}

func newWatches(e *Engine) *watches {
	ws := &watches{e: e, kick: make(chan struct{}, 1), firstPause: watchFirstPause, lastPause: watchLastPause}
	ws.list.Store(new([]*Watcher))
	return ws
}

func (ws *watches) open(f func(old, new uint64)) (*Watcher, error) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.closed {
		return nil, fmt.Errorf("engine: %w", ErrClosed)
	}
	if ws.span == nil {
		span, err := mem.New(watchSlots*watchSlot, mem.Private)
		if err != nil {
			return nil, err
		}
		ws.span = span
		for slot := range watchSlots {
			ws.free = append(ws.free, slot)
		}
	}
	if len(ws.free) == 0 {
		return nil, fmt.Errorf("%w: %d words are watched", ErrLimit, watchSlots)
	}
	slot := ws.free[0]
	off := uint64(slot) * watchSlot
	w := &Watcher{ws: ws, f: f, slot: slot, word: ws.span.Word(off), addr: ws.span.Addr(off)}
	ws.free = ws.free[1:] // the one that was freed first: who is late with an old word mostly hits nobody
	w.word.Store(0)
	list := append(slices.Clone(*ws.list.Load()), w)
	ws.list.Store(&list)
	if ws.running == nil {
		ws.running = make(chan struct{})
		go ws.run(ws.running)
	}
	signal(ws.kick)
	return w, nil
}

// drop forgets a watcher that is closed.
func (ws *watches) drop(w *Watcher) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	list := slices.DeleteFunc(slices.Clone(*ws.list.Load()), func(x *Watcher) bool { return x == w })
	ws.list.Store(&list)
	ws.free = append(ws.free, w.slot)
	signal(ws.kick)
}

// run looks at the words until there are none.
func (ws *watches) run(ended chan struct{}) {
	over := false
	defer func() {
		if over {
			close(ended)
		} else {
			go ws.run(ended) // a callback has called runtime.Goexit
		}
	}()
	for !over {
		if ws.watch() {
			over = ws.end()
		}
	}
}

// end reports that there are no watchers any more. Then the goroutine ends, and the next watcher starts another one.
func (ws *watches) end() bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if len(*ws.list.Load()) > 0 {
		return false
	}
	ws.running = nil
	return true
}

// watch looks until there is nothing to look at.
func (ws *watches) watch() bool {
	mode := ws.e.opts.Poll
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	last, pause := time.Now(), ws.firstPause // when a word was last seen to change
	for {
		list := *ws.list.Load()
		if len(list) == 0 {
			return true
		}
		if ws.turn(list) {
			last, pause = time.Now(), ws.firstPause
			continue
		}
		if mode == PollBusy || mode == PollAdaptive && time.Since(last) < watchSpin {
			runtime.Gosched()
			continue
		}
		timer.Reset(pause)
		select {
		case <-timer.C:
			pause = min(2*pause, ws.lastPause)
		case <-ws.kick:
		}
	}
}

// turn looks at the words a few times, until one has changed, and reports that.
func (ws *watches) turn(list []*Watcher) (changed bool) {
	for range max(watchTurn/len(list), 1) {
		for _, w := range list {
			if w.look() {
				changed = true
			}
		}
		if changed {
			return true
		}
	}
	return false
}

// stop closes all watchers and joins the goroutine, then frees the words: unless a callback does not return, see callbacks.stop.
func (ws *watches) stop(ctx context.Context) error {
	ws.mu.Lock()
	ws.closed = true
	none := []*Watcher{}
	ws.list.Store(&none)
	running, span := ws.running, ws.span
	ws.span = nil
	ws.mu.Unlock()
	signal(ws.kick)
	if running != nil && !await(ctx, running) {
		return fmt.Errorf("%w: a callback of Watch does not return", ErrBusy) // and may read its word
	}
	if span == nil {
		return nil
	}
	return span.Free()
}
