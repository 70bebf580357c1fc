package proto

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv/layout"
	"github.com/hawser-project/hawser/kv/pool"
)

func busy(m *Dispatch) *Reject { return &Reject{Seq: m.Seq, Code: CodeBusy, Text: "full"} }

func TestTriesAreBounded(t *testing.T) {
	k := newDesk(t, nil, "a")
	h := k.hosts["a"]
	h.reject = busy
	r := k.fetch("r1", 3, nil, "a")
	k.pass(time.Minute)
	var e *RejectedError
	if all := of[*Dispatch](h); len(all) != DefaultTries || all[2].Try != 3 || !errors.As(k.ended[r], &e) || e.Code != CodeBusy {
		t.Errorf("%d dispatches, ended with %v", len(all), k.ended[r])
	}
	k.idle()
}

// TestRetryAfter: the same prefiller is not asked again before it said so, another one at once.
func TestRetryAfter(t *testing.T) {
	k := newDesk(t, nil, "a", "b")
	a, b := k.hosts["a"], k.hosts["b"]
	slow := func(m *Dispatch) *Reject { return &Reject{Seq: m.Seq, Code: CodeBusy, RetryAfter: 2 * time.Second} }
	a.reject = slow
	k.fetch("r1", 3, nil, "a", "b")
	if len(of[*Dispatch](b)) != 1 {
		t.Error("the alternative was not asked at once")
	}
	k.fetch("r2", 3, nil, "a")
	k.pass(1900 * time.Millisecond)
	if n := len(of[*Dispatch](a)); n != 2 {
		t.Errorf("%d dispatches before RetryAfter is over, want 2", n)
	}
	k.pass(200 * time.Millisecond)
	if n := len(of[*Dispatch](a)); n != 3 {
		t.Errorf("%d dispatches after it, want 3", n)
	}
}

func TestCodesThatEndIt(t *testing.T) {
	for code, dispatches := range map[Code][2]int{
		CodeInvalid: {1, 0}, CodeLate: {1, 0}, CodeInfeasible: {1, 1}, CodePlan: {1, 1}, CodeDraining: {1, 1}, CodeClosed: {1, 1}, CodePrompt: {1, 1},
	} {
		k := newDesk(t, nil, "a", "b")
		k.hosts["a"].reject = func(m *Dispatch) *Reject { return &Reject{Seq: m.Seq, Code: code} }
		k.fetch("r1", 3, nil, "a", "b")
		if got := [2]int{len(of[*Dispatch](k.hosts["a"])), len(of[*Dispatch](k.hosts["b"]))}; got != dispatches {
			t.Errorf("%v: %v dispatches, want %v", code, got, dispatches)
		}
	}
}

// TestBudget: retries are a tenth of the requests of the last 10 s, but at least 3.
func TestBudget(t *testing.T) {
	k := newDesk(t, func(c *DecoderConfig) { c.Tries = 1000 }, "a")
	h := k.hosts["a"]
	h.reject = busy
	r := k.fetch("r1", 1, nil, "a")
	k.pass(9 * time.Second)
	if n := len(of[*Dispatch](h)); n != 4 || !strings.Contains(fmt.Sprint(k.ended[r]), "too many retries") {
		t.Errorf("%d dispatches, ended with %v", n, k.ended[r])
	}
	k.pass(11 * time.Second)
	h.reject = nil
	for i := range 60 {
		f := k.fetch(fmt.Sprint(i), 1, nil, "a")
		h.finish(h.lastSeq())
		k.d.Release(k.now, f)
	}
	h.reject = busy
	before := len(of[*Dispatch](h))
	for i := range 10 {
		k.fetch(fmt.Sprint("again", i), 1, func(f *Fetch) { f.Deadline = k.now + 5*time.Second }, "a")
	}
	k.pass(6 * time.Second)
	if n := len(of[*Dispatch](h)) - before; n != 10+7 {
		t.Errorf("%d dispatches for 10 requests, want 7 retries: a tenth of 70", n)
	}
	k.idle()
}

// TestDeathIsOutsideTheBudgetAndPaced: 32 retries at once, the others at 200 a second.
func TestDeathIsOutsideTheBudgetAndPaced(t *testing.T) {
	k := newDesk(t, nil, "a", "b")
	a, b := k.hosts["a"], k.hosts["b"]
	for i := range 60 {
		k.fetch(fmt.Sprint(i), 1, nil, "a", "b")
	}
	a.die()
	if n := len(of[*Dispatch](b)); n != 32 {
		t.Errorf("%d retries at once, want 32", n)
	}
	k.pass(50 * time.Millisecond)
	if n := len(of[*Dispatch](b)); n < 41 || n > 43 {
		t.Errorf("%d retries after 50 ms, want 42", n)
	}
	k.pass(time.Second)
	if n := len(of[*Dispatch](b)); n != 60 {
		t.Errorf("%d retries in the end", n)
	}
}

