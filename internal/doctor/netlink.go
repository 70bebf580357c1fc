package doctor

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Of linux/netlink.h and rdma/rdma_netlink.h.
const (
	netlinkRDMA = 20
	cmdResGet   = 5<<10 + 9 // RDMA_NL_NLDEV, RDMA_NLDEV_CMD_RES_GET

	attrDevName      = 2
	attrSummary      = 15 // nested
	attrEntryName    = 17
	attrEntryCurrent = 18

	nlmsgHeader = 16
	attrHeader  = 4
	attrType    = 1<<14 - 1 // without the flags of nested and of byte order
)

// netlinkTime is how long the kernel may take for an answer that it has at once.
const netlinkTime = 2 * time.Second

// resources asks the kernel how many objects of each NIC exist, which anybody may.
func resources() ([]InUse, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, netlinkRDMA)
	if err != nil {
		return nil, fmt.Errorf("rdma netlink: %w", err)
	}
	defer unix.Close(fd)
	bound := unix.NsecToTimeval(netlinkTime.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &bound); err != nil {
		return nil, fmt.Errorf("rdma netlink: %w", err)
	}
	request := make([]byte, nlmsgHeader)
	binary.NativeEndian.PutUint32(request, nlmsgHeader)
	binary.NativeEndian.PutUint16(request[4:], cmdResGet)
	binary.NativeEndian.PutUint16(request[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	if err := unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, fmt.Errorf("rdma netlink: send: %w", err)
	}
	var all []InUse
	buf := make([]byte, 64<<10) // the kernel sends a dump in pieces of a few pages
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			return all, fmt.Errorf("rdma netlink: receive: %w", err)
		}
		done, err := parseDump(buf[:n], &all)
		if done || err != nil {
			return all, err
		}
	}
}

// parseDump adds the NICs of one piece of a dump; done: it was the last.
func parseDump(b []byte, all *[]InUse) (done bool, err error) {
	for len(b) >= nlmsgHeader {
		size := int(binary.NativeEndian.Uint32(b))
		if size < nlmsgHeader || size > len(b) {
			return true, fmt.Errorf("rdma netlink: a message of %d bytes in %d", size, len(b))
		}
		switch binary.NativeEndian.Uint16(b[4:]) {
		case unix.NLMSG_DONE:
			return true, nil
		case unix.NLMSG_ERROR:
			if size < nlmsgHeader+4 {
				return true, fmt.Errorf("rdma netlink: an error of %d bytes", size)
			}
			return true, fmt.Errorf("rdma netlink: %w", unix.Errno(-int32(binary.NativeEndian.Uint32(b[nlmsgHeader:]))))
		case cmdResGet:
			u := inUse(b[nlmsgHeader:size])
			if u.NIC != "" {
				*all = append(*all, u)
			}
		}
		b = b[min(align(size), len(b)):]
	}
	return false, nil
}

func inUse(message []byte) (u InUse) {
	attrs(message, func(kind uint16, value []byte) {
		switch kind {
		case attrDevName:
			u.NIC = text(value)
		case attrSummary:
			attrs(value, func(_ uint16, entry []byte) { u.entry(entry) })
		}
	})
	return u
}

func (u *InUse) entry(entry []byte) {
	name, current := "", uint64(0)
	attrs(entry, func(kind uint16, value []byte) {
		switch {
		case kind == attrEntryName:
			name = text(value)
		case kind == attrEntryCurrent && len(value) >= 8:
			current = binary.NativeEndian.Uint64(value)
		}
	})
	for _, of := range []struct {
		name string
		to   *uint64
	}{{"ctx", &u.Contexts}, {"pd", &u.PDs}, {"cq", &u.CQs}, {"qp", &u.QPs}, {"mr", &u.MRs}} {
		if name == of.name {
			*of.to = current
		}
	}
}

// attrs calls see for each attribute; what is cut off is left out.
func attrs(b []byte, see func(kind uint16, value []byte)) {
	for len(b) >= attrHeader {
		size := int(binary.NativeEndian.Uint16(b))
		if size < attrHeader || size > len(b) {
			return
		}
		see(binary.NativeEndian.Uint16(b[2:])&attrType, b[attrHeader:size])
		b = b[min(align(size), len(b)):]
	}
}

func align(n int) int { return (n + 3) &^ 3 }

func text(b []byte) string {
	b, _, _ = bytes.Cut(b, []byte{0})
	return string(b)
}
