package tcp

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/internal/cpu"
	"github.com/hawser-project/hawser/provider"
)

// hangGuard ends a test that waits for something that never comes.
const hangGuard = time.Minute

// owner polls domains that share a bell and keeps their completions.
type owner struct {
	t    *testing.T
	bell *cpu.Parker
	doms []*domain
	got  map[*domain][]provider.Completion
}

func newOwner(t *testing.T) *owner {
	t.Helper()
	bell, err := cpu.NewParker()
	if err != nil {
		t.Fatal(err)
	}
	o := &owner{t: t, bell: bell, got: map[*domain][]provider.Completion{}}
	t.Cleanup(func() {
		for _, d := range o.doms {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := bell.Close(); err != nil {
			t.Error(err)
		}
	})
	return o
}

func (o *owner) open() *domain {
	o.t.Helper()
	dom, err := New().Open(o.t.Context(), provider.Device{Name: "127.0.0.1"}, provider.Config{Bell: o.bell})
	if err != nil {
		o.t.Fatal(err)
	}
	d := dom.(*domain)
	o.doms = append(o.doms, d)
	return d
}

func (o *owner) offer(d *domain) (provider.Peer, provider.Addr) {
	o.t.Helper()
	p, a, err := d.Offer()
	if err != nil {
		o.t.Fatal(err)
	}
	return p, a
}

// until polls, and parks when there is nothing to do, until cond holds.
func (o *owner) until(what string, cond func() bool) {
	o.t.Helper()
	var cs [16]provider.Completion
	for deadline := time.Now().Add(hangGuard); !cond(); {
		moved := false
		for _, d := range o.doms {
			n, err := d.Poll(cs[:])
			if err != nil {
				o.t.Fatal(err)
			}
			o.got[d] = append(o.got[d], cs[:n]...)
			moved = moved || n > 0
		}
		if moved {
			continue
		}
		if time.Now().After(deadline) {
			o.t.Fatalf("not within %v: %s", hangGuard, what)
		}
		ready := false
		for _, d := range o.doms {
			ready = d.Arm() || ready
		}
		if !ready {
			o.bell.Park(time.Millisecond)
		}
	}
}

// find is the first completion of a kind that concerns a peer.
func (o *owner) find(d *domain, kind provider.Kind, p provider.Peer) (provider.Completion, bool) {
	for _, c := range o.got[d] {
		if c.Kind == kind && c.Peer == p {
			return c, true
		}
	}
	return provider.Completion{}, false
}

// join connects two domains and returns each one's handle of the other.
func (o *owner) join(a, b *domain) (pa, pb provider.Peer) {
	o.t.Helper()
	pa, addrA := o.offer(a)
	pb, addrB := o.offer(b)
	for _, err := range []error{a.Connect(pa, addrB, true), b.Connect(pb, addrA, false)} {
		if err != nil {
			o.t.Fatal(err)
		}
	}
	o.until("both are up", func() bool {
		_, upA := o.find(a, provider.KindPeerUp, pa)
		_, upB := o.find(b, provider.KindPeerUp, pb)
		return upA && upB
	})
	return pa, pb
}

func (o *owner) register(d *domain, b []byte) provider.Key {
	o.t.Helper()
	k, err := d.Register(provider.Memory{Bytes: b, FD: -1}, provider.AccessRemoteWrite)
	if err != nil {
		o.t.Fatal(err)
	}
	return k
}

func (o *owner) grant(d *domain, k provider.Key, p provider.Peer, n int) provider.Key {
	o.t.Helper()
	g, err := d.Grant(k, p, 0, uint64(n))
	if err != nil {
		o.t.Fatal(err)
	}
	return g
}

// checked is a pair of domains whose connection is tested beside whatever a hostile client does.
type checked struct {
	o    *owner
	a, b *domain
	pa   provider.Peer
	pb   provider.Peer
	src  []byte
	dst  []byte
	key  provider.Key
	from provider.Key
	n    uint64
}

func (o *owner) pair() *checked {
	o.t.Helper()
	c := &checked{o: o, a: o.open(), b: o.open(), src: make([]byte, 4096), dst: make([]byte, 4096)}
	c.pa, c.pb = o.join(c.a, c.b)
	c.from = o.register(c.a, c.src)
	c.key = o.grant(c.b, o.register(c.b, c.dst), c.pb, len(c.dst))
	return c
}

// works checks that a write from a to b arrives.
func (c *checked) works() {
	c.o.t.Helper()
	c.n++
	binary.LittleEndian.PutUint64(c.src, c.n)
	wr := provider.WR{Op: provider.OpWriteImm, Token: 1<<32 + c.n, Peer: c.pa, Len: 4096, LocalKey: c.from.ID, RemoteKey: c.key.ID}
	if n, err := c.a.Post([]provider.WR{wr}); n != 1 || err != nil {
		c.o.t.Fatal(n, err)
	}
	c.o.until("a write of the good peer completes", func() bool {
		for _, got := range c.o.got[c.a] {
			if got.Token == wr.Token {
				if got.Status != provider.StatusOK {
					c.o.t.Fatalf("a write of the good peer ended with %v", got.Status)
				}
				return true
			}
		}
		return false
	})
	if got := binary.LittleEndian.Uint64(c.dst); got != c.n {
		c.o.t.Fatalf("the good peer's bytes are wrong: %d, want %d", got, c.n)
	}
}

// rawPeer is a peer that a test plays by hand on a blocking socket.
type rawPeer struct {
	t  *testing.T
	fd int
	p  provider.Peer // the domain's handle
}

// dial connects a blocking socket with a read timeout to a domain.
func dial(t *testing.T, at netip.AddrPort) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	limit := unix.NsecToTimeval(int64(hangGuard))
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	if err := unix.Connect(fd, sockaddr(at)); err != nil {
		t.Fatal(err)
	}
	return fd
}

