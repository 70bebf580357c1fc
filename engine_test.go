package hawser_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
)

func TestWriteLandsAndIsCounted(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		p := w.pair(t, 1, 1, 1<<20)
		fill(p.src.Bytes(), 1)
		tr, err := p.a.Write(hawser.Write{Src: p.src.Slice(100, 70001), Dst: p.rem.Slice(5, 70001), Imm: hawser.Imm(7)})
		wait(t, tr, err)
		reach(t, p.b.Counter(7), 1)
		want := make([]byte, 1<<20)
		copy(want[5:], p.src.Bytes()[100:][:70001])
		same(t, "destination", p.dst.Bytes(), want)
	})
}

// Counts depend on the request, never on the rails of either side.
func TestRailsDoNotChangeCounts(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		for _, rails := range [][2]int{{2, 3}, {3, 2}, {1, 3}, {3, 1}} {
			t.Run(fmt.Sprintf("%dx%d", rails[0], rails[1]), func(t *testing.T) {
				p := w.pair(t, rails[0], rails[1], 4<<20)
				fill(p.src.Bytes(), 2)
				tr, err := p.a.Write(hawser.Write{Src: p.src.All(), Dst: p.rem.All()})
				wait(t, tr, err)
				p.sync()
				same(t, "plain write", p.dst.Bytes(), p.src.Bytes())

				clear(p.dst.Bytes())
				p.sync()
				tr, err = p.a.Write(hawser.Write{Src: p.src.All(), Dst: p.rem.All(), Imm: hawser.Imm(1), Parts: 7})
				wait(t, tr, err)
				reach(t, p.b.Counter(1), 7)
				same(t, "write in 7 parts", p.dst.Bytes(), p.src.Bytes())

				clear(p.dst.Bytes())
				p.sync()
				idx := make([]uint32, 64)
				for i := range idx {
					idx[i] = uint32(i)
				}
				to := slices.Clone(idx)
				rand.Shuffle(len(to), func(i, j int) { to[i], to[j] = to[j], to[i] })
				tr, err = p.a.WritePages(hawser.WritePages{
					PageLen: 64 << 10, Imm: hawser.Imm(2),
					Src: hawser.Pages{Region: p.src, Indices: idx, Stride: 64 << 10},
					Dst: hawser.RemotePages{Remote: p.rem, Indices: to, Stride: 64 << 10},
				})
				wait(t, tr, err)
				reach(t, p.b.Counter(2), 64)
				for i := range idx {
					same(t, "page", p.dst.Bytes()[int(to[i])<<16:][:1<<16], p.src.Bytes()[i<<16:][:1<<16])
				}
				for imm, n := range map[uint32]uint64{1: 7, 2: 64} {
					if got := p.b.Counter(imm).Load(); got != n {
						t.Fatalf("imm %d counted %d times, want %d", imm, got, n)
					}
				}
			})
		}
	})
}

func TestImmNotLostBeforeSomebodyAsks(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		p := w.pair(t, 1, 1, 4096)
		for range 3 {
			tr, err := p.a.Signal(hawser.Signal{To: p.rem.Peer(), Imm: 0})
			wait(t, tr, err)
		}
		tr, err := p.a.Signal(hawser.Signal{To: p.rem.Peer(), Imm: 1})
		wait(t, tr, err)
		eventually(t, "four arrivals", func() bool { return p.b.Stats().Counters == 2 && p.b.Stats().Peers[0].RxImms == 4 })
		c := p.b.Counter(0)
		reach(t, c, 3)
		from, err := p.b.Connect(testContext(t), p.a.Addr())
		if err != nil {
			t.Fatal(err)
		}
		if c.From(from) != 3 || p.b.Counter(0) != c {
			t.Fatalf("from peer: %d, want 3", c.From(from))
		}
		c.Close()
		if n := p.b.Counter(0).Load(); n != 0 {
			t.Fatalf("a closed counter starts again at %d", n)
		}
	})
}

func TestPartsBeyondTheLengthAreSentEmpty(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		p := w.pair(t, 2, 1, 4096)
		tr, err := p.a.Write(hawser.Write{Src: p.src.Slice(0, 3), Dst: p.rem.All(), Imm: hawser.Imm(9), Parts: 10})
		wait(t, tr, err)
		tr, err = p.a.Write(hawser.Write{Src: p.src.Slice(7, 0), Dst: p.rem.Slice(9, 0), Imm: hawser.Imm(9)})
		wait(t, tr, err)
		reach(t, p.b.Counter(9), 11)
	})
}

