package hawser_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/internal/wire"
	"github.com/hawser-project/hawser/provider"
)

// puppetOf is a puppet and an engine on one network.
func (w *world) puppetOf(t testing.TB, change func(*hawser.Options)) (*puppet, *hawser.Engine) {
	t.Helper()
	o := w.options(0, 1)
	if change != nil {
		change(&o)
	}
	return newPuppet(t, w.options(1, 1).Providers[0]), open(t, o)
}

// One packet of a handshake that was not as expected ended the worker, and with it all transfers of the process.
func TestDefect08MalformedHandshakeKillsTheWorker(t *testing.T) {
	t.Parallel()
	worlds(t, func(t *testing.T, w *world) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		rng := rand.New(rand.NewPCG(seed, 8))
		_, e := w.puppetOf(t, func(o *hawser.Options) { o.PeerTimeout = time.Second })
		other := w.engine(t, 2, 1)
		friend := known(t, e, other)
		imms := uint64(0)
		healthy := func() {
			tr, err := e.Signal(hawser.Signal{To: friend, Imm: 1})
			wait(t, tr, err)
			imms++
			reach(t, other.Counter(1), imms)
		}
		garbage := func(b []byte) []byte {
			switch rng.IntN(5) {
			case 0: // cut
				return b[:rng.IntN(len(b))]
			case 1: // some bits
				for range 1 + rng.IntN(8) {
					b[rng.IntN(len(b))] ^= 1 << rng.IntN(8)
				}
				return b
			case 2: // a length that is not true
				b[rng.IntN(4)] ^= byte(1 + rng.IntN(255))
				return b
			case 3: // what a length announces is not there
				return append(b[:len(b)/2+rng.IntN(len(b)/2+1)], make([]byte, rng.IntN(100))...)
			}
			noise := make([]byte, 1+rng.IntN(300))
			for i := range noise {
				noise[i] = byte(rng.Uint32())
			}
			return noise
		}
		for stage := range 5 {
			for range 12 {
				x := newPuppet(t, w.options(1, 1).Providers[0])
				var f []byte
				switch stage {
				case 0:
					conn, err := net.Dial("tcp", e.ListenAddrs()[0])
					if err != nil {
						t.Fatal(err)
					}
					x.conn = conn
					f = wire.AppendFrame(nil, wire.TypeHello, 0, &wire.Hello{
						Magic: wire.Magic, Min: wire.MinVersion, Max: wire.MaxVersion, ID: x.id,
						Rails: []wire.Rail{{Provider: x.dev.Provider, Fabric: x.dom.Caps().Fabric}},
					})
				case 1:
					x.greet(e)
					f = wire.AppendFrame(nil, wire.TypeAuth, 0, &wire.Auth{})
				case 2: // the address of a link, which the network decodes
					x.greet(e)
					x.prove()
					x.proposal()
					_, addr, err := x.dom.Offer()
					if err != nil {
						t.Fatal(err)
					}
					addr = garbage(append(provider.Addr(nil), addr...))
					f = wire.AppendFrame(nil, wire.TypeLinksReply, 0, &wire.LinksReply{Links: []wire.Link{{Addr: addr[:min(len(addr), provider.MaxAddr)]}}})
				case 3:
					x.greet(e)
					x.prove()
					x.proposal()
					f = wire.AppendFrame(nil, wire.TypeLinksReply, 0, &wire.LinksReply{Links: make([]wire.Link, 1)})
				case 4:
					x.up(e)
					f = wire.AppendFrame(nil, wire.TypeResolve, 1, &wire.Resolve{})
				}
				if stage != 2 {
					f = garbage(f)
				}
				_, _ = x.conn.Write(f) // the engine may close before it has read everything
				if rng.IntN(2) == 0 {
					x.hangUp()
				}
				healthy()
				x.hangUp()
			}
		}
		// Whoever comes next is served.
		if p := known(t, w.engine(t, 3, 1), e); !p.Up() {
			t.Fatal("a new peer is not up")
		}
		healthy()
	})
}

