package hawser_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/shm"
	"github.com/hawser-project/hawser/provider/tcp"
)

// leave closes end i and waits until the sender knows.
func (s *star) leave(i int) {
	s.Helper()
	if err := s.ends[i].e.Close(testContext(s)); err != nil {
		s.Fatal(err)
	}
	eventually(s, "the sender learns of it", func() bool { return !s.ends[i].rem.Peer().Up() })
}

// failures checks that err names exactly the targets that are given.
func failures(t *testing.T, err error, want ...int) *hawser.ScatterError {
	t.Helper()
	var all *hawser.ScatterError
	if !errors.As(err, &all) {
		t.Fatalf("scatter: %v", err)
	}
	var got []int
	for _, f := range all.Failed {
		got = append(got, f.Index)
		if !errors.Is(f.Err, hawser.ErrPeerDown) || errors.Is(f.Err, hawser.ErrUnfenced) || f.Peer == nil { // nothing was sent
			t.Fatalf("target %d to %v: %v", f.Index, f.Peer, f.Err)
		}
		if !strings.Contains(err.Error(), fmt.Sprintf("target %d to %s: ", f.Index, f.Peer)) {
			t.Fatalf("target %d is not named: %v", f.Index, err)
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("targets %v failed, want %v: %v", got, want, err)
	}
	return all
}

// Targets whose peer is down fail, by name, at the end; the others are written.
func TestScatterFailsByTarget(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		s := w.star(t, 2, 1, 2, 1)
		shots := []shot{{0, 0, 1, 1000, -1, 0}, {1, 5, 6, 70000, -1, 2}, {2, 7, 8, 900, -1, 0}, {1, 100_000, 0, 0, -1, 0}, {0, 3000, 9, 10, -1, 3}}
		r := s.scatter(1, shots...).req.(hawser.Scatter)
		tmpl, err := s.a.Prepare(r)
		if err != nil {
			t.Fatal(err)
		}
		s.leave(1)
		survivors := s.scatter(1, shots[0], shots[2], shots[4])
		for _, way := range ways {
			survivors.model()
			var err error
			switch way {
			case "call":
				tr, fault := s.a.Scatter(r)
				if fault != nil {
					t.Fatal(fault)
				}
				err = tr.Wait(testContext(t))
				if tr.Err() != err {
					t.Fatalf("error %v, then %v", err, tr.Err())
				}
			case "queue":
				err = s.end1(s.q.Scatter(r, 7))
			case "template and queue":
				err = s.end1(s.q.Submit(tmpl, tmpl.Args(), 7))
			default:
				tr, fault := tmpl.Submit(tmpl.Args())
				if fault != nil {
					t.Fatal(fault)
				}
				err = tr.Wait(testContext(t))
			}
			all := failures(t, err, 1, 3)
			if all.Targets != 5 || !errors.Is(err, hawser.ErrPeerDown) {
				t.Fatalf("%s: %v", way, err)
			}
			if viaTemplate := way != "call" && way != "queue"; errors.Is(err, hawser.ErrStale) != viaTemplate {
				t.Fatalf("%s: %v", way, err)
			}
		}
		ends := s.ends
		s.ends = []*end{ends[0], ends[2]}
		s.check()

		s.ends = ends
		s.leave(0)
		s.leave(2)
		tr, err := s.a.Scatter(r)
		if err != nil {
			t.Fatal(err)
		}
		failures(t, tr.Wait(testContext(t)), 0, 1, 2, 3, 4)
		if n := s.a.Stats().Inflight; n != 0 {
			t.Fatalf("%d operations in flight", n)
		}
		if err := s.src.Close(); err != nil {
			t.Fatalf("the source is in use: %v", err)
		}
	})
}

// end1 takes the one end that is due and returns its error.
func (s *star) end1(err error) error {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
	var out [2]hawser.Done
	if n, err := s.q.Wait(testContext(s), out[:]); err != nil || n != 1 || out[0].Cookie != 7 {
		s.Fatalf("%d ends, first %+v: %v", n, out[0], err)
	}
	return out[0].Err
}

// A scatter of which nothing has to be sent ends at once, and wakes who waits although the worker has no part in it.
func TestEmptyScatterWakesItsWaiter(t *testing.T) {
	s := newWorld(t, "sim").star(t, 1, 1)
	r := hawser.Scatter{Src: s.src.All()}
	for range 200 {
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := s.end1(nil); err != nil {
				t.Error(err)
			}
		})
		for range 1 + 100*len(s.ends) {
			runtime.Gosched()
		}
		if err := s.q.Scatter(r, 7); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
	}
}

