package hawser_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/internal/wire"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/tcp"
)

// Troubles of users of other engines that cannot happen here, or that name themselves.

// A peer whose network address made no sense once is not locked out for ever: its failed session ends, and the next one comes up.
func TestFailedPathDoesNotLockThePeerOut(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		x, e := w.puppetOf(t, nil)
		for _, addr := range []string{"", "nonsense", "sim1 and 16 bytes."} {
			x.greet(e)
			x.prove()
			x.proposal()
			x.send(wire.TypeLinksReply, 0, &wire.LinksReply{Links: []wire.Link{{Addr: []byte(addr)}}})
			x.send(wire.TypeLinksDone, 0, &wire.LinksDone{})
			if _, err := x.tryRead(wire.TypeUp, nil); err == nil {
				t.Fatalf("up with the address %q", addr)
			}
			x.hangUp()
		}
		x.up(e)
		for _, p := range e.Stats().Peers {
			if !p.Up {
				t.Fatalf("the peer is down: %v", p.Down)
			}
		}
	})
}

// Several threads that find a peer lost and add it again at once killed the process. Here they share one new session.
func TestManyReconnectALostPeerAtOnce(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		a, b := w.engine(t, 0, 2), w.engine(t, 1, 1)
		peer := known(t, a, b)
		for round := range 5 {
			if err := a.Fence(testContext(t), peer); err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			for range 16 {
				wg.Go(func() {
					p, err := a.Connect(testContext(t), b.Addr())
					if err != nil || p != peer {
						t.Errorf("round %d: %v, %v", round, p, err)
					}
				})
			}
			wg.Wait()
			if t.Failed() {
				return
			}
			tr, err := a.Signal(hawser.Signal{To: peer, Imm: 1})
			wait(t, tr, err)
			reach(t, b.Counter(1), uint64(round+1))
		}
	})
}

// Locked memory ran out at start-up, and what the user saw later was that a peer could be dead. Here the start fails, says which
// rail refused and why, blames nobody else, and leaves nothing behind.
func TestOpenStopsWhenARailCannotRegister(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		routines, fds := runtime.NumGoroutine(), countFDs(t)
		cause := fmt.Errorf("RLIMIT_MEMLOCK is 64 KiB: %w", provider.ErrLimit)
		l := &ledger{refuse: func(domain int) error {
			if domain == 1 {
				return cause
			}
			return nil
		}}
		e, err := hawser.Open(testContext(t), w.wrapped(l.wrap).options(0, 3))
		if err == nil {
			_ = e.Close(testContext(t))
			t.Fatal("an engine is open whose second rail registers nothing")
		}
		if !errors.Is(err, cause) || !errors.Is(err, hawser.ErrLimit) || errors.Is(err, hawser.ErrPeerDown) {
			t.Fatal(err)
		}
		eventually(t, "goroutines and descriptors are back", func() bool {
			return runtime.NumGoroutine() <= routines && countFDs(t) <= fds
		})
	})
}

// A peer that died in the middle of a handshake left those who connected to it waiting for ever, or gave each another error.
func TestPeerThatDiesInTheHandshakeFailsAllWaiters(t *testing.T) {
	a := newWorld(t, "tcp").engine(t, 0, 1)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	const waiters = 8
	results := make(chan error, waiters)
	for range waiters {
		go func() {
			_, err := a.Connect(context.Background(), l.Addr().String())
			results <- err
		}()
	}
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := wire.ReadFrame(conn, nil); err != nil { // hello
		t.Fatal(err)
	}
	// Whose own time is over leaves; the others stay.
	if _, err := a.Connect(expired(), l.Addr().String()); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if len(results) > 0 {
		t.Fatalf("a waiter has given up: %v", <-results)
	}
	_ = l.Close()
	_ = conn.Close()
	for range waiters {
		soon(t, "a waiter", func() {
			if err := <-results; !errors.Is(err, hawser.ErrPeerDown) {
				t.Error(err)
			}
		})
	}
}

// Peers were connected one after the other, so that one that did not answer held up all behind it.
func TestSilentPeersDoNotDelayOthers(t *testing.T) {
	w := newWorld(t, "tcp")
	a := w.engine(t, 0, 1)
	l, err := net.Listen("tcp", "127.0.0.1:0") // in whose backlog connections wait, unanswered
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var silent sync.WaitGroup
	pending := make(chan error, 2)
	for _, addr := range []string{l.Addr().String(), strings.Replace(l.Addr().String(), "127.0.0.1", "localhost", 1)} {
		silent.Go(func() {
			_, err := a.Connect(ctx, addr)
			pending <- err
		})
	}
	var wg sync.WaitGroup
	for i := range 8 {
		b := w.engine(t, i+1, 1)
		wg.Go(func() { known(t, a, b) })
	}
	wg.Wait()
	if len(pending) > 0 {
		t.Fatalf("a silent peer is not waited for: %v", <-pending)
	}
	cancel()
	soon(t, "callers that give up", silent.Wait)
	_ = l.Close()
}

