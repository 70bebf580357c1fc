package proto

import (
	"fmt"
	"slices"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv/layout"
)

// fetchLink is the way to whatever engine answers at one address. Each time that it comes up it has a new epoch; from Hello to the
// first thing that goes wrong.
type fetchLink struct {
	d     *Decoder
	id    Link
	addr  string
	state linkState
	timer timer

	// Of this epoch; peer from Connected on.
	peer          Peer
	epoch, ticket uint64
	hello         Hello
	instance      string
	member        int
	topo          string // encoded topology of P's instance
	granted, used uint64 // credits; both only grow
	draining      bool   // it takes no new jobs

	first, last *fetchWriter // of attempts that are not quiet, in the order of seq
	detaches    []fetchDetach
	silent      []*fetchWriter // to be asked about

	sources  []*fetchSource
	warm     bool  // Warm: it is kept up
	missed   bool  // a request that would have used it went elsewhere: it is tried once more
	badUntil Time  // it is remembered that long after it failed
	err      error // why it is not up; nil when it is, or was never tried
	failures int   // since it was up
	lastFail Time
	promised uint64 // credits of requests that were just unparked
	wants    uint64 // credits that the first waiting request lacks

	limit, repeat Time // linkHello: when it fails, when Hello is repeated. linkFencing: limit
	pause         Time
	beatAt        Time // up
	idleBeats     int
	queryAt       Time
}

type linkState uint8

const (
	linkDown       linkState = iota
	linkConnecting           // Connect is out
	linkFencing              // the peer is being fenced: whatever session there is ends with that
	linkHello                // Hello is out
	linkUp
)

func (s linkState) String() string {
	return [...]string{"down", "connecting", "fencing", "hello", "up"}[s]
}

// fetchDetach is a Cancel without an attempt: it says that this member will not dispatch. It is repeated until it is answered.
type fetchDetach struct {
	seq           uint64
	request       string
	repeat, until Time
	pause         Time
	reason        string
}

// Warm makes a link ahead of traffic and keeps it up. LinkState and notes tell how that goes.
func (d *Decoder) Warm(now Time, addr string) Link {
	d.enter(now)
	l := d.link(addr)
	l.warm = true
	d.want(l)
	d.leave()
	return l.id
}

// LinkState reports whether a link is up, and why it is not; both are zero while it is being made for the first time.
func (d *Decoder) LinkState(id Link) (up bool, err error) {
	l := d.byID[id]
	switch {
	case l == nil:
		return false, fmt.Errorf("kv: link %d: %w", id, hawser.ErrStale)
	case l.state == linkUp:
		return true, nil
	}
	return false, l.err
}

// link finds or makes the link of an address.
func (d *Decoder) link(addr string) *fetchLink {
	l := d.links[addr]
	if l == nil {
		d.lastID++
		l = &fetchLink{d: d, id: d.lastID, addr: addr}
		l.timer.owner = l
		d.links[addr], d.byID[l.id] = l, l
		d.inOrder = append(d.inOrder, l)
	}
	return l
}

// forgetLink forgets a link that nobody uses and that is not up. One that failed is remembered for a while: a request that has another
// choice does not wait for it.
func (d *Decoder) forgetLink(l *fetchLink) {
	if l.state == linkDown && !l.warm && !l.missed && len(l.sources) == 0 && d.byID[l.id] == l {
		if d.now < l.badUntil {
			d.timers.set(&l.timer, l.badUntil)
			return
		}
		d.timers.clear(&l.timer)
		delete(d.links, l.addr)
		delete(d.byID, l.id)
		d.inOrder = without(d.inOrder, l)
	}
}

// wanted: somebody waits for it.
func (l *fetchLink) wanted() bool {
	for _, s := range l.sources {
		if len(s.parked) > 0 {
			return true
		}
	}
	return l.warm || l.missed
}

// want connects a link that is down, or will when the pause after a failure is over.
func (d *Decoder) want(l *fetchLink) {
	if l.state == linkFencing && l.timer.slot == 0 {
		l.limit = d.now + linkLimit
		d.timers.set(&l.timer, l.limit)
	}
	if l.state != linkDown || d.closing || d.draining && d.waiting == 0 {
		return
	}
	if at := l.retryAt(); at > d.now {
		if l.timer.slot == 0 || at < l.timer.at {
			d.timers.set(&l.timer, at)
		}
		return
	}
	l.state = linkConnecting
	d.timers.clear(&l.timer)
	d.out.Connect(l.id, l.addr)
}

func (l *fetchLink) retryAt() Time {
	if l.failures == 0 {
		return 0
	}
	most := backoffWarm
	for _, s := range l.sources {
		if len(s.parked) > 0 {
			most = backoffMost
		}
	}
	return l.lastFail + min(backoffFirst<<min(l.failures-1, 10), most)
}

// Connected answers Connect: there is a session with a peer.
func (d *Decoder) Connected(now Time, id Link, p Peer) {
	d.enter(now)
	if l := d.byID[id]; l != nil && l.state == linkConnecting {
		d.connected(l, p)
	}
	d.leave()
}

