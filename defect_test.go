package hawser_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"weak"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/providertest"
)

// Twenty defects that other transfer engines have had. Each is a test whose name and comment tell the symptom, and each test was
// seen to fail with its defect put into this engine.
//
//	 1  last byte over two rails             here
//	 2  a rail uses another rail's keys      here; every placement, in internal/rail: TestEveryByteOnceWithKeysOfItsRail
//	 3  zero pages never complete            here
//	 4  queued transfers leak                here
//	 5  deregistration on one device only    here
//	 6  immediates lost before expect        here
//	 7  error while siblings are in flight   here
//	 8  malformed handshake kills            defect_life_test.go
//	 9  two full queues deadlock             defect_life_test.go
//	10  a failing callback stops the engine  defect_life_test.go
//	11  a small receive loses its slot       defect_life_test.go
//	12  registration of the same address     defect_life_test.go
//	13  wait on a dead peer                  defect_peer_test.go
//	14  time-out while the network writes    defect_peer_test.go
//	15  counts depend on the sender's rails  here
//	16  two engines in one process           defect_peer_test.go
//	17  bind address, IPv6 colon             defect_peer_test.go
//	18  lengths of 32 bits                   defect_internal_test.go, which can make memory without bytes
//	19  GID index 0 (RoCE v1)                with the verbs provider, which is what has GIDs
//	20  memory that is missing               defect_peer_test.go: spans and rails; RLIMIT_MEMLOCK with the verbs provider, which locks

// 16,385 bytes over 2 rails: lengths were cut into equal parts and the remainder was lost, so that the last byte kept its old
// value.
func TestDefect01LastByteOverTwoRails(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		for _, rails := range [][2]int{{2, 2}, {2, 1}, {3, 2}} {
			p := w.pair(t, rails[0], rails[1], 1<<20)
			fill(p.src.Bytes(), 1)
			imms := uint64(0)
			for _, n := range []uint64{1, 2, 3, 16384, 16385, 128<<10 - 1, 128<<10 + 1, 1<<20 - 1} {
				for _, parts := range []int{0, 1, 2, 3, 7} {
					clear(p.dst.Bytes())
					p.sync()
					wr := hawser.Write{Src: p.src.Slice(0, n), Dst: p.rem.Slice(0, n), Parts: parts}
					if parts > 0 {
						wr.Imm = hawser.Imm(1)
						imms += uint64(parts)
					}
					tr, err := p.a.Write(wr)
					wait(t, tr, err)
					reach(t, p.b.Counter(1), imms)
					p.sync()
					same(t, fmt.Sprintf("%d bytes in %d parts", n, parts), p.dst.Bytes()[:n], p.src.Bytes()[:n])
					same(t, "behind them", p.dst.Bytes()[n:], make([]byte, 1<<20-n))
				}
			}
		}
	})
}

// A write pinned to one rail was posted with the keys of another: it was refused, or landed in other memory.
func TestDefect02RailUsesAnotherRailsKeys(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		var s shifted
		for _, rails := range [][2]int{{3, 3}, {3, 2}, {1, 3}} {
			p := w.wrapped(s.wrap).pair(t, rails[0], rails[1], 3<<20)
			fill(p.src.Bytes(), 2)
			const page = 16 << 10
			tr, err := p.a.WritePages(hawser.WritePages{
				PageLen: page, Imm: hawser.Imm(1),
				Src: hawser.Pages{Region: p.src, Indices: upTo(192), Stride: page},
				Dst: hawser.RemotePages{Remote: p.rem, Indices: upTo(192), Stride: page},
			})
			wait(t, tr, err)
			reach(t, p.b.Counter(1), 192)
			same(t, "pages over all rails", p.dst.Bytes(), p.src.Bytes())
			for rail := range rails[0] {
				clear(p.dst.Bytes())
				p.sync()
				pin, n, imm := hawser.OnRail(rail), uint64(1<<20), uint32(10+rail)
				tr, err := p.a.Write(hawser.Write{Src: p.src.Slice(0, n), Dst: p.rem.Slice(0, n), Imm: hawser.Imm(imm), Parts: 3, Pin: pin})
				wait(t, tr, err)
				tr, err = p.a.WritePages(hawser.WritePages{
					PageLen: page, Imm: hawser.Imm(imm), Pin: pin,
					Src: hawser.Pages{Region: p.src, Indices: upTo(64), Stride: page, Offset: n},
					Dst: hawser.RemotePages{Remote: p.rem, Indices: upTo(64), Stride: page, Offset: n},
				})
				wait(t, tr, err)
				tr, err = p.a.Scatter(hawser.Scatter{
					Src: p.src.Slice(2*n, n), Imm: hawser.Imm(imm), Pin: pin,
					Targets: []hawser.Target{{Dst: p.rem.Slice(2*n, n/2), Len: n / 2}, {Dst: p.rem.Slice(2*n+n/2, n/2), SrcOff: n / 2, Len: n / 2}},
				})
				wait(t, tr, err)
				tr, err = p.a.Signal(hawser.Signal{To: p.rem.Peer(), Imm: imm, Pin: pin})
				wait(t, tr, err)
				reach(t, p.b.Counter(imm), 3+64+2+1)
				same(t, fmt.Sprintf("pinned to rail %d", rail), p.dst.Bytes(), p.src.Bytes())
			}
		}
	})
}

