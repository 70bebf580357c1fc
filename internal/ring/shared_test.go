package ring

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"
)

func newEntries(n int) (*SharedIndex, SharedWriter, SharedReader) {
	index, slots := new(SharedIndex), make([]Slot, n)
	return index, NewSharedWriter(index, slots), NewSharedReader(index, slots)
}

func mustTake(t *testing.T, r *SharedReader) {
	t.Helper()
	if _, ok, err := r.Next(); !ok || err != nil {
		t.Fatalf("no entry, %v", err)
	}
}

// after moves a ring to where it would be after that many entries.
func after(n uint64, index *SharedIndex, w *SharedWriter, r *SharedReader) {
	w.next, w.published, w.tail, r.next = n, n, n, n
	index.tail.Store(n)
	for pos := n - w.size; pos != n; pos++ {
		w.slots[pos&(w.size-1)].word = lap(pos, w.size)
	}
}

func newBytes(n int) (*SharedIndex, SharedByteWriter, SharedByteReader) {
	index, area := new(SharedIndex), make([]byte, n)
	return index, NewSharedByteWriter(index, area), NewSharedByteReader(index, area)
}

func TestEntriesStayInOrderAroundTheEnd(t *testing.T) {
	const size = 8
	for _, start := range []uint64{size, size * (1<<32 - 3), 1<<64 - 20} { // the laps wrap, the positions wrap
		index, w, r := newEntries(size)
		after(start, index, &w, &r)
		sent, seen := uint64(0), uint64(0)
		for seen < 1000 {
			room, err := w.Room(3)
			if err != nil || room > size-int(sent-seen) || room < min(3, size-int(sent-seen)) {
				t.Fatalf("start %#x: room is %d, %v, with %d entries in the ring", start, room, err, sent-seen)
			}
			for range min(room, int(sent%5)+1) {
				w.Put(Entry{sent, ^uint32(sent)})
				sent++
			}
			w.Publish()
			for range seen%3 + 1 {
				e, ok, err := r.Next()
				if err != nil || ok != (seen < sent) {
					t.Fatalf("start %#x: next is %v, %v with %d entries in the ring", start, ok, err, sent-seen)
				}
				if !ok {
					break
				}
				if e != (Entry{seen, ^uint32(seen)}) {
					t.Fatalf("start %#x: entry %d is %+v", start, seen, e)
				}
				seen++
			}
			if r.Empty() != (seen == sent) {
				t.Fatalf("start %#x: Empty is %v with %d entries in the ring", start, r.Empty(), sent-seen)
			}
			r.Release()
		}
	}
}

