package hawser

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/hawser-project/hawser/internal/cpu"
	"github.com/hawser-project/hawser/internal/imm"
	"github.com/hawser-project/hawser/internal/rail"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/sim"
)

// Tests have no safety net: a lost wake is a hang.
func init() { maxSleep = time.Hour }

// How the engines of tests look for work, and whether their workers have a thread each, where a test does not say it.
var (
	testPoll PollMode
	testPin  = flag.Bool("pin", false, "give each worker a thread of its own")
)

func init() {
	flag.Func("poll", "adaptive, busy or event", func(text string) error {
		for testPoll = PollAdaptive; testPoll <= PollEvent; testPoll++ {
			if testPoll.String() == text {
				return nil
			}
		}
		return fmt.Errorf("%w: %q", ErrInvalid, text)
	})
}

// Flagged is o as the flags want it.
func Flagged(o Options) Options {
	o.Poll = testPoll
	if allowed, err := cpu.Allowed(); *testPin && err == nil {
		for c := range cpu.MaxCPU + 1 {
			if allowed.IsSet(c) {
				o.CPUs = append(o.CPUs, c)
			}
		}
	}
	return o
}

// hang bounds every wait of a test.
const hang = time.Minute

func simEngine(t *testing.T, f *sim.Fabric, host string) *Engine {
	t.Helper()
	return openEngine(t, Options{Providers: providers(f.Provider(host))})
}

func providers(p provider.Provider) []provider.Provider { return []provider.Provider{p} }

// openEngine opens an engine and closes it at the end of the test.
func openEngine(t testing.TB, o Options) *Engine {
	t.Helper()
	e, err := Open(context.Background(), Flagged(o))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return e
}

// Who was checked before the engine closed and submits after its worker has ended still gets an answer, and Close waits for it.
func TestCloseWaitsForWhoIsAboutToSubmit(t *testing.T) {
	f := sim.New(sim.Config{})
	a, b := simEngine(t, f, "a"), simEngine(t, f, "b")
	p, err := a.Connect(t.Context(), b.Addr())
	if err != nil {
		t.Fatal(err)
	}
	o, err := a.takeOp("signal")
	if err != nil {
		t.Fatal(err)
	}
	if err := o.fillSignal(&Signal{To: p, Imm: 1}); err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	closed := make(chan error, 1)
	go func() { closed <- a.Close(gone) }()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for a.worker.group.Call(func(*rail.Group) {}) { // until the group is closed
		<-tick.C
	}
	o.transfer = a.newTransfer()
	tr := o.transfer
	if err := a.submit(o); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	if err := tr.Wait(ctx); !errors.Is(err, ErrClosed) {
		t.Fatalf("submitted too late: %v", err)
	}
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
}

// An engine that closes takes nothing more, and waits for what it has taken.
func TestCloseDrains(t *testing.T) {
	f := sim.New(sim.Config{})
	a, b := simEngine(t, f, "a"), simEngine(t, f, "b")
	p, err := a.Connect(t.Context(), b.Addr())
	if err != nil {
		t.Fatal(err)
	}
	o, err := a.takeOp("signal")
	if err != nil {
		t.Fatal(err)
	}
	closed := make(chan error, 1)
	go func() { closed <- a.Close(context.Background()) }()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !a.closing.Load() {
		<-tick.C
	}
	for range 20 {
		<-tick.C
		if _, err := a.Signal(Signal{To: p, Imm: 1}); !errors.Is(err, ErrClosed) {
			t.Fatalf("signal while closing: %v", err)
		}
		if !p.Up() {
			t.Fatal("the session has ended before the engine was drained")
		}
	}
	a.dropOp(o)
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
}

