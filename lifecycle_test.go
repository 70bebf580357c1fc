package hawser_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/internal/wire"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/sim"
)

// soon runs f and ends the test when it takes too long.
func soon(t testing.TB, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(hang):
		t.Fatalf("%s: not within %v", what, hang)
	}
}

// Close frees the network's message buffers; Receive never reads one afterwards, unread messages or not.
func TestReceiveTouchesNoFreedBuffer(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		for _, readers := range []int{0, 4} {
			p := w.pair(t, 1, 1, 4096)
			for range 10 {
				tr, err := p.a.Send(p.rem.Peer(), make([]byte, hawser.MaxMessage))
				wait(t, tr, err)
			}
			eventually(t, "messages lie in buffers", func() bool { return p.b.Stats().Peers[0].RxMessages == 10 })
			var wg sync.WaitGroup
			for range readers {
				wg.Go(func() {
					for {
						if _, err := p.b.Receive(context.Background()); err != nil {
							return
						}
					}
				})
			}
			if err := p.b.Close(testContext(t)); err != nil {
				t.Fatal(err)
			}
			soon(t, "readers end", wg.Wait)
			if m, err := p.b.Receive(testContext(t)); !errors.Is(err, hawser.ErrClosed) {
				t.Fatalf("receive from a closed engine: %d bytes, %v", len(m.Data), err)
			}
		}
	})
}

func TestDoneOfATransferOutlivesItsEngine(t *testing.T) {
	p := newWorld(t, "sim").pair(t, 1, 1, 4096)
	tr, err := p.a.Write(hawser.Write{Src: p.src.All(), Dst: p.rem.All()})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.a.Close(testContext(t)); err != nil { // waits for the transfer, of which nobody has asked yet
		t.Fatal(err)
	}
	soon(t, "the channel of a transfer that has ended", func() { <-tr.Done() })
}

// Whatever is submitted while the engine closes ends, or is refused.
func TestSubmitsRaceWithClose(t *testing.T) {
	w := newWorld(t, "sim")
	gone, cancel := context.WithCancel(context.Background())
	cancel()                     // Close drains nothing
	idx := make([]uint32, 1<<20) // copying them takes a while
	for range 20 {
		p := w.pair(t, 1, 1, 4096)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for {
					tr, err := p.a.WritePages(hawser.WritePages{
						Src: hawser.Pages{Region: p.src, Indices: idx}, Dst: hawser.RemotePages{Remote: p.rem, Indices: idx},
					})
					if err != nil {
						return
					}
					_ = tr.Wait(context.Background()) // that it ends is what counts
				}
			})
		}
		if err := p.a.Close(gone); err != nil {
			t.Fatal(err)
		}
		soon(t, "every transfer ends", wg.Wait)
	}
}

