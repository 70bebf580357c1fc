package shm

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/mem"
	"github.com/hawser-project/hawser/provider"
)

// foreign registers new memory without a memfd with s.
func (s *side) foreign(size int) ([]byte, provider.Key) {
	s.t.Helper()
	span, k := s.memoryOf(mem.Private, size)
	return span.Bytes(), k
}

// loans is a pair with foreign memory on both sides: a writes from src to dst, which b has granted.
type loans struct {
	a, b     *side
	src, dst []byte
	from, to provider.Key
}

func newLoans(t *testing.T, size int) *loans {
	l := &loans{}
	l.a, l.b = newPair(t)
	l.src, l.from = l.a.foreign(size)
	l.dst, l.to = l.b.foreign(size)
	l.b.grant(l.to)
	for i := range l.src {
		l.src[i] = byte(i%251) | 1
	}
	return l
}

// newShown is newLoans with a source that has a memfd.
func newShown(t *testing.T, size int) *loans {
	l := newLoans(t, size)
	span, k := l.a.memory(size)
	copy(span.Bytes(), l.src)
	l.src, l.from = span.Bytes(), k
	return l
}

func (l *loans) wr(from, to, n int, imm uint32) provider.WR {
	return provider.WR{
		Op: provider.OpWriteImm, Imm: imm, Len: uint64(n), Peer: l.a.peer,
		LocalKey: l.from.ID, LocalAddr: uint64(from), RemoteKey: l.to.ID, RemoteAddr: uint64(to),
	}
}

// lent waits until a has published n loans that b has not seen.
func (l *loans) lent(t *testing.T, n int) *peer {
	t.Helper()
	p := l.a.d.peer(l.a.peer)
	until(t, "the loans are published", func() bool { return p.lend.jobs == n }, l.a)
	return p
}

// Direct and foreign writes of one peer keep their order together, and so do the refusals among them.
func TestLoansAndCopiesKeepOneOrder(t *testing.T) {
	const size, rounds = 1 << 16, 200
	l := newLoans(t, size)
	_, direct := l.b.memory(size)
	l.b.grant(direct)
	rng := rand.New(rand.NewPCG(1, 2))
	var want, got []uint32
	for round := range uint32(rounds) {
		for i := range uint32(1 + rng.IntN(20)) {
			wr := l.wr(rng.IntN(size/2), rng.IntN(size/2), rng.IntN(size/2), round<<8|i)
			bad := rng.IntN(6) == 0
			switch rng.IntN(3) {
			case 0:
				wr.RemoteKey = direct.ID
			case 1:
				wr.Len, bad = 0, false
			}
			if bad {
				wr.RemoteAddr = size
				wr.Len++
			} else {
				want = append(want, wr.Imm)
			}
			l.a.post(wr)
		}
		if rng.IntN(3) > 0 {
			l.b.poll()
		}
		until(t, "there is room", func() bool { return l.a.d.peer(l.a.peer).out < peerDepth/2 }, l.a, l.b)
		l.a.got = nil
	}
	until(t, "all immediates", func() bool {
		for _, c := range l.b.got {
			if c.Kind == provider.KindImm {
				got = append(got, c.Imm)
			}
		}
		l.b.got = nil
		return len(got) >= len(want)
	}, l.a, l.b)
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("immediate %d is %#x, want %#x", i, got[i], want[i])
		}
	}
}

// Pieces of all sizes, contiguous and not, more than fit one system call, arrive where told and nowhere else.
func TestPiecesOfAllSizesArePulled(t *testing.T) {
	const size = 3*pullChunk + 777
	for _, l := range []*loans{newLoans(t, size), newShown(t, size)} {
		testPieces(t, l, size)
	}
}

func testPieces(t *testing.T, l *loans, size int) {
	for name, cut := range map[string]func(i int) (from, to, n int){
		"contiguous":     func(i int) (int, int, int) { return i * 1000, i * 1000, 1000 },
		"one side apart": func(i int) (int, int, int) { return i * 1000, i * 2000, 1000 },
		"both apart":     func(i int) (int, int, int) { return i*3001 + 1, i*2003 + 3, 1000 + i },
		"backwards":      func(i int) (int, int, int) { return (200 - i) * 1000, i * 1000, 999 },
		"longer than a chunk": func(i int) (int, int, int) {
			return i, 2*i + 1, (pullChunk + i) * min(1, i%10) // one of ten has no bytes
		},
	} {
		clear(l.dst)
		want := make([]byte, size)
		for i := range 200 {
			from, to, n := cut(i)
			copy(want[to:], l.src[from:from+n])
			l.a.post(l.wr(from, to, n, uint32(i)))
		}
		n := 0
		until(t, name+": all immediates", func() bool {
			n += len(l.b.got)
			l.b.got = nil
			return n == 200
		}, l.a, l.b)
		if !bytes.Equal(l.dst, want) {
			t.Errorf("%s: the destination is not what was written", name)
		}
	}
}

