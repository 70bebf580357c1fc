package hawser_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/internal/wire"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/tcp"
)

// Warm connects to everybody at once. Who cannot be reached has an error of its own, and costs the others nothing.
func TestWarmConnectsToAll(t *testing.T) {
	w := newWorld(t, "sim")
	a := w.engine(t, 0, 1)
	var addrs []string
	var all []*hawser.Engine
	for i := range 20 {
		e := w.engine(t, i+1, 1)
		all = append(all, e)
		addrs = append(addrs, e.Addr())
	}
	if err := all[7].Close(testContext(t)); err != nil {
		t.Fatal(err)
	}
	addrs = append(addrs, "nonsense")
	peers, err := a.Warm(testContext(t), addrs...)
	if !errors.Is(err, hawser.ErrPeerDown) || !errors.Is(err, hawser.ErrInvalid) || strings.Count(err.Error(), "warm: address") != 2 ||
		!strings.Contains(err.Error(), "address 7") || !strings.Contains(err.Error(), "address 20") {
		t.Fatalf("errors: %v", err)
	}
	for i, p := range peers {
		if i == 7 || i == 20 {
			if p != nil {
				t.Errorf("address %d has a peer", i)
			}
		} else if p == nil || p.ID() != all[i].ID() || !p.Up() {
			t.Errorf("address %d: %v", i, p)
		}
	}
	for _, st := range a.Stats().Peers {
		if st.Up && (st.ConnectTime <= 0 || st.ConnectTime > hang) {
			t.Errorf("connected in %v", st.ConnectTime)
		}
	}
	if peers, err := a.Warm(testContext(t)); len(peers) != 0 || err != nil {
		t.Errorf("nobody: %v, %v", peers, err)
	}
	if st := all[0].Stats().Peers[0]; st.ConnectTime <= 0 {
		t.Errorf("the side that was dialed: connected in %v", st.ConnectTime)
	}
}

// Each side says which versions it speaks; the highest common one wins, and none is a refusal that names both ranges.
func TestVersionsAreNegotiated(t *testing.T) {
	for _, tc := range []struct {
		min, max uint16
		want     uint16 // 0: refused
	}{
		{1, 1, 1}, {1, 9, 1}, {0, 1, 1}, {0, 65535, 1}, {2, 9, 0}, {0, 0, 0}, {3, 1, 0},
	} {
		x, e := simPuppet(t, nil)
		conn, err := net.Dial("tcp", e.ListenAddrs()[0])
		if err != nil {
			t.Fatal(err)
		}
		x.conn = conn
		_ = conn.SetDeadline(time.Now().Add(hang))
		x.send(wire.TypeHello, 0, &wire.Hello{Magic: wire.Magic, Min: tc.min, Max: tc.max, ID: x.id})
		if tc.want != 0 {
			var w wire.Welcome
			if x.read(wire.TypeWelcome, &w); w.Version != tc.want {
				t.Errorf("%d to %d: version %d, want %d", tc.min, tc.max, w.Version, tc.want)
			}
			continue
		}
		var r wire.Refuse
		x.read(wire.TypeRefuse, &r)
		if want := fmt.Sprintf("%d to %d, this side 1 to 1", tc.min, tc.max); r.Code != wire.RefuseVersion || !strings.Contains(r.Text, want) {
			t.Errorf("%d to %d: refused with %d: %s", tc.min, tc.max, r.Code, r.Text)
		}
		eventually(t, "the refusal is counted", func() bool { return e.Stats().Refused[hawser.RefusedVersion] == 1 })
	}
}

// optional makes a frame of a type that nobody knows, which need not be known.
func optional(payload int) []byte {
	f := wire.AppendRaw(nil, 999, 0, make([]byte, payload))
	f[6] |= byte(wire.FlagOptional)
	return f
}

