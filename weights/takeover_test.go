package weights

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/weights/proto"
)

// TestControllerCrash kills the controller between any two messages that it sends in a push, and starts another one with the same log: what was not decided
// aborts everywhere, what was commits everywhere, and the next push works. Nobody decides by itself in between.
func TestControllerCrash(t *testing.T) {
	if testing.Short() {
		t.Skip("a push for each step")
	}
	for _, shadow := range []bool{false, true} {
		t.Run(fmt.Sprint("shadow=", shadow), func(t *testing.T) {
			decided, undecided := 0, 0
			for step := 1; !t.Failed(); step++ {
				c := &crash{step: step, shadow: shadow}
				t.Run(fmt.Sprint("step ", step), c.run)
				if c.over {
					break
				}
				if c.decided {
					decided++
				} else {
					undecided++
				}
			}
			t.Logf("%d steps before the decision, %d after it", undecided, decided)
			if decided < 3 || undecided < 8 {
				t.Error("the crashes were not spread over the push")
			}
		})
	}
}

// crash is the end of a controller at one step of a push.
type crash struct {
	step    int
	shadow  bool
	over    bool // the push ended before the step
	decided bool // the log says commit
}

func (c *crash) run(t *testing.T) {
	dir := t.TempDir()
	doubt := 100 * time.Millisecond
	w := newWorld(t, networks["shm"](), toy{trainers: 2, layers: 1, rows: 128, cols: 128}, change{
		shadow: c.shadow, controller: func(o *ControllerOptions) { o.StateDir = dir },
		receiver: func(o *ReceiverOptions) { o.DoubtAfter = doubt }, publisher: func(o *PublisherOptions) { o.DoubtAfter = doubt },
	})
	w.mustPush(1)
	sent, told, crashed := 0, false, make(chan struct{})
	w.c.mu.Lock()
	w.c.tap = func(data []byte) bool {
		if sent++; sent == c.step {
			close(crashed)
		}
		told = told || sent < c.step && kindOf(data) == proto.KindDecision
		return sent < c.step
	}
	w.c.mu.Unlock()
	s := w.pushSlowly(2)
	s.rest(0)
	ended := make(chan struct{})
	go func() { s.wg.Wait(); close(ended) }()
	select {
	case <-ended:
		c.over = true
		if s.err != nil {
			t.Errorf("without a crash: %v", s.err)
		}
		w.check(2)
		return
	case <-crashed:
	}
	w.killController()
	if !told {
		w.undecided()
	}
	c.decided = logged(t, dir, 2)
	w.restart(dir, nil)
	w.settled()
	w.idle()
	s.cancel()
	<-ended
	c.look(t, w, s)
	w.mustPush(3)
}

// TestPushAfterLeft: a push is given up in mid-epoch while there is no controller. The next one waits until somebody says how that epoch ended, instead of being
// refused, which would leave an update waiting for it.
func TestPushAfterLeft(t *testing.T) {
	dir := t.TempDir()
	w := newWorld(t, networks["shm"](), toy{}, change{controller: func(o *ControllerOptions) { o.StateDir = dir }})
	w.mustPush(1)
	s := w.pushSlowly(2)
	s.release(0)
	s.verified(1)
	w.killController()
	s.cancel()
	s.wg.Wait()
	for i, err := range s.errs {
		if !errors.Is(err, ErrInDoubt) {
			t.Errorf("publisher %d: the push that was given up ends with %v", i, err)
		}
	}
	w.fill(3)
	var wg sync.WaitGroup
	for i, p := range w.pubs {
		wg.Go(func() {
			if _, err := p.Push(limit(t), 3, nil); err != nil {
				t.Errorf("publisher %d: the next push: %v", i, err)
			}
		})
	}
	w.restart(dir, nil)
	if _, err := w.c.Update(limit(t), 3); err != nil {
		t.Error(err)
	}
	wg.Wait()
	w.check(3)
}

// look checks what has become of version 2.
func (c *crash) look(t *testing.T, w *world, s *slowly) {
	for r, x := range w.recs {
		if c.decided {
			w.checkRank(r, 2)
			continue
		}
		switch st := x.State(); {
		case st.Version == 2 || c.shadow && st.Version != 1:
			t.Errorf("rank %d serves v%d, the log does not say commit", r, st.Version)
		case st.Version != 0:
			w.checkRank(r, 1)
		}
	}
	for i, err := range s.errs {
		if c.decided != (err == nil) {
			t.Errorf("publisher %d: push ends with %v, the log says commit: %v", i, err, c.decided)
		}
	}
}

// logged reports whether the journal of a directory says that a version was committed.
func logged(t *testing.T, dir string, v Version) (commit bool) {
	t.Helper()
	j, records, err := openJournal(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range records {
		r, err := decodeRecord(b)
		if err != nil {
			t.Fatal(err)
		}
		commit = commit || r.Decision.Commit && r.Decision.Version == v
	}
	if err := j.close(); err != nil {
		t.Fatal(err)
	}
	return commit
}

// undecided waits until whoever is prepared is in doubt, and checks that nobody has decided.
func (w *world) undecided() {
	w.Helper()
	for r, x := range w.recs {
		eventually(w, func() error {
			if s := x.State(); s.State == proto.StatePrepared {
				return fmt.Errorf("receiver %d is %v", r, s.State)
			}
			return nil
		})
		if s := x.State(); s.Version == 2 {
			w.Errorf("receiver %d has decided by itself: %v, v%d", r, s.State, s.Version)
		}
	}
}

// idle waits until no publisher is in an epoch.
func (w *world) idle() {
	w.Helper()
	for i, p := range w.pubs {
		eventually(w, func() error {
			if s := p.State(); s != proto.StateIdle && s != proto.StateOffered {
				return fmt.Errorf("publisher %d is %v", i, s)
			}
			return nil
		})
	}
}

// TestTwoControllers: a second controller takes over; the first one is told so, and nothing that it wants happens.
func TestTwoControllers(t *testing.T) {
	onNetworks(t, func(t *testing.T, open network) {
		w := newWorld(t, open, toy{}, change{})
		w.mustPush(1)
		first := w.c
		w.restart(t.TempDir(), nil)
		w.mustPush(2)
		for v := Version(3); v < 5; v++ {
			if _, err := first.Update(limit(t), v); !errors.Is(err, hawser.ErrStale) {
				t.Errorf("the first controller's update ends with %v", err)
			}
		}
		w.check(2)
		w.mustPush(5)
	})
}
