package weights

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-project/hawser/reshard"
)

// valve is what an instance's reader and its hooks have in common: there are no reads while the engine is paused.
type valve struct {
	mu     sync.RWMutex
	paused bool // guarded by mu
}

func (v *valve) set(paused bool) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.paused = paused
	return nil
}

func (v *valve) reads(f func()) error {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if !v.paused {
		f()
	}
	return nil
}

// hooks of a rank whose engine the valve stands for.
func (v *valve) hooks() Hooks {
	return Hooks{
		Pause:  func(context.Context, Version) error { return v.set(true) },
		Resume: func(context.Context, Version) error { return v.set(false) },
	}
}

// stamps reads a stamp of the version on all ranks of an instance, whenever its engine runs: never two versions.
type stamps struct {
	w        *world
	instance int
	reads    func(f func()) error                      // calls f if the engine runs
	load     func(rank int, off int64) (uint16, error) // from the memory that a rank computes with

	stop func()       // returns when nothing is read any more
	n    atomic.Int64 // reads
}

func (s *stamps) start() {
	stop := make(chan struct{})
	var wg sync.WaitGroup
	s.stop = sync.OnceFunc(func() {
		close(stop)
		wg.Wait()
	})
	s.w.Cleanup(s.stop) // before memory goes, if the test fails
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if err := s.reads(s.look); err != nil {
					s.w.Error(err)
					return
				}
			}
		}
	})
}

// end waits for one more read, then stops.
func (s *stamps) end() {
	s.w.Helper()
	before := s.n.Load()
	eventually(s.w, func() error {
		if s.n.Load() == before {
			return fmt.Errorf("instance %d was read %d times, and runs no more", s.instance, before)
		}
		return nil
	})
	s.stop()
}

// look compares an element of the first tensor of every rank with the version that the first rank has there.
func (s *stamps) look() {
	var seen Version
	for i, r := range mates(s.w.dst, s.instance) {
		off, index := s.at(r)
		got, err := s.load(r, off)
		if err != nil {
			s.w.Error(err)
			return
		}
		found := Version(0)
		for v := Version(1); v < 8; v++ {
			if word(s.w.dst.Tensors[0].Name, index, v) == got {
				found = v
			}
		}
		if i == 0 {
			seen = found
		}
		if found == 0 || found != seen {
			s.w.Errorf("rank %d has v%d, the first of its instance has v%d", r, found, seen)
		}
	}
	s.n.Add(1)
}

// at is where a rank has the stamp, and which element of the tensor that is.
func (s *stamps) at(rank int) (off, index int64) {
	held, err := s.w.dst.Held(rank)
	if err != nil {
		s.w.Error(err)
		return 0, 0
	}
	h := &held[slices.IndexFunc(held, func(h reshard.Held) bool { return h.Tensor == 0 })]
	return h.Offset, h.Lo[0]*s.w.model.cols + h.Lo[1]
}

// loadActive is load of a world in this process.
func (w *world) loadActive(rank int, off int64) (uint16, error) {
	return binary.LittleEndian.Uint16(w.recs[rank].Active()[0].Bytes()[off:]), nil
}

// TestNoMixedVersion reads stamps all the time, while versions are pushed, and while a push ends badly: then the instance is either out or serves what it served.
func TestNoMixedVersion(t *testing.T) {
	for _, shadow := range []bool{false, true} {
		t.Run(fmt.Sprint("shadow=", shadow), func(t *testing.T) {
			onNetworks(t, func(t *testing.T, open network) {
				var running valve
				w := newWorld(t, open, toy{}, change{shadow: shadow, receiver: func(o *ReceiverOptions) { o.Hooks = running.hooks() }})
				w.mustPush(1)
				reader := stamps{w: w, reads: running.reads, load: w.loadActive}
				reader.start()
				for v := Version(2); v < 6; v++ {
					if _, err := w.push(v); err != nil {
						t.Error(err)
					}
				}
				s := w.pushSlowly(6)
				s.release(0, 1)
				s.verified(2)
				kill(&w.pubs[3].station)
				s.rest(2)
				s.wg.Wait()
				reader.stop()
				t.Logf("%d reads", reader.n.Load())
				if reader.n.Load() == 0 {
					t.Error("nothing was read")
				}
			})
		})
	}
}

// TestNoMixedVersionRankLost: a rank dies, or its hook hangs, in the middle of a flip, when others of its instance have flipped. The instance is out until the
// next push; the other one serves the new version.
func TestNoMixedVersionRankLost(t *testing.T) {
	for _, x := range []struct {
		shadow, killed bool
		rank           int
	}{{false, true, 1}, {true, true, 1}, {true, true, 0}, {false, false, 1}, {true, false, 1}} {
		t.Run(fmt.Sprintf("shadow=%v killed=%v rank=%d", x.shadow, x.killed, x.rank), func(t *testing.T) {
			t.Parallel() // it waits for limits
			var running [2]valve
			flipping, goOn := make(chan struct{}), make(chan struct{})
			ch := change{shadow: x.shadow, receiver: func(o *ReceiverOptions) {
				o.Limits.Pause = 2 * time.Second
				o.Hooks = running[instanceOf(o.Layout, o.Rank)].hooks()
				if o.Rank == x.rank {
					o.Hooks.Flip = func(_ context.Context, v Version) error {
						if v == 2 {
							close(flipping)
							<-goOn
						}
						return nil
					}
				}
			}}
			w := newWorld(t, networks["shm"](), toy{instances: 2, trainers: 2, layers: 1}, ch)
			w.mustPush(1)
			readers := w.readers(func(i int) func(func()) error { return running[i].reads }, w.loadActive)
			ended := w.pushBeside(2)
			<-flipping
			if x.killed {
				kill(&w.recs[x.rank].station)
			}
			end := <-ended
			close(goOn)
			end.want(t)
			if x.killed {
				w.recs[x.rank] = w.newRank(x.rank, ch)
			}
			w.checkRank(2, 2)
			w.checkRank(3, 2)
			w.atHome(end.report.Epoch)
			w.mustPush(3)
			for _, r := range readers {
				r.end()
			}
		})
	}
}

