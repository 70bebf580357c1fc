package tcp

import (
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxVecs is how many pieces one socket call carries: enough for 32 headers with payloads that are too large to copy, and far
// below IOV_MAX.
const maxVecs = 64

// Limits of a connection whose other end has become unreachable (its host lost power, a cable was pulled); when a process
// dies, its kernel says so at once.
const (
	// userTimeout ends a connection whose data nobody acknowledges, or whose peer has not taken any for so long: the kernel's own
	// limit is a quarter of an hour. It must not be short, because a stopped process is not a dead one.
	userTimeout = 20_000 // ms
	// An idle connection is probed so that its end is noticed as soon as that of a busy one.
	keepIdle  = 5 // s
	keepEvery = 5 // s
	keepCount = 3
)

// brief is the size up to which a socket call skips the scheduler's bookkeeping (some 50 ns): that is there for calls that take
// long, and the kernel copies so much within 2 us.
const brief = 16 << 10

// scatter holds what a socket call with several pieces needs, so that it allocates nothing.
type scatter struct {
	msg unix.Msghdr
	iov [maxVecs]unix.Iovec
}

// load points the message at vecs and returns its address for a system call. Empty vecs are left out.
//
// hot:
func (s *scatter) load(vecs [][]byte) uintptr {
	n := 0
	for _, v := range vecs {
		if len(v) > 0 {
			s.iov[n].Base = &v[0]
			s.iov[n].SetLen(len(v))
			n++
		}
	}
	s.msg.Iov = &s.iov[0]
	s.msg.SetIovlen(n)
	return uintptr(unsafe.Pointer(&s.msg)) // safe: s is part of a domain on the heap, which does not move and outlives the call
}

// unload forgets the pointers: the memory may be unmapped later, and the garbage collector must not meet a pointer to it then.
//
// hot:
func (s *scatter) unload() { clear(s.iov[:s.msg.Iovlen]) }

// send writes vecs (at most maxVecs, not all empty) to a socket that does not block and reports how many bytes it took.
//
// hot:
func (s *scatter) send(fd int, line byte, vecs [][]byte) (int, unix.Errno) {
	// A broken connection is an error here and no signal: MSG_NOSIGNAL.
	const flags = unix.MSG_DONTWAIT | unix.MSG_NOSIGNAL
	var n uintptr
	var errno unix.Errno
	if len(vecs) == 1 && len(vecs[0]) <= brief {
		// safe: the kernel reads len(vecs[0]) bytes during the call; vecs keeps them alive
		n, _, errno = unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&vecs[0][0])), uintptr(len(vecs[0])), flags, 0, 0)
	} else if len(vecs) == 1 {
		// safe: the kernel reads len(vecs[0]) bytes during the call; vecs keeps them alive
		n, _, errno = unix.Syscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&vecs[0][0])), uintptr(len(vecs[0])), flags, 0, 0)
	} else {
		n, _, errno = unix.Syscall(unix.SYS_SENDMSG, uintptr(fd), s.load(vecs), flags)
		s.unload()
	}
	if errno != 0 {
		return 0, errno
	}
	raceSent(line, vecs, int(n))
	return int(n), 0
}

// receive reads into vecs (at most maxVecs, not all empty) from a socket that does not block. 0 bytes without an error is the end
// of the stream.
//
// hot:
func (s *scatter) receive(fd int, line byte, vecs [][]byte) (int, unix.Errno) {
	const flags = unix.MSG_DONTWAIT
	var n uintptr
	var errno unix.Errno
	if len(vecs) == 1 && len(vecs[0]) <= brief {
		// safe: the kernel writes at most len(vecs[0]) bytes during the call; vecs keeps them alive
		n, _, errno = unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&vecs[0][0])), uintptr(len(vecs[0])), flags, 0, 0)
	} else if len(vecs) == 1 {
		// safe: the kernel writes at most len(vecs[0]) bytes during the call; vecs keeps them alive
		n, _, errno = unix.Syscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&vecs[0][0])), uintptr(len(vecs[0])), flags, 0, 0)
	} else {
		n, _, errno = unix.Syscall(unix.SYS_RECVMSG, uintptr(fd), s.load(vecs), flags)
		s.unload()
	}
	if errno != 0 {
		return 0, errno
	}
	raceReceived(line, vecs, int(n))
	return int(n), 0
}

// ready asks an epoll instance which of its descriptors are ready, without waiting. It is how a spinning owner spends its time, so
// it skips the scheduler's bookkeeping, which a call that never blocks does not need.
//
// hot:
func ready(ep int, events []unix.EpollEvent) (int, unix.Errno) {
	// safe: the kernel writes at most len(events) events during the call, which is not empty
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(ep), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), 0, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// newSocket makes a socket for ip that does not block.
func newSocket(ip netip.Addr) (int, error) {
	family := unix.AF_INET
	if ip.Is6() {
		family = unix.AF_INET6
	}
	return unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
}

func sockaddr(at netip.AddrPort) unix.Sockaddr {
	if at.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}
}

func addrPort(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port))
	}
	return netip.AddrPort{}
}

// tune sets the options of a data connection. Buffers are left to the kernel, whose auto-tuning follows the network. An
// option that is refused costs speed or an earlier notice of failure, nothing else, so errors are ignored.
func tune(fd int, local, remote netip.Addr) {
	set := func(level, option, value int) { _ = unix.SetsockoptInt(fd, level, option, value) }
	set(unix.IPPROTO_TCP, unix.TCP_NODELAY, 1) // batching is ours
	set(unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, userTimeout)
	set(unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
	set(unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, keepIdle)
	set(unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, keepEvery)
	set(unix.IPPROTO_TCP, unix.TCP_KEEPCNT, keepCount)
	if remote.IsLoopback() || local == remote {
		// Within a host nothing can be congested, but bbr would still pace, at half the speed. Between hosts the
		// administrator's choice stands.
		if unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic") != nil {
			_ = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno")
		}
	}
}
