package proto

import (
	"time"

	"github.com/hawser-project/hawser/kv/layout"
	"github.com/hawser-project/hawser/kv/pool"
)

// Request is D's number of a request.
type Request uint64

// Link is D's number of a link: of an address, whatever peers answer there over time. Not 0.
type Link uint32

// Defaults of a DecoderConfig.
const (
	DefaultQueue    = 1024
	DefaultTries    = 3
	DefaultDeadline = 2 * time.Minute
	DefaultStall    = 5 * time.Second
)

// DecoderConfig is what NewDecoder needs. Instance and Topology are required.
type DecoderConfig struct {
	Instance string
	Member   int              // of Topology.Members: this decoder
	Topology *layout.Topology // of all members of D's instance; must not change
	Options  layout.Options
	// Pools lend the pages, one for each group of layers. nil: callers of Fetch bring pages, as they must when the instance has
	// several members. With one group without a window the pool is also the prefix cache.
	Pools []*pool.Pool
	// TailSlots is the number of tails that can be under way or unread at a time, TailBytes the longest. Both or none.
	TailSlots, TailBytes int
	Verify               bool          // a request is ready only when the digests of its writers are proved
	Epoch                uint64        // epochs of links begin above it; a decoder made later on the same engine needs a larger one
	Queue                int           // requests that wait for a link, credits or pages; DefaultQueue when 0
	Tries                int           // attempts of a request; DefaultTries when 0
	QuarantineMax        int           // quarantined pages that are reported as Exceeded; never when 0
	Deadline             time.Duration // from Fetch to ready; DefaultDeadline when 0
	// Stall is how long a peer that is up may send neither a write nor an answer before an attempt is given up, and how long it may
	// leave a Cancel unanswered before it is fenced; DefaultStall when 0.
	Stall time.Duration
}

// DecoderOut is what the machine wants done. Its methods are called during events and must not call the machine.
type DecoderOut interface {
	Connect(l Link, addr string)       // answered by Connected or ConnectFailed
	Describe(p Peer) ([][]byte, error) // descriptors for one Hello, issued now: a fence makes earlier ones worthless
	Send(p Peer, data []byte)          // may be lost; data is the receiver's
	// Fence is answered by Fenced or Unfenced; it is called again a while after Unfenced. Fenced comes after every PeerDown about the
	// session that the fence ends: one that came later would end the next link.
	Fence(p Peer)
	Take(seq uint64) (imm uint32, err error)  // an immediate for an attempt; hawser.ErrLimit: later, see Room
	Expect(seq uint64, p Peer, writes uint64) // before the Dispatch to p
	Await(seq uint64, more uint64)            // call Counted(seq) when that many more writes were counted than at this call; replaces the one before; 0: none
	Landed(seq uint64, p Peer) uint64         // writes of p counted on the attempt's immediate, now
	Put(seq uint64)                           // nothing of it can land any more; the end of Take
	Verify(seq uint64, p Peer, sums []uint64) // compare with what is here; answered by Verified
	Ready(r Request, res Result)              // pages and tail are the caller's until Release(r)
	Ended(r Request, err error)               // it will not become ready; once per request that is not Ready
	Quiet(r Request)                          // nothing of any attempt of r can land any more; after Ready or Ended, at most once
	Note(n Note)
}

// Source is the addresses of all members of one prefill instance, in the order of its topology. A source is known by this list.
type Source struct{ Writers []string }

// Fetch asks for the cache of one prompt. The machine keeps the slices, which must not change, until the request has ended.
type Fetch struct {
	ID     string // the same on both sides and on all members; at most MaxRequestID bytes
	Prompt Prompt
	Blocks []pool.Hash // of the prompt's full pages, for the prefix cache; nil: neither looked up nor published
	// Spans and Pages are for callers who bring their pages, one for each group: Pages has the physical page of each page of the
	// span. Both nil: pages come from the pools, and the machine works out the spans.
	Spans    []Span
	Pages    [][]uint32
	From     []Source // the first one is preferred; the others are alternatives for retries
	Tail     bool     // wait for the tail; then the span ends at the end of the prompt, else one token before
	Priority int8     // higher goes first
	Deadline Time     // 0: DecoderConfig.Deadline from now
	Trace    [16]byte // trace context
}

// Result is a prompt whose cache is here.
type Result struct {
	Pages  [][]uint32 // of each group: physical pages of the tokens [First, N), those of the prefix first; read only
	Spans  []Span     // of each group: what Pages hold. With a window, First is the begin of the window's first page
	Prefix int        // tokens that were here already, in whole pages
	Tail   TailRef    // valid when the Fetch asked for it
	Try    int        // number of the attempt that filled them; 0: nothing had to be fetched
	Seq    uint64     // of the attempt that filled them; 0: none
	Writes uint64     // that were counted
	Bytes  uint64     // that they moved, tail not counted

	Arrived, Dispatched, Ready Time
}

// TailRef names what a tail slot held at one time. See Decoder.TailIs.
type TailRef struct {
	Slot       uint32
	Generation uint64 // 0: there is no tail
}

// Health is of the decoder itself: it never depends on a peer.
type Health struct {
	Draining    bool
	Quarantined int  // pages out of service until a fence is proved
	Stuck       int  // fences without a proof
	Exceeded    bool // more pages than DecoderConfig.QuarantineMax: only a new process helps
}

// Degraded reports whether something is out of service.
func (h Health) Degraded() bool { return h.Quarantined > 0 || h.Stuck > 0 }

// DecoderStats is a snapshot; the fields from Retries on only grow.
type DecoderStats struct {
	Waiting     int // requests that have no pages yet
	Live        int // attempts whose pages may still be written
	Held        int // requests that are ready and not released
	Links       int // links that are up
	Quarantined int // pages
	Fencing     int // fences under way

	Requests, Ready, Failed, Cancelled    uint64
	Retries                               uint64
	Fences, Unfenced                      uint64 // begun; tries without a proof
	Overruns, SettleTimeouts, LostCancels uint64 // peers that wrote too much; that did not write what they said; that did not answer
	Dropped, Malformed                    uint64 // messages of an ended epoch or a stranger; that could not be read
	Unexpected                            uint64 // events that mean nothing in their state
}

// AttemptInfo is a row of "ps".
type AttemptInfo struct {
	Request  string
	Number   Request
	Seq      uint64 // 0: it waits
	State    string
	Try      int
	Pages    int
	Age      time.Duration // since the state began
	Deadline time.Duration // that is left
	Waits    string        // for what, while it waits
	Writers  []Owed
}
