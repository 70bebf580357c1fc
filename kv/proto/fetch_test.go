package proto

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv/layout"
	"github.com/hawser-project/hawser/kv/pool"
)

// hashes are of blocks that nobody else has.
func hashes(name byte, n int) (all []pool.Hash) {
	for i := range n {
		all = append(all, pool.Hash{name, byte(i), 1})
	}
	return all
}

func TestFetchTheUsualWay(t *testing.T) {
	k := newDesk(t, nil, "a")
	h := k.hosts["a"]
	r := k.fetch("r1", 3, func(f *Fetch) { f.Tail, f.Trace = true, [16]byte{9} }, "a")
	m := of[*Dispatch](h)[0]
	if m.Request != "r1" || m.Try != 1 || m.Expected != 4*4+1 || m.Cost != 4 || m.Imm != uint32(m.Seq) || !m.Tail || m.Trace != [16]byte{9} || m.Remaining != DefaultDeadline {
		t.Errorf("dispatch %+v", m)
	}
	if g := m.Groups[0]; g.Span != (Span{First: 0, N: 49}) || len(k.attempts[m.Seq].pages) != 4 {
		t.Errorf("dispatch of span %v, %d pages", g.Span, len(k.attempts[m.Seq].pages))
	}
	pair, err := layout.NewPair(h.topology, k.d.cfg.Topology, k.d.cfg.Options)
	if err != nil {
		t.Fatal(err)
	}
	if p, err := pair.Plan(pair.Spans(0, 49), m.Seq); err != nil || p.Digest() != m.Plan {
		t.Errorf("plan %x, %v, want the same as in the dispatch, %x", p.Digest(), err, m.Plan)
	}
	h.write(m.Seq, 16)
	k.pass(time.Second)
	if len(k.ready) > 0 {
		t.Fatal("ready before the last write")
	}
	h.finish(m.Seq)
	res := k.ready[r]
	if len(res.Pages) != 1 || len(res.Pages[0]) != 4 || res.Writes != 17 || res.Try != 1 || !k.quiet[r] || !k.d.TailIs(res.Tail) || int64(res.Tail.Slot) != k.attempts[m.Seq].tail {
		t.Errorf("result %+v, quiet: %v", res, k.quiet[r])
	}
	k.d.Release(k.now, r)
	k.d.Release(k.now, r)
	if k.d.TailIs(res.Tail) {
		t.Error("the tail is still there after the release")
	}
	k.idle()
}

// TestOnlyMissingPagesAreFetched: what a request left in the cache is not fetched again, and not lent while it is used.
func TestOnlyMissingPagesAreFetched(t *testing.T) {
	k := newDesk(t, nil, "a")
	h := k.hosts["a"]
	blocks := hashes('x', 4)
	one := k.fetch("r1", 3, func(f *Fetch) { f.Blocks = blocks[:3] }, "a")
	h.finish(h.lastSeq())
	two := k.fetch("r2", 4, func(f *Fetch) { f.Blocks = blocks }, "a")
	m := of[*Dispatch](h)[1]
	if g := m.Groups[0]; g.Span != (Span{First: 48, N: 64}) || len(g.Pages) != 1 || g.Pages[0].Logical != 3 || m.Expected != 4 || m.Cost != 4 {
		t.Errorf("dispatch %+v", m)
	}
	h.finish(m.Seq)
	first, second := k.ready[one], k.ready[two]
	if second.Prefix != 48 || fmt.Sprint(second.Pages[0][:3]) != fmt.Sprint(first.Pages[0]) {
		t.Errorf("pages %v after %v, prefix %d", second.Pages, first.Pages, second.Prefix)
	}
	three := k.fetch("r3", 4, func(f *Fetch) { f.Blocks = blocks }, "a") // nothing is missing
	if _, told := k.ready[three]; told {
		t.Error("ready before Fetch returned its number")
	}
	k.pass(0)
	if res := k.ready[three]; res.Prefix != 64 || res.Try != 0 || len(of[*Dispatch](h)) != 2 || !k.quiet[three] {
		t.Errorf("result %+v, %d dispatches", res, len(of[*Dispatch](h)))
	}
	for _, r := range []Request{one, two, three} {
		k.d.Release(k.now, r)
	}
	k.idle()
	if c := k.d.cfg.Pools[0].Counts(); c.Cached != 4 {
		t.Errorf("pages %+v, want 4 cached", c)
	}
}

