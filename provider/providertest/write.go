package providertest

import (
	"bytes"
	"fmt"
	"math"
	"testing"

	"github.com/hawser-project/hawser/provider"
)

func capsKeepTheContract(w *world) {
	h := w.open("a")
	c := h.caps
	name := w.net.Provider("a").Name()
	if name == "" || h.dev.Provider != name {
		w.Errorf("device names provider %q, want %q", h.dev.Provider, name)
	}
	if h.dev.Name == "" || h.dev.Fabric == "" {
		w.Errorf("device %+v has no name or no fabric", h.dev)
	}
	if c.MaxMsg < 1 || c.PeerDepth < 1 || c.RecvDepth < 1 {
		w.Errorf("caps %+v: MaxMsg, PeerDepth and RecvDepth are at least 1", c)
	}
	if c.MaxSend < provider.MinMaxSend {
		w.Errorf("caps: MaxSend is %d, want at least %d", c.MaxSend, provider.MinMaxSend)
	}
	if c.DrainBound <= 0 {
		w.Errorf("caps: DrainBound is %v, want the longest time until the last flush", c.DrainBound)
	}
	if c.Fabric != h.dev.Fabric {
		w.Errorf("caps: Fabric is %q, the device's is %q", c.Fabric, h.dev.Fabric)
	}
	if h.dom.Caps() != c {
		w.Error("caps changed between two calls")
	}
}

func badArgumentsAreErrors(w *world) {
	l := w.pair(64)
	a := l.from
	good := w.region(a, 64, provider.AccessRemoteWrite)
	if n, err := a.dom.Post(nil); n != 0 || err != nil {
		w.Errorf("post of nothing returned %d, %v", n, err)
	}
	if n, err := a.dom.Poll(nil); n != 0 || err != nil {
		w.Errorf("poll into nothing returned %d, %v", n, err)
	}
	wantErr := func(what string, err error) {
		w.Helper()
		if err == nil {
			w.Errorf("%s returned no error", what)
		}
	}
	_, err := a.dom.Register(provider.Memory{FD: -1}, 0)
	wantErr("register of no memory", err)
	if !a.caps.Phantom {
		_, err = a.dom.Register(provider.Memory{FD: -1, Phantom: 4096}, 0)
		wantErr("register of phantom memory without Caps.Phantom", err)
	}
	_, err = a.dom.Grant(provider.Key{ID: math.MaxUint64}, l.peer, 0, 1)
	wantErr("grant of an unknown key", err)
	_, err = a.dom.Grant(good.key, 0, 0, 64)
	wantErr("grant to peer 0", err)
	_, err = a.dom.Grant(l.src.key, l.peer, 0, 64)
	wantErr("grant of memory without AccessRemoteWrite", err)
	for _, r := range [][2]uint64{{0, 65}, {64, 1}, {65, 0}, {1, 64}, {math.MaxUint64, 1}, {1, math.MaxUint64}, {math.MaxUint64 - 7, 16}} {
		_, err = a.dom.Grant(good.key, l.peer, r[0], r[1])
		wantErr(fmt.Sprintf("grant of the range %d+%d of 64 bytes", r[0], r[1]), err)
	}
	wantErr("deregister of an unknown key", a.dom.Deregister(provider.Key{ID: math.MaxUint64}))
	wantErr("disconnect of peer 0", a.dom.Disconnect(0))
	wantErr("fence of peer 0", a.dom.Fence(0))
	wantErr("connect of peer 0", a.dom.Connect(0, provider.Addr{1, 2, 3}, true))
	p, addr := a.offer()
	wantErr("connect to an empty address", a.dom.Connect(p, nil, true))
	wantErr("connect to an address longer than MaxAddr", a.dom.Connect(p, make(provider.Addr, provider.MaxAddr+1), true))
	_, err = a.dom.Grant(good.key, p, 0, 64)
	wantErr("grant to a peer that is not up", err)
	wantErr("connect of a peer that is up", a.dom.Connect(l.peer, addr, true))
	l.works()
}

// slotSize is the part of memory that one write of the random tests has to itself.
const slotSize = 4 << 10

