package record

import (
	"math"
	"testing"
)

// The last operations are kept, and other events however many operations come after them, in the order in which they happened.
func TestRecorderKeepsTheLast(t *testing.T) {
	r := New(16)
	r.seq = math.MaxUint32 - 50 // it wraps on the way
	r.Note(PeerUp, 7, -1, 0xff, "shm")
	for i := range 100 {
		r.Ended(1, 0, 0, uint32(i%2), uint32(i), 0)
	}
	r.Note(PeerDown, 7, -1, 0xff, "why")
	r.Ended(1, 1, 0, 7, 100, 0)
	all := r.Last(0, nil)
	if len(all) != 18 || r.Count() != 101 {
		t.Fatalf("%d events, %d operations", len(all), r.Count())
	}
	if all[0].Kind != PeerUp || all[0].Text != "shm" || all[16].Kind != PeerDown || all[17].Imm != 100 {
		t.Fatalf("%+v", all)
	}
	for i := 1; i < 16; i++ {
		if all[i].Kind != OpEnded || all[i].Imm != uint32(84+i) || all[i].Rail != -1 {
			t.Fatalf("event %d: %+v", i, all[i])
		}
	}
	own := r.Last(3, func(e *Event) bool { return e.Peer == 7 })
	if len(own) != 3 || own[0].Kind != PeerUp || own[1].Kind != PeerDown || own[2].Imm != 100 {
		t.Fatalf("of one peer: %+v", own)
	}
	few := r.Last(2, func(e *Event) bool { return e.Kind == OpEnded })
	if len(few) != 2 || few[0].Imm != 99 || few[1].Imm != 100 {
		t.Fatalf("the last two: %+v", few)
	}
	for range 10 {
		r.Note(LinkUp, 1, 2, 3, "")
	}
	if n := len(r.Last(0, func(e *Event) bool { return e.Kind != OpEnded })); n != 4 {
		t.Fatalf("%d other events of a recorder for 4", n)
	}
}

func TestRecordingAllocatesNothing(t *testing.T) {
	r := New(64)
	var h Histogram
	if n := testing.AllocsPerRun(1000, func() {
		r.Ended(1, 0, 0, 1, 2, 3)
		r.Note(LinkUp, 1, 2, 3, "text")
		h.Add(Now())
	}); n > 0 {
		t.Fatalf("%v allocations", n)
	}
}

func BenchmarkEnded(b *testing.B) {
	r := New(1024)
	for b.Loop() {
		r.Ended(1, 0, 0, 1, 2, 3)
	}
}
