package tcp

import (
	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/provider"
)

const (
	// eventsEvery is how many Polls a domain that is busy, or eager for data of one peer, makes without asking for events.
	eventsEvery = 8
	// eagerPolls is for how many Polls after the last data its socket is read without asking (some 15 us): the next piece of a
	// conversation mostly comes within it.
	eagerPolls = 64
	// pollBudget bounds the bytes that one Poll moves before it returns with work left, some 0.3 ms.
	pollBudget = 2 << 20
)

// What an event is about, in the upper half of its data; the lower half says which.
const (
	tagPeer int32 = iota
	tagStranger
	tagListener
	tagTimer
)

// peerEvents are those of a connected socket. Edge triggered: a stream is not asked again until something new happened, and
// waiting for room to send needs no call.
const peerEvents = unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET

func (d *domain) watch(op, fd int, events uint32, tag, id int32) error {
	return unix.EpollCtl(d.ep, op, fd, &unix.EpollEvent{Events: events, Fd: id, Pad: tag})
}

// Poll implements [provider.Domain].
//
// hot:
func (d *domain) Poll(cs []provider.Completion) (int, error) {
	out := sink{cs: cs}
	if d.closed {
		return 0, d.errorf("poll: %w", provider.ErrClosed)
	}
	if d.open {
		d.shut()
	}
	for d.errs.len() > 0 && !out.full() {
		out.put(d.errs.pop())
	}
	d.turns++
	eager := !d.busy && d.turns%eventsEvery != 0 && d.try()
	if !d.busy && !eager || d.turns%eventsEvery == 0 {
		if _, err := d.ask(); err != nil {
			return out.n, err
		}
	}
	d.busy, d.moved = false, 0
	for n := d.active.len(); n > 0; n-- {
		if d.moved >= pollBudget || out.full() && len(cs) > 0 {
			d.busy = true
			break
		}
		p := d.active.pop()
		p.queued = false
		if d.visit(p, &out) {
			d.activate(p)
		}
	}
	if eager && d.moved == 0 { // in vain: the next Poll visits whom the events concern
		if _, err := d.ask(); err != nil {
			return out.n, err
		}
	}
	return out.n, nil
}

// try has the next visit look into the socket that data came from last, if that was not long ago, and reports whether it does: the
// answer comes with the question, where an event has to be fetched first and then the data.
//
// hot:
func (d *domain) try() bool {
	p := d.recent
	if p == nil || p.phase != up || p.stream.quiet >= eagerPolls {
		d.recent = nil
		return false
	}
	p.stream.readable = true
	d.activate(p)
	return true
}

// visit does what can be done for p now and reports whether it must be visited again without an event.
//
// hot:
func (d *domain) visit(p *peer, out *sink) bool {
	s := &p.stream
	switch p.phase {
	case up:
	case down:
		return !d.flush(p, out)
	default:
		d.greet(p)
		return p.phase == up || p.phase == down
	}
	if !p.told {
		if out.full() {
			return true
		}
		out.put(provider.Completion{Peer: p.handle, Kind: provider.KindPeerUp})
		p.told = true
	}
	if s.sendable() {
		d.transmit(p)
	}
	// Before reading, so that what is received cannot take all the room again and again.
	d.deliver(p, out)
	if s.readable || s.stalled {
		d.receive(p, out)
		if p.phase != up {
			return true
		}
		d.deliver(p, out)
	} else {
		s.quiet++
	}
	if s.due() {
		d.transmit(p)
	}
	if d.pending(p) {
		d.busy = true
		return true
	}
	return s.owing() && !s.blocked
}

// deliver gives out what is complete: the requests that the peer has settled, the messages that receives wait for.
//
// hot:
func (d *domain) deliver(p *peer, out *sink) {
	s := &p.stream
	if s.writes.done != s.writes.settled {
		s.writes.deliver(p.handle, provider.KindWrite, s.writes.settled, out)
	}
	if s.msgs.done != s.msgs.settled {
		s.msgs.deliver(p.handle, provider.KindSend, s.msgs.settled, out)
	}
	if p.listed {
		d.handOver(p, out)
	}
}

