package rail

import (
	"fmt"
	"sync/atomic"

	"github.com/hawser-project/hawser/internal/wire"
	"github.com/hawser-project/hawser/provider"
)

// Peer is one session with another engine, as the worker sees it. Owned by the worker, except Tag, Number and Allowed, which are immutable.
type Peer struct {
	Tag     any    // the sink's
	Number  uint32 // the sink's
	Allowed []bool // rails that the other side may offer connections to; nil: all

	links    []*link
	class    uint8  // of the links that carry operations: the lowest that has one in service
	ready    int    // links in service, of any class
	ops      opList // writes and signals that have parts to post
	messages opList // messages to post: a peer that does not read them must not hold up its writes
	sends    int    // messages in flight
	step     uint64 // the last one in which operations were placed at once,
	atOnce   int    // and how many there were
	queued   bool
	down     bool
	live     bool        // failed links are replaced, not reported as the end; see Group.Live
	moves    uint64      // what its links had moved at the last Tick
	stirred  atomic.Bool // see Stirred
	lead     bool        // this side begins new connections
	fencing  int         // outcomes of the running Fence that are not there yet
	unproved bool        // one of them was that there is no proof
	asking   []*Remote
	slots    []Slot // of a leader, by link
	next     *Peer  // in the group's turn order
}

// Slot says which rails a link may join. A leader knows one for each link, those that stand by included.
type Slot struct {
	Local  int
	Remote []uint16 // rails of the other side, the paired one first; the others are tried when it fails
	Class  uint8    // 0 is the path of the session; higher classes are connected when no link of a lower one is in service
}

// Counts are what went over one link, or over all links of a peer. Owned by the worker.
type Counts struct {
	TxBytes, TxWrites              uint64 // of WRs that have ended; bytes of those without error
	TxImms, TxMessages             uint64 // that the other side is known to have counted, and taken
	RxImms, RxImmBytes, RxMessages uint64
	RxRefused                      uint64 // writes with immediates that were outside of what the peer may write
	Resent                         uint64 // WRs that went down with a connection and were placed again
	Losses                         uint64 // connections that failed
	Denials                        uint64 // connections that a refused write has ended, on networks where it does; see provider.Caps.AccessEnds
}

// Add adds d to c.
func (c *Counts) Add(d Counts) {
	c.TxBytes += d.TxBytes
	c.TxWrites += d.TxWrites
	c.TxImms += d.TxImms
	c.TxMessages += d.TxMessages
	c.RxImms += d.RxImms
	c.RxImmBytes += d.RxImmBytes
	c.RxMessages += d.RxMessages
	c.RxRefused += d.RxRefused
	c.Resent += d.Resent
	c.Losses += d.Losses
	c.Denials += d.Denials
}

// LinkInfo describes a link. See Group.Links.
type LinkInfo struct {
	Counts
	Rail  int // local
	Load  int // WRs outstanding
	Class uint8
	Epoch uint32
	Ready bool
}

// linkState is the life of one connection of a link.
//
//	idle ──► offered ──► probing ──► ready ──► lost ──► idle ...
//	            └───────────┴────────────────────┘
type linkState uint8

const (
	idle    linkState = iota // no connection; everything about the last one is known
	offered                  // being connected
	probing                  // up, and a write that proves it is under way
	ready                    // in service
	lost                     // over; waits for the fence, for its WRs, and for the report of the other side
)

// link is a place for connections of a peer: one at a time, numbered by epoch.
type link struct {
	peer   *Peer
	index  int
	class  uint8
	rail   *railState
	counts Counts // since it joined its rail, but for what conn has
	before Counts // when it was of other rails
	home   *railState

	epoch       uint32
	state       linkState
	handle      provider.Peer // 0 once it is proved silent
	fencing     bool
	outstanding int    // WRs
	sends       int    // messages among them: they may wait for their reader for ever
	load        uint64 // bytes, plus perWR for each WR
	landed      uint64 // WRs that have ended, in all epochs
	conn               // of this epoch

	tries   int    // connections in a row that failed
	strikes int    // what the other side has cost us; see strike
	since   uint64 // tick of the last change of state
	retryAt uint64 // tick
	seen    uint64 // landed at the last look for a stall
	stalled int    // ticks without progress

	failedAt uint64 // tick of the last loss of a connection that was in service
}