// TestLeavingIsOutsideTheBudget: a prefiller that drains or closes is as good as a dead one, and is asked once at most.
func TestLeavingIsOutsideTheBudget(t *testing.T) {
	for _, code := range []Code{CodeDraining, CodeClosed} {
		k := newDesk(t, func(c *DecoderConfig) { c.Queue = 100 }, "a", "b")
		a, b := k.hosts["a"], k.hosts["b"]
		if code == CodeDraining {
			a.reject = func(m *Dispatch) *Reject { return &Reject{Seq: m.Seq, Code: code} }
		}
		for i := range 40 {
			k.fetch(fmt.Sprint(i), 1, nil, "a", "b")
		}
		if code == CodeClosed {
			for _, m := range of[*Dispatch](a) {
				a.fail(m.Seq, code, true)
			}
		}
		k.pass(time.Second)
		if n := len(of[*Dispatch](b)); n != 40 {
			t.Errorf("%v: %d requests came to the other one, want all 40", code, n)
		}
		if n := len(of[*Dispatch](a)); code == CodeDraining && n != 1 {
			t.Errorf("%v: it was asked %d times, want once: it has said so", code, n)
		}
		if len(k.ended) != 0 {
			t.Errorf("%v: %d requests have ended", code, len(k.ended))
		}
	}
}

// TestDrainingPrefillerHearsAtOnce that nothing is live any more: it waits for that.
func TestDrainingPrefillerHearsAtOnce(t *testing.T) {
	k := newDesk(t, nil, "a")
	a := k.hosts["a"]
	k.fetch("r", 1, nil, "a")
	a.send(&Drain{})
	k.run()
	a.finish(a.lastSeq())
	if h := a.heads[len(a.heads)-1]; len(of[*Beat](a)) != 2 || h.LowWater != h.Next {
		t.Errorf("%d beats, the last message says %+v: want one when it drains, and one that says that nothing is live", len(of[*Beat](a)), h)
	}
}

// TestLostLinkIsNotWaitedFor: a request that has another choice does not wait for a prefiller that was lost and does not answer; that one
// is tried meanwhile, and used again when it is back.
func TestLostLinkIsNotWaitedFor(t *testing.T) {
	k := newDesk(t, nil, "a", "b")
	a, b := k.hosts["a"], k.hosts["b"]
	first := k.fetch("first", 1, nil, "a", "b")
	a.finish(a.lastSeq())
	k.d.Release(k.now, first)
	a.die()
	a.start()
	a.mute[KindHello] = true
	for i := range 3 {
		before := len(of[*Dispatch](b))
		k.fetch(fmt.Sprint(i), 1, nil, "a", "b")
		if len(of[*Dispatch](b)) != before+1 {
			t.Fatalf("request %d waits for the prefiller that does not answer", i)
		}
		k.pass(3 * time.Second) // the link fails, and is given up, meanwhile
	}
	if len(of[*Hello](a)) < 2 {
		t.Error("nobody has tried the lost prefiller again")
	}
	a.mute[KindHello] = false
	k.fetch("again", 1, nil, "a", "b")
	k.pass(10 * time.Second)
	before := len(of[*Dispatch](a))
	k.fetch("last", 1, nil, "a", "b")
	if len(of[*Dispatch](a)) != before+1 {
		t.Error("the prefiller is back and is not asked")
	}
	for _, l := range k.d.inOrder {
		if l.missed && l.state == linkUp {
			t.Error("a link that is up is still missed")
		}
	}
}

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

