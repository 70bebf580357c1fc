package providertest

import (
	"bytes"
	"slices"

	"github.com/hawser-project/hawser/provider"
)

// refused waits until WRs that the receiver must refuse have ended, and checks how: with StatusAccess, or flushed behind one that
// ended its connection so (Caps.AccessEnds). Such a connection is made anew, for l and for the lanes that share it.
func (l *lane) refused(toks []uint64, sharing ...*lane) (ended bool) {
	w, a := l.w, l.from
	w.Helper()
	a.finish(toks...)
	if !a.caps.AccessEnds {
		a.wantStatus(provider.StatusAccess, toks...)
		return false
	}
	a.wantOneOf([]provider.Status{provider.StatusAccess, provider.StatusFlushed}, toks...)
	access := a.count(provider.StatusAccess, toks)
	if access == 0 {
		w.Fatalf("none of %d writes that were refused ended with access: the first one does", len(toks))
	}
	ended = l.ended()
	if !ended && access < len(toks) {
		w.Fatalf("%d of %d writes that were refused were flushed, and the connection goes on", len(toks)-access, len(toks))
	}
	if ended {
		l.renew(sharing...)
	}
	return ended
}

func (h *host) count(st provider.Status, toks []uint64) int {
	n := 0
	for _, t := range toks {
		if h.done[t] == st {
			n++
		}
	}
	return n
}

// ended reports whether a refusal has ended the connection, and checks that both sides then learn of it. A write of no bytes finds
// it out: it is answered for as long as the connection lives.
func (l *lane) ended() bool {
	w, a, b := l.w, l.from, l.to
	w.Helper()
	if !a.caps.AccessEnds {
		return false
	}
	const imm = 0xA5CE0FF
	before := len(b.imms)
	tok := a.post(l.writeImm(0, 0, 0, imm))
	a.finish(tok...)
	a.wantOneOf([]provider.Status{provider.StatusOK, provider.StatusFlushed}, tok...)
	w.settle()
	from, to := a.peer(l.peer), b.peer(l.back)
	if a.done[tok[0]] == provider.StatusOK && !from.down && !to.down {
		w.until("the immediate that asked arrives", func() bool { return len(b.imms) > before })
		asked := func(c provider.Completion) bool { return c.Imm == imm && c.Peer == l.back }
		b.imms, b.told = slices.DeleteFunc(b.imms, asked), slices.DeleteFunc(b.told, asked)
		return false
	}
	w.until("both sides see KindPeerDown after a refusal that ended the connection", func() bool { return from.down && to.down })
	if from.downStatus != provider.StatusAccess {
		w.Fatalf("a refused write ended the connection: KindPeerDown at the writer has status %v, want access", from.downStatus)
	}
	// What the receiver learns of it depends on the network.
	if to.downStatus != provider.StatusAccess && to.downStatus != provider.StatusPeerDown {
		w.Fatalf("a refused write ended the connection: KindPeerDown at the receiver has status %v, want access or peer-down", to.downStatus)
	}
	return true
}

// renew releases both handles of a connection that is down, and makes another one.
func (l *lane) renew(sharing ...*lane) {
	l.w.Helper()
	l.w.leaveBoth(l)
	old := l.peer
	l.peer, l.back = l.w.connect(l.from, l.to)
	l.key = l.regrant()
	for _, s := range sharing {
		if s.from != l.from { // of the other direction
			s.peer, s.back = l.back, l.peer
		} else if s.peer == old {
			s.peer, s.back = l.peer, l.back
		}
		s.key = s.regrant()
	}
}

// regrant is a key for the lane's destination over the connection that it has now.
func (l *lane) regrant() provider.Key {
	l.w.Helper()
	if l.whole != nil {
		return l.w.grantRange(l.whole, l.back, l.off, len(l.dst.b))
	}
	return l.w.grant(l.dst, l.back)
}

