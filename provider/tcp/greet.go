package tcp

import (
	"crypto/subtle"
	"errors"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/provider"
)

// What an unknown host can cost: so many sockets, for so long, and nothing else; they read into the fixed buffers of the
// table. When it is full the oldest goes, because whoever was given an offer says hello within a round trip.
const (
	maxStrangers  = 64
	strangerStay  = 2 * time.Second
	admitTurn     = 16 // connections accepted per event
	deafTime      = 100 * time.Millisecond
	strangerShift = 8 // a stranger's event names its slot and, above this bit, a number
)

// stranger is an accepted connection that has not proved anything yet.
type stranger struct {
	here   bool
	fd     int
	number int32 // so that an event of the slot's previous user is not taken for its own
	leave  time.Time
	buf    [helloSize]byte
	n      int
}

// admit accepts connections.
func (d *domain) admit() {
	for range admitTurn {
		fd, sa, err := unix.Accept4(d.listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		switch err {
		case nil:
		case unix.EAGAIN:
			return
		case unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM:
			if i := d.oldest(); i >= 0 {
				d.dismiss(i)
				continue
			}
			// The listener stays ready until somebody gives a descriptor back: do not listen for a while.
			d.deaf = true
			_ = d.watch(unix.EPOLL_CTL_MOD, d.listener, 0, tagListener, 0)
			d.setAlarm(time.Now().Add(deafTime))
			return
		default:
			continue // the connection ended before it was accepted
		}
		if d.expected == 0 {
			d.refused++
			unix.Close(fd)
			continue
		}
		tune(fd, d.ip, addrPort(sa).Addr())
		d.seat(fd)
	}
}

// seat gives an accepted connection a place in the table.
func (d *domain) seat(fd int) {
	i := d.oldest()
	for j := range d.strangers {
		if !d.strangers[j].here {
			i = j
			break
		}
	}
	st := &d.strangers[i]
	if st.here {
		d.dismiss(i)
	}
	number := (st.number + 1) & (1<<(31-strangerShift) - 1)
	*st = stranger{here: true, fd: fd, number: number, leave: time.Now().Add(strangerStay)}
	id := int32(i) | number<<strangerShift
	if d.watch(unix.EPOLL_CTL_ADD, fd, unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLET, tagStranger, id) != nil {
		d.dismiss(i)
		return
	}
	d.setAlarm(st.leave)
}

// oldest is the slot of the stranger that has been here for longest, or -1.
func (d *domain) oldest() int {
	i := -1
	for j := range d.strangers {
		if st := &d.strangers[j]; st.here && (i < 0 || st.leave.Before(d.strangers[i].leave)) {
			i = j
		}
	}
	return i
}

// dismiss closes a stranger's connection.
func (d *domain) dismiss(i int) {
	st := &d.strangers[i]
	_ = unix.EpollCtl(d.ep, unix.EPOLL_CTL_DEL, st.fd, nil)
	unix.Close(st.fd)
	st.here = false
	d.refused++
}

// hear reads what a stranger has to say. When it is a hello for one of our offers, the connection becomes the peer's.
func (d *domain) hear(id int32) {
	i := int(id & (1<<strangerShift - 1))
	if i >= maxStrangers || !d.strangers[i].here || d.strangers[i].number != id>>strangerShift {
		return
	}
	st := &d.strangers[i]
	switch readGreeting(st.fd, &st.buf, &st.n) {
	case greetingMore:
		return
	case greetingEnd:
		d.dismiss(i)
		return
	}
	g, ok := parseGreeting(&st.buf)
	p := d.peer(g.handle)
	if !ok || g.kind != greetHello || p == nil || p.spent || p.phase > waiting ||
		subtle.ConstantTimeCompare(g.proof[:], p.secret[:]) != 1 ||
		d.watch(unix.EPOLL_CTL_MOD, st.fd, peerEvents, tagPeer, int32(p.handle)) != nil {
		d.dismiss(i)
		return
	}
	st.here = false
	p.spent = true
	d.expected--
	p.stream.fd = st.fd
	p.hello = g
	if p.phase == waiting {
		d.welcome(p)
	}
}

// welcome answers the hello of p, whose two Connects have both been called now.
func (d *domain) welcome(p *peer) {
	if subtle.ConstantTimeCompare(p.hello.own[:], p.remote.secret[:]) != 1 {
		d.refused++
		d.fail(p, provider.StatusRefused, 0)
		return
	}
	d.sayTo(p, greetWelcome)
	if p.phase != down {
		d.raise(p)
	}
}

// dial starts the connection of the active side.
func (d *domain) dial(p *peer) {
	if p.spent { // somebody with our secret dialled us: both sides are active, or it leaked
		d.fail(p, provider.StatusRefused, 0)
		return
	}
	p.spent = true
	d.expected--
	p.phase = dialing
	fd, err := newSocket(d.ip)
	if err == nil {
		p.stream.fd, p.stream.blocked = fd, true
		tune(fd, d.ip, p.remote.at.Addr())
		// From the rail's own address, but the port only when the whole pair is known: there are more pairs than ports.
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
		err = unix.Bind(fd, sockaddr(netip.AddrPortFrom(d.ip, 0)))
	}
	if err == nil {
		if err = unix.Connect(fd, sockaddr(p.remote.at)); err == unix.EINPROGRESS {
			err = nil
		}
	}
	if err == nil {
		err = d.watch(unix.EPOLL_CTL_ADD, fd, peerEvents, tagPeer, int32(p.handle))
	}
	if err != nil {
		d.fail(p, provider.StatusRefused, detail(err))
	}
}

// greet moves the active side's greeting on after an event.
func (d *domain) greet(p *peer) {
	s := &p.stream
	switch p.phase {
	case dialing:
		errno, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err != nil || errno != 0 {
			d.fail(p, provider.StatusRefused, uint32(errno))
		} else if !s.blocked {
			p.phase = greeted
			d.sayTo(p, greetHello)
		}
	case greeted:
		if !s.readable {
			return
		}
		switch readGreeting(s.fd, &p.answer, &p.answerLen) {
		case greetingMore:
			s.readable = false
			return
		case greetingEnd:
			d.fail(p, provider.StatusRefused, 0)
			return
		}
		g, ok := parseGreeting(&p.answer)
		if !ok || g.kind != greetWelcome || g.handle != p.handle ||
			subtle.ConstantTimeCompare(g.proof[:], p.secret[:])&subtle.ConstantTimeCompare(g.own[:], p.remote.secret[:]) != 1 {
			d.refused++
			d.fail(p, provider.StatusRefused, 0)
			return
		}
		d.raise(p)
	}
}

// sayTo sends a greeting. It fits into the empty buffer of a new socket.
func (d *domain) sayTo(p *peer, kind uint32) {
	g := greeting{kind: kind, handle: p.remote.handle, proof: p.remote.secret, own: p.secret}
	b := g.encode()
	n, err := unix.SendmsgN(p.stream.fd, b[:], nil, nil, unix.MSG_NOSIGNAL)
	if n != helloSize {
		d.fail(p, provider.StatusRefused, detail(err))
	}
}

// raise makes p a peer that can be written to.
func (d *domain) raise(p *peer) {
	p.phase = up
	p.stream.rx.buf = make([]byte, bufferSize)
	p.stream.readable = true // events of before may have told of more than the greeting
	p.stream.blocked = false
	d.activate(p)
}

type greetingState int

const (
	greetingWhole greetingState = iota
	greetingMore                // not yet
	greetingEnd                 // never
)

// readGreeting reads exactly a greeting's bytes, as far as they have come: what follows is the stream's.
func readGreeting(fd int, b *[helloSize]byte, n *int) greetingState {
	for *n < helloSize {
		k, err := unix.Read(fd, b[*n:])
		switch {
		case err == unix.EAGAIN:
			return greetingMore
		case err == unix.EINTR:
		case err != nil || k <= 0:
			return greetingEnd
		default:
			*n += k
		}
	}
	return greetingWhole
}

// setAlarm makes the timer fire at t or earlier.
func (d *domain) setAlarm(t time.Time) {
	if !d.alarm.IsZero() && !t.Before(d.alarm) {
		return
	}
	d.alarm = t
	in := max(time.Until(t), 1) // 0 would stop the timer
	_ = unix.TimerfdSettime(d.timer, 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(int64(in))}, nil)
}

// expire ends what has taken too long.
func (d *domain) expire() {
	var fired [8]byte
	if _, err := unix.Read(d.timer, fired[:]); err != nil {
		return // set anew since
	}
	d.alarm = time.Time{}
	now := time.Now()
	if d.deaf {
		d.deaf = false
		_ = d.watch(unix.EPOLL_CTL_MOD, d.listener, unix.EPOLLIN, tagListener, 0)
	}
	for i := range d.strangers {
		switch st := &d.strangers[i]; {
		case !st.here:
		case st.leave.After(now):
			d.setAlarm(st.leave)
		default:
			d.dismiss(i)
		}
	}
	for _, p := range d.peers {
		switch {
		case p == nil || p.phase != waiting && p.phase != dialing && p.phase != greeted:
		case p.deadline.After(now):
			d.setAlarm(p.deadline)
		default:
			d.fail(p, provider.StatusRefused, uint32(unix.ETIMEDOUT))
		}
	}
}

// detail is the system's number of an error.
func detail(err error) uint32 {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return uint32(errno)
	}
	return 0
}
