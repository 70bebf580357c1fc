package provider

// Op is the kind of a WR.
type Op uint8

const (
	// OpWrite copies Len bytes from {Local, LocalAddr} to {Remote, RemoteAddr}. Len may be 0.
	OpWrite Op = iota + 1
	// OpWriteImm is OpWrite; when all its bytes are visible at the peer, the peer's Poll returns one KindImm.
	OpWriteImm
	// OpSend copies Len bytes into a receive that the peer has posted. It waits until there is one.
	OpSend
	// OpRecv posts the buffer {Local, LocalAddr, Len} for one message of any peer. Peer is ignored.
	OpRecv
)

// WR is a work request. It is 64 bytes and holds no Go pointer, so that a slice of them can be handed to C as it lies.
type WR struct {
	Token      uint64 // the owner's; comes back in the Completion
	LocalKey   uint64 // Key.ID of a key of Register; ignored when Len is 0
	LocalAddr  uint64 // Key.Base + offset
	RemoteKey  uint64 // Key.ID of a key of the peer's Grant; ignored when Len is 0
	RemoteAddr uint64 // Key.Base + offset
	Len        uint64 // bytes
	Peer       Peer
	Imm        uint32
	Op         Op
	_          [7]byte
}

// Kind is the kind of a Completion.
type Kind uint8

const (
	// KindWrite: an OpWrite or OpWriteImm of ours has ended. StatusOK means placed in the peer's memory (and its
	// immediate queued to the peer's owner); any status means that no local byte is read any more.
	KindWrite Kind = iota + 1
	// KindSend: an OpSend of ours has ended; StatusOK means that the peer's network has taken the message.
	KindSend
	// KindRecv: a message of Peer lies in the buffer of Token; Len is its length. StatusTruncated: the message was
	// longer than the buffer and is lost, the buffer is the owner's again. StatusFlushed: the Domain is closing.
	KindRecv
	// KindImm: an OpWriteImm of Peer was placed; Imm and Len are those of its WR (Len unless Caps.NoImmLen).
	KindImm
	// KindPeerUp: Connect succeeded on this side; writes may be posted. The other side may see it a little later.
	KindPeerUp
	// KindPeerDown: the connection is gone. Status says why: StatusFlushed after Disconnect or Fence,
	// StatusPeerDown after the other side closed or died, StatusRefused when Connect failed, StatusProtocol when
	// the peer broke the protocol, StatusAccess when Revoke met a payload that had arrived in part, or when a write that was refused
	// ended the connection (Caps.AccessEnds).
	KindPeerDown
	// KindFenced: the outcome of Fence, StatusOK or StatusUnfenced.
	KindFenced
	// KindRefused: an OpWriteImm of Peer was refused here and ends with StatusAccess there; Imm and Len are those of its WR, Status
	// is StatusAccess. A plain write that is refused is not told. Only where Caps.Refusals say so.
	KindRefused
)

// Status is the outcome that a Completion reports.
type Status uint8

const (
	// StatusOK is success.
	StatusOK Status = iota
	// StatusFlushed: not executed, or not known to be, because the connection or the Domain ended first.
	StatusFlushed
	// StatusAccess: the peer refused the key, the range or the right. No byte was written.
	StatusAccess
	// StatusLocal: the WR itself is bad: unknown local key, range outside the local memory, too long, unknown op.
	StatusLocal
	// StatusTruncated: see KindRecv.
	StatusTruncated
	// StatusPeerDown: see KindPeerDown.
	StatusPeerDown
	// StatusRefused: see KindPeerDown.
	StatusRefused
	// StatusProtocol: see KindPeerDown.
	StatusProtocol
	// StatusUnfenced: see Domain.Fence.
	StatusUnfenced
)

// Completion is 32 bytes and holds no Go pointer.
type Completion struct {
	Token  uint64 // of the WR; 0 for KindImm, KindRefused and the peer kinds
	Len    uint64 // bytes, for KindRecv, KindImm and KindRefused
	Peer   Peer   // always set, except for a KindRecv that is flushed
	Imm    uint32
	Kind   Kind
	Status Status
	_      [2]byte
	Detail uint32 // the provider's own code, for logs; 0 when there is none
}

func (k Kind) String() string {
	return name(int(k), "", "write", "send", "recv", "imm", "peer-up", "peer-down", "fenced", "refused")
}

func (s Status) String() string {
	return name(int(s), "ok", "flushed", "access", "local", "truncated", "peer-down", "refused", "protocol", "unfenced")
}

func (o Op) String() string {
	return name(int(o), "", "write", "write-imm", "send", "recv")
}

func name(i int, names ...string) string {
	if i < len(names) && names[i] != "" {
		return names[i]
	}
	return "unknown"
}
