package providertest

import (
	"bytes"
	"errors"
	"math"
	"sync/atomic"

	"github.com/hawser-project/hawser/provider"
)

// badAccessIsRefused mixes writes outside the granted memory with good ones, while another peer goes on.
func badAccessIsRefused(w *world) {
	const size = 4096
	a, b, c := w.open("a"), w.open("b"), w.open("c")
	l, other := w.lane(a, b, size), w.lane(c, b, size)
	l.src = w.region(a, 4*size, 0) // longer than the destination
	w.fill(l.src.b)
	for i := range badWrites(l.key, size) {
		tc := badWrites(l.key, size)[i] // a refusal may bring a new key
		if k := l.key; tc.id == k.ID && tc.addr-k.Base <= size && tc.n <= size-(tc.addr-k.Base) {
			continue // a Base for which this case is a good write
		}
		for _, op := range []provider.Op{provider.OpWrite, provider.OpWriteImm} {
			l.badBetweenGood(badWrites(l.key, size)[i], op)
			other.works()
		}
	}
	l.works()
	if s := c.peer(other.peer); s.down {
		w.Fatal("writes that were refused ended the connection of another peer")
	}
}

// badWrite is a write that the receiver of memory under a key must refuse.
type badWrite struct {
	name     string
	id, addr uint64
	n        uint64
}

func badWrites(k provider.Key, size uint64) []badWrite {
	return []badWrite{
		{name: "key 0", id: 0, addr: k.Base, n: 8},
		{name: "largest key", id: math.MaxUint64, addr: k.Base, n: 8},
		{name: "next key", id: k.ID + 1, addr: k.Base, n: 8},
		{name: "key with a high bit changed", id: k.ID ^ 1<<40, addr: k.Base, n: 8},
		{name: "first byte past the end", id: k.ID, addr: k.Base + size, n: 1},
		{name: "last byte past the end", id: k.ID, addr: k.Base + size - 7, n: 8},
		{name: "whole memory from byte 1", id: k.ID, addr: k.Base + 1, n: size},
		{name: "longer than the memory", id: k.ID, addr: k.Base, n: 2 * size},
		{name: "byte before the start", id: k.ID, addr: k.Base - 1, n: 1},
		{name: "from before the start", id: k.ID, addr: k.Base - 1, n: 8},
		{name: "far away", id: k.ID, addr: k.Base + 1<<40, n: 8},
		{name: "offset 2^63", id: k.ID, addr: k.Base + 1<<63, n: 8},
		{name: "end wraps around", id: k.ID, addr: math.MaxUint64 - 3, n: 8},
		{name: "end wraps to the start", id: k.ID, addr: k.Base - size, n: size},
		{name: "end wraps past the start", id: k.ID, addr: k.Base - 8, n: 2 * size},
	}
}

// badBetweenGood posts a bad write between two good ones.
func (l *lane) badBetweenGood(tc badWrite, op provider.Op) {
	w, a, b := l.w, l.from, l.to
	w.Helper()
	w.fill(l.dst.b)
	want := bytes.Clone(l.dst.b)
	before := len(b.imms)
	good := l.write(0, 0, 64)
	bad := l.write(0, 0, int(tc.n))
	bad.Op, bad.Imm, bad.RemoteKey, bad.RemoteAddr = op, 0xBAD, tc.id, tc.addr
	last := l.writeImm(64, 64, 64, 0x600D)
	toks := a.post(good, bad, last)
	a.finish(toks...)
	if st := a.done[toks[1]]; st != provider.StatusAccess {
		w.Fatalf("%v with %s ended with status %v, want access", op, tc.name, st)
	}
	if a.done[toks[2]] == provider.StatusOK {
		w.until("the good immediate arrives ("+tc.name+")", func() bool { return len(b.imms) > before })
	}
	ended := l.refused(toks[1:2])
	l.goodBeside(ended, toks[0], toks[2])
	for i, tok := range []uint64{toks[0], toks[2]} {
		part := l.dst.b[i*64:][:64]
		if a.done[tok] == provider.StatusOK {
			part = l.src.b[i*64:][:64]
		}
		copy(want[i*64:], part)
	}
	if at := differ(l.dst.b, want); at >= 0 {
		w.Fatalf("%v with %s: byte %d is wrong", op, tc.name, at)
	}
	for _, c := range b.imms[before:] {
		if c.Imm != 0x600D {
			w.Fatalf("%v with %s delivered %s", op, tc.name, show(c))
		}
	}
}