func TestVerify(t *testing.T) {
	for name, c := range map[string]struct {
		sums []uint64
		lost bool // the digest; Query brings it
		want error
	}{
		"equal":  {sums: []uint64{1, 2}},
		"differ": {sums: []uint64{1, 0}, want: ErrCorrupt},
		"lost":   {sums: []uint64{1, 2}, lost: true},
		"never":  {want: ErrStalled},
	} {
		k := newDesk(t, func(c *DecoderConfig) { c.Verify, c.Tries = true, 1 }, "a")
		h := k.hosts["a"]
		h.mute[KindQuery] = true
		r := k.fetch("r1", 2, func(f *Fetch) { f.Blocks = hashes('x', 2) }, "a")
		seq := h.lastSeq()
		h.finish(seq)
		k.pass(100 * time.Millisecond)
		if len(k.ready) > 0 {
			t.Fatalf("%s: ready without a digest", name)
		}
		switch {
		case c.lost:
			k.pass(2 * time.Second)
			if len(of[*Query](h)) == 0 {
				t.Fatalf("%s: no query", name)
			}
			h.send(&State{[]AttemptState{{Seq: seq, Phase: PhaseTomb, Posted: 8, Exact: true, Sums: c.sums}}})
		case c.sums != nil:
			h.send(&Digest{seq, c.sums})
		}
		k.pass(6 * time.Second)
		if _, ok := k.ready[r]; ok != (c.want == nil) || !errors.Is(k.ended[r], c.want) {
			t.Errorf("%s: ready: %v, ended with %v", name, ok, k.ended[r])
		}
		if cached := k.d.cfg.Pools[0].Counts().Cached; c.want != nil && cached != 0 {
			t.Errorf("%s: %d pages cached", name, cached)
		}
		k.d.Release(k.now, r)
		k.idle()
	}
}

// TestNoProgressIsLostBetweenLookAndAwait: a write that is counted between the look at the count and Await.
func TestNoProgressIsLostBetweenLookAndAwait(t *testing.T) {
	k := newDesk(t, nil, "a")
	h := k.hosts["a"]
	r := k.fetch("r1", 3, nil, "a")
	seq := h.lastSeq()
	a := k.attempts[seq]
	h.write(seq, 4)
	sly := &slyOut{DecoderOut: k, await: func() { a.landed[h.peer] = 7 }} // as Await is called, three more come
	k.d.out = sly
	h.send(&Failed{CancelAck{seq, 9, true, h.granted}, CodeEngine, ""})
	k.run()
	k.d.out = k
	if sly.await != nil {
		t.Fatal("Await was not called")
	}
	h.write(seq, 2)
	k.run()
	if !k.attempts[seq].put {
		t.Error("the last write was not noticed")
	}
	k.d.Cancel(k.now, r, nil)
}

type slyOut struct {
	DecoderOut
	await func()
}

func (o *slyOut) Await(seq, more uint64) {
	if f := o.await; f != nil {
		o.await = nil
		f()
	}
	o.DecoderOut.Await(seq, more)
}

// TestOverrunEvictsThePeer: one that writes more than it was asked for may write anywhere.
func TestOverrunEvictsThePeer(t *testing.T) {
	k := newDesk(t, func(c *DecoderConfig) { c.Tries = 1 }, "a")
	h := k.hosts["a"]
	r := k.fetch("r1", 3, nil, "a")
	seq := h.lastSeq()
	k.attempts[seq].landed[h.peer] = 13
	k.d.Counted(k.now, seq)
	if k.attempts[seq].put {
		t.Fatal("the immediate was given back before the fence")
	}
	k.run()
	if s := k.d.Stats(); !errors.Is(k.ended[r], ErrProtocol) || s.Overruns != 1 || s.Fences != 1 {
		t.Errorf("ended with %v, %+v", k.ended[r], s)
	}
	k.idle()
}

// TestMalformedMessageEndsOneLink: with a fence, and nobody else notices.
func TestMalformedMessageEndsOneLink(t *testing.T) {
	k := newDesk(t, func(c *DecoderConfig) { c.Tries = 1 }, "a", "b")
	a, b := k.hosts["a"], k.hosts["b"]
	one := k.fetch("r1", 3, nil, "a")
	two := k.fetch("r2", 3, nil, "b")
	k.d.Message(k.now, 99, []byte("a stranger"))
	k.d.Message(k.now, a.peer, []byte("nonsense"))
	k.run()
	b.finish(b.lastSeq())
	if _, ok := k.ready[two]; !ok || !errors.Is(k.ended[one], ErrProtocol) || k.d.Stats().Malformed != 1 {
		t.Errorf("ended with %v and %v", k.ended[one], k.ended[two])
	}
	k.d.Release(k.now, two)
	k.idle()
}

// TestMessagesOfAnEndedEpochAreDropped: they would speak of attempts that they know nothing about.
func TestMessagesOfAnEndedEpochAreDropped(t *testing.T) { endedEpoch(t) }

func endedEpoch(t tb) {
	k := newDesk(t, nil, "a")
	h := k.hosts["a"]
	r := k.fetch("r1", 3, nil, "a")
	seq := h.lastSeq()
	h.sendAs(h.epoch-1, &Failed{CancelAck{seq, 0, true, 0}, CodeEngine, ""})
	h.sendAs(h.epoch+1, &Bye{})
	k.run()
	if k.d.Stats().Dropped != 2 || k.d.Stats().Live != 1 {
		t.Errorf("%+v", k.d.Stats())
	}
	h.finish(seq)
	k.d.Release(k.now, r)
	k.idle()
}