// Whatever is used after its end answers with an error: a handle that was freed is no pointer into what came after it.
func TestHandlesOutliveWhatTheyName(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		p := w.pair(t, 1, 1, 4096)
		ctx := testContext(t)
		peer, back := p.rem.Peer(), known(t, p.b, p.a)
		q, c := p.a.NewQueue(4), p.a.Counter(1)
		tr, err := p.a.Write(hawser.Write{Src: p.src.All(), Dst: p.rem.All()})
		wait(t, tr, err)
		d := p.src.Descriptor(p.src.All(), hawser.RightWrite)
		late := p.a.OnPeer(func(hawser.PeerEvent) {})
		if err := p.a.Close(ctx); err != nil {
			t.Fatal(err)
		}
		_, err = p.a.Write(hawser.Write{Src: p.src.Slice(0, 0), Dst: p.rem.Slice(0, 0)})
		_, perr := p.a.WritePages(hawser.WritePages{Src: hawser.Pages{Region: p.src}, Dst: hawser.RemotePages{Remote: p.rem}})
		_, serr := p.a.Signal(hawser.Signal{To: peer})
		_, merr := p.a.Send(peer, nil)
		_, aerr := p.a.Alloc(1, hawser.MemOptions{})
		_, ierr := p.a.Import(ctx, p.dst.Descriptor(p.dst.All(), hawser.RightWrite))
		_, cerr := p.a.Connect(ctx, p.b.Addr())
		_, rerr := p.a.Receive(ctx)
		_, qerr := q.Wait(ctx, make([]hawser.Done, 1))
		for what, err := range map[string]error{
			"write": err, "write pages": perr, "signal": serr, "send": merr, "alloc": aerr, "import": ierr, "connect": cerr,
			"receive": rerr, "queue": qerr, "counter": c.Wait(ctx, 1), "queued": q.Signal(hawser.Signal{To: peer}, 1),
		} {
			if !errors.Is(err, hawser.ErrClosed) {
				t.Errorf("%s after close: %v", what, err)
			}
		}
		if err := tr.Wait(ctx); err != nil || tr.Err() != nil {
			t.Errorf("a transfer that ended well before: %v", err)
		}
		if n := q.Poll(make([]hawser.Done, 4)); n != 0 {
			t.Errorf("%d ends of nothing", n)
		}
		late()
		c.Close()
		soon(t, "a threshold", func() { <-c.Done(1) })
		if err := errors.Join(p.src.Close(), p.src.Close(), p.a.Close(ctx)); err != nil {
			t.Errorf("closed twice: %v", err)
		}
		if peer.Up() || peer.Path() != "" || peer.ID() != p.b.ID() || p.rem.Len() != 4096 || d.Len() != 4096 {
			t.Errorf("peer %s is up: %v, over %q", peer, peer.Up(), peer.Path())
		}
		_ = p.a.Stats()
		eventually(t, "the other side knows", func() bool { return !back.Up() })
		if _, err := p.b.Import(ctx, d); err == nil {
			t.Error("import of memory of an engine that is closed")
		}
	})
}

// The name of a network that was not built in became another network in silence. Here it is an error that lists what there is.
func TestUnknownNetworkNamesWhatThereIs(t *testing.T) {
	for name, o := range map[string]hawser.Options{
		"rail":        {Rails: []hawser.Rail{{Provider: "efa"}}},
		"requirement": {Require: "efa"},
	} {
		_, err := hawser.Open(testContext(t), o)
		if !errors.Is(err, hawser.ErrInvalid) || !strings.Contains(err.Error(), "efa: ") || !strings.Contains(err.Error(), "there are shm, verbs, ofi, tcp") {
			t.Errorf("unknown %s: %v", name, err)
		}
	}
}

// missing is a network that this machine does not have.
type missing struct{ provider.Provider }

func (missing) Name() string { return "verbs" }

func (missing) Devices(context.Context) ([]provider.Device, error) {
	return nil, fmt.Errorf("libibverbs.so.1 is not installed: %w", provider.ErrUnavailable)
}

// A network that was missing was replaced by a slower one in silence. Here whoever asks for it is told what is missing, and whoever
// leaves the choice to the engine finds it in the log.
func TestMissingNetworkIsNotReplacedInSilence(t *testing.T) {
	const what = "libibverbs.so.1 is not installed"
	both := func() []provider.Provider { return []provider.Provider{missing{}, tcp.New()} }
	for name, o := range map[string]hawser.Options{
		"nothing else": {Providers: []provider.Provider{missing{}}},
		"its rail":     {Providers: both(), Rails: []hawser.Rail{{Provider: "verbs"}}},
		"required":     {Providers: both(), Require: "verbs"},
	} {
		_, err := hawser.Open(testContext(t), o)
		if !errors.Is(err, hawser.ErrUnavailable) || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", name, err)
		}
	}
	o := hawser.Options{Rails: []hawser.Rail{{Provider: "tcp"}}, Require: "shm"}
	if _, err := hawser.Open(testContext(t), o); !errors.Is(err, hawser.ErrInvalid) || !strings.Contains(err.Error(), "require shm") {
		t.Errorf("required, but not among the rails: %v", err)
	}
	var log syncBuffer
	e := open(t, hawser.Options{Providers: both(), Log: slog.New(slog.NewTextHandler(&log, nil))})
	if !strings.Contains(log.String(), what) {
		t.Errorf("the log does not say what is missing: %s", log.String())
	}
	names := []string{}
	for _, r := range e.Stats().Rails {
		names = append(names, r.Provider)
	}
	if !slices.Equal(names, []string{"tcp"}) {
		t.Errorf("rails %v", names)
	}
}
