package kv_test

import (
	"errors"
	"testing"
	"time"

	"github.com/hawser-project/hawser/kv/layout"
	"github.com/hawser-project/hawser/kv/pool"
	"github.com/hawser-project/hawser/kv/proto"
)

// Bugs that others had and reported in public. Each test is about the mechanism that rules the bug out here, and fails without it. The
// reports stand above the tests. This file: who may write what when. regress_link_test.go: who talks to whom. regress_load_test.go: under
// load, and at the end.

// sglang#24527, #32564: after aborts a request decoded the text of another one. An aborted request's pages have a second holder, the writer.
func TestReg01AbortedPageNotReused(t *testing.T) {
	r := newDecodeRig(t, 8)
	r.ask("old", 8, nil, "a")
	r.link(1)
	old := one[*proto.Dispatch](&r.sayings, 1)
	r.say(1, &proto.Accept{Seq: old.Seq})
	next := r.ask("next", 8, nil, "a") // wants the same pages
	r.m.Cancel(r.now, 1, nil)
	r.pass(2 * time.Second)
	if n := len(heard[*proto.Dispatch](&r.sayings, 1)); n != 0 {
		t.Fatalf("pages that may still be written are lent to another request: %d dispatches", n)
	}
	r.land(old.Seq, 1, 3) // still writing
	r.say(1, &proto.CancelAck{Seq: old.Seq, Posted: 5, Exact: true})
	if n := len(heard[*proto.Dispatch](&r.sayings, 1)); n != 0 {
		t.Fatal("pages are lent to another request although two writes are on their way")
	}
	r.land(old.Seq, 1, 2)
	d := one[*proto.Dispatch](&r.sayings, 1)
	r.land(d.Seq, 1, 8*tinyWrites)
	if _, ok := r.ready[next]; !ok {
		t.Error("the other request is not ready")
	}
	r.m.Release(r.now, next)
	r.allFree()
}

// sglang#38961, #35049: the answer to an abort never came when the job was gone, so that a timer was the usual way to get pages back.
func TestReg02CancelAlwaysAnswered(t *testing.T) {
	r := newPrefillRig(t, layout.Spec{Model: tiny, Pages: 64})
	r.link(1, "d", layout.Spec{Model: tiny, Pages: 64})
	cancel := func(what string, seq, posted uint64) {
		t.Helper()
		r.say(1, &proto.Cancel{Seq: seq})
		if ack := one[*proto.CancelAck](&r.sayings, 1); ack.Seq != seq || ack.Posted != posted || !ack.Exact {
			t.Errorf("%s: %+v, want %d posted of attempt %d", what, ack, posted, seq)
		}
	}
	overtaken := r.dispatch(1, "overtaken", proto.Span{N: 4})
	cancel("before its dispatch", overtaken.Seq, 0)
	r.say(1, overtaken)
	if heard[*proto.Accept](&r.sayings, 1) != nil || len(r.jobs) != 0 {
		t.Error("a dispatch that its cancel has overtaken is accepted")
	}
	queued, j := r.asked(1, "queued", proto.Span{N: 4})
	cancel("queued", queued, 0)
	r.compute(j, 4)
	if len(r.posts) != 0 {
		t.Error("it is written after the answer")
	}
	done, j := r.asked(1, "done", proto.Span{N: 4})
	r.compute(j, 4)
	r.completeAll()
	cancel("done, and its job gone", done, tinyWrites)
	cancel("again", done, tinyWrites)
	failed, j := r.asked(1, "failed", proto.Span{N: 4})
	r.m.Fail(r.now, j, proto.CodeEngine, "test")
	cancel("failed", failed, 0)
	refused := r.dispatch(1, "refused", proto.Span{N: 4}, func(m *proto.Dispatch) { m.Remaining = 0 })
	r.say(1, refused)
	one[*proto.Reject](&r.sayings, 1)
	cancel("refused", refused.Seq, 0)
	admit := r.admit
	r.admit = func(*proto.JobInfo) proto.Admission {
		return proto.Admission{Verdict: proto.AdmitRefused, Code: proto.CodeBusy, Text: "test"}
	}
	busy := r.dispatch(1, "busy", proto.Span{N: 4})
	r.say(1, busy)
	one[*proto.Reject](&r.sayings, 1)
	r.admit = admit
	r.say(1, busy) // repeated, when there is room and the pages are another's
	one[*proto.Reject](&r.sayings, 1)
	cancel("refused by the engine", busy.Seq, 0)
	if s := r.m.Stats(); s.Jobs != 0 || s.Attempts != 0 {
		t.Errorf("something is live at the end: %+v", s)
	}
}

