package hawser_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/internal/wire"
	"github.com/hawser-project/hawser/provider"
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

// A peer that asks and asks and never reads the answers is cut off, and nothing of it is left to wait for.
func TestPeerThatDoesNotReadIsCutOff(t *testing.T) {
	t.Parallel()
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

// Beats keep a session up that has nothing to say, and only they: silence ends it, also over links that are well.
func TestBeatsKeepASessionUp(t *testing.T) {
	t.Parallel()
	x, e := simPuppet(t, func(o *hawser.Options) { o.PeerTimeout = time.Second })
	x.up(e)
	for range 6 { // 1.8 s
		if f, err := wire.ReadFrame(x.conn, nil); err != nil || f.Type != wire.TypeBeat {
			t.Fatalf("message of type %d, want a beat: %v", f.Type, err)
		}
		x.send(wire.TypeBeat, 0, nil)
	}
	if !e.Stats().Peers[0].Up {
		t.Fatal("down in spite of beats")
	}
	x.closed()
	if cause := e.Stats().Peers[0].Down; !errors.Is(cause, hawser.ErrPeerDown) || !strings.Contains(cause.Error(), "silent for 1s") {
		t.Fatal(cause)
	}
}

// Two messages that arrive in one look wake two readers, although they ring once.
func TestEveryReaderIsWoken(t *testing.T) {
	sp := &spy{}
	x, e := simPuppet(t, func(o *hawser.Options) {
		sp.Provider = o.Providers[0]
		o.Providers[0] = sp
	})
	x.up(e)
	memory := make([]byte, 64)
	key, err := x.dom.Register(provider.Memory{Bytes: memory, FD: -1}, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		const readers = 3
		var wg sync.WaitGroup
		for range readers {
			wg.Go(func() {
				if _, err := e.Receive(testContext(t)); err != nil {
					t.Error(err)
				}
			})
		}
		sp.withhold.Store(uint32(provider.KindRecv))
		for range readers {
			wr := provider.WR{Op: provider.OpSend, Peer: x.link, LocalKey: key.ID, LocalAddr: key.Base, Len: 8}
			if n, err := x.dom.Post([]provider.WR{wr}); n != 1 {
				t.Fatal(err)
			}
			x.await(provider.KindSend)
		}
		e.Stats() // the worker has looked, and has them all
		sp.withhold.Store(0)
		e.Stats()
		wg.Wait()
	}
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
