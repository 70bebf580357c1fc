package schedule

import (
	"fmt"
	"math"
)

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
// run. Of the runs that may be written the oldest leaves first.
type Windows[T any] struct {
	limits  Limits
	dests   []dest[T]
	heads   []uint64 // by destination: the age of its first run if that might be written by its own limits, else never
	added   uint64   // runs so far: their ages
	waiting int      // runs in the queues
	flying  int      // writes in flight
	active  int      // destinations that have some
	yields  int      // the destination that gets nothing until nothing is in flight to it; -1: none. See makeRoom
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
	age   uint64
}

// NewWindows makes empty queues to destinations 0 .. dests-1.
func NewWindows[T any](dests int, l Limits) *Windows[T] {
	if dests < 0 || l.Window < 1 || l.PerDest < 1 {
		panic(fmt.Sprintf("schedule: %d destinations, limits %+v", dests, l))
	}
	w := &Windows[T]{limits: l, dests: make([]dest[T], dests), heads: make([]uint64, dests), yields: -1}
	for d := range w.heads {
		w.heads[d] = never
	}
	return w
}

// never is later than any age.
const never = math.MaxUint64

// look notes what may be written to a destination by its own limits.
// hot:
func (w *Windows[T]) look(d int) {
	x := &w.dests[d]
	w.heads[d] = never
	if x.head < len(x.queue) && x.flying < w.limits.PerDest && (x.busy == nil || !x.busy[x.queue[x.head].stage]) {
		w.heads[d] = x.age()
	}
}

// Single restricts a destination to one write of each stage at a time: its network keeps no order, and then only this makes it certain
// after the failure of a rail which writes have been counted.
func (w *Windows[T]) Single(d, stages int) { w.dests[d].busy = make([]bool, stages) }

// Add queues a run of a stage.
func (w *Windows[T]) Add(d, stage int, run T) {
	x := &w.dests[d]
	x.queue = append(x.queue, queued[T]{run, stage, w.added})
	w.added++
	w.waiting++
	w.look(d)
}

// Next takes the oldest run that may be written now, and counts it as in flight. ok is false if there is none: all queues are empty, or
// the limits are reached until an Ended.
// hot:
func (w *Windows[T]) Next() (d int, run T, ok bool) {
	if w.waiting == 0 {
		return 0, run, false
	}
	d, outside := w.oldest()
	if outside >= 0 && w.yields < 0 && w.makeRoom(outside) == d {
		d, _ = w.oldest()
	}
	if d < 0 {
		return 0, run, false
	}
	return d, w.take(d), true
}

// oldest is the destination with the oldest run that may be written, and that with the oldest one that may not because the window is
// full; -1: none.
// hot:
func (w *Windows[T]) oldest() (open, outside int) {
	open, outside = -1, -1
	first, beyond, full := uint64(never), uint64(never), w.active == w.limits.Window
	for d, age := range w.heads {
		switch {
		case age >= first && age >= beyond || d == w.yields:
		case full && w.dests[d].flying == 0:
			if age < beyond {
				outside, beyond = d, age
			}
		case age < first:
			open, first = d, age
		}
	}
	return open, outside
}

// age is that of the first run.
// hot:
func (x *dest[T]) age() uint64 { return x.queue[x.head].age }

// makeRoom has the destination that is furthest ahead yield its place in the window to one that waits with an older run. Without it, those
// that are in the window would stay there as long as there is something for them, and the bytes for the others would wait until
// the end. One yields at a time, so that the window stays as good as full; none does if one of them is leaving anyway.
// hot:
func (w *Windows[T]) makeRoom(outside int) int {
	ahead := -1
	for i := range w.dests {
		x := &w.dests[i]
		switch {
		case x.flying == 0:
		case x.head == len(x.queue):
			return -1
		case x.age() > w.dests[outside].age() && (ahead < 0 || x.age() > w.dests[ahead].age()):
			ahead = i
		}
	}
	w.yields = ahead
	return ahead
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
	w.look(d)
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
		w.yields = -1 // there is room now
	}
	if x.busy != nil {
		x.busy[stage] = false
	}
	w.look(d)
}

// Clear empties the queue of a destination that is written to no more, and calls f for what was in it. What is in flight is not touched.
func (w *Windows[T]) Clear(d int, f func(T)) {
	x := &w.dests[d]
	for _, q := range x.queue[x.head:] {
		f(q.run)
	}
	w.waiting -= len(x.queue) - x.head
	x.queue, x.head = nil, 0
	w.look(d)
	if w.yields == d {
		w.yields = -1
	}
}

// Drop empties all queues; what is in flight is not touched.
func (w *Windows[T]) Drop() {
	for i := range w.dests {
		w.dests[i].queue, w.dests[i].head = nil, 0
		w.look(i)
	}
	w.waiting, w.yields = 0, -1
}

// Waiting is how many runs have not been taken yet.
func (w *Windows[T]) Waiting() int { return w.waiting }

// Flying is how many writes are in flight.
func (w *Windows[T]) Flying() int { return w.flying }
