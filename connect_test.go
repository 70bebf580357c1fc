package hawser_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
)

func TestConnectIsSharedAndIdempotent(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		a, b := w.engine(t, 0, 2), w.engine(t, 1, 3)
		peers := make([]*hawser.Peer, 16)
		var wg sync.WaitGroup
		for i := range peers {
			wg.Go(func() { // both sides dial at once, many times
				from, to := a, b
				if i%2 == 1 {
					from, to = b, a
				}
				p, err := from.Connect(testContext(t), to.Addr())
				if err != nil {
					t.Error(err)
				}
				peers[i] = p
			})
		}
		wg.Wait()
		if t.Failed() {
			return
		}
		for i := range peers {
			if peers[i] != peers[i%2] || !peers[i].Up() {
				t.Fatalf("connect %d: another peer, or down", i)
			}
		}
		if n := len(a.Stats().Peers); n != 1 {
			t.Fatalf("%d peers, want 1", n)
		}
		if peers[0].ID() != b.ID() || peers[0].Path() != w.name {
			t.Fatalf("connected to %s over %s", peers[0], peers[0].Path())
		}
		tr, err := a.Signal(hawser.Signal{To: peers[0], Imm: 5})
		wait(t, tr, err)
		tr, err = b.Signal(hawser.Signal{To: peers[1], Imm: 6})
		wait(t, tr, err)
		reach(t, b.Counter(5), 1)
		reach(t, a.Counter(6), 1)
	})
}

func TestConnectByHostPort(t *testing.T) {
	w := newWorld(t, "tcp")
	o := w.options(1, 1)
	o.Listen, o.Name = "[::1]:0", "server"
	b := open(t, o)
	a := w.engine(t, 0, 1)
	// The printable address is opaque; a client that only knows host:port gets the port from the operator.
	p, err := a.Connect(testContext(t), b.ListenAddrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	if p.ID() != b.ID() || p.Name() != "server" {
		t.Fatalf("connected to %s", p)
	}
	defer a.OnPeer(func(ev hawser.PeerEvent) { t.Errorf("event %v: %v", ev.Kind, ev.Cause) })()
	for range 3 { // the session that is there is as good as a new one
		if again, err := a.Connect(testContext(t), b.ListenAddrs()[0]); err != nil || again != p || !p.Up() {
			t.Fatalf("connected to %s: %v", again, err)
		}
	}
}

func TestConnectFailuresNameTheCheck(t *testing.T) {
	ctx := testContext(t)
	w := newWorld(t, "tcp")
	a := w.engine(t, 0, 1)
	if _, err := a.Connect(ctx, a.Addr()); !errors.Is(err, hawser.ErrInvalid) {
		t.Errorf("connect to itself: %v", err)
	}
	for _, addr := range []string{"", "nowhere", "hawser1:!!", "hawser1:AAAA", a.Addr()[:30]} {
		if _, err := a.Connect(ctx, addr); !errors.Is(err, hawser.ErrInvalid) {
			t.Errorf("connect to %q: %v", addr, err)
		}
	}
	gone := w.engine(t, 2, 1)
	addr := gone.Addr()
	if err := gone.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Connect(ctx, addr); !errors.Is(err, hawser.ErrPeerDown) {
		t.Errorf("connect to a closed engine: %v", err)
	}
	keyed := func(key string) hawser.Options {
		o := w.options(3, 1)
		o.ClusterKey = []byte(key)
		return o
	}
	b := open(t, keyed("one"))
	if _, err := a.Connect(ctx, b.Addr()); !errors.Is(err, hawser.ErrRefused) {
		t.Errorf("no key against a key: %v", err)
	}
	if _, err := open(t, keyed("two")).Connect(ctx, b.Addr()); !errors.Is(err, hawser.ErrRefused) {
		t.Errorf("another key: %v", err)
	}
	if _, err := open(t, keyed("one")).Connect(ctx, b.Addr()); err != nil {
		t.Errorf("the same key: %v", err)
	}
	s := newWorld(t, "sim").engine(t, 0, 1)
	if _, err := a.Connect(ctx, s.Addr()); !errors.Is(err, hawser.ErrRefused) {
		t.Errorf("no common network: %v", err)
	}
}

func TestClosedPeerIsDownAndOperationsSaySo(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		p := w.pair(t, 2, 2, 4096)
		events := make(chan hawser.PeerEvent, 10)
		defer p.a.OnPeer(func(ev hawser.PeerEvent) { events <- ev })()
		if err := p.b.Close(testContext(t)); err != nil {
			t.Fatal(err)
		}
		for _, want := range []hawser.PeerEventKind{hawser.PeerDown, hawser.PeerFenced} {
			select {
			case ev := <-events:
				if ev.Kind != want || ev.Peer != p.rem.Peer() {
					t.Fatalf("event %v of %s, want %v", ev.Kind, ev.Peer, want)
				}
			case <-time.After(hang):
				t.Fatalf("no %v event", want)
			}
		}
		if _, err := p.a.Write(hawser.Write{Src: p.src.All(), Dst: p.rem.All()}); !errors.Is(err, hawser.ErrPeerDown) {
			t.Fatalf("write to a peer that left: %v", err)
		}
		if err := p.a.Fence(testContext(t), p.rem.Peer()); err != nil {
			t.Fatal(err)
		}
	})
}

