package proto

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hawser-project/hawser/kv/layout"
	"github.com/hawser-project/hawser/kv/pool"
)

func TestCredits(t *testing.T) { fetchCredits(t) }

func fetchCredits(t tb) {
	k := newDesk(t, nil, "a")
	h := k.hosts["a"]
	h.granted = 5
	one := k.fetch("r1", 3, nil, "a")
	k.fetch("r2", 4, nil, "a") // needs 4, 2 are left
	if n := len(of[*Dispatch](h)); n != 1 {
		t.Fatalf("%d dispatches", n)
	}
	beats := of[*Beat](h)
	if len(beats) != 1 || beats[0].Wants != 4 {
		t.Errorf("beats %+v, want one at once that says 4", beats)
	}
	h.send(&Beat{Granted: 3}) // an old one
	h.send(&Beat{Granted: 6})
	h.send(&Beat{Granted: 4})
	k.run()
	if n := len(of[*Dispatch](h)); n != 1 {
		t.Fatalf("%d dispatches with 6 credits for 7", n)
	}
	h.send(&Beat{Granted: 7})
	k.run()
	if n := len(of[*Dispatch](h)); n != 2 {
		t.Fatalf("%d dispatches with 7 credits for 7", n)
	}
	h.send(&Beat{Granted: 9})
	h.send(&Beat{Granted: 7}) // takes nothing back
	k.run()
	if n := k.d.links["a"].granted; n != 9 {
		t.Errorf("%d credits after 9 were granted", n)
	}
	h.finish(1)
	k.d.Release(k.now, one)
	if k.d.links["a"].wants != 0 {
		t.Error("it still wants credits")
	}
	// A new epoch starts both at 0.
	h.die()
	h.start()
	h.granted = 4
	k.pass(2 * time.Second)
	if all := of[*Dispatch](h); len(all) != 3 || all[2].Try < 2 {
		t.Errorf("dispatches %v", all)
	}
	h.finish(h.lastSeq())
}

// TestSmallerRequestsSkip: at most 16 go before one that does not fit.
func TestSmallerRequestsSkip(t *testing.T) {
	for name, c := range map[string]struct{ large int }{"pages": {deskPages}, "credits": {50}} {
		k := newDesk(t, nil, "a")
		h := k.hosts["a"]
		if name == "credits" {
			h.granted = 45
		}
		k.fetch("first", 1, nil, "a")
		first := h.lastSeq()
		k.fetch("large", c.large, nil, "a")
		for i := range 20 {
			r := k.fetch(fmt.Sprint(i), 1, nil, "a")
			if n := len(of[*Dispatch](h)); n > i+1 && i < 16 {
				h.finish(h.lastSeq())
				k.d.Release(k.now, r)
			}
		}
		if n := len(of[*Dispatch](h)) - 1; n != 16 {
			t.Errorf("%s: %d small requests went first, want 16", name, n)
		}
		h.finish(first)
		k.d.Release(k.now, 1)
		if name == "credits" {
			h.granted = 100
			h.send(&Beat{Granted: 100})
			k.run()
		}
		k.run()
		if m := of[*Dispatch](h)[17]; m.Request != "large" {
			t.Errorf("%s: then %q", name, m.Request)
		}
	}
}

func TestPriority(t *testing.T) {
	k := newDesk(t, nil, "a")
	h := k.hosts["a"]
	all := k.fetch("all", deskPages, nil, "a")
	for i, p := range []int8{0, 5, -5, 5} {
		k.fetch(fmt.Sprint(i), deskPages, func(f *Fetch) { f.Priority = p }, "a")
	}
	var order []string
	for r := all; len(order) < 4; {
		h.finish(h.lastSeq())
		k.d.Release(k.now, r)
		k.run()
		m := of[*Dispatch](h)
		order = append(order, m[len(m)-1].Request)
		for id, x := range k.d.requests {
			if x.f.ID == order[len(order)-1] {
				r = id
			}
		}
	}
	if want := []string{"1", "3", "0", "2"}; !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
}

// TestTwoWaitersDoNotHoldWhatTheOtherNeeds: pages of the cache are pinned by the first waiting request only.
func TestTwoWaitersDoNotHoldWhatTheOtherNeeds(t *testing.T) {
	k := newDesk(t, nil, "a")
	h := k.hosts["a"]
	for _, name := range []byte{'x', 'y'} {
		r := k.fetch(string(name), 30, func(f *Fetch) { f.Blocks = hashes(name, 30) }, "a")
		h.finish(h.lastSeq())
		k.d.Release(k.now, r)
	}
	block := k.fetch("block", 4, nil, "a") // takes the last free pages
	blockSeq := h.lastSeq()
	for _, name := range []byte{'x', 'y'} {
		k.fetch("more"+string(name), 50, func(f *Fetch) { f.Blocks = hashes(name, 50) }, "a") // 30 are here, 20 are missing
	}
	k.pass(time.Second)
	h.finish(blockSeq)
	k.d.Release(k.now, block)
	k.run()
	for range 2 {
		h.finish(h.lastSeq())
		for id := range k.ready {
			k.d.Release(k.now, id)
		}
		k.run()
	}
	k.idle()
	if n := k.d.Stats().Ready; n != 5 {
		t.Errorf("%d requests became ready, want 5", n)
	}
}

