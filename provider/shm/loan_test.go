package shm

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/internal/ring"
	"github.com/hawser-project/hawser/provider"
)

// A source that is not there fails its own write, and only that.
func TestLyingWritersHurtThemselves(t *testing.T) {
	l := newLoans(t, 1<<16)
	p := l.a.d.peer(l.a.peer)
	for name, lie := range map[string]struct {
		change func(*loan)
		want   provider.Status
		errno  unix.Errno
	}{
		"nothing is there": {func(n *loan) { n.addr = 4096 }, provider.StatusLocal, unix.EFAULT},
		"of the kernel":    {func(n *loan) { n.addr = 1<<64 - 4096 }, provider.StatusLocal, unix.EFAULT},
		"no such key":      {func(n *loan) { n.key = regionKey(77, 1) }, provider.StatusAccess, 0},
		"key past table":   {func(n *loan) { n.key = regionKey(1<<31, 1) }, provider.StatusAccess, 0},
		"old generation":   {func(n *loan) { n.key -= 2 << 32 }, provider.StatusAccess, 0},
		"key 0":            {func(n *loan) { n.key = 0 }, provider.StatusAccess, 0},
		"past the end":     {func(n *loan) { n.at = 1<<16 - 99 }, provider.StatusAccess, 0},
		"offset wraps":     {func(n *loan) { n.at = 1<<64 - 50 }, provider.StatusAccess, 0},
	} {
		l.a.got, l.b.got = nil, nil
		clear(l.dst)
		l.a.post(l.wr(0, 0, 100, 1), l.wr(200, 200, 100, 2), l.wr(400, 400, 100, 3))
		l.lent(t, 3)
		lie.change(&p.lend.loans[(p.lend.put-2)%peerDepth])
		for i, want := range []provider.Status{provider.StatusOK, lie.want, provider.StatusOK} {
			if c := l.a.wait(provider.KindWrite, l.b); c.Status != want || want != provider.StatusOK && c.Detail != uint32(lie.errno) {
				t.Errorf("%s: write %d ended with %v, detail %d, want %v, %d", name, i, c.Status, c.Detail, want, lie.errno)
			}
		}
		if len(l.b.got) != 2 || l.b.got[0].Imm != 1 || l.b.got[1].Imm != 3 {
			t.Errorf("%s: the receiver has %+v, want immediates 1 and 3", name, l.b.got)
		}
		if !bytes.Equal(l.dst[:100], l.src[:100]) || !bytes.Equal(l.dst[400:500], l.src[400:500]) || l.dst[100] != 0 || l.dst[250] != 0 {
			t.Errorf("%s: the destination is not what was written", name)
		}
	}
}

// A key that was granted to one peer is of no use to another one, whatever that one's tables say.
func TestLoansNeedAGrantToTheirWriter(t *testing.T) {
	h := newHostile(t)
	dst, k := h.victim.foreign(4096)
	h.victim.grant(k) // to the good one
	src, from := h.evil.foreign(4096)
	src[0] = 9
	h.p().noteForeign(&packet{datagram: datagram{region: k.ID, size: 4096}})
	h.evil.post(provider.WR{Op: provider.OpWriteImm, LocalKey: from.ID, RemoteKey: k.ID, Len: 64})
	if c := h.evil.wait(provider.KindWrite, h.victim); c.Status != provider.StatusAccess {
		t.Errorf("a write without a grant ended with %v", c.Status)
	}
	if dst[0] != 0 || len(h.victim.got) != 0 {
		t.Errorf("it has landed: byte 0 is %d, the receiver has %+v", dst[0], h.victim.got)
	}
	h.wantGoodUnhurt(t)
}

// Entries that no writer makes, and answers that no receiver gives, end the connection.
func TestGarbageInLoansIsABreach(t *testing.T) {
	for name, e := range map[string]ring.Entry{
		"length too long":       {A: loanBit | maxMsg + 1},
		"plain and not a loan":  {A: plainBit | 5},
		"every bit":             {A: 1<<64 - 1},
		"a bit between":         {A: loanBit | 1<<50},
		"too long, not a loan":  {A: maxMsg + 1},
		"plain, longer, a loan": {A: flagBits | maxMsg + 1},
	} {
		t.Run(name, func(t *testing.T) {
			for _, behind := range []bool{false, true} {
				h := newHostile(t)
				if behind {
					h.p().immOut.Put(ring.Entry{A: loanBit}) // a loan of 0 bytes
				}
				h.p().immOut.Put(e)
				h.p().immOut.Publish()
				h.wantBreach(t)
			}
		})
	}
	for name, lie := range map[string]func(p *peer){
		"more answers than loans": func(p *peer) { p.rx.answered.Store(2) },
		"answers go back":         func(p *peer) { p.rx.answered.Store(1<<64 - 1) },
		"impossible answer": func(p *peer) {
			p.pull.to[0].Store(uint32(provider.StatusPeerDown))
			p.rx.answered.Store(1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHostile(t)
			_, from := h.victim.foreign(4096)
			_, to := h.evil.foreign(4096)
			h.evil.grant(to)
			wr := provider.WR{Op: provider.OpWrite, Peer: h.evilPeer, LocalKey: from.ID, RemoteKey: to.ID, Len: 64}
			if n, err := h.victim.d.Post([]provider.WR{wr}); n != 1 || err != nil {
				t.Fatal(n, err)
			}
			until(t, "the loan is published", func() bool { return h.victim.d.peer(h.evilPeer).lend.jobs == 1 }, h.victim)
			lie(h.p())
			h.wantBreach(t)
		})
	}
}