// Peers die at random while scatters to all of them are under way: each ends, names only peers that died, and holds the source
// no longer than that.
func TestScatterWhilePeersDie(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		s := w.star(t, 2, 1, 2, 1, 1)
		var r hawser.Scatter
		r.Src, r.Imm = s.src.All(), hawser.Imm(1)
		for i := range uint64(64) {
			r.Targets = append(r.Targets, hawser.Target{Dst: s.ends[i%4].rem.Slice(i*4096, 4096), SrcOff: i * 4096, Len: 4096})
		}
		const rounds = 60
		var closed sync.WaitGroup
		defer closed.Wait()
		for i := range rounds {
			if err := s.q.Scatter(r, 7); err != nil {
				t.Fatal(err)
			}
			if i%(rounds/3) == rounds/6 {
				closed.Go(func() {
					if err := s.ends[i/(rounds/3)].e.Close(testContext(t)); err != nil {
						t.Error(err)
					}
				})
			}
			var all *hawser.ScatterError
			err := s.end1(nil)
			if err == nil {
				continue
			}
			if !errors.As(err, &all) || !errors.Is(err, hawser.ErrPeerDown) {
				t.Fatal(err)
			}
			for _, f := range all.Failed {
				if f.Peer != r.Targets[f.Index].Dst.Remote.Peer() || f.Peer == s.ends[3].rem.Peer() {
					t.Fatalf("target %d of %s: %v", f.Index, f.Peer, f.Err)
				}
			}
		}
		for i := range 3 {
			eventually(t, "all have left", func() bool { return !s.ends[i].rem.Peer().Up() })
		}
		reach(t, s.ends[3].e.Counter(1), rounds*16)
		if err := s.src.Close(); err != nil {
			t.Fatalf("the source is in use: %v", err)
		}
	})
}

// The source is in use until every target has ended.
func TestScatterHoldsItsSource(t *testing.T) {
	w := newWorld(t, "sim")
	look := &spy{}
	options := w.options
	w.options = func(i, rails int) hawser.Options {
		o := options(i, rails)
		if i == 0 {
			look.Provider = o.Providers[0]
			o.Providers[0] = look
		}
		return o
	}
	s := w.star(t, 1, 1, 1)
	look.withhold.Store(uint32(provider.KindWrite))
	tr, err := s.a.Scatter(s.scatter(1, shot{0, 0, 0, 100, -1, 0}, shot{1, 0, 0, 100, -1, 0}).req.(hawser.Scatter))
	if err != nil {
		t.Fatal(err)
	}
	reach(t, s.ends[0].e.Counter(1), 1)
	reach(t, s.ends[1].e.Counter(1), 1)
	if err := s.src.Close(); !errors.Is(err, hawser.ErrBusy) {
		t.Fatalf("close of a source in use: %v", err)
	}
	select {
	case <-tr.Done():
		t.Fatal("a transfer ended before its writes did")
	default:
	}
	look.withhold.Store(0)
	s.a.Stats() // makes the worker look
	wait(t, tr, nil)
	if err := s.src.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestScatterArgumentErrors(t *testing.T) {
	w := newWorld(t, "sim")
	s := w.star(t, 2, 1)
	other := w.star(t, 1, 1)
	rem := s.ends[0].rem
	good := hawser.Target{Dst: rem.Slice(0, 10), Len: 10}
	with := func(change func(*hawser.Target)) hawser.Scatter {
		bad := good
		change(&bad)
		return hawser.Scatter{Src: s.src.Slice(5, 100), Targets: []hawser.Target{good, bad}}
	}
	for name, c := range map[string]struct {
		r    hawser.Scatter
		text string // that the error must hold
	}{
		"no source":            {hawser.Scatter{Targets: []hawser.Target{good}}, "source"},
		"foreign source":       {hawser.Scatter{Src: other.src.All()}, "source"},
		"source beyond":        {hawser.Scatter{Src: s.src.Slice(1, starMemory)}, fmt.Sprint(starMemory)},
		"no destination":       {with(func(x *hawser.Target) { x.Dst.Remote = nil }), "target 1: destination"},
		"foreign destination":  {with(func(x *hawser.Target) { x.Dst = other.ends[0].rem.All() }), "target 1: destination"},
		"beyond the source":    {with(func(x *hawser.Target) { x.SrcOff = 91 }), "target 1: source: invalid: [91, +10) is not inside the slice's 100"},
		"source wraps":         {with(func(x *hawser.Target) { x.SrcOff = 1<<64 - 1 }), "target 1: source"},
		"longer than the room": {with(func(x *hawser.Target) { x.Len = 11 }), "target 1: destination: invalid: [0, +11) is not inside the slice's 10"},
		"beyond the remote":    {with(func(x *hawser.Target) { x.Dst.Off = starMemory - 9 }), "target 1: destination"},
		"negative parts":       {with(func(x *hawser.Target) { x.Parts = -1 }), "target 1: parts: invalid: -1 is not within 0 .."},
		"too many parts":       {with(func(x *hawser.Target) { x.Parts = hawser.MaxParts + 1 }), "target 1: parts"},
		"too many targets":     {hawser.Scatter{Src: s.src.All(), Targets: make([]hawser.Target, hawser.MaxTargets+1)}, "targets"},
		"no such rail":         {hawser.Scatter{Src: s.src.All(), Pin: hawser.OnRail(2)}, "rail 2 is not within 0 .. 1"},
	} {
		check := func(way string, err error) {
			if !errors.Is(err, hawser.ErrInvalid) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%s, %s: %v, want %q", name, way, err, c.text)
			}
		}
		_, err := s.a.Scatter(c.r)
		check("call", err)
		check("queue", s.q.Scatter(c.r, 0))
		_, err = s.a.Prepare(c.r)
		check("prepare", err)
	}
	if n := s.a.Stats().Inflight; n != 0 {
		t.Errorf("%d operations in flight after refusals", n)
	}
	for range 8 { // the queue's places are free
		if err := s.q.Scatter(hawser.Scatter{Src: s.src.All()}, 7); err != nil {
			t.Error(err)
		}
	}
	if err := s.q.Scatter(hawser.Scatter{Src: s.src.All()}, 7); !errors.Is(err, hawser.ErrBusy) {
		t.Errorf("a full queue: %v", err)
	}
}