func TestTwoAddressesOfOnePrefiller(t *testing.T) {
	k := newDesk(t, nil, "a", "b")
	k.hosts["b"].peer = k.hosts["a"].peer
	k.fetch("r1", 1, nil, "a")
	r := k.fetch("r2", 1, nil, "b")
	if !errors.Is(k.ended[r], hawser.ErrBusy) {
		t.Errorf("ended with %v", k.ended[r])
	}
}

func TestByeFencesWhatIsLive(t *testing.T) {
	k := newDesk(t, nil, "a")
	h := k.hosts["a"]
	r := k.fetch("r1", 3, nil, "a")
	a := k.attempts[h.lastSeq()]
	h.send(&Bye{"closing"})
	a.landed[h.peer] = 12 // Bye overtook the last immediates
	k.run()
	if _, ok := k.ready[r]; !ok {
		t.Errorf("ended with %v", k.ended[r])
	}
	k.d.Release(k.now, r)
	k.idle()
}

// TestErrorsSayWho: texts for people.
func TestErrorsSayWho(t *testing.T) {
	k := newDesk(t, func(c *DecoderConfig) { c.Tries = 1 }, "a")
	h := k.hosts["a"]
	r := k.fetch("81f2", 3, nil, "a")
	h.write(h.lastSeq(), 5)
	h.mute[KindQuery] = true
	k.pass(10 * time.Second)
	for _, want := range []string{"request 81f2", "attempt 1", "stalled", "a owes 7 of 12 immediates"} {
		if !strings.Contains(fmt.Sprint(k.ended[r]), want) {
			t.Errorf("%q is not in %q", want, k.ended[r])
		}
	}
	var e *AttemptError
	if !errors.As(k.ended[r], &e) || len(e.Owes) != 1 || e.Owes[0].Landed != 5 || e.Pages != 3 {
		t.Errorf("%+v", e)
	}
}

