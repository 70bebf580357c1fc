package imm

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// WordSize is the length of a mirror in bytes, and what its address is a multiple of.
const WordSize = 8

// Word is b as a word that is read and written as a whole. b must be WordSize bytes at an aligned address.
func Word(b []byte) (*atomic.Uint64, error) {
	if len(b) != WordSize {
		return nil, fmt.Errorf("a word has %d bytes, not %d", WordSize, len(b))
	}
	p := unsafe.Pointer(unsafe.SliceData(b)) // safe: b has 8 bytes, and holds no Go pointers
	if uintptr(p)%WordSize != 0 {            // safe: the number is only looked at
		return nil, fmt.Errorf("its address is not a multiple of %d", WordSize)
	}
	return (*atomic.Uint64)(p), nil // safe: 8 aligned bytes, and the result keeps b alive when it is on the Go heap
}

// Mirror makes every count appear in w, beginning with the present one. SetThreshold, Mirror and Unmirror are called one at a time.
func (c *Counter) Mirror(w *atomic.Uint64) {
	w.Store(0) // before any worker knows it: what lies there is no count
	c.mirror.Store(w)
	c.alarm.Store(0)
	raise(w, c.n.Load()) // what was counted before a worker saw the alarm
}

// Unmirror ends it, and leaves the word with the present count unless its memory is gone. A worker that was in the middle of Add may
// write to the word once more: whoever owns it waits for the worker.
func (c *Counter) Unmirror(gone bool) {
	if w := c.mirror.Swap(nil); w != nil && !gone {
		raise(w, c.n.Load()) // who has seen the count finds it in the word
	}
	c.SetThreshold(c.threshold.Load())
}

// raise makes w at least n. Two workers may come in the wrong order; the word never goes back.
// hot:
func raise(w *atomic.Uint64, n uint64) {
	for old := w.Load(); old < n; old = w.Load() {
		if w.CompareAndSwap(old, n) {
			return
		}
	}
}
