package hawser_test

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/internal/cpu"
	"github.com/hawser-project/hawser/internal/wire"
	"github.com/hawser-project/hawser/provider"
)

// puppet is the other side of an engine's control connection, and of one link, played by a test step by step.
type puppet struct {
	testing.TB
	conn           net.Conn
	id             wire.ID
	key            []byte // the cluster key, nil for none
	dom            provider.Domain
	bell           *cpu.Parker
	dev            provider.Device
	link           provider.Peer
	addr           provider.Addr // of our link
	theirs         provider.Addr
	links          wire.Links // what the engine proposed last
	hello, welcome []byte
}

// newPuppet opens the domain of a puppet with a new identity.
func newPuppet(t testing.TB, p provider.Provider) *puppet {
	t.Helper()
	bell, err := cpu.NewParker()
	if err != nil {
		t.Fatal(err)
	}
	devs, err := p.Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	x := &puppet{TB: t, bell: bell, dev: devs[0]}
	if x.dom, err = p.Open(t.Context(), x.dev, provider.Config{Bell: bell}); err != nil {
		t.Fatal(err)
	}
	_, _ = rand.Read(x.id[:])
	t.Cleanup(func() {
		x.hangUp()
		if err := errors.Join(x.dom.Close(), bell.Close()); err != nil {
			t.Error(err)
		}
	})
	return x
}

func (x *puppet) hangUp() {
	if x.conn != nil {
		_ = x.conn.Close() // the engine may have closed it already
	}
}

// send writes one control message.
func (x *puppet) send(typ wire.Type, request uint64, m wire.Message) []byte {
	x.Helper()
	f := wire.AppendFrame(nil, typ, request, m)
	if _, err := x.conn.Write(f); err != nil {
		x.Fatal(err)
	}
	return f[wire.HeaderLen:]
}

// read reads messages until one is of type typ, skipping beats.
func (x *puppet) read(typ wire.Type, m wire.Message) []byte {
	x.Helper()
	b, err := x.tryRead(typ, m)
	if err != nil {
		x.Fatal(err)
	}
	return b
}

func (x *puppet) tryRead(typ wire.Type, m wire.Message) ([]byte, error) {
	for {
		f, err := wire.ReadFrame(x.conn, nil)
		switch {
		case err != nil:
			return nil, err
		case f.Type == wire.TypeBeat:
			continue
		case f.Type == wire.TypeRefuse && typ != wire.TypeRefuse:
			var r wire.Refuse
			if err := wire.Parse(f.Payload, &r); err != nil {
				return nil, err
			}
			return nil, fmt.Errorf("refused: %s", r.Text)
		case f.Type != typ:
			return nil, fmt.Errorf("message of type %d, want %d", f.Type, typ)
		}
		if m == nil {
			return f.Payload, nil
		}
		return f.Payload, wire.Parse(f.Payload, m)
	}
}

// greet dials e and goes on until the engine waits for Auth.
func (x *puppet) greet(e *hawser.Engine) {
	x.Helper()
	conn, err := net.Dial("tcp", e.ListenAddrs()[0])
	if err != nil {
		x.Fatal(err)
	}
	x.conn = conn
	_ = conn.SetDeadline(time.Now().Add(hang))
	h := &wire.Hello{
		Magic: wire.Magic, Min: wire.MinVersion, Max: wire.MaxVersion, ID: x.id, Name: "puppet",
		Rails: []wire.Rail{{Provider: x.dev.Provider, Fabric: x.dom.Caps().Fabric}},
	}
	if x.key != nil {
		h.Keyed = 1
	}
	x.hello = x.send(wire.TypeHello, 0, h)
	var w wire.Welcome
	x.welcome = append([]byte(nil), x.read(wire.TypeWelcome, &w)...)
}

// prove sends Auth.
func (x *puppet) prove() {
	x.Helper()
	x.send(wire.TypeAuth, 0, &wire.Auth{MAC: x.mac("auth", x.hello, x.welcome)})
}

