package wire

// Messages of bulk transfers: large messages that travel in chunks over the control connection. The number in the header names the
// transfer; the side that sends the data chooses it, new for each transfer of a session.
//
//	sender ── BulkOffer ──► receiver
//	       ◄─ BulkAck 0 ───          there is room for all of it
//	       ── BulkChunk ──►          as far as BulkWindow is ahead of the last BulkAck
//	       ◄─ BulkAck n ───          n bytes are here; all of them: the message is delivered
//	       ── BulkCancel ─►          at any time: the sender gives up
//
// The payload of a BulkChunk is the next bytes of the transfer, at least one; BulkCancel has none.
const (
	TypeBulkOffer Type = iota + 64
	TypeBulkChunk
	TypeBulkAck
	TypeBulkCancel
)

// Limits of bulk transfers.
const (
	MaxBulk    = 64 << 20  // bytes of one transfer
	BulkChunk  = 64 << 10  // bytes of a chunk at most: what a beat may have to wait for
	BulkWindow = 1 << 20   // bytes on their way at most: what an answer may have to wait for in the buffers of the connection
	BulkStride = 256 << 10 // bytes between two acks at most
	MaxBulks   = 4         // transfers of one session and direction at once, from the offer to the last ack
)

// BulkOffer announces a message of Len bytes.
type BulkOffer struct{ Len uint64 }

func (m *BulkOffer) fields(c *codec) { c.u64(&m.Len) }

// BulkAck says how many bytes of a transfer are here.
type BulkAck struct{ Received uint64 }

func (m *BulkAck) fields(c *codec) { c.u64(&m.Received) }