// TestPagesArePublishedOnlyWhenReady: a request that failed leaves nothing to be found.
func TestPagesArePublishedOnlyWhenReady(t *testing.T) { publishedWhenReady(t) }

func publishedWhenReady(t tb) {
	k := newDesk(t, func(c *DecoderConfig) { c.Tries = 1 }, "a")
	h := k.hosts["a"]
	r := k.fetch("r1", 3, func(f *Fetch) { f.Blocks = hashes('x', 3) }, "a")
	h.write(h.lastSeq(), 11)
	h.fail(h.lastSeq(), CodeEngine, true)
	var e *FailedError
	if !errors.As(k.ended[r], &e) || e.Code != CodeEngine {
		t.Errorf("ended with %v", k.ended[r])
	}
	k.idle()
	if c := k.d.cfg.Pools[0].Counts(); c.Cached != 0 {
		t.Errorf("pages %+v, want none cached", c)
	}
}

func TestCancelKeepsPagesUntilTheAnswer(t *testing.T) { cancelKeepsPages(t) }

func cancelKeepsPages(t tb) {
	k := newDesk(t, nil, "a")
	h := k.hosts["a"]
	h.mute[KindCancel] = true
	r := k.fetch("r1", 3, nil, "a")
	seq := h.lastSeq()
	h.write(seq, 5)
	k.d.Cancel(k.now, r, errors.New("not wanted"))
	k.run()
	if !errors.Is(k.ended[r], ErrCancelled) || k.quiet[r] {
		t.Fatalf("ended with %v, quiet: %v", k.ended[r], k.quiet[r])
	}
	k.pass(time.Second) // the Cancel is repeated
	if n := len(of[*Cancel](h)); n < 4 || n > 8 {
		t.Errorf("%d cancels in a second, want about 5", n)
	}
	h.send(&CancelAck{seq, 7, true, h.granted})
	k.run()
	if k.quiet[r] {
		t.Fatal("quiet while two writes are on their way")
	}
	h.write(seq, 2)
	k.run()
	if !k.quiet[r] {
		t.Fatal("not quiet")
	}
	k.idle()
}

// TestCancelledPagesAreNotLent: the request has let go of them, the writer has not.
func TestCancelledPagesAreNotLent(t *testing.T) { cancelledPages(t) }

func cancelledPages(t tb) {
	k := newDesk(t, nil, "a", "b")
	a, b := k.hosts["a"], k.hosts["b"]
	a.mute[KindCancel] = true
	r := k.fetch("r1", 3, nil, "a")
	k.d.Cancel(k.now, r, nil)
	k.fetch("r2", deskPages, nil, "b")
	k.pass(time.Second)
	if len(of[*Dispatch](b)) > 0 {
		t.Fatal("lent before the answer")
	}
	a.send(&CancelAck{a.lastSeq(), 0, true, a.granted})
	k.run()
	if len(of[*Dispatch](b)) == 0 {
		t.Fatal("not lent after the answer")
	}
}

func TestUnansweredCancelIsFenced(t *testing.T) {
	k := newDesk(t, nil, "a")
	h := k.hosts["a"]
	h.mute[KindCancel] = true
	r := k.fetch("r1", 3, nil, "a")
	k.d.Cancel(k.now, r, nil)
	k.pass(4900 * time.Millisecond)
	if k.quiet[r] || k.d.Stats().LostCancels != 0 {
		t.Fatal("given up too early")
	}
	k.pass(200 * time.Millisecond)
	if s := k.d.Stats(); !k.quiet[r] || s.LostCancels != 1 || s.Fences != 1 {
		t.Errorf("quiet: %v, %+v", k.quiet[r], s)
	}
	k.idle()
}