func writeLandsWhereTold(w *world) {
	const slots, rounds = 64, 12
	l := w.pair(slots * slotSize)
	want := bytes.Clone(l.dst.b)
	src := bytes.Clone(l.src.b)
	for round := range rounds {
		wrs := make([]provider.WR, slots)
		for i := range wrs {
			n := w.rng.IntN(slotSize + 1)
			if i%4 == 0 {
				n = w.rng.IntN(16)
			}
			so := w.rng.IntN(len(l.src.b) - n + 1)
			do := i*slotSize + w.rng.IntN(slotSize-n+1)
			wrs[i] = l.write(so, do, n)
			if i%3 == 0 {
				wrs[i] = l.writeImm(so, do, n, uint32(i))
			}
			copy(want[do:do+n], l.src.b[so:])
		}
		toks := l.from.post(wrs...)
		l.from.finish(toks...)
		l.from.wantStatus(provider.StatusOK, toks...)
		if at := differ(l.dst.b, want); at >= 0 {
			w.Fatalf("round %d: after all writes completed, byte %d of slot %d is %#x, want %#x",
				round, at%slotSize, at/slotSize, l.dst.b[at], want[at])
		}
	}
	if at := differ(l.src.b, src); at >= 0 {
		w.Fatalf("source byte %d changed", at)
	}
}

// differ is the first index at which two slices of one length differ, -1 when there is none.
func differ(a, b []byte) int {
	if bytes.Equal(a, b) {
		return -1
	}
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}

func everyLengthArrives(w *world) {
	const guard = 64
	lengths := []int{1, 2, 3, 7, 8, 9, 63, 64, 65, 4095, 4096, 4097, 64<<10 - 1, 64 << 10, 64<<10 + 1, 1<<20 + 3}
	l := w.pair(1<<20 + 3 + 2*guard + 1)
	for _, n := range lengths {
		if uint64(n) > l.from.caps.MaxMsg {
			continue
		}
		for _, skew := range []int{0, 1} {
			oneWrite(l, n, guard+skew, guard, uint32(n))
		}
	}
}

// oneWrite does one write with an immediate and checks all memory around it.
func oneWrite(l *lane, n, so, do int, imm uint32) {
	w := l.w
	w.Helper()
	clear(l.dst.b)
	l.to.imms = l.to.imms[:0]
	tok := l.from.post(l.writeImm(so, do, n, imm))
	w.until(fmt.Sprintf("a write of %d bytes and its immediate complete", n), func() bool {
		return l.from.isDone(tok...) && len(l.to.imms) == 1
	})
	l.from.wantStatus(provider.StatusOK, tok...)
	if c := l.to.imms[0]; c.Imm != imm || c.Len != l.to.immLen(n) {
		w.Fatalf("write of %d bytes with imm %#x delivered %s", n, imm, show(c))
	}
	if at := differ(l.dst.b[do:do+n], l.src.b[so:so+n]); at >= 0 {
		w.Fatalf("write of %d bytes: byte %d is %#x, want %#x", n, at, l.dst.b[do+at], l.src.b[so+at])
	}
	for _, part := range [][]byte{l.dst.b[:do], l.dst.b[do+n:]} {
		if i := firstNonZero(part); i >= 0 {
			w.Fatalf("write of %d bytes at %d changed a byte outside its range (%d of a guard of %d)", n, do, i, len(part))
		}
	}
}

func firstNonZero(b []byte) int {
	for i, v := range b {
		if v != 0 {
			return i
		}
	}
	return -1
}

// bigWrite bounds the memory of the test for the longest write.
const bigWrite = 64 << 20

func largestWriteArrives(w *world) {
	a, b := w.open("a"), w.open("b")
	n := int(min(a.caps.MaxMsg, bigWrite))
	l := w.lane(a, b, n+2)
	oneWrite(l, n, 1, 1, 1)
	oneWrite(l, n-1, 0, 1, 2)
	if a.caps.Phantom && a.caps.MaxMsg > uint64(n) {
		w.phantomWrite(a, b, l, a.caps.MaxMsg)
	}
}

