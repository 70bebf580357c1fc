//go:build cgo

package ofi

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/provider"
)

// phase is where a peer is in its life.
type phase uint8

const (
	offered  phase = iota // Offer was called; the hello may have come already
	waiting               // passive Connect was called, the hello has not come
	greeting              // active: hello sent, the welcome has not come
	welcomed              // passive, with bySource: welcome sent, the other side is not ready
	up
	ending // shared endpoint: being ended, writes of ours are under way
	down   // ended; completions may be left in domain.out
)

// target is the endpoint for control messages of another Domain; all peers that lead there share it.
type target struct {
	name  string
	dest  *dest
	refs  int
	owner *peer // with bySource and a shared endpoint: whose connection it is
}

// peer is one handle. Owned by the owner of the Domain.
type peer struct {
	handle   provider.Peer
	phase    phase
	queued   bool // in domain.active
	released bool // Disconnect or Fence was called
	fenced   bool // Fence was called: KindFenced is owed
	spent    bool // the secret was used
	failing  bool // in domain.dying
	ripe     bool // settle ends it now
	hungry   bool // in domain.early
	bye      bool // the other side has gone or knows
	parted   bool // the other side was told
	told     bool // KindPeerDown was given out
	reached  bool // libfabric has delivered a control message to the other side
	status   provider.Status
	detail   uint32
	claimed  bool  // with bySource: the pair of endpoints is p's
	welcomed bool  // with bySource: the welcome has come
	patience int64 // with bySource: until then another connection may end
	deadline int64 // of the phases waiting to welcomed, and ending
	grace    int64 // when failing: until then the other side may say why
	suspect  int64 // in domain.suspects: until then writes under a key that has ended may complete

	secret       [secretSize]byte
	remote       offer  // what Connect was given
	hello        hello  // what came before Connect
	toThem, toUs uint64 // tokens

	to    *target
	data  *dest
	ep    unsafe.Pointer // of the writes, when it is the connection's own
	name  []byte         // of ep
	pidfd int            // of the other process, -1 when it is not watched
	died  bool

	// Requests. slab holds peerDepth operations, free is a stack of those that are not in use, queue those to be posted.
	slab     []byte
	ops      []op
	free     [peerDepth]uint8
	nfree    int
	queue    [peerDepth]uint8
	head     uint8
	nqueue   int
	inflight int
	asking   uint64 // the key that the peer is to be asked about, 0 for none
	asked    bool   // and the question has been written
	denied   uint64 // the key that it denied last

	scratch    mr // on a shared endpoint: what empty writes of p's name
	grants     []grant
	freeGrants []uint32
	known      []known

	ack acking

	notes fifo[note]
	sent  int // control messages that are under way

	answers   int    // of notes: what the peer asked for
	ungranted uint32 // ends of keys that the peer is to be told are known

	// Messages.
	sends    fifo[uint8]
	announce int // sends that the peer knows of
	waitlist fifo[earlyMessage]
	room     []byte // for early messages that came whole
	roomFree []uint8
	incoming [maxAnnounced]incoming
}

// peer finds a live handle, or returns nil.
//
// hot:
func (d *domain) peer(h provider.Peer) *peer {
	i := h.Index()
	if i >= len(d.peers) {
		return nil
	}
	if p := d.peers[i]; p != nil && p.handle == h {
		return p
	}
	return nil
}