// vllm#50754, sglang#36033, #36108, #30329: the decode side waited 300 s for a write that was never posted. Whatever keeps the prefill side
// from writing is said at once.
func TestReg06ShortfallEndsAttempt(t *testing.T) {
	for _, c := range []struct {
		name  string
		exact bool
		do    func(r *prefillRig, j proto.JobID)
	}{
		{"the inference engine gives up", true, func(r *prefillRig, j proto.JobID) { r.m.Fail(r.now, j, proto.CodeEngine, "out of memory") }},
		{"a write fails", false, func(r *prefillRig, _ proto.JobID) { r.complete(errInjected) }},
		{"a progress word of a pass that nobody began", true, func(r *prefillRig, _ proto.JobID) { r.m.Progress(r.now, 0, 1<<40) }},
		{"the deadline", true, func(r *prefillRig, _ proto.JobID) { r.pass(2 * time.Minute) }},
		{"a gap between passes", true, func(r *prefillRig, j proto.JobID) {
			p, _, err := r.m.Begin(r.now, []proto.PassSpan{{Job: j, Span: proto.Span{First: 40, N: 60}}})
			if err != nil {
				r.t.Fatal(err)
			}
			r.m.PassEnd(r.now, p)
		}},
		{"the prefiller closes", true, func(r *prefillRig, _ proto.JobID) { r.m.Close(r.now) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newPrefillRig(t, layout.Spec{Model: tiny, Pages: 64})
			r.link(1, "d", layout.Spec{Model: tiny, Pages: 64})
			seq, j := r.asked(1, "r", proto.Span{N: 100})
			pass, _, err := r.m.Begin(r.now, []proto.PassSpan{{Job: j, Span: proto.Span{N: 20}}})
			if err != nil {
				t.Fatal(err)
			}
			r.m.LayerReady(r.now, pass, 0, 0) // five pages of one layer
			for len(r.posts) > 1 {
				r.complete(nil)
			}
			ok := uint64(r.writes - r.outstanding())
			c.do(r, j)
			if len(r.posts) > 0 {
				if len(heard[*proto.Failed](&r.sayings, 1)) != 0 {
					t.Fatal("said with a write outstanding")
				}
				ok += uint64(r.outstanding())
				r.complete(nil)
			}
			if m := one[*proto.Failed](&r.sayings, 1); m.Seq != seq || m.Posted != ok || m.Exact != c.exact {
				t.Errorf("%+v, want %d posted, exact %v", m, ok, c.exact)
			}
			r.held(j, 0)
		})
	}
	// And the decoder believes it at once.
	r := newDecodeRig(t, 8)
	q := r.ask("r", 2, nil, "a")
	r.link(1)
	d := one[*proto.Dispatch](&r.sayings, 1)
	r.land(d.Seq, 1, 3)
	r.say(1, &proto.Failed{CancelAck: proto.CancelAck{Seq: d.Seq, Posted: 3, Exact: true}, Code: proto.CodeInvalid, Text: "test"})
	var failed *proto.FailedError
	if !errors.As(r.ended[q], &failed) || !r.quiet[q] {
		t.Errorf("ended with %v, quiet %v", r.ended[q], r.quiet[q])
	}
	r.allFree()
}