// A request for no pages had nothing whose end could complete it: its caller waited for ever.
func TestDefect03ZeroPagesNeverComplete(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		p := w.pair(t, 2, 1, 4096)
		q := p.a.NewQueue(4)
		done := make([]hawser.Done, 4)
		for _, wr := range []hawser.WritePages{
			{PageLen: 64},
			{PageLen: 64, Imm: hawser.Imm(1)},
			{PageLen: 0, Imm: hawser.Imm(1)},
			{PageLen: 64, Src: hawser.Pages{Indices: []uint32{}, Stride: 64}, Dst: hawser.RemotePages{Indices: []uint32{}, Stride: 64}},
		} {
			wr.Src.Region, wr.Dst.Remote = p.src, p.rem
			tr, err := p.a.WritePages(wr)
			wait(t, tr, err)
			soon(t, "the channel", func() { <-tr.Done() })
			if err := q.WritePages(wr, 5); err != nil {
				t.Fatal(err)
			}
			if n, err := q.Wait(testContext(t), done); n != 1 || err != nil || done[0] != (hawser.Done{Cookie: 5}) {
				t.Fatalf("%d ends, %+v, %v", n, done[0], err)
			}
		}
		if st := p.a.Stats(); st.Inflight != 0 || p.b.Counter(1).Load() != 0 {
			t.Fatalf("%d operations are in flight, %d immediates came of no pages", st.Inflight, p.b.Counter(1).Load())
		}
	})
}

// Each transfer that had to wait in a queue left its context behind: the process grew for ever.
func TestDefect04EveryQueuedTransferLeaks(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		p := w.pair(t, 2, 2, 1<<20)
		const depth = 1000
		q := p.a.NewQueue(depth)
		done := make([]hawser.Done, depth)
		ctx := testContext(t) // one: each is kept until the test ends
		round := func() (transfers []weak.Pointer[hawser.Transfer]) {
			for i := range uint64(depth) { // many more than the network takes at once
				wr := hawser.Write{Src: p.src.Slice(i, 100), Dst: p.rem.Slice(i, 100)}
				if err := q.Write(wr, i); err != nil {
					t.Fatal(err)
				}
				if i%10 == 0 {
					tr, err := p.a.Write(wr)
					if err == nil {
						err = tr.Wait(ctx)
					}
					if err != nil {
						t.Fatal(err)
					}
					transfers = append(transfers, weak.Make(tr))
				}
				wr.Src.Len = 101 // longer than its destination
				if _, err := p.a.Write(wr); !errors.Is(err, hawser.ErrInvalid) {
					t.Fatal(err)
				}
				if err := q.Write(wr, i); err == nil {
					t.Fatal("a queue takes a write that is longer than its destination")
				}
			}
			for n := 0; n < depth; {
				k, err := q.Wait(ctx, done)
				if err != nil {
					t.Fatal(err)
				}
				n += k
			}
			return transfers
		}
		heap := func() uint64 {
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		round()
		before := heap()
		var transfers []weak.Pointer[hawser.Transfer]
		const rounds = 20
		for range rounds {
			transfers = append(transfers, round()...)
		}
		const noise = 500 << 10 // one word for each of the 20,000 queued ones would be 160 KB, a context several times that
		if after := heap(); after > before+noise {
			t.Errorf("the heap grew from %d to %d bytes over %d transfers", before, after, rounds*depth)
		}
		left := 0
		for _, tr := range transfers {
			if tr.Value() != nil {
				left++
			}
		}
		if left > 0 {
			t.Errorf("%d of %d transfers that have ended are still held", left, len(transfers))
		}
		if n := p.a.Stats().Inflight; n != 0 {
			t.Errorf("%d operations are in flight", n)
		}
	})
}

