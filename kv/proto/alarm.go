package proto

// alarm is a time at which a Prefiller does something. It is part of what it is about.
type alarm struct {
	at      Time
	number  uint64 // order among equal times
	slot    int    // in alarms; 0: not set
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

func (a *alarm) before(b *alarm) bool { return a.at < b.at || a.at == b.at && a.number < b.number }
func (a *alarm) place() *int          { return &a.slot }

// alarms are those that are set. Owned by the Prefiller.
type alarms struct {
	heap ordered[*alarm]
	last uint64
}

func (h *alarms) next() (Time, bool) {
	if len(h.heap.items) == 0 {
		return 0, false
	}
	return h.heap.items[0].at, true
}

// due takes off one whose time has come.
func (h *alarms) due(now Time) *alarm {
	if at, ok := h.next(); !ok || at > now {
		return nil
	}
	a := h.heap.items[0]
	h.clear(a)
	return a
}

// set sets or moves an alarm.
func (h *alarms) set(a *alarm, at Time) {
	h.last++
	a.at, a.number = at, h.last
	h.heap.put(a)
}

func (h *alarms) clear(a *alarm) { h.heap.remove(a) }
