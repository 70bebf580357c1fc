package weights

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/weights/proto"
)

// restart makes a controller in place of one that was killed, on an engine of its own, which members find at the new address.
func (w *world) restart(dir string, ch func(*ControllerOptions)) {
	w.Helper()
	w.ctl = w.open(w, "controller-again")
	o := ControllerOptions{StateDir: dir, Expect: len(w.pubs) + len(w.recs), JoinWindow: 200 * time.Millisecond, Log: testLog().With("who", "controller")}
	if ch != nil {
		ch(&o)
	}
	var err error
	if w.c, err = NewController(w.ctl, o); err != nil {
		w.Fatal(err)
	}
	c := w.c
	w.Cleanup(func() { closeOf(w, c.Close) })
	for _, p := range w.pubs {
		p.Rehome(w.ctl.Addr())
	}
	for _, x := range w.recs {
		x.Rehome(w.ctl.Addr())
	}
}

// killController ends the controller without a word.
func (w *world) killController() {
	kill(&w.c.station)
	_ = w.c.journal.close() // as the end of a process does
	w.c.journal = nil
}

// settled waits until no member is in an epoch.
func (w *world) settled() {
	w.Helper()
	for r, x := range w.recs {
		eventually(w, func() error {
			switch s := x.State(); s.State {
			case proto.StateCommitted, proto.StateFailed, proto.StateEmpty:
				return nil
			default:
				return fmt.Errorf("receiver %d is %v", r, s.State)
			}
		})
	}
}

// TestEmptyStateDir: a controller that has lost its log knows nothing of the epoch of the one before: whoever is prepared stays in doubt until the operator decides.
func TestEmptyStateDir(t *testing.T) {
	w, ended := prepared(t, true)
	w.restart(t.TempDir(), nil)
	for r, x := range w.recs {
		eventually(t, func() error {
			if s := x.State(); !s.InDoubt || s.Version != 1 {
				return fmt.Errorf("receiver %d is %v, v%d", r, s.State, s.Version)
			}
			return nil
		})
	}
	if _, err := w.c.Decide(limit(t), w.recs[0].State().Epoch, true, false); err != nil {
		t.Fatal(err)
	}
	<-ended
	w.settled()
	w.check(2)
	w.mustPush(3)
}

// prepared is a world whose controller was killed when all had said that they have version 2, and nobody had been told the decision.
func prepared(t *testing.T, shadow bool) (*world, chan struct{}) {
	t.Helper()
	fast := func(d *time.Duration) { *d = 200 * time.Millisecond }
	w := newWorld(t, networks["shm"](), toy{}, change{
		shadow: shadow, receiver: func(o *ReceiverOptions) { fast(&o.DoubtAfter) }, publisher: func(o *PublisherOptions) { fast(&o.DoubtAfter) },
	})
	w.mustPush(1)
	crash := make(chan struct{})
	var once sync.Once
	w.c.mu.Lock()
	w.c.tap = func(data []byte) bool {
		if kindOf(data) == proto.KindDecision {
			once.Do(func() { close(crash) })
			return false
		}
		return true
	}
	w.c.mu.Unlock()
	s := w.pushSlowly(2)
	s.rest(0)
	ended := make(chan struct{})
	go func() { s.wg.Wait(); close(ended) }()
	<-crash
	w.killController()
	return w, ended
}

// kindOf is the kind of a protocol message.
func kindOf(data []byte) proto.Kind {
	if len(data) < 4 || binary.LittleEndian.Uint16(data) != 0x7077 {
		return 0
	}
	return proto.Kind(data[3])
}

// TestLateWriteAfterAbort: after an abort a publisher that goes on writing changes nothing any more.
func TestLateWriteAfterAbort(t *testing.T) {
	onNetworks(t, func(t *testing.T, open network) {
		w := newWorld(t, open, toy{}, change{})
		s := w.pushSlowly(1)
		s.release(0, 1)
		s.verified(2)
		p := w.pubs[0]
		p.mu.Lock()
		var rem []*hawser.Remote
		for _, f := range p.remotes {
			rem = append(rem, f.regions...)
		}
		p.mu.Unlock()
		kill(&w.pubs[3].station)
		s.rest(2)
		s.wg.Wait()
		if !errors.Is(s.err, ErrAborted) {
			t.Fatal(s.err)
		}
		w.settled()
		before := make([]string, len(w.recs))
		for r, x := range w.recs {
			before[r] = string(x.memory[0].Bytes())
		}
		noise(p.memory[0].Bytes(), 99)
		for _, x := range rem {
			tr, err := p.eng.Write(hawser.Write{Src: p.memory[0].Slice(0, 4096), Dst: x.Slice(0, 4096)})
			if err == nil {
				err = tr.Wait(limit(t))
			}
			if err == nil {
				t.Error("a write after the abort ends well")
			}
		}
		for r, x := range w.recs {
			if string(x.memory[0].Bytes()) != before[r] {
				t.Errorf("receiver %d: memory has changed after the abort", r)
			}
		}
		if len(rem) == 0 {
			t.Error("nothing was imported")
		}
	})
}

// TestStale: members of an old layout are refused, and say why; a version that nobody offers is.
func TestStale(t *testing.T) {
	small := toy{}.withDefaults()
	small.rows /= 2
	other := small.source()
	w := newWorld(t, networks["shm"](), toy{}, change{publisher: func(o *PublisherOptions) {
		if o.Rank == 2 {
			o.Layout = other
		}
	}})
	_, err := w.push(1)
	if !errors.Is(err, ErrLayout) || !strings.Contains(err.Error(), "publisher 2") {
		t.Errorf("a publisher with another layout: %v", err)
	}
}
