package providertest

import (
	"errors"
	"fmt"

	"github.com/hawser-project/hawser/provider"
)

// fence calls Fence and waits for KindFenced.
func (w *world) fence(h *host, p provider.Peer) provider.Status {
	w.Helper()
	s := h.peer(p)
	s.fenced = false
	if err := h.dom.Fence(p); err != nil {
		w.Fatalf("host %s: fence: %v", h.name, err)
	}
	w.until(fmt.Sprintf("host %s sees KindFenced", h.name), func() bool { return s.fenced })
	return s.fenceStatus
}

// claim takes memory back from a peer that is fenced, and returns a check that nothing has changed it since.
func (w *world) claim(r *region) (check func(what string)) {
	clear(r.b)
	imms := len(r.h.imms)
	return func(what string) {
		w.Helper()
		if at := firstNonZero(r.b); at >= 0 {
			w.Fatalf("%s: byte %d changed after KindFenced", what, at)
		}
		if len(r.h.imms) != imms {
			w.Fatalf("%s: an immediate came after KindFenced", what)
		}
	}
}

// fenceStopsTheWriter fences a peer that writes all the time, at random moments, and goes on writing afterwards.
func fenceStopsTheWriter(w *world) {
	const size, rounds = 128 << 10, 20
	a, b, c := w.open("a"), w.open("b"), w.open("c")
	other := w.lane(c, b, 4096)
	src := w.region(a, size, 0)
	dst := w.region(b, size, provider.AccessRemoteWrite)
	w.fill(src.b)
	for i := range src.b {
		src.b[i] |= 1 // no byte is zero, so that each one that lands is seen
	}
	for round := range rounds {
		l := &lane{w: w, from: a, to: b, src: src, dst: dst}
		l.peer, l.back = w.connect(a, b)
		l.key = w.grant(dst, l.back)
		more := func() {
			wrs := make([]provider.WR, 8)
			for i := range wrs {
				wrs[i] = l.writeImm(0, i*1024, 64<<10, uint32(i))
			}
			if _, err := a.tryPost(wrs); err != nil {
				w.Fatal(err)
			}
		}
		for range w.rng.IntN(10) {
			more()
			w.pump()
		}
		more()
		if st := w.fence(b, l.back); st != provider.StatusOK {
			w.Fatalf("round %d: fence of a peer that runs ended with %v", round, st)
		}
		if st := b.peer(l.back).downStatus; st != provider.StatusFlushed {
			w.Fatalf("round %d: KindPeerDown after Fence has status %v, want flushed", round, st)
		}
		check := w.claim(dst)
		for range 10 {
			more()
			w.pump()
		}
		w.until("the writer sees KindPeerDown and everything it posted ends", func() bool {
			return a.peer(l.peer).down && len(a.out) == 0
		})
		w.settle()
		check(fmt.Sprintf("round %d", round))
		if err := b.dom.Fence(l.back); !errors.Is(err, provider.ErrStale) {
			w.Fatalf("fence of a handle that was fenced returned %v, want ErrStale", err)
		}
		if err := a.dom.Disconnect(l.peer); err != nil {
			w.Fatal(err)
		}
		other.works()
	}
}

// writeAll keeps a connection full until it is down, on the goroutine that owns the writer.
func (l *lane) writeAll(n int) error {
	a := l.from
	wrs := make([]provider.WR, 8)
	return a.await("the writer sees KindPeerDown and everything it posted ends", func() bool {
		if s := a.peer(l.peer); s.down {
			return len(a.out) == 0
		}
		for i := range wrs {
			wrs[i] = l.writeImm(0, i*1024, n, uint32(i))
		}
		_, err := a.tryPost(wrs)
		return err != nil // which await's next poll reports
	}, nil)
}

// fenceWhileTheWriterRuns fences a peer that another goroutine drives. The race detector sees a byte that lands too late
// when memory is on the heap.
func fenceWhileTheWriterRuns(w *world) {
	const size, rounds = 512 << 10, 15
	a, b := w.openOwn("a"), w.openOwn("b")
	src := w.region(a, size, 0)
	dst := w.region(b, size, provider.AccessRemoteWrite)
	for i := range src.b {
		src.b[i] = 1
	}
	for round := range rounds {
		l := &lane{w: w, from: a, to: b, src: src, dst: dst}
		l.peer, l.back = w.connect(a, b)
		l.key = w.grant(dst, l.back)
		b.imms = nil
		want := w.rng.IntN(100)
		var check func(string)
		w.both(func() error { return l.writeAll(size / 2) }, func() error {
			if err := b.await("the writer has written", func() bool { return len(b.imms) >= want }, nil); err != nil {
				return err
			}
			s := b.peer(l.back)
			for !s.fenced || s.fenceStatus == provider.StatusUnfenced {
				s.fenced = false
				if err := b.dom.Fence(l.back); err != nil {
					return fmt.Errorf("fence: %w", err)
				}
				if err := b.await("KindFenced", func() bool { return s.fenced }, nil); err != nil {
					return err
				}
			}
			if s.fenceStatus != provider.StatusOK {
				return fmt.Errorf("fence ended with %v", s.fenceStatus)
			}
			check = w.claim(dst)
			return nil
		})
		check(fmt.Sprintf("round %d", round))
		if err := a.dom.Disconnect(l.peer); err != nil {
			w.Fatal(err)
		}
		w.settle()
		check(fmt.Sprintf("round %d, later", round))
	}
}

func fenceNeedsNoHelp(w *world) {
	l := w.pair(64 << 10)
	a, b := l.from, l.to
	for i := range a.caps.PeerDepth {
		a.post(l.writeImm(0, 0, 32<<10, uint32(i)))
		if i >= a.caps.PeerDepth/2 {
			break
		}
	}
	a.paused = true
	if st := w.fence(b, l.back); st != provider.StatusOK {
		w.Fatalf("fence of a peer that is not inside any call ended with %v", st)
	}
	check := w.claim(l.dst)
	a.paused = false
	w.until("the writer sees KindPeerDown", func() bool { return a.peer(l.peer).down && len(a.out) == 0 })
	w.settle()
	check("a writer that polls again")
}

func fenceAfterPeerDown(w *world) {
	l := w.pair(4096)
	l.works()
	w.drop(l.from, l.peer)
	w.until("the other side sees KindPeerDown", func() bool { return l.to.peer(l.back).down })
	w.settle()
	if st := w.fence(l.to, l.back); st != provider.StatusOK {
		w.Fatalf("fence of a peer that is down ended with %v", st)
	}
	w.wantStale(l.to, l.back, l.dst)
}

// secondFenceWaits: a handle is released once, by whoever comes first.
func secondFenceWaits(w *world) {
	a, b := w.open("a"), w.open("b")
	for range 4 {
		w.connect(a, b)
	}
	release := []func(provider.Peer) error{b.dom.Fence, b.dom.Disconnect}
	i := 0
	for p, s := range b.peers {
		first, second := release[i/2%2], release[i%2]
		i++
		if err := first(p); err != nil {
			w.Fatal(err)
		}
		if err := second(p); !errors.Is(err, provider.ErrBusy) && !errors.Is(err, provider.ErrStale) {
			w.Fatalf("releasing handle %#x twice: %v", p, err)
		}
		w.until("the handle comes to its end", func() bool { return s.down })
	}
	w.settle()
}