func TestLiveListsEverything(t *testing.T) {
	k := newDesk(t, nil, "a")
	k.fetch("r1", 3, nil, "a")
	k.fetch("r2", deskPages, nil, "a")
	k.pass(time.Second)
	k.hosts["a"].write(1, 5) // too few for the machine to be told
	var rows []AttemptInfo
	k.d.Live(func(i AttemptInfo) { rows = append(rows, i) })
	if len(rows) != 2 || rows[0].Request != "r2" || rows[0].Waits != "pages" || rows[1].State != "active" || rows[1].Writers[0].Expected != 12 || rows[1].Writers[0].Landed != 5 || rows[1].Age != time.Second {
		t.Errorf("%+v", rows)
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
	if d.Groups[0].Span != (Span{0, 112}) || d.Groups[1].Span != (Span{64, 112}) || d.Groups[1].Pages[0].Logical != 4 || d.Expected != 4*(7+3) || d.Cost != 7+3 {
		t.Errorf("dispatch %+v", d)
	}
	h.finish(d.Seq)
	if res := k.ready[r]; len(res.Pages) != 2 || len(res.Pages[0]) != 7 || len(res.Pages[1]) != 3 || res.Spans[1] != (Span{64, 112}) {
		t.Errorf("result %+v", res)
	}
	k.d.Release(k.now, r)
	k.idle()
}

func TestWarm(t *testing.T) {
	k := newDesk(t, nil, "a", "b")
	k.hosts["b"].down = true
	a, b := k.d.Warm(k.now, "a"), k.d.Warm(k.now, "b")
	if up, err := k.d.LinkState(a); up || err != nil {
		t.Errorf("before the answer: %v, %v", up, err)
	}
	k.run()
	if up, err := k.d.LinkState(a); !up || err != nil {
		t.Errorf("a: %v, %v", up, err)
	}
	if up, err := k.d.LinkState(b); up || !errors.Is(err, hawser.ErrPeerDown) {
		t.Errorf("b: %v, %v", up, err)
	}
	k.hosts["b"].down = false
	k.pass(time.Second)
	if up, _ := k.d.LinkState(b); !up {
		t.Error("b does not come up")
	}
	if again := k.d.Warm(k.now, "a"); again != a || len(of[*Hello](k.hosts["a"])) != 1 {
		t.Error("a second link to the same address")
	}
	if k.d.Warm(k.now, "b"); k.d.Stats().Links != 2 {
		t.Errorf("%+v", k.d.Stats())
	}
	k.idle()
}

// TestPausesBetweenConnects: nobody is called all the time, and a request that wants the link does not wait for long.
func TestPausesBetweenConnects(t *testing.T) {
	k := newDesk(t, nil)
	calls := 0
	k.d.out = &connectOut{k, &calls}
	l := k.d.Warm(k.now, "nowhere")
	k.pass(10 * time.Minute)
	if calls < 20 || calls > 40 {
		t.Errorf("%d calls in 10 minutes, want one each 30 s in the end", calls)
	}
	h := k.host("nowhere", k.d.cfg.Topology, 0)
	k.pass(3 * time.Second)
	r := k.fetch("r1", 1, nil, "nowhere")
	k.pass(1100 * time.Millisecond)
	if up, err := k.d.LinkState(l); !up || len(of[*Dispatch](h)) != 1 {
		t.Fatalf("not up a second after the request: %v", err)
	}
	h.finish(h.lastSeq())
	k.d.Release(k.now, r)
	k.idle()
}

type connectOut struct {
	DecoderOut
	calls *int
}

func (o *connectOut) Connect(l Link, addr string) {
	*o.calls++
	o.DecoderOut.Connect(l, addr)
}

// TestStuckFenceEndsWhatHasNoAlternative: in bounded time, and not only at its deadline; and a new link comes with the proof.
func TestStuckFenceEndsWhatHasNoAlternative(t *testing.T) {
	k := newDesk(t, nil, "a")
	a := k.hosts["a"]
	one := k.fetch("r1", 3, nil, "a")
	a.unproven = true
	k.d.PeerDown(k.now, a.peer, nil) // frozen: the next session is with the same peer
	k.run()
	two := k.fetch("r2", 3, nil, "a")
	k.pass(20 * time.Second)
	if !errors.Is(k.ended[one], hawser.ErrUnfenced) || !errors.Is(k.ended[two], hawser.ErrUnfenced) {
		t.Errorf("ended with %v and %v", k.ended[one], k.ended[two])
	}
	if k.quiet[one] || !k.quiet[two] {
		t.Errorf("quiet: %v and %v", k.quiet[one], k.quiet[two])
	}
	a.unproven = false
	three := k.fetch("r3", 3, nil, "a")
	k.pass(2 * time.Second)
	a.finish(a.lastSeq())
	if _, ok := k.ready[three]; !ok {
		t.Errorf("ended with %v", k.ended[three])
	}
	k.d.Release(k.now, three)
	k.idle()
}

// TestSameEventsSameMessages: nothing depends on the order of a map.
func TestSameEventsSameMessages(t *testing.T) {
	var first []string
	for run := range 5 {
		k := newDesk(t, nil, "a", "b", "c")
		log := &logOut{DecoderOut: k}
		k.d.out = log
		for i := range 30 {
			k.fetch(fmt.Sprint(i), 1+i%3, func(f *Fetch) { f.Tail = i%4 == 0 }, string("abc"[i%3]), "a", "b")
		}
		k.hosts["a"].die()
		k.pass(3 * time.Second)
		k.d.Close(k.now)
		k.pass(3 * time.Second)
		if run == 0 {
			first = log.said
		}
		if !slices.Equal(log.said, first) {
			t.Fatalf("run %d says something else than the first one", run)
		}
	}
	if len(first) < 100 {
		t.Errorf("only %d effects", len(first))
	}
}

type logOut struct {
	DecoderOut
	said []string
}

func (o *logOut) Send(p Peer, data []byte) {
	o.said = append(o.said, fmt.Sprintf("%d %x", p, data))
	o.DecoderOut.Send(p, data)
}

func (o *logOut) Ended(r Request, err error) {
	o.said = append(o.said, fmt.Sprint("ended ", r, err))
	o.DecoderOut.Ended(r, err)
}

func (o *logOut) Note(n Note) {
	o.said = append(o.said, fmt.Sprintf("%d %d %s %s", n.Kind, n.Seq, n.From, n.To))
}

// TestUnexpectedIsCounted: what means nothing changes nothing, and can be seen.
func TestUnexpectedIsCounted(t *testing.T) {
	k := newDesk(t, nil, "a")
	h := k.hosts["a"]
	r := k.fetch("r1", 1, nil, "a")
	h.send(&Reject{Seq: h.lastSeq(), Code: CodeBusy}) // it has accepted
	k.run()
	var got []string
	k.d.Unexpected(func(state, event string, n uint64) { got = append(got, fmt.Sprint(state, " ", event, " ", n)) })
	if k.d.Stats().Unexpected != 1 || !slices.Equal(got, []string{"writer accepted reject 1"}) {
		t.Errorf("%+v, %v", k.d.Stats(), got)
	}
	h.finish(h.lastSeq())
	k.d.Release(k.now, r)
	k.idle()
}