func TestPostedWritesThatDoNotComeAreFenced(t *testing.T) {
	k := newDesk(t, func(c *DecoderConfig) { c.Tries = 1 }, "a")
	h := k.hosts["a"]
	r := k.fetch("r1", 3, nil, "a")
	h.send(&Failed{CancelAck{h.lastSeq(), 5, true, h.granted}, CodeEngine, ""})
	k.pass(900 * time.Millisecond)
	if k.quiet[r] {
		t.Fatal("quiet although writes are to come")
	}
	k.pass(200 * time.Millisecond)
	if s := k.d.Stats(); !k.quiet[r] || s.SettleTimeouts != 1 || s.Fences != 1 {
		t.Errorf("quiet: %v, %+v", k.quiet[r], s)
	}
	k.idle()
}

// TestLossOfTheLinkCostsNothingWhenAllHasLanded: the last immediates may be counted after the peer's death.
func TestLossOfTheLinkCostsNothingWhenAllHasLanded(t *testing.T) { lossOfTheLink(t) }

func lossOfTheLink(t tb) {
	k := newDesk(t, nil, "a")
	h := k.hosts["a"]
	r := k.fetch("r1", 3, nil, "a")
	a := k.attempts[h.lastSeq()]
	h.down = true
	k.d.PeerDown(k.now, h.peer, nil)
	a.landed[h.peer] = a.expected[h.peer] // and no Counted
	k.run()
	if res, ok := k.ready[r]; !ok || res.Try != 1 {
		t.Fatalf("ended with %v", k.ended[r])
	}
	k.d.Release(k.now, r)
	k.idle()
}

func TestDeadPeerIsRetriedElsewhere(t *testing.T) {
	k := newDesk(t, nil, "a", "b")
	a, b := k.hosts["a"], k.hosts["b"]
	r := k.fetch("r1", 3, nil, "a", "b")
	a.write(a.lastSeq(), 5)
	a.die()
	k.pass(time.Millisecond)
	m := of[*Dispatch](b)[0]
	if m.Try != 2 || m.Seq == a.lastSeq() || m.Imm == of[*Dispatch](a)[0].Imm {
		t.Errorf("second try %+v", m)
	}
	b.finish(m.Seq)
	if res := k.ready[r]; res.Try != 2 {
		t.Errorf("result %+v", res)
	}
	k.d.Release(k.now, r)
	k.idle()
}

// TestRestartedPrefillerRejoins: another identity at the same address.
func TestRestartedPrefillerRejoins(t *testing.T) {
	k := newDesk(t, nil, "a")
	h := k.hosts["a"]
	k.d.Warm(k.now, "a")
	k.run()
	old := h.epoch
	r := k.fetch("r1", 3, nil, "a")
	h.die()
	k.pass(2 * time.Second)
	h.start()
	k.pass(2 * time.Second)
	if h.epoch <= old {
		t.Fatalf("epoch %d after %d: no new hello", h.epoch, old)
	}
	k.pass(time.Second)
	if _, waits := k.ended[r]; waits {
		t.Logf("the request ended meanwhile: %v", k.ended[r])
	} else {
		h.finish(h.lastSeq())
		k.d.Release(k.now, r)
	}
	k.idle()
}

// TestUnprovenFenceQuarantines: the caller's request goes on with other pages, the old ones wait for the proof.
func TestUnprovenFenceQuarantines(t *testing.T) { unprovenFence(t) }

func unprovenFence(t tb) {
	k := newDesk(t, func(c *DecoderConfig) { c.QuarantineMax = 2 }, "a", "b")
	a, b := k.hosts["a"], k.hosts["b"]
	r := k.fetch("r1", 3, nil, "a", "b")
	seq := a.lastSeq()
	a.unproven = true
	a.die()
	k.pass(time.Second)
	if h := k.d.Health(); h.Quarantined != 3 || h.Stuck != 1 || !h.Degraded() || !h.Exceeded {
		t.Errorf("health %+v", h)
	}
	if c := k.d.cfg.Pools[0].Counts(); c.Quarantined != 3 {
		t.Errorf("pages %+v", c)
	}
	b.finish(b.lastSeq())
	if res := k.ready[r]; res.Try != 2 || k.quiet[r] {
		t.Errorf("result %+v, quiet: %v although the first attempt may be written", res, k.quiet[r])
	}
	k.d.Release(k.now, r)
	a.write(seq, 2) // it goes on
	k.pass(5 * time.Second)
	if n := k.d.Stats().Unfenced; n < 5 || n > 8 {
		t.Errorf("%d tries without a proof in 6 s, want one a second", n)
	}
	a.unproven = false
	k.pass(1100 * time.Millisecond)
	if h := k.d.Health(); h.Degraded() || !k.quiet[r] {
		t.Errorf("health %+v, quiet: %v", h, k.quiet[r])
	}
	k.idle()
}

