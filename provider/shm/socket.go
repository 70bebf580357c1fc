package shm

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// socketName is the abstract name of a Domain's socket: it is no file and vanishes with the socket.
func socketName(random [16]byte) *unix.SockaddrUnix {
	return &unix.SockaddrUnix{Name: "@hawser-shm-" + hex.EncodeToString(random[:])}
}

const socketType = unix.SOCK_SEQPACKET | unix.SOCK_NONBLOCK | unix.SOCK_CLOEXEC

// listen makes the socket that active sides connect to.
func listen(random [16]byte) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, socketType, 0)
	if err != nil {
		return -1, fmt.Errorf("socket: %w", err)
	}
	err = unix.Bind(fd, socketName(random))
	if err == nil {
		err = unix.Listen(fd, unix.SOMAXCONN)
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("listen: %w", err)
	}
	return fd, nil
}

// errAgain: not now.
var errAgain = errors.New("the socket would block")

// dial connects to a Domain's socket; errAgain when its owner must first accept others.
func dial(random [16]byte) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, socketType, 0)
	if err != nil {
		return -1, fmt.Errorf("socket: %w", err)
	}
	if err := unix.Connect(fd, socketName(random)); err != nil {
		unix.Close(fd)
		if err == unix.EAGAIN {
			return -1, errAgain
		}
		return -1, fmt.Errorf("connect: %w", err)
	}
	return fd, nil
}

// checkUser checks that the other end is of our user: the kernel says so, not the peer.
func checkUser(fd int) error {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return fmt.Errorf("peer credentials: %w", err)
	}
	if own := uint32(unix.Geteuid()); cred.Uid != own {
		return fmt.Errorf("peer has user id %d, want %d", cred.Uid, own)
	}
	return nil
}

// send sends one datagram; errAgain when the peer must first read others.
func send(fd int, m *datagram, fds ...int) error {
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	var buf [maxDatagram]byte
	_, err := unix.SendmsgN(fd, m.append(buf[:0]), rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	switch err {
	case nil:
		return nil
	case unix.EAGAIN, unix.ENOBUFS, unix.ETOOMANYREFS: // the last: too many descriptors of this user are in flight
		return errAgain
	}
	return fmt.Errorf("sendmsg: %w", err)
}

// packet is a datagram that was received. Whoever holds it closes the descriptors that it does not keep.
type packet struct {
	datagram
	fds []int
	cut bool // descriptors were lost on our side: this process has too many open
}

// closeFDs closes what is left.
func (p *packet) closeFDs() {
	for _, fd := range p.fds {
		unix.Close(fd)
	}
	p.fds = nil
}

// take hands the i-th descriptor over to the caller.
func (p *packet) take(i int) int {
	fd := p.fds[i]
	p.fds[i] = -1 // closing it does nothing
	return fd
}

// recv receives one datagram. io.EOF: the other side has closed; errAgain: nothing is there; errDatagram: it is malformed.
func recv(fd int) (p packet, err error) {
	var buf [maxDatagram + 1]byte
	var oob [64]byte // room for maxFDs; the kernel drops what does not fit
	n, oobn, flags, _, err := unix.Recvmsg(fd, buf[:], oob[:], unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	switch {
	case err == unix.EAGAIN || err == unix.EINTR:
		return p, errAgain
	case err != nil: // connection reset: it was closed with datagrams unread
		return p, io.EOF
	}
	if p.fds, err = rights(oob[:oobn]); err != nil {
		return p, err
	}
	p.cut = flags&unix.MSG_CTRUNC != 0
	if n == 0 && !ended(fd) {
		err = fmt.Errorf("%w: it is empty", errDatagram)
	} else if n == 0 {
		err = io.EOF
	} else {
		p.datagram, err = decode(buf[:n])
	}
	if err == nil && len(p.fds) != fdsOf[p.kind] && !p.cut {
		err = fmt.Errorf("%w: kind %d came with %d descriptors, want %d", errDatagram, p.kind, len(p.fds), fdsOf[p.kind])
	}
	if err != nil || p.cut {
		p.closeFDs()
	}
	return p, err
}

// rights takes the descriptors out of a control buffer.
func rights(oob []byte) ([]int, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("%w: control data: %w", errDatagram, err)
	}
	var all []int
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err == nil { // else it carries no descriptors
			all = append(all, fds...)
		}
	}
	return all, nil
}

// ended tells the end of the connection from an empty datagram.
func ended(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0 && p[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
}