func missingRightIsRefused(w *world) {
	a, b := w.open("a"), w.open("b")
	l := &lane{w: w, from: a, to: b}
	l.peer, l.back = w.connect(a, b)
	l.src, l.dst = w.region(a, 64, 0), w.region(b, 64, 0)
	w.fill(l.src.b)
	if _, err := b.dom.Grant(l.dst.key, l.back, 0, 64); err == nil || errors.Is(err, provider.ErrBusy) {
		w.Fatalf("grant of memory without AccessRemoteWrite returned %v", err)
	}
	l.key = l.dst.key
	toks := a.post(l.write(0, 0, 8), l.writeImm(0, 8, 8, 1))
	without := l.dst
	l.dst = w.region(b, 64, provider.AccessRemoteWrite)
	l.refused(toks)
	w.settle()
	if firstNonZero(without.b) >= 0 || len(b.imms) != 0 {
		w.Fatal("a write to memory without AccessRemoteWrite left a trace")
	}
	l.key = w.grant(l.dst, l.back)
	l.works()
}

func keyOfAnotherPeerIsRefused(w *world) {
	a, b, c := w.open("a"), w.open("b"), w.open("c")
	la, lc := w.lane(a, b, 64), w.lane(c, b, 64)
	thief := *la
	thief.key, thief.dst = lc.key, lc.dst
	toks := a.post(thief.write(0, 0, 8), thief.writeImm(0, 8, 8, 1))
	la.refused(toks)
	w.settle()
	if firstNonZero(lc.dst.b) >= 0 || len(b.imms) != 0 {
		w.Fatal("a write with the key of another peer left a trace")
	}
	la.works()
	lc.works()
}

func keyEndsWithItsConnection(w *world) {
	l := w.pair(64)
	l.works()
	w.drop(l.from, l.peer)
	w.until("the other side sees KindPeerDown", func() bool { return l.to.peer(l.back).down })
	again := *l
	again.peer, again.back = w.connect(l.from, l.to)
	clear(l.dst.b)
	again.refused(again.from.post(again.write(0, 0, 8), again.writeImm(0, 8, 8, 1)))
	if firstNonZero(l.dst.b) >= 0 {
		w.Fatal("a write with the key of a connection that has ended left a trace")
	}
	again.key = w.grant(l.dst, again.back)
	again.works()
}

// parts grants two ranges of one memory to one peer, as lanes whose destinations are the ranges.
func (w *world) parts() (all *lane, parts [2]*lane) {
	const size = 4096
	all = w.pair(size)
	for i, r := range [][2]int{{100, 1000}, {1100, 333}} {
		l := *all
		l.whole, l.off = all.dst, r[0]
		l.dst = &region{h: all.to, b: all.dst.b[r[0]:][:r[1]]}
		l.key = l.regrant()
		parts[i] = &l
	}
	return all, parts
}

// grantOfARange: offsets count from the start of the range.
func grantOfARange(w *world) {
	all, parts := w.parts()
	want := bytes.Clone(all.dst.b)
	var toks []uint64
	for i, l := range parts {
		n := len(l.dst.b)
		toks = append(toks, l.from.post(l.write(i, 0, 10), l.write(50, n-10, 10), l.write(100, 20, n-40))...)
		part := want[100+1000*i:][:n]
		copy(part, l.src.b[i:][:10])
		copy(part[n-10:], l.src.b[50:][:10])
		copy(part[20:], l.src.b[100:][:n-40])
	}
	all.from.finish(toks...)
	all.from.wantStatus(provider.StatusOK, toks...)
	if at := differ(all.dst.b, want); at >= 0 {
		w.Fatalf("writes to granted ranges: byte %d of the memory is %#x, want %#x", at, all.dst.b[at], want[at])
	}
}

func grantIsEnforcedToItsRange(w *world) {
	all, parts := w.parts()
	if !all.to.caps.GrantRange {
		w.Fatal("Caps.GrantRange is false: this network needs a row in Factory.Except")
	}
	l, n := parts[0], len(parts[0].dst.b)
	for _, r := range [][2]int{{n, 1}, {n - 3, 4}, {-1, 1}, {-1, n + 2}, {0, n + 1}, {n, 333}} {
		toks := l.from.post(l.writeImm(0, r[0], r[1], 1))
		l.from.finish(toks...)
		if st := l.from.done[toks[0]]; st != provider.StatusAccess {
			w.Fatalf("a write of %d bytes at offset %d of a granted range of %d ended with %v, want access", r[1], r[0], n, st)
		}
		l.refused(toks, parts[1])
	}
	w.settle()
	if firstNonZero(all.dst.b) >= 0 || len(l.to.imms) != 0 {
		w.Fatal("a write outside the granted range left a trace")
	}
	for _, l := range parts {
		l.works()
	}
}