// phantomWrite does the longest write where memory needs no bytes.
func (w *world) phantomWrite(a, b *host, l *lane, n uint64) {
	w.Helper()
	var keys [2]provider.Key
	for i, h := range []*host{a, b} {
		k, err := h.dom.Register(provider.Memory{FD: -1, Phantom: n}, provider.AccessRemoteWrite)
		if err != nil {
			w.Fatalf("host %s: register %d phantom bytes: %v", h.name, n, err)
		}
		keys[i] = k
	}
	dst, err := b.dom.Grant(keys[1], l.back, 0, n)
	if err != nil {
		w.Fatal(err)
	}
	b.imms = b.imms[:0]
	tok := a.post(provider.WR{
		Op: provider.OpWriteImm, Peer: l.peer, Len: n, Imm: 3,
		LocalKey: keys[0].ID, LocalAddr: keys[0].Base, RemoteKey: dst.ID, RemoteAddr: dst.Base,
	})
	w.until("a phantom write of MaxMsg bytes completes", func() bool { return a.isDone(tok...) && len(b.imms) == 1 })
	a.wantStatus(provider.StatusOK, tok...)
	if c := b.imms[0]; c.Len != n {
		w.Fatalf("a phantom write of %d bytes delivered %s", n, show(c))
	}
}

// gibibyteInPieces moves 1 GiB through windows of memory, in pieces of random length that lie back to back. Each window is compared
// when its last immediate has come.
func gibibyteInPieces(w *world) {
	const window = 8 << 20
	total := 1 << 30
	if raceEnabled || testing.Short() { // the race detector looks at every byte
		total = 64 << 20
	}
	l := w.pair(window)
	a, b := l.from, l.to
	w.fill(l.src.b)
	for at, round := 0, 0; at < total; at, round = at+window, round+1 {
		// Each window has its own bytes, without a new filling: a rotation by a prime.
		shift := round * 7919 % window
		clear(l.dst.b)
		b.imms = b.imms[:0]
		pieces := 0
		for off := 0; off < window; pieces++ {
			n := min(1+w.rng.IntN(1<<20), window-off, int(a.caps.MaxMsg))
			from := (off + shift) % window
			n = min(n, window-from)
			a.post(l.writeImm(from, off, n, uint32(pieces)))
			off += n
		}
		w.until("all immediates of a window come", func() bool { return len(b.imms) == pieces && len(a.out) == 0 })
		if at := differ(l.dst.b[:window-shift], l.src.b[shift:]); at >= 0 {
			w.Fatalf("window %d: byte %d is wrong", round, at)
		}
		if at := differ(l.dst.b[window-shift:], l.src.b[:shift]); at >= 0 {
			w.Fatalf("window %d: byte %d is wrong", round, window-shift+at)
		}
		clear(a.done)
	}
}

func tooLongWriteIsLocalError(w *world) {
	l := w.pair(4096)
	a, caps := l.from, l.from.caps
	if caps.MaxMsg == math.MaxUint64 || caps.MaxSend > bigWrite {
		w.Fatalf("caps %+v: there is no such memory", caps)
	}
	wr := l.write(0, 0, 1)
	wr.Len = caps.MaxMsg + 1
	// Memory of that length, where it can be had; elsewhere the length alone must be enough.
	switch {
	case caps.Phantom:
		k, err := a.dom.Register(provider.Memory{FD: -1, Phantom: wr.Len}, 0)
		if err != nil {
			w.Fatal(err)
		}
		wr.LocalKey, wr.LocalAddr = k.ID, k.Base
	case wr.Len <= bigWrite:
		r := w.region(a, int(wr.Len), 0)
		wr.LocalKey, wr.LocalAddr = r.key.ID, r.key.Base
	}
	tok := a.post(wr)
	a.finish(tok...)
	a.wantStatus(provider.StatusLocal, tok...)
	long := int(caps.MaxSend + 1)
	tok = a.post(send(l.peer, w.region(a, long, 0), 0, long))
	l.from.finish(tok...)
	l.from.wantStatus(provider.StatusLocal, tok...)
	l.works()
}

