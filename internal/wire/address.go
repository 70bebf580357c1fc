package wire

import (
	"encoding/base64"
	"fmt"
	"hash/crc32"
	"strings"
)

// Addr is where an engine can be reached: identity, the host it runs on, and control endpoints.
type Addr struct {
	ID     ID
	Host   string   // boot id, network namespace and user: equal means that the unix socket can be reached
	Unix   string   // abstract unix socket, without the leading zero byte
	Listen []string // host:port of control listeners
}

func (m *Addr) fields(c *codec) {
	c.array(m.ID[:])
	c.str(&m.Host, maxHost)
	c.str(&m.Unix, maxName)
	c.strs(&m.Listen, maxEndpoint, maxHost)
}

const addrPrefix = "hawser1:"

// String is the printable form: a prefix, and base64 of the encoding and its CRC-32.
func (m *Addr) String() string {
	b := Append(nil, m)
	sum := crc32.ChecksumIEEE(b)
	b = append(b, byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24))
	return addrPrefix + base64.RawURLEncoding.EncodeToString(b)
}

// IsAddr reports whether s claims to be the printable form of an Addr.
func IsAddr(s string) bool { return strings.HasPrefix(s, addrPrefix) }

// ParseAddr is the inverse of String.
func ParseAddr(s string) (*Addr, error) {
	rest, ok := strings.CutPrefix(s, addrPrefix)
	if !ok {
		return nil, fmt.Errorf("address %.40q: %w: does not start with %q", s, ErrMalformed, addrPrefix)
	}
	b, err := base64.RawURLEncoding.DecodeString(rest)
	if err != nil || len(b) < 4 {
		return nil, fmt.Errorf("address %.40q: %w: not base64, or cut short", s, ErrMalformed)
	}
	body, tail := b[:len(b)-4], b[len(b)-4:]
	if sum := crc32.ChecksumIEEE(body); sum != uint32(tail[0])|uint32(tail[1])<<8|uint32(tail[2])<<16|uint32(tail[3])<<24 {
		return nil, fmt.Errorf("address %.40q: %w: checksum differs, was it copied whole?", s, ErrMalformed)
	}
	m := &Addr{}
	if err := Parse(body, m); err != nil {
		return nil, fmt.Errorf("address %.40q: %w", s, err)
	}
	return m, nil
}

// Descriptor is a capability: the right to write into a range of a region of the engine at Addr. The owner's MAC covers every
// other field but Addr.
type Descriptor struct {
	Owner       ID
	Region, Gen uint64
	Off, Len    uint64
	Rights      uint8
	MAC         [16]byte
	Addr        string
}

func (m *Descriptor) fields(c *codec) {
	m.signed(c)
	c.array(m.MAC[:])
	c.str(&m.Addr, MaxAddr)
}

func (m *Descriptor) signed(c *codec) {
	c.array(m.Owner[:])
	c.u64(&m.Region)
	c.u64(&m.Gen)
	c.u64(&m.Off)
	c.u64(&m.Len)
	c.u8(&m.Rights)
}

// Signed is what the MAC covers.
func (m *Descriptor) Signed() []byte {
	var c codec
	m.signed(&c)
	return c.b
}