// Memory that was registered on several devices was deregistered on the first: the others kept it pinned, and could still be
// written through.
func TestDefect05DeregistrationForOneDeviceOnly(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		const length = 12345
		var l ledger
		w = w.wrapped(l.wrap)
		p := w.pair(t, 3, 3, 4096)
		keep := w.alloc(t, p.b, length)
		target := w.alloc(t, p.b, length)
		if got, want := fmt.Sprint(l.live(length)), "[0 0 0 2 2 2]"; got != want {
			t.Fatalf("registrations by rail: %s, want %s", got, want)
		}
		rem, err := p.a.Import(testContext(t), target.Descriptor(target.All(), hawser.RightWrite))
		if err != nil {
			t.Fatal(err)
		}
		if err := target.Close(); err != nil {
			t.Fatal(err)
		}
		if got, want := fmt.Sprint(l.live(length)), "[0 0 0 1 1 1]"; got != want {
			t.Fatalf("registrations by rail after one region was closed: %s, want %s", got, want)
		}
		for range 6 { // over each of the rails
			if err := writeTo(t, p.a, p.src, rem); !takenBack(err) {
				t.Fatalf("a write to a region that was closed: %v", err)
			}
		}
		// What one rail refuses, the others give back.
		l.refuse = func(domain int) error {
			if domain == 5 {
				return provider.ErrLimit
			}
			return nil
		}
		if _, err := p.b.Alloc(length, hawser.MemOptions{Heap: w.heap}); !errors.Is(err, hawser.ErrLimit) || !strings.Contains(err.Error(), "rail 2") {
			t.Fatalf("a region that one rail refuses: %v", err)
		}
		l.refuse = nil
		if got, want := fmt.Sprint(l.live(length)), "[0 0 0 1 1 1]"; got != want {
			t.Fatalf("registrations by rail after one was refused: %s, want %s", got, want)
		}
		if err := keep.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// Immediates that came before somebody expected them were lost, and asking for a counter a second time set it back.
func TestDefect06ImmediatesBeforeExpectAreLost(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		p := w.pair(t, 2, 1, 4096)
		signal := func(imm uint32, n int) {
			for range n {
				tr, err := p.a.Signal(hawser.Signal{To: p.rem.Peer(), Imm: imm})
				wait(t, tr, err)
			}
		}
		arrived := func(n uint64) {
			eventually(t, "arrival", func() bool { return p.b.Stats().Peers[0].RxImms == n })
		}
		signal(0, 3)
		signal(0xffffffff, 2)
		arrived(5) // nobody has asked
		c := p.b.Counter(0)
		first := c.Done(5)
		second := c.Done(4) // asking again, for less, resets nothing
		reach(t, c, 3)
		select {
		case <-first:
			t.Fatal("5 of 3 have arrived")
		case <-second:
			t.Fatal("4 of 3 have arrived")
		default:
		}
		var wg sync.WaitGroup
		for n := range uint64(6) {
			wg.Go(func() { reach(t, p.b.Counter(0), n) })
		}
		signal(0, 2)
		wg.Wait()
		soon(t, "both thresholds", func() {
			<-first
			<-second
		})
		if n := p.b.Counter(0).Load(); n != 5 || c != p.b.Counter(0) {
			t.Fatalf("asking again made %d of 5", n)
		}
		reach(t, p.b.Counter(0xffffffff), 2)
		late, more := make(chan struct{}), make(chan struct{})
		c.OnReach(5, func() { close(late) }) // reached before anybody asked
		c.OnReach(6, func() { close(more) })
		c.OnReach(2, func() {})
		soon(t, "a threshold that was reached before", func() { <-late })
		from := known(t, p.b, p.a)
		for n := range uint64(6) {
			if err := c.Expect(testContext(t), map[*hawser.Peer]uint64{from: n}); err != nil {
				t.Fatal(err)
			}
		}
		signal(0, 1)
		soon(t, "a threshold that others were set after", func() { <-more })
		reach(t, p.b.Counter(0), 6) // a wait takes nothing away
	})
}

