package providertest

import (
	"bytes"
	"errors"
	"fmt"
	"math"

	"github.com/hawser-project/hawser/provider"
)

// bad turns a WR into one that the receiver must refuse.
func bad(wr provider.WR, l *lane) provider.WR {
	wr.RemoteAddr = l.key.Base + uint64(len(l.dst.b)) + 1
	return wr
}

// refusalIsTold: where the receiver checks, its owner learns of each immediate that was refused, and of nothing else.
func refusalIsTold(w *world) {
	l := w.pair(4096)
	a, b := l.from, l.to
	lengths := []int{1, 8, 600, 4096}
	for i, n := range lengths {
		b.told = nil
		toks := a.post(bad(l.write(0, 0, n), l), bad(l.writeImm(0, 0, n, uint32(i)), l), l.writeImm(0, 0, n, 0x600D))
		a.finish(toks...)
		back, want := l.back, a.count(provider.StatusOK, toks[2:])
		if b.caps.Refusals {
			want += a.count(provider.StatusAccess, toks[1:2])
		}
		w.until("the refusal and the good immediate are told", func() bool { return len(b.told) >= want })
		ended := l.refused(toks[:2])
		l.goodBeside(ended, toks[2])
		w.settle()
		if len(b.told) != want && (!ended || len(b.told) < want) {
			w.Fatalf("one refused immediate and one good one: %d completions at the receiver, want %d", len(b.told), want)
		}
		for _, c := range b.told {
			if c.Peer != back || c.Len != b.immLen(n) || c.Kind == provider.KindRefused && c.Imm != uint32(i) {
				w.Fatalf("a refused write of %d bytes with immediate %d of peer %#x is told as %s", n, i, back, show(c))
			}
		}
	}
}

// refusalsKeepOrder: on an ordered network immediates and refusals of one peer come as they were posted, and so do its messages.
func refusalsKeepOrder(w *world) {
	const size, total, bufs = 8 << 10, 3000, 32
	l := w.pair(size)
	a, b := l.from, l.to
	if !b.caps.Ordered {
		w.unpromised("Caps.Ordered is false")
	}
	var wantTold []provider.Kind
	box := w.mailbox(b, bufs, 64)
	for i := range bufs {
		box.post(i, 64)
	}
	sent, told, got, full := 0, 0, 0, 0
	for i := 0; i < total || told < len(wantTold) || got < sent || len(a.out) > 0; {
		if i < total {
			wr := l.writeImm(0, 0, w.rng.IntN(size), uint32(i))
			kind := provider.KindImm
			choice := w.rng.IntN(5)
			if choice == 0 && a.caps.AccessEnds { // which leaves nothing to be in order
				choice = 4
			}
			switch choice {
			case 0:
				wr, kind = bad(wr, l), provider.KindRefused
				if wr.Len == 0 {
					kind = provider.KindImm // without bytes there is nothing to refuse
				}
			case 1:
				wr, kind = send(l.peer, l.src, 0, sent%64), 0
			case 2:
				wr.Op, kind = provider.OpWrite, 0
			}
			toks, err := a.tryPost([]provider.WR{wr})
			if err != nil {
				w.Fatal(err)
			}
			if full++; len(toks) > 0 {
				full = 0
				if wr.Op == provider.OpSend {
					sent++
				}
				wantTold = append(wantTold, kind)
				if kind == 0 || kind == provider.KindRefused && !b.caps.Refusals {
					wantTold[len(wantTold)-1] = 0
				}
				i++
			}
		}
		if w.rng.IntN(4) > 0 && i < total {
			continue
		}
		// Now and then the receiver's owner looks away until its queue is full.
		if b.paused = i < total && (b.paused && full < settleRounds || w.rng.IntN(200) == 0); b.paused {
			w.pump()
			continue
		}
		w.pump()
		before := len(a.out)
		w.until("a WR or what it brought completes", func() bool {
			return len(a.out) < before || before == 0 || len(b.told)+len(b.msgs) > 0
		})
		for _, c := range b.told {
			for told < len(wantTold) && wantTold[told] == 0 {
				told++
			}
			if told == len(wantTold) || c.Kind != wantTold[told] || c.Imm != uint32(told) {
				w.Fatalf("out of order: %s, want number %d of the posted WRs", show(c), told)
			}
			told++
		}
		b.told = b.told[:0]
		for told < len(wantTold) && wantTold[told] == 0 {
			told++
		}
		for _, c := range b.msgs {
			if int(c.Len) != got%64 {
				w.Fatalf("message %d has %d bytes, want %d: out of order", got, c.Len, got%64)
			}
			got++
			box.post(box.slot[c.Token], 64)
		}
		b.msgs = b.msgs[:0]
	}
}

// revoker returns the optional power of a host's domain, or skips the test.
func (w *world) revoker(h *host) func(k provider.Key, p provider.Peer) error {
	w.Helper()
	r, ok := h.dom.(provider.Revoker)
	if !ok {
		w.unpromised("it has no provider.Revoker")
	}
	if err := r.Revoke(provider.Key{}, 0); errors.Is(err, provider.ErrUnsupported) {
		w.unpromised("it has no provider.Revoker under its decorator")
	}
	return r.Revoke
}

