package shm

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/internal/ring"
	"github.com/hawser-project/hawser/provider"
)

// A connection is made in two datagrams: the active side connects to the passive side's socket and sends kindHello with the pair page
// that it made; the passive side answers kindWelcome, and is up; the active side is up when it has the answer.

// stranger is an accepted socket that has not said hello yet.
type stranger struct {
	fd       int
	deadline int64
}

// maxStrangers bounds them; a hello follows its connection at once, so that only misfits stay.
const maxStrangers = 64

// early is a connection whose hello named a handle for which Connect has not been called yet.
type early struct {
	packet
	fd int
}

// dial starts the active side.
func (d *domain) dial(p *peer) {
	fd, err := dial(p.addr.name)
	if errors.Is(err, errAgain) {
		p.deadline = min(p.giveUp, d.after(dialRetry))
		return
	}
	if err == nil {
		p.fd, p.deadline = fd, p.giveUp
		err = d.hello(p)
	}
	if err != nil {
		d.end(p, provider.StatusRefused) // nobody listens, or another user does
	}
}

// hello makes the pair page and sends it.
func (d *domain) hello(p *peer) error {
	if err := checkUser(p.fd); err != nil {
		return err
	}
	pairFD, mem, err := newPage("hawser-pair", pairPageSize, 0)
	if err != nil {
		return err
	}
	defer unix.Close(pairFD)
	p.pairMem = mem
	m := datagram{kind: kindHello, handle: p.addr.handle, to: p.addr.secret, from: p.secret, proof: d.proof}
	if err := send(p.fd, &m, pairFD, d.pageFD, d.bell.FD()); err != nil {
		return err
	}
	return d.watch(p.fd, tagPeer, int32(p.handle))
}

// accept takes waiting connections.
func (d *domain) accept() {
	for range eventBatch {
		fd, _, err := unix.Accept4(d.listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		if err != nil {
			return // none, or no descriptor is free: it waits
		}
		if checkUser(fd) != nil || d.watch(fd, tagStranger, int32(fd)) != nil {
			unix.Close(fd)
			continue
		}
		if len(d.strangers) == maxStrangers {
			oldest := d.strangers[0].fd
			d.forget(oldest)
			unix.Close(oldest)
		}
		d.strangers = append(d.strangers, stranger{fd, d.after(provider.ConnectTimeout)})
		d.meet(fd)
	}
}

// forget takes a socket out of the strangers.
func (d *domain) forget(fd int) {
	d.unwatch(fd)
	for i := range d.strangers {
		if d.strangers[i].fd == fd {
			d.strangers = append(d.strangers[:i], d.strangers[i+1:]...)
			return
		}
	}
}

// meet reads a stranger's hello. Whoever does not know the secret of a waiting handle is turned away, and the handle goes on waiting.
func (d *domain) meet(fd int) {
	if !slices.ContainsFunc(d.strangers, func(s stranger) bool { return s.fd == fd }) {
		return // turned away since the event was reported; the number may be another descriptor's by now
	}
	pkt, err := recv(fd)
	if errors.Is(err, errAgain) {
		return
	}
	d.forget(fd)
	p := d.expected(&pkt, err)
	if p == nil {
		pkt.closeFDs()
		unix.Close(fd)
		return
	}
	p.early = &early{pkt, fd}
	if p.state == stateConnecting {
		d.admit(p)
	}
}

// expected finds the handle that waits for this hello.
func (d *domain) expected(pkt *packet, err error) *peer {
	if err != nil || pkt.kind != kindHello || pkt.cut {
		return nil
	}
	p := d.peer(pkt.handle)
	switch {
	case p == nil || p.state > stateConnecting || p.active || p.early != nil:
		return nil
	case subtle.ConstantTimeCompare(pkt.to[:], p.secret[:]) != 1:
		return nil
	}
	return p
}

// admit completes the passive side, once it has both the hello and the Addr that Connect got.
func (d *domain) admit(p *peer) {
	e := p.early
	p.early = nil
	defer e.closeFDs()
	if subtle.ConstantTimeCompare(e.from[:], p.addr.secret[:]) != 1 {
		unix.Close(e.fd) // it has our Addr, but is not whom our owner talks to
		return
	}
	p.fd = e.fd
	mem, err := importPage(e.fds[0], pairPageSize, unix.PROT_READ|unix.PROT_WRITE)
	p.pairMem = mem
	if err == nil {
		err = d.adopt(p, &e.packet, 1)
	}
	if err == nil {
		err = send(p.fd, &datagram{kind: kindWelcome, proof: d.proof}, d.pageFD, d.bell.FD())
	}
	if err == nil {
		err = d.watch(p.fd, tagPeer, int32(p.handle))
	}
	if err != nil {
		d.end(p, provider.StatusRefused)
		return
	}
	d.up(p)
}

// adopt takes the peer's bell page and bell out of a packet, where they are at i.
func (d *domain) adopt(p *peer, pkt *packet, i int) error {
	mem, err := importPage(pkt.fds[i], bellPageSize, unix.PROT_READ)
	if err != nil {
		return err
	}
	p.theirsMem, p.theirs = mem, bellPageAt(mem)
	// A pipe or a file could block whoever writes to it.
	if link, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(pkt.fds[i+1])); err != nil || link != "anon_inode:[eventfd]" {
		return fmt.Errorf("%w: the bell is %q (%w), want an eventfd", errDatagram, link, err)
	}
	if err := unix.SetNonblock(pkt.fds[i+1], true); err != nil {
		return err
	}
	p.bellFD = pkt.take(i + 1)
	d.meetProcess(p, pkt.proof)
	return nil
}

