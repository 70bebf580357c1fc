//go:build cgo

package ofi

import (
	"encoding/binary"
	"net/netip"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// libfabric's tcp accepts a socket for an endpoint and waits for the request on it with a pointer to that endpoint. Closing the endpoint leaves
// the pointer (xnet_pep_close of 1.17 to 2.6 says so in a comment): when the request comes, or the socket ends, freed memory is used, and the
// process dies of it. So no endpoint is closed while such a socket exists. They are found among this process's descriptors, by the
// endpoint's address: libfabric's answer to a request is the first that it sends on a socket, so one that has sent nothing is one of them. It is
// reset, which has libfabric forget it when it makes progress next. What connects from then on is not accepted: nothing makes progress
// until the endpoint is closed.
//
// Reset, not shut down: of a socket that has ended libfabric reads nothing and then asks errno why (xnet_recv_cm_msg until 2.1; mended in 2.2). What
// errno says is what some earlier call of the thread left there. If that is EAGAIN, libfabric has stopped watching the socket, never looks at
// it again, and never closes it, not even with the Domain: strace shows epoll_ctl(DEL), recvfrom = 0, and no close. A reset one has POLLERR, for which
// libfabric closes it without a read. Strangers that connect and go without a word meet the same fault: hw_step clears errno for them.

// forgetTries bounds how often sockets are looked for: a request that is half there is waited for no longer.
const forgetTries = 8

// forget has libfabric forget what it has accepted for endpoints that are about to be closed and not answered.
func (d *domain) forget(names ...[]byte) {
	own := map[netip.AddrPort]bool{}
	for _, n := range names {
		if a := socketName(n); a.IsValid() {
			own[a] = true
		}
	}
	for range forgetTries {
		fds := unanswered(own)
		if len(fds) == 0 || d.dead != nil {
			return
		}
		for _, fd := range fds {
			if n, err := unix.IoctlGetInt(fd, unix.SIOCINQ); err == nil && n == 0 {
				reset(fd) // else its request is there, and is answered
			}
		}
		d.drain()
	}
}

// reset ends the connection of a socket, which stays open and bound, with POLLERR.
func reset(fd int) {
	none := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	// safe: the kernel reads none during the call.
	_, _, _ = unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&none)), unsafe.Sizeof(none))
}

// unanswered are the sockets that were accepted at one of the addresses and on which nothing has been sent.
func unanswered(own map[netip.AddrPort]bool) (fds []int) {
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil
	}
	for _, f := range all {
		fd, err := strconv.Atoi(f.Name())
		if err != nil || !own[boundTo(fd)] {
			continue
		}
		if listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); err != nil || listens != 0 {
			continue
		}
		if i, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO); err == nil && i.Data_segs_out == 0 {
			fds = append(fds, fd)
		}
	}
	return fds
}

// boundTo is the address of a socket, invalid when fd is none.
func boundTo(fd int) netip.AddrPort {
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return netip.AddrPort{}
	}
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port))
	}
	return netip.AddrPort{}
}

// socketName is the address that the name of an endpoint over sockets says: a sockaddr_in or sockaddr_in6.
func socketName(b []byte) netip.AddrPort {
	const v4, v6 = 16, 28
	if len(b) < v4 {
		return netip.AddrPort{}
	}
	port := binary.BigEndian.Uint16(b[2:])
	switch family := binary.NativeEndian.Uint16(b); {
	case family == unix.AF_INET && len(b) == v4:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), port)
	case family == unix.AF_INET6 && len(b) == v6:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:24])), port)
	}
	return netip.AddrPort{}
}
