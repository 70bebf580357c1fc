package weights

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/weights/proto"
	"github.com/hawser-project/hawser/weights/stage"
)

// freezeRounds is how often a trainer is stopped at most until it stands in the middle of a copy, where it is more often than not.
const freezeRounds = 20

// TestFrozenWriter stops a trainer's process in the middle of a copy into a receiver's memory: nothing proves that it will not go on, so the receiver stays failed,
// says who may still write where, and takes part in nothing, until the trainer goes on or dies.
func TestFrozenWriter(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for silence")
	}
	for _, dies := range []bool{false, true} {
		t.Run(fmt.Sprint("dies=", dies), func(t *testing.T) {
			t.Parallel()
			for round := range freezeRounds {
				if f := freeze(t); f != nil {
					t.Logf("in round %d", round)
					f.check(dies)
					return
				}
			}
			t.Errorf("not once in %d rounds", freezeRounds)
		})
	}
}

// frozen is a world with a trainer that was stopped.
type frozen struct {
	*world
	spec  childSpec
	child *child
}

// freeze stops a trainer when its first bytes have come. Nil: it was between two copies.
func freeze(t *testing.T) *frozen {
	t.Helper()
	m := toy{layers: 1, rows: 2048, cols: 4096, trainers: 1, ranks: 1}.withDefaults()
	w := newWorldOf(t, networks["shm"](), m, &reshard.Layout{}, m.destination(), change{
		controller: func(o *ControllerOptions) { o.Expect = 2 }, receiver: func(o *ReceiverOptions) { o.Verify = stage.Off },
	})
	f := &frozen{world: w, spec: childSpec{
		Controller: w.ctl.Addr(), Publisher: true,
		Model: childToy{Layers: 1, Trainers: 1, Ranks: 1, Instances: 1, Rows: m.rows, Cols: m.cols},
	}}
	f.child = startChild(t, f.spec)
	f.child.say("1")
	ended := make(chan error, 1)
	go func() {
		_, err := w.c.Update(limit(t), 1)
		ended <- err
	}()
	x := w.recs[0]
	eventually(t, func() error {
		if bytes.IndexByte(x.memory[0].Bytes()[:4096], 1) < 0 {
			return errors.New("nothing comes")
		}
		return nil
	})
	f.child.signal(syscall.SIGSTOP)
	if err := <-ended; !errors.Is(err, ErrAborted) {
		if err != nil {
			t.Fatal(err)
		}
		return nil // it had written everything
	}
	eventually(t, func() error {
		if s := x.State(); len(s.Stuck) == 0 && s.State != proto.StateFailed {
			return fmt.Errorf("the receiver is %v", s.State)
		}
		return nil
	})
	if len(x.State().Stuck) == 0 {
		f.child.kill()
		return nil
	}
	return f
}

func (f *frozen) check(dies bool) {
	x := f.recs[0]
	p := x.eng.Peer(x.State().Stuck[0].Peer)
	for range 2 {
		if err := x.eng.Fence(limit(f), p); !errors.Is(err, hawser.ErrUnfenced) {
			f.Fatalf("fence of a writer that stands in a copy: %v", err)
		}
	}
	s := x.State()
	if len(s.Stuck) != 1 || s.Stuck[0].Publisher != 0 || s.Stuck[0].From < 64 || s.Stuck[0].To > f.dst.Buffers[0][0]-32 || s.Stuck[0].To <= s.Stuck[0].From {
		f.Errorf("may still write: %+v", s.Stuck)
	}
	if s.Version != 0 {
		f.Errorf("it serves v%d", s.Version)
	}
	next := f.child
	if dies {
		next = startChild(f, f.spec)
		next.say("2")
	}
	ended := make(chan error, 1)
	go func() {
		_, err := f.c.Update(limit(f), 2)
		ended <- err
	}()
	if dies {
		eventually(f, func() error {
			if why := f.c.Status().Waits; !strings.Contains(why, p.ID().String()+" may still write into receiver 0") {
				return fmt.Errorf("an update waits for %q", why)
			}
			return nil
		})
	}
	select {
	case err := <-ended:
		f.Fatalf("an update ends while somebody may still write: %v", err)
	case <-time.After(100 * time.Millisecond): // time for what must not come
	}
	if dies {
		f.child.kill()
	} else {
		f.child.signal(syscall.SIGCONT)
		f.child.await("failed")
		f.child.say("2")
	}
	if err := <-ended; err != nil {
		f.Fatal(err)
	}
	next.await("pushed")
	if s := x.State(); len(s.Stuck) != 0 || s.Version != 2 {
		f.Errorf("%+v", s)
	}
	want := bytes.Repeat([]byte{2}, int(f.dst.Buffers[0][0]-64-32))
	if err := firstWrong(x.memory[0].Bytes()[64:], want); err != nil {
		f.Error(err)
	}
}