// Events name the session that they are about: who connects again can tell the end of the session before from that of the new one.
func TestEventsNameTheirSession(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		a, b := w.engine(t, 0, 1), w.engine(t, 1, 1)
		events := make(chan hawser.PeerEvent, 10)
		defer a.OnPeer(func(ev hawser.PeerEvent) { events <- ev })()
		var last uint64
		for range 3 {
			p, err := a.Connect(testContext(t), b.Addr())
			if err != nil {
				t.Fatal(err)
			}
			session := p.Session()
			if session <= last {
				t.Fatalf("session %d comes after session %d", session, last)
			}
			last = session
			if err := a.Fence(testContext(t), p); err != nil {
				t.Fatal(err)
			}
			for _, want := range []hawser.PeerEventKind{hawser.PeerUp, hawser.PeerDown, hawser.PeerFenced} {
				select {
				case ev := <-events:
					if ev.Kind != want || ev.Session != session {
						t.Fatalf("event %v of session %d, want %v of %d", ev.Kind, ev.Session, want, session)
					}
				case <-time.After(hang):
					t.Fatalf("no %v event", want)
				}
			}
		}
	})
}

func TestDefaultPathIsSharedMemoryAndRequireIsKept(t *testing.T) {
	ctx := testContext(t)
	a, b := open(t, hawser.Options{}), open(t, hawser.Options{})
	p, err := a.Connect(ctx, b.Addr())
	if err != nil {
		t.Fatal(err)
	}
	if p.Path() != "shm" {
		t.Fatalf("path %s", p.Path())
	}
	c := open(t, hawser.Options{Require: "tcp"})
	if p, err := c.Connect(ctx, b.Addr()); err != nil || p.Path() != "tcp" {
		t.Fatalf("required tcp: %v", err)
	}
	d := open(t, newWorld(t, "tcp").options(0, 1))
	if p, err := d.Connect(ctx, b.Addr()); err != nil || p.Path() != "tcp" {
		t.Fatalf("only tcp on one side: %v", err)
	}
}

func TestFirstMessageCanBeAnsweredAtOnce(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		for range 20 {
			a, b := w.engine(t, 0, 1), w.engine(t, 1, 1)
			echo := func(e *hawser.Engine, rounds int) {
				for range rounds {
					m, err := e.Receive(testContext(t))
					if err == nil {
						_, err = e.Send(m.From, m.Data)
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			}
			var wg sync.WaitGroup
			wg.Go(func() { echo(b, 2) })
			// a speaks as soon as b is up there, b as soon as a is up here: whoever is first is ahead of a handshake.
			spoken := make(chan struct{})
			stop := b.OnPeer(func(ev hawser.PeerEvent) {
				if ev.Kind == hawser.PeerUp {
					defer close(spoken)
					if _, err := b.Send(ev.Peer, []byte("hello")); err != nil {
						t.Error(err)
					}
				}
			})
			wg.Go(func() { echo(a, 1) })
			if _, err := a.Connect(testContext(t), b.Addr()); err != nil {
				t.Fatal(err)
			}
			p, err := a.Connect(testContext(t), b.Addr())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := a.Send(p, []byte("hi")); err != nil {
				t.Fatal(err)
			}
			wg.Wait()
			<-spoken // an echo of an echo can be what b waited for
			stop()
			if t.Failed() {
				return
			}
		}
	})
}

func TestEventsOfReconnectsDoNotMix(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		a, b := w.engine(t, 0, 2), w.engine(t, 1, 1)
		const rounds = 10
		events := make(chan hawser.PeerEventKind, 3*rounds)
		b.OnPeer(func(ev hawser.PeerEvent) { events <- ev.Kind })
		for range rounds {
			if _, err := a.Connect(testContext(t), b.Addr()); err != nil {
				t.Fatal(err)
			}
			p, err := b.Connect(testContext(t), a.Addr())
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(testContext(t))
			cancel()
			if err := b.Fence(ctx, p); err != nil && !errors.Is(err, context.Canceled) { // do not wait: a comes back at once
				t.Fatal(err)
			}
			eventually(t, "a knows", func() bool { return !a.Stats().Peers[0].Up })
		}
		for i := range 3 * rounds {
			select {
			case kind := <-events:
				if want := hawser.PeerUp + hawser.PeerEventKind(i%3); kind != want {
					t.Fatalf("event %d is %v, want %v", i, kind, want)
				}
			case <-time.After(hang):
				t.Fatalf("%d events, want %d", i, 3*rounds)
			}
		}
	})
}

func TestTheIdentityIsInTheAddress(t *testing.T) {
	e := open(t, hawser.Options{})
	if id, err := hawser.IDOf(e.Addr()); err != nil || id != e.ID() {
		t.Errorf("%v, %v, want %v", id, err, e.ID())
	}
	if _, err := hawser.IDOf(e.Addr()[:20]); !errors.Is(err, hawser.ErrInvalid) {
		t.Errorf("half an address: %v", err)
	}
}
