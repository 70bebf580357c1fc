package shm

import (
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/internal/ring"
	"github.com/hawser-project/hawser/provider"
)

type state uint8

const (
	stateFree       state = iota
	stateOffered          // Connect has not been called
	stateConnecting       // until both sides have each other's pages
	stateUp
	stateEnding // no more work; what arrived is being delivered, then KindPeerDown
	stateDown   // KindPeerDown was delivered; waits for Disconnect or Fence
)

// peer is one handle and its connection. Owned by the domain; the object is reused by later handles of the same index.
type peer struct {
	handle provider.Peer
	state  state
	secret secret  // what we offered
	addr   address // what the other side offered, of Connect
	active bool

	fd     int // the connection's socket, -1 when closed
	bellFD int // rings the peer's owner, -1 when closed

	theirs    *bellPage // the peer's
	theirsMem []byte
	rung      uint64 // the peer's sleep that we have rung for

	pair    *pairPage
	pairMem []byte
	tx, rx  *lane // of pair: where we write, where the peer writes
	immOut  ring.SharedWriter
	immIn   ring.SharedReader
	msgOut  ring.SharedByteWriter
	msgIn   ring.SharedByteReader

	lend   lender
	pull   puller
	writes fifo[job]
	sends  fifo[job]
	sent   int    // of sends: in the ring, until the peer takes them
	queued bool   // in domain.active
	slot   uint32 // what tx.slot holds while a batch is copied
	out    int    // WRs posted to this handle that the owner has not got back

	maps    []mapping // what the peer granted, by region index
	mapped  int
	granted []uint32 // generations of what we granted, by region index
	grants  int

	deadline int64  // 0 for none
	giveUp   int64  // when the attempt to connect ends
	early    *early // the active side came before Connect was called; nil when not

	// Of the end.
	why       provider.Status
	inLive    bool
	wasUp     bool
	announced bool // KindPeerUp was delivered
	broken    bool // the peer broke the protocol: its rings are not read any more
	release   bool // Disconnect was called
	fencing   bool // KindFenced is owed
	grace     bool // messages still wait for receives
	timedOut  bool // deadline has passed
	eof       bool // the peer's side is closed: it writes no more
	liveAt    int  // index in domain.live
}

// job is a WR in progress.
type job struct {
	wr     provider.WR
	done   uint64 // bytes copied; of a send in the ring: the position behind it
	status provider.Status
	detail uint32
}

const (
	// fenceBound is how long Fence waits for a writer that is in the middle of a chunk. A chunk takes some 100 us, but its
	// writer may have lost its processor to others.
	fenceBound = 200 * time.Millisecond

	// graceTime is how long messages that came before the end of a connection wait for receives.
	graceTime = 50 * time.Millisecond

	// dialRetry is when to try again after a listener whose backlog was full.
	dialRetry = time.Millisecond
)

// peer finds a live handle, nil when there is none.
// hot:
func (d *domain) peer(h provider.Peer) *peer {
	if i := h.Index(); i < len(d.peers) && d.peers[i].handle == h && d.peers[i].state != stateFree {
		return d.peers[i]
	}
	return nil
}

// Offer reserves a handle; it costs no descriptor and no memory but the handle's own.
func (d *domain) Offer() (provider.Peer, provider.Addr, error) {
	if d.closed {
		return 0, nil, fmt.Errorf("offer a shm connection: %w", provider.ErrClosed)
	}
	var s secret
	if _, err := rand.Read(s[:]); err != nil {
		return 0, nil, fmt.Errorf("offer a shm connection: %w", err)
	}
	p := d.freePeer()
	if p == nil {
		return 0, nil, fmt.Errorf("offer a shm connection: %d handles are live: %w", d.maxPeers, provider.ErrLimit)
	}
	p.state, p.secret = stateOffered, s
	return p.handle, address{p.handle, d.name, s}.encode(), nil
}

// freePeer takes a free handle.
func (d *domain) freePeer() *peer {
	if n := len(d.freePeers); n > 0 {
		p := d.peers[d.freePeers[n-1]]
		d.freePeers = d.freePeers[:n-1]
		return p
	}
	if len(d.peers) == d.maxPeers {
		return nil
	}
	p := &peer{handle: makePeer(1, len(d.peers)), fd: -1, bellFD: -1}
	d.peers = append(d.peers, p)
	return p
}

// Connect returns ErrInvalid for an address that no Offer has made.
func (d *domain) Connect(handle provider.Peer, remote provider.Addr, active bool) error {
	if err := d.connect(handle, remote, active); err != nil {
		return fmt.Errorf("connect shm peer %#x: %w", handle, err)
	}
	return nil
}

func (d *domain) connect(handle provider.Peer, remote provider.Addr, active bool) error {
	p := d.peer(handle)
	if p == nil {
		return d.stale()
	}
	if p.state != stateOffered {
		return fmt.Errorf("connect was called before: %w", provider.ErrInvalid)
	}
	a, err := decodeAddr(remote)
	if err != nil {
		return err
	}
	p.addr, p.active, p.state = a, active, stateConnecting
	d.connecting++
	d.ticks = controlTicks // look at the sockets soon
	p.giveUp = d.after(provider.ConnectTimeout)
	p.deadline = p.giveUp
	if active {
		d.dial(p)
	} else if p.early != nil {
		d.admit(p)
	}
	return nil
}

