package provider

import (
	"context"
	"time"
)

// Provider is a kind of network. Its methods may be called from any goroutine.
type Provider interface {
	// Name is stable and lower case: "shm", "tcp", "sim".
	Name() string

	// Devices lists what Open accepts. The error wraps ErrUnavailable and says what is missing when the
	// network cannot be used here at all.
	Devices(ctx context.Context) ([]Device, error)

	// Open opens one rail. The same device may be opened several times; each is a rail of its own.
	Open(ctx context.Context, dev Device, cfg Config) (Domain, error)
}

// Device names a port, interface or channel that Open can open.
type Device struct {
	Provider string // Provider.Name
	Name     string // unique within the provider: "shm0", "127.0.0.1", "mlx5_0/1"
	Fabric   string // two devices can be connected only if their fabrics are equal
	LinkBits uint64 // bits per second, 0 when unknown
	NUMA     int    // NUMA node, -1 when unknown
	Loopback bool   // reachable from this host only
}

// Config is what the owner decides for a Domain. The zero value of each field means the provider's default.
type Config struct {
	Bell     Bell // required: where the owner sleeps
	MaxPeers int  // handles that may be live at once, default 1024
}

// DefaultMaxPeers is the value of Config.MaxPeers when it is zero.
const DefaultMaxPeers = 1024

// Bell wakes the owner of one or more Domains. Implemented by internal/cpu.Parker; its methods are safe from any goroutine.
type Bell interface {
	// Wake makes the owner's current or next sleep end.
	Wake()

	// FD is an eventfd; writing 8 bytes to it is a Wake. It may be handed to another process of the same user,
	// so a provider treats every wake as a hint.
	FD() int

	// Watch makes the owner wake when fd is readable or hung up; level triggered, so the provider must consume
	// the cause in Poll. fd may itself be an epoll instance.
	Watch(fd int) error
	Unwatch(fd int) error
}

// Domain is one open rail. All methods are called by its owner only, and none but Close blocks.
type Domain interface {
	Caps() Caps

	// Register makes memory usable as a local side of WRs and, with AccessRemoteWrite, grantable. The memory must
	// stay mapped until Deregister has returned and every WR that names it has completed.
	Register(m Memory, acc Access) (Key, error)

	// Deregister ends a key. Writes of peers that arrive later fail with StatusAccess at the writer and change
	// no byte that the owner can still see in another way than through this memory. WRs that still read it may end with
	// StatusLocal, and a message may end its connection so.
	Deregister(k Key) error

	// Grant returns the key under which peer p, which must be up, can write to the bytes [off, off+n) of memory registered
	// with AccessRemoteWrite, and to no others where the network can enforce it (Caps.GrantRange); the byte at offset o of
	// the range is addressed as {ID, Base + o}. Granting the same range twice may return the same key. The grant ends with
	// the connection or with Deregister. ErrUnsupported: this network cannot serve this kind of memory. ErrBusy: call
	// again after Poll.
	Grant(k Key, p Peer, off, n uint64) (Key, error)

	// Offer reserves a peer handle and returns the one-time address that the other side passes to its Connect.
	Offer() (Peer, Addr, error)

	// Connect starts the connection of a handle made by Offer to the address that the other side offered. The
	// outcome is KindPeerUp or KindPeerDown, within ConnectTimeout.
	Connect(p Peer, remote Addr, active bool) error

	// Disconnect closes the connection and releases the handle: outstanding WRs complete as StatusFlushed,
	// KindPeerDown follows unless it was delivered before, then the handle is stale. While an earlier Disconnect or Fence
	// of the same handle has not come to its end, either of them returns ErrBusy or ErrStale and changes nothing.
	Disconnect(p Peer) error

	// Fence is Disconnect with proof: KindFenced comes last. With StatusOK nothing that the peer ever started can
	// land any more, also if it was stopped in the middle and goes on later. With StatusUnfenced that is not known (it may
	// be stopped in the middle of a copy): the handle stays and Fence may be called again. What had arrived before is
	// delivered first; see Counting in the package's documentation.
	Fence(p Peer) error

	// Post accepts a prefix of wrs and returns its length; less than len(wrs) means full: Poll first. wrs is
	// not retained. A WR that cannot be executed is accepted and completes with an error status; err means that
	// the Domain as a whole is dead. A WR to a peer that is not up, or whose handle is stale, completes as StatusFlushed. At most Caps.PeerDepth writes and sends of one peer may be outstanding; a
	// provider always accepts that many, however slow the peer is, so that no peer blocks another.
	Post(wrs []WR) (n int, err error)

	// Poll moves everything forward by a bounded amount of work and fills cs with completions. An error is fatal
	// to the Domain, and comes when everything that had arrived was delivered; a failed WR is a Completion.
	Poll(cs []Completion) (n int, err error)

	// Arm prepares for sleep. It reports true when Poll may find something now; otherwise the Bell rings once Poll
	// may find something.
	Arm() bool

	// Close fails what is outstanding, closes all connections and frees everything. It may block briefly. When it has returned nil,
	// nothing that a peer started can land any more, unless Caps.PeerCopies.
	Close() error
}