// up makes a connection usable.
func (d *domain) up(p *peer) {
	d.connecting--
	p.state, p.wasUp, p.deadline = stateUp, true, 0
	p.pair = pairPageAt(p.pairMem)
	out, in := 0, 1
	if !p.active {
		out, in = 1, 0
	}
	p.tx, p.rx = &p.pair.lanes[out], &p.pair.lanes[in]
	p.immOut = ring.NewSharedWriter(&p.tx.imms, p.pair.slots[out][:])
	p.immIn = ring.NewSharedReader(&p.rx.imms, p.pair.slots[in][:])
	p.msgOut = ring.NewSharedByteWriter(&p.tx.msgs, p.pair.areas[out][:])
	p.msgIn = ring.NewSharedByteReader(&p.rx.msgs, p.pair.areas[in][:])
	p.openLoans(out, in)
	d.enlive(p)
}

// dropEarly turns a connection away that came too early.
func (d *domain) dropEarly(p *peer) {
	if e := p.early; e != nil {
		e.closeFDs()
		unix.Close(e.fd)
		p.early = nil
	}
}

// readSocket takes what the peer has sent on the connection's socket, and reports whether there may be more.
func (d *domain) readSocket(p *peer) bool {
	n, swept := 0, false
	for ; n < datagramBatch && p.fd >= 0; n++ {
		pkt, err := recv(p.fd)
		if errors.Is(err, errAgain) {
			break
		}
		if errors.Is(err, io.EOF) {
			d.hungUp(p)
			return false
		}
		if err == nil {
			swept = swept || pkt.kind == kindSweep
			err = d.obey(p, &pkt)
			pkt.closeFDs()
		}
		if err != nil && p.state == stateConnecting {
			d.end(p, provider.StatusRefused)
		} else if err != nil {
			d.breach(p)
		}
	}
	// A full batch: the socket may have been full when the peer wanted to send a sweep.
	if p.state == stateUp && (swept || n == datagramBatch) {
		d.sweep(p)
	}
	return n == datagramBatch && p.fd >= 0
}

// obey does what a datagram says. An error is the peer's fault.
func (d *domain) obey(p *peer, pkt *packet) error {
	switch {
	case p.state >= stateEnding:
		return nil // sent before it knew
	case p.state == stateConnecting && pkt.kind == kindWelcome && !pkt.cut:
		if err := d.adopt(p, pkt, 0); err != nil {
			return err
		}
		d.up(p)
		return nil
	case p.state == stateUp && pkt.kind == kindGrant:
		return d.mapGrant(p, pkt)
	case p.state == stateUp && pkt.kind == kindSource:
		return d.mapSource(p, pkt)
	case p.state == stateUp && pkt.kind == kindForeign:
		p.noteForeign(pkt)
		return nil
	case p.state == stateUp && pkt.kind == kindSweep:
		return nil
	}
	return fmt.Errorf("%w: kind %d is out of place", errDatagram, pkt.kind)
}