// mac proves the cluster key, as the engine does.
func (x *puppet) mac(who string, parts ...[]byte) (sum [32]byte) {
	if x.key == nil {
		return sum
	}
	h := hmac.New(sha256.New, x.key)
	fmt.Fprintf(h, "hawser control %s\n", who)
	for _, p := range parts {
		fmt.Fprintf(h, "%d\n", len(p))
		h.Write(p)
	}
	copy(sum[:], h.Sum(nil))
	return sum
}

// proposal reads Links.
func (x *puppet) proposal() {
	x.Helper()
	x.links = wire.Links{}
	x.read(wire.TypeLinks, &x.links)
}

// offer answers Links with the address of our link.
func (x *puppet) offer() {
	x.Helper()
	if len(x.links.Links) != 1 {
		x.Fatalf("%d links, want 1", len(x.links.Links))
	}
	x.theirs = x.links.Links[0].Addr
	var err error
	if x.link, x.addr, err = x.dom.Offer(); err != nil {
		x.Fatal(err)
	}
	x.send(wire.TypeLinksReply, 0, &wire.LinksReply{Links: []wire.Link{{Addr: x.addr}}})
}

// connect brings our link up.
func (x *puppet) connect() {
	x.Helper()
	if err := x.dom.Connect(x.link, x.theirs, true); err != nil {
		x.Fatal(err)
	}
	x.await(provider.KindPeerUp)
}

// await polls our domain until it reports a completion of a kind.
func (x *puppet) await(kind provider.Kind) provider.Completion {
	x.Helper()
	var cs [16]provider.Completion
	var got provider.Completion
	eventually(x, fmt.Sprintf("completion %v", kind), func() bool {
		n, err := x.dom.Poll(cs[:])
		if err != nil {
			x.Fatal(err)
		}
		for _, c := range cs[:n] {
			if c.Kind == kind {
				got = c
				return true
			}
		}
		return false
	})
	return got
}

// up goes through a whole handshake.
func (x *puppet) up(e *hawser.Engine) {
	x.Helper()
	x.greet(e)
	x.prove()
	x.proposal()
	x.offer()
	x.connect()
	x.send(wire.TypeLinksDone, 0, &wire.LinksDone{})
	x.read(wire.TypeUp, nil)
}

// answer listens, has e connect to it, and answers until Auth is due. The result of Connect comes over the channel.
func (x *puppet) answer(e *hawser.Engine, change func(*wire.Welcome)) <-chan error {
	x.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		x.Fatal(err)
	}
	defer l.Close()
	connected := make(chan error, 1)
	ctx := testContext(x)
	go func() {
		_, err := e.Connect(ctx, l.Addr().String())
		connected <- err
	}()
	if x.conn, err = l.Accept(); err != nil {
		x.Fatal(err)
	}
	_ = x.conn.SetDeadline(time.Now().Add(hang))
	var h wire.Hello
	x.hello = append([]byte(nil), x.read(wire.TypeHello, &h)...)
	w := &wire.Welcome{Version: wire.MaxVersion, ID: x.id, Name: "puppet"}
	w.MAC = x.mac("welcome", x.hello, wire.Append(nil, w))
	change(w)
	x.send(wire.TypeWelcome, 0, w)
	return connected
}

// lead goes on from there until the link and the session are up.
func (x *puppet) lead() {
	x.Helper()
	var addr provider.Addr
	var err error
	if x.link, addr, err = x.dom.Offer(); err != nil {
		x.Fatal(err)
	}
	x.send(wire.TypeLinks, 0, &wire.Links{Path: x.dev.Provider, Links: []wire.Link{{Addr: addr}}})
	var reply wire.LinksReply
	x.read(wire.TypeLinksReply, &reply)
	if err := x.dom.Connect(x.link, reply.Links[0].Addr, false); err != nil {
		x.Fatal(err)
	}
	x.await(provider.KindPeerUp)
	x.read(wire.TypeLinksDone, nil)
	x.send(wire.TypeUp, 0, nil)
}

// closed waits until the engine has closed the control connection.
func (x *puppet) closed() {
	x.Helper()
	var ne net.Error
	if _, err := io.Copy(io.Discard, x.conn); errors.As(err, &ne) && ne.Timeout() {
		x.Fatal("the engine keeps the connection")
	}
}