// Offer implements [provider.Domain].
func (d *domain) Offer() (provider.Peer, provider.Addr, error) {
	if d.closed {
		return 0, nil, d.errorf("offer: %w", provider.ErrClosed)
	}
	if len(d.freePeers) == 0 {
		return 0, nil, d.errorf("offer: %w: %d peers", provider.ErrLimit, len(d.peers))
	}
	p := &peer{pidfd: -1}
	if _, err := rand.Read(p.secret[:]); err != nil {
		return 0, nil, d.errorf("offer: %w", err)
	}
	if err := d.openPeer(p); err != nil {
		return 0, nil, d.errorf("offer: %w", err)
	}
	i := d.freePeers[0] // the longest unused, so that a stale handle stays one for long
	d.freePeers = append(d.freePeers[:0], d.freePeers[1:]...)
	if d.generations[i] = (d.generations[i] + 1) & maxGeneration; d.generations[i] == 0 {
		d.generations[i] = 1
	}
	p.handle = provider.Peer(d.generations[i])<<provider.PeerIndexBits | provider.Peer(i)
	d.peers[i] = p
	d.live++
	for k := range p.ops {
		p.ops[k].peer = i
	}
	p.ack.op.peer = i
	o := offer{
		kind: d.kind(), handle: p.handle, host: d.self, scratch: [2]uint64{0, d.scratch.key},
		ctl: d.ctlName, data: p.name, secret: p.secret,
	}
	if !d.private {
		o.scratch[1] = p.scratch.key
	}
	if d.virtual {
		o.scratch[0] = uint64(uintptr(unsafe.Pointer(&d.page[0])))
	}
	return p.handle, o.addr(), nil
}

// maxGeneration leaves the highest bit of a handle free: see markPlain.
const maxGeneration = 1<<15 - 1

// openPeer makes what a peer needs of libfabric.
func (d *domain) openPeer(p *peer) (err error) {
	if n := len(d.slabs); n > 0 {
		p.slab, d.slabs = d.slabs[n-1], d.slabs[:n-1]
	} else if p.slab, err = d.arena((peerDepth + 1) * int(unsafe.Sizeof(op{}))); err != nil {
		return err
	}
	p.ops = of[op](p.slab, peerDepth+1)
	p.ack.op, p.ops = &p.ops[peerDepth], p.ops[:peerDepth]
	p.ack.op.kind = opFree
	for i := range peerDepth {
		p.ops[i].kind = opFree
		p.free[i] = uint8(peerDepth - 1 - i)
	}
	p.nfree = peerDepth
	if d.private {
		if p.ep, p.name, err = d.rail.endpoint(false, d.acks); err != nil {
			d.slabs = append(d.slabs, p.slab)
			return err
		}
		return nil
	}
	// safe: an arena.
	if p.scratch, err = d.rail.register(unsafe.Pointer(&d.page[0]), uint64(len(d.page)), accessRemote, d.newKey()); err != nil {
		d.slabs = append(d.slabs, p.slab)
	}
	return err
}

// Connect implements [provider.Domain].
func (d *domain) Connect(h provider.Peer, remote provider.Addr, active bool) error {
	if d.closed {
		return d.errorf("connect: %w", provider.ErrClosed)
	}
	p := d.peer(h)
	if p == nil || p.phase == down || p.phase == ending {
		return d.errorf("connect peer %#x: %w", h, provider.ErrStale)
	}
	if p.phase != offered {
		return d.errorf("connect peer %#x: %w: already called", h, provider.ErrInvalid)
	}
	o, err := parseOffer(remote)
	if err != nil {
		return d.errorf("connect peer %#x: %w", h, err)
	}
	if o.kind != d.kind() || (len(o.data) > 0) != d.private || !d.named(o.ctl) || d.private && !d.named(o.data) {
		return d.errorf("connect peer %#x: %w: an address of another network", h, provider.ErrInvalid)
	}
	if err := d.aim(p, o); err != nil {
		return d.errorf("connect peer %#x: %w: %w", h, provider.ErrUnavailable, err)
	}
	p.remote, p.toThem, p.toUs = o, token(&o.secret, &p.secret), token(&p.secret, &o.secret)
	d.watch(p)
	p.deadline = d.clock() + int64(provider.ConnectTimeout-connectSlack)
	d.connecting = append(d.connecting, p)
	switch {
	case d.bySource:
		if p.phase = waiting; active {
			p.phase = greeting
		}
		d.hold(p)
	case active:
		p.phase = greeting
		p.note(d, note{kind: noteHello})
	case p.spent: // the hello came first
		p.phase = waiting
		d.answer(p)
	default:
		p.phase = waiting
	}
	return nil
}

// kind is a digest of what both sides must have in common.
func (d *domain) kind() uint32 {
	if d.bySource {
		return digest(d.caps.Fabric + " by source")
	}
	return digest(d.caps.Fabric)
}