// vllm#56104: the first part of a transfer that failed freed the pages while its siblings were still being written.
func TestReg07SiblingsDrainFirst(t *testing.T) {
	r := newPrefillRig(t, layout.Spec{Model: tiny, Pages: 64})
	r.link(1, "d", layout.Spec{Model: tiny, Pages: 64})
	_, j := r.asked(1, "r", proto.Span{N: 200})
	r.compute(j, 200)
	if len(r.posts) < 3 {
		t.Fatalf("%d operations, want some siblings", len(r.posts))
	}
	r.complete(errInjected)
	for len(r.posts) > 0 {
		if len(heard[*proto.Failed](&r.sayings, 1)) != 0 {
			t.Fatalf("failure is said while %d writes are outstanding", r.outstanding())
		}
		r.held(j, 1)
		r.complete(nil)
	}
	if m := one[*proto.Failed](&r.sayings, 1); m.Exact {
		t.Error("the count is said to be exact although a write failed")
	}
	r.held(j, 0)

	// On the other side: the loss of one of two prefillers frees nothing while the other may write.
	two := topologyOf(t, layout.Spec{Model: tiny, TP: 2, Pages: 64}, 2)
	d := newDecodeRig(t, 8, func(c *proto.DecoderConfig) { c.Tries = 1 })
	q, err := d.m.Fetch(d.now, proto.Fetch{ID: "r", Prompt: proto.Prompt{Tokens: 33}, From: []proto.Source{{Writers: []string{"a", "b"}}}})
	if err != nil {
		t.Fatal(err)
	}
	d.linkAs(1, "p", 0, two)
	d.linkAs(2, "p", 1, two)
	seq := one[*proto.Dispatch](&d.sayings, 1).Seq
	one[*proto.Dispatch](&d.sayings, 2)
	d.say(1, &proto.Failed{CancelAck: proto.CancelAck{Seq: seq, Exact: true}, Code: proto.CodeEngine, Text: "test"})
	if d.ended[q] == nil || d.quiet[q] || d.pool.Counts().Leased != 8 {
		t.Fatalf("told %v, quiet %v, pages %+v: want the error at once and the pages later", d.ended[q], d.quiet[q], d.pool.Counts())
	}
	d.say(2, &proto.CancelAck{Seq: seq, Exact: true})
	if !d.quiet[q] {
		t.Error("it is not quiet in the end")
	}
	d.allFree()
}

// vllm#55470: a write that was queued behind a handshake ran after its lease was over. Whether it is still wanted is looked at when it is
// submitted, and nowhere else.
func TestReg08GateAtSubmit(t *testing.T) {
	for _, end := range []string{"cancel", "peer down", "preempt", "fail"} {
		t.Run(end, func(t *testing.T) {
			r := newPrefillRig(t, layout.Spec{Model: tiny, Pages: 256})
			r.link(1, "d", layout.Spec{Model: tiny, Pages: 256})
			seq, j := r.asked(1, "r", proto.Span{N: 1000})
			r.compute(j, 1000)
			before := r.writes
			if before >= 250*tinyWrites {
				t.Fatal("everything was posted at once")
			}
			switch end {
			case "cancel":
				r.say(1, &proto.Cancel{Seq: seq})
			case "peer down":
				r.m.PeerDown(r.now, 1)
			case "preempt":
				r.m.Preempt(r.now, j)
			case "fail":
				r.m.Fail(r.now, j, proto.CodeEngine, "test")
			}
			r.completeAll()
			r.pass(time.Second)
			r.completeAll()
			if r.writes != before {
				t.Errorf("%d writes were submitted after the gate was closed", r.writes-before)
			}
			r.held(j, 0)
		})
	}
}

// vllm#52234: a stale reference made a request ready with an older prompt. Answers of an ended link and of stopped attempts mean nothing,
// and pages are findable only when they were ready.
func TestReg09StaleNeverReady(t *testing.T) {
	blocks := pool.Hashes(pool.Hash{}, make([]uint32, 32), 4)
	r := newDecodeRig(t, 16, func(c *proto.DecoderConfig) { c.Tries = 5 })
	withBlocks := func(f *proto.Fetch) { f.Blocks = blocks }
	q := r.ask("r", 8, withBlocks, "a")
	r.link(1)
	old, epoch := one[*proto.Dispatch](&r.sayings, 1), r.epochs[1]
	r.land(old.Seq, 1, 31) // all but one
	r.m.Cancel(r.now, q, nil)
	r.land(old.Seq, 1, 1)
	if len(r.ready) != 0 || r.ended[q] == nil {
		t.Error("a cancelled request has become ready with its last write")
	}
	if p := r.pool.Lookup(blocks); p.ID != 0 {
		t.Errorf("%d pages of a cancelled request are in the prefix cache", len(p.Pages))
	}
	r.say(1, &proto.CancelAck{Seq: old.Seq, Posted: 32, Exact: true})

	// The next one goes over a new link; what the old one says is of no account.
	r.m.PeerDown(r.now, 1, nil)
	next := r.ask("next", 8, withBlocks, "a")
	r.link(2)
	d := one[*proto.Dispatch](&r.sayings, 2)
	if d.Seq == old.Seq || d.Imm == old.Imm {
		t.Fatalf("attempt %d with immediate %d is used again", d.Seq, d.Imm)
	}
	r.epochs[3] = epoch
	for _, b := range []proto.Body{
		&proto.Failed{CancelAck: proto.CancelAck{Seq: d.Seq, Exact: true}, Code: proto.CodeEngine}, &proto.CancelAck{Seq: d.Seq, Exact: true},
		&proto.Reject{Seq: d.Seq, Code: proto.CodeInvalid}, &proto.Bye{},
		&proto.State{Of: []proto.AttemptState{{Seq: d.Seq, Phase: proto.PhaseTomb, Posted: 32, Exact: true}}},
	} {
		r.m.Message(r.now, 2, proto.Encode(proto.Head{Epoch: epoch, Ticket: 7}, b)) // of the ended epoch
		r.check()
		r.say(1, b) // of the dead peer
	}
	if r.ended[next] != nil || len(r.ready) != 0 {
		t.Fatalf("stale messages ended the request: %v, or made it ready", r.ended[next])
	}
	r.land(d.Seq, 2, 32)
	if _, ok := r.ready[next]; !ok {
		t.Fatal("not ready")
	}
	r.m.Release(r.now, next)
	if p := r.pool.Lookup(blocks); len(p.Pages) != 8 {
		t.Errorf("%d pages of a ready request are in the prefix cache, want 8", len(p.Pages))
	}
}