// conn is the account of one connection: what a fair division of what went down with it needs.
type conn struct {
	posted      uint64 // WRs,
	postedImms  uint64 // and those with immediates
	doneSeq     uint64 // the last immediate that the other side has counted, as far as its answers say: its number among the WRs
	ackImms     uint64 // immediates that the other side has counted,
	refusedImms uint64 // or refused, as far as its answers say
	ackMsgs     uint64
	ackBucket   [wire.LinkBuckets]uint32 // ackImms by class of value

	rxImms     uint64 // immediates that arrived here
	rxRefusals uint64 // and those that were refused here, where the network tells
	rxMsgs     uint64
	refused    []uint64 // of the last refusals: how many immediates, refused or not, had arrived before
	rxBucket   [wire.LinkBuckets]uint32

	lost     []flight         // WRs that ended without an answer
	denied   bool             // a write of ours was refused, which ends the connection
	reported bool             // our report has been sent
	proved   bool             // nothing of the other side can land any more
	report   *wire.LinkNotice // of the other side
}

// perWR is what a write costs beside its bytes, expressed in bytes, so that placement spreads small writes too.
const perWR = 512

// bucket is the class of an immediate; see wire.LinkNotice. Fibonacci hashing, as users' values are mostly consecutive.
// hot:
func bucket(imm uint32) uint32 { return imm * 0x9e3779b1 >> 26 }

// Offer reserves link number len(links) of p on a rail and returns the address for the other side. A peer that has failed gets
// no more links: its fence would not cover them.
func (g *Group) Offer(p *Peer, rail int) (provider.Addr, error) {
	l := &link{peer: p, index: len(p.links), rail: g.rails[rail]}
	addr, err := g.offer(l)
	if err != nil {
		return nil, err
	}
	p.links = append(p.links, l)
	return addr, nil
}

// offer reserves the next connection of a link that is idle.
func (g *Group) offer(l *link) (provider.Addr, error) {
	r := l.rail
	if l.peer.down || r.dead {
		return nil, fmt.Errorf("offer on rail %d: %w", r.index, provider.ErrClosed)
	}
	h, addr, err := r.dom.Offer()
	if err != nil {
		return nil, fmt.Errorf("offer on rail %d: %w", r.index, err)
	}
	l.counts = l.counted()
	r.join(l)
	l.epoch++
	l.handle, l.state, l.since, l.conn = h, offered, g.ticks, conn{}
	for len(r.links) <= h.Index() {
		r.links = append(r.links, nil)
	}
	r.links[h.Index()] = l
	return addr, nil
}

// Connect connects link i of p. The outcome comes as Sink.Link.
func (g *Group) Connect(p *Peer, i int, remote provider.Addr, active bool) error {
	l := p.links[i]
	if err := l.rail.dom.Connect(l.handle, remote, active); err != nil {
		return fmt.Errorf("connect link %d over rail %d: %w", i, l.rail.index, err)
	}
	return nil
}

// Ready is how many links are in service.
func (p *Peer) Ready() int { return p.ready }

// Stirred reports whether, at a Tick since the last call, anything to p was under way or had moved in either direction since the Tick
// before. Anybody may call it.
func (p *Peer) Stirred() bool { return p.stirred.Load() && p.stirred.Swap(false) }

// stir is called at each Tick.
func (p *Peer) stir() {
	moves, open := uint64(0), p.ops.head != nil || p.messages.head != nil
	for _, l := range p.links {
		moves += l.landed + uint64(l.epoch) + l.counts.RxImms + l.counts.RxMessages + l.counts.RxRefused
		open = open || l.outstanding > 0
	}
	if open || moves != p.moves {
		p.moves = moves
		p.stirred.Store(true)
	}
}

// Rail is the local rail of link i.
func (p *Peer) Rail(i int) int { return p.links[i].rail.index }

// Links describes the links of a peer.
func (g *Group) Links(p *Peer) []LinkInfo {
	out := make([]LinkInfo, len(p.links))
	for i, l := range p.links {
		out[i] = LinkInfo{Counts: l.counted(), Rail: l.rail.index, Load: l.outstanding, Class: l.class, Epoch: l.epoch, Ready: l.state == ready}
		out[i].Add(l.before)
	}
	return out
}

// FailPeer ends all operations of p: what is queued completes now, what is in flight when its domain has let go of it. Later
// operations complete at once.
func (g *Group) FailPeer(p *Peer) {
	p.down = true
	g.failList(&p.ops)
	g.failList(&p.messages)
	g.unqueue(p)
	g.forget(p)
	for _, l := range p.links {
		for _, f := range l.lost { // their fate stays unknown
			g.concluded(l, f.op, provider.StatusFlushed)
		}
		l.lost = nil
	}
}