func TestMessagesBothWaysWithSender(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		p := w.pair(t, 2, 2, 4096)
		const n = 300
		send := func(from *hawser.Engine, to *hawser.Peer) {
			for i := range n {
				data := make([]byte, 1+(i*7919)%hawser.MaxMessage)
				fill(data, uint64(i))
				data[0] = byte(i)
				if _, err := from.Send(to, data); err != nil {
					t.Error(err)
					return
				}
			}
		}
		toA, err := p.b.Connect(testContext(t), p.a.Addr())
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() { send(p.a, p.rem.Peer()) })
		wg.Go(func() { send(p.b, toA) })
		for _, e := range []*hawser.Engine{p.a, p.b} {
			wg.Go(func() {
				seen := map[int]bool{}
				for range n {
					m, err := e.Receive(testContext(t))
					if err != nil {
						t.Errorf("after %d messages: %v", len(seen), err)
						return
					}
					if (e == p.b) != (m.From.ID() == p.a.ID()) {
						t.Errorf("message from %s", m.From)
					}
					seen[len(m.Data)] = true
				}
				if len(seen) != n {
					t.Errorf("%d different messages, want %d", len(seen), n)
				}
			})
		}
		wg.Wait()
	})
}

func TestArgumentErrorsComeAtOnce(t *testing.T) {
	w := newWorld(t, "sim")
	p := w.pair(t, 1, 1, 4096)
	other := w.pair(t, 1, 1, 4096)
	idx := []uint32{0, 1}
	writes := map[string]hawser.Write{
		"no source":          {Dst: p.rem.All()},
		"no destination":     {Src: p.src.All()},
		"source too long":    {Src: p.src.Slice(1, 4096), Dst: p.rem.All()},
		"source wraps":       {Src: p.src.Slice(1<<63, 1<<63+1), Dst: p.rem.All()},
		"destination beyond": {Src: p.src.Slice(0, 1), Dst: p.rem.Slice(4096, 1)},
		"destination short":  {Src: p.src.Slice(0, 2), Dst: p.rem.Slice(0, 1)},
		"negative parts":     {Src: p.src.All(), Dst: p.rem.All(), Parts: -1},
		"foreign source":     {Src: other.src.All(), Dst: p.rem.All()},
		"foreign remote":     {Src: p.src.All(), Dst: other.rem.All()},
	}
	for name, wr := range writes {
		if _, err := p.a.Write(wr); !errors.Is(err, hawser.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	pages := map[string]hawser.WritePages{
		"unequal lists":       {PageLen: 8, Src: hawser.Pages{Region: p.src, Indices: idx}, Dst: hawser.RemotePages{Remote: p.rem}},
		"source page beyond":  {PageLen: 4096, Src: hawser.Pages{Region: p.src, Indices: idx, Stride: 1}, Dst: hawser.RemotePages{Remote: p.rem, Indices: idx}},
		"destination beyond":  {PageLen: 8, Src: hawser.Pages{Region: p.src, Indices: idx}, Dst: hawser.RemotePages{Remote: p.rem, Indices: idx, Stride: 4089}},
		"stride overflows":    {PageLen: 8, Src: hawser.Pages{Region: p.src, Indices: []uint32{2}, Stride: 1 << 63}, Dst: hawser.RemotePages{Remote: p.rem, Indices: []uint32{0}}},
		"offset overflows":    {PageLen: 8, Src: hawser.Pages{Region: p.src, Indices: []uint32{1}, Stride: 1, Offset: 1<<64 - 1}, Dst: hawser.RemotePages{Remote: p.rem, Indices: []uint32{0}}},
		"no region":           {PageLen: 8, Dst: hawser.RemotePages{Remote: p.rem}},
		"no remote, no pages": {PageLen: 8, Src: hawser.Pages{Region: p.src}},
	}
	for name, wr := range pages {
		if _, err := p.a.WritePages(wr); !errors.Is(err, hawser.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := p.a.Signal(hawser.Signal{}); !errors.Is(err, hawser.ErrInvalid) {
		t.Errorf("signal to nobody: %v", err)
	}
	if _, err := p.a.Send(p.rem.Peer(), make([]byte, hawser.MaxMessage+1)); !errors.Is(err, hawser.ErrInvalid) {
		t.Errorf("message too long: %v", err)
	}
	if n := p.a.Stats().Inflight; n != 0 {
		t.Errorf("%d operations in flight after refusals", n)
	}
}

func TestZeroPagesAndZeroLengthComplete(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		p := w.pair(t, 1, 1, 4096)
		tr, err := p.a.WritePages(hawser.WritePages{PageLen: 64, Src: hawser.Pages{Region: p.src}, Dst: hawser.RemotePages{Remote: p.rem}, Imm: hawser.Imm(1)})
		wait(t, tr, err)
		idx := []uint32{0, 0, 0}
		tr, err = p.a.WritePages(hawser.WritePages{
			Src: hawser.Pages{Region: p.src, Indices: idx}, Dst: hawser.RemotePages{Remote: p.rem, Indices: idx}, Imm: hawser.Imm(1),
		})
		wait(t, tr, err)
		reach(t, p.b.Counter(1), 3)
		tr, err = p.a.Write(hawser.Write{Src: p.src.Slice(0, 0), Dst: p.rem.Slice(0, 0)})
		wait(t, tr, err)
	})
}

func TestWaitEndsWithItsContextAndTransferGoesOn(t *testing.T) {
	w := newWorld(t, "sim")
	p := w.pair(t, 1, 1, 1<<20)
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	if err := p.b.Counter(5).Wait(gone, 1); !errors.Is(err, context.Canceled) {
		t.Fatalf("wait with an ended context: %v", err)
	}
	tr, err := p.a.Write(hawser.Write{Src: p.src.All(), Dst: p.rem.All(), Imm: hawser.Imm(5)})
	if err != nil {
		t.Fatal(err)
	}
	if err := tr.Wait(gone); err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	wait(t, tr, nil)
	<-p.b.Counter(5).Done(1)
}

func TestQueueReportsEachCookieOnce(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		p := w.pair(t, 2, 1, 1<<20)
		const total, depth = 5000, 64
		q := p.a.NewQueue(depth)
		seen := make([]bool, total)
		done := make([]hawser.Done, 16)
		next, ended := 0, 0
		for ended < total {
			for next < total {
				err := q.Write(hawser.Write{Src: p.src.Slice(uint64(next), 32), Dst: p.rem.Slice(uint64(next), 32), Imm: hawser.Imm(3)}, uint64(next))
				if errors.Is(err, hawser.ErrBusy) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				next++
			}
			n, err := q.Wait(testContext(t), done)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range done[:n] {
				if d.Err != nil || seen[d.Cookie] {
					t.Fatalf("cookie %d: %v, seen before: %v", d.Cookie, d.Err, seen[d.Cookie])
				}
				seen[d.Cookie] = true
			}
			ended += n
		}
		reach(t, p.b.Counter(3), total)
	})
}