// sglang#17259: the first token of another request. A slot of the tail buffer has an owner and a generation, and is lent again only when
// nothing can land in it.
func TestReg20TailSlotOwner(t *testing.T) {
	r := newDecodeRig(t, 8, func(c *proto.DecoderConfig) { c.TailSlots = 1 })
	withTail := func(f *proto.Fetch) { f.Tail = true }
	q := r.ask("r", 1, withTail, "a")
	r.link(1)
	d := one[*proto.Dispatch](&r.sayings, 1)
	next := r.ask("next", 1, withTail, "a")
	r.m.Cancel(r.now, q, nil)
	if n := len(heard[*proto.Dispatch](&r.sayings, 1)); n != 0 {
		t.Fatal("a slot that may still be written is lent to another request")
	}
	r.say(1, &proto.CancelAck{Seq: d.Seq, Posted: 0, Exact: true})
	d = one[*proto.Dispatch](&r.sayings, 1)
	r.land(d.Seq, 1, 2*tinyWrites+1)
	res, ok := r.ready[next]
	if !ok || !r.m.TailIs(res.Tail) {
		t.Fatalf("ready %v, its tail is its own: %v", ok, r.m.TailIs(res.Tail))
	}
	last := r.ask("last", 1, withTail, "a")
	if n := len(heard[*proto.Dispatch](&r.sayings, 1)); n != 0 {
		t.Fatal("the slot of a tail that nobody has read is lent to another request")
	}
	r.m.Release(r.now, next)
	if r.m.TailIs(res.Tail) {
		t.Error("a tail can be read after its slot was given back")
	}
	d = one[*proto.Dispatch](&r.sayings, 1)
	r.land(d.Seq, 1, 2*tinyWrites+1)
	if again := r.ready[last].Tail; again.Slot != res.Tail.Slot || again.Generation == res.Tail.Generation || r.m.TailIs(res.Tail) {
		t.Errorf("tail %+v in the slot of %+v", again, res.Tail)
	}
}

// sglang#30233: decoding began from an incomplete cache. Ready is the exact count of each prefiller, and nothing else.
func TestReg21NoPartialReady(t *testing.T) {
	two := topologyOf(t, layout.Spec{Model: tiny, TP: 2, Pages: 64}, 2)
	r := newDecodeRig(t, 8, func(c *proto.DecoderConfig) { c.Tries = 1 })
	ask := func() (proto.Request, uint64, uint64) {
		q, err := r.m.Fetch(r.now, proto.Fetch{ID: "r", Prompt: proto.Prompt{Tokens: 33}, From: []proto.Source{{Writers: []string{"a", "b"}}}})
		if err != nil {
			t.Fatal(err)
		}
		if len(r.connects) > 0 {
			r.linkAs(1, "p", 0, two)
			r.linkAs(2, "p", 1, two)
		}
		one := one[*proto.Dispatch](&r.sayings, 1)
		heard[*proto.Dispatch](&r.sayings, 2)
		return q, one.Seq, one.Expected
	}
	q, seq, owes := ask()
	r.land(seq, 1, owes)
	r.land(seq, 2, owes-1)
	for _, p := range []proto.Peer{1, 2} {
		r.say(p, &proto.Accept{Seq: seq})
		r.say(p, &proto.Timing{Seq: seq})
		r.say(p, &proto.Digest{Seq: seq, Sums: []uint64{1}})
	}
	r.pass(500 * time.Millisecond)
	if len(r.ready) != 0 {
		t.Fatalf("ready with %d of %d writes", 2*owes-1, 2*owes)
	}
	r.land(seq, 2, 1)
	if _, ok := r.ready[q]; !ok {
		t.Fatal("not ready with all writes")
	}
	r.m.Release(r.now, q)

	// What one wrote too much does not make up for what the other owes.
	q, seq, owes = ask()
	r.land(seq, 2, owes-1)
	r.land(seq, 1, owes+1)
	if _, ok := r.ready[q]; ok || !errors.Is(r.ended[q], proto.ErrProtocol) {
		t.Errorf("ready %v, ended with %v: want a protocol error", ok, r.ended[q])
	}
}