// Revoker is what a Domain may do beside; ask by type assertion. A Domain that wraps another one may have the method and return
// ErrUnsupported, which means the same as not having it.
type Revoker interface {
	// Revoke ends all grants of registration k to peer p at once: when it returns, nothing of p lands there any more under the
	// old keys, and writes that name them end with StatusAccess. Other peers keep their grants, and p may be granted the
	// memory anew, under a new key. A payload that had arrived in part can be neither refused nor finished: it ends the
	// connection, with StatusAccess. ErrStale: the key or handle has ended; a peer that is not up has no grants.
	Revoke(k Key, p Peer) error
}

// ConnectTimeout bounds the time between Connect and its outcome.
const ConnectTimeout = 5 * time.Second

// Peer is a handle of one connection of one Domain: an index below Config.MaxPeers in the low PeerIndexBits, a generation
// that is never 0 above them. It is never reused while a completion that carries it can still appear. Zero is no peer.
type Peer uint32

// PeerIndexBits is how many bits of a Peer are the index.
const PeerIndexBits = 16

// Index is the part of p that identifies its place among the live handles of the Domain.
func (p Peer) Index() int { return int(p & (1<<PeerIndexBits - 1)) }

// Addr is what Offer returns: opaque, at most MaxAddr bytes, of use to one Connect on the other side.
type Addr []byte

// MaxAddr is the largest Addr in bytes.
const MaxAddr = 512

// Memory describes a span that Register takes.
type Memory struct {
	// Bytes is the host's view of the span. The garbage collector must not own it, except for providers whose
	// Caps say HeapMemory.
	Bytes []byte

	// FD is a sealed memfd that holds exactly these bytes from offset 0, or -1. A provider that shares memory
	// between processes needs it to grant; it duplicates what it keeps.
	FD int

	// Phantom is the length of a span without bytes (Bytes is nil). Only simulated networks take it.
	Phantom uint64

	// DMABuf is the memory of a device, instead of Bytes, for networks whose Caps say DMABuf.
	DMABuf *DMABuf
}

// DMABuf is a span of a device's memory that the device's driver has exported as a dma-buf.
type DMABuf struct {
	FD     int    // of the dma-buf; a provider duplicates what it keeps
	Offset uint64 // of the span in the dma-buf, bytes
	Addr   uint64 // of the span's first byte in the device's address space
	Len    uint64 // bytes
}

// Len is the length of the span in bytes.
func (m Memory) Len() uint64 {
	switch {
	case m.DMABuf != nil:
		return m.DMABuf.Len
	case m.Bytes == nil:
		return m.Phantom
	}
	return uint64(len(m.Bytes))
}

// Access says what registered memory may be used for. Use as the local side of any WR is always allowed.
type Access uint8

// AccessRemoteWrite allows peers to which the key was granted to write.
const AccessRemoteWrite Access = 1

// Key names registered memory in a WR. The byte at offset o of the memory is addressed as {ID, Base + o}.
type Key struct {
	ID   uint64
	Base uint64
}

// Caps are the abilities and limits of a Domain, measured at Open.
type Caps struct {
	MaxMsg     uint64 // largest OpWrite and OpWriteImm, bytes
	MaxSend    uint64 // largest OpSend, bytes; at least MinMaxSend
	PeerDepth  int    // writes and sends that may be outstanding to one peer
	RecvDepth  int    // receives that may be posted
	Ordered    bool   // what one peer posts becomes visible in the order of posting; see Order in the package's documentation
	CrossHost  bool   // peers may be on other hosts
	PeerCopies bool   // peers have this memory mapped and copy into it themselves, so that Close proves nothing about what they do
	HeapMemory bool   // Memory.Bytes may be on the Go heap
	Phantom    bool   // takes Memory.Phantom
	DMABuf     bool   // takes Memory.DMABuf
	PinsMemory bool   // registered memory counts against RLIMIT_MEMLOCK
	GrantRange bool   // a grant is enforced to its range, not only to the whole memory
	Refusals   bool   // the receiver checks and tells with KindRefused; false: the writer checks by itself and always learns of a refusal
	AccessEnds bool   // a write that is refused may end its connection; see Refusals in the package's documentation
	NoImmLen   bool   // the network does not tell how long a write with an immediate was: KindImm.Len is 0
	LinkBits   uint64 // speed for placement, bits per second; 0 when unknown
	Fabric     string // that of the Device, also when Open was given a device that Devices does not list

	// DrainBound is the longest time between a peer's death (or Disconnect) and the last flushed completion.
	DrainBound time.Duration
}

// MinMaxSend is the message size that every provider supports, bytes.
const MinMaxSend = 64 << 10