func zeroLengthNeedsNoMemory(w *world) {
	l := w.pair(64)
	imm := provider.WR{
		Op: provider.OpWriteImm, Peer: l.peer, Imm: 9,
		LocalKey: 12345, LocalAddr: math.MaxUint64, RemoteKey: 54321, RemoteAddr: math.MaxUint64,
	}
	plain := imm
	plain.Op = provider.OpWrite
	at := l.writeImm(64, 64, 0, 10) // at the very end of both spans
	toks := l.from.post(imm, plain, at)
	w.until("two immediates of empty writes arrive", func() bool { return l.from.isDone(toks...) && len(l.to.imms) == 2 })
	l.from.wantStatus(provider.StatusOK, toks...)
	for _, c := range l.to.imms {
		if c.Len != 0 || c.Imm != 9 && c.Imm != 10 {
			w.Fatalf("empty write delivered %s", show(c))
		}
	}
	if firstNonZero(l.dst.b) >= 0 {
		w.Fatal("an empty write changed memory")
	}
}

func queueFullThenResume(w *world) {
	l := w.pair(64 << 10)
	a, depth := l.from, l.from.caps.PeerDepth
	const rounds = 4
	for round := range rounds {
		wrs := make([]provider.WR, 2*depth+3)
		for i := range wrs {
			wrs[i] = l.writeImm(i%4096, i%4096, 8, uint32(i))
		}
		before := len(l.to.imms)
		toks, err := a.tryPost(wrs)
		if err != nil {
			w.Fatal(err)
		}
		if len(toks) != depth {
			w.Fatalf("round %d: post of %d writes without a poll accepted %d, want PeerDepth %d", round, len(wrs), len(toks), depth)
		}
		more, err := a.tryPost(wrs[depth:])
		if err != nil || len(more) != 0 {
			w.Fatalf("post to a full peer accepted %d more, %v", len(more), err)
		}
		toks = append(toks, a.post(wrs[depth:]...)...)
		w.until("all writes complete after the queue was full", func() bool {
			return a.isDone(toks...) && len(l.to.imms) == before+len(wrs)
		})
		a.wantStatus(provider.StatusOK, toks...)
	}
}

func silentPeerBlocksNobody(w *world) {
	a, b, c := w.open("a"), w.open("b"), w.open("c")
	toB, toC := w.lane(a, b, 64<<10), w.lane(a, c, 64<<10)
	b.paused = true
	depth := a.caps.PeerDepth
	wrs := make([]provider.WR, depth)
	for i := range wrs {
		wrs[i] = toB.writeImm(0, i%4096, 1024, uint32(i))
		if i%4 == 3 {
			wrs[i] = send(toB.peer, toB.src, 0, 512)
		}
	}
	silent, err := a.tryPost(wrs)
	if err != nil {
		w.Fatal(err)
	}
	if len(silent) != depth {
		w.Fatalf("a peer that does not poll took %d of PeerDepth %d writes and sends", len(silent), depth)
	}
	for range 50 {
		toC.works()
	}
	// Now with nothing but messages outstanding, which stay until there are receives.
	sends := depth / 4
	for full := 0; full < 2; {
		toks, err := a.tryPost([]provider.WR{send(toB.peer, toB.src, 0, 512)})
		if err != nil {
			w.Fatal(err)
		}
		if full++; len(toks) > 0 {
			full = 0
		} else {
			w.settle() // what can complete without the peer's owner completes
		}
		sends += len(toks)
		silent = append(silent, toks...)
	}
	for range 50 {
		toC.works()
	}
	b.paused = false
	bufs := w.region(b, 512*64, 0)
	recvs := 0
	w.until("all work to the peer that polls again completes", func() bool {
		if recvs < sends && recvs < len(b.msgs)+64 {
			b.post(recv(bufs, recvs%64*512, 512))
			recvs++
		}
		return a.isDone(silent...) && len(b.imms) == depth-depth/4 && len(b.msgs) == sends
	})
	a.wantStatus(provider.StatusOK, silent...)
}

