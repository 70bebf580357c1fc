package hawser_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/internal/wire"
	"github.com/hawser-project/hawser/provider/tcp"
)

// A peer that died took with it everybody who waited for it and had set no deadline.
func TestDefect13WaitOnADeadPeerHangs(t *testing.T) {
	t.Parallel()
	worlds(t, func(t *testing.T, w *world) {
		x, e := w.puppetOf(t, func(o *hawser.Options) { o.PeerTimeout = time.Second })
		peers := make(chan *hawser.Peer, 1)
		stop := e.OnPeer(func(ev hawser.PeerEvent) {
			if ev.Kind == hawser.PeerUp {
				peers <- ev.Peer
			}
		})
		defer stop()
		x.up(e) // and from now on it does nothing any more, as if it were stopped
		p := <-peers
		never := context.Background()
		waits := make(chan error, 64)
		started := 0
		begin := func(what string, wait func() error) {
			started++
			go func() {
				if err := wait(); !errors.Is(err, hawser.ErrPeerDown) {
					waits <- fmt.Errorf("%s: %w", what, err)
					return
				}
				waits <- nil
			}()
		}
		for range 20 { // in flight, and behind those
			tr, err := e.Send(p, []byte("nobody takes it"))
			if err != nil {
				t.Fatal(err)
			}
			begin("transfer", func() error { return tr.Wait(never) })
		}
		const queued = 20
		q := e.NewQueue(queued)
		for i := range uint64(queued) {
			if err := q.Send(p, []byte("nobody takes it"), i); err != nil {
				t.Fatal(err)
			}
		}
		begin("queue", func() error {
			out := make([]hawser.Done, queued)
			for n := 0; n < queued; {
				k, err := q.Wait(never, out)
				if err != nil {
					return err
				}
				for _, d := range out[:k] {
					if !errors.Is(d.Err, hawser.ErrPeerDown) {
						return d.Err
					}
				}
				n += k
			}
			return hawser.ErrPeerDown
		})
		begin("expect", func() error { return e.Counter(1).Expect(never, map[*hawser.Peer]uint64{p: 1}) })
		group, err := e.NewGroup([]*hawser.Peer{p})
		if err != nil {
			t.Fatal(err)
		}
		begin("barrier", func() error { return e.Barrier(never, group, 2) })
		begin("bulk", func() error { return e.SendBulk(never, p, make([]byte, 8<<20), nil) })
		var d hawser.Descriptor
		if err := d.UnmarshalBinary(wire.Append(nil, &wire.Descriptor{Owner: x.id, Len: 8})); err != nil {
			t.Fatal(err)
		}
		begin("import", func() error { _, err := e.Import(never, d); return err })
		for range started {
			select {
			case err := <-waits:
				if err != nil {
					t.Fatal(err)
				}
			case <-time.After(hang):
				t.Fatal("a wait without a deadline does not end")
			}
		}
		soon(t, "fence", func() {
			if err := e.Fence(never, p); err != nil {
				t.Error(err)
			}
		})
		if n := e.Stats().Inflight; n != 0 {
			t.Fatalf("%d operations are in flight to a dead peer", n)
		}
	})
}