// TensorRT-LLM#12542: a source page was evicted before it was sent. Source pages are held from Admit until the last write that reads them
// has completed.
func TestReg22SourcePinned(t *testing.T) {
	for _, end := range []string{"done", "cancel", "fail", "preempt", "peer down", "deadline"} {
		t.Run(end, func(t *testing.T) {
			r := newPrefillRig(t, layout.Spec{Model: tiny, Pages: 64})
			r.link(1, "d", layout.Spec{Model: tiny, Pages: 64})
			seq, j := r.asked(1, "r", proto.Span{N: 40})
			r.held(j, 1)
			r.compute(j, 40)
			r.held(j, 1)
			switch end {
			case "cancel":
				r.say(1, &proto.Cancel{Seq: seq})
			case "fail":
				r.m.Fail(r.now, j, proto.CodeEngine, "test")
			case "preempt":
				r.m.Preempt(r.now, j)
			case "peer down":
				r.m.PeerDown(r.now, 1)
			case "deadline":
				r.pass(2 * time.Minute)
			}
			for len(r.posts) > 0 {
				r.held(j, 1)
				r.complete(nil)
			}
			r.held(j, 0)
		})
	}
}

// vllm#44238: the prefill side's own completion was reported as the arrival. It says how much will have arrived; only the count here tells
// that it has.
func TestRegLocalCompletionIsNotArrival(t *testing.T) {
	for name, say := range map[string]func(seq, n uint64) proto.Body{
		"state": func(seq, n uint64) proto.Body {
			return &proto.State{Of: []proto.AttemptState{{Seq: seq, Phase: proto.PhaseTomb, Posted: n, Exact: true}}}
		},
		"cancel": func(seq, n uint64) proto.Body { return &proto.CancelAck{Seq: seq, Posted: n, Exact: true} },
		"failed": func(seq, n uint64) proto.Body {
			return &proto.Failed{CancelAck: proto.CancelAck{Seq: seq, Posted: n, Exact: true}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newDecodeRig(t, 8)
			q := r.ask("r", 8, nil, "a")
			r.link(1)
			d := one[*proto.Dispatch](&r.sayings, 1)
			r.land(d.Seq, 1, d.Expected-3)
			r.say(1, say(d.Seq, d.Expected)) // everything has left, it says
			if len(r.ready) != 0 || r.ended[q] != nil || r.quiet[q] {
				t.Fatal("ready, or ended, with writes on their way")
			}
			r.land(d.Seq, 1, 2)
			if len(r.ready) != 0 {
				t.Fatal("ready with a write on its way")
			}
			r.land(d.Seq, 1, 1)
			if _, ok := r.ready[q]; !ok {
				t.Error("not ready when all has arrived")
			}
		})
	}
	// The last ones never come: only a fence tells.
	r := newDecodeRig(t, 8, func(c *proto.DecoderConfig) { c.Tries = 1 })
	q := r.ask("r", 8, nil, "a")
	r.link(1)
	d := one[*proto.Dispatch](&r.sayings, 1)
	r.land(d.Seq, 1, d.Expected-1)
	r.say(1, &proto.CancelAck{Seq: d.Seq, Posted: d.Expected, Exact: true})
	r.pass(3 * time.Second)
	if len(r.fences) != 1 || r.quiet[q] || r.pool.Counts().Leased != 8 {
		t.Fatalf("%d fences, quiet %v, pages %+v", len(r.fences), r.quiet[q], r.pool.Counts())
	}
	r.m.Fenced(r.now, 1)
	if !r.quiet[q] || r.ended[q] == nil {
		t.Error("not over after the fence")
	}
	r.allFree()
}
