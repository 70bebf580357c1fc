package wire

// TypeRevoke tells a peer to stop using a region of the sender's; TypeRevoked, which has no payload, answers when nothing that it had
// under way can land there any more.
const (
	TypeRevoke Type = iota + 80
	TypeRevoked
)

// MaxRevokes is how many TypeRevoke may be unanswered.
const MaxRevokes = 256

// Revoke names a region. Descriptors that were issued before are stale.
type Revoke struct{ Region uint64 }

func (m *Revoke) fields(c *codec) { c.u64(&m.Region) }

// Revoked answers Revoke.
type Revoked struct{}

func (m *Revoked) fields(*codec) {}
