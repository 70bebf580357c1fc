package hawser

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser/internal/cpu"
	"github.com/hawser-project/hawser/internal/imm"
	"github.com/hawser-project/hawser/internal/rail"
	"github.com/hawser-project/hawser/internal/record"
	"github.com/hawser-project/hawser/internal/wire"
)

const (
	// spinTime is how long a worker looks for work before it sleeps: long enough that an answer of the other side, or the next batch
	// of a stream (256 KiB take about 20 us), finds it awake. A one-way immediate between two processes takes 1 us then, and
	// 18 us with a spin of 10 us (hawser bench imm, two cores). An engine that is idle pays it once per wake.
	spinTime = 50 * time.Microsecond

	// patience is for how many busy steps the worker leaves notes lie before it wakes the dispatcher for them: waking costs about
	// as much as a step, and most steps are the last ones.
	patience = 2

	// yieldLooks is after how many looks in vain the worker lets other goroutines run. Each time the scheduler wakes a thread to look for
	// them, which disturbs the other processor: with every look, writes of 1 MiB between two processes on two cores moved 18 GB/s, with
	// every fourth 24.
	yieldLooks = 4

	// crowdLooks is after how many looks a worker with at least as many peers as processors lets other processes run: the one that it
	// waits for may need this processor. On two cores a barrier of three processes takes a tenth of the time so, one of four a seventh. With fewer peers it would
	// cost more than it brings: a processor that is given away does not come back at once.
	crowdLooks = 8
)

// maxSleep bounds a sleep. Nothing depends on it: it is a safety net under the wakes, which tests take away.
var maxSleep = 500 * time.Millisecond

// worker is the goroutine that owns a device's rails. Other goroutines reach it through group.Submit, group.Call and do.
type worker struct {
	e        *Engine
	group    *rail.Group
	parker   *cpu.Parker
	mode     PollMode
	thread   thread
	cores    int
	crowded  atomic.Bool // set by the heart: see crowdLooks
	sleeping atomic.Bool
	stopped  atomic.Bool
	recorder *record.Recorder // the goroutine's, until done
	lastLog  *flightLog       // the latest for an error
	targets  uint64           // of scatters that have failed
	failed   [statuses]uint64 // operations, each target of a scatter by itself, by status
	over     int64            // operations of queues that have ended since Settle
	queues   []*Queue         // which they belong to
	done     chan struct{}
	closeErr error // of group.Close; valid after done
}

// start starts the worker, on a thread of its own if it is to have one.
func (w *worker) start() error {
	if !w.thread.own {
		go func() {
			defer close(w.done)
			w.run()
		}()
		return nil
	}
	locked := make(chan error)
	go func() {
		defer close(w.done) // after the thread and GOMAXPROCS are as before
		unlock, err := cpu.Lock(w.thread.cpus)
		if err != nil {
			locked <- err
			return
		}
		defer unlock()
		lower := cpu.Raise()
		defer lower()
		locked <- nil
		w.run()
	}()
	return <-locked
}

// wake is called after something was put where the worker will find it.
// hot:
func (w *worker) wake() {
	if w.sleeping.Load() { // pairs with the store in run: either it sees us awake and what we put, or we see it asleep
		w.parker.Wake()
	}
}

func (w *worker) run() {
	idle := int64(0) // since when there has been nothing to do, of record.Now; 0: there is
	owed := 0        // busy steps in a row with notes left
	vain := 0        // looks that found nothing
	for looks := 0; !w.stopped.Load(); looks++ {
		if looks%clockRun == 0 {
			w.recorder.Clock = record.Now()
		}
		switch {
		case w.group.Step() > 0:
			idle = 0
			if !w.e.notes.pending() {
				owed = 0
			} else if owed++; owed == patience {
				owed = 0
				w.e.notes.wake()
			}
		case w.e.notes.pending():
			w.notify()
		case w.tired(&idle):
			w.sleep()
			idle = 0
			w.recorder.Clock = record.Now()
		default:
			vain++
			w.yield(vain)
		}
	}
	w.closeErr = w.group.Close()
	for w.e.inflight.Load() > 0 { // whoever was between takeOp and submit comes too late
		w.group.Flush()
		runtime.Gosched()
	}
}

// notify gets those woken who wait for what was done. With a thread of its own the worker cannot give its processor to them.
func (w *worker) notify() {
	if w.thread.own {
		w.e.notes.wake()
		return
	}
	w.e.notes.fire()
	runtime.Gosched() // to those who were woken
}

// tired reports that it is time to sleep for a worker that has been idle, which is since then.
func (w *worker) tired(idle *int64) bool {
	switch w.mode {
	case PollBusy:
		return false
	case PollEvent:
		return true
	}
	now := record.Now()
	w.recorder.Clock = now
	if *idle == 0 {
		*idle = now
	}
	return now-*idle > int64(spinTime)
}

// yield lets others run now and then between two looks: whoever waits for this processor is more useful than another look. A thread
// of its own has a processor of its own too.
func (w *worker) yield(vain int) {
	if w.thread.own || vain%yieldLooks != 0 {
		return
	}
	runtime.Gosched()
	if vain%crowdLooks == 0 && w.crowded.Load() {
		cpu.Yield()
	}
}

