package sim

import "time"

// NIC is what one simulated port can do. The zero value of each field means the default, which makes an adversary: slow
// enough to be overtaken and with a jitter that mixes everything. The profiles below are models.
type NIC struct {
	LinkBits  uint64        // bits per second of payload, default 100e9
	Latency   time.Duration // of the first byte, one way between two such NICs, default 5 µs
	Jitter    time.Duration // largest random addition to a delay, default 20 µs; negative is none
	OpCost    time.Duration // time of the port's engine for each WR, while the wire is busy with others; 1/OpCost is its message rate; default 100 ns
	MTU       uint64        // bytes of a fragment, default 4096; a write has at most maxFragments, so long writes have longer ones
	MaxMsg    uint64        // default 1 GiB
	PeerDepth int           // default 128
	RecvDepth int           // default 512
	Ordered   bool          // one connection's fragments take effect in the order of posting, as with RC queue pairs; Caps.Ordered

	// AccessEnds: a write that is refused ends its connection, of which the writer alone learns why, as with RC queue pairs;
	// Caps.AccessEnds. Such a NIC tells of no refusal (Caps.Refusals) and cannot revoke.
	AccessEnds bool

	// PostCost is the time of the owner for each WR, DoorbellCost the addition for each run of WRs to one peer in a Post. One owner is
	// whoever opens domains with one Bell, so its domains wait for each other. Default 0.
	PostCost, DoorbellCost time.Duration
}

func withDefaults(nics []NIC) []NIC {
	out := make([]NIC, len(nics))
	for i, n := range nics {
		orDefault(&n.LinkBits, 100e9)
		orDefault(&n.Latency, 5*time.Microsecond)
		orDefault(&n.Jitter, 20*time.Microsecond)
		orDefault(&n.OpCost, 100*time.Nanosecond)
		orDefault(&n.MTU, 4096)
		orDefault(&n.MaxMsg, 1<<30)
		orDefault(&n.PeerDepth, 128)
		orDefault(&n.RecvDepth, 512)
		out[i] = n
	}
	return out
}

// serial is the time of n bytes on the wire.
func (n *NIC) serial(bytes uint64) time.Duration {
	return time.Duration(float64(bytes) * 8 * float64(time.Second) / float64(n.LinkBits))
}

// none is a Jitter that is not there.
const none = -1

// ConnectX7 is what one GPU has with one 400 Gbit/s InfiniBand or RoCE port and RC queue pairs. Calibrated on published
// rows: bandwidth on paged writes of 64 KiB (370 Gbit/s), latency on single writes of 256 KiB (116 Gbit/s), costs on
// paged writes of 1 KiB (11.1 M op/s) and on posting to 56 peers (8.5 µs). TestProfiles predicts others.
func ConnectX7() []NIC {
	return []NIC{{
		LinkBits: 370e9, Latency: 6100 * time.Nanosecond, Jitter: none, OpCost: 90 * time.Nanosecond, MTU: 4096,
		MaxMsg: 1 << 30, PeerDepth: 256, RecvDepth: 512, Ordered: true,
		PostCost: 88 * time.Nanosecond, DoorbellCost: 64 * time.Nanosecond,
	}}
}

// EFA2x200 is what one GPU has with two 200 Gbit/s Elastic Fabric Adapters, whose datagrams are reliable and unordered. Calibrated on
// the same rows (364 Gbit/s, 54 Gbit/s, 2.1 M op/s for both adapters together, which is what one core can post; 27.9 µs).
func EFA2x200() []NIC { return efa(2, 182e9) }

// EFA4x100 is the older kind with four adapters of 100 Gbit/s. Only sums over all adapters are published; it is taken to
// differ from EFA2x200 in nothing else.
func EFA4x100() []NIC { return efa(4, 91e9) }

func efa(n int, bits uint64) []NIC {
	nics := make([]NIC, n)
	for i := range nics {
		nics[i] = NIC{
			LinkBits: bits, Latency: 16 * time.Microsecond, Jitter: none, OpCost: 100 * time.Nanosecond, MTU: 8192,
			MaxMsg: 1 << 30, PeerDepth: 256, RecvDepth: 512,
			PostCost: 475 * time.Nanosecond, DoorbellCost: 23 * time.Nanosecond,
		}
	}
	return nics
}

// RoCE is a plain 100 Gbit/s port with RC queue pairs over Ethernet. It is calibrated on nothing: payload of 1 KiB packets
// on the wire, and round numbers that such adapters are sold with.
func RoCE() []NIC {
	return []NIC{{
		LinkBits: 92e9, Latency: 3 * time.Microsecond, Jitter: none, OpCost: 200 * time.Nanosecond, MTU: 1024,
		MaxMsg: 1 << 30, PeerDepth: 256, RecvDepth: 512, Ordered: true,
		PostCost: 150 * time.Nanosecond, DoorbellCost: 100 * time.Nanosecond,
	}}
}
