package sim

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/hawser-project/hawser/provider"
)

// state is where one end of a connection is.
type state uint8

const (
	offered    state = iota // Offer was called
	connecting              // Connect was called
	up
	closing // Disconnect or Fence was called; what is in flight may still land
	gone    // KindPeerDown is queued or delivered
)

func (s state) String() string {
	return [...]string{"offered", "connecting", "up", "closing", "gone"}[s]
}

type secret [16]byte

// addrMark starts every Addr, before its secret.
var addrMark = []byte("sim1")

// helloBound is how many active ends may knock at an offer before its owner calls Connect.
const helloBound = 16

// end is one side of a connection, from Offer to the release of its handle.
type end struct {
	d      *domain
	peer   provider.Peer
	state  state
	active bool
	own    secret // what this side offered
	dest   secret // what Connect was given
	other  *end   // once they have met
	hellos []*end // active ends that came before Connect
	limit  *timer // of Connect, later of a cut

	sent    uint64     // fragments, of an ordered NIC's connection numbered by it
	arrived uint64     // fragments of the other side that have taken effect, when ordered
	parked  eventQueue // those that came too early, by number

	out      int   // writes and sends, until their completion is polled
	ops      []*op // of these, the ones in flight
	unpolled int   // immediates and refusals of the peer that wait for Poll, at most PeerDepth
	stalled  []*op // the peer's writes whose immediates do not fit, oldest first
	grants   map[uint64]grant

	told    bool // KindPeerDown was delivered
	leaving bool // Disconnect or Fence was called
	fencing bool // Fence was called
}

// slot is a place for an end. A handle is generation and slot number.
type slot struct {
	gen uint16
	end *end
}

// lookup finds the end of a live handle.
func (d *domain) lookup(p provider.Peer) (*end, error) {
	if p == 0 || p.Index() >= len(d.slots) {
		return nil, provider.ErrInvalid
	}
	if s := d.slots[p.Index()]; s.end != nil && s.end.peer == p {
		return s.end, nil
	}
	return nil, provider.ErrStale
}

func (d *domain) find(p provider.Peer) *end {
	e, _ := d.lookup(p)
	return e
}

// strayStatus is the outcome of a WR to a handle that is not live.
func (d *domain) strayStatus(p provider.Peer) provider.Status {
	if _, err := d.lookup(p); errors.Is(err, provider.ErrStale) {
		return provider.StatusFlushed
	}
	return provider.StatusLocal
}

func (d *domain) release(e *end) {
	s := &d.slots[e.peer.Index()]
	s.end = nil
	s.gen = max(s.gen+1, 1) // never 0, also when it wraps
	d.live--
}

func (d *domain) Offer() (provider.Peer, provider.Addr, error) {
	f := d.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if d.dead != nil {
		return 0, nil, d.dead
	}
	if d.live == d.maxPeers {
		return 0, nil, d.fail("offer", provider.ErrLimit, "%d peers are live", d.live)
	}
	i := 0
	for i < len(d.slots) && d.slots[i].end != nil {
		i++
	}
	if i == len(d.slots) {
		d.slots = append(d.slots, slot{gen: 1})
	}
	s := &d.slots[i]
	e := &end{d: d, peer: provider.Peer(s.gen)<<provider.PeerIndexBits | provider.Peer(i), grants: map[uint64]grant{}}
	for k := range e.own {
		e.own[k] = byte(f.rng.Uint32())
	}
	s.end = e
	d.live++
	f.offers[e.own] = e
	return e.peer, append(bytes.Clone(addrMark), e.own[:]...), nil
}

func (d *domain) Connect(p provider.Peer, remote provider.Addr, active bool) error {
	f := d.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if d.dead != nil {
		return d.dead
	}
	e, err := d.lookup(p)
	if err != nil {
		return d.fail("connect", err, "peer %#x", p)
	}
	if e.state != offered {
		return d.fail("connect", provider.ErrInvalid, "peer %#x is %v already", p, e.state)
	}
	rest, ok := bytes.CutPrefix(remote, addrMark)
	if !ok || len(rest) != len(e.dest) {
		return d.fail("connect", provider.ErrInvalid, "an address of %d bytes that no sim made", len(remote))
	}
	copy(e.dest[:], rest)
	e.state, e.active = connecting, active
	e.limit = f.after(provider.ConnectTimeout, func() { f.down(e, provider.StatusRefused) })
	hellos := e.hellos
	e.hellos = nil
	for _, a := range hellos {
		f.meet(a, e)
	}
	if active {
		f.schedule(e.trip(), event{kind: evHello, end: e})
		if to := f.offers[e.dest]; to != nil {
			to.d.stir()
		}
	}
	return nil
}

// hello: the active end a knocks at the address that it was given.
func (f *Fabric) hello(a *end) {
	if a.state != connecting {
		return
	}
	to := f.offers[a.dest]
	switch {
	case to == nil:
		f.refuse(a)
	case f.isCut(a.d, to.d):
		f.held = append(f.held, event{at: f.now, kind: evHello, end: a})
	case to.state == offered && len(to.hellos) < helloBound:
		to.hellos = append(to.hellos, a)
	default:
		f.meet(a, to)
	}
}

// meet joins an active end and one that has called Connect, if each was given the other's address.
func (f *Fabric) meet(a, to *end) {
	if a.state != connecting {
		return
	}
	if to.state != connecting || to.active || a.dest != to.own || to.dest != a.own {
		f.refuse(a)
		return
	}
	a.other, to.other = to, a
	f.bringUp(to)
	f.schedule(a.trip(), event{kind: evAccept, end: a})
}

