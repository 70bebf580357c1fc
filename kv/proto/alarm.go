package proto

// alarm is a time at which a Prefiller does something. It is part of what it is about.
type alarm struct {
	at      Time
	number  uint64 // order among equal times
	slot    int    // place in the heap, and 1; 0: not set
	kind    alarmKind
	serving *serving
	job     *job
	link    *serveLink
}

type alarmKind uint8

const (
	alarmRoom    alarmKind = iota // the engine may have room
	alarmAttempt                  // its deadline
	alarmJob                      // JoinWait
	alarmBeat
	alarmBye // a link of a prefiller that is closing
)

// alarms is a heap of those that are set. Owned by the Prefiller.
type alarms struct {
	heap []*alarm
	last uint64
}

func (h *alarms) next() (Time, bool) {
	if len(h.heap) == 0 {
		return 0, false
	}
	return h.heap[0].at, true
}

// due takes off one whose time has come.
func (h *alarms) due(now Time) *alarm {
	if len(h.heap) == 0 || h.heap[0].at > now {
		return nil
	}
	a := h.heap[0]
	h.clear(a)
	return a
}

// set sets or moves an alarm.
func (h *alarms) set(a *alarm, at Time) {
	h.last++
	a.at, a.number = at, h.last
	if a.slot == 0 {
		h.heap = append(h.heap, a)
		a.slot = len(h.heap)
	}
	h.fix(a.slot - 1)
}

func (h *alarms) clear(a *alarm) {
	if a.slot == 0 {
		return
	}
	i, last := a.slot-1, len(h.heap)-1
	h.swap(i, last)
	h.heap[last] = nil
	h.heap = h.heap[:last]
	a.slot = 0
	if i < last {
		h.fix(i)
	}
}

func (h *alarms) fix(i int) {
	for i > 0 && h.less(i, (i-1)/2) {
		h.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
	for {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < len(h.heap); c++ {
			if h.less(c, least) {
				least = c
			}
		}
		if least == i {
			return
		}
		h.swap(i, least)
		i = least
	}
}

func (h *alarms) less(i, k int) bool {
	a, b := h.heap[i], h.heap[k]
	return a.at < b.at || a.at == b.at && a.number < b.number
}

func (h *alarms) swap(i, k int) {
	h.heap[i], h.heap[k] = h.heap[k], h.heap[i]
	h.heap[i].slot, h.heap[k].slot = i+1, k+1
}