// pending reports whether a visit to p, which is up, would find something to do.
//
// hot:
func (d *domain) pending(p *peer) bool {
	s := &p.stream
	return s.readable || s.stalled || !p.told || s.sendable() ||
		s.writes.done != s.writes.settled || s.msgs.done != s.msgs.settled || p.listed && d.recvs.len() > 0
}

// flush completes what is outstanding to a peer that is down and reports false when out has no room for it.
func (d *domain) flush(p *peer, out *sink) bool {
	s := &p.stream
	for p.status == provider.StatusPeerDown && p.listed && d.recvs.len() > 0 {
		if out.full() {
			return false
		}
		d.handOver(p, out)
	}
	if p.listed {
		d.unlist(p)
	}
	if !s.writes.deliver(p.handle, provider.KindWrite, s.writes.tail, out) ||
		!s.msgs.deliver(p.handle, provider.KindSend, s.msgs.tail, out) {
		return false
	}
	s.writes.ring, s.msgs.ring, s.early = nil, nil, early{}
	if !p.toldDown {
		if out.full() {
			return false
		}
		out.put(provider.Completion{Peer: p.handle, Kind: provider.KindPeerDown, Status: p.status, Detail: p.detail})
		p.toldDown = true
	}
	if p.fenced {
		if out.full() {
			return false
		}
		out.put(provider.Completion{Peer: p.handle, Kind: provider.KindFenced})
	}
	if p.released {
		d.forget(p)
	}
	return true
}

// activate has p visited by the next Poll.
//
// hot:
func (d *domain) activate(p *peer) {
	if !p.queued {
		p.queued = true
		d.active.push(p, d.activeSize)
	}
}

// ask takes the events that are there and notes them with whom they concern.
//
// hot:
func (d *domain) ask() (int, error) {
	n, errno := ready(d.ep, d.events[:])
	if errno != 0 && errno != unix.EINTR {
		return 0, d.errorf("epoll_wait: %w", errno)
	}
	for i := range n {
		ev := &d.events[i]
		switch ev.Pad {
		case tagPeer:
			d.stir(provider.Peer(ev.Fd), ev.Events)
		case tagStranger:
			d.hear(ev.Fd)
		case tagListener:
			d.admit()
		case tagTimer:
			d.expire()
		}
	}
	return n, nil
}

// stir notes an event of a peer's socket.
//
// hot:
func (d *domain) stir(h provider.Peer, events uint32) {
	p := d.peer(h)
	if p == nil || p.stream.fd < 0 {
		return // an event that was under way when the socket was closed
	}
	s := &p.stream
	if events&(unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		s.readable = true
	}
	if events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		s.ending = true
	}
	if events&unix.EPOLLOUT != 0 {
		s.blocked = false
	}
	d.activate(p)
}

// Arm implements [provider.Domain]. It also sends the acks that waited for company.
func (d *domain) Arm() bool {
	if d.closed || d.busy || d.errs.len() > 0 {
		return true
	}
	for i := range d.active.len() {
		p := *d.active.at(i)
		if p.phase != up || d.pending(p) {
			return true
		}
		if s := &p.stream; s.owing() && !s.blocked && !s.mute {
			d.transmit(p)
			if d.pending(p) { // sending met the end of the connection
				return true
			}
		}
	}
	if n, err := d.ask(); n > 0 || err != nil {
		return true
	}
	// From here on events pass the gate; one that came since the question opens it at once.
	d.open = true
	return unix.EpollCtl(d.gate, unix.EPOLL_CTL_MOD, d.ep, &unix.EpollEvent{Events: unix.EPOLLIN}) != nil
}

// shut closes the gate: the owner is awake and asks by itself.
func (d *domain) shut() {
	d.open = false
	_ = unix.EpollCtl(d.gate, unix.EPOLL_CTL_MOD, d.ep, &unix.EpollEvent{})
}
