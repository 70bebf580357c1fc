//go:build cgo

package ofi

/*
#include <stdlib.h>
#include "shim.h"
#cgo noescape hw_step
#cgo nocallback hw_step
#cgo noescape hw_trywait
#cgo nocallback hw_trywait
*/
import "C"

import (
	"fmt"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/internal/dl"
	"github.com/hawser-project/hawser/provider"
)

// library is libfabric as it was loaded. It stays for the life of the process.
type library struct {
	api  *C.struct_hf_api
	path string
}

var loadLibrary = sync.OnceValues(func() (*library, error) {
	// safe: C memory, because the table is filled through a pointer that Go must not move.
	api := (*C.struct_hf_api)(C.calloc(1, C.sizeof_struct_hf_api))
	C.hw_keep_signals()
	defer C.hw_restore_signals()
	lib, err := dl.Load(unsafe.Pointer(api), []string{
		"fi_getinfo", "fi_freeinfo", "fi_dupinfo", "fi_fabric", "fi_strerror", "fi_version", "fi_tostr",
	}, "libfabric.so.1")
	if err != nil {
		C.free(unsafe.Pointer(api))
		return nil, fmt.Errorf("%w (Debian, Ubuntu: apt-get install libfabric1; AWS: install the EFA software, which brings it in /opt/amazon/efa/lib)", err)
	}
	l := &library{api: api, path: lib.Path}
	if v := l.version(); v < oldest {
		return nil, fmt.Errorf("%s: %w: libfabric %d.%d, and 1.17 is the oldest that is known to work", lib.Path, provider.ErrUnavailable, v>>16, v&0xFFFF)
	}
	l.probe()
	return l, nil
})

// probe has libfabric initialize its providers, while somebody looks after the signal handlers.
func (l *library) probe() {
	var head *C.struct_hf_info
	name := C.CString("")
	defer C.free(unsafe.Pointer(name))
	if C.hw_getinfo(l.api, name, nil, 0, 0, &head) == 0 {
		C.hw_freeinfo(l.api, head)
	}
}

// oldest interface that the package is tested with.
const oldest = 1<<16 | 17

func (l *library) version() uint32 { return uint32(C.hw_version(l.api)) }

// fault is an error of libfabric, in its own words.
func (l *library) fault(call string, code C.int) error {
	if code < 0 {
		code = -code
	}
	return &Error{Call: call, Code: int(code), Text: C.GoString(C.hw_strerror(l.api, code))}
}

// info is one entry of the list of fi_getinfo, with what it says.
type info struct {
	lib  *library
	raw  *C.struct_hf_info // ours: a copy
	desc C.struct_hw_desc
}

// infos asks for all networks of a provider, those that tell the source of a completion when source is set; the caller frees each of them.
func (l *library) infos(name string, hmem, source bool) ([]*info, error) {
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	var head *C.struct_hf_info
	if e := C.hw_getinfo(l.api, cname, nil, cbool(hmem), cbool(source), &head); e != 0 {
		return nil, l.fault("fi_getinfo", e)
	}
	defer C.hw_freeinfo(l.api, head)
	var all []*info
	for raw := head; raw != nil; raw = C.hw_next(raw) {
		i := &info{lib: l, raw: C.hw_dupinfo(l.api, raw)}
		if i.raw == nil {
			freeInfos(all)
			return nil, fmt.Errorf("fi_dupinfo: %w: no memory", provider.ErrLimit)
		}
		C.hw_describe(i.raw, &i.desc)
		all = append(all, i)
	}
	return all, nil
}

func (i *info) free() {
	C.hw_freeinfo(i.lib.api, i.raw)
	i.raw = nil
}

func freeInfos(all []*info) {
	for _, i := range all {
		i.free()
	}
}