// An application that does not read its messages holds up its senders' messages and nothing else.
func TestUnreadMessagesHoldUpNothingElse(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		p := w.pair(t, 1, 1, 1<<20)
		const messages = 300 // more than the buffers of both sides
		for i := range messages {
			if _, err := p.a.Send(p.rem.Peer(), []byte{byte(i)}); err != nil {
				t.Fatal(err)
			}
		}
		fill(p.src.Bytes(), 3)
		for i := range uint64(20) {
			tr, err := p.a.Write(hawser.Write{Src: p.src.All(), Dst: p.rem.All(), Imm: hawser.Imm(1), Parts: 8})
			wait(t, tr, err)
			reach(t, p.b.Counter(1), 8*(i+1))
		}
		same(t, "destination", p.dst.Bytes(), p.src.Bytes())
		for range messages {
			if _, err := p.b.Receive(testContext(t)); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A burst of questions of our own waits for its turn; it does not cost the session.
func TestManyImportsAtOnce(t *testing.T) {
	w := newWorld(t, "sim")
	a, b := w.engine(t, 0, 1), w.engine(t, 1, 1)
	d := w.alloc(t, b, 4096).Descriptor(hawser.Slice{Len: 4096}, hawser.RightWrite)
	var wg sync.WaitGroup
	for range 3000 {
		wg.Go(func() {
			if _, err := a.Import(testContext(t), d); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// A region and its engine may close at the same time: the memory is freed once.
func TestRegionAndEngineCloseTogether(t *testing.T) {
	w := newWorld(t, "shm")
	before := countFDs(t)
	for range 50 {
		e, err := hawser.Open(testContext(t), w.options(0, 1))
		if err != nil {
			t.Fatal(err)
		}
		regions := make([]*hawser.Region, 100)
		for i := range regions {
			regions[i] = w.alloc(t, e, 4096)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			for _, r := range regions {
				if err := r.Close(); err != nil {
					t.Error(err)
				}
			}
		})
		if err := e.Close(testContext(t)); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
	}
	eventually(t, "all descriptors are closed", func() bool { return countFDs(t) <= before })
}

// An operation that names a region which is closing is refused or keeps it open, never something in between.
func TestWritesRaceWithRegionClose(t *testing.T) {
	w := newWorld(t, "sim")
	p := w.pair(t, 1, 1, 4096)
	for range 100 {
		src := w.alloc(t, p.a, 4096)
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				tr, err := p.a.Write(hawser.Write{Src: src.All(), Dst: p.rem.All()})
				if err != nil {
					if !errors.Is(err, hawser.ErrClosed) {
						t.Errorf("write from a closing region: %v", err)
					}
					return
				}
				if err := tr.Wait(testContext(t)); err != nil {
					t.Error(err)
				}
			}
		})
		eventually(t, "the region is closed", func() bool {
			err := src.Close()
			if err != nil && !errors.Is(err, hawser.ErrBusy) {
				t.Fatal(err)
			}
			return err == nil
		})
		wg.Wait()
	}
}

// A callback may wait for something of the engine: closing ends the wait, and then itself.
func TestCloseEndsTheWaitOfACallback(t *testing.T) {
	w := newWorld(t, "sim")
	a, b := w.engine(t, 0, 1), w.engine(t, 1, 1)
	called := make(chan struct{})
	b.OnPeer(func(ev hawser.PeerEvent) {
		if ev.Kind == hawser.PeerUp {
			close(called)
			_ = b.Counter(1).Wait(context.Background(), 1)
		}
	})
	if _, err := a.Connect(testContext(t), b.Addr()); err != nil {
		t.Fatal(err)
	}
	<-called
	soon(t, "close", func() {
		if err := b.Close(testContext(t)); err != nil {
			t.Error(err)
		}
	})
}

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

// Several goroutines may poll one queue: no end is lost.
func TestManyPollersLoseNoEnd(t *testing.T) {
	p := newWorld(t, "sim").pair(t, 1, 1, 4096)
	const depth, total = 2, 20000
	q := p.a.NewQueue(depth)
	ends := make(chan hawser.Done, total)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			var out [1]hawser.Done
			for {
				if q.Poll(out[:]) == 1 {
					ends <- out[0]
					continue
				}
				select {
				case <-stop:
					return
				default:
					runtime.Gosched()
				}
			}
		})
	}
	seen := make([]bool, total)
	for i := 0; i < total; {
		if err := q.Signal(hawser.Signal{To: p.rem.Peer(), Imm: 1}, uint64(i)); err == nil {
			i++
		} else if errors.Is(err, hawser.ErrBusy) {
			runtime.Gosched()
		} else {
			t.Fatal(err)
		}
	}
	for n := range total {
		select {
		case d := <-ends:
			if seen[d.Cookie] {
				t.Fatalf("cookie %d came twice", d.Cookie)
			}
			seen[d.Cookie] = true
		case <-time.After(hang):
			t.Fatalf("%d ends of %d", n, total)
		}
	}
	close(stop)
	wg.Wait()
}

// simPuppet is a puppet and an engine on one simulated network.
func simPuppet(t testing.TB, change func(*hawser.Options)) (*puppet, *hawser.Engine) {
	t.Helper()
	fabric := sim.New(sim.Config{Seed: rand.Uint64()})
	o := railsOf(fabric.Provider("engine"), 1, func(int) string { return "" })
	if change != nil {
		change(&o)
	}
	return newPuppet(t, fabric.Provider("puppet")), open(t, o)
}