// TestSignOfLifeRetriesTheFence: at once, not when the pause is over.
func TestSignOfLifeRetriesTheFence(t *testing.T) {
	k := newDesk(t, func(c *DecoderConfig) { c.Tries = 1 }, "a")
	a := k.hosts["a"]
	r := k.fetch("r1", 3, nil, "a")
	a.unproven = true
	a.die()
	a.unproven = false
	a.sendAs(a.epoch, &Beat{})
	k.run()
	if !k.quiet[r] {
		t.Error("not quiet")
	}
	if !errors.Is(k.ended[r], hawser.ErrUnfenced) || !errors.Is(k.ended[r], hawser.ErrPeerDown) {
		t.Errorf("ended with %v", k.ended[r])
	}
	k.idle()
}

// TestCallersPagesAreNotWrittenTwice: when a fence has no proof, a request with pages of the caller's must end.
func TestCallersPagesAreNotWrittenTwice(t *testing.T) {
	k := newDesk(t, nil, "a", "b")
	a := k.hosts["a"]
	r := k.fetch("r1", 3, func(f *Fetch) { f.Pages = [][]uint32{{5, 6, 9}} }, "a", "b")
	if g := of[*Dispatch](a)[0].Groups[0]; len(g.Pages) != 2 || g.Pages[0] != (Extent{0, 5, 2}) || g.Pages[1] != (Extent{2, 9, 1}) {
		t.Errorf("pages %v", g.Pages)
	}
	a.unproven = true
	a.die()
	if !errors.Is(k.ended[r], hawser.ErrUnfenced) || k.quiet[r] || len(of[*Dispatch](k.hosts["b"])) > 0 {
		t.Errorf("ended with %v, quiet: %v", k.ended[r], k.quiet[r])
	}
	a.unproven = false
	k.pass(2 * time.Second)
	if !k.quiet[r] {
		t.Error("not quiet")
	}
	k.idle()
}

func TestInexactAnswerIsFenced(t *testing.T) {
	k := newDesk(t, func(c *DecoderConfig) { c.Tries = 1 }, "a")
	h := k.hosts["a"]
	one := k.fetch("r1", 3, nil, "a")
	two := k.fetch("r2", 3, nil, "a")
	h.fail(1, CodeTransfer, false)
	k.run()
	if s := k.d.Stats(); s.Fences != 1 || !k.quiet[one] || !k.quiet[two] {
		t.Errorf("%+v, quiet: %v %v: a fence ends all attempts of the peer", s, k.quiet[one], k.quiet[two])
	}
	k.idle()
}

func TestDispatchIsRepeatedAndStallEndsIt(t *testing.T) {
	k := newDesk(t, func(c *DecoderConfig) { c.Tries = 1 }, "a")
	h := k.hosts["a"]
	h.mute[KindDispatch] = true
	r := k.fetch("r1", 3, nil, "a")
	k.pass(3 * time.Second)
	if n := len(of[*Dispatch](h)); n != 5 { // 0, .2, .6, 1.4, 2.4
		t.Errorf("%d dispatches in 3 s", n)
	}
	k.pass(2100 * time.Millisecond)
	if !errors.Is(k.ended[r], ErrStalled) {
		t.Errorf("ended with %v", k.ended[r])
	}
	k.idle()
}

// TestQueueIsNoStall: P says that the attempt is alive, however long that takes.
func TestQueueIsNoStall(t *testing.T) {
	k := newDesk(t, nil, "a")
	h := k.hosts["a"]
	r := k.fetch("r1", 3, nil, "a")
	k.pass(time.Minute)
	if err := k.ended[r]; err != nil {
		t.Fatal(err)
	}
	if n := len(of[*Query](h)); n < 25 || n > 31 {
		t.Errorf("%d queries in a minute, want one each 2 s", n)
	}
	h.mute[KindQuery] = true
	k.pass(8 * time.Second)
	if n := k.d.Stats().Retries; n != 1 {
		t.Errorf("%d retries, want one after the stall", n)
	}
	k.d.Cancel(k.now, r, nil)
	k.pass(time.Second)
	k.idle()
}

