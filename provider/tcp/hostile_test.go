package tcp

import (
	"bytes"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/provider"
)

func openDescriptors(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(fds)
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// closed reports whether the other side has closed fd, without blocking.
func closed(fd int) bool {
	var b [1]byte
	n, _, err := unix.Recvfrom(fd, b[:], unix.MSG_DONTWAIT|unix.MSG_PEEK)
	return err == nil && n == 0 || err != nil && err != unix.EAGAIN
}

// A stranger who does not know an offer's secret is closed and counted, whatever it says, and hurts nobody.
func TestStrangersAreRefused(t *testing.T) {
	o := newOwner(t)
	good := o.pair()
	p, addr := o.offer(good.b)
	real, err := parseOffer(addr)
	if err != nil {
		t.Fatal(err)
	}
	hello := func(change func(g *greeting)) []byte {
		g := greeting{kind: greetHello, handle: p, proof: real.secret}
		change(&g)
		b := g.encode()
		return b[:]
	}
	wrongMagic := hello(func(*greeting) {})
	wrongMagic[7]++
	notZero := hello(func(*greeting) {})
	notZero[63] = 1
	rng := rand.New(rand.NewPCG(5, 6))
	junk := make([]byte, 100_000)
	for i := range junk {
		junk[i] = byte(rng.Uint32())
	}
	for _, tc := range []struct {
		name string
		b    []byte
	}{
		{"junk", junk},
		{"short junk", junk[:helloSize]},
		{"another version", wrongMagic},
		{"something behind the hello", notZero},
		{"the answer instead of the question", hello(func(g *greeting) { g.kind = greetWelcome })},
		{"a wrong secret", hello(func(g *greeting) { g.proof[15] ^= 1 })},
		{"another handle", hello(func(g *greeting) { g.handle += 1 << provider.PeerIndexBits })},
		{"a handle out of range", hello(func(g *greeting) { g.handle |= 0xFFFF })},
		{"the handle of a peer that is up", hello(func(g *greeting) { g.handle = good.pb })},
	} {
		before := good.b.Stats().Refused
		fd := dial(t, real.at)
		(&rawPeer{t: t, fd: fd}).write(tc.b)
		o.until("it is closed: "+tc.name, func() bool { return good.b.Stats().Refused == before+1 && closed(fd) })
		unix.Close(fd)
		good.works()
	}
	// The offer was not used up.
	ours := offer{at: good.b.at, handle: 1 << provider.PeerIndexBits}
	if err := good.b.Connect(p, ours.addr(), false); err != nil {
		t.Fatal(err)
	}
	fd := dial(t, real.at)
	defer unix.Close(fd)
	(&rawPeer{t: t, fd: fd}).write(hello(func(*greeting) {}))
	o.until("the right one comes up", func() bool { _, up := o.find(good.b, provider.KindPeerUp, p); return up })
}

// Without an offer that waits there is nothing to talk about.
func TestNobodyIsExpected(t *testing.T) {
	o := newOwner(t)
	good := o.pair()
	fd := dial(t, good.a.at)
	defer unix.Close(fd)
	o.until("it is closed", func() bool { return good.a.Stats().Refused == 1 && closed(fd) })
	good.works()
}

// 1000 connections that say nothing, or begin a hello and never end it.
func TestSilentStrangersAreBounded(t *testing.T) {
	o := newOwner(t)
	good := o.pair()
	_, addr := o.offer(good.b)
	real, err := parseOffer(addr)
	if err != nil {
		t.Fatal(err)
	}
	const crowd = 1000
	base, baseHeap := openDescriptors(t), heap()
	fds := make([]int, 0, crowd)
	for i := range crowd {
		fd := dial(t, real.at)
		if i%2 == 0 {
			(&rawPeer{t: t, fd: fd}).write(magic[:])
		}
		fds = append(fds, fd)
		if i%50 == 0 {
			good.works()
		}
	}
	o.until("the crowd has been admitted", func() bool { return good.b.Stats().Refused >= crowd-maxStrangers })
	if n := openDescriptors(t) - base - crowd; n > maxStrangers+8 {
		t.Errorf("%d descriptors for %d silent connections, want at most %d", n, crowd, maxStrangers)
	}
	if h := heap(); h > baseHeap+1<<20 {
		t.Errorf("%d bytes of heap for %d silent connections", h-baseHeap, crowd)
	}
	// Whoever was given an offer gets through.
	o.join(good.a, good.b)
	o.until("the last of the crowd is sent away", func() bool { return good.b.Stats().Refused == crowd })
	for _, fd := range fds {
		if !closed(fd) {
			t.Error("a silent connection is still open")
		}
		unix.Close(fd)
	}
	good.works()
}

// With no descriptor left a domain does not spin on its listener, and goes on when there is one.
func TestListenerWithoutDescriptors(t *testing.T) {
	o := newOwner(t)
	good := o.pair()
	o.offer(good.b)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	free, err := unix.Dup(fd) // the lowest that is free
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(free)
	none := before
	none.Cur = uint64(free)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	restore := func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
			t.Error(err)
		}
	}
	defer restore()
	if err := unix.Connect(fd, sockaddr(good.b.at)); err != nil {
		t.Fatal(err)
	}
	o.until("the listener is off", func() bool { return good.b.deaf })
	good.works()
	o.until("the owner can sleep", func() bool { return !good.b.Arm() })
	restore()
	o.until("the stranger is admitted", func() bool { return good.b.oldest() >= 0 })
	good.works()
}

