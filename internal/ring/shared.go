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
	head    atomic.Uint64 // published by the writer; its store releases the contents to the reader's load
	waiting atomic.Uint32 // set by a writer that sleeps until there is room
	_       [Line - 12]byte
	tail    atomic.Uint64 // released by the reader; its store hands the space back to the writer's load
	_       [Line - 8]byte
}

// writer is the private half of the side that fills a ring of size units.
type writer struct {
	index *SharedIndex
	size  uint64
	next  uint64 // position of the next unit to fill; up to here minus published is filled and not published
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

// Publish makes everything that was put visible to the reader. It is one locked instruction, so a batch shares it.
func (w *writer) Publish() { w.index.head.Store(w.next) }

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
	head  uint64 // as last seen
}

// load looks at the shared head. What lies between next and head may be read.
func (r *reader) load() error {
	head := r.index.head.Load()
	if head-r.next > r.size || head-r.next < r.head-r.next {
		return ErrCorrupt
	}
	r.head = head
	return nil
}

// Empty reports whether nothing is there to read. It is meant to be polled: the line it reads stays in the cache until the
// writer publishes.
func (r *reader) Empty() bool { return r.index.head.Load() == r.next }

// Release hands everything that was taken back to the writer, and reports whether the writer sleeps for it and must be woken.
func (r *reader) Release() bool {
	r.index.tail.Store(r.next)
	return r.index.waiting.Load() != 0 && r.index.waiting.Swap(0) != 0
}

// Entry is one element of a ring of entries; the words mean what the two sides agree on.
type Entry struct{ A, B uint64 }

// SharedWriter is the writing side of a ring of entries. Owned by one goroutine.
type SharedWriter struct {
	writer
	slots []Entry
}

// NewSharedWriter is the writing side of a new ring. len(slots) is a power of two; index and slots lie in shared memory.
func NewSharedWriter(index *SharedIndex, slots []Entry) SharedWriter {
	return SharedWriter{writer{index: index, size: uint64(len(slots))}, slots}
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
	w.slots[w.next&(w.size-1)] = e
	w.next++
}

// SharedReader is the reading side of a ring of entries. Owned by one goroutine.
type SharedReader struct {
	reader
	slots []Entry
}

// NewSharedReader is the reading side of a new ring, see NewSharedWriter.
func NewSharedReader(index *SharedIndex, slots []Entry) SharedReader {
	return SharedReader{reader{index: index, size: uint64(len(slots))}, slots}
}

// Ready is how many entries can be taken.
// hot:
func (r *SharedReader) Ready() (int, error) {
	err := r.load()
	return int(r.head - r.next), err
}

// Take removes one entry, of which Ready has counted at least one. Its words are the other side's and unchecked.
// hot:
func (r *SharedReader) Take() Entry {
	e := r.slots[r.next&(r.size-1)]
	r.next++
	return e
}
