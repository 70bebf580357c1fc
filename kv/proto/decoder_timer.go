package proto

// timer is when something of the decoder is due: part of a request, a link or a fence, which has one for everything that it waits for.
type timer struct {
	at    Time
	slot  int // in timers.heap, from 1; 0: not set
	owner interface {
		// due does what is due and sets the timer again, later than now, or leaves it unset.
		due(now Time)
	}
}

// timers is a heap of the timers that are set. Owned by the Decoder.
type timers struct{ heap []*timer }

// set moves t to a time, from wherever it was.
func (h *timers) set(t *timer, at Time) {
	if t.slot != 0 && t.at == at {
		return
	}
	t.at = at
	if t.slot == 0 {
		h.heap = append(h.heap, t)
		t.slot = len(h.heap)
	}
	h.fix(t.slot - 1)
}

func (h *timers) clear(t *timer) {
	if t.slot == 0 {
		return
	}
	i, last := t.slot-1, len(h.heap)-1
	h.place(h.heap[last], i)
	h.heap[last] = nil
	h.heap = h.heap[:last]
	t.slot = 0
	if i < last {
		h.fix(i)
	}
}

func (h *timers) place(t *timer, i int) { h.heap[i], t.slot = t, i+1 }

// fix moves the timer in slot i up or down, to where it belongs.
func (h *timers) fix(i int) {
	t := h.heap[i]
	for i > 0 && t.at < h.heap[(i-1)/2].at {
		h.place(h.heap[(i-1)/2], i)
		i = (i - 1) / 2
	}
	for {
		c := 2*i + 1
		if c >= len(h.heap) {
			break
		}
		if c+1 < len(h.heap) && h.heap[c+1].at < h.heap[c].at {
			c++
		}
		if t.at <= h.heap[c].at {
			break
		}
		h.place(h.heap[c], i)
		i = c
	}
	h.place(t, i)
}
