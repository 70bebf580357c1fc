package hawser

import "fmt"

// PollMode says how an engine looks for work, which is what it costs in processor time while there is none.
type PollMode uint8

const (
	// PollAdaptive looks for 50 us after the last work, then sleeps until it is woken. An idle engine wakes ten times a second, for the
	// beats.
	PollAdaptive PollMode = iota

	// PollBusy never sleeps: one processor is always in use, by the worker, and another one while words are watched. With 4
	// processors or more the worker has a thread of its own.
	PollBusy

	// PollEvent sleeps at once, and callers do not spin either. It uses the least processor time and adds a wake, some
	// microseconds, to almost everything.
	PollEvent
)

func (m PollMode) String() string {
	if m > PollEvent {
		return fmt.Sprintf("PollMode(%d)", uint8(m))
	}
	return [...]string{"adaptive", "busy", "event"}[m]
}