// readers starts one for each instance.
func (w *world) readers(reads func(instance int) func(func()) error, load func(int, int64) (uint16, error)) (all []*stamps) {
	for i := range w.model.instances {
		s := &stamps{w: w, instance: i, reads: reads(i), load: load}
		s.start()
		all = append(all, s)
	}
	return all
}

// atHome waits until every rank has joined, and has told the end of an epoch. One that is new is empty.
func (w *world) atHome(epoch uint64) {
	w.Helper()
	eventually(w, func() error {
		there := make([]bool, len(w.dst.Buffers))
		for _, m := range w.c.Status().Members {
			if m.Role == "receiver" {
				there[m.Rank] = m.State == "empty" || m.Epoch >= epoch && (m.State == "committed" || m.State == "failed")
			}
		}
		if r := slices.Index(there, false); r >= 0 {
			return fmt.Errorf("rank %d is not there, or busy", r)
		}
		return nil
	})
}

// pushEnd is how a push ended.
type pushEnd struct {
	report *Report
	err    error
}

func (w *world) pushBeside(v Version) <-chan pushEnd {
	ended := make(chan pushEnd, 1)
	go func() {
		r, err := w.push(v)
		ended <- pushEnd{r, err}
	}()
	return ended
}

// want wants that instance 1 serves the version, and instance 0 does not.
func (e pushEnd) want(t *testing.T) {
	t.Helper()
	if e.err != nil {
		t.Fatal(e.err)
	}
	if !slices.Equal(e.report.Serving, []int{1}) || len(e.report.Out) == 0 || e.report.Out[0].Instance != 0 {
		t.Errorf("report %+v", e.report)
	}
}

// TestNoMixedVersionProcesses is the same with a process for each rank: one is killed, or stopped until it counts as dead, and then goes on with what it was doing.
func TestNoMixedVersionProcesses(t *testing.T) {
	if testing.Short() {
		t.Skip("four processes each")
	}
	for _, x := range []struct {
		shadow, killed bool
		rank           int
	}{{false, true, 1}, {true, true, 0}, {false, false, 1}, {true, false, 1}} {
		t.Run(fmt.Sprintf("shadow=%v killed=%v rank=%d", x.shadow, x.killed, x.rank), func(t *testing.T) {
			t.Parallel() // it waits for silence
			w := newWorldOf(t, networks["shm"](), toy{instances: 2, trainers: 2, layers: 1}.withDefaults(), toy{trainers: 2, layers: 1}.withDefaults().source(), &reshard.Layout{}, change{
				controller: func(o *ControllerOptions) { o.Expect = 6 },
			})
			w.dst = w.model.destination()
			spec := childSpec{
				Dir: t.TempDir(), Controller: w.ctl.Addr(), Shadow: x.shadow, Hold: 2,
				Model: childToy{Layers: 1, Trainers: 2, Ranks: 2, Instances: 2, Rows: w.model.rows, Cols: w.model.cols},
			}
			spec.serves(t, w)
			var ranks []*child
			for r := range w.dst.Buffers {
				s := spec
				if s.Rank = r; r != x.rank {
					s.Hold = 0
				}
				ranks = append(ranks, startChild(t, s))
			}
			if _, err := w.push(1); err != nil {
				t.Fatal(err)
			}
			readers := w.readers(func(i int) func(func()) error { return spec.engine(i).reads }, spec.load)
			ended := w.pushBeside(2)
			lost := ranks[x.rank]
			lost.await("flipping")
			if x.killed {
				lost.kill()
			} else {
				lost.signal(syscall.SIGSTOP)
			}
			end := <-ended
			if x.killed {
				spec.Rank, spec.Hold = x.rank, 0
				startChild(t, spec)
			} else {
				lost.say("go on")
				lost.signal(syscall.SIGCONT)
			}
			end.want(t)
			w.atHome(end.report.Epoch)
			if _, err := w.push(3); err != nil {
				t.Error(err)
			}
			for _, r := range readers {
				r.end()
			}
			for r := range w.dst.Buffers {
				if err := spec.wrong(w, r, 3); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// serves makes the files that readers look at before there is a version.
func (s childSpec) serves(t *testing.T, w *world) {
	t.Helper()
	for i := range w.model.instances {
		if err := s.engine(i).set("paused"); err != nil {
			t.Fatal(err)
		}
	}
	for r := range w.dst.Buffers {
		if err := os.WriteFile(activeFile(s.Dir, r), []byte("0"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// load reads a word of the memory that a rank computes with.
func (s childSpec) load(rank int, off int64) (uint16, error) {
	b, err := s.active(rank)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint16(b[off:]), nil
}

func (s childSpec) active(rank int) ([]byte, error) {
	n, err := os.ReadFile(activeFile(s.Dir, rank))
	if err != nil {
		return nil, err
	}
	return os.ReadFile(copyFile(s.Dir, rank, int(n[0]-'0')))
}

func (s childSpec) wrong(w *world, rank int, v Version) error {
	b, err := s.active(rank)
	if err != nil {
		return err
	}
	return wrongBytes(w.dst, rank, b, v)
}