// refusalEndsOneConnection: where a refused write ends its connection, it ends in order, for both sides, and no other one is hurt.
func refusalEndsOneConnection(w *world) {
	const rounds, slots, slot = 12, 24, 2048
	a, b, c := w.open("a"), w.open("b"), w.open("c")
	if !a.caps.AccessEnds {
		w.unpromised("Caps.AccessEnds is false")
	}
	l := w.lane(a, b, slots*slot)
	back := l.reverse()
	others := []*lane{w.lane(a, b, 4096), w.lane(b, a, 4096), w.lane(c, b, 4096), w.lane(a, c, 4096)}
	box := w.mailbox(b, slots, 64)
	for i := range slots {
		box.post(i, 64)
	}
	ended := 0
	for round := range rounds {
		b.imms, b.told, b.msgs, a.imms = nil, nil, nil, nil
		w.fill(l.dst.b)
		was := bytes.Clone(l.dst.b)
		wrs, bad := l.mixed(slots, slot)
		behind := back.writeImm(0, 0, slot, 1)
		replies := b.post(behind, behind, behind)
		toks := a.post(wrs...)
		var busy [][]uint64 // of the others, while it happens
		for _, o := range others {
			busy = append(busy, o.from.post(o.write(0, 0, 512), o.writeImm(512, 512, 512, 7)))
		}
		a.finish(toks...)
		b.finish(replies...)
		for i, o := range others {
			o.from.finish(busy[i]...)
			o.from.wantStatus(provider.StatusOK, busy[i]...)
		}
		down := l.ended()
		l.judgeMixed(wrs, toks, bad, was, slot, down)
		if !down {
			b.wantStatus(provider.StatusOK, replies...)
		}
		for i, o := range others {
			if o.from.peer(o.peer).down || o.to.peer(o.back).down {
				w.Fatalf("round %d: a refused write of one connection ended another one (%d)", round, i)
			}
			o.works()
		}
		if down {
			ended++
			if round%2 == 0 {
				if st := w.fence(b, l.back); st != provider.StatusOK {
					w.Fatalf("round %d: fence of a connection that a refusal has ended: %v", round, st)
				}
				if err := a.dom.Disconnect(l.peer); err != nil {
					w.Fatal(err)
				}
				l.peer, l.back = w.connect(a, b)
				l.key = l.regrant()
				back.peer, back.back = l.back, l.peer
				back.key = back.regrant()
			} else {
				l.renew(back)
			}
		}
		l.works()
		back.works()
		for _, m := range b.msgs {
			box.post(box.slot[m.Token], 64)
		}
	}
	w.Logf("%d of %d refusals ended their connection", ended, rounds)
}

// mixed is a WR for each slot but the last: a write there, plain or with an immediate, or a message. One to three are writes of which
// all but the last byte would go to the last slot: bad has their indexes.
func (l *lane) mixed(slots, slot int) (wrs []provider.WR, bad map[int]bool) {
	w := l.w
	bad = map[int]bool{}
	wrs = make([]provider.WR, 0, slots-1)
	for i := range slots - 1 {
		wr := l.writeImm(i*slot, i*slot, slot, uint32(i))
		switch w.rng.IntN(4) {
		case 0:
			wr.Op = provider.OpWrite
		case 1:
			wr = send(l.peer, l.src, i*slot, 1+i)
		}
		wrs = append(wrs, wr)
	}
	for range 1 + w.rng.IntN(3) {
		i := w.rng.IntN(slots - 1)
		wr := l.writeImm(0, i*slot, slot, uint32(i))
		if w.rng.IntN(2) == 0 {
			wr.Op = provider.OpWrite
		}
		wr.RemoteAddr = l.key.Base + uint64(len(l.dst.b)-slot+1)
		wrs[i], bad[i] = wr, true
	}
	return wrs, bad
}

// judgeMixed checks what writes of mixed have done against how they ended.
func (l *lane) judgeMixed(wrs []provider.WR, toks []uint64, bad map[int]bool, was []byte, slot int, down bool) {
	w, a, b := l.w, l.from, l.to
	w.Helper()
	told := map[uint32]int{}
	for _, c := range b.imms {
		if c.Peer != l.back {
			continue
		}
		if told[c.Imm]++; int(c.Imm) >= len(wrs) {
			w.Fatalf("an immediate that nobody posted: %s", show(c))
		}
	}
	access := 0
	for i, tok := range toks {
		st := a.done[tok]
		switch {
		case bad[i] && st == provider.StatusAccess:
			access++
		case st == provider.StatusFlushed && down:
		case bad[i] || st != provider.StatusOK:
			w.Fatalf("WR %d (must be refused: %v) ended with %v; connection down: %v", i, bad[i], st, down)
		}
		n, most := told[uint32(i)], 0
		if wrs[i].Op == provider.OpWriteImm && !bad[i] {
			most = 1
		}
		if n > most || n < most && st == provider.StatusOK {
			w.Fatalf("write %d (must be refused: %v) ended with %v and brought %d immediates", i, bad[i], st, n)
		}
		l.judgeSlot(i, slot, bad[i] || wrs[i].Op == provider.OpSend, st, was)
	}
	if access == 0 {
		w.Fatalf("%d writes were to be refused, and none ended with access: the first one does", len(bad))
	}
	l.judgeSlot(len(wrs), slot, true, provider.StatusAccess, was)
}

// judgeSlot: a slot holds what its write brought; of each byte the old or the new value when that was flushed.
func (l *lane) judgeSlot(i, slot int, untouched bool, st provider.Status, was []byte) {
	l.w.Helper()
	got, from, old := l.dst.b[i*slot:][:slot], l.src.b[i*slot:][:slot], was[i*slot:][:slot]
	for at, v := range got {
		switch {
		case untouched && v == old[at], !untouched && v == from[at]:
		case !untouched && st == provider.StatusFlushed && v == old[at]:
		default:
			l.w.Fatalf("WR %d (which writes nothing there: %v) ended with %v and left byte %d as %#x (was %#x, source %#x)", i, untouched, st, at, v, old[at], from[at])
		}
	}
}

// goodBeside checks WRs that were good, posted beside some that were refused.
func (l *lane) goodBeside(ended bool, toks ...uint64) {
	l.w.Helper()
	if ended {
		l.from.wantOneOf([]provider.Status{provider.StatusOK, provider.StatusFlushed}, toks...)
		return
	}
	l.from.wantStatus(provider.StatusOK, toks...)
}