// TestQueriesAreBatched: one message for many attempts.
func TestQueriesAreBatched(t *testing.T) {
	k := newDesk(t, nil, "a")
	h := k.hosts["a"]
	for i := range 20 {
		k.fetch(fmt.Sprint(i), 3, nil, "a")
	}
	k.pass(1900 * time.Millisecond)
	if all := of[*Query](h); len(all) != 1 || len(all[0].Seqs) != 20 {
		t.Errorf("queries %v", all)
	}
}

// TestTombHealsALostAnswer: a Failed that was lost.
func TestTombHealsALostAnswer(t *testing.T) {
	k := newDesk(t, func(c *DecoderConfig) { c.Tries = 1 }, "a")
	h := k.hosts["a"]
	h.mute[KindQuery] = true
	r := k.fetch("r1", 3, nil, "a")
	seq := h.lastSeq()
	h.write(seq, 3)
	k.pass(2 * time.Second)
	h.send(&State{[]AttemptState{{Seq: seq, Phase: PhaseTomb, Posted: 3, Exact: true, Code: CodeProgress}}})
	k.run()
	var e *FailedError
	if !errors.As(k.ended[r], &e) || e.Code != CodeProgress || !k.quiet[r] {
		t.Errorf("ended with %v", k.ended[r])
	}
	k.idle()
}

func TestDeadline(t *testing.T) {
	k := newDesk(t, nil, "a")
	r := k.fetch("r1", 3, func(f *Fetch) { f.Deadline = k.now + 3*time.Second }, "a")
	waits := k.fetch("r2", 3, func(f *Fetch) { f.Deadline = k.now + 3*time.Second }, "nowhere")
	k.pass(2999 * time.Millisecond)
	if k.ended[r] != nil {
		t.Fatal(k.ended[r])
	}
	k.pass(2 * time.Millisecond)
	if !errors.Is(k.ended[r], ErrDeadline) || k.ended[waits] == nil {
		t.Errorf("ended with %v and %v", k.ended[r], k.ended[waits])
	}
	k.idle()
}

// TestTwoWriters: a prefill instance of two members, each with one of two ranks.
func TestTwoWriters(t *testing.T) {
	k := newDesk(t, func(c *DecoderConfig) { c.Tries = 2 })
	topology := deskTopology(t, deskPages, 2, 2)
	a, b := k.host("a", topology, 0), k.host("b", topology, 1)
	both := func(f *Fetch) { f.From, f.Tail = []Source{{[]string{"a", "b"}}}, true }
	r := k.fetch("r1", 3, both)
	ma, mb := of[*Dispatch](a)[0], of[*Dispatch](b)[0]
	if ma.Seq != mb.Seq || ma.Expected != 4*4+1 || mb.Expected != 4*4 || ma.Plan != mb.Plan {
		t.Errorf("dispatches %+v and %+v", ma, mb)
	}
	a.finish(ma.Seq)
	if len(k.ready) > 0 {
		t.Fatal("ready with one of two writers")
	}
	b.finish(mb.Seq)
	k.d.Release(k.now, r)
	k.idle()

	// One fails: the other one is cancelled, and only then there is another attempt.
	r = k.fetch("r2", 3, both)
	seq := a.lastSeq()
	b.mute[KindCancel] = true
	a.fail(seq, CodeEngine, true)
	k.pass(time.Second)
	if a.lastSeq() != seq || len(of[*Cancel](b)) == 0 {
		t.Fatal("tried again while the other one may write, or it was not cancelled")
	}
	b.write(seq, 3)
	b.send(&CancelAck{seq, 3, true, 0})
	k.pass(time.Second)
	if a.lastSeq() == seq || b.lastSeq() != a.lastSeq() {
		t.Fatalf("no second attempt")
	}
	a.finish(a.lastSeq())
	b.finish(a.lastSeq())
	if k.ready[r].Try != 2 {
		t.Errorf("result %+v, ended with %v", k.ready[r], k.ended[r])
	}
	k.d.Release(k.now, r)
	k.idle()
}