func cbool(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

func text(b *[C.HW_NAME]C.char) string { return C.GoString(&b[0]) }

// Mirrors of the structures in shim.h, checked by init.
type (
	dest struct {
		ep    unsafe.Pointer
		addr  uint64
		stuck uint64
		owed  uint64 // writes under way of connections that have ended; see source.go
	}
	op struct {
		_       [64]byte // the library's, while the operation is under way
		dest    *dest
		buf     unsafe.Pointer
		desc    unsafe.Pointer
		raddr   uint64
		rkey    uint64
		data    uint64
		token   uint64
		len     uint32
		peer    uint16
		kind    opKind
		outcome outcome
	}
	entry struct {
		context unsafe.Pointer
		flags   uint64
		len     uint64
		_       unsafe.Pointer
		data    uint64
	}
)

type opKind uint8

const (
	opWrite     opKind = C.HW_WRITE
	opWriteData opKind = C.HW_WRITE_DATA
	opQuiet     opKind = C.HW_WRITE_QUIET // with data, and libfabric does not tell its end: see ack.go
	opCover     opKind = C.HW_WRITE_COVER // with data; when it ends, it and all before it have been placed: see ack.go
	opSend      opKind = C.HW_SEND
	opRecv      opKind = C.HW_RECV
)

// writes reports whether it is a write that libfabric knows or can be given.
func (k opKind) writes() bool { return k >= opWrite && k <= opCover }

type outcome uint8

const (
	posted outcome = C.HW_POSTED
	waits  outcome = C.HW_WAITS
	failed outcome = C.HW_FAILED
)

const (
	flagRecv       = C.HF_RECV
	flagRemoteData = C.HF_REMOTE_CQ_DATA
	capSource      = C.HF_SOURCE
	capHMEM        = C.HF_HMEM
	orderWAW       = C.HF_ORDER_WAW
	mrLocal        = C.HF_MR_LOCAL
	mrVirtual      = C.HF_MR_VIRT_ADDR
	mrProvKey      = C.HF_MR_PROV_KEY
	mrEndpoint     = C.HF_MR_ENDPOINT
	accessLocal    = C.HF_WRITE | C.HF_SEND | C.HF_RECV
	accessRemote   = C.HF_REMOTE_WRITE
	flagDelivery   = C.HF_DELIVERY_COMPLETE
	addrUnspec     = 1<<64 - 1
	maxName        = C.HW_NAME
)

// Sizes that Go and C must agree on: a difference is a negative length, and does not compile.
var (
	_ [unsafe.Sizeof(op{}) - C.sizeof_struct_hw_op]struct{}
	_ [C.sizeof_struct_hw_op - unsafe.Sizeof(op{})]struct{}
	_ [unsafe.Sizeof(dest{}) - C.sizeof_struct_hw_dest]struct{}
	_ [C.sizeof_struct_hw_dest - unsafe.Sizeof(dest{})]struct{}
	_ [unsafe.Sizeof(entry{}) - C.sizeof_struct_hf_cq_data_entry]struct{}
	_ [C.sizeof_struct_hf_cq_data_entry - unsafe.Sizeof(entry{})]struct{}
)

// arena is memory outside of the Go heap, for structures that libfabric keeps pointers to.
func arena(bytes int) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("mmap %d bytes: %w", bytes, err)
	}
	return b, nil
}

// of makes a slice of n T at the start of an arena.
func of[T any](b []byte, n int) []T {
	_ = b[:n*int(unsafe.Sizeof(*new(T)))]
	// safe: the arena is long enough, page aligned, and T holds no Go pointer.
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n)
}

// rail is one open device of libfabric: fabric, domain, completion queue, address vector.
type rail struct {
	lib  *library
	raw  *C.struct_hw_rail
	info *info
	out  *C.struct_hw_result

	dangling bool // fi_trywait would look at an endpoint that is closed
}

func openRail(i *info, depth, peers int, wait bool) (*rail, error) {
	r := &rail{lib: i.lib, info: i}
	// safe: C memory: the library keeps no pointer to it, but a crossing is cheaper with pointers that Go need not check.
	r.raw = (*C.struct_hw_rail)(C.calloc(1, C.sizeof_struct_hw_rail))
	r.out = (*C.struct_hw_result)(C.calloc(1, C.sizeof_struct_hw_result))
	if e := C.hw_open(i.lib.api, i.raw, C.uint64_t(depth), C.uint64_t(peers), cbool(wait), r.raw); e != 0 {
		call := [...]string{"", "fi_fabric", "fi_domain", "fi_cq_open", "fi_av_open"}[r.raw.failed]
		err := r.lib.fault(call, e)
		_ = r.close()
		return nil, err
	}
	return r, nil
}

func (r *rail) close() error {
	e := C.hw_close(r.raw)
	C.free(unsafe.Pointer(r.raw))
	C.free(unsafe.Pointer(r.out))
	if e != 0 {
		return r.lib.fault("fi_close", e)
	}
	return nil
}

// waitFD is readable when the queue may have something, -1 when the provider has no such descriptor.
func (r *rail) waitFD() int { return int(r.raw.wait_fd) }

