package hawser

import (
	"strings"
	"testing"

	"github.com/hawser-project/hawser/provider/sim"
)

// All peers together get the room of the engine, in the order in which they asked; a short message does not overtake a long one
// that waits for that room. What is forgotten gives its room back.
func TestBulkRoomIsSharedInOrder(t *testing.T) {
	e := simEngine(t, sim.New(sim.Config{}), "a")
	st := newBulkStore(make(chan struct{}, 1))
	ask := func(peer byte, n uint64) *bulkIn {
		s := e.newSession(e.peer(ID{peer}), nil, false)
		in := &bulkIn{s: s, len: n}
		st.request(in)
		return in
	}
	var held []*bulkIn
	for i := range byte(bulkRoomEngine / bulkRoomPeer) {
		held = append(held, ask(i+1, MaxBulk))
	}
	long, short := ask(100, MaxBulk), ask(101, 1)
	for _, in := range held {
		if !in.accepted {
			t.Fatal("there is room, and it was not given")
		}
	}
	if long.accepted || short.accepted {
		t.Fatalf("more than all the room was given: %d bytes", st.used)
	}
	gone := ask(102, 1)
	st.forget(gone)
	if !st.put(held[0], nil) {
		t.Fatal("a message that has room is not taken")
	}
	if _, ok := st.take(); !ok || !long.accepted || short.accepted {
		t.Fatalf("the room of a message that was received: long %v, short %v", long.accepted, short.accepted)
	}
	st.forget(held[1])
	if !short.accepted || gone.accepted {
		t.Fatalf("the room of a message that was forgotten: short %v, forgotten %v", short.accepted, gone.accepted)
	}
	if st.put(held[1], nil) {
		t.Fatal("a message that was forgotten is taken")
	}
	for _, in := range append(held[2:], long, short) {
		st.forget(in)
		st.forget(in)
	}
	if st.used != 0 || len(st.peers) != 0 || len(st.waiting) != 0 {
		t.Fatalf("%d bytes of %d peers stay, %d wait", st.used, len(st.peers), len(st.waiting))
	}
}

// Room that a sender was given and does not use is taken from it.
func TestBulkSenderThatStallsIsCutOff(t *testing.T) {
	e := simEngine(t, sim.New(sim.Config{}), "a")
	s := e.newSession(e.peer(ID{1}), nil, false)
	if err := s.bulk.offered(s, 1, 100); err != nil {
		t.Fatal(err)
	}
	limit := int(bulkStall / heartTick)
	for range limit - 1 {
		s.bulk.beat()
	}
	if err := s.bulk.chunk(s, 1, []byte{1}); err != nil {
		t.Fatal(err)
	}
	for range limit {
		if _, stalled := s.bulk.beat(); stalled {
			t.Fatal("cut off too early")
		}
	}
	if _, stalled := s.bulk.beat(); !stalled {
		t.Fatal("a sender that sends nothing keeps its room")
	}
	s.bulk.end(s)
	if used := e.inbox.bulks.used; used != 0 {
		t.Fatalf("%d bytes are still held", used)
	}
	if err := s.bulk.chunk(s, 1, []byte{1}); err == nil || !strings.Contains(err.Error(), "not accepted") {
		t.Fatal(err)
	}
}