// TestWrongMembersAreRefused: the addresses must be those of one instance, in its order.
func TestWrongMembersAreRefused(t *testing.T) {
	k := newDesk(t, nil)
	topology := deskTopology(t, deskPages, 2, 2)
	k.host("a", topology, 0)
	k.host("b", topology, 1).instance = "other"
	for i, from := range [][]string{{"a", "b"}, {"b", "a"}, {"a"}} {
		r := k.fetch(fmt.Sprint(i), 3, func(f *Fetch) { f.From = []Source{{from}} })
		k.pass(time.Second)
		var e *MismatchError
		if !errors.As(k.ended[r], &e) {
			t.Errorf("%v: ended with %v", from, k.ended[r])
		}
	}
	k.idle()
}

func TestHelloIsRepeatedAndRefused(t *testing.T) {
	k := newDesk(t, nil, "a")
	h := k.hosts["a"]
	h.mute[KindHello] = true
	r := k.fetch("r1", 3, nil, "a")
	k.pass(3 * time.Second)
	if n := len(of[*Hello](h)); n != 5 {
		t.Errorf("%d hellos in 3 s", n)
	}
	h.mute[KindHello] = false
	h.refuse = &HelloReject{Code: CodeMismatch, Field: "fingerprint", Here: "p", There: "d"}
	k.pass(2 * time.Second)
	var e *MismatchError
	if !errors.As(k.ended[r], &e) || e.Here != "d" || e.There != "p" {
		t.Errorf("ended with %v", k.ended[r])
	}
	k.idle()
}

// TestSlowHelloIsolated: a prefiller that does not answer holds up nobody who wants another.
func TestSlowHelloIsolated(t *testing.T) {
	k := newDesk(t, nil, "slow", "b")
	k.hosts["slow"].mute[KindHello] = true
	slow := k.fetch("r1", 3, nil, "slow")
	b := k.hosts["b"]
	r := k.fetch("r2", 3, nil, "b")
	b.finish(b.lastSeq())
	k.d.Release(k.now, r)
	k.pass(time.Minute)
	if !errors.Is(k.ended[slow], hawser.ErrPeerDown) {
		t.Errorf("ended with %v", k.ended[slow])
	}
	k.idle()
}

// TestDetach: a member of several that will not dispatch says so, until it is answered.
func TestDetach(t *testing.T) {
	k := newDesk(t, func(c *DecoderConfig) {
		c.Topology, c.Member, c.Pools = deskTopology(t, deskPages, 2, 2), 1, nil
	}, "a")
	h := k.hosts["a"]
	k.d.Warm(k.now, "a")
	k.run()
	h.mute[KindCancel] = true
	r := k.fetch("r1", 0, func(f *Fetch) { f.Pages = [][]uint32{{}} }, "a") // one token, which the decoder computes itself
	k.pass(150 * time.Millisecond)
	all := of[*Cancel](h)
	if _, ok := k.ready[r]; !ok || len(all) < 2 || all[0].Request != "r1" || all[0].Cost != 0 {
		t.Fatalf("cancels %v, ready: %v", all, ok)
	}
	if h.lowWater != all[0].Seq {
		t.Errorf("low water %d, the detach is %d and not answered", h.lowWater, all[0].Seq)
	}
	h.send(&CancelAck{all[0].Seq, 0, true, 0})
	k.pass(time.Minute)
	if n := len(of[*Cancel](h)); n != len(all) {
		t.Errorf("%d cancels after the answer to %d", n, len(all))
	}
	if h.lowWater <= all[0].Seq {
		t.Errorf("low water %d after the answer", h.lowWater)
	}
	k.d.Release(k.now, r)
	k.idle()
}

func TestOtherMembersPayNothing(t *testing.T) {
	k := newDesk(t, func(c *DecoderConfig) {
		c.Topology, c.Member, c.Pools = deskTopology(t, deskPages, 2, 2), 1, nil
	}, "a")
	h := k.hosts["a"]
	h.granted = 0
	k.fetch("r1", 2, func(f *Fetch) { f.Pages = [][]uint32{{1, 2}} }, "a")
	if m := of[*Dispatch](h)[0]; m.Cost != 0 || m.Expected != 8 {
		t.Errorf("dispatch %+v", m)
	}
}