// quiet reports whether one may sleep on the descriptor now.
func (r *rail) quiet() bool { return C.hw_trywait(r.raw) == 0 }

// endpoint opens an endpoint, for opQuiet when quiet is set, and returns it with its name.
func (r *rail) endpoint(hardware, quiet bool) (unsafe.Pointer, []byte, error) {
	var ep *C.struct_hf_ep
	var name [maxName]byte
	n := C.uint64_t(len(name))
	if e := C.hw_endpoint(r.raw, r.info.raw, cbool(hardware), cbool(quiet), &ep, unsafe.Pointer(&name[0]), &n); e != 0 {
		return nil, nil, r.lib.fault("fi_endpoint", e)
	}
	return unsafe.Pointer(ep), name[:n], nil
}

// closeEndpoint closes an endpoint. rxm does not take it out of what fi_trywait of the queue goes through (rxm_ep_close of 1.17 to 2.1).
func (r *rail) closeEndpoint(ep unsafe.Pointer) error {
	r.dangling = r.dangling || strings.Contains(text(&r.info.desc.provider), "ofi_rxm")
	if e := C.hw_close_endpoint((*C.struct_hf_ep)(ep)); e != 0 {
		return r.lib.fault("fi_close endpoint", e)
	}
	return nil
}

func emulatesWrites(ep unsafe.Pointer) bool { return C.hw_emulates_writes((*C.struct_hf_ep)(ep)) != 0 }

// insert makes the name of an endpoint usable as a destination.
func (r *rail) insert(name []byte) (uint64, error) {
	var a C.hf_addr_t
	padded := make([]byte, maxName) // a provider reads as much as its addresses are long
	copy(padded, name)
	if e := C.hw_insert(r.raw, unsafe.Pointer(&padded[0]), &a); e != 0 {
		return 0, r.lib.fault("fi_av_insert", e)
	}
	return uint64(a), nil
}

func (r *rail) remove(addr uint64) { _ = C.hw_remove(r.raw, C.hf_addr_t(addr)) }

// mr is a registration.
type mr struct {
	raw  *C.struct_hf_mr
	desc unsafe.Pointer
	key  uint64
}

func (r *rail) register(addr unsafe.Pointer, n, access, want uint64) (m mr, err error) {
	var key C.uint64_t
	if e := C.hw_register(r.raw, addr, C.uint64_t(n), C.uint64_t(access), C.uint64_t(want), &m.raw, &key, &m.desc); e != 0 {
		return m, r.lib.fault("fi_mr_reg", e)
	}
	m.key = uint64(key)
	return m, nil
}

func (r *rail) registerDMABuf(b *provider.DMABuf, off, n, access, want uint64) (m mr, err error) {
	var key C.uint64_t
	e := C.hw_register_dmabuf(r.raw, C.int(b.FD), C.uint64_t(b.Offset+off), C.uint64_t(n), C.uint64_t(b.Addr+off), C.uint64_t(access),
		C.uint64_t(want), &m.raw, &key, &m.desc)
	if e != 0 {
		return m, r.lib.fault("fi_mr_regattr of a dma-buf", e)
	}
	m.key = uint64(key)
	return m, nil
}

func (r *rail) deregister(m mr) error {
	if m.raw == nil {
		return nil
	}
	if e := C.hw_deregister(m.raw); e != 0 {
		return r.lib.fault("fi_close mr", e)
	}
	return nil
}

// at is an address for C.
func at[T any](p *T) C.uintptr_t { return C.uintptr_t(uintptr(unsafe.Pointer(p))) }

// step is the crossing: it posts ops and, with max > 0, reads completions into entries. ops and entries lie in arenas.
//
// hot:
func (r *rail) step(ops []*op, flags uint64, entries []entry, src []uint64, limit int) {
	// safe: all of it lies in arenas or C memory, which Go does not move; op and entry mirror the C structures.
	C.hw_step(at(r.raw), at(unsafe.SliceData(ops)), C.int64_t(len(ops)), C.uint64_t(flags), at(unsafe.SliceData(entries)),
		at(unsafe.SliceData(src)), C.int64_t(limit), at(r.out))
}

// deviceDesc is what fi_getinfo says, and deviceChar is of its texts.
type (
	deviceDesc = C.struct_hw_desc
	deviceChar = C.char
)

// result is what the last step did.
func (r *rail) result() *C.struct_hw_result { return r.out }