// Messages of later versions: those that are marked optional are skipped, in a handshake and after it; others end the connection.
func TestUnknownMessages(t *testing.T) {
	x, e := simPuppet(t, nil)
	say := func(b []byte) {
		t.Helper()
		if _, err := x.conn.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	x.greet(e)
	for range 3 {
		say(optional(100))
	}
	x.prove()
	x.proposal()
	say(optional(0))
	x.offer()
	x.connect()
	say(optional(wire.MaxPayload))
	x.send(wire.TypeLinksDone, 0, &wire.LinksDone{})
	x.read(wire.TypeUp, nil)
	for range 100 {
		say(optional(1000))
	}
	x.send(wire.TypeRevoke, 5, &wire.Revoke{})
	x.read(wire.TypeRevoked, &wire.Revoked{})
	say(wire.AppendRaw(nil, 999, 0, nil))
	var bye wire.Bye
	if x.read(wire.TypeBye, &bye); !strings.Contains(bye.Reason, "unknown type 999") {
		t.Errorf("goodbye: %s", bye.Reason)
	}
	x.closed()
	eventually(t, "the end is counted", func() bool { return e.Stats().Refused[hawser.RefusedProtocol] == 1 })

	x.hangUp()
	x.greet(e) // a handshake of nothing but messages that need not be understood
	for range 100 {
		if _, err := x.conn.Write(optional(0)); err != nil {
			break
		}
	}
	x.closed()
	eventually(t, "the end is counted", func() bool { return e.Stats().Refused[hawser.RefusedProtocol] == 2 })
}

// What strangers and peers do wrong is counted by reason, and each reason has a line in the log.
func TestRefusalsAreCountedByReason(t *testing.T) {
	var log syncBuffer
	x, e := simPuppet(t, func(o *hawser.Options) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	hello := func(change func(*wire.Hello)) []byte {
		h := &wire.Hello{Magic: wire.Magic, Min: 1, Max: 1, ID: x.id, Rails: []wire.Rail{{Provider: "carrier pigeon"}}}
		change(h)
		return append(wire.AppendFrame(nil, wire.TypeHello, 0, h), wire.AppendFrame(nil, wire.TypeAuth, 0, &wire.Auth{})...)
	}
	for reason, first := range map[string][]byte{
		hawser.RefusedMalformed: []byte("GET / HTTP/1.1\r\nHost: nobody\r\n\r\n"),
		hawser.RefusedVersion:   hello(func(h *wire.Hello) { h.Min, h.Max = 7, 7 }),
		hawser.RefusedIdentity:  hello(func(h *wire.Hello) { h.Want = wire.ID{1} }),
		hawser.RefusedKey:       hello(func(h *wire.Hello) { h.Keyed = 1 }),
		hawser.RefusedPath:      hello(func(*wire.Hello) {}),
		hawser.RefusedProtocol:  wire.AppendFrame(nil, wire.TypeBeat, 0, nil),
		hawser.RefusedLost:      hello(func(*wire.Hello) {})[:50],
	} {
		conn, err := net.Dial("tcp", e.ListenAddrs()[0])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(first); err != nil {
			t.Fatal(err)
		}
		if reason == hawser.RefusedLost {
			_ = conn.Close()
		}
		eventually(t, reason+" is counted", func() bool { return e.Stats().Refused[reason] == 1 })
		eventually(t, reason+" is logged", func() bool { return strings.Contains(log.String(), "reason="+reason) })
		_ = conn.Close()
	}
	for reason, send := range map[string]func(){
		hawser.RefusedBulk:      func() { x.send(wire.TypeBulkOffer, 1, &wire.BulkOffer{Len: 1 << 40}) },
		hawser.RefusedMalformed: func() { x.send(wire.TypeResolve, 1, &wire.Bye{Reason: "?"}) },
		hawser.RefusedLink:      func() { x.send(wire.TypeLink, 1, &wire.LinkNotice{Step: wire.LinkReport, Link: 60, Epoch: 9}) },
	} {
		before := e.Stats().Refused[reason]
		x.up(e)
		send()
		x.closed()
		x.hangUp()
		eventually(t, reason+" is counted", func() bool { return e.Stats().Refused[reason] == before+1 })
	}
}

// Everything works over IPv6: control, data, addresses that are printed and those that people write.
func TestIPv6Throughout(t *testing.T) {
	six := func(listen string) hawser.Options {
		return hawser.Options{
			Providers: []provider.Provider{tcp.New()}, Rails: []hawser.Rail{{Provider: "tcp", Device: "::1"}}, Listen: listen, PeerTimeout: 5 * time.Second,
		}
	}
	if l, err := net.Listen("tcp", "[::1]:0"); err != nil {
		t.Skipf("no IPv6 on this host: %v", err)
	} else {
		_ = l.Close()
	}
	b := open(t, six("[::1]:0"))
	at := b.ListenAddrs()[0]
	if !strings.HasPrefix(at, "[::1]:") {
		t.Fatalf("listens at %s", at)
	}
	for _, addr := range []string{at, b.Addr()} {
		a := open(t, six("[::1]:0"))
		p, err := a.Connect(testContext(t), addr)
		if err != nil {
			t.Fatal(err)
		}
		src, dst := newWorld(t, "tcp").alloc(t, a, 4096), newWorld(t, "tcp").alloc(t, b, 4096)
		fill(src.Bytes(), 6)
		rem := importRegion(t, a, dst)
		tr, err := a.Write(hawser.Write{Src: src.All(), Dst: rem.All(), Imm: hawser.Imm(1)})
		wait(t, tr, err)
		from, err := b.Connect(testContext(t), a.Addr())
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "it is counted", func() bool { return b.Counter(1).From(from) == 1 })
		same(t, "over IPv6", dst.Bytes(), src.Bytes())
		if p.Path() != "tcp" {
			t.Fatalf("path %s", p.Path())
		}
	}
	four := newWorld(t, "tcp").engine(t, 0, 1) // another family is another network
	if _, err := four.Connect(testContext(t), b.Addr()); !errors.Is(err, hawser.ErrRefused) || !strings.Contains(err.Error(), "tcp6") {
		t.Fatalf("a rail of IPv4 to one of IPv6: %v", err)
	}
}

// Addresses that mean something else elsewhere, or nothing, are refused where they are given, with a reason.
func TestAddressesThatCannotWork(t *testing.T) {
	const linkLocal, unspecified = "link-local", "cannot be dialed"
	for name, tc := range map[string]struct {
		o    hawser.Options
		want string
	}{
		"listen on link-local":     {hawser.Options{Listen: "[fe80::1%eth0]:0", Insecure: true}, linkLocal},
		"listen on IPv4's":         {hawser.Options{Listen: "169.254.0.1:0", Insecure: true}, linkLocal},
		"advertise link-local":     {hawser.Options{Advertise: []string{"10.0.0.1:1", "[fe80::1]:1"}}, linkLocal},
		"advertise a bind address": {hawser.Options{Advertise: []string{"0.0.0.0:1"}}, unspecified},
		"advertise IPv6's":         {hawser.Options{Advertise: []string{"[::]:1"}}, unspecified},
		"advertise no host":        {hawser.Options{Advertise: []string{":1"}}, unspecified},
		"advertise no port":        {hawser.Options{Advertise: []string{"10.0.0.1:0"}}, "no port"},
		"advertise no IPv6 port":   {hawser.Options{Advertise: []string{"fe80::1"}}, "advertise"},
	} {
		e, err := hawser.Open(testContext(t), tc.o)
		if err == nil {
			_ = e.Close(testContext(t))
		}
		if !errors.Is(err, hawser.ErrInvalid) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	e := newWorld(t, "sim").engine(t, 0, 1)
	for addr, want := range map[string]string{
		"[fe80::1%eth0]:1": linkLocal, "[fe80::1]:1": linkLocal, "169.254.1.1:1": linkLocal, "0.0.0.0:1": unspecified, "[::]:1": unspecified, "10.0.0.1:0": "no port",
	} {
		if _, err := e.Connect(testContext(t), addr); !errors.Is(err, hawser.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("connect to %s: %v", addr, err)
		}
	}
}

// An engine can be bound to one address and told under others.
func TestAdvertiseIsNotBind(t *testing.T) {
	w := newWorld(t, "sim")
	o := w.options(0, 1)
	b0 := open(t, o)
	c := newCable(t, b0.ListenAddrs()[0]) // where it is really reached
	o = w.options(1, 1)
	o.Advertise = []string{"name.invalid:7", c.Addr().String()}
	b := open(t, o)
	if got := b.ListenAddrs(); len(got) != 2 || got[0] != o.Advertise[0] || got[1] != o.Advertise[1] {
		t.Fatalf("told as %v", got)
	}
	c.cut(b0.ListenAddrs()[0])
	a := w.engine(t, 2, 1)
	if p, err := a.Connect(testContext(t), c.Addr().String()); err != nil || p.ID() != b0.ID() {
		t.Fatalf("%v, %v", p, err)
	}
}

// What a peer costs is bounded: descriptors and goroutines per peer, and nothing that grows when it comes and goes.
func TestPeersCostABoundedAmount(t *testing.T) {
	for _, tc := range []struct {
		network string
		fds     int // of both ends, per peer; see docs/design.md
	}{{"sim", 2}, {"tcp", 4}, {"shm", 6}} {
		t.Run(tc.network, func(t *testing.T) {
			w := newWorld(t, tc.network)
			b := w.engine(t, 0, 1)
			const peers = 10
			var all []*hawser.Engine
			for i := range peers {
				all = append(all, w.engine(t, i+1, 1))
			}
			fds, goroutines := countFDs(t), runtime.NumGoroutine()
			connect := func() {
				for _, e := range all {
					if _, err := e.Connect(testContext(t), b.Addr()); err != nil {
						t.Fatal(err)
					}
				}
			}
			connect()
			eventually(t, "handshakes are over", func() bool { return runtime.NumGoroutine() <= goroutines+4*peers })
			t.Logf("%d descriptors for %d peers, both ends", countFDs(t)-fds, peers)
			if n := countFDs(t) - fds; n > tc.fds*peers {
				t.Fatalf("%d descriptors for %d peers, want at most %d each", n, peers, tc.fds)
			}
			for range 3 {
				for _, st := range b.Stats().Peers {
					for _, e := range all {
						if e.ID() == st.ID {
							p, err := e.Connect(testContext(t), b.Addr())
							if err != nil {
								t.Fatal(err)
							}
							if err := e.Fence(testContext(t), p); err != nil {
								t.Fatal(err)
							}
						}
					}
				}
				connect()
			}
			eventually(t, "nothing has grown", func() bool {
				return runtime.NumGoroutine() <= goroutines+4*peers && countFDs(t)-fds <= tc.fds*peers
			})
		})
	}
}