// A wait that ran into its time limit looked like the end of the transfer: its memory was used anew while the network still read
// it, or wrote it.
func TestDefect14TimeoutWhileTheNetworkStillWrites(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		v := &valve{keep: writeEnds}
		a, b := w.wrapped(v.wrap).engine(t, 0, 2), w.engine(t, 1, 2)
		src, dst := w.alloc(t, a, 1<<20), w.alloc(t, b, 1<<20)
		fill(src.Bytes(), 14)
		rem, err := a.Import(testContext(t), dst.Descriptor(dst.All(), hawser.RightWrite))
		if err != nil {
			t.Fatal(err)
		}
		// The source.
		v.shut.Store(true)
		write := hawser.Write{Src: src.All(), Dst: rem.All(), Imm: hawser.Imm(1)}
		tr, err := a.Write(write)
		if err != nil {
			t.Fatal(err)
		}
		q := a.NewQueue(1)
		if err := q.Write(write, 1); err != nil {
			t.Fatal(err)
		}
		eventually(t, "both writes are there", func() bool { return v.kept.Load() == 2 })
		for range 2 {
			if err := tr.Wait(expired()); !errors.Is(err, context.Canceled) || errors.Is(err, hawser.ErrPeerDown) {
				t.Fatalf("a wait whose time is over: %v", err)
			}
			if _, err := q.Wait(expired(), make([]hawser.Done, 1)); !errors.Is(err, context.Canceled) {
				t.Fatalf("a wait whose time is over: %v", err)
			}
			if err := src.Close(); !errors.Is(err, hawser.ErrBusy) {
				t.Fatalf("close of memory that is still read: %v", err)
			}
			if tr.Err() != nil || a.Stats().Inflight != 2 {
				t.Fatalf("a wait whose time is over ended its transfer: %v", tr.Err())
			}
		}
		v.open(a)
		wait(t, tr, nil)
		done := make([]hawser.Done, 1)
		if n, err := q.Wait(testContext(t), done); n != 1 || err != nil || done[0].Err != nil {
			t.Fatalf("%d ends, %v, %v", n, err, done[0].Err)
		}
		reach(t, b.Counter(1), 2)
		same(t, "destination", dst.Bytes(), src.Bytes())
		b.Stats() // orders the look before the writes that follow

		// The destination: its owner gives up while the writer goes on.
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				tr, err := a.Write(write)
				if err == nil {
					err = tr.Wait(testContext(t))
				}
				if err != nil {
					if !takenBack(err) {
						t.Errorf("write to memory that was taken back: %v", err)
					}
					return
				}
				select {
				case <-stop:
					t.Error("memory that was taken back can still be written")
					return
				default:
				}
			}
		})
		reach(t, b.Counter(1), 5)
		if err := b.Counter(1).Wait(expired(), 1<<40); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if err := dst.Close(); err != nil {
			t.Fatal(err)
		}
		again := w.alloc(t, b, 1<<20) // most likely the same memory
		wg.Wait()
		close(stop)
		b.Stats()
		same(t, "memory that is used anew", again.Bytes(), make([]byte, 1<<20))
		if err := src.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// What was global in the library was shared by all engines of a process: they counted each other's immediates, and one that
// closed took the other with it.
func TestDefect16TwoEnginesInOneProcessInterfere(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		first, second := w.pair(t, 2, 1, 64<<10), w.pair(t, 1, 2, 64<<10)
		fill(first.src.Bytes(), 1)
		fill(second.src.Bytes(), 2)
		for i, p := range []*pair{first, second} {
			for range 3 + i {
				tr, err := p.a.Write(hawser.Write{Src: p.src.All(), Dst: p.rem.All(), Imm: hawser.Imm(7)})
				wait(t, tr, err)
			}
		}
		reach(t, first.b.Counter(7), 3)
		reach(t, second.b.Counter(7), 4)
		for i, p := range []*pair{first, second} {
			same(t, "destination", p.dst.Bytes(), p.src.Bytes())
			if a, b := p.a.Counter(7).Load(), p.b.Counter(7).Load(); a != 0 || b != uint64(3+i) {
				t.Fatalf("pair %d counts %d at the writer, %d at the reader", i, a, b)
			}
			if n := len(p.b.Stats().Peers); n != 1 {
				t.Fatalf("pair %d knows %d peers", i, n)
			}
		}
		if _, err := first.a.Write(hawser.Write{Src: first.src.All(), Dst: second.rem.All()}); !errors.Is(err, hawser.ErrInvalid) {
			t.Fatalf("a remote of another engine: %v", err)
		}
		if first.a.ID() == second.a.ID() || first.a.Addr() == second.a.Addr() {
			t.Fatal("two engines have one identity")
		}
		// A forged owner: what one engine issued is nothing to the other.
		raw, err := first.dst.Descriptor(first.dst.All(), hawser.RightWrite).MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		var wd wire.Descriptor
		if err := wire.Parse(raw, &wd); err != nil {
			t.Fatal(err)
		}
		wd.Owner, wd.Addr = wire.ID(second.b.ID()), second.b.Addr()
		var d hawser.Descriptor
		if err := d.UnmarshalBinary(wire.Append(nil, &wd)); err != nil {
			t.Fatal(err)
		}
		if _, err := second.a.Import(testContext(t), d); !errors.Is(err, hawser.ErrAccess) {
			t.Fatalf("a descriptor of another engine: %v", err)
		}
		for _, e := range []*hawser.Engine{first.a, first.b} {
			if err := e.Close(testContext(t)); err != nil {
				t.Fatal(err)
			}
		}
		for i := range uint64(10) {
			tr, err := second.a.Write(hawser.Write{Src: second.src.All(), Dst: second.rem.All(), Imm: hawser.Imm(7)})
			wait(t, tr, err)
			reach(t, second.b.Counter(7), 5+i)
		}
	})
}