func TestManyGoroutinesSubmit(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		p := w.pair(t, 2, 3, 1<<20)
		fill(p.src.Bytes(), 4)
		const routines, each = 8, 200
		var wg sync.WaitGroup
		for g := range routines {
			wg.Go(func() {
				for i := range each {
					off := uint64(g*each+i) * 512
					tr, err := p.a.Write(hawser.Write{Src: p.src.Slice(off, 512), Dst: p.rem.Slice(off, 512), Imm: hawser.Imm(uint32(g))})
					if err != nil {
						t.Error(err)
						return
					}
					if i%50 == 0 {
						wait(t, tr, nil)
					}
				}
			})
		}
		wg.Wait()
		for g := range uint32(routines) {
			reach(t, p.b.Counter(g), each)
		}
		same(t, "destination", p.dst.Bytes()[:routines*each*512], p.src.Bytes()[:routines*each*512])
	})
}

func TestDescriptorsAreBoundedAndCannotBeForged(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		a, b := w.engine(t, 0, 1), w.engine(t, 1, 1)
		dst := w.alloc(t, b, 8192)
		d := dst.Descriptor(dst.Slice(1000, 500), hawser.RightWrite)
		text, err := d.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		var back hawser.Descriptor
		if err := back.UnmarshalText(text); err != nil {
			t.Fatal(err)
		}
		rem, err := a.Import(testContext(t), back)
		if err != nil {
			t.Fatal(err)
		}
		src := w.alloc(t, a, 8192)
		fill(src.Bytes(), 6)
		if rem.Len() != 500 {
			t.Fatalf("remote of %d bytes, want 500", rem.Len())
		}
		tr, err := a.Write(hawser.Write{Src: src.Slice(0, 500), Dst: rem.All(), Imm: hawser.Imm(1)})
		wait(t, tr, err)
		reach(t, b.Counter(1), 1)
		same(t, "range", dst.Bytes()[1000:1500], src.Bytes()[:500])
		same(t, "before", dst.Bytes()[:1000], make([]byte, 1000))
		same(t, "behind", dst.Bytes()[1500:], make([]byte, 8192-1500))

		if _, err := a.Import(testContext(t), dst.Descriptor(dst.All(), 0)); !errors.Is(err, hawser.ErrAccess) {
			t.Errorf("without the right to write: %v", err)
		}
		raw, err := d.MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		for i := range 16 + 8 + 8 + 8 + 8 + 1 + 16 { // every byte of owner, region, serial, range, rights and proof
			forged := slices.Clone(raw)
			forged[i] ^= 1
			var f hawser.Descriptor
			if err := f.UnmarshalBinary(forged); err != nil {
				continue
			}
			if _, err := a.Import(testContext(t), f); err == nil {
				t.Fatalf("a descriptor with byte %d changed was accepted", i)
			}
		}
		if err := dst.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Import(testContext(t), d); !errors.Is(err, hawser.ErrStale) {
			t.Errorf("import of a closed region: %v", err)
		}
		tr, err = a.Write(hawser.Write{Src: src.Slice(0, 500), Dst: rem.All()})
		if err == nil { // a could not be told in time: then the network refuses
			err = tr.Wait(testContext(t))
		}
		if !errors.Is(err, hawser.ErrStale) && !errors.Is(err, hawser.ErrAccess) {
			t.Errorf("write to a closed region: %v", err)
		}
	})
}