// The worker waited for room in the callbacks' queue while a callback waited for room in the worker's: neither ever went on.
func TestDefect09TwoFullQueuesDeadlock(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		p := w.pair(t, 1, 1, 64<<10)
		back := known(t, p.b, p.a)
		const depth = 16
		full := p.b.NewQueue(depth)
		entered, leave, left := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		first := true
		stop := p.b.OnPeer(func(hawser.PeerEvent) {
			if !first {
				return
			}
			first = false
			close(entered)
			<-leave
			left <- func() error { // with everything full, a callback uses the engine
				if err := full.Signal(hawser.Signal{To: back, Imm: 3}, 0); !errors.Is(err, hawser.ErrBusy) {
					return fmt.Errorf("submit to a full queue: %w", err)
				}
				r, err := p.b.Alloc(4096, hawser.MemOptions{Heap: w.heap})
				if err != nil {
					return err
				}
				tr, err := p.b.Signal(hawser.Signal{To: back, Imm: 4})
				if err != nil {
					return err
				}
				ctx, cancel := context.WithTimeout(context.Background(), hang)
				defer cancel()
				return errors.Join(tr.Wait(ctx), r.Close(), p.b.Counter(1).Wait(ctx, 1))
			}()
		})
		defer stop()
		// A callback that does not return; events behind it; a queue that nobody polls; messages that nobody reads.
		known(t, p.b, w.engine(t, 2, 1))
		soon(t, "the callback", func() { <-entered })
		for i := range 20 {
			e := w.engine(t, 3, 1)
			known(t, p.b, e)
			if i%2 == 0 {
				if err := e.Close(testContext(t)); err != nil {
					t.Fatal(err)
				}
			}
		}
		for i := range uint64(depth) {
			if err := full.Signal(hawser.Signal{To: back, Imm: 3}, i); err != nil {
				t.Fatal(err)
			}
		}
		for range 200 { // more than there are buffers for
			if _, err := p.a.Send(p.rem.Peer(), make([]byte, 1000)); err != nil {
				t.Fatal(err)
			}
		}
		// The worker serves everybody all the same.
		reach(t, p.a.Counter(3), depth)
		for i := range uint64(100) {
			tr, err := p.a.Write(hawser.Write{Src: p.src.All(), Dst: p.rem.All(), Imm: hawser.Imm(1)})
			wait(t, tr, err)
			reach(t, p.b.Counter(1), i+1)
			tr, err = p.b.Signal(hawser.Signal{To: back, Imm: 2})
			wait(t, tr, err)
		}
		reach(t, p.a.Counter(2), 100)
		close(leave)
		select {
		case err := <-left:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(hang):
			t.Fatal("the callback waits for the worker, and the worker for it")
		}
		reach(t, p.a.Counter(4), 1)
		done := make([]hawser.Done, depth+1)
		if n, err := full.Wait(testContext(t), done); err != nil || n != depth {
			t.Fatalf("%d ends in the queue, want %d: %v", n, depth, err)
		}
	})
}

// A user's callback that failed ended the thread of callbacks, or the whole engine: nobody heard anything any more.
func TestDefect10FailingCallbackStopsTheEngine(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		a := w.engine(t, 0, 1)
		for name, fail := range map[string]func(){
			"panics":             func() { panic("a user's mistake") },
			"ends its goroutine": runtime.Goexit,
		} {
			calls := 0
			stop := a.OnPeer(func(hawser.PeerEvent) {
				calls++
				if calls < 3 {
					fail()
				}
			})
			events := make(chan hawser.PeerEvent, 16)
			also := a.OnPeer(func(ev hawser.PeerEvent) { events <- ev })
			b := w.engine(t, 1, 1)
			peer := known(t, a, b)
			tr, err := a.Signal(hawser.Signal{To: peer, Imm: 1})
			wait(t, tr, err)
			reach(t, b.Counter(1), 1)
			if err := b.Close(testContext(t)); err != nil {
				t.Fatal(err)
			}
			for _, want := range []hawser.PeerEventKind{hawser.PeerUp, hawser.PeerDown, hawser.PeerFenced} {
				select {
				case ev := <-events:
					if ev.Kind != want {
						t.Fatalf("a callback %s: event %v, want %v", name, ev.Kind, want)
					}
				case <-time.After(hang):
					t.Fatalf("a callback %s: no event %v for others", name, want)
				}
			}
			stop()
			also()
		}
	})
}

// A message longer than the buffer that waited for it took the buffer with it: after as many as there were buffers, nothing
// could be received any more.
func TestDefect11SmallReceiveLosesItsSlot(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		const room = 100
		a := w.engine(t, 0, 1)
		b := w.wrapped(func(d provider.Domain) provider.Domain { return smallReceives{d, room} }).engine(t, 1, 1)
		peer := known(t, a, b)
		const lost = 500 // more than the engine and the network have buffers for
		for i := range lost {
			tr, err := a.Send(peer, make([]byte, room+1+i))
			wait(t, tr, err)
			if i%100 == 0 {
				tr, err = a.Send(peer, []byte{byte(i)})
				wait(t, tr, err)
				m, err := b.Receive(testContext(t))
				if err != nil {
					t.Fatalf("after %d messages that were too long: %v", i+1, err)
				}
				if len(m.Data) != 1 || m.Data[0] != byte(i) || m.From.ID() != a.ID() {
					t.Fatalf("a message of %d bytes from %s", len(m.Data), m.From)
				}
			}
		}
	})
}

