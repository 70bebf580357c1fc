package proto

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv/layout"
)

// Time limits of the protocol on D. Safety does not depend on any of them: they bound waits.
const (
	repeatFirst  = 200 * time.Millisecond // Hello and Dispatch are repeated, at twice the distance each time
	cancelFirst  = 50 * time.Millisecond  // Cancel too; pages wait for its answer
	repeatMost   = time.Second
	linkLimit    = 5 * time.Second // for an answer to Hello, and for a fence before it
	settleLimit  = time.Second     // the last writes after the answer
	digestLimit  = 5 * time.Second // the digest after the last write
	fencePause   = time.Second     // between two tries of a fence
	silence      = time.Second     // without an immediate: then the peer is asked
	queryPause   = 2 * time.Second // between two Queries on a link
	backoffFirst = 200 * time.Millisecond
	backoffMost  = time.Second      // when requests wait for the link
	backoffWarm  = 30 * time.Second // when none does

	idleBeats = 3 // that say that nothing is live any more: any but all may be lost
)

// Decoder is the decode side of the protocol. It owns everything in the files fetch*.go and decoder*.go. Owner: see the package comment.
type Decoder struct {
	cfg    DecoderConfig
	out    DecoderOut
	now    Time
	timers timers

	topology []byte // own, encoded
	mine     *layout.Topology
	paired   *Pairing // the latest
	groups   []layout.Group
	cache    bool // the pool is a prefix cache

	requests    map[Request]*fetchRequest
	attempts    map[uint64]*fetchAttempt // not quiet, or ready and not released
	lastRequest Request
	lastSeq     uint64
	epoch       uint64

	links   map[string]*fetchLink // by address
	byID    map[Link]*fetchLink
	peers   map[Peer]*fetchLink // those that have said Hello
	fences  map[Peer]*fence
	sources map[string]*fetchSource
	inOrder []*fetchLink // of links, in the order of their numbers
	lastID  Link
	ending  *fetchLink // endLink is at work

	queue    []*fetchRequest // may start as far as their source is concerned, see fetch_queue.go
	first    *fetchRequest   // of queue, when it could not start
	waiting  int             // requests in queue, parked, or delayed
	kick     bool            // the queue may move
	touched  []*fetchAttempt // to be looked at before the event ends
	entering *fetchRequest   // in Fetch: it must not be told anything yet
	budget   budget
	pace     Time // when the next paced retry may begin, if all 32 were taken

	tails     []tailSlot
	freeTails []uint32
	borrowed  [][]uint64 // sets of callers' pages that may be written, by group; nil before the first

	live, quarantined, stuck, held int
	closing, draining              bool
	stats                          DecoderStats
	unexpectedWriter               [writerStates][writerEvents]uint64
	unexpectedFetch                [fetchStates][fetchEvents]uint64
	seen                           seenByDecoder
	fault                          error // a broken invariant

	// Scratch, so that a Dispatch is one allocation.
	buf      []byte
	dispatch Dispatch
	parts    [MaxGroups]Group
	spans    []Span
}

// tailSlot is one slot of the tail buffer.
type tailSlot struct {
	owner      Request // 0: free
	generation uint64  // of the owner's attempt; never the same twice
}

// NewDecoder makes a machine. Errors are ErrInvalid and about the configuration.
func NewDecoder(cfg DecoderConfig, out DecoderOut) (*Decoder, error) {
	cfg.Queue = cmp.Or(cfg.Queue, DefaultQueue)
	cfg.Tries = cmp.Or(cfg.Tries, DefaultTries)
	cfg.Deadline = cmp.Or(cfg.Deadline, DefaultDeadline)
	cfg.Stall = cmp.Or(cfg.Stall, DefaultStall)
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("kv: decoder: %w", err)
	}
	d := &Decoder{
		cfg: cfg, out: out, topology: cfg.Topology.AppendBinary(nil), mine: MemberOf(cfg.Topology, cfg.Member), epoch: cfg.Epoch,
		requests: map[Request]*fetchRequest{}, attempts: map[uint64]*fetchAttempt{}, links: map[string]*fetchLink{}, byID: map[Link]*fetchLink{},
		peers: map[Peer]*fetchLink{}, fences: map[Peer]*fence{}, sources: map[string]*fetchSource{}, tails: make([]tailSlot, cfg.TailSlots),
	}
	d.groups = d.mine.Members[0].Groups
	d.cache = len(cfg.Pools) == 1 && d.groups[0].Window == 0
	for i := range d.tails {
		d.freeTails = append(d.freeTails, uint32(len(d.tails)-1-i))
	}
	return d, nil
}

// MemberOf is what one decoder of an instance wants for itself: a topology of that member alone. Both sides plan for it.
func MemberOf(t *layout.Topology, member int) *layout.Topology {
	return &layout.Topology{Members: t.Members[member : member+1 : member+1]}
}

