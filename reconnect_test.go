package hawser_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
)

// cable is a TCP proxy in front of a control listener, which a test can cut and put into another socket.
type cable struct {
	net.Listener
	dials atomic.Int64

	mu    sync.Mutex
	to    string // empty: nobody answers
	conns []net.Conn
	wg    sync.WaitGroup
}

func newCable(t testing.TB, to string) *cable {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cable{Listener: l, to: to}
	c.wg.Go(c.run)
	t.Cleanup(func() {
		_ = l.Close()
		c.cut("")
		c.wg.Wait()
	})
	return c
}

func (c *cable) run() {
	for {
		near, err := c.Accept()
		if err != nil {
			return
		}
		c.dials.Add(1)
		c.mu.Lock()
		far, err := net.Dial("tcp", c.to)
		if c.to == "" || err != nil {
			c.mu.Unlock()
			_ = near.Close()
			continue
		}
		c.conns = append(c.conns, near, far)
		c.mu.Unlock()
		c.wg.Go(func() { join(near.(*net.TCPConn), far.(*net.TCPConn)) })
	}
}

// join copies both ways until both have ended: what one side said last arrives.
func join(near, far *net.TCPConn) {
	var wg sync.WaitGroup
	for _, p := range [][2]*net.TCPConn{{near, far}, {far, near}} {
		wg.Go(func() {
			_, _ = io.Copy(p[0], p[1])
			_ = p[0].CloseWrite()
		})
	}
	wg.Wait()
	_ = errors.Join(near.Close(), far.Close())
}

// cut ends all connections; later ones go to the address to.
func (c *cable) cut(to string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.to = to
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	c.conns = nil
}

// eventsOf collects the events of an engine.
func eventsOf(e *hawser.Engine) chan hawser.PeerEvent {
	events := make(chan hawser.PeerEvent, 100)
	e.OnPeer(func(ev hawser.PeerEvent) { events <- ev })
	return events
}

func expect(t testing.TB, events chan hawser.PeerEvent, kinds ...hawser.PeerEventKind) (last hawser.PeerEvent) {
	t.Helper()
	for _, kind := range kinds {
		select {
		case last = <-events:
			if last.Kind != kind {
				t.Fatalf("event %v (%v), want %v", last.Kind, last.Cause, kind)
			}
		case <-time.After(hang):
			t.Fatalf("no %v event", kind)
		}
	}
	return last
}

// A peer whose connection breaks comes back by itself, again and again; the events are in order on both sides, remotes of before
// are stale, and the address is good for more.
func TestLostPeerComesBack(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		a, b := w.engine(t, 0, 1), w.engine(t, 1, 1)
		c := newCable(t, b.ListenAddrs()[0])
		atA, atB := eventsOf(a), eventsOf(b)
		p, err := a.Connect(testContext(t), c.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		src, dst := w.alloc(t, a, 4096), w.alloc(t, b, 4096)
		desc := dst.Descriptor(dst.All(), hawser.RightWrite)
		expect(t, atA, hawser.PeerUp)
		expect(t, atB, hawser.PeerUp)
		for i := range uint64(3) {
			rem, err := a.Import(testContext(t), desc)
			if err != nil {
				t.Fatal(err)
			}
			c.cut(b.ListenAddrs()[0])
			expect(t, atA, hawser.PeerDown, hawser.PeerFenced, hawser.PeerUp)
			expect(t, atB, hawser.PeerDown, hawser.PeerFenced, hawser.PeerUp)
			if _, err := a.Write(hawser.Write{Src: src.All(), Dst: rem.All()}); !errors.Is(err, hawser.ErrStale) {
				t.Fatalf("write through a remote of before: %v", err)
			}
			eventually(t, "Stats say so", func() bool {
				st := a.Stats().Peers[0]
				return st.Up && !st.Reconnecting && st.Reconnects == i+1 && st.ReconnectErr == nil
			})
			if st := b.Stats().Peers[0]; st.Reconnects != 0 || st.ReconnectTries != 0 {
				t.Fatalf("the side that was dialed dials: %+v", st)
			}
			if again, err := a.Connect(testContext(t), c.Addr().String()); err != nil || again != p {
				t.Fatalf("connect again: %v, %v", again, err)
			}
			tr, err := a.Signal(hawser.Signal{To: p, Imm: 1})
			wait(t, tr, err)
			reach(t, b.Counter(1), i+1)
		}
	})
}

