package mem

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"unsafe"
)

// borrowed is the kind of spans that Foreign makes.
const borrowed Kind = 255

// Errors of Foreign.
var (
	// ErrHeap: the memory is the Go runtime's, which frees it, and uses it for something else, when the program holds it no more.
	ErrHeap = errors.New("memory of the Go runtime")
	// ErrUnmapped: not all of the memory is there, or it cannot be written to.
	ErrUnmapped = errors.New("memory that is not mapped so")
)

// Foreign makes a span of memory that somebody else has made: an mmap, memory of C, a tensor. It stays its maker's, who must not give it
// back before the span is freed; Free leaves it as it is. A child of fork shares it as it did before. writable says whether it is to be written to; else it need only be
// readable.
//
// ErrHeap: b is a Go slice, or on a stack. That is found out by its address, so it is a help against mistakes and no proof.
// ErrUnmapped: the kernel knows parts of b as not mapped, or not for that. Nothing can see that memory vanishes later: then writes
// to it fail, or the process dies.
func Foreign(b []byte, writable bool) (*Span, error) {
	if len(b) == 0 {
		return nil, errors.New("foreign memory of 0 bytes: at least 1")
	}
	first := uint64(uintptr(unsafe.Pointer(&b[0]))) // safe: only compared
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		maps = nil // without it only the address tells
	}
	if err := inspect(maps, first, first+uint64(len(b)), heapAddress(), writable); err != nil {
		return nil, fmt.Errorf("foreign memory [%#x, +%d): %w", first, len(b), err)
	}
	return &Span{kind: borrowed, bytes: b, fd: -1}, nil
}

// heapAddress is where the Go heap has put something.
func heapAddress() uint64 {
	mark = new([64]byte)
	return uint64(uintptr(unsafe.Pointer(mark))) // safe: only compared
}

var mark *[64]byte // so that it is on the heap

const (
	// heapAlign is below what the places of Go's heap are apart from anything that the kernel places: the heap grows from an address
	// like 0xc000000000, the kernel goes down from the end of the address space.
	heapAlign = 1 << 36
	// heapReach is more than a heap has.
	heapReach = 1 << 40
)

// inspect looks at [first, end) with the text of /proc/self/maps, which may be empty, and the address of something on the heap.
func inspect(maps []byte, first, end, heap uint64, writable bool) error {
	if end < first {
		return fmt.Errorf("it goes past the end of the address space: %w", ErrUnmapped)
	}
	if base := heap &^ (heapAlign - 1); first < base+heapReach && end > base {
		return fmt.Errorf("%w: make it with mmap, or with Engine.Alloc", ErrHeap)
	}
	if len(maps) == 0 {
		return nil
	}
	at := first // everything before it is fine; the lines are in order
	for line := range bytes.Lines(maps) {
		lo, hi, rest, ok := parseMap(line)
		switch {
		case !ok:
			return fmt.Errorf("/proc/self/maps has a line %q", line)
		case hi <= at:
			continue
		case lo > at:
			return fmt.Errorf("nothing is mapped at %#x: %w", at, ErrUnmapped)
		case rest[0] != 'r' || writable && rest[1] != 'w':
			return fmt.Errorf("[%#x, %#x) is mapped as %.4s: %w", lo, hi, rest, ErrUnmapped)
		case bytes.Contains(rest, []byte("[anon: Go:")): // Go 1.25 names its memory where the kernel lets it
			return fmt.Errorf("%w: make it with mmap, or with Engine.Alloc", ErrHeap)
		}
		if at = hi; at >= end {
			return nil
		}
	}
	return fmt.Errorf("nothing is mapped at %#x: %w", at, ErrUnmapped)
}

// parseMap takes a line like "7f00-7f10 rw-p ..." apart; rest begins with the four letters.
func parseMap(line []byte) (lo, hi uint64, rest []byte, ok bool) {
	span, rest, ok := bytes.Cut(line, []byte(" "))
	a, b, both := bytes.Cut(span, []byte("-"))
	lo, err1 := strconv.ParseUint(string(a), 16, 64)
	hi, err2 := strconv.ParseUint(string(b), 16, 64)
	return lo, hi, rest, ok && both && err1 == nil && err2 == nil && len(rest) > 4
}
