package ring

import (
	"errors"
	"sync/atomic"
)

// ErrCorrupt: the other side of a shared ring wrote something that it must not write.
var ErrCorrupt = errors.New("corrupt shared ring")

// Line keeps apart what two cores write, bytes: two cache lines, because processors fetch them in pairs.
const Line = 128

// SharedIndex is how far the two sides of a ring have come. It lies in memory that both processes map; zero is an empty ring.
// Each side keeps its own position privately and only publishes it here, so what the other side does to these words can at most
// make it see an impossible position, which is ErrCorrupt.
type SharedIndex struct {
	head    atomic.Uint64 // of a ring of bytes: published by the writer; its store releases the bytes to the reader's load
	waiting atomic.Uint32 // set by a writer that sleeps until the reader takes something
	_       [Line - 12]byte
	tail    atomic.Uint64 // released by the reader; its store hands the space back to the writer's load
	_       [Line - 8]byte
}

// writer is the private half of the side that fills a ring of size units.
type writer struct {
	index *SharedIndex
	size  uint64
	next  uint64 // position of the next unit to fill
	tail  uint64 // as last seen
}

// look reads the shared tail.
func (w *writer) look() error {
	tail := w.index.tail.Load()
	if w.next-tail > w.next-w.tail {
		return ErrCorrupt // it went back, or past what was filled
	}
	w.tail = tail
	return nil
}

// room is how many units can be filled, looking at the shared tail only when fewer than want are known to be free.
func (w *writer) room(want uint64) (uint64, error) {
	if free := w.size - (w.next - w.tail); free >= want {
		return free, nil
	}
	err := w.look()
	return w.size - (w.next - w.tail), err
}

// Wait asks to be woken when the reader takes something more than this side has seen it take, and reports whether it has done so
// already. The reader stores its tail and then loads waiting; here it is the other way round, so one of the two sees the other.
func (w *writer) Wait() bool {
	w.index.waiting.Store(1)
	return w.index.tail.Load() != w.tail
}

// reader is the private half of the side that empties a ring of size units.
type reader struct {
	index *SharedIndex
	size  uint64
	next  uint64 // position of the next unit to read
}

// Release hands everything that was taken back to the writer, and reports whether the writer sleeps for it and must be woken.
func (r *reader) Release() bool {
	r.index.tail.Store(r.next)
	return r.index.waiting.Load() != 0 && r.index.waiting.Swap(0) != 0
}

// Entry is one element of a ring of entries; the words mean what the two sides agree on.
type Entry struct {
	A uint64
	B uint32
}

// Slot is where an entry lies. It carries the number of the writer's lap, by which the reader knows that it is new: one cache
// line then brings both the news and the entry. Measured one way: 95 ns where a ring with a shared head took 120, and 300 ns
// where it took 420 to 580, when the hypervisor had put the two cores far apart.
type Slot struct {
	a    uint64
	word uint64 // B in the low half, the lap in the high half
}

// lap is the number that an entry of a position carries, in the high half and modulo 2^32: two laps that follow each other
// differ, and the first is not 0, as new memory is.
func lap(pos, size uint64) uint64 { return (pos/size + 1) << 32 }

// SharedWriter is the writing side of a ring of entries. Owned by one goroutine.
type SharedWriter struct {
	writer
	slots     []Slot
	published uint64
	first     uint64 // second word of the entry at published, if there is one
}

// NewSharedWriter is the writing side of a new ring. len(slots) is a power of two; index and slots lie in shared memory.
func NewSharedWriter(index *SharedIndex, slots []Slot) SharedWriter {
	return SharedWriter{writer: writer{index: index, size: uint64(len(slots))}, slots: slots}
}

// Room is how many entries can be put. It reads the shared tail only when fewer than want are known to be free.
// hot:
func (w *SharedWriter) Room(want int) (int, error) {
	n, err := w.room(uint64(want))
	return int(n), err
}

// Put adds an entry, for which there must be room. The reader sees it after Publish.
// hot:
func (w *SharedWriter) Put(e Entry) {
	s := &w.slots[w.next&(w.size-1)]
	s.a = e.A
	word := lap(w.next, w.size) | uint64(e.B)
	if w.next == w.published {
		w.first = word // the reader looks here; it goes on to the others only when it has found this
	} else {
		s.word = word
	}
	w.next++
}

// Publish makes everything that was put visible to the reader: it stores the word that Put has held back. It is one locked
// instruction, so a batch shares it.
// hot:
func (w *SharedWriter) Publish() {
	if w.next != w.published {
		atomic.StoreUint64(&w.slots[w.published&(w.size-1)].word, w.first) // releases all of the batch to the reader's load
		w.published = w.next
	}
}

// SharedReader is the reading side of a ring of entries. Owned by one goroutine.
type SharedReader struct {
	reader
	slots []Slot
}

// NewSharedReader is the reading side of a new ring, see NewSharedWriter.
func NewSharedReader(index *SharedIndex, slots []Slot) SharedReader {
	return SharedReader{reader{index: index, size: uint64(len(slots))}, slots}
}

// Empty reports whether Next would find nothing.
// hot:
func (r *SharedReader) Empty() bool {
	word := atomic.LoadUint64(&r.slots[r.next&(r.size-1)].word)
	return word>>32 == (lap(r.next, r.size)-1<<32)>>32
}

// Next takes the oldest entry; ok is false when there is none. Its words are the other side's and unchecked.
// hot:
func (r *SharedReader) Next() (e Entry, ok bool, err error) {
	s := &r.slots[r.next&(r.size-1)]
	word := atomic.LoadUint64(&s.word)
	if want := lap(r.next, r.size); word>>32 != want>>32 {
		if word>>32 != (want-1<<32)>>32 {
			return e, false, ErrCorrupt
		}
		return e, false, nil
	}
	r.next++
	return Entry{s.a, uint32(word)}, true, nil
}