func manyPeers(w *world) {
	const spokes, each, rounds = 64, 2, 3
	hub := w.open("hub")
	mem := w.region(hub, spokes*each*64, provider.AccessRemoteWrite)
	var in, out []*lane
	for i := range spokes {
		s := w.open(fmt.Sprintf("spoke%d", i))
		src := w.region(s, 64, 0)
		dst := w.region(s, 64*each, provider.AccessRemoteWrite)
		w.fill(src.b)
		for range each {
			l, r := &lane{w: w, from: s, to: hub, src: src, dst: mem}, &lane{w: w, from: hub, to: s, src: mem, dst: dst}
			l.peer, l.back = w.connect(s, hub)
			r.peer, r.back = l.back, l.peer
			l.key, r.key = w.grant(mem, l.back), w.grant(dst, r.back)
			in, out = append(in, l), append(out, r)
		}
	}
	for round := range rounds {
		hub.imms = hub.imms[:0]
		for i, l := range in {
			l.from.post(l.writeImm(0, i*64, 64, uint32(i)))
		}
		w.until("every spoke's immediate arrives at the hub", func() bool { return len(hub.imms) == len(in) })
		seen := map[uint32]bool{}
		for _, c := range hub.imms {
			if seen[c.Imm] || int(c.Imm) >= len(in) || c.Peer != in[c.Imm].back {
				w.Fatalf("round %d: immediate twice or of the wrong peer: %s", round, show(c))
			}
			seen[c.Imm] = true
			if !bytes.Equal(mem.b[c.Imm*64:][:64], in[c.Imm].src.b) {
				w.Fatalf("round %d: wrong bytes from connection %d", round, c.Imm)
			}
		}
		var toks []uint64
		for i, r := range out {
			toks = append(toks, hub.post(r.write(i*64, i%each*64, 64))...)
		}
		hub.finish(toks...)
		hub.wantStatus(provider.StatusOK, toks...)
		for i, r := range out {
			if !bytes.Equal(r.dst.b[i%each*64:][:64], in[i].src.b) {
				w.Fatalf("round %d: wrong bytes came back on connection %d", round, i)
			}
		}
	}
}

func bothDirectionsAtOnce(w *world) {
	const total, size = 2000, 8 << 10
	ab := w.pair(64 << 10)
	lanes := []*lane{ab, ab.reverse()}
	posted := [2]int{}
	var toks [2][]uint64
	w.until("2000 writes in each direction complete", func() bool {
		for i, l := range lanes {
			if posted[i] < total {
				wrs := make([]provider.WR, min(total-posted[i], 32))
				for j := range wrs {
					wrs[j] = l.writeImm(w.rng.IntN(1024), (posted[i]+j)%7*size, w.rng.IntN(size), uint32(posted[i]+j))
				}
				got, err := l.from.tryPost(wrs)
				if err != nil {
					w.Fatal(err)
				}
				posted[i] += len(got)
				toks[i] = append(toks[i], got...)
			}
		}
		return len(ab.to.imms) == total && len(ab.from.imms) == total && len(ab.from.out)+len(ab.to.out) == 0
	})
	for i, l := range lanes {
		l.from.wantStatus(provider.StatusOK, toks[i]...)
	}
}

func twoRegistrationsOfOneSpan(w *world) {
	a, b := w.open("a"), w.open("b")
	l := w.lane(a, b, 4096)
	s := w.span(4096)
	first, second := w.register(b, s, provider.AccessRemoteWrite), w.register(b, s, provider.AccessRemoteWrite)
	if first.key == second.key {
		w.Fatal("two registrations have one key")
	}
	one, two := *l, *l
	one.dst, one.key = first, w.grant(first, l.back)
	two.dst, two.key = second, w.grant(second, l.back)
	again := *l
	again.dst, again.key = first, w.grant(first, l.back) // the same key or another one
	again.works()
	one.works()
	two.works()
	if err := b.dom.Deregister(first.key); err != nil {
		w.Fatal(err)
	}
	two.works()
	tok := a.post(one.write(0, 0, 8))
	a.finish(tok...)
	a.wantStatus(provider.StatusAccess, tok...)
}
