package wire

import "github.com/hawser-project/hawser/provider"

// LinkBuckets is into how many classes LinkNotice sorts immediates by value.
const LinkBuckets = 64

// MaxRefused bounds LinkNotice.Refused; more than a provider lets a writer have outstanding is never of use.
const MaxRefused = 4096

// LinkStep says which step in the life of a link a LinkNotice is.
type LinkStep uint8

const (
	// LinkReport: the sender has closed its end, and this is what had arrived over it; nothing more of it can land.
	LinkReport LinkStep = iota + 1
	// LinkOffer: the leader of the session wants to connect the link anew.
	LinkOffer
	// LinkAnswer: the address of the other side, or why there is none.
	LinkAnswer
)

// LinkNotice is what two sides of a session tell each other about one link of it.
type LinkNotice struct {
	Step  LinkStep
	Link  uint16
	Epoch uint32 // which connection of the link; the leader counts them

	// Of LinkReport.
	Ordered  uint8    // 1: what is below was counted on an ordered network
	Imms     uint64   // immediates that arrived
	Refusals uint64   // writes with immediates that were refused, where the network tells their receiver
	Refused  []uint64 // the last of them: how many immediates, refused or not, had arrived before each
	Messages uint64   // messages that arrived
	Buckets  []uint32 // Imms by class of value

	// Of LinkOffer and LinkAnswer.
	Class uint8  // 0 is the path of the session; links of higher classes stand by
	Rail  uint16 // of the receiver
	Addr  []byte // one-time address of the sender's end
	Fault string
}

func (m *LinkNotice) fields(c *codec) {
	c.u8((*uint8)(&m.Step))
	c.u16(&m.Link)
	c.u32(&m.Epoch)
	switch m.Step {
	case LinkReport:
		c.u8(&m.Ordered)
		c.u64(&m.Imms)
		c.u64(&m.Refusals)
		list64(c, &m.Refused, MaxRefused)
		c.u64(&m.Messages)
		list32(c, &m.Buckets, LinkBuckets)
	case LinkOffer, LinkAnswer:
		c.u8(&m.Class)
		c.u16(&m.Rail)
		c.bytes(&m.Addr, provider.MaxAddr)
		c.text(&m.Fault)
	default:
		c.unknown("link step", uint64(m.Step))
	}
}