// The address that an engine was bound to was what it told its peers: 0.0.0.0, which is nowhere; and host:port was split at the
// first colon, in the middle of an IPv6 address.
func TestDefect17BindAddressIsAdvertised(t *testing.T) {
	w := newWorld(t, "tcp")
	a := w.engine(t, 0, 1)
	for _, listen := range []string{"0.0.0.0:0", "[::]:0", "127.0.0.1:0", "[::1]:0"} {
		o := w.options(1, 1)
		o.Listen, o.Insecure = listen, true
		b := open(t, o)
		bound := netip.MustParseAddrPort(listen).Addr()
		addr, err := wire.ParseAddr(b.Addr())
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(addr.Listen, b.ListenAddrs()) || len(addr.Listen) == 0 {
			t.Fatalf("%s: the printed address has %v, the engine says %v", listen, addr.Listen, b.ListenAddrs())
		}
		reached := 0
		for _, s := range b.ListenAddrs() {
			at, err := netip.ParseAddrPort(s)
			if err != nil || at.Addr().IsUnspecified() || at.Port() == 0 {
				t.Fatalf("%s: %q is advertised: %v", listen, s, err)
			}
			if at.Addr().Is6() && bound.Is4() {
				continue // told for hosts whose listener takes both
			}
			p, err := a.Connect(testContext(t), s)
			if err != nil {
				t.Fatalf("%s: connect to %s: %v", listen, s, err)
			}
			if p.ID() != b.ID() {
				t.Fatalf("%s: %s is %s", listen, s, p)
			}
			reached++
		}
		if reached == 0 {
			t.Fatalf("%s: nobody can connect to %v", listen, b.ListenAddrs())
		}
	}
	// What is to be advertised is another setting than what is bound.
	o := w.options(2, 1)
	o.Advertise = []string{"[2001:db8::1]:7000", "gateway.example:7001"}
	if got := open(t, o).ListenAddrs(); !slices.Equal(got, o.Advertise) {
		t.Fatalf("advertised %v, want %v", got, o.Advertise)
	}
	// An IPv6 rail.
	six := &world{name: "tcp", heap: true, options: func(int, int) hawser.Options {
		o := railsOf(tcp.New(), 1, func(int) string { return "::1" })
		o.Listen = "[::1]:0"
		return o
	}}
	p := six.pair(t, 1, 1, 4096)
	fill(p.src.Bytes(), 17)
	tr, err := p.a.Write(hawser.Write{Src: p.src.All(), Dst: p.rem.All(), Imm: hawser.Imm(1)})
	wait(t, tr, err)
	reach(t, p.b.Counter(1), 1)
	same(t, "over IPv6", p.dst.Bytes(), p.src.Bytes())
	for _, addr := range []string{"::1", "::1:80", "[::1]", "fe80::1%lo:1:2"} {
		if _, err := a.Connect(testContext(t), addr); !errors.Is(err, hawser.ErrInvalid) {
			t.Fatalf("connect to %q: %v", addr, err)
		}
	}
}

// A registration that failed for lack of memory said "cannot allocate memory": not how much there is, not how much is needed, not
// what to do.
func TestDefect20CrypticMemoryError(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		e := w.engine(t, 0, 2)
		const need = 1 << 46
		_, err := e.Alloc(need, hawser.MemOptions{Heap: w.heap})
		if !errors.Is(err, hawser.ErrMemory) {
			t.Fatalf("alloc of %d bytes: %v", uint64(need), err)
		}
		m := regexp.MustCompile(`(\d+) bytes available, (\d+) needed: ask for less, or free memory first`).FindStringSubmatch(err.Error())
		if m == nil {
			t.Fatalf("%q does not name what there is, what is needed and what to do", err)
		}
		limit, _ := strconv.ParseUint(m[1], 10, 64)
		if limit == 0 || limit >= need || m[2] != strconv.FormatUint(need, 10) {
			t.Fatalf("%q: %d available, %s needed", err, limit, m[2])
		}
		if _, err := e.Alloc(0, hawser.MemOptions{}); !errors.Is(err, hawser.ErrInvalid) {
			t.Fatalf("alloc of nothing: %v", err)
		}
		w.alloc(t, e, 4096) // what fits is there
	})
}
