package schedule

import "fmt"

// Limits bound what a publisher has in flight.
type Limits struct {
	Window  int // destinations with writes in flight; default 16
	PerDest int // writes in flight to each; default 4
}

// WithDefaults replaces what is not given.
func (l Limits) WithDefaults() Limits {
	if l.Window == 0 {
		l.Window = 16
	}
	if l.PerDest == 0 {
		l.PerDest = 4
	}
	return l
}

// Windows are the queues of a publisher, one for each destination, of runs whose bytes are ready. T is what the caller needs to know of a
// run. Runs to one destination leave in the order in which they were added.
type Windows[T any] struct {
	limits  Limits
	dests   []dest[T]
	waiting int // runs in the queues
	flying  int // writes in flight
	active  int // destinations that have some
	turn    int // the destination that is looked at first
}

type dest[T any] struct {
	queue  []queued[T] // the first is at head
	head   int
	flying int
	busy   []bool // single: of the stages, those with a write in flight
}

type queued[T any] struct {
	run   T
	stage int
}

// NewWindows makes empty queues to destinations 0 .. dests-1, of which first has the first turn. Publishers begin with different ones, so
// that not all of them write to the same destination at once.
func NewWindows[T any](dests, first int, l Limits) *Windows[T] {
	if dests < 0 || l.Window < 1 || l.PerDest < 1 || first < 0 || first > 0 && first >= dests {
		panic(fmt.Sprintf("schedule: %d destinations from %d, limits %+v", dests, first, l))
	}
	return &Windows[T]{limits: l, dests: make([]dest[T], dests), turn: first}
}

// Single restricts a destination to one write of each stage at a time: its network keeps no order, and then only this makes it certain
// after the failure of a rail which writes have been counted.
func (w *Windows[T]) Single(d, stages int) { w.dests[d].busy = make([]bool, stages) }

// Add queues a run of a stage.
func (w *Windows[T]) Add(d, stage int, run T) {
	x := &w.dests[d]
	x.queue = append(x.queue, queued[T]{run, stage})
	w.waiting++
}

// Next takes a run that may be written now, and counts it as in flight. ok is false if there is none: all queues are empty, or the
// limits are reached until an Ended.
// hot:
func (w *Windows[T]) Next() (d int, run T, ok bool) {
	if w.waiting > 0 {
		d = w.turn
		for range w.dests {
			if w.open(&w.dests[d]) {
				return d, w.take(d), true
			}
			if d++; d == len(w.dests) {
				d = 0
			}
		}
	}
	return 0, run, false
}

// open reports whether the first run of a destination may be written.
// hot:
func (w *Windows[T]) open(x *dest[T]) bool {
	switch {
	case x.head == len(x.queue) || x.flying == w.limits.PerDest || x.flying == 0 && w.active == w.limits.Window:
		return false
	case x.busy != nil && x.busy[x.queue[x.head].stage]:
		return false
	}
	return true
}

// keepHead is how many places at the beginning of a queue may be empty before the rest moves there.
const keepHead = 256

// hot:
func (w *Windows[T]) take(d int) T {
	x := &w.dests[d]
	q := x.queue[x.head]
	x.queue[x.head] = queued[T]{}
	x.head++
	switch {
	case x.head == len(x.queue):
		x.queue, x.head = x.queue[:0], 0
	case x.head >= keepHead && x.head >= len(x.queue)/2:
		n := copy(x.queue, x.queue[x.head:])
		clear(x.queue[n:])
		x.queue, x.head = x.queue[:n], 0
	}
	if x.flying == 0 {
		w.active++
	}
	x.flying++
	w.flying++
	w.waiting--
	if x.busy != nil {
		x.busy[q.stage] = true
	}
	if w.turn = d + 1; w.turn == len(w.dests) {
		w.turn = 0
	}
	return q.run
}

// Ended says that a write of a stage is not in flight any more.
// hot:
func (w *Windows[T]) Ended(d, stage int) {
	x := &w.dests[d]
	x.flying--
	w.flying--
	if x.flying == 0 {
		w.active--
	}
	if x.busy != nil {
		x.busy[stage] = false
	}
}

// Clear empties the queue of a destination that is written to no more, and calls f for what was in it. What is in flight is not touched.
func (w *Windows[T]) Clear(d int, f func(T)) {
	x := &w.dests[d]
	for _, q := range x.queue[x.head:] {
		f(q.run)
	}
	w.waiting -= len(x.queue) - x.head
	x.queue, x.head = nil, 0
}

// Drop empties all queues; what is in flight is not touched.
func (w *Windows[T]) Drop() {
	for i := range w.dests {
		w.dests[i].queue, w.dests[i].head = nil, 0
	}
	w.waiting = 0
}

// Waiting is how many runs have not been taken yet.
func (w *Windows[T]) Waiting() int { return w.waiting }

// Flying is how many writes are in flight.
func (w *Windows[T]) Flying() int { return w.flying }
