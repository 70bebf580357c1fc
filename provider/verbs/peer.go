//go:build cgo

package verbs

import (
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/provider"
)

// phase is where a peer is in its life.
type phase uint8

const (
	offered  phase = iota // the queue pairs exist
	joining               // Connect was called: a goroutine readies the queue pairs
	greeting              // they are ready; the hellos are on their way
	up
	leaving // the connection has ended; the queue pairs are being emptied
	down    // they are gone; completions may be left to deliver
	gone    // so is the handle
)

// qpsPerPeer: control and messages; our writes; the peer's writes. Ours and theirs have queue pairs of their own, so that a write
// that is refused stops one direction, whose requests are known to have been executed up to that one.
const qpsPerPeer = 3

// What a queue pair of a peer is for, as the identity of a request names it.
const (
	roleControl = iota
	roleWrites
)

// peer is one handle. Owned by the owner of the Domain.
type peer struct {
	handle   provider.Peer
	phase    phase
	queued   bool // in domain.active
	listed   bool // in domain.waiting
	touched  bool // in domain.touched
	released bool // Disconnect or Fence was called
	fenced   bool // Fence was called: KindFenced is owed
	unproven bool // the card did not end a queue pair, or its right to the inbox: it may still execute what the peer sends
	toldDown bool
	status   provider.Status // why down
	detail   uint32
	jobs     int // goroutines that use its queue pairs

	active   bool
	secret   [secretSize]byte
	remote   offer
	greeted  bool // our hello has arrived
	helloed  bool // the peer's has
	again    bool // our hello was lost: to be sent anew
	early    []provider.Completion
	deadline time.Time // of joining, greeting and the steps of leaving; zero when there is none

	ctl, out, in queuePair // .c is nil when there is none
	receives     int       // our share of domain.receives
	completions  int       // our share of domain.completions

	inbox   inbox
	control control
	writes  writes
	arrived arrived
	msgs    messages
	grants  grants
	rights  []right
	leave   leave
}

// inbox is memory that the peer writes records and messages to, and from which our records are sent.
type inbox struct {
	mem []byte
	reg registration
}

// Parts of an inbox.
const (
	inboxRecords = 0                                      // a slot for each notification that may be on its way
	inboxStaging = inboxRecords + notifyWindow*recordSize // of our records until they were sent
	inboxMail    = 4096
	stagingSlots = 16 // a power of two, at least controlDepth
	mailSize     = 2 * maxSend
	inboxSize    = inboxMail + mailSize
)

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

// Offer implements [provider.Domain]. It makes the queue pairs.
func (d *domain) Offer() (provider.Peer, provider.Addr, error) {
	if d.closed {
		return 0, nil, d.errorf("offer: %w", provider.ErrClosed)
	}
	if len(d.freePeers) == 0 {
		return 0, nil, d.errorf("offer: %w: %d peers", provider.ErrLimit, len(d.peers))
	}
	d.locate()
	p := &peer{}
	if err := d.equip(p); err != nil {
		return 0, nil, errors.Join(d.errorf("offer: %w", err), d.dismantle(p))
	}
	i := d.freePeers[0] // the longest unused, so that a stale handle stays one for long
	d.freePeers = append(d.freePeers[:0], d.freePeers[1:]...)
	if d.generations[i]++; d.generations[i] == 0 {
		d.generations[i] = 1
	}
	p.handle = provider.Peer(d.generations[i])<<provider.PeerIndexBits | provider.Peer(i)
	d.peers[i] = p
	for _, q := range []queuePair{p.ctl, p.out, p.in} {
		d.byQP.add(q.qpn, int(i))
	}
	o := offer{
		secret: p.secret, gid: d.at.gid, lid: d.at.lid, mtu: d.at.mtu, ethernet: d.at.ethernet, global: d.at.global,
		ctl: p.ctl.qpn, out: p.out.qpn, in: p.in.qpn, inbox: addressOf(p.inbox.mem), inboxKey: p.inbox.reg.rkey,
		immWindow: uint32(p.receives - notifyWindow), notifyWindow: notifyWindow,
	}
	return p.handle, o.addr(), nil
}

// equip gives a peer its shares, its inbox and its queue pairs.
func (d *domain) equip(p *peer) (err error) {
	if _, err = rand.Read(p.secret[:]); err != nil {
		return err
	}
	if p.receives = d.receives.take(); p.receives == 0 {
		return fmt.Errorf("%w: all receives of the device are shared out", provider.ErrLimit)
	}
	if p.completions = d.completions.take(); p.completions == 0 {
		return fmt.Errorf("%w: all completions of the device are shared out", provider.ErrLimit)
	}
	p.writes.depth = p.completions - controlDepth
	if p.inbox.mem, err = unix.Mmap(-1, 0, inboxSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE); err != nil {
		p.inbox.mem = nil
		return fmt.Errorf("mmap: %w", err)
	}
	if p.inbox.reg, err = d.card.register(p.inbox.mem, true, false); err != nil {
		return registerFault(err, provider.Memory{Bytes: p.inbox.mem})
	}
	for _, q := range []struct {
		qp       *queuePair
		depth    int
		writable bool
	}{{&p.ctl, controlDepth, true}, {&p.out, p.writes.depth, false}, {&p.in, 1, true}} {
		if *q.qp, err = d.card.newQP(q.depth, d.opts.PKeyIndex, q.writable); err != nil {
			return fmt.Errorf("%w%s", err, memlockHint(err, 0))
		}
	}
	return nil
}

// dismantle takes back what equip gave. Nothing may be posted any more.
func (d *domain) dismantle(p *peer) error {
	var errs []error
	for _, q := range []*queuePair{&p.ctl, &p.out, &p.in} {
		if q.c != nil {
			errs = append(errs, d.card.destroyQP(*q))
			*q = queuePair{}
		}
	}
	if p.inbox.reg.c != nil {
		err := d.card.deregister(p.inbox.reg)
		p.unproven = p.unproven || err != nil
		errs = append(errs, err)
	}
	if p.inbox.mem != nil && !p.unproven { // else the card may still write there
		errs = append(errs, unix.Munmap(p.inbox.mem))
	}
	p.inbox = inbox{}
	if p.receives > 0 {
		d.receives.give(p.receives)
	}
	if p.completions > 0 {
		d.completions.give(p.completions)
	}
	p.receives, p.completions = 0, 0
	return errors.Join(errs...)
}

// forget ends the life of a handle.
func (d *domain) forget(p *peer) {
	i := p.handle.Index()
	p.phase = gone // it may be among the active ones still: what came at the end of its queue pairs put it there
	d.peers[i] = nil
	d.freePeers = append(d.freePeers, uint16(i))
}

// activate has p visited by the next Poll.
//
// hot:
func (d *domain) activate(p *peer) {
	if !p.queued {
		p.queued = true
		d.active.push(p)
	}
}