func TestTargetsOfAGroup(t *testing.T) {
	s := newWorld(t, "sim").star(t, 1, 1, 1)
	x, y := s.ends[0].rem, s.ends[1].rem
	g, err := s.a.NewGroup([]*hawser.Peer{x.Peer(), y.Peer()})
	if err != nil {
		t.Fatal(err)
	}
	targets, err := g.Targets([]*hawser.Remote{x, y})
	if err != nil {
		t.Fatal(err)
	}
	for i := range targets {
		targets[i].SrcOff, targets[i].Len = uint64(i)*100, 50
	}
	j := s.scatter(1, shot{0, 0, 0, 50, -1, 0}, shot{1, 0, 100, 50, -1, 0})
	r := j.req.(hawser.Scatter)
	r.Targets = targets
	j.req = r
	s.do("call", j)
	s.check()
	for _, wrong := range [][]*hawser.Remote{{y, x}, {x, nil}, {x}, {x, y, y}} {
		if _, err := g.Targets(wrong); !errors.Is(err, hawser.ErrInvalid) {
			t.Errorf("%v: %v", wrong, err)
		}
	}
}

// requests is one request of each kind with a pin.
func (s *star) requests(pin hawser.OptRail) []hawser.Request {
	rem := s.ends[0].rem
	return []hawser.Request{
		hawser.Write{Src: s.src.Slice(0, 10), Dst: rem.All(), Pin: pin},
		hawser.WritePages{PageLen: 10, Src: hawser.Pages{Region: s.src, Indices: []uint32{0}}, Dst: hawser.RemotePages{Remote: rem, Indices: []uint32{0}}, Pin: pin},
		hawser.Scatter{Src: s.src.All(), Targets: []hawser.Target{{Dst: rem.All(), Len: 10}}, Pin: pin},
		hawser.Signal{To: rem.Peer(), Imm: 1, Pin: pin},
	}
}

// refused checks that r is refused in every way, before anything is sent.
func (s *star) refused(r hawser.Request, sentinel error, text string) {
	s.Helper()
	check := func(way string, err error) {
		s.Helper()
		if !errors.Is(err, sentinel) || !strings.Contains(err.Error(), text) {
			s.Errorf("%T, %s: %v, want %v and %q", r, way, err, sentinel, text)
		}
	}
	_, err := call(s.a, r)
	check("call", err)
	check("queue", enqueue(s.q, r, 0))
	_, err = s.a.Prepare(r)
	check("prepare", err)
}