// smallReceives is a network of an engine that posts buffers which are too small.
type smallReceives struct {
	provider.Domain
	room uint64
}

func (s smallReceives) Post(wrs []provider.WR) (int, error) {
	for i := range wrs {
		if wrs[i].Op == provider.OpRecv {
			wrs[i].Len = min(wrs[i].Len, s.room)
		}
	}
	return s.Domain.Post(wrs)
}

// Registrations were looked up by address: a larger block at the address of a smaller one got the smaller one's registration,
// and its end could not be reached.
func TestDefect12LargerBlockAtTheSameAddress(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		x, e := w.puppetOf(t, nil)
		x.up(e)
		const small, large = 4096, 3 * 4096
		memory := make([]byte, large) // of the puppet, which registers it twice
		fill(memory, 12)
		dst := w.alloc(t, e, large)
		var keys [2]provider.Key
		var grants [2]wire.Key
		for i, n := range []uint64{small, large} {
			var err error
			if keys[i], err = x.dom.Register(provider.Memory{Bytes: memory[:n], FD: -1}, 0); err != nil {
				t.Fatal(err)
			}
			grants[i] = x.resolve(dst.Descriptor(dst.Slice(0, n), hawser.RightWrite))
		}
		put := func(local, remote int, off, n uint64) provider.Status {
			wr := provider.WR{
				Op: provider.OpWrite, Peer: x.link, Len: n, LocalKey: keys[local].ID, LocalAddr: keys[local].Base + off,
				RemoteKey: grants[remote].ID, RemoteAddr: grants[remote].Base + off,
			}
			if n, err := x.dom.Post([]provider.WR{wr}); n != 1 {
				t.Fatal(err)
			}
			return x.await(provider.KindWrite).Status
		}
		if st := put(1, 1, small, large-small); st != provider.StatusOK {
			t.Fatalf("behind the smaller block: %v", st)
		}
		e.Stats()
		same(t, "behind the smaller block", dst.Bytes()[small:], memory[small:])
		same(t, "the smaller block", dst.Bytes()[:small], make([]byte, small))
		if st := put(0, 1, small, 1); st != provider.StatusLocal {
			t.Fatalf("the smaller block is longer than it was registered: %v", st)
		}
		if x.dom.Caps().GrantRange {
			if st := put(1, 0, small, 1); st != provider.StatusAccess {
				t.Fatalf("the smaller range is longer than it was granted: %v", st)
			}
		}
		if err := x.dom.Deregister(keys[0]); err != nil {
			t.Fatal(err)
		}
		if st := put(1, 1, 0, large); st != provider.StatusOK {
			t.Fatalf("the larger block after the smaller one was deregistered: %v", st)
		}
		e.Stats()
		same(t, "the larger block", dst.Bytes(), memory)

		// The same with memory that comes and goes, most likely at the same address.
		a := w.engine(t, 2, 1)
		src := w.alloc(t, a, 1<<20)
		fill(src.Bytes(), 13)
		for n := uint64(4096); n <= 1<<20; n *= 2 {
			r := w.alloc(t, e, n)
			rem, err := a.Import(testContext(t), r.Descriptor(r.All(), hawser.RightWrite))
			if err != nil {
				t.Fatal(err)
			}
			tr, err := a.Write(hawser.Write{Src: src.Slice(0, n), Dst: rem.All()})
			wait(t, tr, err)
			e.Stats()
			same(t, fmt.Sprintf("a block of %d bytes", n), r.Bytes(), src.Bytes()[:n])
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			if err := writeTo(t, a, src, rem); !takenBack(err) {
				t.Fatalf("write to a block that is gone: %v", err)
			}
		}
	})
}

// resolve asks the engine for the key of a descriptor.
func (x *puppet) resolve(d hawser.Descriptor) wire.Key {
	x.Helper()
	raw, err := d.MarshalBinary()
	if err != nil {
		x.Fatal(err)
	}
	var q wire.Resolve
	if err := wire.Parse(raw, &q.Descriptor); err != nil {
		x.Fatal(err)
	}
	x.send(wire.TypeResolve, 1, &q)
	var res wire.Resolved
	got := make(chan error, 1)
	go func() {
		_, err := x.tryRead(wire.TypeResolved, &res)
		got <- err
	}()
	var cs [16]provider.Completion
	for { // a grant may need the other side's network to look
		select {
		case err := <-got:
			if err != nil || res.Fault != wire.FaultNone || len(res.Keys) != 1 {
				x.Fatalf("resolve: fault %d (%s), %d keys, %v", res.Fault, res.Text, len(res.Keys), err)
			}
			return res.Keys[0]
		default:
			if _, err := x.dom.Poll(cs[:]); err != nil {
				x.Fatal(err)
			}
			runtime.Gosched()
		}
	}
}
