package wire

import "github.com/hawser-project/hawser/provider"

// Versions of the control protocol that this build speaks. The highest common one of two engines wins.
const (
	MinVersion = 1
	MaxVersion = 1
)

// Type is the type of a control message. A receiver that does not know a type closes the connection unless FlagOptional is set.
type Type uint16

const (
	TypeHello Type = iota + 1
	TypeWelcome
	TypeAuth
	TypeRefuse
	TypeLinks
	TypeLinksReply
	TypeLinksDone
	TypeUp
	TypeResolve
	TypeResolved
	TypeBeat
	TypeBye
	TypeLink
)

// FlagOptional marks messages that a receiver may ignore.
const FlagOptional uint16 = 1

// Limits of what a peer may say that whoever speaks must know.
const (
	MaxRails = 64   // of one engine
	MaxAddr  = 4096 // bytes of a printable Addr
)

const (
	maxName     = 256
	maxText     = 4096
	maxEndpoint = 16
	maxHost     = 512
)

// ID is an identity: random for each Open.
type ID = [16]byte

// Rail describes a rail to the other side, which pairs it with one of its own.
type Rail struct {
	Provider, Fabric string
	LinkBits         uint64
	Down             uint8 // 1: out of service, listed for the sake of the numbers of the others
}

func (m *Rail) fields(c *codec) {
	c.str(&m.Provider, maxName)
	c.str(&m.Fabric, maxHost)
	c.u64(&m.LinkBits)
	c.u8(&m.Down)
}

// Hello is the first message, from the side that dials.
type Hello struct {
	Magic    uint64
	Min, Max uint16 // versions
	ID, Want ID     // Want is who the dialer means to talk to, zero when it does not know
	Nonce    [32]byte
	Keyed    uint8 // 1: has a cluster key
	Name     string
	Require  string // the only provider that the dialer accepts, empty for any
	Rails    []Rail
}

// Magic is the first field of Hello: "HAWSER\r\n".
const Magic = 0x0a0d524553574148

func (m *Hello) fields(c *codec) {
	c.u64(&m.Magic)
	c.u16(&m.Min)
	c.u16(&m.Max)
	c.array(m.ID[:])
	c.array(m.Want[:])
	c.array(m.Nonce[:])
	c.u8(&m.Keyed)
	c.str(&m.Name, maxName)
	c.str(&m.Require, maxName)
	list(c, &m.Rails, MaxRails)
}

// Welcome accepts a Hello. MAC proves the cluster key over both messages.
type Welcome struct {
	Version uint16
	ID      ID
	Nonce   [32]byte
	Name    string
	Rails   []Rail
	MAC     [32]byte
}

func (m *Welcome) fields(c *codec) {
	c.u16(&m.Version)
	c.array(m.ID[:])
	c.array(m.Nonce[:])
	c.str(&m.Name, maxName)
	list(c, &m.Rails, MaxRails)
	c.array(m.MAC[:])
}

// Auth is the dialer's proof of the cluster key.
type Auth struct{ MAC [32]byte }

func (m *Auth) fields(c *codec) { c.array(m.MAC[:]) }

// Refusal says why a handshake ended.
type Refusal uint16

const (
	RefuseVersion   Refusal = iota + 1 // no common version
	RefuseIdentity                     // Want is not who answered
	RefuseKey                          // cluster keys differ, or only one side has one
	RefuseDuplicate                    // both sides dialed; the other connection wins
	RefusePath                         // no rail of one side reaches a rail of the other
	RefuseClosing
	RefuseBusy // the session before is not over yet
	RefuseProtocol
	RefuseCertificate // TLS on one side only, or a certificate that is not accepted
)

// Refuse ends a handshake. Text says which check failed, what was wanted and what was got.
type Refuse struct {
	Code Refusal
	Text string
}

func (m *Refuse) fields(c *codec) {
	v := uint16(m.Code)
	c.u16(&v)
	m.Code = Refusal(v)
	c.text(&m.Text)
}

// Link is one proposed connection: which rail of the dialer and which of the answerer, and the sender's one-time address for it.
type Link struct {
	Dialer, Answerer uint16
	Addr             []byte
}

func (m *Link) fields(c *codec) {
	c.u16(&m.Dialer)
	c.u16(&m.Answerer)
	c.bytes(&m.Addr, provider.MaxAddr)
}

// Links proposes the connections of one path; from the answerer. LinksReply carries the dialer's addresses for the same links.
type Links struct {
	Path   string // provider
	Reason string // why this path
	Links  []Link
}

func (m *Links) fields(c *codec) {
	c.str(&m.Path, maxName)
	c.text(&m.Reason)
	list(c, &m.Links, MaxRails)
}

// LinksReply answers Links.
type LinksReply struct{ Links []Link }

func (m *LinksReply) fields(c *codec) { list(c, &m.Links, MaxRails) }

// LinksDone says whether the sender's side of all links came up; Fault is empty when it did.
type LinksDone struct{ Fault string }

func (m *LinksDone) fields(c *codec) { c.text(&m.Fault) }

// Resolve asks for the keys of a descriptor.
type Resolve struct{ Descriptor Descriptor }

func (m *Resolve) fields(c *codec) { m.Descriptor.fields(c) }

// Key is a provider.Key on the wire: how to write over one connection of a link.
type Key struct {
	Link     uint16
	Epoch    uint32
	ID, Base uint64
}

func (m *Key) fields(c *codec) {
	c.u16(&m.Link)
	c.u32(&m.Epoch)
	c.u64(&m.ID)
	c.u64(&m.Base)
}

// Resolved answers Resolve: a key for each link that is up, or why not.
type Resolved struct {
	Fault Fault
	Text  string
	Keys  []Key
}

// Fault is why a descriptor could not be resolved.
type Fault uint16

const (
	FaultNone Fault = iota
	FaultStale
	FaultAccess
	FaultUnsupported
	FaultInternal
)

func (m *Resolved) fields(c *codec) {
	v := uint16(m.Fault)
	c.u16(&v)
	m.Fault = Fault(v)
	c.text(&m.Text)
	list(c, &m.Keys, MaxRails)
}

// Bye ends a session in peace.
type Bye struct{ Reason string }

func (m *Bye) fields(c *codec) { c.text(&m.Reason) }
