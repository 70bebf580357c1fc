package proto

// timer is when something of the decoder is due: part of a request, a link or a fence, which has one for everything that it waits for.
type timer struct {
	at    Time
	slot  int // in timers; 0: not set
	owner interface {
		// due does what is due and sets the timer again, later than now, or leaves it unset.
		due(now Time)
	}
}

func (t *timer) before(o *timer) bool { return t.at < o.at }
func (t *timer) place() *int          { return &t.slot }

// timers are those that are set. Owned by the Decoder.
type timers struct{ heap ordered[*timer] }

// set moves t to a time, from wherever it was.
func (h *timers) set(t *timer, at Time) {
	if t.slot != 0 && t.at == at {
		return
	}
	t.at = at
	h.heap.put(t)
}

func (h *timers) clear(t *timer) { h.heap.remove(t) }