func badWRIsLocalError(w *world) {
	const size = 4096
	l := w.pair(size)
	a := l.from
	change := func(f func(wr *provider.WR)) provider.WR {
		wr := l.writeImm(0, 0, 8, 0xBAD)
		f(&wr)
		return wr
	}
	base := l.src.key.Base
	cases := []struct {
		name string
		wr   provider.WR
	}{
		{"unknown local key", change(func(wr *provider.WR) { wr.LocalKey = math.MaxUint64 })},
		{"local key 0", change(func(wr *provider.WR) { wr.LocalKey = 0 })},
		{"local range past the end", change(func(wr *provider.WR) { wr.LocalAddr = base + size - 7 })},
		{"local range before the start", change(func(wr *provider.WR) { wr.LocalAddr = base - 1 })},
		{"local range that wraps", change(func(wr *provider.WR) { wr.LocalAddr = math.MaxUint64 - 3 })},
		{"local range longer than the memory", change(func(wr *provider.WR) { wr.Len = size + 1 })},
		{"op 0", change(func(wr *provider.WR) { wr.Op = 0 })},
		{"op 99", change(func(wr *provider.WR) { wr.Op = 99 })},
		{"send of an unknown local key", change(func(wr *provider.WR) { wr.Op, wr.LocalKey = provider.OpSend, math.MaxUint64 })},
		{"send past the end", change(func(wr *provider.WR) { wr.Op, wr.LocalAddr = provider.OpSend, base+size-7 })},
	}
	for _, tc := range cases {
		toks := a.post(l.write(0, 0, 8), tc.wr, l.write(8, 8, 8))
		a.finish(toks...)
		if st := a.done[toks[1]]; st != provider.StatusLocal {
			w.Fatalf("a WR with %s ended with status %v, want local", tc.name, st)
		}
		a.wantStatus(provider.StatusOK, toks[0], toks[2])
	}
	for _, p := range []provider.Peer{0, l.peer + 1000, math.MaxUint32} {
		wr := change(func(wr *provider.WR) { wr.Peer = p })
		toks := a.post(wr)
		a.finish(toks...)
		a.wantOneOf([]provider.Status{provider.StatusLocal, provider.StatusFlushed}, toks...)
	}
	w.settle()
	if len(l.to.imms) != 0 {
		w.Fatalf("a bad WR delivered %s", show(l.to.imms[0]))
	}
	// A key that ended is as unknown as one that never was.
	old := w.region(a, 64, 0)
	if err := a.dom.Deregister(old.key); err != nil {
		w.Fatal(err)
	}
	toks := a.post(change(func(wr *provider.WR) { wr.LocalKey, wr.LocalAddr = old.key.ID, old.key.Base }))
	a.finish(toks...)
	a.wantStatus(provider.StatusLocal, toks...)
	l.works()
}

func deregisteredMemoryIsRefused(w *world) {
	l := w.pair(4096)
	l.works()
	w.settle()
	if err := l.to.dom.Deregister(l.dst.key); err != nil {
		w.Fatal(err)
	}
	want := bytes.Clone(l.dst.b)
	before := len(l.to.imms)
	toks := l.from.post(l.write(64, 0, 64), l.writeImm(64, 128, 64, 5))
	old := l.dst
	l.dst = w.region(l.to, 4096, provider.AccessRemoteWrite)
	l.refused(toks)
	w.settle()
	if differ(old.b, want) >= 0 || len(l.to.imms) != before {
		w.Fatal("a write to memory that was deregistered left a trace")
	}
	if err := l.to.dom.Deregister(old.key); !errors.Is(err, provider.ErrStale) {
		w.Errorf("deregistering twice returned %v, want ErrStale", err)
	}
	if _, err := l.to.dom.Grant(old.key, l.back, 0, 64); !errors.Is(err, provider.ErrStale) {
		w.Errorf("grant of a deregistered key returned %v, want ErrStale", err)
	}
	l.key = w.grant(l.dst, l.back)
	l.works()
}

