//go:build cgo

package verbs

/*
#cgo noescape hv_post
#cgo nocallback hv_post
#cgo noescape hv_poll
#cgo nocallback hv_poll
#cgo noescape hv_async
#cgo nocallback hv_async
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"unsafe"

	"github.com/hawser-project/hawser/topo"
)

type errno = syscall.Errno

// card is one opened device with its queues. Owned by the owner of the Domain, but for the two steps of a queue pair that may take long.
type card struct {
	c      *C.struct_hv_card
	port   int
	dmabuf bool // the library can register dma-bufs
	attrs  deviceAttrs
}

// deviceAttrs are limits of the device.
type deviceAttrs struct {
	vendor                           uint32
	ports                            int
	maxQP, maxQPWR, maxCQE, maxSRQWR int
}

// portAttrs are what a port says of itself.
type portAttrs struct {
	active   bool
	state    int
	ethernet bool
	global   bool // it needs the global header: Ethernet, and InfiniBand that is routed or of a virtual function
	lid      uint16
	mtu      uint8 // the active one, as the number that stands for it
	maxMsg   uint64
	gids     int
	linkBits uint64
}

// sendWR is struct hv_send.
type sendWR struct {
	id, qp, local, remote          uint64
	len, lkey, rkey, imm, flags, _ uint32
}

// workDone is struct hv_done.
type workDone struct {
	id                                   uint64
	qpn, status, len, imm, vendor, flags uint32
}

// route is struct hv_route.
type route struct {
	gid                                         [16]byte
	qpn, rqPSN, sqPSN                           uint32
	lid, pkeyIndex                              uint16
	global, sgidIndex, hopLimit, trafficClass   uint8
	sl, port, mtu, timeout, retries, rnrRetries uint8
	_                                           [2]uint8
}

// The layouts agree.
var (
	_ [unsafe.Sizeof(sendWR{})]byte   = [C.sizeof_struct_hv_send]byte{}
	_ [unsafe.Sizeof(workDone{})]byte = [C.sizeof_struct_hv_done]byte{}
	_ [unsafe.Sizeof(route{})]byte    = [C.sizeof_struct_hv_route]byte{}
)

const (
	sendImm      = C.HV_IMM
	sendSignaled = C.HV_SIGNALED

	doneRecv    = C.HV_RECV
	doneWithImm = C.HV_WITH_IMM
)

// What a completion's status says, as far as it makes a difference here.
const (
	wcSuccess     = C.ABI_WC_SUCCESS
	wcLocalLength = C.ABI_WC_LOC_LEN_ERR
	wcLocalProt   = C.ABI_WC_LOC_PROT_ERR
	wcFlushed     = C.ABI_WC_WR_FLUSH_ERR
	wcRemInvalid  = C.ABI_WC_REM_INV_REQ_ERR
	wcRemAccess   = C.ABI_WC_REM_ACCESS_ERR
	wcRemOp       = C.ABI_WC_REM_OP_ERR
)

const (
	eventCQError     = C.ABI_EVENT_CQ_ERR
	eventDeviceFatal = C.ABI_EVENT_DEVICE_FATAL
	eventSRQError    = C.ABI_EVENT_SRQ_ERR
	eventLastWQE     = C.ABI_EVENT_QP_LAST_WQE_REACHED
	// A port may be reached in another way from now on.
	eventPortActive = C.ABI_EVENT_PORT_ACTIVE
	eventLIDChange  = C.ABI_EVENT_LID_CHANGE
	eventReregister = C.ABI_EVENT_CLIENT_REREGISTER
	eventGIDChange  = C.ABI_EVENT_GID_CHANGE
)

func openCard(l *library, name string) (*card, error) {
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	c, err := C.hv_open(l.table, cname)
	if c == nil {
		return nil, fmt.Errorf("ibv_open_device %s: %w", name, err)
	}
	a := &c.device
	return &card{c: c, dmabuf: l.table.reg_dmabuf_mr != nil, attrs: deviceAttrs{
		vendor: uint32(a.vendor_id), ports: int(a.phys_port_cnt), maxQP: int(a.max_qp), maxQPWR: int(a.max_qp_wr),
		maxCQE: int(a.max_cqe), maxSRQWR: int(a.max_srq_wr),
	}}, nil
}

// queryPort asks for the state of port i, from 1.
func (c *card) queryPort(i int) (portAttrs, error) {
	var a C.struct_abi_port_attr
	if e := C.hv_query_port(c.c, C.int(i), &a); e != 0 {
		return portAttrs{}, fmt.Errorf("ibv_query_port %d: %w", i, errno(e))
	}
	return portAttrs{
		active: a.state == C.ABI_PORT_ACTIVE, state: int(a.state), ethernet: a.link_layer == C.ABI_LINK_LAYER_ETHERNET, lid: uint16(a.lid),
		global: a.link_layer == C.ABI_LINK_LAYER_ETHERNET || a.flags&C.ABI_QPF_GRH_REQUIRED != 0,
		mtu:    uint8(a.active_mtu), maxMsg: uint64(a.max_msg_sz), gids: int(a.gid_tbl_len), linkBits: linkBits(uint8(a.active_width), uint8(a.active_speed)),
	}, nil
}

// gids lists the table of a port. It is one call, where sysfs is three files for each of as many entries as the card has room for: a
// thousand on soft-RoCE. false: library or kernel are too old for it.
func (c *card) gids(port int) ([]gid, bool, error) {
	room := c.attrs.ports * maxGIDs
	entries := (*C.struct_abi_gid_entry)(C.calloc(C.size_t(room), C.sizeof_struct_abi_gid_entry))
	defer C.free(unsafe.Pointer(entries))
	n := int(C.hv_query_gids(c.c, entries, C.int(room)))
	switch {
	case n == -int(syscall.ENOSYS):
		return nil, false, nil
	case n < 0:
		return nil, true, fmt.Errorf("ibv_query_gid_table: %w", errno(-n))
	}
	var table []gid
	// safe: C filled n of the entries.
	for _, e := range unsafe.Slice(entries, n) {
		if int(e.port_num) != port {
			continue
		}
		kind := topo.GIDRoCEv1
		if e.gid_type == C.ABI_GID_ROCE_V2 {
			kind = topo.GIDRoCEv2
		}
		netdev := ""
		if ifi, err := net.InterfaceByIndex(int(e.ndev_ifindex)); err == nil {
			netdev = ifi.Name
		}
		// safe: the union is the 16 bytes of an address.
		addr := netip.AddrFrom16(*(*[16]byte)(unsafe.Pointer(&e.gid)))
		table = append(table, gid{int(e.gid_index), addr.Unmap(), kind, netdev})
	}
	return table, true, nil
}

// maxGIDs bounds a port's table: a queue pair names an entry of it with 8 bits.
const maxGIDs = 256

// gid is an entry of a port's GID table.
func (c *card) gid(port, index int) (g [16]byte, err error) {
	if e := C.hv_query_gid(c.c, C.int(port), C.int(index), (*C.uint8_t)(&g[0])); e != 0 {
		return g, fmt.Errorf("ibv_query_gid %d of port %d: %w", index, port, errno(max(e, -e)))
	}
	return g, nil
}

// start makes the queues and posts all receives.
func (c *card) start(sends, recvs, depth int) error {
	var what *C.char
	if e := C.hv_start(c.c, C.int(sends), C.int(recvs), C.int(depth), &what); e != 0 {
		return fmt.Errorf("%s: %w", C.GoString(what), errno(e))
	}
	return nil
}

func (c *card) close() error {
	var what *C.char
	if e := C.hv_close(c.c, &what); e != 0 {
		return fmt.Errorf("%s: %w", C.GoString(what), errno(e))
	}
	return nil
}

// channelFD is readable when a completion came after arm, asyncFD when something happened to the device.
func (c *card) channelFD() int { return int(c.c.channel.fd) }
func (c *card) asyncFD() int   { return int(c.c.ctx.async_fd) }

// queuePair is struct abi_qp.
type queuePair struct {
	c     *C.struct_abi_qp
	qpn   uint32
	empty bool // it has failed and given back its last receive
}

// newQP makes a queue pair in state INIT; writable by the peer or not.
func (c *card) newQP(depth, pkeyIndex int, writable bool) (queuePair, error) {
	qp, err := C.hv_qp(c.c, C.int(depth))
	if qp == nil {
		return queuePair{}, fmt.Errorf("ibv_create_qp: %w", err)
	}
	q := queuePair{c: qp, qpn: uint32(C.hv_qpn(qp))}
	if err := c.initQP(q, pkeyIndex, writable); err != nil {
		_ = c.destroyQP(q) // there is an error to return already
		return queuePair{}, err
	}
	return q, nil
}

func (c *card) initQP(q queuePair, pkeyIndex int, writable bool) error {
	rights := C.int(0)
	if writable {
		rights = C.ABI_ACCESS_REMOTE_WRITE
	}
	return modified("init", C.hv_qp_init(c.c, q.c, C.int(c.port), C.int(pkeyIndex), rights))
}

// drained reports whether nothing that the peer sent can come any more.
func (q *queuePair) drained() bool { return q.c == nil || q.empty }

func (c *card) resetQP(q queuePair) error { return modified("reset", C.hv_qp_reset(c.c, q.c)) }
func (c *card) failQP(q queuePair) error  { return modified("error", C.hv_qp_fail(c.c, q.c)) }

// readyToReceive may wait until the network has found the peer.
func (c *card) readyToReceive(q queuePair, to *route) error {
	// safe: route has the layout of struct hv_route and holds no pointer.
	return modified("rtr", C.hv_qp_ready_to_receive(c.c, q.c, (*C.struct_hv_route)(unsafe.Pointer(to))))
}

func (c *card) readyToSend(q queuePair, to *route) error {
	// safe: as above.
	return modified("rts", C.hv_qp_ready_to_send(c.c, q.c, (*C.struct_hv_route)(unsafe.Pointer(to))))
}

func modified(state string, e C.int) error {
	if e == 0 {
		return nil
	}
	return fmt.Errorf("ibv_modify_qp to %s: %w", state, errno(max(e, -e)))
}

func (c *card) destroyQP(q queuePair) error {
	if e := C.hv_qp_destroy(c.c, q.c); e != 0 {
		return fmt.Errorf("ibv_destroy_qp: %w", errno(e))
	}
	return nil
}

// handle is how a sendWR names the queue pair.
func (q queuePair) handle() uint64 { return uint64(uintptr(unsafe.Pointer(q.c))) }

// registration is struct abi_mr.
type registration struct {
	c          *C.struct_abi_mr
	lkey, rkey uint32
}

func flag(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

// access is the right of others to write; one's own is always there, because a receive may name any memory.
func access(remote bool) C.int {
	if remote {
		return C.ABI_ACCESS_LOCAL_WRITE | C.ABI_ACCESS_REMOTE_WRITE
	}
	return C.ABI_ACCESS_LOCAL_WRITE
}

func (c *card) register(b []byte, remote, relaxed bool) (registration, error) {
	// safe: memory that is registered is not on the Go heap.
	mr, err := C.hv_register(c.c, unsafe.Pointer(unsafe.SliceData(b)), C.size_t(len(b)), access(remote), flag(relaxed))
	if mr == nil {
		return registration{}, err
	}
	return registration{mr, uint32(mr.lkey), uint32(mr.rkey)}, nil
}

func (c *card) registerDMABuf(fd int, offset, addr, n uint64, remote, relaxed bool) (registration, error) {
	mr, err := C.hv_register_dmabuf(c.c, C.uint64_t(offset), C.size_t(n), C.uint64_t(addr), C.int(fd), access(remote), flag(relaxed))
	if mr == nil {
		return registration{}, err
	}
	return registration{mr, uint32(mr.lkey), uint32(mr.rkey)}, nil
}

func (c *card) deregister(r registration) error {
	if e := C.hv_deregister(c.c, r.c); e != 0 {
		return fmt.Errorf("ibv_dereg_mr: %w", errno(max(e, -e)))
	}
	return nil
}

// post posts writes, neighbours of one queue pair as one chain.
//
// hot:
func (c *card) post(wrs []sendWR) (posted, doorbells int, e errno) {
	var p, d C.int
	// safe: sendWR has the layout of struct hv_send and holds no Go pointer.
	r := C.hv_post((*C.struct_hv_send)(unsafe.Pointer(unsafe.SliceData(wrs))), C.int(len(wrs)), &p, &d)
	return int(p), int(d), errno(r)
}

// poll takes completions, and posts a receive for each that was used.
//
// hot:
func (c *card) poll(out []workDone) (int, errno) {
	// safe: workDone has the layout of struct hv_done.
	n := C.hv_poll(c.c, (*C.struct_hv_done)(unsafe.Pointer(unsafe.SliceData(out))), C.int(len(out)))
	if n < 0 {
		return 0, errno(-n)
	}
	return int(n), 0
}

func (c *card) arm() errno { return errno(C.hv_arm(c.c)) }

func (c *card) events() int { return int(C.hv_events(c.c)) }

// async takes something that happened to the device; ok is false when there is nothing.
func (c *card) async() (event int, subject uint32, ok bool) {
	var s C.uint32_t
	ev := int(C.hv_async(c.c, &s))
	return ev, uint32(s), ev >= 0
}

// addressOf is where b begins, as the card is told it.
func addressOf(b []byte) uint64 {
	// safe: the number is handed to the card; it is never made a pointer again.
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
}
