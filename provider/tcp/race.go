//go:build race

package tcp

import (
	"runtime"
	"unsafe"
)

// The race detector does not see what the kernel reads and writes, nor that a byte that comes out of a socket was put in
// before. So that it sees races between payload and its users, the socket calls tell it. The order is kept per pair of
// offers (by a byte of their secrets) and not for all sockets of the process, so that little is hidden.
var order [256]byte

func raceSent(line byte, vecs [][]byte, n int) {
	for _, v := range vecs {
		if n <= 0 {
			break
		}
		k := min(n, len(v))
		if k > 0 {
			runtime.RaceReadRange(unsafe.Pointer(&v[0]), k) // safe: k bytes of v, which is not empty
		}
		n -= k
	}
	runtime.RaceReleaseMerge(unsafe.Pointer(&order[line])) // safe: an address, never read through
}

func raceReceived(line byte, vecs [][]byte, n int) {
	runtime.RaceAcquire(unsafe.Pointer(&order[line])) // safe: an address, never read through
	for _, v := range vecs {
		if n <= 0 {
			break
		}
		k := min(n, len(v))
		if k > 0 {
			runtime.RaceWriteRange(unsafe.Pointer(&v[0]), k) // safe: k bytes of v, which is not empty
		}
		n -= k
	}
}
