package shm

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/internal/ring"
	"github.com/hawser-project/hawser/mem"
	"github.com/hawser-project/hawser/provider"
)

const (
	// maxRegions bounds the regions of a Domain: the half of a key that is an index, and a table of 256 KiB of which only the pages
	// in use exist.
	maxRegions = 1 << 16

	// ringEntries is the depth of a ring of immediates: twice PeerDepth, so that a writer that is woken finds room for a whole
	// queue, at 8 KiB a direction.
	ringEntries = 2 * peerDepth

	// areaSize is the room for message bytes of a direction: one message of the largest size and many small ones, or a power of
	// two that holds them. Pages that no message has reached do not exist.
	areaSize = 2 * maxSend
)

// bellPage is what a Domain shows its peers. Written by its owner; peers cannot map it for writing.
type bellPage struct {
	// epoch is odd while the owner sleeps. A writer loads it after it has published; the owner makes it odd and then looks at
	// its rings: one of the two sees the other. A new odd value for each sleep lets a writer ring once a sleep without
	// writing here.
	epoch atomic.Uint64
	_     [ring.Line - 8]byte
	// gens[i] is the generation of region i, odd while the region lives.
	gens [maxRegions]atomic.Uint32
}

// lane is one direction of a pair page: who writes it is said for each field.
type lane struct {
	imms     ring.SharedIndex
	msgs     ring.SharedIndex
	slot     atomic.Uint32 // writer: 1 + index of the region that it copies into, slotBusy for none, slotPull while it reads, 0 when idle
	_        [ring.Line - 4]byte
	revoked  atomic.Uint32 // reader: 1 when the writer must not write any more
	_        [ring.Line - 4]byte
	answered atomic.Uint64 // reader: how many loans it has answered; its store hands their sources back to the writer's load
	_        [ring.Line - 8]byte
}

// slotBusy is the slot of a batch that copies nothing: its immediates must not outlive a fence either.
const slotBusy = maxRegions + 1

// pairPage is what two connected sides share. lanes[0] is written by the active side.
type pairPage struct {
	lanes    [2]lane
	_        [pageSize - 2*unsafe.Sizeof(lane{})]byte
	slots    [2][ringEntries]ring.Slot
	areas    [2][areaSize]byte
	loans    [2][peerDepth]loan          // of the oldest writes that are not answered
	outcomes [2][peerDepth]atomic.Uint32 // reader: its answers to them
}

// pageSize is the smallest page of the machines that this runs on, bytes; only sizes of shared structures depend on it.
const pageSize = 4096

const (
	bellPageSize = uint64(unsafe.Sizeof(bellPage{}))
	pairPageSize = uint64(unsafe.Sizeof(pairPage{}))
)

func bellPageAt(b []byte) *bellPage {
	_ = b[bellPageSize-1]
	// safe: b is a page-aligned mapping of at least that size, the struct holds no pointers, and the view is dropped before b is unmapped.
	return (*bellPage)(unsafe.Pointer(&b[0]))
}

func pairPageAt(b []byte) *pairPage {
	_ = b[pairPageSize-1]
	// safe: as for bellPageAt.
	return (*pairPage)(unsafe.Pointer(&b[0]))
}

// newBellPage makes a bell page. After its last seal nobody can map it for writing any more, but our mapping stays.
func newBellPage() (fd int, b []byte, err error) {
	fd, b, err = newPage("hawser-bell", bellPageSize, unix.F_SEAL_FUTURE_WRITE)
	if errors.Is(err, unix.EINVAL) {
		err = fmt.Errorf("%w: %w: F_SEAL_FUTURE_WRITE needs Linux 5.1", provider.ErrUnavailable, err)
	}
	return fd, b, err
}

// newPage makes a memfd of size bytes, sealed as regions are, and maps it. Pages appear when they are touched.
func newPage(name string, size uint64, more int) (fd int, b []byte, err error) {
	fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, nil, fmt.Errorf("memfd_create %s: %w", name, limit(err))
	}
	err = os.NewSyscallError("ftruncate", unix.Ftruncate(fd, int64(size)))
	if err == nil {
		b, err = mapPage(fd, size, unix.PROT_READ|unix.PROT_WRITE)
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, mem.Seals|more)
		err = os.NewSyscallError("add seals", err)
	}
	if err != nil {
		err = errors.Join(err, unmap(b), unix.Close(fd))
		return -1, nil, fmt.Errorf("make %s: %w", name, err)
	}
	return fd, b, nil
}

// importPage maps a memfd that a peer sent. It touches no page: a large region must not stop the owner for as long as that
// takes, and what is never written need not be mapped.
func importPage(fd int, size uint64, prot int) ([]byte, error) {
	if err := mem.CheckSealed(fd, size); err != nil {
		return nil, err
	}
	return mapPage(fd, size, prot)
}

func mapPage(fd int, size uint64, prot int) ([]byte, error) {
	b, err := mem.Map(fd, size, prot)
	if errors.Is(err, unix.ENOMEM) {
		return nil, fmt.Errorf("mmap %d bytes: %w: too many mappings (sysctl vm.max_map_count) or out of memory", size, provider.ErrLimit)
	}
	if err != nil {
		return nil, fmt.Errorf("mmap %d bytes: %w", size, err)
	}
	return b, nil
}

// unmap undoes newPage and importPage; nil is fine.
func unmap(b []byte) error {
	return mem.Unmap(b)
}
