package providertest

import (
	"errors"
	"fmt"
	"time"

	"github.com/hawser-project/hawser/provider"
)

// timeSlack is what a busy machine may add to a bound in real time.
const timeSlack = 2 * time.Second

func eitherSideMayComeFirst(w *world) {
	a, b := w.open("a"), w.open("b")
	for _, activeFirst := range []bool{true, false} {
		pa, addrA := a.offer()
		pb, addrB := b.offer()
		if activeFirst {
			a.mustConnect(pa, addrB, true)
			w.settle()
			b.mustConnect(pb, addrA, false)
		} else {
			b.mustConnect(pb, addrA, false)
			w.settle()
			a.mustConnect(pa, addrB, true)
		}
		w.until(fmt.Sprintf("both sides are up (active first: %v)", activeFirst), func() bool {
			return a.peer(pa).up && b.peer(pb).up
		})
	}
}

// wantRefused waits until an attempt has failed: by Connect's error, or by KindPeerDown.
func (w *world) wantRefused(what string, h *host, p provider.Peer, err error) {
	w.Helper()
	if err != nil {
		return
	}
	s := h.peer(p)
	w.until(what+" is refused", func() bool {
		if s.up {
			w.Fatalf("%s came up", what)
		}
		return s.down
	})
	if s.downStatus != provider.StatusRefused {
		w.Fatalf("%s ended with KindPeerDown of status %v, want refused", what, s.downStatus)
	}
}

// drop disconnects a handle and waits until it is gone.
func (w *world) drop(h *host, p provider.Peer) {
	w.Helper()
	if err := h.dom.Disconnect(p); err != nil {
		w.Fatalf("host %s: disconnect: %v", h.name, err)
	}
	w.until("KindPeerDown after Disconnect", func() bool { return h.peer(p).down })
}

func (w *world) tamper(a provider.Addr) provider.Addr {
	if w.f.Tamper != nil {
		return w.f.Tamper(a)
	}
	t := append(provider.Addr(nil), a...)
	t[len(t)-1] ^= 0xFF
	return t
}

func wrongAddrIsRefused(w *world) {
	a, b, c := w.open("a"), w.open("b"), w.open("c")
	pa, addrA := a.offer()
	pb, addrB := b.offer()
	b.mustConnect(pb, addrA, false)
	for _, tc := range []struct {
		name string
		addr provider.Addr
	}{
		{"another secret", w.tamper(addrB)},
		{"a cut address", addrB[:len(addrB)-1]},
		{"half an address", addrB[:len(addrB)/2]},
		{"one byte", provider.Addr{0xFF}},
	} {
		pc, _ := c.offer()
		w.wantRefused("a connection to "+tc.name, c, pc, c.dom.Connect(pc, tc.addr, true))
		w.settle()
		if s := b.peer(pb); s.up || s.down {
			w.Fatalf("a connection to %s changed the state of the handle that waits for somebody else (up %v, down %v)", tc.name, s.up, s.down)
		}
		if err := c.dom.Disconnect(pc); err != nil {
			w.Fatalf("disconnect after a refused connection: %v", err)
		}
	}
	gone := w.open("gone")
	_, addrGone := gone.offer()
	if err := gone.close(); err != nil {
		w.Fatal(err)
	}
	pc, _ := c.offer()
	w.wantRefused("a connection to a closed domain", c, pc, c.dom.Connect(pc, addrGone, true))
	// Whoever has the right address is not hurt.
	a.mustConnect(pa, addrB, true)
	w.until("the right side connects after the wrong ones", func() bool { return a.peer(pa).up && b.peer(pb).up })
}

// crossedAddrsAreRefused: two connections at once, in which each active side uses the address meant for the other.
func crossedAddrsAreRefused(w *world) {
	a, b := w.open("a"), w.open("b")
	a1, addrA1 := a.offer()
	a2, addrA2 := a.offer()
	b1, addrB1 := b.offer()
	b2, addrB2 := b.offer()
	b.mustConnect(b1, addrA1, false)
	b.mustConnect(b2, addrA2, false)
	err1, err2 := a.dom.Connect(a1, addrB2, true), a.dom.Connect(a2, addrB1, true)
	w.wantRefused("a crossed connection", a, a1, err1)
	w.wantRefused("a crossed connection", a, a2, err2)
	for _, p := range []provider.Peer{b1, b2} {
		if b.peer(p).up {
			w.Fatal("the passive side of a crossed connection came up")
		}
	}
}

