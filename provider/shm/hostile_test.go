package shm

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/internal/ring"
	"github.com/hawser-project/hawser/mem"
	"github.com/hawser-project/hawser/provider"
)

// hostile is a victim with two peers: one that breaks the protocol and one that keeps to it.
type hostile struct {
	victim, evil, good *side
	evilPeer           provider.Peer // the victim's handle of evil; victim.peer is its handle of good
}

func newHostile(t *testing.T) *hostile {
	h := &hostile{victim: newSide(t), evil: newSide(t), good: newSide(t)}
	connect(t, h.evil, h.victim)
	h.evilPeer = h.victim.peer
	connect(t, h.good, h.victim)
	return h
}

// p is evil's end of its connection.
func (h *hostile) p() *peer { return h.evil.d.peer(h.evil.peer) }

// wantBreach polls the victim, but not evil, until evil's connection is down, and checks that the other one still works.
func (h *hostile) wantBreach(t *testing.T) {
	t.Helper()
	down := h.victim.wait(provider.KindPeerDown)
	if down.Peer != h.evilPeer || down.Status != provider.StatusProtocol {
		t.Errorf("KindPeerDown of peer %#x with status %v, want %#x with protocol", down.Peer, down.Status, h.evilPeer)
	}
	h.wantGoodUnhurt(t)
	if err := h.victim.d.Fence(h.evilPeer); err != nil {
		t.Fatal(err)
	}
	if c := h.victim.wait(provider.KindFenced); c.Status != provider.StatusOK {
		t.Errorf("fence of a peer that broke the protocol ended with %v", c.Status)
	}
	if c := h.evil.wait(provider.KindPeerDown); c.Status != provider.StatusPeerDown {
		t.Errorf("the other side's KindPeerDown has status %v, want peer-down", c.Status)
	}
}

func (h *hostile) wantGoodUnhurt(t *testing.T) {
	t.Helper()
	h.victim.got = nil
	h.good.post(provider.WR{Op: provider.OpWriteImm, Imm: 77})
	if c := h.victim.wait(provider.KindImm, h.good); c.Imm != 77 || c.Peer != h.victim.peer {
		t.Errorf("the well-behaved peer's immediate is %+v", c)
	}
	h.victim.post(provider.WR{Op: provider.OpWriteImm, Imm: 78})
	if c := h.good.wait(provider.KindImm, h.victim); c.Imm != 78 {
		t.Errorf("the immediate to the well-behaved peer is %+v", c)
	}
}

func TestHostileRingsCostTheirOwnerTheConnection(t *testing.T) {
	put := func(b []byte, at uintptr, v uint64) { binary.NativeEndian.PutUint64(b[at:], v) }
	lane0, lane1 := unsafe.Offsetof(pairPage{}.lanes), unsafe.Offsetof(pairPage{}.lanes)+unsafe.Sizeof(lane{})
	slots, areas := unsafe.Offsetof(pairPage{}.slots), unsafe.Offsetof(pairPage{}.areas)
	msgs := unsafe.Offsetof(lane{}.msgs)
	const tail = ring.Line // offset of the reader's word in a SharedIndex
	for name, attack := range map[string]func(h *hostile, page []byte){
		"immediates: entry of another lap": func(_ *hostile, page []byte) { put(page, slots+8, 2<<32) },
		"immediates: length too long": func(_ *hostile, page []byte) {
			put(page, slots, maxMsg+1)
			put(page, slots+8, 1<<32|5)
		},
		"messages: head past the area": func(_ *hostile, page []byte) { put(page, lane0+msgs, areaSize+8) },
		"messages: frame without mark": func(_ *hostile, page []byte) { put(page, lane0+msgs, 16) },
		"messages: frame too long": func(_ *hostile, page []byte) {
			put(page, areas, 0x4d534721<<32|(maxSend+1))
			put(page, lane0+msgs, areaSize)
		},
		"tail of the victim's immediates": func(h *hostile, page []byte) {
			put(page, lane1+tail, 1<<20)
			for range ringEntries + 1 { // until it looks at the tail
				if n, err := h.victim.d.Post([]provider.WR{{Op: provider.OpWriteImm, Peer: h.evilPeer}}); err != nil || n == 0 {
					break
				}
				h.victim.poll()
			}
		},
		"tail of the victim's messages": func(h *hostile, page []byte) {
			put(page, lane1+msgs+tail, 1<<40)
			if _, err := h.victim.d.Post([]provider.WR{{Op: provider.OpSend, Peer: h.evilPeer}}); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHostile(t)
			if n, err := h.victim.d.Post([]provider.WR{{Op: provider.OpRecv}}); n != 1 || err != nil {
				t.Fatal(n, err)
			}
			attack(h, h.p().pairMem)
			h.wantBreach(t)
		})
	}
}