// Who fenced a peer, or left it, or was sent away, is left alone: nobody dials. Connect works as ever.
func TestWantedEndsAreNoReasonToComeBack(t *testing.T) {
	w := newWorld(t, "sim")
	for name, end := range map[string]func(t *testing.T, a, b *hawser.Engine, toB, toA *hawser.Peer){
		"fenced here": func(t *testing.T, a, _ *hawser.Engine, toB, _ *hawser.Peer) {
			if err := a.Fence(testContext(t), toB); err != nil {
				t.Fatal(err)
			}
		},
		"fenced there": func(t *testing.T, _, b *hawser.Engine, _, toA *hawser.Peer) {
			if err := b.Fence(testContext(t), toA); err != nil {
				t.Fatal(err)
			}
		},
		"left": func(t *testing.T, _, b *hawser.Engine, _, _ *hawser.Peer) {
			if err := b.Close(testContext(t)); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := w.engine(t, 0, 1), w.engine(t, 1, 1)
			c := newCable(t, b.ListenAddrs()[0])
			events := eventsOf(a)
			toB, err := a.Connect(testContext(t), c.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			toA, err := b.Connect(testContext(t), a.Addr())
			if err != nil {
				t.Fatal(err)
			}
			end(t, a, b, toB, toA)
			expect(t, events, hawser.PeerUp, hawser.PeerDown, hawser.PeerFenced)
			select { // several first pauses
			case ev := <-events:
				t.Fatalf("event %v", ev.Kind)
			case <-time.After(300 * time.Millisecond):
			}
			if st := a.Stats().Peers[0]; c.dials.Load() != 1 || st.Reconnecting {
				t.Fatalf("dialed %d times, reconnecting %v", c.dials.Load(), st.Reconnecting)
			}
		})
	}
}

// A fence ends the attempts to bring a peer back that is already lost.
func TestFenceEndsReconnecting(t *testing.T) {
	w := newWorld(t, "sim")
	a, b := w.engine(t, 0, 1), w.engine(t, 1, 1)
	c := newCable(t, b.ListenAddrs()[0])
	p, err := a.Connect(testContext(t), c.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c.cut("")
	eventually(t, "it is tried more than once", func() bool { return a.Stats().Peers[0].ReconnectTries > 1 })
	if err := a.Fence(testContext(t), p); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the attempts end", func() bool { return !a.Stats().Peers[0].Reconnecting })
	c.cut(b.ListenAddrs()[0])
	if p.Up() {
		t.Fatal("a fenced peer came back")
	}
	if again, err := a.Connect(testContext(t), c.Addr().String()); err != nil || again != p {
		t.Fatalf("%v, %v", again, err)
	}
}

// Another engine of the same name at the same place is a successor, and is told as such; of another name it is somebody else.
func TestReplacedPeerIsTold(t *testing.T) {
	w := newWorld(t, "sim")
	for _, same := range []bool{true, false} {
		t.Run(fmt.Sprintf("same name %v", same), func(t *testing.T) {
			named := func(i int, name string) *hawser.Engine {
				o := w.options(i, 1)
				o.Name, o.ReconnectTime = name, 500*time.Millisecond
				return open(t, o)
			}
			a, b, next := named(0, "client"), named(1, "server"), named(2, "server")
			if !same {
				next = named(3, "stranger")
			}
			c := newCable(t, b.ListenAddrs()[0])
			events := eventsOf(a)
			p, err := a.Connect(testContext(t), c.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			c.cut(next.ListenAddrs()[0])
			expect(t, events, hawser.PeerUp, hawser.PeerDown, hawser.PeerFenced)
			if same {
				if ev := expect(t, events, hawser.PeerReplaced); ev.Peer != p || ev.Successor != next.ID() || ev.Cause == nil {
					t.Fatalf("replaced: %+v", ev)
				}
			}
			eventually(t, "the attempts end", func() bool {
				st := a.Stats().Peers[0]
				return !st.Reconnecting && errors.Is(st.ReconnectErr, hawser.ErrRefused)
			})
			if again, err := a.Connect(testContext(t), c.Addr().String()); err != nil || again.ID() != next.ID() {
				t.Fatalf("connect to the successor: %v, %v", again, err)
			}
			if ev := expect(t, events, hawser.PeerUp); ev.Peer.ID() != next.ID() {
				t.Fatalf("%s is up", ev.Peer)
			}
		})
	}
}

// A peer that stays away is given up after ReconnectTime; an engine that closes does not wait for that.
func TestReconnectingIsBounded(t *testing.T) {
	w := newWorld(t, "sim")
	b := w.engine(t, 0, 1)
	for _, limit := range []time.Duration{300 * time.Millisecond, time.Hour, -1} {
		o := w.options(1, 1)
		o.ReconnectTime = limit
		a := open(t, o)
		c := newCable(t, b.ListenAddrs()[0])
		if _, err := a.Connect(testContext(t), c.Addr().String()); err != nil {
			t.Fatal(err)
		}
		c.cut("")
		eventually(t, "it is down", func() bool { return !a.Stats().Peers[0].Up })
		switch st := func() hawser.PeerStats { return a.Stats().Peers[0] }; limit {
		case time.Hour:
			eventually(t, "it is tried", func() bool { return st().ReconnectTries > 2 && st().ReconnectErr != nil && st().Reconnecting })
		case -1:
			if st().Reconnecting {
				t.Fatal("reconnecting, which was switched off")
			}
		default:
			eventually(t, "it is given up", func() bool { return !st().Reconnecting && st().ReconnectErr != nil })
			dials := c.dials.Load()
			c.cut(b.ListenAddrs()[0])
			if a.Stats().Peers[0].Up || c.dials.Load() != dials {
				t.Fatal("it is dialed after it was given up")
			}
		}
		soon(t, "close", func() {
			if err := a.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
}