// After Fence nothing that the peer does changes a byte, its descriptors are stale, and it can connect anew.
func TestFencedPeerCannotWrite(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		p := w.pair(t, 2, 2, 4<<20)
		fill(p.src.Bytes(), 1)
		old := p.dst.Descriptor(p.dst.All(), hawser.RightWrite)
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				tr, err := p.a.Write(hawser.Write{Src: p.src.All(), Dst: p.rem.All(), Imm: hawser.Imm(1)})
				if err != nil {
					if !errors.Is(err, hawser.ErrPeerDown) {
						t.Error(err)
					}
					return
				}
				if err := tr.Wait(testContext(t)); err != nil && !errors.Is(err, hawser.ErrPeerDown) {
					t.Error(err)
				}
			}
		})
		reach(t, p.b.Counter(1), 3)
		writer, err := p.b.Connect(testContext(t), p.a.Addr())
		if err != nil {
			t.Fatal(err)
		}
		if err := p.b.Fence(testContext(t), writer); err != nil {
			t.Fatal(err)
		}
		count := p.b.Counter(1).From(writer)
		clear(p.dst.Bytes())
		close(stop)
		wg.Wait()
		same(t, "memory after the fence", p.dst.Bytes(), make([]byte, p.dst.Len()))
		if n := p.b.Counter(1).From(writer); n != count {
			t.Fatalf("count went from %d to %d after the fence", count, n)
		}
		eventually(t, "the writer learns that it was cut off", func() bool { return !p.rem.Peer().Up() })
		if _, err := p.a.Import(testContext(t), old); !errors.Is(err, hawser.ErrStale) {
			t.Fatalf("import of a descriptor from before the fence: %v", err)
		}
		rem, err := p.a.Import(testContext(t), p.dst.Descriptor(p.dst.All(), hawser.RightWrite))
		if err != nil {
			t.Fatalf("a fenced peer cannot come back: %v", err)
		}
		if _, err := p.a.Write(hawser.Write{Src: p.src.All(), Dst: p.rem.All()}); !errors.Is(err, hawser.ErrStale) {
			t.Fatalf("write through a remote of the old session: %v", err)
		}
		p.sync()
		tr, err := p.a.Write(hawser.Write{Src: p.src.All(), Dst: rem.All()})
		wait(t, tr, err)
		p.sync()
		same(t, "after reconnect", p.dst.Bytes(), p.src.Bytes())
	})
}

