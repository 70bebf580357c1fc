package mem

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// Word is the 64-bit word at offset off, which must be aligned to 8 bytes and inside the span. It must not be used after Free.
func (s *Span) Word(off uint64) *atomic.Uint64 {
	if off%8 != 0 || off > uint64(len(s.bytes)) || uint64(len(s.bytes))-off < 8 {
		panic(fmt.Sprintf("mem: no word at %d of a span of %d bytes", off, len(s.bytes)))
	}
	return (*atomic.Uint64)(unsafe.Pointer(&s.bytes[off])) // safe: 8 aligned bytes of s, checked above
}

// Addr is the address of the byte at offset off, for those who know nothing of Go. It means nothing after Free.
func (s *Span) Addr(off uint64) uintptr {
	return uintptr(unsafe.Pointer(&s.bytes[off])) // safe: never read through
}