func TestNothingIsSeenBeforePublish(t *testing.T) {
	_, w, r := newEntries(4)
	for lap := range 3 {
		for range 4 {
			w.Put(Entry{1, 2})
		}
		if _, ok, err := r.Next(); ok || err != nil || !r.Empty() {
			t.Fatalf("lap %d: an entry, %v before Publish", lap, err)
		}
		w.Publish()
		for i := range 4 {
			if e, ok, err := r.Next(); !ok || err != nil || e != (Entry{1, 2}) {
				t.Fatalf("lap %d: entry %d is %+v, %v, %v after Publish", lap, i, e, ok, err)
			}
		}
		r.Release()
		if _, err := w.Room(4); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFullRingHasNoRoomUntilRelease(t *testing.T) {
	_, w, r := newEntries(4)
	for range 4 {
		w.Put(Entry{})
	}
	w.Publish()
	if n, err := w.Room(1); n != 0 || err != nil {
		t.Fatalf("a full ring has room for %d, %v", n, err)
	}
	mustTake(t, &r)
	if n, _ := w.Room(1); n != 0 {
		t.Fatal("room before Release")
	}
	if r.Release() {
		t.Fatal("Release says that a writer waits, which has not asked")
	}
	if n, err := w.Room(1); n != 1 || err != nil {
		t.Fatalf("room for %d, %v after one was released", n, err)
	}
}

func TestWaitIsToldOnce(t *testing.T) {
	_, w, r := newEntries(2)
	w.Put(Entry{})
	w.Publish()
	if w.Wait() {
		t.Fatal("Wait says that something was taken")
	}
	mustTake(t, &r)
	if !r.Release() {
		t.Fatal("Release does not say that the writer waits")
	}
	if r.Release() {
		t.Fatal("Release says twice that the writer waits")
	}
	if !w.Wait() {
		t.Fatal("Wait does not see what was taken before")
	}
}

// TestEntriesBetweenGoroutines also shows the race detector that what is put is published.
func TestEntriesBetweenGoroutines(t *testing.T) {
	const total = 200_000
	_, w, r := newEntries(64)
	done := make(chan error, 1)
	go func() {
		for i := uint64(0); i < total; {
			n, err := w.Room(1)
			if err != nil {
				done <- err
				return
			}
			if n == 0 {
				runtime.Gosched()
			}
			for range min(n, 16, int(total-i)) {
				w.Put(Entry{i, uint32(i * i)})
				i++
			}
			w.Publish()
		}
		done <- nil
	}()
	for i := uint64(0); i < total; {
		e, ok, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			r.Release()
			runtime.Gosched()
			continue
		}
		if e != (Entry{i, uint32(i * i)}) {
			t.Fatalf("entry %d is %+v", i, e)
		}
		i++
	}
	r.Release()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// TestNoWaitIsLost: the writer sleeps on a full ring, and only Release's answer wakes it.
func TestNoWaitIsLost(t *testing.T) {
	const total = 50_000
	_, w, r := newEntries(2)
	wake := make(chan struct{}, 1)
	done := make(chan string, 1)
	go func() {
		for i := range uint64(total) {
			for n, _ := w.Room(1); n == 0; n, _ = w.Room(1) {
				if w.Wait() {
					continue
				}
				select {
				case <-wake:
				case <-time.After(time.Minute):
					done <- "no wake"
					return
				}
			}
			w.Put(Entry{A: i})
			w.Publish()
		}
		done <- ""
	}()
	for i := uint64(0); i < total; {
		_, ok, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			i++
		}
		if ok && r.Release() {
			select {
			case wake <- struct{}{}:
			default: // one is on its way, and the writer looks after it
			}
		}
		select {
		case fault := <-done:
			if fault != "" {
				t.Fatalf("after %d of %d entries: the writer ended: %s", i, total, fault)
			}
			done <- fault // it has put all, and we have not taken all yet
		default:
		}
		runtime.Gosched()
	}
	if fault := <-done; fault != "" {
		t.Fatal(fault)
	}
}

func TestMessagesSurviveTheEndOfTheArea(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	_, w, r := newBytes(256)
	var queue [][]byte
	var ends []uint64
	for round := range 5000 {
		msg := make([]byte, rng.IntN(200))
		for i := range msg {
			msg[i] = byte(rng.Uint32())
		}
		fits, err := w.Fits(uint64(len(msg)))
		if err != nil {
			t.Fatal(err)
		}
		if fits {
			ends = append(ends, w.Put(msg))
			queue = append(queue, msg)
			w.Publish()
		} else if len(queue) == 0 {
			t.Fatalf("round %d: %d bytes do not fit into an empty area of 256", round, len(msg))
		}
		if fits && rng.IntN(2) == 0 {
			continue
		}
		n, ok, err := r.Next(200)
		if err != nil || !ok || n != uint64(len(queue[0])) {
			t.Fatalf("round %d: next is %d, %v, %v, want %d", round, n, ok, err, len(queue[0]))
		}
		if rng.IntN(4) == 0 {
			r.Drop(n)
		} else {
			got := make([]byte, n)
			r.Take(got)
			if !bytes.Equal(got, queue[0]) {
				t.Fatalf("round %d: message of %d bytes changed", round, n)
			}
		}
		r.Release()
		if taken, err := w.Taken(); err != nil || taken != ends[0] {
			t.Fatalf("round %d: taken up to %d, %v, want %d", round, taken, err, ends[0])
		}
		queue, ends = queue[1:], ends[1:]
	}
}

func TestHostileReaderIsNoticed(t *testing.T) {
	for name, tail := range map[string]uint64{"past what was put": 7, "far away": 1 << 63, "back": 0} {
		index, w, r := newEntries(4)
		for range 4 {
			w.Put(Entry{})
		}
		w.Publish()
		mustTake(t, &r)
		r.Release()
		if _, err := w.Room(4); err != nil {
			t.Fatal(err)
		}
		index.tail.Store(tail)
		if _, err := w.Room(4); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: Room returned %v, want ErrCorrupt", name, err)
		}
	}
	index, w, _ := newBytes(64)
	w.Put([]byte{1})
	index.tail.Store(100)
	if _, err := w.Taken(); !errors.Is(err, ErrCorrupt) {
		t.Errorf("Taken returned %v, want ErrCorrupt", err)
	}
}