func TestRegionInUseIsBusyAndCloseIsIdempotent(t *testing.T) {
	w := newWorld(t, "sim")
	p := w.pair(t, 1, 1, 32<<20)
	tr, err := p.a.Write(hawser.Write{Src: p.src.All(), Dst: p.rem.All()})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.src.Close(); err != nil && !errors.Is(err, hawser.ErrBusy) {
		t.Fatal(err)
	} else if err == nil && tr.Err() == nil {
		select {
		case <-tr.Done():
		default:
			t.Fatal("a region was freed under a write")
		}
	}
	wait(t, tr, nil)
	for range 2 {
		if err := p.src.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.a.Write(hawser.Write{Src: hawser.Slice{Region: p.src}, Dst: p.rem.Slice(0, 0)}); !errors.Is(err, hawser.ErrClosed) {
		t.Fatalf("write from a closed region: %v", err)
	}
}

func TestClosedEngineRefusesAndEndsWaits(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		p := w.pair(t, 1, 1, 4096)
		waits := make(chan error, 4)
		go func() { waits <- p.a.Counter(1).Wait(context.Background(), 1) }()
		go func() { _, err := p.a.Receive(context.Background()); waits <- err }()
		go func() { _, err := p.a.NewQueue(1).Wait(context.Background(), make([]hawser.Done, 1)); waits <- err }()
		go func() { <-p.a.Counter(2).Done(1); waits <- hawser.ErrClosed }()
		if err := p.a.Close(testContext(t)); err != nil {
			t.Fatal(err)
		}
		for range cap(waits) {
			select {
			case err := <-waits:
				if !errors.Is(err, hawser.ErrClosed) {
					t.Fatal(err)
				}
			case <-time.After(hang):
				t.Fatal("a wait survived the engine")
			}
		}
		if _, err := p.a.Signal(hawser.Signal{To: p.rem.Peer(), Imm: 1}); !errors.Is(err, hawser.ErrClosed) {
			t.Fatalf("signal: %v", err)
		}
		if _, err := p.a.Alloc(1, hawser.MemOptions{}); !errors.Is(err, hawser.ErrClosed) {
			t.Fatalf("alloc: %v", err)
		}
		if _, err := p.a.Connect(testContext(t), p.b.Addr()); !errors.Is(err, hawser.ErrClosed) {
			t.Fatalf("connect: %v", err)
		}
	})
}

func TestEnginesLeaveNothingBehind(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		before, fds := runtime.NumGoroutine(), countFDs(t)
		for range 3 {
			t.Run("open and close", func(t *testing.T) {
				p := w.pair(t, 2, 2, 1<<20)
				tr, err := p.a.Write(hawser.Write{Src: p.src.All(), Dst: p.rem.All(), Imm: hawser.Imm(1)})
				wait(t, tr, err)
			})
		}
		eventually(t, "goroutines and descriptors are back", func() bool {
			return runtime.NumGoroutine() <= before && countFDs(t) <= fds
		})
	})
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	ctx := testContext(t)
	taken := newWorld(t, "tcp").engine(t, 0, 1)
	for name, tc := range map[string]struct {
		o    hawser.Options
		want error
	}{
		"unknown provider":     {hawser.Options{Rails: []hawser.Rail{{Provider: "smoke"}}}, hawser.ErrInvalid},
		"unknown requirement":  {hawser.Options{Require: "smoke"}, hawser.ErrInvalid},
		"no port":              {hawser.Options{Listen: "127.0.0.1"}, hawser.ErrInvalid},
		"open to the world":    {hawser.Options{Listen: "0.0.0.0:0"}, hawser.ErrInvalid},
		"port in use":          {hawser.Options{Listen: taken.ListenAddrs()[0]}, hawser.ErrBusy},
		"impatient":            {hawser.Options{PeerTimeout: time.Millisecond}, hawser.ErrInvalid},
		"address of no device": {hawser.Options{Rails: []hawser.Rail{{Provider: "tcp", Device: "192.0.2.1"}}}, nil},
	} {
		e, err := hawser.Open(ctx, tc.o)
		if err == nil {
			_ = e.Close(ctx)
			t.Errorf("%s: opened", name)
		} else if tc.want != nil && !errors.Is(err, tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	e := open(t, hawser.Options{})
	if _, err := e.Alloc(1<<60, hawser.MemOptions{}); !errors.Is(err, hawser.ErrMemory) {
		t.Errorf("alloc of 1 EiB: %v", err)
	}
}

// A message that arrives before our side of the handshake is over can be answered.
// Sessions of one peer never overlap, and neither do their events, however often it comes back.