func TestScarceImmediatesAndTails(t *testing.T) {
	k := newDesk(t, func(c *DecoderConfig) { c.TailSlots = 1 }, "a")
	h := k.hosts["a"]
	k.imms = 1
	one := k.fetch("r1", 1, nil, "a")
	k.fetch("r2", 1, nil, "a")
	if n := len(of[*Dispatch](h)); n != 1 {
		t.Fatalf("%d dispatches with one immediate", n)
	}
	h.finish(1)
	if n := len(of[*Dispatch](h)); n != 2 {
		t.Fatalf("%d dispatches after it came back", n)
	}
	k.imms = 10
	k.d.Room(k.now)
	k.run()
	tail := func(f *Fetch) { f.Tail = true }
	three := k.fetch("r3", 1, tail, "a")
	k.fetch("r4", 1, tail, "a")
	h.finish(3)
	if n := len(of[*Dispatch](h)); n != 3 {
		t.Fatalf("%d dispatches, while the tail is held", n)
	}
	k.d.Release(k.now, one)
	k.d.Release(k.now, three)
	k.run()
	if n := len(of[*Dispatch](h)); n != 4 {
		t.Fatalf("%d dispatches after its release", n)
	}
}

// TestLowWaterIsTheOldestLiveAttempt: the prefiller drops what is about attempts below it, so it must not be above one that is live.
func TestLowWaterIsTheOldestLiveAttempt(t *testing.T) { lowWater(t) }

func lowWater(t tb) {
	k := newDesk(t, nil, "a")
	h := k.hosts["a"]
	var all []Request
	for i := range 3 {
		all = append(all, k.fetch(fmt.Sprint(i), 1, nil, "a"))
	}
	for i, r := range []int{1, 2, 0} {
		h.finish(uint64(r + 1))
		k.d.Release(k.now, all[r])
		k.pass(600 * time.Millisecond) // the next Beat says it
		if want := []uint64{1, 1, 4}[i]; h.lowWater != want {
			t.Errorf("low water is %d after %d ends, want %d", h.lowWater, i+1, want)
		}
	}
	k.pass(time.Minute)
	if n := len(of[*Beat](h)); n > 2+2+idleBeats+2 {
		t.Errorf("%d beats: it does not become silent", n)
	}
}

// TestSeqWindowHoldsRequestsBack: as long as an old attempt lives, no attempt goes so far that the prefiller had to remember more than it
// does.
func TestSeqWindowHoldsRequestsBack(t *testing.T) {
	k := newDesk(t, nil, "a", "b")
	h := k.hosts["a"]
	old := k.fetch("old", 1, nil, "a")
	k.d.lastSeq += seqWindow - 1 // as if as many had come and gone
	k.fetch("young", 1, nil, "a")
	if len(of[*Dispatch](h)) != 1 || k.d.Stats().Waiting != 1 {
		t.Fatal("dispatched")
	}
	k.fetch("other", 1, nil, "b")
	if len(of[*Dispatch](k.hosts["b"])) != 1 {
		t.Error("another prefiller has to wait for it")
	}
	h.finish(1)
	k.d.Release(k.now, old)
	if len(of[*Dispatch](h)) != 2 {
		t.Error("not dispatched when the old one has ended")
	}
}

// TestWindowGroup: two groups of layers with pools of their own; of the second only the end of the prompt moves.
func TestWindowGroup(t *testing.T) {
	m := layout.Model{Name: "desk", Layers: 4, LayerGroups: []uint8{0, 1, 0, 1}}
	m.Groups = []layout.Group{{PageTokens: 16, KVHeads: 2, HeadDim: 8, ElemSize: 2, Planes: 2}, {PageTokens: 16, KVHeads: 2, HeadDim: 8, ElemSize: 2, Planes: 2, Window: 40}}
	g, _, err := layout.Build(layout.Spec{Model: m, Pages: deskPages})
	if err != nil {
		t.Fatal(err)
	}
	topology := &layout.Topology{Members: []layout.Geometry{g}}
	k := newDesk(t, func(c *DecoderConfig) {
		other, err := pool.New(deskPages, 2)
		if err != nil {
			t.Fatal(err)
		}
		c.Topology, c.Pools = topology, append(c.Pools, other)
	})
	h := k.host("a", topology, 0)
	r := k.fetch("r1", 7, nil, "a") // 112 tokens
	d := of[*Dispatch](h)[0]
	if d.Groups[0].Span != (Span{First: 0, N: 112}) || d.Groups[1].Span != (Span{First: 64, N: 112}) || d.Groups[1].Pages[0].Logical != 4 || d.Expected != 4*(7+3) || d.Cost != 7+3 {
		t.Errorf("dispatch %+v", d)
	}
	h.finish(d.Seq)
	if res := k.ready[r]; len(res.Pages) != 2 || len(res.Pages[0]) != 7 || len(res.Pages[1]) != 3 || res.Spans[1] != (Span{First: 64, N: 112}) {
		t.Errorf("result %+v", res)
	}
	k.d.Release(k.now, r)
	k.idle()
}