func revokeEndsGrantsOfOnePeer(w *world) {
	const size = 4096
	a, b, c := w.open("a"), w.open("b"), w.open("c")
	revoke := w.revoker(b)
	l := w.lane(a, b, size)
	other := *l // another peer with a grant of the same memory
	other.from = c
	other.peer, other.back = w.connect(c, b)
	other.src = w.region(c, size, 0)
	other.key = w.grant(l.dst, other.back)
	stay := *l // another registration of the same peer
	stay.dst = w.region(b, size, provider.AccessRemoteWrite)
	stay.key = w.grant(stay.dst, l.back)
	part := *l
	part.whole, part.off, part.dst = l.dst, 100, &region{h: b, b: l.dst.b[100:150]}
	part.key = part.regrant()
	for round := range 3 {
		l.works()
		w.settle()
		if err := revoke(l.dst.key, l.back); err != nil {
			w.Fatalf("round %d: revoke: %v", round, err)
		}
		if err := revoke(l.dst.key, l.back); err != nil {
			w.Fatalf("round %d: revoke of a peer without grants: %v", round, err)
		}
		want := bytes.Clone(l.dst.b)
		forged := *l
		forged.key.ID &= math.MaxUint32 // what a table may know of a slot that is free
		toks := a.post(l.write(64, 0, 64), l.writeImm(64, 128, 64, 5), part.write(64, 0, 50), forged.write(64, 0, 64))
		old := l.key
		a.finish(toks...)
		w.settle()
		if at := differ(l.dst.b, want); at >= 0 {
			w.Fatalf("round %d: byte %d changed after its grant was revoked", round, at)
		}
		l.refused(toks, &stay, &part)
		other.works()
		stay.works()
		l.key, part.key = l.regrant(), part.regrant()
		if l.key == old {
			w.Fatalf("round %d: the memory is granted anew under the key that was revoked", round)
		}
	}
	if err := b.dom.Deregister(l.dst.key); err != nil {
		w.Fatal(err)
	}
	if err := revoke(l.dst.key, l.back); !errors.Is(err, provider.ErrStale) {
		w.Errorf("revoke of a key that has ended returned %v, want ErrStale", err)
	}
	w.drop(b, l.back)
	w.settle()
	if err := revoke(stay.dst.key, l.back); !errors.Is(err, provider.ErrStale) {
		w.Errorf("revoke from a peer that is gone returned %v, want ErrStale", err)
	}
}

// revokeInFlight ends grants in the middle of a stream of long writes: nothing lands after the call, and the connection goes on
// unless a payload had arrived in part.
func revokeInFlight(w *world) {
	const size, rounds = 4 << 20, 60
	a, b, c := w.open("a"), w.open("b"), w.open("c")
	revoke := w.revoker(b)
	bystander := w.lane(c, b, 4096)
	src, dst := w.region(a, size, 0), w.region(b, size, provider.AccessRemoteWrite)
	for i := range src.b {
		src.b[i] = 1
	}
	cuts, clean := 0, 0
	for round := range rounds {
		l := &lane{w: w, from: a, to: b, src: src, dst: dst}
		l.peer, l.back = w.connect(a, b)
		l.key = w.grant(dst, l.back)
		clear(dst.b)
		toks := a.post(l.writeImm(0, 0, size/2, 1), l.writeImm(0, size/2, size/2, 2))
		for stop := w.rng.IntN(40); stop > 0 && firstNonZero(dst.b[:1]) < 0 || stop > 20; stop-- {
			w.pump()
		}
		before := bytes.Clone(dst.b)
		if err := revoke(dst.key, l.back); err != nil {
			w.Fatalf("round %d: revoke: %v", round, err)
		}
		a.finish(toks...)
		a.wantOneOf([]provider.Status{provider.StatusOK, provider.StatusAccess, provider.StatusFlushed}, toks...)
		w.settle()
		if at := differ(dst.b, before); at >= 0 {
			w.Fatalf("round %d: byte %d changed after its grant was revoked", round, at)
		}
		if s := b.peer(l.back); s.down {
			cuts++
			if s.downStatus != provider.StatusAccess {
				w.Fatalf("round %d: a revoke that cut a payload ended the connection with %v, want access", round, s.downStatus)
			}
		} else {
			clean++
			for i, half := range [][]byte{dst.b[:size/2], dst.b[size/2:]} {
				if st := a.done[toks[i]]; st == provider.StatusAccess && !zero(half) || st == provider.StatusFlushed {
					w.Fatalf("round %d: the connection is up, and write %d ended with %v after it had changed bytes", round, i, st)
				}
			}
			l.key = w.grant(dst, l.back)
			l.works()
		}
		bystander.works()
		w.leaveBoth(l)
	}
	w.Logf("%d of %d revokes cut a payload and ended the connection, %d did not", cuts, rounds, clean)
}

func zero(b []byte) bool { return firstNonZero(b) < 0 }

// leaveBoth ends a connection from both sides.
func (w *world) leaveBoth(l *lane) {
	w.Helper()
	for _, side := range []struct {
		h *host
		p provider.Peer
	}{{l.from, l.peer}, {l.to, l.back}} {
		if err := side.h.dom.Disconnect(side.p); err != nil {
			w.Fatalf("host %s: disconnect: %v", side.h.name, err)
		}
	}
	w.until(fmt.Sprintf("%s and %s see KindPeerDown", l.from.name, l.to.name), func() bool {
		return l.from.peer(l.peer).down && l.to.peer(l.back).down
	})
}