// Disconnect gives up the handle.
func (d *domain) Disconnect(handle provider.Peer) error {
	p := d.peer(handle)
	if p == nil || p.release {
		return fmt.Errorf("disconnect shm peer %#x: %w", handle, d.stale())
	}
	if p.fencing {
		return fmt.Errorf("disconnect shm peer %#x: it is being fenced: %w", handle, provider.ErrBusy)
	}
	if p.state == stateDown {
		d.releasePeer(p)
		return nil
	}
	p.release, p.grace = true, false
	d.end(p, provider.StatusFlushed)
	d.closeSocket(p)
	return nil
}

// Fence stops the peer's writes; see the package's documentation for the proof.
func (d *domain) Fence(handle provider.Peer) error {
	p := d.peer(handle)
	if p == nil || p.release {
		return fmt.Errorf("fence shm peer %#x: %w", handle, d.stale())
	}
	if p.fencing {
		return fmt.Errorf("fence shm peer %#x: it is being fenced: %w", handle, provider.ErrBusy)
	}
	d.end(p, provider.StatusFlushed)
	p.fencing, p.grace, p.timedOut = true, false, false
	if !p.quiet() {
		p.deadline = d.after(fenceBound)
	}
	d.enlive(p)
	return nil
}

// quiet reports whether nothing that the peer started can land any more. It holds only once revoked is set.
func (p *peer) quiet() bool {
	if p.eof {
		return true
	}
	slot := p.rx.slot.Load()
	return slot == 0 || slot == slotPull
}

// end begins the end of a connection, or of the attempt to make one. Only the first reason counts.
func (d *domain) end(p *peer, why provider.Status) {
	if p.state >= stateEnding {
		return
	}
	before := p.state
	p.state, p.why, p.deadline = stateEnding, why, 0
	d.enlive(p)
	if before != stateUp {
		if before == stateConnecting {
			d.connecting--
		}
		d.dropEarly(p)
		d.dropPair(p)
		p.eof = true // it was never told where to write
		return
	}
	p.rx.revoked.Store(1)
	d.reapSends(p)
	d.flushWrites(p)
	d.flush(p, &p.sends)
	p.sent = 0
	d.dropRegions(p)
	if why == provider.StatusPeerDown {
		p.grace, p.deadline = true, d.after(graceTime)
	}
	if p.fd >= 0 {
		_ = unix.Shutdown(p.fd, unix.SHUT_WR) // wakes the peer; the other direction stays open to see its end
	}
}

// breach ends the connection of a peer that broke the protocol.
func (d *domain) breach(p *peer) {
	p.broken = true
	d.end(p, provider.StatusProtocol)
}

// hungUp is told that the peer's side of the socket is closed.
func (d *domain) hungUp(p *peer) {
	p.eof = true
	why := provider.StatusPeerDown
	if p.state < stateUp {
		why = provider.StatusRefused
	}
	d.end(p, why)
	d.closeSocket(p)
	if p.state == stateDown && !p.fencing {
		d.dropPair(p) // it was kept to see the slot
	}
}

// overdue is told that the peer's deadline has passed.
func (d *domain) overdue(p *peer) {
	switch {
	case p.state != stateConnecting:
		p.timedOut = true
	case p.active && p.fd < 0 && d.now() < p.giveUp:
		d.dial(p)
	default:
		d.end(p, provider.StatusRefused)
	}
}

// enlive puts p among the peers that Poll visits.
func (d *domain) enlive(p *peer) {
	if !p.inLive {
		p.inLive, p.liveAt = true, len(d.live)
		d.live = append(d.live, p)
	}
}

// unlive takes p out of them.
func (d *domain) unlive(p *peer) {
	last := d.live[len(d.live)-1]
	d.live[p.liveAt], last.liveAt = last, p.liveAt
	d.live = d.live[:len(d.live)-1]
	p.inLive = false
}

// closeSocket closes the connection's socket.
func (d *domain) closeSocket(p *peer) {
	if p.fd >= 0 {
		d.unwatch(p.fd)
		unix.Close(p.fd)
		p.fd = -1
	}
}

// dropPair gives back everything that the connection held, but for the mappings of regions.
func (d *domain) dropPair(p *peer) {
	d.closeSocket(p)
	_ = closeIf(p.bellFD)
	p.bellFD = -1
	p.theirs, p.pair, p.tx, p.rx = nil, nil, nil, nil
	p.immOut, p.immIn = ring.SharedWriter{}, ring.SharedReader{}
	p.msgOut, p.msgIn = ring.SharedByteWriter{}, ring.SharedByteReader{}
	_ = errors.Join(unmap(p.theirsMem), unmap(p.pairMem)) // fails only for ranges that are not ours
	p.theirsMem, p.pairMem = nil, nil
}

// releasePeer frees the handle, whose last completion was delivered.
func (d *domain) releasePeer(p *peer) {
	if p.inLive {
		d.unlive(p)
	}
	d.dropPair(p)
	gen := uint32(p.handle>>provider.PeerIndexBits) + 1
	if makePeer(gen, 0) == 0 {
		gen = 1 // 65,535 connections of this index later: no completion of the first can still be on its way
	}
	d.freePeers = append(d.freePeers, p.handle.Index())
	*p = peer{
		handle: makePeer(gen, p.handle.Index()), fd: -1, bellFD: -1, queued: p.queued,
		writes: p.writes, sends: p.sends, maps: p.maps, granted: p.granted[:0],
	}
}

// makePeer is the handle of a generation, modulo what it can hold, and an index.
func makePeer(gen uint32, index int) provider.Peer {
	return provider.Peer(gen)<<provider.PeerIndexBits | provider.Peer(index)
}