func (w *worker) sleep() {
	w.sleeping.Store(true)
	if !w.group.Arm() && !w.stopped.Load() {
		if w.thread.own {
			w.parker.Block(maxSleep)
		} else {
			w.parker.Park(maxSleep)
		}
	}
	w.sleeping.Store(false)
}

// stop joins the worker, after the last operation has ended.
func (w *worker) stop() error {
	w.stopped.Store(true)
	w.parker.Wake()
	<-w.done
	return w.closeErr
}

// call is a function that runs on the worker, and the goroutine that waits for it.
type call struct {
	note
	done chan struct{}
	err  error
}

func (c *call) fire() { close(c.done) }

// errNoWorker is ErrClosed before anything was done.
var errNoWorker = fmt.Errorf("engine: %w", ErrClosed)

// do runs f on the worker and waits for it.
func (w *worker) do(f func(*rail.Group) error) error {
	c := &call{done: make(chan struct{})}
	c.target = c
	ok := w.group.Call(func(g *rail.Group) {
		c.err = f(g)
		w.e.notes.leave(&c.note)
	})
	if !ok {
		return errNoWorker
	}
	<-c.done // Call promised that f runs, also when the group closes
	return c.err
}

// retry is do for a function that may answer ErrBusy, which means after another Step.
func (w *worker) retry(ctx context.Context, f func(*rail.Group) error) error {
	if err := w.do(f); !errors.Is(err, ErrBusy) {
		return err
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		err := w.do(f)
		if !errors.Is(err, ErrBusy) {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return err
		}
	}
}

// The rest is rail.Sink: what the rails tell, on the worker.

// Imm counts an immediate.
// hot:
func (w *worker) Imm(p *rail.Peer, v uint32) {
	s := p.Tag.(*session)
	due, err := w.e.imms.Add(&s.peer.source, v)
	if err != nil {
		w.uncounted(s, v, err)
		return
	}
	if due != nil {
		due.Owner.(*Counter).arrived()
	}
}

// uncounted deals with an immediate that no counter takes.
func (w *worker) uncounted(s *session, v uint32, err error) {
	if errors.Is(err, imm.ErrStale) {
		w.e.managed.arrived(s.peer, v)
		return
	}
	if s.fail(ErrLimit, err) {
		w.e.refused.add(RefusedLimit)
		w.e.newcomers.take(offenceCost)
	}
}

// Message hands a message to whoever calls Receive.
func (w *worker) Message(p *rail.Peer, m *rail.Message) {
	w.e.inbox.put(inboxEntry{peer: p.Tag.(*session).peer, msg: m})
}

// Link tells the session about one of its links.
func (w *worker) Link(p *rail.Peer, i int, up bool, why string) {
	s, kind := p.Tag.(*session), record.LinkLost
	if up {
		kind = record.LinkUp
	}
	w.note(kind, s.peer, p.Rail(i), i, why)
	s.linkEvent(p, i, up, why)
}

// Tell carries a notice to the other side.
func (w *worker) Tell(p *rail.Peer, n *wire.LinkNotice) { p.Tag.(*session).tellLink(n) }

// Keys asks the owner of a remote for the keys of links that came up later.
func (w *worker) Keys(r *rail.Remote) {
	rem := r.Tag.(*Remote)
	rem.sess.askKeys(rem)
}

// GiveUp ends a session that cannot go on.
func (w *worker) GiveUp(p *rail.Peer, why string, broke bool) {
	s := p.Tag.(*session)
	if !broke {
		s.fail(ErrPeerDown, errors.New(why))
		return
	}
	s.broken(RefusedLink, errors.New(why))
}

// Fenced tells the session that its fence has ended.
func (w *worker) Fenced(p *rail.Peer, proved bool) {
	s, kind := p.Tag.(*session), record.Unfenced
	if proved {
		kind = record.PeerFenced
	}
	w.note(kind, s.peer, -1, -1, "")
	s.fenced(proved)
}

// Settle shows others what has ended in a Step, all at once: each look at what they write costs as much as an operation.
// hot:
func (w *worker) Settle() {
	if w.over > 0 { // before anybody learns that his operation has ended
		w.e.inflight.Add(-w.over)
		w.over = 0
	}
	for i, q := range w.queues {
		q.publish()
		w.queues[i] = nil
	}
	w.queues = w.queues[:0]
}

// Dead is told about a rail that has failed as a whole; its links have been reported one by one.
func (w *worker) Dead(i int, err error) {
	e := w.e
	e.deadRails[i].Store(true)
	w.recorder.Note(record.RailDead, 0, i, noLink, err.Error())
	e.calls.add(func() {
		if t := e.opts.Trace; t != nil && t.Rail != nil {
			t.Rail(RailEvent{Rail: i, Provider: e.rails[i].Provider, Device: e.rails[i].Name, Err: err})
		}
		e.opts.Log.Error("rail is out of service", "rail", i, "provider", e.rails[i].Provider, "device", e.rails[i].Name, "err", err)
	})
}
