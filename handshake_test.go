package hawser_test

import (
	"bytes"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/internal/wire"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/shm"
	"github.com/hawser-project/hawser/provider/tcp"
)

// The same peer, asked for by address and by host and port at once, from either side of the order of identities.
func TestConnectByAddressAndPortAtOnce(t *testing.T) {
	w := newWorld(t, "sim")
	for range 20 {
		a, b := w.engine(t, 0, 1), w.engine(t, 1, 1)
		for _, e := range [][2]*hawser.Engine{{a, b}, {b, a}} {
			start := time.Now()
			var wg sync.WaitGroup
			for _, addr := range []string{e[1].Addr(), e[1].ListenAddrs()[0]} {
				wg.Go(func() {
					if _, err := e[0].Connect(testContext(t), addr); err != nil {
						t.Errorf("after %v: %v", time.Since(start), err)
					}
				})
			}
			wg.Wait()
			p, err := e[0].Connect(testContext(t), e[1].Addr())
			if err != nil {
				t.Fatal(err)
			}
			if err := e[0].Fence(testContext(t), p); err != nil {
				t.Fatal(err)
			}
			eventually(t, "both sides are down", func() bool { return !e[1].Stats().Peers[0].Up })
		}
	}
}

// A fence in the middle of a handshake ends it, is proved however late, and leaves the peer free to come back.
func TestFenceInMidHandshake(t *testing.T) {
	for _, stage := range []string{"proved", "proposed", "offered", "done", "connected"} {
		t.Run(stage, func(t *testing.T) {
			sp := &spy{}
			x, e := simPuppet(t, func(o *hawser.Options) {
				sp.Provider = o.Providers[0]
				o.Providers[0] = sp
			})
			peers := make(chan *hawser.Peer, 10)
			e.OnPeer(func(ev hawser.PeerEvent) {
				if ev.Kind == hawser.PeerUp {
					peers <- ev.Peer
				}
			})
			x.up(e)
			p := <-peers
			x.hangUp()
			eventually(t, "the first session is over", func() bool { return e.Fence(testContext(t), p) == nil })
			x.greet(e)
			x.prove()
			if stage != "proved" {
				x.proposal()
			}
			switch stage {
			case "offered":
				x.offer()
			case "done": // a lie: the engine waits for the link
				x.offer()
				x.send(wire.TypeLinksDone, 0, &wire.LinksDone{})
			case "connected":
				x.offer()
				x.connect()
				x.send(wire.TypeLinksDone, 0, &wire.LinksDone{})
			}
			sp.withhold.Store(uint32(provider.KindFenced))
			ran := awake(t)
			fenced := make(chan error, 1)
			go func() { fenced <- e.Fence(testContext(t), p) }()
			if stage != "proved" { // then the engine may not know yet who it is
				x.closed()
			}
			sp.withhold.Store(0) // the handshake is over
			if err := <-fenced; err != nil {
				t.Fatal(err)
			}
			if took := ran(); took > provider.ConnectTimeout {
				t.Errorf("the handshake went on for %v", took)
			}
			if stage == "proved" { // the engine has fenced it, or knows it from now on: else it may take it for later than the next one
				_, _ = x.tryRead(wire.TypeLinks, nil)
			}
			x.hangUp()
			x.up(e)
			if again := <-peers; again != p {
				t.Fatal("another peer came back")
			}
		})
	}
}

// A connection that was dialed before the session came up does not end it; one that is dialed afterwards does: the other side would
// not dial if it had the session.
func TestOnlyALaterConnectionReplacesASession(t *testing.T) {
	for _, begun := range []bool{false, true} {
		x, e := simPuppet(t, nil)
		early, ours := *x, *x
		if !begun {
			early.greet(e)
		}
		connected := ours.answer(e, func(*wire.Welcome) {})
		ours.read(wire.TypeAuth, nil) // our session is being set up
		if begun {
			early.greet(e)
		}
		ours.lead()
		if err := <-connected; err != nil {
			t.Fatal(err)
		}
		early.prove()
		var r wire.Refuse
		if early.read(wire.TypeRefuse, &r); r.Code != wire.RefuseDuplicate {
			t.Fatalf("refused with %d: %s", r.Code, r.Text)
		}
		early.hangUp()
		if !e.Stats().Peers[0].Up {
			t.Fatal("the session has ended")
		}
		x.up(e)
		ours.closed()
		if !e.Stats().Peers[0].Up {
			t.Fatal("the later session is not up")
		}
		ours.hangUp()
	}
}

// When both sides dial, both keep the connection of the smaller identity, whichever is first.
func TestTheSmallerIdentityDials(t *testing.T) {
	for _, first := range []byte{0, 0xff} {
		x, e := simPuppet(t, nil)
		x.id[0] = first // not e's, but for one time in 256, and then either order will do
		weDial, theyDial := *x, *x
		connected := theyDial.answer(e, func(*wire.Welcome) {})
		theyDial.read(wire.TypeAuth, nil)
		weDial.greet(e)
		weDial.prove()
		id := e.ID()
		if bytes.Compare(x.id[:], id[:]) > 0 {
			var r wire.Refuse
			if weDial.read(wire.TypeRefuse, &r); r.Code != wire.RefuseDuplicate {
				t.Fatalf("refused with %d: %s", r.Code, r.Text)
			}
			theyDial.lead()
		} else {
			theyDial.closed()
			weDial.proposal()
			weDial.offer()
			weDial.connect()
			weDial.send(wire.TypeLinksDone, 0, &wire.LinksDone{})
			weDial.read(wire.TypeUp, nil)
		}
		if err := <-connected; err != nil {
			t.Fatal(err)
		}
		weDial.hangUp()
		theyDial.hangUp()
	}
}