// The first part that failed ended the transfer, and its caller took the memory back while other parts were still being read.
func TestDefect07ErrorWhileSiblingsAreInFlight(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		for _, failing := range []uint64{0, 2, 5} { // of six parts over three rails
			v := &valve{keep: writeEnds}
			failed := make(chan struct{}, 1)
			n := uint64(0) // of a's writes; touched by its worker alone
			dom := func(d provider.Domain) provider.Domain {
				return v.wrap(providertest.Faulty(d, func(_ uint64, wr *provider.WR) provider.Status {
					if wr.Op != provider.OpWriteImm || wr.Imm != 7 {
						return provider.StatusOK
					}
					n++
					if n-1 != failing {
						return provider.StatusOK
					}
					failed <- struct{}{}
					return provider.StatusAccess
				}))
			}
			a, b := w.wrapped(dom).engine(t, 0, 3), w.engine(t, 1, 3)
			src, dst := w.alloc(t, a, 6<<10), w.alloc(t, b, 6<<10)
			fill(src.Bytes(), 3)
			rem, err := a.Import(testContext(t), dst.Descriptor(dst.All(), hawser.RightWrite))
			if err != nil {
				t.Fatal(err)
			}
			v.shut.Store(true)
			tr, err := a.Write(hawser.Write{Src: src.All(), Dst: rem.All(), Imm: hawser.Imm(7), Parts: 6})
			if err != nil {
				t.Fatal(err)
			}
			select {
			case <-failed:
			case <-time.After(hang):
				t.Fatal("no part fails")
			}
			eventually(t, "five parts are there, and one has failed", func() bool { return v.kept.Load() == 5 })
			for range 3 {
				a.Stats() // the worker has seen the failure
			}
			select {
			case <-tr.Done():
				t.Fatalf("ended with %d parts in flight: %v", v.kept.Load(), tr.Err())
			default:
			}
			if err := src.Close(); !errors.Is(err, hawser.ErrBusy) {
				t.Fatalf("close of memory that is being read: %v", err)
			}
			v.open(a)
			if err := tr.Wait(testContext(t)); !errors.Is(err, hawser.ErrAccess) {
				t.Fatalf("a write of which one part was refused: %v", err)
			}
			if err := src.Close(); err != nil {
				t.Fatal(err)
			}
			reach(t, b.Counter(7), 5)
			if got := b.Counter(7).Load(); got != 5 {
				t.Fatalf("%d parts were counted, want the 5 that were placed", got)
			}
		}
	})
}

// The number of immediates followed the number of cards at the sender: a receiver could not know what to wait for.
func TestDefect15CountsDependOnTheSendersRails(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		for _, rails := range [][2]int{{1, 1}, {2, 1}, {3, 1}, {4, 1}, {1, 3}, {4, 3}} {
			p := w.pair(t, rails[0], rails[1], 1<<20)
			write := func(n uint64, imm hawser.OptImm, parts int) {
				tr, err := p.a.Write(hawser.Write{Src: p.src.Slice(0, n), Dst: p.rem.Slice(0, n), Imm: imm, Parts: parts})
				wait(t, tr, err)
			}
			write(1<<20, hawser.Imm(1), 0)
			write(1<<20, hawser.Imm(2), 3)
			write(2, hawser.Imm(3), 5) // three of them empty
			write(0, hawser.Imm(4), 2)
			write(1<<20, hawser.OptImm{}, 0)
			tr, err := p.a.WritePages(hawser.WritePages{
				PageLen: 1000, Imm: hawser.Imm(5),
				Src: hawser.Pages{Region: p.src, Indices: upTo(17), Stride: 1000},
				Dst: hawser.RemotePages{Remote: p.rem, Indices: upTo(17), Stride: 1000},
			})
			wait(t, tr, err)
			tr, err = p.a.Signal(hawser.Signal{To: p.rem.Peer(), Imm: 6})
			wait(t, tr, err)
			total := uint64(0)
			for i, n := range []uint64{0, 1, 3, 5, 2, 17, 1} {
				reach(t, p.b.Counter(uint32(i)), n)
				total += n
			}
			eventually(t, "all immediates", func() bool { return p.b.Stats().Peers[0].RxImms >= total })
			if got := p.b.Stats().Peers[0].RxImms; got != total {
				t.Fatalf("%d x %d rails: %d immediates, want %d", rails[0], rails[1], got, total)
			}
		}
	})
}

// writeTo writes one byte and returns how that ends.
func writeTo(t *testing.T, e *hawser.Engine, src *hawser.Region, rem *hawser.Remote) error {
	tr, err := e.Write(hawser.Write{Src: src.Slice(0, 1), Dst: rem.Slice(0, 1)})
	if err != nil {
		return err
	}
	return tr.Wait(testContext(t))
}

// takenBack reports whether a write has met memory whose owner has closed it: the writer was told before, or the network refused it.
func takenBack(err error) bool {
	return errors.Is(err, hawser.ErrStale) || errors.Is(err, hawser.ErrAccess)
}
