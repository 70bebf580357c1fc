package ring

import (
	"encoding/binary"
	"errors"
	"testing"
)

// FuzzHostileEntries lets the other side of a ring of entries write anything, also between the calls: the reader takes no more
// than a lap at once, the writer sees no more room than there is, and neither goes on after ErrCorrupt as if nothing had been.
func FuzzHostileEntries(f *testing.F) {
	seed := binary.LittleEndian.AppendUint64(nil, 1<<32|7)
	f.Add(uint64(0), seed)
	f.Add(uint64(3), append(seed, seed...))
	f.Add(uint64(1<<63), []byte{})
	f.Fuzz(func(t *testing.T, tail uint64, words []byte) {
		const size = 4
		index, slots := new(SharedIndex), make([]Slot, size)
		r, w := NewSharedReader(index, slots), NewSharedWriter(index, slots)
		taken := 0
		for i := 0; i+8 <= len(words) && i < 100*8; i += 8 {
			word := binary.LittleEndian.Uint64(words[i:])
			slots[(i/8)%size] = Slot{a: word, word: word}
			_ = r.Empty()
			e, ok, err := r.Next()
			switch {
			case err != nil && !errors.Is(err, ErrCorrupt):
				t.Fatal(err)
			case err != nil && (ok || e != Entry{}):
				t.Fatalf("a corrupt ring has the entry %+v", e)
			case ok:
				taken++
			}
			if r.next != uint64(taken) {
				t.Fatalf("%d entries taken, the reader is at %d", taken, r.next)
			}
			r.Release()
		}
		index.tail.Store(tail)
		for range 2 * size {
			n, err := w.Room(size)
			if n < 0 || n > size || err != nil && !errors.Is(err, ErrCorrupt) {
				t.Fatalf("room for %d of %d: %v", n, size, err)
			}
			if err != nil || n == 0 {
				return
			}
			w.Put(Entry{A: tail, B: uint32(tail)})
			w.Publish()
			_ = w.Wait()
			tail += uint64(len(words))
			index.tail.Store(tail)
		}
	})
}