// Dialing is refused while the other side dials; when nothing comes of that, we dial again.
func TestConnectOutlivesADuplicateThatFails(t *testing.T) {
	x, e := simPuppet(t, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	connected := make(chan error, 1)
	go func() {
		_, err := e.Connect(testContext(t), l.Addr().String())
		connected <- err
	}()
	for range 3 {
		if x.conn, err = l.Accept(); err != nil {
			t.Fatal(err)
		}
		x.read(wire.TypeHello, nil)
		x.send(wire.TypeRefuse, 0, &wire.Refuse{Code: wire.RefuseDuplicate})
		x.hangUp()
	}
	x.up(e) // the connection of which it spoke
	defer x.conn.Close()
	if x.conn, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	x.read(wire.TypeHello, nil)
	x.send(wire.TypeWelcome, 0, &wire.Welcome{Version: wire.MaxVersion, ID: x.id})
	if err := <-connected; err != nil {
		t.Fatal(err)
	}
}

// A link that is lost before the handshake is over is not forgotten.
func TestLinkLostDuringHandshake(t *testing.T) {
	lost := make(chan struct{}, 1)
	x, e := simPuppet(t, func(o *hawser.Options) {
		o.PeerTimeout = 2 * hang // silence is not what ends it
		o.Providers[0] = &spy{Provider: o.Providers[0], see: func(c provider.Completion) {
			if c.Kind == provider.KindPeerDown {
				lost <- struct{}{}
			}
		}}
	})
	x.greet(e)
	x.prove()
	x.proposal()
	x.offer()
	x.connect()
	if err := x.dom.Disconnect(x.link); err != nil {
		t.Fatal(err)
	}
	x.await(provider.KindPeerDown)
	<-lost
	eventually(t, "the worker has told the session", func() bool { return e.Stats().Inflight == 0 })
	x.send(wire.TypeLinksDone, 0, &wire.LinksDone{})
	_ = x.conn.SetReadDeadline(time.Now().Add(hang))
	x.closed()
}

// A session does not begin before the one before it is fenced, and that has been told.
func TestNextSessionWaitsForTheFence(t *testing.T) {
	sp := &spy{}
	x, e := simPuppet(t, func(o *hawser.Options) {
		sp.Provider = o.Providers[0]
		o.Providers[0] = sp
	})
	events := make(chan hawser.PeerEventKind, 10)
	e.OnPeer(func(ev hawser.PeerEvent) { events <- ev.Kind })
	expect := func(want hawser.PeerEventKind) {
		t.Helper()
		select {
		case kind := <-events:
			if kind != want {
				t.Fatalf("event %v, want %v", kind, want)
			}
		case <-time.After(hang):
			t.Fatalf("no %v event", want)
		}
	}
	x.up(e)
	expect(hawser.PeerUp)
	sp.withhold.Store(uint32(provider.KindFenced))
	x.hangUp()
	expect(hawser.PeerDown)
	x.greet(e)
	x.prove()
	_ = x.conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond)) // a proposal would come within one
	if f, err := wire.ReadFrame(x.conn, nil); err == nil {
		t.Fatalf("message of type %d before the fence", f.Type)
	}
	_ = x.conn.SetReadDeadline(time.Now().Add(hang))
	sp.withhold.Store(0)
	e.Stats() // the worker looks
	expect(hawser.PeerFenced)
	x.proposal()
	x.offer()
	x.connect()
	x.send(wire.TypeLinksDone, 0, &wire.LinksDone{})
	x.read(wire.TypeUp, nil)
	expect(hawser.PeerUp)
}

// When a path does not come up, whoever's fault it is, the next one is taken, and says why.
func TestNextPathIsTaken(t *testing.T) {
	for _, side := range []string{"dialer", "answerer"} {
		for _, broken := range []string{"offer", "connect"} {
			t.Run(side+" cannot "+broken, func(t *testing.T) {
				bad := hawser.Options{Providers: []provider.Provider{&spy{Provider: shm.New(), broken: broken}, tcp.New()}}
				a, b := open(t, hawser.Options{}), open(t, bad)
				ran := awake(t)
				if side == "dialer" {
					a, b = b, a
				}
				p, err := a.Connect(testContext(t), b.Addr())
				if err != nil {
					t.Fatal(err)
				}
				if took := ran(); took > provider.ConnectTimeout {
					t.Errorf("the other side waited for its links until the end: %v", took)
				}
				reason := b.Stats().Peers[0].Reason
				if p.Path() != "tcp" || !strings.Contains(reason, "; not shm: ") {
					t.Fatalf("path %s: %s", p.Path(), reason)
				}
				tr, err := a.Signal(hawser.Signal{To: p, Imm: 1})
				wait(t, tr, err)
				reach(t, b.Counter(1), 1)
			})
		}
	}
}

// Knowing the name of a key is not knowing the key: both sides check.
func TestEachSideChecksTheClusterKey(t *testing.T) {
	key := []byte("secret")
	x, e := simPuppet(t, func(o *hawser.Options) { o.ClusterKey = key })
	x.key = []byte("guess")
	x.greet(e)
	x.prove()
	var r wire.Refuse
	x.read(wire.TypeRefuse, &r)
	if r.Code != wire.RefuseKey {
		t.Fatalf("refused with %d: %s", r.Code, r.Text)
	}
	x.hangUp()
	x.key = key
	x.up(e)
}