func addrWorksOnce(w *world) {
	a, b, c := w.open("a"), w.open("b"), w.open("c")
	pa, addrA := a.offer()
	pb, addrB := b.offer()
	a.mustConnect(pa, addrB, true)
	b.mustConnect(pb, addrA, false)
	w.until("a and b are up", func() bool { return a.peer(pa).up && b.peer(pb).up })
	again := func(when string) {
		w.Helper()
		pc, _ := c.offer()
		w.wantRefused("a second connection to one address, "+when, c, pc, c.dom.Connect(pc, addrB, true))
	}
	again("while the first is up")
	w.settle()
	if a.peer(pa).down || b.peer(pb).down {
		w.Fatal("a second connection to one address broke the first")
	}
	w.drop(a, pa)
	w.until("b sees KindPeerDown", func() bool { return b.peer(pb).down })
	again("after the first is down")
	if err := b.dom.Disconnect(pb); err != nil {
		w.Fatal(err)
	}
	again("after its handle is gone")
}

// connectEndsInTime: no attempt that nobody answers stays open.
func connectEndsInTime(w *world) {
	a, b, deaf, asleep := w.open("a"), w.open("b"), w.open("deaf"), w.openOwn("asleep")
	var handles []provider.Peer
	p, _ := a.offer()
	_, addr := b.offer() // b never calls Connect
	a.mustConnect(p, addr, true)
	handles = append(handles, p)

	p, _ = a.offer()
	_, addr = b.offer() // b never comes
	a.mustConnect(p, addr, false)
	handles = append(handles, p)

	p, _ = a.offer()
	_, addr = deaf.offer() // its owner does not poll
	deaf.paused = true
	a.mustConnect(p, addr, true)
	handles = append(handles, p)

	asleep.paused = true // this goroutine does not poll it
	q, _ := asleep.offer()
	_, addr = a.offer()
	asleep.mustConnect(q, addr, false)
	asleep.patience = provider.ConnectTimeout + timeSlack
	slept := make(chan error, 1)
	go func() {
		slept <- asleep.await("KindPeerDown of a Connect that nobody answers", func() bool { return asleep.peer(q).down }, nil)
	}()
	w.Cleanup(func() { // before the domains are closed
		if err := <-slept; err != nil {
			w.Error(err)
		}
	})

	for i, what := range []string{"an active Connect whose peer never connects", "a passive Connect to which nobody comes", "a Connect to an owner that does not poll"} {
		s := a.peer(handles[i])
		w.within(provider.ConnectTimeout+timeSlack, what+" ends", func() bool { return s.down })
		if s.up || s.downStatus != provider.StatusRefused {
			w.Fatalf("%s: up %v, KindPeerDown with status %v, want refused", what, s.up, s.downStatus)
		}
	}
}

func peersUpToMaxPeers(w *world) {
	const peers = 3
	a := w.openWith("a", provider.Config{Bell: w.bell, MaxPeers: peers}, w.bell)
	b := w.open("b")
	pa, _ := w.connect(a, b)
	a.offer()
	last, _ := a.offer()
	if _, _, err := a.dom.Offer(); !errors.Is(err, provider.ErrLimit) {
		w.Fatalf("offer number %d with MaxPeers %d returned %v, want ErrLimit", peers+1, peers, err)
	}
	for _, p := range []provider.Peer{last, pa} {
		w.drop(a, p)
		w.settle()
		a.offer() // fails the test when there is no room, or when the handle comes back
		if _, _, err := a.dom.Offer(); !errors.Is(err, provider.ErrLimit) {
			w.Fatalf("offer with MaxPeers live handles returned %v, want ErrLimit", err)
		}
	}
}

// wantStale checks that a handle is dead for every call.
func (w *world) wantStale(h *host, p provider.Peer, r *region) {
	w.Helper()
	_, grant := r.h.dom.Grant(r.key, p, 0, 64)
	for _, call := range []struct {
		name string
		err  error
	}{
		{"disconnect", h.dom.Disconnect(p)},
		{"fence", h.dom.Fence(p)},
		{"grant", grant},
		{"connect", h.dom.Connect(p, provider.Addr{1, 2, 3, 4}, true)},
	} {
		if !errors.Is(call.err, provider.ErrStale) {
			w.Errorf("host %s: %s of a handle that is gone returned %v, want ErrStale", h.name, call.name, call.err)
		}
	}
	tok := h.post(provider.WR{Op: provider.OpWriteImm, Peer: p})
	h.finish(tok...)
	h.wantOneOf([]provider.Status{provider.StatusFlushed, provider.StatusLocal}, tok...)
}