// deregisterInFlight ends a key in the middle of a stream of writes: each ends with ok or access, and once they have ended
// nothing changes the memory any more.
func deregisterInFlight(w *world) {
	const size, rounds = 256 << 10, 10
	a, b := w.open("a"), w.open("b")
	l := w.lane(a, b, size)
	for round := range rounds {
		victim := *l
		victim.dst = w.region(b, size, provider.AccessRemoteWrite)
		victim.key = w.grant(victim.dst, l.back)
		var toks []uint64
		more := func() {
			wrs := make([]provider.WR, 16)
			for i := range wrs {
				wrs[i] = victim.writeImm(0, i*1024, size/2+i, 0)
			}
			got, err := a.tryPost(wrs)
			if err != nil {
				w.Fatal(err)
			}
			toks = append(toks, got...)
		}
		for range w.rng.IntN(20) {
			more()
			w.pump()
		}
		more()
		if err := b.dom.Deregister(victim.dst.key); err != nil {
			w.Fatalf("round %d: deregister with writes in flight: %v", round, err)
		}
		more()
		a.finish(toks...)
		if ended := a.count(provider.StatusAccess, toks) > 0 && l.ended(); ended {
			a.wantOneOf([]provider.Status{provider.StatusOK, provider.StatusAccess, provider.StatusFlushed}, toks...)
			l.renew()
			victim.peer, victim.back = l.peer, l.back // with the key of the connection before
		} else {
			a.wantOneOf([]provider.Status{provider.StatusOK, provider.StatusAccess}, toks...)
		}
		clear(victim.dst.b)
		toks = nil
		more()
		l.refused(toks)
		if at := firstNonZero(victim.dst.b); at >= 0 {
			w.Fatalf("round %d: byte %d changed after all writes to deregistered memory had ended", round, at)
		}
	}
	b.imms = nil
	l.works()
}

// deregisterWhileTheWriterRuns is the same with a writer on a goroutine of its own.
func deregisterWhileTheWriterRuns(w *world) {
	const size, rounds = 256 << 10, 15
	a, b := w.openOwn("a"), w.openOwn("b")
	l := w.lane(a, b, size)
	for i := range l.src.b {
		l.src.b[i] = 1
	}
	for round := range rounds {
		victim := *l
		victim.dst = w.region(b, size, provider.AccessRemoteWrite)
		victim.key = w.grant(victim.dst, l.back)
		b.imms = nil
		want := 1 + w.rng.IntN(50)
		var quiet atomic.Bool // the writer has nothing in flight and has seen the first refusal
		writer := func() error {
			defer quiet.Store(true)
			refused := false
			a.onDone = func(c provider.Completion) { refused = refused || c.Status == provider.StatusAccess }
			return a.await("a write to deregistered memory is refused", func() bool {
				if refused {
					return len(a.out) == 0
				}
				_, err := a.tryPost([]provider.WR{victim.writeImm(0, 0, size/2, 0), victim.write(0, size/2, size/2)})
				return err != nil
			}, nil)
		}
		w.both(writer, func() error {
			if err := b.await("the writer has written", func() bool { return len(b.imms) >= want }, nil); err != nil {
				return err
			}
			if err := b.dom.Deregister(victim.dst.key); err != nil {
				return err
			}
			for !quiet.Load() { // nobody rings when the writer has finished
				n, err := b.step()
				if err != nil {
					return err
				}
				if n == 0 && !b.dom.Arm() {
					b.bell.Park(idlePark)
				}
			}
			return nil
		})
		a.onDone = nil
		if l.ended() {
			l.renew()
			victim.peer, victim.back = l.peer, l.back
		}
		clear(victim.dst.b)
		l.refused(a.post(victim.write(0, 0, size)))
		if at := firstNonZero(victim.dst.b); at >= 0 {
			w.Fatalf("round %d: byte %d changed after all writes to deregistered memory had ended", round, at)
		}
	}
}

func newMemoryHasNewKey(w *world) {
	l := w.pair(4096)
	for round := range 20 {
		old := *l
		s := w.spans[len(w.spans)-1]
		if err := l.to.dom.Deregister(l.dst.key); err != nil {
			w.Fatal(err)
		}
		l.dst = w.register(l.to, s, provider.AccessRemoteWrite)
		l.key = w.grant(l.dst, l.back)
		if l.key == old.key {
			w.Fatalf("round %d: memory that was registered anew has the key of the old registration", round)
		}
		l.works()
		l.refused(l.from.post(old.write(0, 0, 8)))
	}
}
