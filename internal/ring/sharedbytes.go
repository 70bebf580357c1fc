package ring

import "encoding/binary"

// A ring of bytes holds frames: a word with the length in the low half and frameMark in the high half, the bytes, and padding to
// frameAlign, so that the word never wraps.
const (
	frameAlign = 8
	frameMark  = 0x4d534721 << 32 // told from memory that was never written
)

// frameSize is what a message of n bytes takes in the ring.
func frameSize(n uint64) uint64 { return frameAlign + (n+frameAlign-1)&^(frameAlign-1) }

// SharedByteWriter is the writing side of a ring of bytes. Owned by one goroutine.
type SharedByteWriter struct {
	writer
	area []byte
}

// NewSharedByteWriter is the writing side of a new ring. len(area) is a power of two; index and area lie in shared memory.
func NewSharedByteWriter(index *SharedIndex, area []byte) SharedByteWriter {
	return SharedByteWriter{writer{index: index, size: uint64(len(area))}, area}
}

// Fits reports whether a message of n bytes can be put now.
// hot:
func (w *SharedByteWriter) Fits(n uint64) (bool, error) {
	want := frameSize(n)
	free, err := w.room(want)
	return free >= want, err
}

// Publish makes everything that was put visible to the reader. It is one locked instruction, so a batch shares it.
// hot:
func (w *SharedByteWriter) Publish() { w.index.head.Store(w.next) }

// Put adds a message that fits and returns the position behind it, for Taken. The reader sees it after Publish.
// hot:
func (w *SharedByteWriter) Put(msg []byte) uint64 {
	at := w.next & (w.size - 1)
	binary.NativeEndian.PutUint64(w.area[at:], frameMark|uint64(len(msg)))
	at = (at + frameAlign) & (w.size - 1)
	n := copy(w.area[at:], msg)
	copy(w.area, msg[n:])
	w.next += frameSize(uint64(len(msg)))
	return w.next
}

// Taken is the position up to which the reader has taken messages.
// hot:
func (w *SharedByteWriter) Taken() (uint64, error) {
	err := w.look()
	return w.tail, err
}

// SharedByteReader is the reading side of a ring of bytes. Owned by one goroutine.
type SharedByteReader struct {
	reader
	head uint64 // as last seen
	area []byte
}

// NewSharedByteReader is the reading side of a new ring, see NewSharedByteWriter.
func NewSharedByteReader(index *SharedIndex, area []byte) SharedByteReader {
	return SharedByteReader{reader: reader{index: index, size: uint64(len(area))}, area: area}
}

// Empty reports whether Next would find nothing.
// hot:
func (r *SharedByteReader) Empty() bool { return r.index.head.Load() == r.next }

// Next is the length of the oldest message, at most limit; ok is false when there is none.
// hot:
func (r *SharedByteReader) Next(limit uint64) (n uint64, ok bool, err error) {
	head := r.index.head.Load()
	have := head - r.next
	if have > r.size || have < r.head-r.next {
		return 0, false, ErrCorrupt // more than the ring holds, or it went back
	}
	r.head = head
	if have == 0 {
		return 0, false, nil
	}
	if have < frameAlign {
		return 0, false, ErrCorrupt
	}
	// Read once: the other side can change the word at any time.
	word := binary.NativeEndian.Uint64(r.area[r.next&(r.size-1):])
	n = uint64(uint32(word))
	if word&^uint64(1<<32-1) != frameMark || n > limit || frameSize(n) > have {
		return 0, false, ErrCorrupt
	}
	return n, true, nil
}

// Take copies the oldest message, whose length Next has returned and dst has, and removes it.
// hot:
func (r *SharedByteReader) Take(dst []byte) {
	at := (r.next + frameAlign) & (r.size - 1)
	k := copy(dst, r.area[at:])
	copy(dst[k:], r.area)
	r.Drop(uint64(len(dst)))
}

// Drop removes the oldest message, whose length is n as Next has returned it.
// hot:
func (r *SharedByteReader) Drop(n uint64) { r.next += frameSize(n) }
