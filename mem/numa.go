package mem

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Memory policies of Linux (set_mempolicy(2)).
const preferNode = 1 // MPOL_PREFERRED: from that node, from another one when it has none left

// maxNodes is how many NUMA nodes Linux can know of.
const maxNodes = 1024

type nodeMask [maxNodes / 64]uint64

// Near runs f on the calling goroutine. Pages that f is the first to use come from NUMA node, where the kernel has a say in it and
// pages left; -1 and nodes that do not exist are no preference.
func Near(node int, f func()) {
	if node < 0 || node >= maxNodes {
		f()
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	mode, mask, ok := policy()
	var want nodeMask
	want[node/64] = 1 << (node % 64)
	if ok && setPolicy(preferNode, &want) {
		defer setPolicy(mode, &mask)
	}
	f()
}

// policy is that of the calling thread; not ok when the kernel does not tell, as in many containers.
func policy() (mode int, mask nodeMask, ok bool) {
	var m int32
	// safe: the kernel writes 4 bytes and maxNodes bits, both on the stack during the call.
	_, _, errno := unix.Syscall6(unix.SYS_GET_MEMPOLICY, uintptr(unsafe.Pointer(&m)), uintptr(unsafe.Pointer(&mask)), maxNodes, 0, 0, 0)
	return int(m), mask, errno == 0
}

// setPolicy sets that of the calling thread. Linux counts one node less than it is told.
func setPolicy(mode int, mask *nodeMask) bool {
	// safe: the kernel reads maxNodes bits during the call.
	_, _, errno := unix.Syscall(unix.SYS_SET_MEMPOLICY, uintptr(mode), uintptr(unsafe.Pointer(mask)), maxNodes+1)
	return errno == 0
}