// What a peer that was let in can do wrong costs it its connection, and nobody else anything.
func TestForgedFramesEndOneConnection(t *testing.T) {
	o := newOwner(t)
	good := o.pair()
	rng := rand.New(rand.NewPCG(7, 8))
	junk := make([]byte, 1<<20)
	for i := range junk {
		junk[i] = byte(rng.Uint32())
	}
	for _, tc := range []struct {
		name string
		b    []byte
		want violation
	}{
		{"junk", junk, badReserved},
		{"a huge length", encode(header{kind: frameWrite, len: 1<<32 - 1}), badLength},
		{"a long message", encode(header{kind: frameMessage, len: maxSend + 1}), badLength},
		{"an ack of nothing", encode(header{kind: frameAck, ack: 1}), badAck},
		{"a good write, then an ack of nothing", encode(header{kind: frameWriteImm}, header{kind: frameAck, ack: 1}), badAck},
	} {
		r := o.impostor(good.b)
		go r.write(tc.b) // more than the buffers hold: it ends when the domain closes
		o.until("KindPeerDown after "+tc.name, func() bool { _, down := o.find(good.b, provider.KindPeerDown, r.p); return down })
		c, _ := o.find(good.b, provider.KindPeerDown, r.p)
		if c.Status != provider.StatusProtocol || violation(c.Detail) != tc.want {
			t.Errorf("%s: KindPeerDown with %v, detail %d, want protocol, %d", tc.name, c.Status, c.Detail, tc.want)
		}
		if err := good.b.Disconnect(r.p); err != nil {
			t.Fatal(err)
		}
		good.works()
	}
	if got := good.b.Stats().Violations; got != 5 {
		t.Errorf("%d violations counted, want 5", got)
	}
}

// A peer that goes on and on with writes that are refused is not a writer whose memory has gone away.
func TestWritesThatAreRefusedWithoutEnd(t *testing.T) {
	o := newOwner(t)
	good := o.pair()
	bad := append(encode(header{kind: frameWrite, len: 1, key: 99}), 0)
	fine := encode(header{kind: frameWrite})
	large := append(encode(header{kind: frameWrite, len: maxMsg, key: 99}), make([]byte, maxMsg)...)
	for _, tc := range []struct {
		name  string
		round [][]byte // what is written again and again
		n     int      // how often
		ends  bool
	}{
		{"what was on its way", [][]byte{bad}, maxRefused, false},
		{"one more", [][]byte{bad}, maxRefused + 1, true},
		{"as many good ones", [][]byte{bad, fine}, 2 * maxRefused, false},
		{"large ones", [][]byte{large}, maxRefused/(1+maxMsg/refusedUnit) + 1, true},
	} {
		r := o.impostor(good.b)
		ended := func() bool { _, down := o.find(good.b, provider.KindPeerDown, r.p); return down }
		for sent := 0; sent < tc.n && !ended(); {
			chunk := min(tc.n-sent, peerDepth/4) // within the window
			sent += chunk
			written := make(chan struct{})
			go func() {
				defer close(written)
				for range chunk {
					for _, b := range tc.round {
						r.write(b)
					}
				}
			}()
			o.until("a chunk has been read: "+tc.name, func() bool {
				s := &good.b.peer(r.p).stream
				return ended() || s.placed == uint32(sent*len(tc.round)) && s.placed == s.ackSent
			})
			<-written
			r.skip()
		}
		if c, down := o.find(good.b, provider.KindPeerDown, r.p); down != tc.ends || down && violation(c.Detail) != badTarget {
			t.Errorf("%s: disconnected %v with %d, want %v", tc.name, down, c.Detail, tc.ends)
		}
		good.works()
	}
}