func TestPinsAreChecked(t *testing.T) {
	s := newWorld(t, "sim").star(t, 3, 1)
	for _, i := range []int{-1, 3, 1 << 40} {
		for _, r := range s.requests(hawser.OnRail(i)) {
			s.refused(r, hawser.ErrInvalid, fmt.Sprintf("rail %d is not within 0 .. 2", i))
		}
	}
	for i := range 3 {
		for _, r := range s.requests(hawser.OnRail(i)) {
			tr, err := call(s.a, r)
			wait(t, tr, err)
		}
	}
}

// A rail that does not lead to the peer is refused, by name, instead of waited for.
func TestPinToARailThatDoesNotReachThePeer(t *testing.T) {
	w := &world{name: "shm", options: func(int, int) hawser.Options {
		o := railsOf(shm.New(), 1, func(int) string { return "" })
		o.Providers = append(o.Providers, tcp.New())
		o.Rails = append(o.Rails, hawser.Rail{Provider: "tcp", Device: "127.0.0.1"})
		return o
	}}
	s := w.star(t, 1, 1)
	for _, r := range s.requests(hawser.OnRail(1)) {
		s.refused(r, hawser.ErrUnsupported, "not reached over rail 1, but over 0")
	}
	for _, r := range s.requests(hawser.OnRail(0)) {
		tr, err := call(s.a, r)
		wait(t, tr, err)
	}
}

func TestImmLastNeedsAnOrderedRail(t *testing.T) {
	for _, name := range []string{"sim", "shm"} {
		s := newWorld(t, name).star(t, 2, 1)
		r := s.requests(hawser.OptRail{})[1].(hawser.WritePages)
		r.Imm, r.ImmLast = hawser.Imm(3), true
		s.refused(r, hawser.ErrUnsupported, "not pinned")
		r.Pin = hawser.OnRail(2)
		s.refused(r, hawser.ErrInvalid, "rail 2 is not within 0 .. 1")
		r.Pin = hawser.OnRail(1)
		if name == "sim" { // its writes overtake each other
			s.refused(r, hawser.ErrUnsupported, "rail 1 (sim) does not keep the order of writes")
			continue
		}
		if n := r.ImmCount(); n != 1 {
			t.Errorf("%d immediates, want 1", n)
		}
		r.Src.Indices, r.Dst.Indices = nil, nil
		s.counted(s.ends[0].rem.Peer(), 3, 1) // also without pages
		tr, err := s.a.WritePages(r)
		wait(t, tr, err)
		s.check()
	}
}

// One immediate for all pages comes after all of them.
func TestImmLastComesLast(t *testing.T) {
	for _, name := range hostWorlds() {
		for _, rails := range [][2]int{{1, 1}, {2, 3}, {3, 1}} {
			t.Run(fmt.Sprintf("%s/%dx%d", name, rails[0], rails[1]), func(t *testing.T) {
				s := newWorld(t, name).star(t, rails[0], rails[1])
				for i := range 40 {
					s.lastPages(i, i%rails[0])
				}
			})
		}
	}
}

// lastPages writes pages whose only immediate is the last thing to arrive.
func (s *star) lastPages(i, rail int) {
	s.Helper()
	x := s.ends[0]
	l := layout{idx: []uint32{5, 2, 3, 4, 0, 7, 9, 1}, stride: 16 << 10} // some could go as one
	j := s.pages(x, 16<<10, l, l, 1)
	r := j.req.(hawser.WritePages)
	r.ImmLast, r.Pin = true, hawser.OnRail(rail)
	if n := r.ImmCount(); n != 1 {
		s.Fatalf("%d immediates, want 1", n)
	}
	fill(s.src.Bytes(), uint64(i))
	j.model()
	x.counts[1] = uint64(i + 1)
	if i%2 == 0 {
		if err := s.q.WritePages(r, 7); err != nil {
			s.Fatal(err)
		}
	} else {
		tmpl := s.prepare(r)
		if err := s.q.Submit(tmpl, tmpl.Args(), 7); err != nil {
			s.Fatal(err)
		}
	}
	reach(s, x.e.Counter(1), uint64(i+1))
	same(s, "memory when the immediate has come", x.dst.Bytes(), x.want)
	s.drain(nil)
	s.check()
}