// connectSlack is what remains of provider.ConnectTimeout for the owner to notice.
const connectSlack = 500 * time.Millisecond

// reachBound is how long a Domain in software may take to be reached: libfabric goes on trying one that is gone.
const reachBound = 2 * time.Second

func (d *domain) clock() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &ts)
	return ts.Nano()
}

// aim makes the endpoints of the other side destinations.
func (d *domain) aim(p *peer, o offer) (err error) {
	if p.to, err = d.targetOf(o.ctl); err != nil {
		return err
	}
	if !d.private {
		p.data = p.to.dest
	} else if a, e := d.rail.insert(o.data); e == nil {
		p.data = d.newDest(p.ep, a)
	} else {
		err = e
	}
	if err == nil && d.bySource {
		err = d.sources.fit(p.data.addr)
	}
	if err != nil {
		d.leave(p.to)
		p.to = nil
	}
	return err
}

func (d *domain) newDest(ep unsafe.Pointer, addr uint64) *dest {
	n := len(d.freeDests) - 1
	i := d.freeDests[n]
	d.freeDests = d.freeDests[:n]
	d.dests[i] = dest{ep: ep, addr: addr}
	return &d.dests[i]
}

func (d *domain) freeDest(t *dest) {
	// safe: t is an element of d.dests.
	i := (uintptr(unsafe.Pointer(t)) - uintptr(unsafe.Pointer(&d.dests[0]))) / unsafe.Sizeof(dest{})
	*t = dest{}
	d.freeDests = append(d.freeDests, uint32(i))
}

// targetOf is the target with a name; leave gives it back.
func (d *domain) targetOf(name []byte) (*target, error) {
	if t := d.targets[string(name)]; t != nil {
		t.refs++
		return t, nil
	}
	if len(d.freeDests) < 2 {
		return nil, provider.ErrLimit
	}
	a, err := d.rail.insert(name)
	if err != nil {
		return nil, err
	}
	t := &target{name: string(name), dest: d.newDest(d.ctl, a), refs: 1}
	d.targets[t.name] = t
	return t, nil
}

func (d *domain) leave(t *target) {
	if t.refs--; t.refs > 0 {
		return
	}
	delete(d.targets, t.name)
	d.rail.remove(t.dest.addr)
	d.freeDest(t.dest)
}

// Disconnect implements [provider.Domain].
func (d *domain) Disconnect(h provider.Peer) error { return d.release("disconnect", h, false) }

// Fence implements [provider.Domain].
func (d *domain) Fence(h provider.Peer) error { return d.release("fence", h, true) }

func (d *domain) release(call string, h provider.Peer, fence bool) error {
	if d.closed {
		return d.errorf("%s: %w", call, provider.ErrClosed)
	}
	p := d.peer(h)
	if p == nil {
		return d.errorf("%s peer %#x: %w", call, h, provider.ErrStale)
	}
	if p.released {
		return d.errorf("%s peer %#x: %w: it is being released", call, h, provider.ErrBusy)
	}
	p.released, p.fenced = true, fence
	if p.told {
		d.finish(p)
	}
	if p.phase == down {
		return nil
	}
	d.fail(p, provider.StatusFlushed, 0)
	return nil
}

// fail has the connection of p ended by the current or next turn.
func (d *domain) fail(p *peer, status provider.Status, detail uint32) {
	if p.failing || p.phase == down || p.phase == ending {
		return
	}
	if p.phase != up && status != provider.StatusFlushed {
		status = provider.StatusRefused
	}
	if status == provider.StatusProtocol {
		d.protocol++
	}
	p.failing, p.status, p.detail = true, status, detail
	d.dying = append(d.dying, p)
}

