package kv

import "sync/atomic"

// Event is news of a request that Decoder.Poll tells of.
type Event struct {
	Kind    EventKind
	Pending *Pending
}

// EventKind says what happened to a request. Each comes at most once for a request.
type EventKind uint8

const (
	EventReady  EventKind = 1 + iota // everything is here: Wait returns the Result and does not wait
	EventFailed                      // it ended otherwise, also by Cancel: Wait returns the error
	EventQuiet                       // no write of it can land any more, see Pending.Quiesced; after one of the others
)

func (k EventKind) String() string {
	return [...]string{"", "ready", "failed", "quiet"}[min(k, EventQuiet)]
}

// events are what Poll has not told yet.
type events struct {
	some atomic.Bool // list is not empty: a look that costs nothing
	list []Event     // guarded by Decoder.mu
}

// add needs Decoder.mu.
func (e *events) add(k EventKind, p *Pending) {
	if p.polled {
		e.list = append(e.list, Event{k, p})
		e.some.Store(true)
	}
}

// Poll tells of what has happened to requests with FetchRequest.Polled since the last call, in order: it fills out and returns how many
// events there are. It is for callers that look again and again, such as the scheduler of an inference engine between two steps: one call
// for all requests, no goroutine or channel for any. It never waits for anything but the Decoder's lock, and does not take that when there
// is nothing to tell.
func (d *Decoder) Poll(out []Event) int {
	if !d.events.some.Load() {
		return 0
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	e := &d.events
	n := copy(out, e.list)
	rest := copy(e.list, e.list[n:])
	clear(e.list[rest:])
	e.list = e.list[:rest]
	e.some.Store(rest > 0)
	return n
}