// A session that has failed does not come up, and one that comes up while the engine closes goes down again.
func TestSessionsThatAreTooLate(t *testing.T) {
	a := simEngine(t, sim.New(sim.Config{}), "a")
	begin := func(id byte) *session {
		conn, far := net.Pipe()
		t.Cleanup(func() { _ = errors.Join(conn.Close(), far.Close()) })
		s, err := a.peer(ID{id}).claim(conn, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	failed := begin(1)
	failed.fail(ErrPeerDown, errFenced)
	if _, err := failed.begin("sim", "", 1); !errors.Is(err, errFenced) {
		t.Fatalf("a session that has failed tries another path: %v", err)
	}
	if err := failed.setUp("late"); !errors.Is(err, errFenced) || failed.peer.Up() {
		t.Fatalf("a session that has failed comes up: %v", err)
	}
	late := begin(2)
	a.cancel() // as Close does, before it looks for sessions
	if err := late.setUp("late"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	if err := late.waitOver(ctx); err != nil {
		t.Fatalf("a session survives the end of its engine: %v", err)
	}
}

// Peers that come and go under ever new identities cost a bounded amount of memory. One that is there stays the same, and one that
// was fenced stays fenced.
func TestGonePeersAreForgotten(t *testing.T) {
	f := sim.New(sim.Config{})
	a, b := simEngine(t, f, "a"), simEngine(t, f, "b")
	live, err := a.Connect(t.Context(), b.Addr())
	if err != nil {
		t.Fatal(err)
	}
	r, err := a.Alloc(1, MemOptions{})
	if err != nil {
		t.Fatal(err)
	}
	serial := r.Descriptor(r.All(), RightWrite).d.Gen
	fenced := a.peer(ID{1})
	if err := a.Fence(t.Context(), fenced); err != nil {
		t.Fatal(err)
	}
	for n := 0; n < 2*maxGone || a.known(ID{1}) == fenced; n++ { // which one is forgotten is left to chance
		var id ID
		_, _ = rand.Read(id[:])
		a.peer(id)
	}
	if n := len(a.peers); n > maxGone {
		t.Fatalf("%d peers are known, want at most %d", n, maxGone)
	}
	if a.peer(live.ID()) != live || !live.Up() {
		t.Fatal("a peer that is up was forgotten")
	}
	if got := a.staleSerial(ID{1}); got < serial {
		t.Fatalf("descriptors up to %d are stale for a fenced peer, want %d", got, serial)
	}
	conn, far := net.Pipe()
	defer far.Close()
	if _, err := fenced.claim(conn, false, nil); !errors.Is(err, ErrRefused) {
		t.Fatalf("a session of a peer that was forgotten: %v", err)
	}
}

// A pooled operation does not keep the memory of an unusually large request.
func TestPoolKeepsNoLargeLists(t *testing.T) {
	a := simEngine(t, sim.New(sim.Config{}), "a")
	o, err := a.takeOp("test")
	if err != nil {
		t.Fatal(err)
	}
	o.SrcIdx, o.DstIdx, o.Data = make([]uint32, keepPages+1), make([]uint32, keepPages+1), make([]byte, keepData+1)
	a.dropOp(o)
	if cap(o.SrcIdx) > 0 || cap(o.DstIdx) > 0 || cap(o.Data) > 0 {
		t.Fatalf("an idle operation keeps %d and %d pages, %d bytes", cap(o.SrcIdx), cap(o.DstIdx), cap(o.Data))
	}
}

// What comes late from the links of a path that was given up says nothing about the next.
func TestLinksOfAnEarlierPathAreIgnored(t *testing.T) {
	a := simEngine(t, sim.New(sim.Config{}), "a")
	conn, far := net.Pipe()
	defer far.Close()
	s, err := a.peer(ID{1}).claim(conn, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	old, err := s.begin("sim", "", 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.begin("sim", "", 1); err != nil {
		t.Fatal(err)
	}
	s.linkEvent(old, 0, true, "")
	s.linkEvent(old, 0, false, "gone")
	s.mu.Lock()
	told, fault := s.told, s.fault
	s.mu.Unlock()
	if told != 0 || fault != "" || s.inService.Load() != 0 {
		t.Fatalf("links %b are known, fault %q", told, fault)
	}
	s.fail(ErrPeerDown, errBye)
}

// The channel of a transfer is closed once, whoever is first: the asker, who sees the end, or the dispatcher, who was told of it.
func TestTransferIsDoneOnce(t *testing.T) {
	a := simEngine(t, sim.New(sim.Config{}), "a")
	for range 2000 {
		tr := a.newTransfer()
		ok := a.worker.group.Call(func(*rail.Group) { tr.complete(nil) })
		if !ok {
			t.Fatal("the engine is closed")
		}
		select {
		case <-tr.Done():
		case <-time.After(hang):
			t.Fatal("the end was lost")
		}
	}
	tr := a.newTransfer()
	tr.complete(nil)
	<-tr.Done()
	tr.fire()
}

// The end that comes while its waiter is about to sleep wakes it. The worker has nothing else to do that would wake anybody.
func TestWaitersLoseNoWake(t *testing.T) {
	a := simEngine(t, sim.New(sim.Config{}), "a")
	q, c := a.NewQueue(1), a.Counter(1)
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	var src imm.Source
	var out [1]Done
	for i := range uint64(5000) {
		if err := q.reserve("test"); err != nil {
			t.Fatal(err)
		}
		a.worker.group.Call(func(*rail.Group) { q.complete(nil, i, nil) })
		if n, err := q.Wait(ctx, out[:]); n != 1 || out[0].Cookie != i {
			t.Fatalf("end %d: %v", i, err)
		}
		a.worker.group.Call(func(*rail.Group) {
			due, err := a.imms.Add(&src, 1)
			if err != nil {
				t.Error(err)
			}
			if due != nil {
				a.notes.leave(&due.Owner.(*Counter).note)
			}
		})
		if err := c.Wait(ctx, i+1); err != nil {
			t.Fatal(err)
		}
	}
}

// Without Kick a change waits for the end of the pause, with it it is seen at once; and closing waits for no pause.
func TestKickEndsThePause(t *testing.T) {
	f := sim.New(sim.Config{})
	for _, mode := range []PollMode{PollAdaptive, PollEvent} {
		e, err := Open(t.Context(), Options{Providers: []provider.Provider{f.Provider(mode.String())}, Poll: mode})
		if err != nil {
			t.Fatal(err)
		}
		e.watches.firstPause, e.watches.lastPause = time.Hour, time.Hour
		told := make(chan uint64)
		w, err := e.Watch(func(_, new uint64) { told <- new })
		if err != nil {
			t.Fatal(err)
		}
		for i := range uint64(100) {
			w.Word().Store(i + 1)
			w.Kick()
			select {
			case got := <-told:
				if got != i+1 {
					t.Fatalf("told %d, want %d", got, i+1)
				}
			case <-time.After(hang):
				t.Fatal("a kick was lost")
			}
		}
		e.watches.mu.Lock()
		running := e.watches.running
		e.watches.mu.Unlock()
		w.Close()
		select {
		case <-running:
		case <-time.After(hang):
			t.Fatal("the watcher's goroutine sleeps on without words")
		}
		ctx, cancel := context.WithTimeout(t.Context(), hang)
		if err := e.Close(ctx); err != nil {
			t.Fatal(err)
		}
		cancel()
	}
}

func TestOrderedIsOfAllRails(t *testing.T) {
	for _, ordered := range []bool{true, false} {
		f := sim.New(sim.Config{Rails: []sim.NIC{{Ordered: true}, {Ordered: ordered}}})
		o := Options{Providers: providers(f.Provider("a")), Rails: []Rail{{"sim", AllDevices}}}
		a := openEngine(t, o)
		o.Providers = providers(f.Provider("b"))
		b := openEngine(t, o)
		p, err := a.Connect(t.Context(), b.Addr())
		if err != nil {
			t.Fatal(err)
		}
		if p.Ordered() != ordered {
			t.Errorf("ordered %v with rails that are ordered: true, %v", p.Ordered(), ordered)
		}
	}
}

func TestPeerIsFoundByIdentity(t *testing.T) {
	f := sim.New(sim.Config{})
	a, b := simEngine(t, f, "a"), simEngine(t, f, "b")
	if a.Peer(b.ID()) != nil {
		t.Error("a peer that was never here")
	}
	if _, err := b.Connect(t.Context(), a.Addr()); err != nil {
		t.Fatal(err)
	}
	if p := a.Peer(b.ID()); p == nil || p.ID() != b.ID() {
		t.Errorf("the peer that connected is %v", p)
	}
}
