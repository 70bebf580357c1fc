package sim

import (
	"time"

	"github.com/hawser-project/hawser/provider"
)

type eventKind uint8

const (
	evFragment eventKind = iota + 1 // fragment frag of op reaches the other NIC, or does so again
	evPlaced                        // the last byte of op has been placed a moment ago
	evAck                           // the writer learns the outcome of op
	evHello                         // end, which is active, knocks at the address it was given
	evRefuse                        // end, which is active, learns that it was refused
	evAccept                        // end, which is active, learns that it was accepted
	evNotice                        // end learns that the other side has gone
	evDrain                         // end, which the owner disconnected or fenced, becomes quiet
	evBroken                        // end, whose NIC has sent something in vain too often
	evTimer                         // a time limit is over (manual mode)
)

// event is one thing that happens at a point in virtual time. Events of one moment happen in random order.
type event struct {
	at    time.Duration
	tie   uint64
	kind  eventKind
	frag  uint32
	op    *op
	end   *end
	timer *timer
}

// id names the object of an event in the trace.
func (ev *event) id() uint64 {
	switch {
	case ev.op != nil:
		return ev.op.wr.Token<<32 | uint64(ev.op.from.peer)
	case ev.end != nil:
		return uint64(ev.end.peer)
	}
	return 0
}

func (f *Fabric) schedule(after time.Duration, ev event) {
	ev.at, ev.tie = f.now+after, f.rng.Uint64()
	f.events.push(ev)
	if ev.op != nil {
		ev.op.events++
	}
	if ev.end != nil {
		ev.end.d.stir()
	}
}

// eventQueue is a binary heap. It is not container/heap, whose interface allocates on each push.
type eventQueue []event

func (q eventQueue) less(i, j int) bool {
	if q[i].at != q[j].at {
		return q[i].at < q[j].at
	}
	return q[i].tie < q[j].tie
}

func (q *eventQueue) push(ev event) {
	*q = append(*q, ev)
	h := *q
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if !h.less(i, up) {
			break
		}
		h[i], h[up] = h[up], h[i]
		i = up
	}
}

func (q *eventQueue) pop() (event, bool) {
	h := *q
	if len(h) == 0 {
		return event{}, false
	}
	first, last := h[0], len(h)-1
	h[0], h[last] = h[last], event{}
	h = h[:last]
	for i := 0; ; {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < last; c++ {
			if h.less(c, least) {
				least = c
			}
		}
		if least == i {
			break
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
	*q = h
	return first, true
}

// play lets one event happen.
func (f *Fabric) play(ev event) {
	if a, b := ev.path(); a != nil && b != nil && f.isCut(a.d, b.d) {
		f.held = append(f.held, ev)
		return
	}
	if ev.op != nil {
		ev.op.events--
		if ev.op.done {
			f.recycle(ev.op)
			return
		}
	}
	switch ev.kind {
	case evFragment:
		f.fragment(ev)
	case evPlaced:
		f.placed(ev.op)
	case evAck:
		f.finish(ev.op, ev.op.status)
	case evHello:
		f.hello(ev.end)
	case evRefuse:
		f.refused(ev.end)
	case evAccept:
		f.accepted(ev.end)
	case evNotice:
		f.notice(ev.end)
	case evDrain:
		f.down(ev.end, provider.StatusFlushed)
	case evBroken:
		f.broken(ev.end)
	case evTimer:
		ev.timer.pending = false
		ev.timer.fire()
	}
}

// path is the two ends between which an event travels; nil when it stays on one.
func (ev *event) path() (a, b *end) {
	switch ev.kind {
	case evFragment, evPlaced, evAck:
		return ev.op.from, ev.op.from.other
	case evHello, evRefuse, evAccept, evNotice:
		return ev.end, ev.end.other
	}
	return nil, nil
}

// timer is a time limit: real time in auto mode, virtual time in manual mode. Guarded by the fabric's mutex.
type timer struct {
	pending bool
	fire    func() // called under the mutex
	real    *time.Timer
}

// After has fire called when d has passed, of virtual time in manual mode, as an event among the others. It is for what a model has
// beside its network: copies, computation, clocks. fire runs inside Step and must not use the fabric; what it has to do there is left to
// whoever calls Step.
func (f *Fabric) After(d time.Duration, fire func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.after(d, fire)
}

func (f *Fabric) after(d time.Duration, fire func()) *timer {
	t := &timer{pending: true, fire: fire}
	if f.cfg.Manual {
		f.schedule(d, event{kind: evTimer, timer: t})
		return t
	}
	t.real = time.AfterFunc(d, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if t.pending {
			t.pending = false
			t.fire()
		}
	})
	return t
}

func (t *timer) running() bool { return t != nil && t.pending }

// stop makes fire never happen. Stopping nil or twice is fine.
func (t *timer) stop() {
	if t == nil {
		return
	}
	t.pending = false
	if t.real != nil {
		t.real.Stop()
	}
}
