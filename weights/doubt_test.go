package weights

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/weights/proto"
)

// heard is a world whose controller died after the first n members had been told that version 2 is committed: publishers come first. None of the others knows.
func heard(t *testing.T, n int, m toy, doubt time.Duration) (*world, *slowly) {
	t.Helper()
	w := newWorld(t, networks["shm"](), m, change{
		shadow: true, receiver: func(o *ReceiverOptions) { o.DoubtAfter = doubt }, publisher: func(o *PublisherOptions) { o.DoubtAfter = doubt },
	})
	w.mustPush(1)
	told, cut := 0, make(chan struct{})
	w.c.mu.Lock()
	w.c.tap = func(data []byte) bool {
		if told < n && kindOf(data) == proto.KindDecision {
			if told++; told == n {
				close(cut)
			}
			return true
		}
		return told < n
	}
	w.c.mu.Unlock()
	s := w.pushSlowly(2)
	s.rest(0)
	<-cut
	for i, p := range w.pubs {
		eventually(t, func() error {
			if i < n && p.State() != proto.StateIdle {
				return fmt.Errorf("publisher %d is %v", i, p.State())
			}
			return nil
		})
	}
	for i, x := range w.recs {
		eventually(t, func() error {
			if s := x.State(); len(w.pubs)+i < n && s.Version != 2 {
				return fmt.Errorf("receiver %d is %v", i, s.State)
			}
			return nil
		})
	}
	w.killController()
	return w, s
}

// TestInDoubtPeer: a member that was cut off before the decision learns it from another one; no controller is needed.
func TestInDoubtPeer(t *testing.T) {
	for _, n := range []int{1, 5} { // a publisher alone; all but the last receiver
		t.Run(fmt.Sprint(n, " have heard"), func(t *testing.T) {
			w, s := heard(t, n, toy{ranks: 1, instances: 2}, 200*time.Millisecond)
			w.settled()
			w.idle()
			w.check(2)
			s.wg.Wait()
			for i, err := range s.errs {
				if err != nil {
					t.Errorf("publisher %d: push ends with %v", i, err)
				}
			}
		})
	}
}

// TestInDoubtOperator: the log is lost, and nobody has heard the decision: whoever is prepared stays in doubt until an operator decides. Who is missing must be left
// behind with force.
func TestInDoubtOperator(t *testing.T) {
	for _, shadow := range []bool{false, true} {
		t.Run(fmt.Sprint("shadow=", shadow), func(t *testing.T) {
			w, ended := prepared(t, shadow)
			kill(&w.pubs[3].station)
			w.restart(t.TempDir(), func(o *ControllerOptions) { o.Expect-- })
			for r, x := range w.recs {
				eventually(t, func() error {
					if s := x.State(); !s.InDoubt {
						return fmt.Errorf("receiver %d is %v", r, s.State)
					}
					return nil
				})
			}
			epoch := w.recs[0].State().Epoch
			if _, err := w.c.Decide(limit(t), epoch+1, false, true); !errors.Is(err, hawser.ErrInvalid) {
				t.Errorf("the decision of an epoch that nobody is in: %v", err)
			}
			eventually(t, func() error { // those in doubt have yet to find the new controller
				if _, err := w.c.Decide(limit(t), epoch, false, false); !errors.Is(err, hawser.ErrRefused) {
					return fmt.Errorf("a decision without a member: %w", err)
				}
				return nil
			})
			if s := w.recs[0].State(); !s.InDoubt {
				t.Errorf("receiver 0 is %v after what was refused", s.State)
			}
			if _, err := w.c.Decide(limit(t), epoch, false, true); err != nil && !errors.Is(err, ErrAborted) {
				t.Errorf("a decision with force: %v", err)
			}
			<-ended
			w.settled()
			for r, x := range w.recs {
				if s := x.State(); shadow {
					w.checkRank(r, 1)
				} else if s.State != proto.StateFailed {
					t.Errorf("receiver %d is %v", r, s.State)
				}
			}
		})
	}
}

// TestOperatorIsRefused: somebody knows that the decision was commit: no operator decides otherwise.
func TestOperatorIsRefused(t *testing.T) {
	w, s := heard(t, 1, toy{}, time.Hour)
	w.restart(t.TempDir(), nil)
	eventually(t, func() error {
		if n := len(w.c.Status().Members); n != 6 {
			return fmt.Errorf("%d have joined", n)
		}
		return nil
	})
	epoch := w.recs[0].State().Epoch
	if _, err := w.c.Decide(limit(t), epoch, false, true); !errors.Is(err, hawser.ErrRefused) {
		t.Errorf("abort, though a publisher has heard commit: %v", err)
	}
	if _, err := w.c.Decide(limit(t), epoch, true, false); err != nil {
		t.Fatal(err)
	}
	s.wg.Wait()
	w.settled()
	w.check(2)
	w.mustPush(3)
}