// A source with a memfd is copied without the system call, also when it lies about itself, and is unmapped when it has ended.
func TestShownSourcesAreMapped(t *testing.T) {
	const size = 1 << 16
	l := newShown(t, size)
	pb := l.b.d.peer(l.b.peer)
	pb.pull.pid, pb.pull.fault = -1, errOtherProcess // a read would fail
	p := l.a.d.peer(l.a.peer)
	for name, lie := range map[string]struct {
		change func(*loan)
		ok     bool
	}{
		"truth":             {func(*loan) {}, true},
		"wrong address":     {func(n *loan) { n.addr = 4096 }, true},
		"past its end":      {func(n *loan) { n.off = size - 99 }, false},
		"offset wraps":      {func(n *loan) { n.off = 1<<64 - 50 }, false},
		"another region":    {func(n *loan) { n.src += 1 << 32 }, false},
		"region past table": {func(n *loan) { n.src |= maxRegions }, false},
	} {
		if !lie.ok {
			pb.pull.pid = p.pull.pid // which shows that it fails for want of the mapping
		}
		clear(l.dst)
		l.a.post(l.wr(0, 0, 100, 1))
		l.lent(t, 1)
		n := &p.lend.loans[(p.lend.put-1)%peerDepth]
		lie.change(n)
		if !lie.ok {
			n.addr = 4096
		}
		want := provider.StatusOK
		if !lie.ok {
			want = provider.StatusLocal
		}
		if c := l.a.wait(provider.KindWrite, l.b); c.Status != want {
			t.Errorf("%s: the write ended with %v, want %v", name, c.Status, want)
		}
		if lie.ok != bytes.Equal(l.dst[:100], l.src[:100]) {
			t.Errorf("%s: arrived %v, want %v", name, !lie.ok, lie.ok)
		}
		pb.pull.pid = -1
	}
	before := countMappings(t)
	if err := l.a.d.Deregister(l.from); err != nil {
		t.Fatal(err)
	}
	until(t, "the source is unmapped", func() bool { return pb.pull.mapped == 0 }, l.b)
	if n := countMappings(t); n != before-1 {
		t.Errorf("%d memfds are mapped, want %d", n, before-1)
	}
}

// A connection that its writer ends while the receiver reads gives the source back only when the receiver has stopped, and what was read
// then does not count.
func TestSourceStaysUntilItsReaderHasStopped(t *testing.T) {
	l := newLoans(t, 1<<16)
	l.a.post(l.wr(0, 0, 1<<16, 1))
	l.lent(t, 1)
	l.b.d.midPull = func(read bool) {
		if !read {
			return
		}
		if err := l.a.d.Disconnect(l.a.peer); err != nil {
			t.Error(err)
		}
		l.a.poll()
		if _, ok := l.a.find(provider.KindWrite); ok {
			t.Error("the write has ended while its source was read")
		}
		l.a.d.Arm() // must not be busy for it
	}
	until(t, "the receiver reads", func() bool { return l.dst[0] != 0 }, l.b)
	l.b.d.midPull = nil
	if c := l.a.wait(provider.KindWrite, l.b); c.Status != provider.StatusFlushed {
		t.Errorf("the write ended with %v, want flushed", c.Status)
	}
	l.b.wait(provider.KindPeerDown, l.a)
	if _, ok := l.b.find(provider.KindImm); ok {
		t.Error("an immediate of a write that was flushed while it was read arrived")
	}
}

// A receiver that is stopped while it reads does not hold the source for ever; when it goes on it counts nothing.
func TestStoppedReaderIsWaitedForWithBound(t *testing.T) {
	l := newLoans(t, 1<<16)
	l.a.post(l.wr(0, 0, 1<<16, 1))
	l.lent(t, 1)
	l.b.d.midPull = func(read bool) { // the receiver does nothing until this returns
		if !read {
			return
		}
		if err := l.a.d.Disconnect(l.a.peer); err != nil {
			t.Error(err)
		}
		if c := l.a.wait(provider.KindWrite); c.Status != provider.StatusFlushed {
			t.Errorf("the write ended with %v, want flushed", c.Status)
		}
		l.a.wait(provider.KindPeerDown)
	}
	l.b.wait(provider.KindPeerDown)
	if _, ok := l.b.find(provider.KindImm); ok {
		t.Error("an immediate of a write that was flushed arrived")
	}
}

// A fence of a peer that is reading from us succeeds at once: reading changes nothing.
func TestFenceDoesNotWaitForAReader(t *testing.T) {
	l := newLoans(t, 1<<16)
	l.a.post(l.wr(0, 0, 1<<16, 1))
	l.lent(t, 1)
	l.b.d.midPull = func(read bool) {
		if !read {
			return
		}
		if p := l.a.d.peer(l.a.peer); !p.quiet() || p.sourcesQuiet() {
			t.Errorf("while the peer reads: quiet %v, its sources quiet %v", p.quiet(), p.sourcesQuiet())
		}
	}
	if c := l.b.wait(provider.KindImm); c.Imm != 1 {
		t.Errorf("immediate %d", c.Imm)
	}
}

