package hawser_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/hawser-project/hawser"
	machine "github.com/hawser-project/hawser/internal/host"
	"github.com/hawser-project/hawser/internal/wire"
)

// intruder is a peer that is not an engine: it speaks the control protocol and the wire protocol of the tcp provider by hand, and
// says whatever it likes. One goroutine owns it.
type intruder struct {
	id      wire.ID
	control net.Conn
	data    net.Conn
	theirs  rawOffer
	key     uint64 // of the descriptor
}

// rawOffer is the address of a link of the tcp provider.
type rawOffer struct {
	at     netip.AddrPort
	handle uint32
	secret [16]byte
}

func parseRawOffer(b []byte) (o rawOffer, err error) {
	if len(b) != 8+4+16 {
		return o, fmt.Errorf("offer of %d bytes", len(b))
	}
	o.at = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[8:12])), binary.LittleEndian.Uint16(b[2:]))
	o.handle = binary.LittleEndian.Uint32(b[4:])
	o.secret = [16]byte(b[12:])
	return o, nil
}

func (o rawOffer) encode() []byte {
	b := []byte{1, 4, 0, 0, 0, 0, 0, 0}
	binary.LittleEndian.PutUint16(b[2:], o.at.Port())
	binary.LittleEndian.PutUint32(b[4:], o.handle)
	ip := o.at.Addr().As4()
	return append(append(b, ip[:]...), o.secret[:]...)
}

// greeting is what starts a connection to an offer.
func (o rawOffer) greeting(own [16]byte) []byte {
	b := append([]byte("hawstcp\x01"), 1, 0, 0, 0, 0, 0, 0, 0)
	binary.LittleEndian.PutUint32(b[12:], o.handle)
	b = append(append(b, o.secret[:]...), own[:]...)
	return append(b, make([]byte, 16)...)
}

// Frames of the tcp provider.
const (
	rawWrite = iota + 1
	rawWriteImm
	rawMessage
	rawAck
)

type rawFrame struct {
	kind, flags byte
	ack         uint32
	length      uint32 // as announced
	imm         uint32
	key, addr   uint64
}

func (f rawFrame) append(b []byte) []byte {
	b = append(b, f.kind, f.flags, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, f.ack)
	b = binary.LittleEndian.AppendUint32(b, f.length)
	b = binary.LittleEndian.AppendUint32(b, f.imm)
	b = binary.LittleEndian.AppendUint64(b, f.key)
	return binary.LittleEndian.AppendUint64(b, f.addr)
}

// intruderTime bounds every step of an intruder.
const intruderTime = 2 * time.Second

// intrude connects. Whatever is done with the connection ends with the context, or a while from now.
func intrude(ctx context.Context, at string) (net.Conn, error) {
	d := net.Dialer{Timeout: intruderTime}
	conn, err := d.DialContext(ctx, "tcp", at)
	if err == nil {
		_ = conn.SetDeadline(time.Now().Add(intruderTime))
		context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	}
	return conn, err
}

// hello dials the control listener and goes on until the engine waits for Auth.
func (x *intruder) hello(ctx context.Context, at string) error {
	conn, err := intrude(ctx, at)
	if err != nil {
		return err
	}
	x.control = conn
	here, err := machine.ID()
	if err != nil {
		return err
	}
	var w wire.Welcome
	h := &wire.Hello{
		Magic: wire.Magic, Min: wire.MinVersion, Max: wire.MaxVersion, ID: x.id, Rails: []wire.Rail{{Provider: "tcp", Fabric: "tcp:lo:" + here}},
	}
	if err := x.say(wire.TypeHello, h); err != nil {
		return err
	}
	return x.hear(wire.TypeWelcome, &w)
}

// offered goes on until the engine has told the address of its link.
func (x *intruder) offered(ctx context.Context, at string) error {
	if err := x.hello(ctx, at); err != nil {
		return err
	}
	if err := x.say(wire.TypeAuth, &wire.Auth{}); err != nil {
		return err
	}
	var links wire.Links
	if err := x.hear(wire.TypeLinks, &links); err != nil {
		return err
	}
	if len(links.Links) != 1 {
		return fmt.Errorf("%d links", len(links.Links))
	}
	var err error
	if x.theirs, err = parseRawOffer(links.Links[0].Addr); err != nil {
		return err
	}
	own := rawOffer{at: netip.MustParseAddrPort("127.0.0.1:1"), handle: 1 << 16, secret: x.id}
	return x.say(wire.TypeLinksReply, &wire.LinksReply{Links: []wire.Link{{Addr: own.encode()}}})
}

// up goes through the whole handshake.
func (x *intruder) up(ctx context.Context, at string) (err error) {
	if err := x.offered(ctx, at); err != nil {
		return err
	}
	if x.data, err = intrude(ctx, x.theirs.at.String()); err != nil {
		return err
	}
	if _, err := x.data.Write(x.theirs.greeting(x.id)); err != nil {
		return err
	}
	var welcome [64]byte
	if _, err := io.ReadFull(x.data, welcome[:]); err != nil {
		return err
	}
	if err := x.say(wire.TypeLinksDone, &wire.LinksDone{}); err != nil {
		return err
	}
	return x.hear(wire.TypeUp, nil)
}

// resolve asks for the key of a descriptor.
func (x *intruder) resolve(d hawser.Descriptor) error {
	raw, err := d.MarshalBinary()
	if err != nil {
		return err
	}
	var q wire.Resolve
	if err := wire.Parse(raw, &q.Descriptor); err != nil {
		return err
	}
	if err := x.say(wire.TypeResolve, &q); err != nil {
		return err
	}
	var a wire.Resolved
	if err := x.hear(wire.TypeResolved, &a); err != nil {
		return err
	}
	if len(a.Keys) != 1 {
		return fmt.Errorf("%d keys: %s", len(a.Keys), a.Text)
	}
	x.key = a.Keys[0].ID
	return nil
}

func (x *intruder) say(t wire.Type, m wire.Message) error {
	_, err := x.control.Write(wire.AppendFrame(nil, t, 0, m))
	return err
}

// hear reads messages until one is of type t. m may be nil.
func (x *intruder) hear(t wire.Type, m wire.Message) error {
	for {
		f, err := wire.ReadFrame(x.control, nil)
		switch {
		case err != nil:
			return err
		case f.Type == wire.TypeBeat:
		case f.Type != t:
			return fmt.Errorf("message of type %d, want %d", f.Type, t)
		case m == nil:
			return nil
		default:
			return wire.Parse(f.Payload, m)
		}
	}
}

func (x *intruder) leave() {
	for _, c := range []net.Conn{x.control, x.data} {
		if c != nil {
			_ = c.Close() // the engine may have closed it
		}
	}
}
