package tcp

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/hawser-project/hawser/provider"
)

// secretSize is the length of the one-time secret in bytes: 128 bits cannot be guessed.
const secretSize = 16

// offer is the content of an Addr: where to connect, which handle is meant there, and what proves that the connection
// comes from whom the Addr was given to.
type offer struct {
	at     netip.AddrPort
	handle provider.Peer
	secret [secretSize]byte
}

// An encoded offer, little endian: format(1) family(1) port(2) handle(4) ip(4 or 16) secret(16).
const (
	offerFormat = 1
	offerFixed  = 8
	family4     = 4
	family6     = 6
)

func (o *offer) addr() provider.Addr {
	b := make([]byte, offerFixed, offerFixed+16+secretSize)
	b[0], b[1] = offerFormat, family4
	if o.at.Addr().Is6() {
		b[1] = family6
	}
	binary.LittleEndian.PutUint16(b[2:], o.at.Port())
	binary.LittleEndian.PutUint32(b[4:], uint32(o.handle))
	b = append(b, o.at.Addr().AsSlice()...)
	return append(b, o.secret[:]...)
}

func parseOffer(b provider.Addr) (o offer, err error) {
	if len(b) < offerFixed+secretSize || b[0] != offerFormat {
		return o, fmt.Errorf("%w address: not an offer of this version of the tcp provider", provider.ErrInvalid)
	}
	at := len(b) - secretSize
	ip, ok := netip.AddrFromSlice(b[offerFixed:at])
	if !ok || ip.Is4In6() || (b[1] == family4) != ip.Is4() || (b[1] == family6) != ip.Is6() {
		return o, fmt.Errorf("%w address: malformed ip", provider.ErrInvalid)
	}
	port := binary.LittleEndian.Uint16(b[2:])
	if port == 0 || ip.IsUnspecified() || ip.IsMulticast() {
		return o, fmt.Errorf("%w address: nobody can listen on %v port %d", provider.ErrInvalid, ip, port)
	}
	o.at = netip.AddrPortFrom(ip, port)
	o.handle = provider.Peer(binary.LittleEndian.Uint32(b[4:]))
	o.secret = [secretSize]byte(b[at:])
	return o, nil
}

// helloSize is the length in bytes of the two greetings that start a connection.
const helloSize = 64

// magic starts a greeting; its last byte is the version of the wire protocol.
var magic = [8]byte{'h', 'a', 'w', 's', 't', 'c', 'p', 1}

// A greeting names the offer of whom it is sent to (proof) and the offer of the sender.
const (
	greetHello   = 1 // from the active side
	greetWelcome = 2 // the answer
)

// greeting is the content of a hello or welcome. On the wire, little endian:
//
//	0 magic(8)  8 type(4)  12 handle(4)  16 proof(16)  32 own(16)  48 zero(16)
type greeting struct {
	kind   uint32
	handle provider.Peer    // the receiver's, from its offer
	proof  [secretSize]byte // the secret of the receiver's offer
	own    [secretSize]byte // the secret of the sender's offer
}

func (g *greeting) encode() (b [helloSize]byte) {
	copy(b[:], magic[:])
	binary.LittleEndian.PutUint32(b[8:], g.kind)
	binary.LittleEndian.PutUint32(b[12:], uint32(g.handle))
	copy(b[16:], g.proof[:])
	copy(b[32:], g.own[:])
	return b
}

// parseGreeting reports false when b is not a greeting of this version.
func parseGreeting(b *[helloSize]byte) (g greeting, ok bool) {
	if [8]byte(b[:8]) != magic || [16]byte(b[48:]) != [16]byte{} {
		return g, false
	}
	g.kind = binary.LittleEndian.Uint32(b[8:])
	g.handle = provider.Peer(binary.LittleEndian.Uint32(b[12:]))
	g.proof = [secretSize]byte(b[16:])
	g.own = [secretSize]byte(b[32:])
	return g, true
}