func (cfg *DecoderConfig) check() error {
	if cfg.Topology == nil {
		return fmt.Errorf("%w: no topology", hawser.ErrInvalid)
	}
	if err := cfg.Topology.Check(); err != nil {
		return err
	}
	groups := 0
	if cfg.Member >= 0 && cfg.Member < len(cfg.Topology.Members) {
		groups = len(cfg.Topology.Members[cfg.Member].Groups)
	}
	switch {
	case groups == 0 || cfg.Member >= MaxMembers:
		return fmt.Errorf("%w: member %d, the topology has %d, want at most %d", hawser.ErrInvalid, cfg.Member, len(cfg.Topology.Members), MaxMembers)
	case groups > MaxGroups:
		return fmt.Errorf("%w: %d groups, want at most %d", hawser.ErrInvalid, groups, MaxGroups)
	case cfg.Instance == "" || len(cfg.Instance) > maxName:
		return fmt.Errorf("%w: the instance's name has %d bytes, want 1 .. %d", hawser.ErrInvalid, len(cfg.Instance), maxName)
	case (cfg.TailSlots == 0) != (cfg.TailBytes == 0) || cfg.TailSlots < 0 || cfg.TailBytes < 0 || cfg.TailSlots > MaxPages:
		return fmt.Errorf("%w: %d tail slots of %d bytes", hawser.ErrInvalid, cfg.TailSlots, cfg.TailBytes)
	case len(cfg.Pools) > 0 && len(cfg.Pools) != groups:
		return fmt.Errorf("%w: %d pools, there are %d groups of layers", hawser.ErrInvalid, len(cfg.Pools), groups)
	case len(cfg.Pools) > 0 && len(cfg.Topology.Members) > 1:
		return fmt.Errorf("%w: pools, and %d members: callers must bring the pages, as all members need the same", hawser.ErrInvalid, len(cfg.Topology.Members))
	case cfg.Queue < 0 || cfg.Tries < 0 || cfg.Deadline < 0 || cfg.Stall < 0:
		return fmt.Errorf("%w: negative limit", hawser.ErrInvalid)
	}
	g := &cfg.Topology.Members[cfg.Member]
	for i, p := range cfg.Pools {
		if n := g.PoolPages(i); p.Pages() > n && n > 0 || p.Pages() > MaxPages {
			return fmt.Errorf("%w: pool %d has %d pages, the views have %d", hawser.ErrInvalid, i, p.Pages(), n)
		}
	}
	return nil
}

// enter begins an event.
func (d *Decoder) enter(now Time) { d.now = max(d.now, now) }

// leave ends one: what the event made possible begins.
func (d *Decoder) leave() {
	for d.kick || len(d.touched) > 0 {
		d.settleTouched()
		if d.kick {
			d.kick = false
			d.admit()
		}
	}
	if d.closing || d.draining {
		d.goodbye()
	}
}

// Tick does what is due. See Next.
func (d *Decoder) Tick(now Time) {
	d.enter(now)
	for len(d.timers.heap.items) > 0 && d.timers.heap.items[0].at <= d.now {
		t := d.timers.heap.items[0]
		d.timers.clear(t)
		t.owner.due(d.now)
	}
	d.leave()
}

// Next is when Tick is due, false when nothing waits for the time.
func (d *Decoder) Next() (Time, bool) {
	if len(d.timers.heap.items) == 0 {
		return 0, false
	}
	return d.timers.heap.items[0].at, true
}

// Room says that pages may have come back to a pool, or immediates to the engine.
func (d *Decoder) Room(now Time) {
	d.enter(now)
	d.kick = true
	d.leave()
}

// Drain ends admission: Fetch fails with ErrDraining. What was asked for goes on.
func (d *Decoder) Drain(now Time) {
	d.enter(now)
	if !d.draining {
		d.draining = true
		for _, l := range d.inOrder {
			if l.state == linkUp {
				d.send(l, &Drain{})
			}
		}
	}
	d.leave()
}

// Close cancels every request that is not ready, with hawser.ErrClosed. Done tells when nothing can land any more.
func (d *Decoder) Close(now Time) {
	d.enter(now)
	if !d.closing {
		d.closing, d.draining = true, true
		d.stopAll(fmt.Errorf("decoder: %w", hawser.ErrClosed))
	}
	d.leave()
}

func (d *Decoder) stopAll(cause error) {
	ids := make([]Request, 0, len(d.requests))
	for id := range d.requests {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		if r := d.requests[id]; r != nil {
			d.stop(r, cause)
		}
	}
}

// Done reports whether nothing waits and nothing may be written any more. Ready requests may still be held.
func (d *Decoder) Done() bool { return d.live == 0 && d.waiting == 0 && len(d.fences) == 0 }

// goodbye ends the links of a decoder that is draining, when nobody needs them.
func (d *Decoder) goodbye() {
	if d.waiting > 0 {
		return
	}
	for _, l := range slices.Clone(d.inOrder) {
		if l.state == linkUp && (l.quiet() || broken(mutBye)) {
			d.send(l, &Bye{Text: "decoder drained"})
			d.endLink(l, fmt.Errorf("decoder: %w", hawser.ErrClosed), false)
		}
	}
}

// defect keeps the first broken invariant. See Check.
func (d *Decoder) defect(err error) {
	if err != nil && d.fault == nil {
		d.fault = err
	}
}

// note tells observers.
func (d *Decoder) note(n Note) { d.out.Note(n) }

// unexpected counts an event that means nothing where it came.
func (d *Decoder) unexpected(state, event string) {
	d.stats.Unexpected++
	d.note(Note{Kind: NoteUnexpected, From: state, To: event})
}

// Unexpected calls f for each pair of a state and an event that came although it means nothing, "writer" or "fetch" before the state.
func (d *Decoder) Unexpected(f func(state, event string, n uint64)) {
	for s := range d.unexpectedWriter {
		for e, n := range d.unexpectedWriter[s] {
			if n > 0 {
				f("writer "+writerState(s).String(), writerEventKind(e).String(), n)
			}
		}
	}
	for s := range d.unexpectedFetch {
		for e, n := range d.unexpectedFetch[s] {
			if n > 0 {
				f("fetch "+fetchState(s).String(), fetchEventKind(e).String(), n)
			}
		}
	}
}