// settle ends the connections that have failed. What arrived before is delivered; what is not complete is flushed.
func (d *domain) settle() {
	if !slices.ContainsFunc(d.dying, d.mayEnd) {
		return
	}
	for _, p := range d.dying {
		if p.ripe = d.mayEnd(p); p.ripe { // decided once: from here on nothing of p is let in
			d.ungrantAll(p)
		}
	}
	d.drain()
	if !d.inert {
		if d.sockets {
			d.forget(d.ripeNames()...)
		}
		for _, p := range d.dying {
			if p.ripe {
				_ = d.closePeer(p)
			}
		}
		d.drain()
	}
	d.dying = slices.DeleteFunc(d.dying, func(p *peer) bool {
		if !p.ripe { // the drain may have shown that it is over: the next turn ends it
			return false
		}
		d.flushQueue(p)
		if d.inert && p.inflight > 0 {
			p.phase, p.deadline = ending, d.now+int64(d.caps.DrainBound)
			d.goodbye(p)
			d.ending = append(d.ending, p)
		} else {
			d.end(p)
		}
		return true
	})
}

// ripeNames are those of the endpoints that settle closes.
func (d *domain) ripeNames() (names [][]byte) {
	for _, p := range d.dying {
		if p.ripe {
			names = append(names, p.name)
		}
	}
	return names
}

// mayEnd reports whether nothing is to be waited for: what the other side has to say about a write that failed.
func (d *domain) mayEnd(p *peer) bool {
	if p.grace == 0 || p.bye || p.released || d.now >= p.grace {
		return true
	}
	return slices.ContainsFunc(p.ops, dropped)
}

// ungrantAll ends all grants of p, and on a shared endpoint what its empty writes name: that one is let in would be taken for nobody's.
func (d *domain) ungrantAll(p *peer) {
	for i := range p.grants {
		_ = d.rail.deregister(p.grants[i].m)
	}
	_ = d.rail.deregister(p.scratch)
	p.grants, p.freeGrants, p.scratch = nil, nil, mr{}
}

// closePeer closes the connection's own endpoint: libfabric then reads and writes no memory for it.
func (d *domain) closePeer(p *peer) (err error) {
	d.ungrantAll(p)
	d.disclaim(p)
	switch {
	case p.ep == nil:
	case d.fragile && p.remote.host == d.self:
		d.parked = append(d.parked, p.ep) // with its address
	default:
		err = d.rail.closeEndpoint(p.ep)
		if p.data != nil {
			d.rail.remove(p.data.addr)
			d.freeDest(p.data)
		}
	}
	p.ep = nil
	if d.private {
		p.data = nil
	}
	if p.pidfd >= 0 {
		d.unwatch(p)
	}
	return err
}

// end completes everything and tells the owner.
func (d *domain) end(p *peer) {
	for i := range p.ops {
		switch o := &p.ops[i]; o.kind {
		case opWrite, opWriteData, opQuiet, opCover:
			st := provider.StatusFlushed
			if o.outcome == dead && p.status != provider.StatusFlushed {
				st, p.status = provider.StatusAccess, provider.StatusAccess
			}
			d.complete(p, o, st)
		case opUnresolved, opMessage:
			d.complete(p, o, provider.StatusFlushed)
		}
	}
	d.abandon(p)
	if d.inert {
		_ = d.closePeer(p)
	}
	if p.pidfd >= 0 {
		d.unwatch(p)
	}
	if !d.inert || p.inflight == 0 {
		d.slabs = append(d.slabs, p.slab) // else writes that never ended keep it
	}
	p.ops, p.slab, p.nfree, p.inflight, p.ack = nil, nil, 0, 0, acking{}
	p.phase = down
	d.goodbye(p)
	d.out.push(provider.Completion{Peer: p.handle, Kind: provider.KindPeerDown, Status: p.status, Detail: p.detail})
	if p.to != nil {
		d.leave(p.to)
		p.to = nil
	}
	p.known, p.notes, p.sends = nil, fifo[note]{}, fifo[uint8]{}
}

// finish ends the life of a handle whose KindPeerDown has been delivered.
func (d *domain) finish(p *peer) {
	if p.fenced {
		d.out.push(provider.Completion{Peer: p.handle, Kind: provider.KindFenced})
	}
	i := p.handle.Index()
	d.peers[i] = nil
	d.freePeers = append(d.freePeers, uint16(i))
	d.live--
}

// token is what proves to a side, with its secret first, that a control message is of its peer, and about this connection.
func token(to, from *[secretSize]byte) uint64 {
	sum := sha256.Sum256(append(to[:], from[:]...))
	return binary.LittleEndian.Uint64(sum[:])
}