func (f *Fabric) refuse(a *end) { f.schedule(a.trip(), event{kind: evRefuse, end: a}) }

func (f *Fabric) refused(a *end) {
	if a.state == connecting {
		f.down(a, provider.StatusRefused)
	}
}

// accepted: an active end learns that it is up, from the acceptance or from whatever overtook it.
func (f *Fabric) accepted(a *end) {
	if a.state == connecting {
		f.bringUp(a)
	}
}

func (f *Fabric) bringUp(e *end) {
	e.state = up
	f.withdraw(e)
	e.d.complete(entry{provider.Completion{Peer: e.peer, Kind: provider.KindPeerUp}, e})
}

// withdraw ends the offer of an end: its address is of no use any more.
func (f *Fabric) withdraw(e *end) {
	e.limit.stop()
	delete(f.offers, e.own)
	for _, a := range e.hellos {
		f.refuse(a)
	}
	e.hellos = nil
}

// notice: an end learns that the other side has gone, and if that was for a write of its own, which one.
func (f *Fabric) notice(e *end) {
	f.accepted(e)
	why := provider.StatusPeerDown
	if e.d.nic.AccessEnds && e.state != gone {
		if i := slices.IndexFunc(e.ops, func(o *op) bool { return o.status == provider.StatusAccess }); i >= 0 {
			why = provider.StatusAccess
			f.finish(e.ops[i], why)
		}
	}
	f.down(e, why)
}

// broken: the NIC of an end gives up.
func (f *Fabric) broken(e *end) {
	if e.state == up || e.state == closing {
		f.down(e, provider.StatusPeerDown)
	}
}

// down ends one end: everything outstanding is flushed, then KindPeerDown is queued, and the other side will notice.
func (f *Fabric) down(e *end, why provider.Status) {
	if e.state == gone {
		return
	}
	if e.leaving {
		why = provider.StatusFlushed
	}
	f.cutOff(e, false)
	for len(e.ops) > 0 {
		f.finish(e.ops[f.rng.IntN(len(e.ops))], provider.StatusFlushed)
	}
	e.d.complete(entry{provider.Completion{Peer: e.peer, Kind: provider.KindPeerDown, Status: why}, e})
}

// cutOff makes an end deaf and dumb: nothing of the other side lands any more, and the other side will notice, after RetryTimeout when
// it died in silence.
func (f *Fabric) cutOff(e *end, silent bool) {
	e.state = gone
	f.withdraw(e)
	clear(e.grants)
	for _, o := range e.stalled {
		o.stalled = false
	}
	e.stalled = nil
	f.unpark(e)
	if e.other == nil {
		return
	}
	for _, o := range e.other.ops {
		if o.waiting {
			e.d.unwait(o)
		}
	}
	switch {
	case e.other.state == gone:
	case silent:
		other := e.other
		f.after(f.cfg.RetryTimeout, func() { f.notice(other) })
	default:
		f.schedule(e.trip(), event{kind: evNotice, end: e.other})
	}
}

func (d *domain) Disconnect(p provider.Peer) error { return d.leave("disconnect", p, false) }

func (d *domain) Fence(p provider.Peer) error { return d.leave("fence", p, true) }

func (d *domain) leave(call string, p provider.Peer, fence bool) error {
	f := d.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if d.dead != nil {
		return d.dead
	}
	e, err := d.lookup(p)
	if err != nil {
		return d.fail(call, err, "peer %#x", p)
	}
	if e.leaving {
		return d.fail(call, provider.ErrBusy, "peer %#x, which is being released", p)
	}
	e.leaving, e.fencing = true, fence
	switch e.state {
	case offered, connecting:
		f.down(e, provider.StatusFlushed)
	case up:
		e.state = closing
		f.schedule(f.jitter(d.nic), event{kind: evDrain, end: e})
	case gone:
		f.settle(e)
	}
	return nil
}

// settle releases a handle whose owner has left it and knows that it is down. Once an end is gone nothing of its peer can
// land, so that a fence has nothing to wait for.
func (f *Fabric) settle(e *end) {
	switch {
	case !e.told || !e.leaving:
	case e.fencing:
		e.d.complete(entry{provider.Completion{Peer: e.peer, Kind: provider.KindFenced}, e})
	default:
		e.d.release(e)
	}
}

// vanish ends a domain without a word to its owner.
func (f *Fabric) vanish(d *domain, why error, silent bool) {
	if d.dead == nil {
		for i, s := range d.slots {
			if s.end != nil {
				f.cutOff(s.end, silent)
				for len(s.end.ops) > 0 {
					f.retire(s.end.ops[0])
				}
				d.slots[i].end = nil
			}
		}
		f.forget(d)
	}
	d.dead = why
	d.done, d.recvs, d.regs = queue[entry]{}, queue[receive]{}, nil
	d.ring()
}

func (f *Fabric) forget(d *domain) {
	if d.owner.domains--; d.owner.domains == 0 {
		delete(f.owners, d.bell)
	}
	for i, x := range f.domains {
		if x == d {
			f.domains = append(f.domains[:i], f.domains[i+1:]...)
			return
		}
	}
	panic(fmt.Sprintf("sim: domain %s is not on its fabric", d.place))
}
