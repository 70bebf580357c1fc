//go:build cgo

package verbs

import (
	"net/netip"
	"time"

	"github.com/hawser-project/hawser/provider"
)

// NewOn is New with another sysfs and other addresses of interfaces.
func NewOn(o Options, sys string, addresses func(netdev string) []netip.Addr) provider.Provider {
	v := New(o).(*verbs)
	v.sys, v.addresses = sysfs(sys), addresses
	return v
}

// MostImms is the largest window of a peer's immediates: the first peer's.
const MostImms = immMost

// Forge sends a record over a connection that change has changed.
func Forge(dom provider.Domain, h provider.Peer, change func(b *[recordSize]byte)) {
	d := dom.(*domain)
	p := d.peer(h)
	at := inboxStaging + int(p.control.sent%stagingSlots)*recordSize
	d.sendRecord(p, &record{kind: recCredit})
	change((*[recordSize]byte)(p.inbox.mem[at:]))
	d.flush()
}

// ForgeNote sends a notification of n bytes that announces what.
func ForgeNote(dom provider.Domain, h provider.Peer, what, n uint32) {
	d := dom.(*domain)
	p := d.peer(h)
	d.notify(p, sendWR{
		local: addressOf(p.inbox.mem), len: n, lkey: p.inbox.reg.lkey, imm: what, remote: p.remote.inbox + inboxMail, rkey: p.remote.inboxKey,
	}, 0)
	d.flush()
}

// ForgeCredit has a domain believe that its peer has room for everything.
func ForgeCredit(dom provider.Domain, h provider.Peer) {
	p := dom.(*domain).peer(h)
	p.writes.immCredit = p.writes.immSent
	p.control.credited = p.control.notified
}

// Kinds of records, and what a notification can announce.
const (
	RecHello, RecCredit, RecGrant, RecGranted, RecEnd, RecRenew, RecRenewed = recHello, recCredit, recGrant, recGranted, recEnd, recRenew, recRenewed
	NoteRecord, NoteMessage                                                 = noteRecord, noteMessage
)

// Sent reports whether everything on a control queue pair has been sent.
func Sent(dom provider.Domain, h provider.Peer) bool {
	p := dom.(*domain).peer(h)
	return p == nil || p.control.sent == p.control.done
}

// Gone reports whether a connection has ended.
func Gone(dom provider.Domain, h provider.Peer) bool {
	p := dom.(*domain).peer(h)
	return p == nil || p.phase > up
}

// Room reports whether a peer takes one more notification, or is gone.
func Room(dom provider.Domain, h provider.Peer) bool {
	p := dom.(*domain).peer(h)
	return Gone(dom, h) || p.control.room(p, otherReserve)
}

// Silence has the card of a domain answer nothing more that a peer sends over the control queue pair.
func Silence(dom provider.Domain, h provider.Peer) error {
	d := dom.(*domain)
	return d.card.failQP(d.peer(h).ctl)
}

// SendOverArrivals sends an immediate over the queue pair that is there to receive only.
func SendOverArrivals(dom provider.Domain, h provider.Peer) error {
	d := dom.(*domain)
	p := d.peer(h)
	to := d.arrivalsRoute(p)
	if err := d.card.readyToSend(p.in, &to); err != nil {
		return err
	}
	d.push(&sendWR{id: identity(p, roleWrites+1, 0), qp: p.in.handle(), imm: 1, flags: sendImm | sendSignaled})
	d.flush()
	return nil
}

// Emptied reports whether the queue pair that a peer writes to has failed and is empty.
func Emptied(dom provider.Domain, h provider.Peer) bool { return dom.(*domain).peer(h).in.empty }

// WaitForLast has a domain wait for the last receive of a failed queue pair however long it takes.
func WaitForLast(dom provider.Domain) { dom.(*domain).drainTime = time.Hour }