func disconnectFlushesThenDown(w *world) {
	for _, paused := range []bool{true, false} {
		l := w.lane(w.open("a"), w.open("b"), 64<<10)
		a, b := l.from, l.to
		rights := w.region(a, 64, provider.AccessRemoteWrite)
		b.paused = paused
		wrs := make([]provider.WR, a.caps.PeerDepth)
		for i := range wrs {
			wrs[i] = l.writeImm(0, 0, 32<<10, uint32(i))
			if i%5 == 4 {
				wrs[i] = send(l.peer, l.src, 0, 1000) // b posts no receive: these cannot end well
			}
		}
		toks, err := a.tryPost(wrs)
		if err != nil {
			w.Fatal(err)
		}
		start := time.Now()
		if err := a.dom.Disconnect(l.peer); err != nil {
			w.Fatal(err)
		}
		// The harness fails when KindPeerDown comes before a completion.
		w.until("KindPeerDown after Disconnect", func() bool { return a.peer(l.peer).down })
		if took := time.Since(start); took > a.caps.DrainBound+timeSlack {
			w.Errorf("Disconnect took %v, Caps.DrainBound is %v", took, a.caps.DrainBound)
		}
		if st := a.peer(l.peer).downStatus; st != provider.StatusFlushed {
			w.Errorf("KindPeerDown after Disconnect has status %v, want flushed", st)
		}
		a.wantOneOf([]provider.Status{provider.StatusOK, provider.StatusFlushed}, toks...)
		for i, tok := range toks {
			if wrs[i].Op == provider.OpSend && a.done[tok] == provider.StatusOK {
				w.Error("a message without a receive ended with ok")
			}
		}
		b.paused = false
		w.until("the other side sees KindPeerDown", func() bool { return b.peer(l.back).down })
		if st := b.peer(l.back).downStatus; st != provider.StatusPeerDown {
			w.Errorf("KindPeerDown after the other side's Disconnect has status %v, want peer-down", st)
		}
		w.settle()
		w.wantStale(a, l.peer, rights)
		tok := b.post(provider.WR{Op: provider.OpWriteImm, Peer: l.back})
		b.finish(tok...)
		b.wantOneOf([]provider.Status{provider.StatusFlushed, provider.StatusLocal}, tok...)
		if err := b.dom.Disconnect(l.back); err != nil {
			w.Fatalf("Disconnect after KindPeerDown: %v", err)
		}
		w.settle()
		w.wantStale(b, l.back, l.dst)
	}
}

// disconnectDeliversWhatArrived: what ended with ok at the writer reaches the peer's owner, though the connection has
// gone meanwhile and the owner did not poll.
func disconnectDeliversWhatArrived(w *world) {
	for i, polls := range []int{0, 1, 3, 40, 40} {
		l := w.lane(w.open("a"), w.open("b"), 64<<10)
		a, b := l.from, l.to
		box := w.mailbox(b, 16, 256)
		for i := range 16 {
			box.post(i, 256)
		}
		wrs := make([]provider.WR, min(a.caps.PeerDepth, 64))
		for i := range wrs {
			wrs[i] = l.writeImm(0, i*256, 256, uint32(i))
			if i%4 == 3 {
				wrs[i] = send(l.peer, l.src, 0, i)
			}
		}
		toks, err := a.tryPost(wrs)
		if err != nil {
			w.Fatal(err)
		}
		b.paused = i%2 == 1
		for range polls {
			w.pump()
		}
		b.paused = true
		if err := a.dom.Disconnect(l.peer); err != nil {
			w.Fatal(err)
		}
		w.until("KindPeerDown after Disconnect", func() bool { return a.peer(l.peer).down })
		b.paused = false
		w.until("the other side sees KindPeerDown", func() bool { return b.peer(l.back).down })
		imms, msgs := 0, 0
		for i, tok := range toks {
			switch {
			case a.done[tok] != provider.StatusOK:
			case wrs[i].Op == provider.OpSend:
				msgs++
			default:
				imms++
			}
		}
		if len(b.imms) < imms || len(b.msgs) < msgs {
			w.Fatalf("after %d polls: %d writes and %d messages ended with ok, but only %d immediates and %d messages came before KindPeerDown",
				polls, imms, msgs, len(b.imms), len(b.msgs))
		}
	}
}

func reconnectAfterDisconnect(w *world) {
	a, b := w.open("a"), w.open("b")
	old := w.lane(a, b, 4096)
	stay := w.lane(a, b, 4096)
	for range 10 {
		old.works()
		w.drop(a, old.peer)
		w.until("the other side sees KindPeerDown", func() bool { return b.peer(old.back).down })
		if err := b.dom.Disconnect(old.back); err != nil {
			w.Fatal(err)
		}
		next := *old
		next.peer, next.back = w.connect(a, b) // Offer fails the test when it repeats a handle
		next.key = w.grant(old.dst, next.back)
		next.works()
		stay.works()
		old = &next
	}
}
