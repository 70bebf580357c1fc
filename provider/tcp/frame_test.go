package tcp

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/hawser-project/hawser/provider"
)

func FuzzHeader(f *testing.F) {
	f.Add(encode(header{kind: frameWriteImm, flags: flagAsk, ack: 1, len: 2, imm: 3, key: 4, addr: 5}))
	f.Add(encode(header{kind: frameAck, ack: 7, imm: 9}))
	f.Add(bytes.Repeat([]byte{0xFF}, headerSize))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < headerSize {
			return
		}
		h, bad := parseHeader(b)
		if bad != badNothing {
			return
		}
		if h.kind < frameWrite || h.kind > frameNack || h.len > maxMsg || h.kind == frameMessage && h.len > maxSend {
			t.Fatalf("accepted %+v", h)
		}
		if got := encode(h); !bytes.Equal(got, b[:headerSize]) {
			t.Fatalf("%x is read as %+v, which is written as %x", b[:headerSize], h, got)
		}
	})
}

func TestHeaderRefusesWhatIsNotInTheProtocol(t *testing.T) {
	reserved := encode(header{kind: frameWrite})
	reserved[3] = 1
	for _, tc := range []struct {
		name string
		b    []byte
		want violation
	}{
		{"kind 0", encode(header{}), badKind},
		{"next kind", encode(header{kind: frameNack + 1}), badKind},
		{"reserved byte", reserved, badReserved},
		{"unknown flag", encode(header{kind: frameWrite, flags: 2}), badReserved},
		{"write with an immediate that it does not announce", encode(header{kind: frameWrite, imm: 1}), badReserved},
		{"longest write", encode(header{kind: frameWrite, len: maxMsg}), badNothing},
		{"longer write", encode(header{kind: frameWrite, len: maxMsg + 1}), badLength},
		{"longest length", encode(header{kind: frameWriteImm, len: 1<<32 - 1}), badLength},
		{"longest message", encode(header{kind: frameMessage, len: maxSend}), badNothing},
		{"longer message", encode(header{kind: frameMessage, len: maxSend + 1}), badLength},
		{"message with a key", encode(header{kind: frameMessage, key: 1}), badReserved},
		{"ack with payload", encode(header{kind: frameAck, len: 1}), badReserved},
		{"nack with payload", encode(header{kind: frameNack, len: 1}), badReserved},
		{"nack with an immediate", encode(header{kind: frameNack, imm: 1}), badReserved},
	} {
		if _, bad := parseHeader(tc.b); bad != tc.want {
			t.Errorf("%s: violation %d, want %d", tc.name, bad, tc.want)
		}
	}
}

func FuzzOffer(f *testing.F) {
	for _, at := range []string{"127.0.0.1:1", "[::1]:65535"} {
		o := offer{at: netip.MustParseAddrPort(at), handle: 1<<16 | 5, secret: [secretSize]byte{9}}
		f.Add([]byte(o.addr()))
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := parseOffer(b)
		if err != nil {
			return
		}
		if got := o.addr(); !bytes.Equal(got, b) || len(got) > provider.MaxAddr {
			t.Fatalf("%x is read as %+v, which is written as %x", b, o, got)
		}
	})
}

func FuzzGreeting(f *testing.F) {
	b := (&greeting{kind: greetWelcome, handle: 3, proof: [secretSize]byte{1}, own: [secretSize]byte{2}}).encode()
	f.Add(b[:])
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) != helloSize {
			return
		}
		g, ok := parseGreeting((*[helloSize]byte)(b))
		if got := g.encode(); ok && !bytes.Equal(got[:], b) {
			t.Fatalf("%x is read as %+v, which is written as %x", b, g, got)
		}
	})
}