// What a peer answered before it broke the protocol has ended once, and nothing is left for the next connection in its place.
func TestBreachAfterAnAnswer(t *testing.T) {
	h := newHostile(t)
	_, from := h.victim.foreign(4096)
	_, to := h.evil.foreign(4096)
	h.evil.grant(to)
	const writes = 3
	for i := range uint64(writes) {
		wr := provider.WR{Op: provider.OpWrite, Token: 100 + i, Peer: h.evilPeer, LocalKey: from.ID, RemoteKey: to.ID, Len: 64}
		if n, err := h.victim.d.Post([]provider.WR{wr}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	p := h.victim.d.peer(h.evilPeer)
	until(t, "the loans are published", func() bool { return p.lend.jobs == writes }, h.victim)
	h.p().pull.to[0].Store(uint32(provider.StatusOK))
	h.p().pull.to[1].Store(uint32(provider.StatusPeerDown))
	h.p().rx.answered.Store(2)
	ended := func(c provider.Completion) bool { return c.Kind == provider.KindPeerDown }
	until(t, "the connection ends", func() bool { return slices.ContainsFunc(h.victim.got, ended) }, h.victim)
	ends := map[uint64]provider.Status{}
	for _, c := range h.victim.got {
		if c.Kind != provider.KindWrite {
			continue
		}
		if _, twice := ends[c.Token]; twice {
			t.Errorf("write %d has ended twice", c.Token)
		}
		ends[c.Token] = c.Status
	}
	want := map[uint64]provider.Status{100: provider.StatusOK, 101: provider.StatusFlushed, 102: provider.StatusFlushed}
	if !maps.Equal(ends, want) {
		t.Errorf("writes ended with %v, want %v", ends, want)
	}
	if p.writes.len() != 0 || p.lend.jobs != 0 || p.out != 0 {
		t.Errorf("%d writes, %d loans, %d operations are left", p.writes.len(), p.lend.jobs, p.out)
	}
	h.wantBreach(t)
}

// A write that this side refuses keeps its owner awake until its end is delivered.
func TestRefusedLoanIsNotForgotten(t *testing.T) {
	l := newLoans(t, 4096)
	l.a.post(l.wr(0, 0, 100, 1))
	l.a.wait(provider.KindWrite, l.b) // the grant is known
	wr := l.wr(0, 0, 100, 1)
	wr.LocalKey += 1 << 32 // another generation
	if !l.a.d.enqueue(&wr) {
		t.Fatal("the queue is full")
	}
	p := l.a.d.peer(l.a.peer)
	l.a.d.lendWrites(p) // and the budget is spent
	if p.lend.jobs != 1 || !l.a.d.runnable() {
		t.Errorf("%d loans, runnable %v, want 1 and true", p.lend.jobs, l.a.d.runnable())
	}
}

// Another process with the peer's number, or another program in it, is not taken for the peer: what was read does not count.
func TestPullsProveTheProcess(t *testing.T) {
	for name, change := range map[string]func(p *peer){
		"other program":   func(p *peer) { p.pull.proof.value[3]++ },
		"nothing there":   func(p *peer) { p.pull.proof.addr = 4096 },
		"no such process": func(p *peer) { p.pull.pid = 1<<22 + 5 },
	} {
		l := newLoans(t, 4096)
		l.a.post(l.wr(0, 0, 100, 1))
		l.lent(t, 1)
		change(l.b.d.peer(l.b.peer))
		if c := l.b.wait(provider.KindPeerDown); c.Status != provider.StatusPeerDown {
			t.Errorf("%s: KindPeerDown has status %v", name, c.Status)
		}
		if _, ok := l.b.find(provider.KindImm); ok {
			t.Errorf("%s: its immediate was counted", name)
		}
		if c := l.a.wait(provider.KindWrite, l.b); c.Status != provider.StatusFlushed {
			t.Errorf("%s: the write ended with %v, want flushed", name, c.Status)
		}
	}
}

// Where the kernel forbids to read the peer's memory, the grant is refused with the remedy, and everything else works.
func TestGrantWithoutPermissionNamesTheRemedy(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread is useless to others afterwards
	dropPtrace(t)
	s := newSide(t)
	_, k := s.memory(4096)
	c := startChild(t, s, roleHide, k, 4096)
	_, foreign := s.foreign(4096)
	_, err := s.d.Grant(foreign, s.peer, 0, 4096)
	if !errors.Is(err, provider.ErrUnsupported) || !errors.Is(err, unix.EPERM) {
		t.Fatalf("grant returned %v, want ErrUnsupported and EPERM", err)
	}
	for _, want := range []string{"CAP_SYS_PTRACE", "PR_SET_DUMPABLE"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
	s.post(provider.WR{Op: provider.OpWriteImm, Imm: answerImm, LocalKey: k.ID, RemoteKey: c.key.ID, Len: 100})
	if got := s.wait(provider.KindWrite); got.Status != provider.StatusOK {
		t.Errorf("a write to memory with a memfd ended with %v", got.Status)
	}
	s.wait(provider.KindImm)
	if err := c.Stop(hangGuard); err != nil {
		t.Fatal(err)
	}
}

// dropPtrace takes CAP_SYS_PTRACE from the calling thread.
func dropPtrace(t *testing.T) {
	t.Helper()
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		t.Fatal(err)
	}
	data[0].Effective &^= 1 << unix.CAP_SYS_PTRACE
	data[0].Permitted &^= 1 << unix.CAP_SYS_PTRACE
	if err := unix.Capset(&hdr, &data[0]); err != nil {
		t.Fatal(err)
	}
}

// A child of fork must not have the proof of its parent, whose number it may get one day.
func TestProofIsNotInherited(t *testing.T) {
	p, page, err := newProof()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unmap(page); err != nil {
			t.Error(err)
		}
	}()
	if !bytes.Equal(page[:proofSize], p.value[:]) || p.value == [proofSize]byte{} {
		t.Errorf("the proof is %x, its page has %x", p.value, page[:proofSize])
	}
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	_, own, found := strings.Cut(string(smaps), fmt.Sprintf("\n%x-", p.addr))
	_, flags, _ := strings.Cut(own, "VmFlags:")
	flags, _, _ = strings.Cut(flags, "\n")
	if !found || !strings.Contains(flags, " dc") {
		t.Errorf("the page is mapped with flags %q, want dc: not copied by fork", flags)
	}
}

// A source that its writer could make shorter would kill whoever copies from it: showing one is a breach.
func TestUnsealedSourcesAreABreach(t *testing.T) {
	h := newHostile(t)
	fd, err := unix.MemfdCreate("unsealed", unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, 4096); err != nil {
		t.Fatal(err)
	}
	if err := send(h.p().fd, &datagram{kind: kindSource, region: regionKey(1, 1), size: 4096}, fd); err != nil {
		t.Fatal(err)
	}
	h.wantBreach(t)
}

// FuzzLoans lets a writer announce anything: it costs it the connection at most, and no byte outside of what it was granted changes.
func FuzzLoans(f *testing.F) {
	f.Add(uint64(loanBit|100), uint64(0), uint64(0), uint64(1<<32), uint64(0))
	f.Add(uint64(flagBits|4096), uint64(1), uint64(0), uint64(1<<32), uint64(1))
	f.Add(uint64(1<<63|1<<40), uint64(0), uint64(1<<64-1), uint64(0), uint64(4096))
	f.Fuzz(func(t *testing.T, a, addr, at, key, off uint64) {
		e := ring.Entry{A: a, B: 5}
		n := loan{addr: addr, key: key, at: at}
		var j pulled
		if j.decode(e, n) && (j.len > maxMsg || j.lent && j.loan != n || !j.lent && (j.loan != loan{} || j.plain)) {
			t.Fatalf("%+v and %+v decode to %+v", e, n, j)
		}
		h := newHostile(t)
		whole, _ := h.victim.foreign(3 * pageSize)
		k, err := h.victim.d.Register(provider.Memory{Bytes: whole[pageSize : 2*pageSize], FD: -1}, provider.AccessRemoteWrite)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := h.victim.d.Grant(k, h.evilPeer, 0, 0); err != nil {
			t.Fatal(err)
		}
		src, _ := h.evil.foreign(2 * pageSize)
		for i := range src {
			src[i] = 7
		}
		p := h.p()
		for i, l := range []loan{n, {addr: address0(src), key: k.ID, at: off}} {
			p.lend.loans[i] = l
			p.immOut.Put(e)
		}
		p.immOut.Publish()
		for range 10 {
			h.victim.poll()
		}
		for i, v := range whole {
			if v != 0 && i/pageSize != 1 {
				t.Fatalf("byte %d, which was not granted, is %d", i, v)
			}
		}
		h.wantGoodUnhurt(t)
		for _, s := range []*side{h.victim, h.evil, h.good} {
			if err := s.d.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// The structures in the page have the layout that both sides know.
func TestLoansFitTheirPage(t *testing.T) {
	if n := unsafe.Sizeof(loan{}); n != 40 {
		t.Errorf("a loan has %d bytes, want 40", n)
	}
	if off := unsafe.Offsetof(pairPage{}.slots); off != pageSize {
		t.Errorf("the slots begin at %d, want %d: the lanes have outgrown their page", off, pageSize)
	}
}