// A fence in the middle of a handshake ends it, is proved however late, and leaves the peer free to come back.
func TestFenceInMidHandshake(t *testing.T) {
	for _, stage := range []string{"proved", "proposed", "offered", "done", "connected"} {
		t.Run(stage, func(t *testing.T) {
			var held atomic.Bool
			closed := make(chan struct{}) // the handshake is over
			release := sync.OnceFunc(func() { close(closed) })
			defer release()
			x, e := simPuppet(t, func(o *hawser.Options) {
				o.Providers[0] = &spy{Provider: o.Providers[0], see: func(c provider.Completion) {
					if c.Kind == provider.KindFenced && held.Load() {
						<-closed
					}
				}}
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
			held.Store(true)
			start := time.Now()
			fenced := make(chan error, 1)
			go func() { fenced <- e.Fence(testContext(t), p) }()
			if stage != "proved" { // then the engine may not know yet who it is
				x.closed()
			}
			release()
			if err := <-fenced; err != nil {
				t.Fatal(err)
			}
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("the handshake went on for %v", took)
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

// A peer that asks and asks and never reads the answers is cut off, and nothing of it is left to wait for.
func TestPeerThatDoesNotReadIsCutOff(t *testing.T) {
	x, e := simPuppet(t, func(o *hawser.Options) { o.PeerTimeout = time.Second })
	events := make(chan hawser.PeerEvent, 10)
	e.OnPeer(func(ev hawser.PeerEvent) { events <- ev })
	x.up(e)
	<-events
	var flood []byte
	for i := range uint64(100) {
		flood = wire.AppendFrame(flood, wire.TypeResolve, i, &wire.Resolve{})
	}
	go func() { // not faster than the engine answers, or its queue is full before the socket is
		for tick := time.NewTicker(time.Millisecond); ; <-tick.C {
			if _, err := x.conn.Write(flood); err != nil {
				tick.Stop()
				return
			}
		}
	}()
	for _, kind := range []hawser.PeerEventKind{hawser.PeerDown, hawser.PeerFenced} {
		select {
		case ev := <-events:
			if ev.Kind != kind {
				t.Fatalf("event %v, want %v", ev.Kind, kind)
			}
		case <-time.After(hang):
			t.Fatalf("no %v event", kind)
		}
	}
	soon(t, "close beside a connection that nobody reads", func() {
		if err := e.Close(testContext(t)); err != nil {
			t.Error(err)
		}
	})
}

// slowLog is a log handler that keeps whoever logs a message waiting.
type slowLog struct {
	slog.Handler
	message string
	wait    func()
}

func newSlowLog(message string, wait func()) *slog.Logger {
	return slog.New(slowLog{slog.NewTextHandler(io.Discard, nil), message, wait})
}

func (h slowLog) Handle(_ context.Context, r slog.Record) error {
	if r.Message == h.message {
		h.wait()
	}
	return nil
}

// However short a session is, its events come in order.
func TestEventsOfAShortSessionAreInOrder(t *testing.T) {
	events := make(chan hawser.PeerEventKind, 3)
	var told atomic.Int32
	x, e := simPuppet(t, func(o *hawser.Options) {
		o.Log = newSlowLog("peer is up", func() { eventually(t, "an event", func() bool { return told.Load() > 0 }) })
	})
	e.OnPeer(func(ev hawser.PeerEvent) {
		events <- ev.Kind
		told.Add(1)
	})
	x.greet(e)
	x.prove()
	x.proposal()
	x.offer()
	x.connect()
	x.send(wire.TypeLinksDone, 0, &wire.LinksDone{})
	x.hangUp()
	for _, want := range []hawser.PeerEventKind{hawser.PeerUp, hawser.PeerDown, hawser.PeerFenced} {
		select {
		case kind := <-events:
			if kind != want {
				t.Fatalf("event %v, want %v", kind, want)
			}
		case <-time.After(hang):
			t.Fatalf("no %v event", want)
		}
	}
}

// A log handler that does not return holds up callbacks, which say so, but no transfers.
func TestSlowLogHoldsUpNoTransfer(t *testing.T) {
	w := newWorld(t, "sim")
	stuck := make(chan struct{})
	release := sync.OnceFunc(func() { close(stuck) })
	defer release()
	o := w.options(0, 1)
	o.Log = newSlowLog("peer is down", func() { <-stuck })
	a, b, c := open(t, o), w.engine(t, 1, 1), w.engine(t, 2, 1)
	var peers []*hawser.Peer
	for _, e := range []*hawser.Engine{b, c} {
		p, err := a.Connect(testContext(t), e.Addr())
		if err != nil {
			t.Fatal(err)
		}
		peers = append(peers, p)
	}
	if err := b.Close(testContext(t)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "b is down", func() bool { return !peers[0].Up() })
	for i := range uint64(10) {
		tr, err := a.Signal(hawser.Signal{To: peers[1], Imm: 1})
		wait(t, tr, err)
		reach(t, c.Counter(1), i+1)
	}
	release()
}

// A link that is lost before the handshake is over is not forgotten.
func TestLinkLostDuringHandshake(t *testing.T) {
	lost := make(chan struct{}, 1)
	x, e := simPuppet(t, func(o *hawser.Options) {
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
	_ = x.conn.SetReadDeadline(time.Now().Add(3 * time.Second)) // less than its silence
	x.closed()
}

// spy shows what a network tells its owner. With noise, it tells something at every look. What it withholds comes when it does
// not any more, with the owner's next look.
type spy struct {
	provider.Provider
	see      func(provider.Completion)
	noise    bool
	withhold atomic.Uint32 // a provider.Kind, 0 for none
}

func (s *spy) Open(ctx context.Context, dev provider.Device, cfg provider.Config) (provider.Domain, error) {
	d, err := s.Provider.Open(ctx, dev, cfg)
	if err != nil {
		return nil, fmt.Errorf("spy: %w", err)
	}
	return &spyDomain{Domain: d, spy: s}, nil
}

type spyDomain struct {
	provider.Domain
	spy  *spy
	held []provider.Completion
}

func (d *spyDomain) Poll(cs []provider.Completion) (int, error) {
	n, err := d.Domain.Poll(cs[:len(cs)/2])
	all := append(d.held, cs[:n]...)
	d.held, n = nil, 0
	for _, c := range all {
		if uint32(c.Kind) == d.spy.withhold.Load() {
			d.held = append(d.held, c)
			continue
		}
		if d.spy.see != nil {
			d.spy.see(c)
		}
		cs[n] = c
		n++
	}
	if n == 0 && d.spy.noise {
		cs[0] = provider.Completion{Kind: provider.KindImm} // of a peer that is not there
		n = 1
	}
	return n, err
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

// A worker that is never idle wakes those who wait all the same.
func TestBusyWorkerWakesItsWaiters(t *testing.T) {
	x, e := simPuppet(t, func(o *hawser.Options) { o.Providers[0] = &spy{Provider: o.Providers[0], noise: true} })
	peers := make(chan *hawser.Peer, 1)
	e.OnPeer(func(ev hawser.PeerEvent) {
		if ev.Kind == hawser.PeerUp {
			peers <- ev.Peer
		}
	})
	soon(t, "a region is made", func() {
		if _, err := e.Alloc(1, hawser.MemOptions{Heap: true}); err != nil {
			t.Error(err)
		}
	})
	x.up(e)
	p := <-peers
	tr, err := e.Signal(hawser.Signal{To: p, Imm: 1})
	if err != nil {
		t.Fatal(err)
	}
	done := tr.Done()
	x.await(provider.KindImm)
	soon(t, "a transfer is done", func() { <-done })
	waited := make(chan error, 1)
	go func() { waited <- e.Counter(2).Wait(testContext(t), 1) }()
	for again := true; again; {
		if n, err := x.dom.Post([]provider.WR{{Op: provider.OpWriteImm, Peer: x.link, Imm: 2}}); n != 1 {
			t.Fatal(err)
		}
		x.await(provider.KindWrite)
		select {
		case err := <-waited:
			if err != nil {
				t.Fatal(err)
			}
			again = false
		default:
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

// A callback that never returns costs the engine nothing but the wait that its user allowed.
func TestCloseDoesNotHangOnACallback(t *testing.T) {
	w := newWorld(t, "sim")
	a, err := hawser.Open(testContext(t), w.options(0, 1)) // this test closes it, and no clean-up
	if err != nil {
		t.Fatal(err)
	}
	hold, entered := make(chan struct{}), make(chan struct{}, 8)
	a.OnPeer(func(hawser.PeerEvent) {
		entered <- struct{}{}
		<-hold
	})
	defer close(hold)
	if _, err := a.Connect(testContext(t), w.engine(t, 1, 1).Addr()); err != nil {
		t.Fatal(err)
	}
	<-entered
	ctx, cancel := context.WithCancel(testContext(t))
	cancel()
	soon(t, "close", func() {
		if err := a.Close(ctx); !errors.Is(err, hawser.ErrBusy) {
			t.Errorf("close beside a callback that does not return: %v", err)
		}
	})
}