// impostor connects to d as an accepted peer.
func (o *owner) impostor(d *domain) *rawPeer {
	o.t.Helper()
	p, addr := o.offer(d)
	theirs, err := parseOffer(addr)
	if err != nil {
		o.t.Fatal(err)
	}
	ours := offer{at: d.at, handle: 1 << provider.PeerIndexBits, secret: [secretSize]byte{1, 2, 3}}
	if err := d.Connect(p, ours.addr(), false); err != nil {
		o.t.Fatal(err)
	}
	r := &rawPeer{t: o.t, fd: dial(o.t, theirs.at), p: p}
	o.t.Cleanup(func() { unix.Close(r.fd) })
	hello := (&greeting{kind: greetHello, handle: theirs.handle, proof: theirs.secret, own: ours.secret}).encode()
	r.write(hello[:])
	o.until("the impostor is up", func() bool { _, ok := o.find(d, provider.KindPeerUp, p); return ok })
	r.read(helloSize)
	return r
}

// write sends all of b, or what the other side takes before it closes.
func (r *rawPeer) write(b []byte) {
	r.t.Helper()
	for len(b) > 0 {
		n, err := unix.SendmsgN(r.fd, b, nil, nil, unix.MSG_NOSIGNAL)
		if err != nil {
			return
		}
		b = b[n:]
	}
}

func (r *rawPeer) read(n int) []byte {
	r.t.Helper()
	b := make([]byte, n)
	for at := 0; at < n; {
		k, err := unix.Read(r.fd, b[at:])
		if k <= 0 || err != nil {
			r.t.Fatalf("read %d of %d bytes: %v", at, n, err)
		}
		at += k
	}
	return b
}

// skip reads what there is.
func (r *rawPeer) skip() {
	b := make([]byte, 1<<16)
	for {
		if n, _, err := unix.Recvfrom(r.fd, b, unix.MSG_DONTWAIT); n <= 0 || err != nil {
			return
		}
	}
}

func encode(hs ...header) (b []byte) {
	for i := range hs {
		b = append(b, make([]byte, headerSize)...)
		hs[i].put(b[len(b)-headerSize:])
	}
	return b
}