func (g *Group) failList(l *opList) {
	for op := l.head; op != nil; op = l.head {
		l.remove(op)
		op.fail(provider.StatusFlushed)
		if op.inflight == 0 {
			g.end(op)
		}
	}
}

// Fence fails p and fences those of its links that are not proved silent yet. The outcome comes as Sink.Fenced; until then it must
// not be called again.
func (g *Group) Fence(p *Peer) {
	g.FailPeer(p)
	p.fencing, p.unproved = 1, false // one for this call
	for _, l := range p.links {
		if l.handle == 0 {
			continue // proved before
		}
		p.fencing++
		if !l.fencing { // else its failure has begun it
			g.fenceLink(l)
		}
	}
	g.fenceEnds(p)
}

// fenceLink begins the fence of one link. A rail that is dead has proved already what it can prove.
func (g *Group) fenceLink(l *link) {
	l.fencing = true
	switch {
	case l.rail.dead:
		g.outcome(l, l.rail.silent)
	case l.rail.dom.Fence(l.handle) != nil:
		g.outcome(l, false)
	}
}

// outcome ends the fence of one link.
func (g *Group) outcome(l *link, proved bool) {
	if !l.fencing {
		return
	}
	l.fencing = false
	if proved {
		l.rail.links[l.handle.Index()] = nil
		l.handle = 0
	}
	p := l.peer
	if p.fencing > 0 {
		p.unproved = p.unproved || !proved
		g.fenceEnds(p)
		return
	}
	if l.state == lost {
		l.proved = proved
		g.settle(l)
	}
}

func (g *Group) fenceEnds(p *Peer) {
	if p.fencing--; p.fencing == 0 {
		g.sink.Fenced(p, !p.unproved)
	}
}

// Disconnect gives up the links of a peer that never came up, so that the next path can be tried.
func (g *Group) Disconnect(p *Peer) {
	g.FailPeer(p)
	for _, l := range p.links {
		if l.handle != 0 && !l.rail.dead {
			_ = l.rail.dom.Disconnect(l.handle) // a stale handle is as good as a closed one
		}
	}
}

// linkEvent handles what a domain says about a connection.
func (g *Group) linkEvent(r *railState, c *provider.Completion) {
	l := r.link(c.Peer)
	if l == nil {
		return // a handle that was given up
	}
	switch c.Kind {
	case provider.KindPeerUp:
		g.linkUp(l)
	case provider.KindPeerDown:
		g.linkDown(l, c.Status)
	case provider.KindFenced:
		g.outcome(l, c.Status == provider.StatusOK)
	}
}

// linkUp puts a connection of the set-up into service, and proves a later one first: a rail that has failed before may say that it is
// up and lose the first write.
func (g *Group) linkUp(l *link) {
	switch {
	case l.state != offered || l.peer.down:
	case l.peer.live:
		l.state, l.since = probing, g.ticks
		g.probe(l)
	default:
		g.inService(l)
	}
}

// inService lets a link carry operations.
func (g *Group) inService(l *link) {
	p := l.peer
	l.state, l.since, l.seen, l.stalled = ready, g.ticks, l.landed, 0
	p.ready++
	g.reclass(p)
	g.sink.Link(p, l.index, true, "")
	if p.ops.head != nil || p.messages.head != nil {
		g.queue(p)
	}
}

// reclass finds the class that carries operations.
func (g *Group) reclass(p *Peer) {
	p.class = 0
	best := -1
	for _, l := range p.links {
		if l.state == ready && (best < 0 || int(l.class) < best) {
			best = int(l.class)
		}
	}
	if best > 0 {
		p.class = uint8(best)
	}
}

// linkDown is told that a connection has ended.
func (g *Group) linkDown(l *link, why provider.Status) {
	p := l.peer
	if !p.live || p.down {
		if l.state == ready {
			p.ready--
		}
		l.state = lost
		g.reclass(p)
		g.sink.Link(p, l.index, false, why.String())
		return
	}
	switch {
	case why == provider.StatusProtocol:
		g.sink.GiveUp(p, "that of the network", true)
	case why == provider.StatusAccess && l.rail.caps.AccessEnds && !l.denied: // else the write was ours
		l.counts.Denials++
		g.strike(l, denialStrikes)
	}
	g.lose(l, why.String())
}

// link returns the link of a handle, nil when it is stale.
// hot:
func (r *railState) link(h provider.Peer) *link {
	if i := h.Index(); i < len(r.links) {
		if l := r.links[i]; l != nil && l.handle == h {
			return l
		}
	}
	return nil
}