func TestHostileWriterIsNoticed(t *testing.T) {
	for name, word := range map[string]uint64{"a lap ahead": lap(8, 4), "a lap behind": lap(0, 4) - 1<<32, "far away": 1 << 63} {
		index, w, r := newEntries(4)
		after(4, index, &w, &r)
		w.slots[0].word = word
		if _, ok, err := r.Next(); !errors.Is(err, ErrCorrupt) || r.Empty() {
			t.Errorf("%s: Next returned %v, %v, want ErrCorrupt, and Empty %v, want false", name, ok, err, r.Empty())
		}
	}
	for name, head := range map[string]uint64{"more than the area holds": 88, "far away": 1 << 63, "back": 8, "before what was read": 0} {
		index, w, r := newBytes(64)
		for range 3 {
			w.Put(make([]byte, 8))
		}
		w.Publish()
		n, _, err := r.Next(8)
		if err != nil {
			t.Fatal(err)
		}
		r.Drop(n)
		index.head.Store(head)
		if _, _, err := r.Next(8); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: Next returned %v, want ErrCorrupt", name, err)
		}
	}
}

func TestHostileFrameIsNoticed(t *testing.T) {
	const limit = 100
	for name, tc := range map[string]struct {
		head, word uint64
	}{
		"no frame at all":                {head: 16},
		"half a frame word":              {head: 4, word: frameMark | 8},
		"longer than what was published": {head: 16, word: frameMark | 9},
		"longer than the limit":          {head: 128, word: frameMark | (limit + 1)},
		"longest length":                 {head: 128, word: frameMark | 1<<32 - 1},
		"wrong mark":                     {head: 16, word: 1<<32 | 8},
		"more than the area":             {head: 129, word: frameMark | 8},
	} {
		index, area := new(SharedIndex), make([]byte, 128)
		r := NewSharedByteReader(index, area)
		binary.NativeEndian.PutUint64(area, tc.word)
		index.head.Store(tc.head)
		if n, ok, err := r.Next(limit); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: Next returned %d, %v, %v, want ErrCorrupt", name, n, ok, err)
		}
	}
}

// FuzzHostileFrames lets the other side write anything, also between the calls: the reader must stay inside its buffers.
func FuzzHostileFrames(f *testing.F) {
	f.Add(uint64(16), []byte{8, 0, 0, 0, 0x21, 0x47, 0x53, 0x4d, 1, 2, 3, 4, 5, 6, 7, 8})
	f.Add(uint64(1<<63), []byte{})
	f.Fuzz(func(t *testing.T, head uint64, content []byte) {
		const limit = 48
		index, area := new(SharedIndex), make([]byte, 64)
		r := NewSharedByteReader(index, area)
		copy(area, content)
		for range 10 {
			index.head.Store(head)
			n, ok, err := r.Next(limit)
			if err != nil || !ok {
				return
			}
			if n > limit {
				t.Fatalf("a message of %d bytes, the limit is %d", n, limit)
			}
			clear(area) // after the check
			r.Take(make([]byte, n))
			r.Release()
			copy(area, content)
			head += frameSize(n)
		}
	})
}

func TestSharedRingsAllocateNothing(t *testing.T) {
	_, w, r := newEntries(8)
	_, bw, br := newBytes(1024)
	msg, buf := make([]byte, 100), make([]byte, 100)
	if n := testing.AllocsPerRun(100, func() {
		_, _ = w.Room(1)
		w.Put(Entry{1, 2})
		w.Publish()
		_, _, _ = r.Next()
		r.Release()
		_, _ = bw.Fits(100)
		bw.Put(msg)
		bw.Publish()
		n, _, _ := br.Next(100)
		br.Take(buf[:n])
		br.Release()
	}); n != 0 {
		t.Fatalf("%v allocations a round", n)
	}
}