// Refused writes are drained and named, and the connection goes on.
func TestRefusedWritesAreNamed(t *testing.T) {
	o := newOwner(t)
	good := o.pair()
	r := o.impostor(good.b)
	mine := make([]byte, 64)
	key := o.grant(good.b, o.register(good.b, mine), r.p, len(mine))
	foreign := o.grant(good.b, o.register(good.b, make([]byte, 64)), good.pb, 64)
	payload := bytes.Repeat([]byte{0xEE}, 1<<20)
	send := func(h header) {
		h.kind = frameWrite
		r.write(append(encode(h), payload[:h.len]...))
	}
	send(header{len: 8, key: key.ID})
	send(header{len: 1 << 20, key: key.ID})
	send(header{len: 8, key: foreign.ID})
	send(header{len: 8, key: key.ID, addr: 1<<64 - 4})
	send(header{len: 8, key: 1 << 63})
	send(header{len: 8, key: key.ID, addr: 8, flags: flagAsk})
	var nacks []uint32
	var acked uint32
	o.until("six writes are accounted for", func() bool {
		for acked < 6 {
			var b [headerSize]byte
			if n, _, err := unix.Recvfrom(r.fd, b[:], unix.MSG_DONTWAIT); err == unix.EAGAIN {
				return false
			} else if n != headerSize {
				t.Fatal(n, err)
			}
			h, bad := parseHeader(b[:])
			if bad != badNothing || h.kind != frameAck && h.kind != frameNack {
				t.Fatalf("answer %+v", h)
			}
			if h.kind == frameNack {
				nacks = append(nacks, h.ack)
			}
			acked = h.ack
		}
		return true
	})
	if len(nacks) != 4 || nacks[0] != 2 || nacks[3] != 5 {
		t.Fatalf("nacks of %v, want 2 to 5", nacks)
	}
	if want := append(bytes.Repeat([]byte{0xEE}, 16), make([]byte, 48)...); !bytes.Equal(mine, want) {
		t.Fatalf("memory is %x", mine)
	}
	good.works()
}

// A peer that only writes, wrongly, and never reads what it is told, costs a bounded amount of memory and nobody else's time.
func TestPeerThatNeverReads(t *testing.T) {
	o := newOwner(t)
	good := o.pair()
	r := o.impostor(good.b)
	base := heap()
	done := make(chan struct{})
	go func() { // ends when the domain closes the connection
		defer close(done)
		b := encode(header{kind: frameWrite, len: 1, key: 99})
		b = bytes.Repeat(append(b, 0), 1000)
		for !closed(r.fd) {
			r.write(b)
		}
	}()
	for range 200 {
		good.works()
	}
	// It never acks, but it has no window of its own to break as long as the socket takes our nacks; then it does.
	o.until("it is disconnected", func() bool { _, down := o.find(good.b, provider.KindPeerDown, r.p); return down })
	<-done
	if c, _ := o.find(good.b, provider.KindPeerDown, r.p); c.Status != provider.StatusProtocol || violation(c.Detail) != badWindow {
		t.Errorf("KindPeerDown with %v, detail %d, want protocol, %d", c.Status, c.Detail, badWindow)
	}
	if h := heap(); h > base+4<<20 {
		t.Errorf("%d bytes of heap for a peer that never reads", h-base)
	}
	good.works()
}

// A payload that stops in the middle holds up nobody, and lands nowhere after Deregister.
func TestHalfAPayload(t *testing.T) {
	o := newOwner(t)
	good := o.pair()
	r := o.impostor(good.b)
	mine := make([]byte, 1<<16)
	local := o.register(good.b, mine)
	key := o.grant(good.b, local, r.p, len(mine))
	payload := bytes.Repeat([]byte{0xEE}, len(mine))
	r.write(append(encode(header{kind: frameWriteImm, len: 1 << 16, key: key.ID, flags: flagAsk}), payload[:1000]...))
	o.until("the first half has landed", func() bool { return mine[999] == 0xEE })
	good.works()
	if err := good.b.Deregister(local); err != nil {
		t.Fatal(err)
	}
	clear(mine)
	r.write(payload[1000:])
	o.until("the writer is told", func() bool {
		var b [headerSize]byte
		n, _, _ := unix.Recvfrom(r.fd, b[:], unix.MSG_DONTWAIT)
		if n != headerSize {
			return false
		}
		if h, _ := parseHeader(b[:]); h.kind != frameNack || h.ack != 1 {
			t.Fatalf("answer %+v, want a nack of write 1", h)
		}
		return true
	})
	if at := bytes.IndexByte(mine, 0xEE); at >= 0 {
		t.Fatalf("byte %d changed after Deregister", at)
	}
	if _, got := o.find(good.b, provider.KindImm, r.p); got {
		t.Fatal("a refused write delivered its immediate")
	}
	good.works()
}

