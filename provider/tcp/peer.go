package tcp

import (
	"crypto/rand"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/provider"
)

// phase is where a peer is in its life.
type phase uint8

const (
	offered phase = iota // Offer was called; the hello may have come already
	waiting              // passive Connect was called, the hello has not come
	dialing              // active: the socket is connecting
	greeted              // active: hello sent, the welcome has not come
	up
	down // the socket is closed; completions may be left to deliver
)

// peer is one handle. Owned by the owner of the Domain.
type peer struct {
	handle   provider.Peer
	phase    phase
	queued   bool // in domain.active
	kicked   bool // in domain.kicked
	listed   bool // in domain.earlyPeers
	told     bool // KindPeerUp was delivered
	toldDown bool // KindPeerDown was delivered
	released bool // Disconnect or Fence was called
	fenced   bool // Fence was called: KindFenced is owed
	spent    bool // the secret was used
	status   provider.Status
	detail   uint32

	secret    [secretSize]byte // of our offer
	remote    offer            // what Connect was given
	hello     greeting         // passive: what the peer said
	answer    [helloSize]byte  // active: the welcome as far as it came
	answerLen int
	deadline  time.Time // of the phases waiting, dialing, greeted

	grants grants
	stream stream
}

// stream is one socket of a peer with everything that is counted on it. A peer has one; the writes of a peer with several
// would be spread over them.
type stream struct {
	fd       int  // -1 when there is none
	line     byte // for the race detector: equal on both sides, likely different from other connections'
	readable bool // an event said so and nothing since proved otherwise
	ending   bool // the end of the stream was announced: read until it comes
	blocked  bool // the socket took less than it was given; an event tells when it takes more
	mute     bool // sending failed
	stalled  bool // received frames wait for room in the owner's completions
	ask      bool // the peer may be waiting for an ack

	rx        rx
	placed    uint32 // writes of the peer that were placed or refused, modulo 2^32
	ackSent   uint32 // the same, as far as the peer was told
	unacked   uint64 // payload bytes in between
	refusals  fifo[uint32]
	wrongs    uint32 // see patient
	quiet     int    // visits since data came
	early     early
	taken     uint32 // messages of the peer that were moved into receives, modulo 2^32
	takenSent uint32

	writes   sendq
	msgs     sendq
	msgBytes uint32 // of messages that were sent and not taken
	cut      partial
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

func (d *domain) Offer() (provider.Peer, provider.Addr, error) {
	if d.closed {
		return 0, nil, d.errorf("offer: %w", provider.ErrClosed)
	}
	if len(d.freePeers) == 0 {
		return 0, nil, d.errorf("offer: %w: %d peers", provider.ErrLimit, len(d.peers))
	}
	p := &peer{stream: stream{fd: -1}}
	if _, err := rand.Read(p.secret[:]); err != nil {
		return 0, nil, d.errorf("offer: %w", err)
	}
	i := d.freePeers[0] // the longest unused, so that a stale handle stays one for long
	d.freePeers = append(d.freePeers[:0], d.freePeers[1:]...)
	if d.generations[i]++; d.generations[i] == 0 {
		d.generations[i] = 1
	}
	p.handle = provider.Peer(d.generations[i])<<provider.PeerIndexBits | provider.Peer(i)
	d.peers[i] = p
	d.expected++
	o := offer{at: d.at, handle: p.handle, secret: p.secret}
	return p.handle, o.addr(), nil
}

func (d *domain) Connect(h provider.Peer, remote provider.Addr, active bool) error {
	if d.closed {
		return d.errorf("connect: %w", provider.ErrClosed)
	}
	p := d.peer(h)
	if p == nil || p.phase == down {
		return d.errorf("connect peer %#x: %w", h, provider.ErrStale)
	}
	if p.phase != offered {
		return d.errorf("connect peer %#x: %w: already called", h, provider.ErrInvalid)
	}
	o, err := parseOffer(remote)
	if err != nil {
		return d.errorf("connect peer %#x: %w", h, err)
	}
	if o.at.Addr().Is4() != d.ip.Is4() {
		return d.errorf("connect peer %#x to %v: %w: not the same family of addresses", h, o.at, provider.ErrInvalid)
	}
	p.remote = o
	p.stream.line = p.secret[0] ^ o.secret[0]
	p.deadline = time.Now().Add(provider.ConnectTimeout)
	d.setAlarm(p.deadline)
	switch {
	case active:
		d.dial(p)
	case p.spent: // the hello came first
		d.welcome(p)
	default:
		p.phase = waiting
	}
	return nil
}

func (d *domain) Disconnect(h provider.Peer) error {
	if d.closed {
		return d.errorf("disconnect: %w", provider.ErrClosed)
	}
	p := d.peer(h)
	if p == nil {
		return d.errorf("disconnect peer %#x: %w", h, provider.ErrStale)
	}
	if p.released {
		return d.errorf("disconnect peer %#x: %w: it is being released", h, provider.ErrBusy)
	}
	d.release(p)
	return nil
}

// Fence implements [provider.Domain]. Only the owner reads the socket, so when it is closed nothing can land.
func (d *domain) Fence(h provider.Peer) error {
	if d.closed {
		return d.errorf("fence: %w", provider.ErrClosed)
	}
	p := d.peer(h)
	if p == nil {
		return d.errorf("fence peer %#x: %w", h, provider.ErrStale)
	}
	if p.released {
		return d.errorf("fence peer %#x: %w: it is being released", h, provider.ErrBusy)
	}
	p.fenced = true
	d.release(p)
	return nil
}

// release closes the connection, tells the outcome to the owner and ends the handle.
func (d *domain) release(p *peer) {
	p.released = true
	if p.toldDown && !p.fenced {
		d.forget(p)
		return
	}
	if p.phase == up && !p.stream.blocked && !p.stream.mute {
		// What was placed was placed: tell the peer, as far as the socket takes it.
		p.stream.gather(&d.batch, true)
		if d.batch.bytes > 0 {
			_, _ = d.scatter.send(p.stream.fd, p.stream.line, d.batch.vecs)
		}
		d.batch.reset()
	}
	d.fail(p, provider.StatusFlushed, 0)
}

// fail ends the connection of p, if it has not ended. What is outstanding is flushed by the next Polls.
func (d *domain) fail(p *peer, status provider.Status, detail uint32) {
	if p.phase == down {
		d.activate(p)
		return
	}
	if !p.spent && (p.phase == offered || p.phase == waiting) {
		d.expected--
	}
	if p.phase != up && status == provider.StatusPeerDown {
		status = provider.StatusRefused
	}
	p.phase, p.status, p.detail = down, status, detail
	s := &p.stream
	if s.fd >= 0 {
		_ = unix.EpollCtl(d.ep, unix.EPOLL_CTL_DEL, s.fd, nil)
		unix.Close(s.fd)
		s.fd = -1
	}
	s.readable, s.rx.buf, p.grants = false, nil, grants{}
	d.activate(p)
}

// forget ends the life of a handle.
func (d *domain) forget(p *peer) {
	i := p.handle.Index()
	d.peers[i] = nil
	d.freePeers = append(d.freePeers, uint16(i))
}