func (d *Decoder) connected(l *fetchLink, p Peer) {
	if f := d.fences[p]; f != nil {
		l.state, l.peer, l.limit = linkFencing, p, d.now+linkLimit
		f.links = append(f.links, l)
		d.timers.set(&l.timer, l.limit)
		d.tryFence(f)
		return
	}
	if other := d.peers[p]; other != nil {
		d.linkFailed(l, fmt.Errorf("%w: there is a link to this prefiller already, by the address %s", hawser.ErrBusy, short(other.addr)), true)
		return
	}
	descriptors, err := d.out.Describe(p)
	if err != nil {
		d.linkFailed(l, err, false)
		return
	}
	d.epoch++
	l.state, l.peer, l.epoch, l.ticket = linkHello, p, d.epoch, 0
	l.granted, l.used, l.draining, l.wants = 0, 0, false, 0
	l.hello = Hello{
		Instance: d.cfg.Instance, Member: d.cfg.Member, Topology: d.topology, Descriptors: descriptors,
		TailSlots: d.cfg.TailSlots, TailBytes: d.cfg.TailBytes,
	}
	d.peers[p] = l
	l.limit, l.repeat, l.pause = d.now+linkLimit, d.now+repeatFirst, 2*repeatFirst
	d.send(l, &l.hello)
	d.armLink(l)
}

// ConnectFailed answers Connect.
func (d *Decoder) ConnectFailed(now Time, id Link, err error) {
	d.enter(now)
	if l := d.byID[id]; l != nil && l.state == linkConnecting {
		d.linkFailed(l, err, false)
	}
	d.leave()
}

// linkFailed: a link that was being made did not come up. The requests that wait for it look elsewhere; never: it makes no sense to
// ask there again.
func (d *Decoder) linkFailed(l *fetchLink, cause error, never bool) {
	if l.state == linkHello {
		delete(d.peers, l.peer)
	}
	if l.state != linkFencing {
		l.state = linkDown
	}
	l.hello = Hello{}
	l.failures++
	l.missed, l.badUntil = false, d.now+backoffWarm
	l.lastFail, l.err = d.now, cause
	d.timers.clear(&l.timer)
	d.note(Note{Kind: NoteLinkDown, Link: l.id, Peer: l.peer, Err: cause})
	err := fmt.Errorf("link to %s: %w", short(l.addr), cause)
	for _, s := range slices.Clone(l.sources) {
		for _, r := range slices.Clone(s.parked) {
			d.sourceFailed(r, err, never)
		}
	}
	if l.wanted() {
		d.want(l)
	}
	d.forgetLink(l)
}

// up: the prefiller has imported everything.
func (d *Decoder) up(l *fetchLink, ticket uint64, m *HelloAck) {
	l.state, l.ticket, l.granted = linkUp, ticket, m.Granted
	l.instance, l.member, l.topo = m.Instance, m.Member, string(m.Topology)
	l.failures, l.err, l.missed, l.badUntil, l.hello = 0, nil, false, 0, Hello{}
	l.beatAt, l.idleBeats = d.now+beatPause, 0
	d.note(Note{Kind: NoteLinkUp, Link: l.id, Peer: l.peer})
	if d.draining {
		d.send(l, &Drain{})
	}
	for _, s := range slices.Clone(l.sources) {
		s.err = nil
		d.pairUp(s)
	}
	d.armLink(l)
}

// pairUp makes a source usable when all its links are up, and sends its waiting requests on their way.
func (d *Decoder) pairUp(s *fetchSource) {
	for _, l := range s.links {
		if l.state != linkUp {
			return
		}
	}
	if s.pair == nil && s.err == nil {
		s.pair, s.err = d.pair(s)
	}
	if s.err != nil {
		for _, r := range slices.Clone(s.parked) {
			d.sourceFailed(r, s.err, true)
		}
		return
	}
	d.unpark(s)
}

// pair checks that the links of a source belong to one instance, in its order, and works out who writes what.
func (d *Decoder) pair(s *fetchSource) (*layout.Pair, error) {
	one := s.links[0]
	for i, l := range s.links {
		if l.instance != one.instance || l.topo != one.topo || l.member != i {
			return nil, &MismatchError{
				Field: fmt.Sprintf("prefiller at %s", short(l.addr)), There: fmt.Sprintf("is member %d of instance %q", l.member, l.instance),
				Here: fmt.Sprintf("member %d of %q is wanted", i, one.instance),
			}
		}
	}
	if s.last != nil && s.topo == one.topo {
		return s.last, nil
	}
	x := d.pairing([]byte(one.topo))
	switch {
	case x.theirs == nil:
		return nil, fmt.Errorf("topology of %s: %w", short(one.addr), x.err)
	case len(x.theirs.Members) != len(s.links):
		return nil, &MismatchError{Field: "members of instance " + one.instance, There: fmt.Sprint(len(x.theirs.Members)), Here: fmt.Sprintf("%d addresses", len(s.links))}
	case x.err != nil:
		return nil, x.err
	}
	s.topo, s.last = one.topo, x.pair
	return x.pair, nil
}