// trickle forwards connections to a domain in pieces of 1 to 7 bytes and returns the address that leads there.
func trickle(t *testing.T, to netip.AddrPort) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{}, 3)
	copyPieces := func(dst, src net.Conn) {
		defer func() { done <- struct{}{} }()
		defer func() { _ = dst.(*net.TCPConn).CloseWrite() }()
		var b [7]byte
		for i := 0; ; i++ {
			n, err := src.Read(b[:1+i%7])
			if _, werr := dst.Write(b[:n]); err != nil || werr != nil {
				return
			}
		}
	}
	go func() {
		defer func() { done <- struct{}{} }()
		in, err := l.Accept()
		if err != nil {
			return
		}
		defer func() { _ = in.Close() }()
		out, err := net.Dial("tcp", to.String())
		if err != nil {
			return
		}
		defer func() { _ = out.Close() }()
		go copyPieces(out, in)
		go copyPieces(in, out)
		<-done
		<-done
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return netip.MustParseAddrPort(l.Addr().String())
}

// Writes and messages in both directions through a network that delivers a few bytes at a time.
func TestTricklingNetwork(t *testing.T) {
	o := newOwner(t)
	a, b := o.open(), o.open()
	pa, addrA := o.offer(a)
	pb, addrB := o.offer(b)
	detour, err := parseOffer(addrB)
	if err != nil {
		t.Fatal(err)
	}
	detour.at = trickle(t, detour.at)
	t.Cleanup(func() { // runs before that of the trickle, which waits until its connections have ended
		_ = a.Disconnect(pa)
		_ = b.Disconnect(pb)
	})
	for _, err := range []error{a.Connect(pa, detour.addr(), true), b.Connect(pb, addrA, false)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	o.until("both are up", func() bool {
		_, upA := o.find(a, provider.KindPeerUp, pa)
		_, upB := o.find(b, provider.KindPeerUp, pb)
		return upA && upB
	})
	rng := rand.New(rand.NewPCG(9, 10))
	type side struct {
		d        *domain
		p        provider.Peer
		src, dst []byte
		local    provider.Key
		key      provider.Key // of the other's dst
	}
	const size = 20_000
	sides := [2]*side{{d: a, p: pa}, {d: b, p: pb}}
	for i, s := range sides {
		s.src, s.dst = make([]byte, size), make([]byte, size)
		for j := range s.src {
			s.src[j] = byte(rng.Uint32())
		}
		s.local = o.register(s.d, s.src)
		sides[1-i].key = o.grant(s.d, o.register(s.d, s.dst), s.p, size)
	}
	wrs, msgs := 0, 0
	for _, s := range sides {
		box := o.register(s.d, make([]byte, 100))
		for at, left := 0, 20; at < size; {
			n := min(size-at, 1+rng.IntN(900))
			batch := []provider.WR{{
				Op: provider.OpWriteImm, Peer: s.p, Imm: uint32(n), Len: uint64(n), LocalKey: s.local.ID,
				LocalAddr: uint64(at), RemoteKey: s.key.ID, RemoteAddr: uint64(at),
			}}
			if left > 0 { // a message each way, and a receive for the other's
				left--
				batch = append(batch, provider.WR{Op: provider.OpSend, Peer: s.p, Len: 77, LocalKey: s.local.ID},
					provider.WR{Op: provider.OpRecv, Len: 100, LocalKey: box.ID})
				msgs++
			}
			if k, err := s.d.Post(batch); k != len(batch) || err != nil {
				t.Fatal(k, err)
			}
			at += n
			wrs++
		}
	}
	count := func(kind provider.Kind) (n int) {
		for _, s := range sides {
			for _, c := range o.got[s.d] {
				if c.Kind == kind && c.Status == provider.StatusOK {
					n++
				}
			}
		}
		return n
	}
	o.until("everything completes", func() bool {
		return count(provider.KindWrite) == wrs && count(provider.KindImm) == wrs && count(provider.KindSend) == msgs
	})
	if !bytes.Equal(sides[0].dst, sides[1].src) || !bytes.Equal(sides[1].dst, sides[0].src) {
		t.Fatal("the bytes are wrong")
	}
}