// A writer that is stopped is read from all the same; one that was killed before is down, and nothing of it counts.
func TestStoppedAndKilledWritersArePulled(t *testing.T) {
	const size = 4 * pullChunk
	for _, kill := range []bool{false, true} {
		s := newSide(t)
		dst, k := s.foreign(size)
		c := startChild(t, s, roleLend, k, size)
		waitStopped(t, c.Pid())
		if kill {
			s.d.midPull = func(read bool) {
				if err := c.Signal(unix.SIGKILL); err != nil && !read {
					t.Error(err)
				}
				<-c.Done()
			}
			if down := s.wait(provider.KindPeerDown); down.Status != provider.StatusPeerDown {
				t.Errorf("KindPeerDown of a killed writer has status %v", down.Status)
			}
			if _, ok := s.find(provider.KindImm); ok {
				t.Error("a write of a killed writer was counted that was not read before")
			}
			continue
		}
		for i := range uint32(lentWrites) {
			if got := s.wait(provider.KindImm); got.Imm != i {
				t.Errorf("immediate %d, want %d", got.Imm, i)
			}
		}
		for i, v := range dst {
			if v != 0xff {
				t.Fatalf("byte %d is %d", i, v)
			}
		}
		if err := c.Signal(unix.SIGCONT); err != nil {
			t.Fatal(err)
		}
		<-c.Done()
		if err := c.Err(); err != nil {
			t.Error(err)
		}
	}
}

// A fence of the writer is a stop of the receiver: what it has not pulled then never lands, and ends as flushed.
func TestFenceStopsPulling(t *testing.T) {
	l := newLoans(t, 4*pullChunk)
	l.a.post(l.wr(0, 0, 4*pullChunk, 1), l.wr(0, 0, 4*pullChunk, 2))
	l.lent(t, 2)
	until(t, "some has landed", func() bool { return l.dst[0] != 0 }, l.b)
	if err := l.b.d.Fence(l.b.peer); err != nil {
		t.Fatal(err)
	}
	if c := l.b.wait(provider.KindFenced); c.Status != provider.StatusOK {
		t.Errorf("the fence ended with %v", c.Status)
	}
	clear(l.dst)
	for range 2 {
		if c := l.a.wait(provider.KindWrite, l.b); c.Status != provider.StatusFlushed {
			t.Errorf("a write ended with %v, want flushed", c.Status)
		}
	}
	for i, v := range l.dst {
		if v != 0 {
			t.Fatalf("byte %d changed after the fence", i)
		}
	}
}

// Memory that is deregistered while a long write is pulled into it is left alone from then on.
func TestDeregisterEndsPulls(t *testing.T) {
	l := newLoans(t, 8*pullChunk)
	l.a.post(l.wr(0, 0, 8*pullChunk, 1))
	l.lent(t, 1)
	until(t, "some has landed", func() bool { return l.dst[0] != 0 }, l.b)
	if err := l.b.d.Deregister(l.to); err != nil {
		t.Fatal(err)
	}
	clear(l.dst)
	if c := l.a.wait(provider.KindWrite, l.b); c.Status != provider.StatusAccess {
		t.Errorf("the write ended with %v, want access", c.Status)
	}
	for i, v := range l.dst {
		if v != 0 {
			t.Fatalf("byte %d changed after Deregister", i)
		}
	}
}

// Many peers that lend at once are served in turns.
func TestPullsAreFair(t *testing.T) {
	const peers, size = 6, 8 * pullChunk
	b := newSide(t)
	_, to := b.foreign(size)
	for range peers {
		a := newSide(t)
		connect(t, a, b)
		b.grant(to)
		_, from := a.foreign(size)
		for i := range uint32(4) {
			a.post(provider.WR{Op: provider.OpWriteImm, Imm: i, LocalKey: from.ID, RemoteKey: to.ID, Len: size})
		}
		until(t, "the loans are published", func() bool { return a.d.peer(a.peer).lend.jobs == 4 }, a)
	}
	got := map[provider.Peer]int{}
	until(t, "everybody's second immediate", func() bool {
		for _, c := range b.got {
			got[c.Peer]++
		}
		b.got = nil
		least, most := 4, 0
		for _, p := range b.d.live {
			least, most = min(least, got[p.handle]), max(most, got[p.handle])
		}
		if most > least+1 {
			t.Fatalf("one peer has had %d writes served when another had %d", most, least)
		}
		return least >= 2
	}, b)
}

// Close waits for a reader of this process's memory, with a bound: afterwards the memory may be given back.
func TestCloseWaitsForReaders(t *testing.T) {
	l := newLoans(t, 1<<16)
	l.a.post(l.wr(0, 0, 1<<16, 1))
	l.lent(t, 1)
	l.b.d.midPull = func(read bool) { // the reader does nothing until this returns
		if !read {
			return
		}
		start := time.Now()
		if err := l.a.d.Close(); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took < fenceBound {
			t.Errorf("Close has returned after %v, while its memory was read", took)
		}
	}
	l.b.wait(provider.KindPeerDown)
	if _, ok := l.b.find(provider.KindImm); ok {
		t.Error("an immediate of a domain that was closed meanwhile arrived")
	}
}