func TestDrainAndClose(t *testing.T) { fetchDrain(t) }

func fetchDrain(t tb) {
	k := newDesk(t, nil, "a")
	h := k.hosts["a"]
	r := k.fetch("r1", 3, nil, "a")
	k.d.Drain(k.now)
	k.run()
	if _, err := k.d.Fetch(k.now, Fetch{ID: "r2", Prompt: Prompt{Tokens: 3}, From: []Source{{[]string{"a"}}}}); !errors.Is(err, ErrDraining) {
		t.Errorf("fetch: %v", err)
	}
	if len(of[*Drain](h)) != 1 || len(of[*Bye](h)) != 0 || k.d.Done() {
		t.Errorf("%d drains, %d byes while an attempt is live", len(of[*Drain](h)), len(of[*Bye](h)))
	}
	h.finish(h.lastSeq())
	if n := len(h.heads); len(of[*Bye](h)) != 1 || h.heads[n-1].LowWater != h.heads[n-1].Next {
		t.Errorf("%d byes, last head %+v", len(of[*Bye](h)), h.heads[n-1])
	}
	k.d.Release(k.now, r)
	if !k.d.Done() || !k.d.Health().Draining {
		t.Error("not done")
	}
	k.idle()
}

func TestCloseCancelsAll(t *testing.T) {
	k := newDesk(t, nil, "a")
	h := k.hosts["a"]
	one := k.fetch("r1", 3, nil, "a")
	two := k.fetch("r2", deskPages-1, nil, "a") // waits for pages
	k.d.Close(k.now)
	k.run()
	for _, r := range []Request{one, two} {
		if !errors.Is(k.ended[r], hawser.ErrClosed) || !k.quiet[r] {
			t.Errorf("ended with %v, quiet: %v", k.ended[r], k.quiet[r])
		}
	}
	if len(of[*Bye](h)) != 1 || !k.d.Done() {
		t.Errorf("%d byes", len(of[*Bye](h)))
	}
	k.idle()
}

// TestRefusedAtOnce: what can never work is an error of Fetch, and holds nothing.
func TestRefusedAtOnce(t *testing.T) {
	k := newDesk(t, func(c *DecoderConfig) { c.TailSlots, c.TailBytes, c.Queue = 0, 0, 1 }, "a")
	good := Fetch{ID: "r", Prompt: Prompt{Tokens: 30}, From: []Source{{[]string{"a"}}}}
	for name, c := range map[string]struct {
		change func(*Fetch)
		want   error
	}{
		"id":          {func(f *Fetch) { f.ID = "" }, hawser.ErrInvalid},
		"prompt":      {func(f *Fetch) { f.Prompt.Tokens = 0 }, hawser.ErrInvalid},
		"ids":         {func(f *Fetch) { f.Prompt.IDs = []uint32{1} }, hawser.ErrInvalid},
		"too long":    {func(f *Fetch) { f.Prompt.Tokens = 16*deskPages + 2 }, hawser.ErrLimit},
		"no source":   {func(f *Fetch) { f.From = nil }, hawser.ErrInvalid},
		"twice":       {func(f *Fetch) { f.From = []Source{{[]string{"a", "a"}}} }, hawser.ErrInvalid},
		"tail":        {func(f *Fetch) { f.Tail = true }, hawser.ErrInvalid},
		"deadline":    {func(f *Fetch) { f.Deadline = k.now }, ErrDeadline},
		"pages":       {func(f *Fetch) { f.Pages = [][]uint32{{1}} }, hawser.ErrInvalid},
		"page number": {func(f *Fetch) { f.Pages = [][]uint32{{1, deskPages}} }, hawser.ErrInvalid},
		"span":        {func(f *Fetch) { f.Pages, f.Spans = [][]uint32{{1, 2}}, []Span{{First: 3, N: 29}} }, hawser.ErrInvalid},
	} {
		f := good
		c.change(&f)
		if _, err := k.d.Fetch(k.now, f); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	k.idle()
	k.fetch("r1", deskPages, nil, "a")
	k.fetch("r2", deskPages, nil, "a")
	if _, err := k.d.Fetch(k.now, good); !errors.Is(err, hawser.ErrLimit) {
		t.Errorf("the queue is full: %v", err)
	}
}