// TestScribbledPagesPanicNobody writes random words all over the shared page while both sides work. Whatever it does to this
// connection, the process survives and the other connection works.
func TestScribbledPagesPanicNobody(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	words := []uint64{0, 1, 2, 8, 511, 512, 513, 1 << 17, 1 << 32, 1 << 63, 1<<64 - 1, 1<<32 | 7, 2 << 32, 0x4d534721<<32 | 100}
	for range 200 {
		h := newHostile(t)
		span, k := h.victim.memory(4096)
		if _, err := h.victim.d.Grant(k, h.evilPeer, 0, 4096); err != nil {
			t.Fatal(err)
		}
		page := h.p().pairMem
		for range 20 {
			at := rng.IntN(int(unsafe.Offsetof(pairPage{}.slots))) // the control words
			if rng.IntN(2) == 0 {
				at = rng.IntN(len(page))
			}
			binary.NativeEndian.PutUint64(page[min(at&^7, len(page)-8):], words[rng.IntN(len(words))])
			_, _ = h.victim.d.Post([]provider.WR{
				{Op: provider.OpRecv, LocalKey: k.ID, Len: 4096},
				{Op: provider.OpWriteImm, Peer: h.evilPeer},
				{Op: provider.OpSend, Peer: h.evilPeer, LocalKey: k.ID, Len: 100},
			})
			_, _ = h.evil.d.Post([]provider.WR{{Op: provider.OpWriteImm, Peer: h.evil.peer, Len: 8, RemoteKey: k.ID}})
			h.victim.poll()
			h.evil.poll()
		}
		h.wantGoodUnhurt(t)
		_ = span
		for _, s := range []*side{h.victim, h.evil, h.good} {
			if err := s.d.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// otherFile is a descriptor that is no memfd.
func otherFile(t *testing.T) int {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return int(w.Fd())
}

// unsealed is a memfd that its holder could cut.
func unsealed(t *testing.T, size int64) int {
	t.Helper()
	fd, err := unix.MemfdCreate("unsealed", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err == nil {
		err = unix.Ftruncate(fd, size)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func sealed(t *testing.T, size uint64) int {
	t.Helper()
	fd, b, err := newPage("test", size, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unmap(b); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// raw sends bytes as they are.
func raw(t *testing.T, fd int, b []byte, fds ...int) {
	t.Helper()
	if err := unix.Sendmsg(fd, b, unix.UnixRights(fds...), nil, unix.MSG_DONTWAIT); err != nil {
		t.Fatal(err)
	}
}

func TestHostileDatagramsCostTheirSenderTheConnection(t *testing.T) {
	grant := func(size uint64) []byte {
		return (&datagram{kind: kindGrant, region: regionKey(0, 1), size: size}).append(nil)
	}
	for name, tc := range map[string]struct {
		b   []byte
		fds []int
	}{
		"empty":                         {},
		"unknown kind":                  {b: []byte{99}},
		"longer than any":               {b: make([]byte, 500)},
		"short grant":                   {b: grant(4096)[:9], fds: []int{sealed(t, 4096)}},
		"hello on a connection":         {b: (&datagram{kind: kindHello}).append(nil), fds: []int{0, 0, 0}},
		"welcome on a connection":       {b: []byte{byte(kindWelcome)}, fds: []int{0, 0}},
		"sweep with a descriptor":       {b: []byte{byte(kindSweep)}, fds: []int{0}},
		"grant without a descriptor":    {b: grant(4096)},
		"grant with two descriptors":    {b: grant(4096), fds: []int{sealed(t, 4096), sealed(t, 4096)}},
		"grant of a pipe":               {b: grant(4096), fds: []int{otherFile(t)}},
		"grant of a memfd without seal": {b: grant(4096), fds: []int{unsealed(t, 4096)}},
		"grant beyond the memfd":        {b: grant(4097), fds: []int{sealed(t, 4096)}},
		"grant of a huge size":          {b: grant(1 << 61), fds: []int{sealed(t, 4096)}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHostile(t)
			before := countFDs(t)
			raw(t, h.p().fd, tc.b, tc.fds...)
			h.wantBreach(t)
			if after := countFDs(t); after > before {
				t.Errorf("%d descriptors are open, %d were before", after, before)
			}
		})
	}
}

func TestManyDescriptorsAreDropped(t *testing.T) {
	h := newHostile(t)
	before := countFDs(t)
	fd := sealed(t, 4096)
	fds := make([]int, 200)
	for i := range fds {
		fds[i] = fd
	}
	// The kernel drops those for which the buffer has no room. That looks as if this process had too many open, which is no
	// fault of the peer: the grant is of no use, the connection lives.
	m := datagram{kind: kindGrant, region: regionKey(0, 1), size: 4096}
	raw(t, h.p().fd, m.append(nil), fds...)
	_, src := h.victim.memory(64)
	if n, err := h.victim.d.Post([]provider.WR{{Op: provider.OpWrite, Peer: h.evilPeer, Len: 8, LocalKey: src.ID, RemoteKey: m.region}}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if c := h.victim.wait(provider.KindWrite); c.Status != provider.StatusAccess {
		t.Errorf("a write with a grant that could not be taken ended with %v, want access", c.Status)
	}
	h.wantGoodUnhurt(t)
	if after := countFDs(t); after > before+3 { // sealed's, memory's and its duplicate
		t.Errorf("%d descriptors are open, %d were before", after, before)
	}
}

// TestHostileHello sends what is not a hello, and hellos that are wrong in one thing, to a domain that waits for a connection.
func TestHostileHello(t *testing.T) {
	evil := newSide(t)
	bell, page := evil.bell.FD(), evil.d.pageFD
	for name, tc := range map[string]struct {
		change  func(m *datagram)
		fds     []int // nil: good ones
		refused bool  // the handle that waited is lost: the secret was right
	}{
		"not a hello":         {change: func(m *datagram) { m.kind = kindSweep }, fds: []int{}},
		"unknown handle":      {change: func(m *datagram) { m.handle += 5 }},
		"wrong secret":        {change: func(m *datagram) { m.to[15] ^= 1 }},
		"wrong own secret":    {change: func(m *datagram) { m.from[0] ^= 1 }},
		"too few descriptors": {fds: []int{sealed(t, pairPageSize), page}},
		"pair page unsealed":  {fds: []int{unsealed(t, int64(pairPageSize)), page, bell}, refused: true},
		"pair page too short": {fds: []int{sealed(t, pairPageSize-4096), page, bell}, refused: true},
		"bell page unsealed":  {fds: []int{sealed(t, pairPageSize), unsealed(t, int64(bellPageSize)), bell}, refused: true},
		"bell is a pipe":      {fds: []int{sealed(t, pairPageSize), page, otherFile(t)}, refused: true},
		"bell is a memfd":     {fds: []int{sealed(t, pairPageSize), page, page}, refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			victim, friend := newSide(t), newSide(t)
			pv, addrV, errV := victim.d.Offer()
			pf, addrF, errF := friend.d.Offer()
			if err := errors.Join(errV, errF, victim.d.Connect(pv, addrF, false)); err != nil {
				t.Fatal(err)
			}
			v, errV := decodeAddr(addrV)
			f, errF := decodeAddr(addrF)
			fd, err := dial(v.name)
			if err := errors.Join(errV, errF, err); err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fd)
			m := datagram{kind: kindHello, handle: pv, to: v.secret, from: f.secret}
			if tc.change != nil {
				tc.change(&m)
			}
			fds := tc.fds
			if fds == nil {
				fds = []int{sealed(t, pairPageSize), page, bell}
			}
			raw(t, fd, m.append(nil), fds...)
			until(t, "the stranger is turned away", func() bool { return ended(fd) }, victim)
			if tc.refused {
				if c := victim.wait(provider.KindPeerDown); c.Status != provider.StatusRefused {
					t.Errorf("KindPeerDown has status %v, want refused", c.Status)
				}
				return
			}
			if err := friend.d.Connect(pf, addrV, true); err != nil {
				t.Fatal(err)
			}
			friend.wait(provider.KindPeerUp, victim)
			victim.wait(provider.KindPeerUp, friend)
		})
	}
}

func TestStrangersAreBounded(t *testing.T) {
	s := newSide(t)
	before := countFDs(t)
	var fds []int
	for range 3 * maxStrangers {
		fd, err := dial(s.d.name)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		fds = append(fds, fd)
	}
	until(t, "the oldest are turned away", func() bool { return ended(fds[2*maxStrangers-1]) }, s)
	if held := countFDs(t) - before - len(fds); held > maxStrangers {
		t.Errorf("%d strangers are kept, want at most %d", held, maxStrangers)
	}
	if ended(fds[len(fds)-1]) {
		t.Error("the youngest stranger was turned away")
	}
}

func TestMemoryWithoutSealsIsRefused(t *testing.T) {
	s := newSide(t)
	fd := unsealed(t, 4096)
	b, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(b) }()
	if _, err := s.d.Register(provider.Memory{Bytes: b, FD: fd}, provider.AccessRemoteWrite); !errors.Is(err, provider.ErrInvalid) {
		t.Errorf("register of an unsealed memfd for peers returned %v, want ErrInvalid", err)
	}
	if _, err := s.d.Register(provider.Memory{Bytes: b, FD: fd}, 0); err != nil {
		t.Errorf("register of an unsealed memfd as a local side returned %v", err)
	}
	good, err := mem.New(4096, mem.Shared)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = good.Free() }()
	if _, err := s.d.Register(provider.Memory{Bytes: make([]byte, 8192), FD: good.FD()}, provider.AccessRemoteWrite); !errors.Is(err, provider.ErrInvalid) {
		t.Errorf("register of more than the memfd holds returned %v, want ErrInvalid", err)
	}
}

func TestPeersCannotWriteTheBellPage(t *testing.T) {
	a, b := newPair(t)
	_ = b
	if _, err := mapPage(a.d.pageFD, bellPageSize, unix.PROT_READ|unix.PROT_WRITE); err == nil {
		t.Fatal("the bell page can be mapped for writing by whoever has its descriptor")
	}
}

func countFDs(t testing.TB) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(fds)
}
