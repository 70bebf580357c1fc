package proto

import (
	"errors"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv/layout"
)

// pair of members of one decoder: two ranks, one each.
func twoMembers(r *serveRig) (d0, d1 *rigLink) {
	r.t.Helper()
	top := shape(r.t, tiny, 2, layout.Spec{TP: 2, Pages: 48})
	return r.link(1, "d", top, 0), r.link(2, "d", top, 1)
}

// finish computes a job's whole prompt and lets all writes complete.
func (r *serveRig) finish(tokens int, jobs ...JobID) {
	r.t.Helper()
	r.compute(0, tokens, jobs...)
	r.complete(-1)
}

// over checks that a job has come to its end in all respects.
func (r *serveRig) over(j JobID) {
	r.t.Helper()
	if r.stopped[j] != 1 || r.pinned[j] != 0 || r.p.jobs[j] != nil {
		r.fatalf("job %d: stopped %d, pinned %d, %v", j, r.stopped[j], r.pinned[j], r.p.jobs[j])
	}
	if c := r.p.credits; c.spent != 0 {
		r.fatalf("credits are %+v after the last job", c)
	}
}

// TestMembersAttach: in either order, to one job that is computed once.
func TestMembersAttach(t *testing.T) {
	for _, first := range []int{0, 1} {
		r := newServeRig(t, PrefillerConfig{})
		d0, d1 := twoMembers(r)
		links := []*rigLink{d0, d1}
		a, b := links[first], links[1-first]
		a.dispatch("r", 0, 9)
		last[*Accept](a)
		if got := len(r.admitted); got != 1-first {
			t.Fatalf("member %d came: %d jobs admitted", first, got)
		}
		b.dispatch("r", 0, 9)
		last[*Accept](b)
		if len(r.admitted) != 1 || r.started[1] != 1 {
			t.Fatalf("%d jobs admitted, started %d", len(r.admitted), r.started[1])
		}
		r.finish(9, 1)
		r.over(1)
		if s := r.p.Stats(); s.Done != 2 || s.Unexpected > 0 {
			t.Errorf("%+v", s)
		}
	}
}

// TestLateAttach: a member that comes when the job is half computed gets what there is at once, and the job waits for it.
func TestLateAttach(t *testing.T) {
	r := newServeRig(t, PrefillerConfig{Jobs: 1})
	d0, d1 := twoMembers(r)
	d0.dispatch("r", 0, 9)
	r.compute(0, 8, 1)
	r.complete(-1)
	r.p.Drain(r.now) // attaches go on
	m := d1.dispatch("r", 0, 9)
	last[*Accept](d1)
	r.complete(-1)
	if n := r.posted[servedAs{2, m.Seq}]; n != 12 { // 2 pages, 2 planes, 3 layers
		t.Errorf("%d writes, want 12", n)
	}
	r.compute(8, 9, 1)
	r.complete(-1)
	r.over(1)
}

// TestDetach: a member that does not want the request says so, before or after the others come.
func TestServeDetach(t *testing.T) {
	for name, order := range map[string][]string{
		"member 1 first": {"detach 1", "dispatch 0"}, "member 1 last": {"dispatch 0", "detach 1"},
		"member 0 first": {"detach 0", "dispatch 1"}, "member 0 last": {"dispatch 1", "detach 0"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newServeRig(t, PrefillerConfig{})
			d0, d1 := twoMembers(r)
			for _, o := range order {
				d := []*rigLink{d0, d1}[o[len(o)-1]-'0']
				if o[:3] == "det" {
					d.head.Next++
					d.send(&Cancel{Seq: d.head.Next - 1, Request: "r"})
					last[*CancelAck](d)
				} else {
					d.dispatch("r", 0, 9)
				}
			}
			r.finish(9, 1)
			r.over(1)
			if s := r.p.Stats(); s.Done != 1 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestAllDetach: nobody wants what the inference engine computes already.
func TestAllDetach(t *testing.T) {
	r := newServeRig(t, PrefillerConfig{})
	d0, d1 := twoMembers(r)
	j, err := r.p.Expect(r.now, "r", Prompt{Tokens: 9})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []*rigLink{d0, d1} {
		if r.stopped[j] != 0 {
			t.Error("stopped while a member may come")
		}
		d.head.Next++
		d.send(&Cancel{Seq: d.head.Next - 1, Request: "r"})
	}
	r.over(j)
	if _, err := r.p.Expect(r.now, "s", Prompt{Tokens: 9}); err != nil {
		t.Fatal(err)
	}
	d0.head.Next++
	d0.send(&Cancel{Seq: d0.head.Next - 1, Request: "x"})
	d1.head.Next++
	d1.send(&Cancel{Seq: d1.head.Next - 1, Request: "x"})
	if _, err := r.p.Expect(r.now, "x", Prompt{Tokens: 9}); !errors.Is(err, hawser.ErrClosed) {
		t.Errorf("expecting what nobody wants: %v", err)
	}
}

// TestSilentMember: the others do not wait for it longer than JoinWait.
func TestSilentMember(t *testing.T) {
	r := newServeRig(t, PrefillerConfig{})
	d0, d1 := twoMembers(r)
	d0.dispatch("r", 0, 9)
	r.finish(9, 1)
	if r.stopped[1] != 0 {
		t.Error("stopped while member 1 may come")
	}
	r.advance(DefaultJoinWait - time.Second)
	d1.dispatch("r", 0, 9)
	r.advance(2 * time.Second)
	r.complete(-1)
	r.over(1)

	d0.dispatch("s", 0, 9)
	r.finish(9, 2)
	r.advance(DefaultJoinWait)
	r.over(2)
	if s := r.p.Stats(); s.Done != 3 || s.Unexpected > 0 {
		t.Errorf("%+v", s)
	}
}

// TestCancelsDoNotProlongJoinWait: members that say again that they will not come.
func TestCancelsDoNotProlongJoinWait(t *testing.T) {
	r := newServeRig(t, PrefillerConfig{})
	d0, _ := twoMembers(r)
	d0.dispatch("r", 0, 9)
	r.finish(9, 1)
	for range 20 {
		r.advance(DefaultJoinWait / 20)
		d0.head.Next++
		d0.send(&Cancel{Seq: d0.head.Next - 1, Request: "r"})
	}
	r.over(1)
}

// TestSilentPayer: without member 0 nothing is admitted.
func TestSilentPayer(t *testing.T) {
	r := newServeRig(t, PrefillerConfig{})
	_, d1 := twoMembers(r)
	m := d1.dispatch("r", 0, 9)
	last[*Accept](d1)
	if s := d1.phase(m.Seq); s.Phase != PhaseQueued {
		t.Errorf("phase is %v", s.Phase)
	}
	r.advance(DefaultJoinWait)
	if a := last[*Failed](d1); a.Code != CodePrompt || a.Posted != 0 || !a.Exact {
		t.Errorf("answer is %+v", a)
	}
	if len(r.admitted) > 0 || len(r.stopped) > 0 || len(r.p.jobs) > 0 {
		t.Error("the inference engine has heard of it")
	}
}

// TestRetryWaitsForNobody: neither for member 0 nor for others.
func TestRetryWaitsForNobody(t *testing.T) {
	r := newServeRig(t, PrefillerConfig{})
	_, d1 := twoMembers(r)
	d1.dispatch("r", 0, 9, func(m *Dispatch) { m.Try, m.Cost = 2, 3 })
	r.finish(9, 1)
	r.over(1)
}

// TestRetryAttaches: a member that tries again while the job lives. What its first attempt had sent is sent again.
func TestRetryAttaches(t *testing.T) {
	r := newServeRig(t, PrefillerConfig{})
	d0, d1 := twoMembers(r)
	a := d0.dispatch("r", 0, 9)
	d1.dispatch("r", 0, 9)
	r.compute(0, 8, 1)
	r.complete(-1)
	d0.send(&Cancel{Seq: a.Seq, Request: "r"})
	last[*CancelAck](d0)
	b := d0.dispatch("r", 0, 9, func(m *Dispatch) { m.Try = 2 })
	r.compute(8, 9, 1)
	r.complete(-1)
	if n := r.posted[servedAs{1, b.Seq}]; n != b.Expected {
		t.Errorf("%d writes, want %d", n, b.Expected)
	}
	r.over(1)
}

// TestRendezvous: prompt and Dispatch in either order.
func TestRendezvous(t *testing.T) {
	unknown := func(r *serveRig) func(JobID, *JobInfo) Admission {
		return func(_ JobID, info *JobInfo) Admission {
			if !info.Expected {
				return Admission{Verdict: AdmitUnknown}
			}
			return r.admitNow(info.Prompt.Tokens, 0)
		}
	}
	for _, promptFirst := range []bool{false, true} {
		r := newServeRig(t, PrefillerConfig{})
		r.admit = unknown(r)
		d := r.link(1, "d", nil, 0)
		steps := []func(){
			func() { d.dispatch("r", 0, 9) },
			func() {
				if j, err := r.p.Expect(r.now, "r", Prompt{Tokens: 9}); err != nil || j != 1 {
					t.Fatalf("job %d, %v", j, err)
				}
			},
		}
		if promptFirst {
			steps[0], steps[1] = steps[1], steps[0]
		}
		steps[0]()
		r.advance(DefaultJoinWait - time.Millisecond)
		steps[1]()
		last[*Accept](d)
		if r.started[1] != 1 {
			t.Fatalf("started %d", r.started[1])
		}
		r.advance(time.Second)
		r.finish(9, 1)
		r.over(1)
	}
	t.Run("no prompt", func(t *testing.T) {
		r := newServeRig(t, PrefillerConfig{})
		r.admit = unknown(r)
		d := r.link(1, "d", nil, 0)
		d.dispatch("r", 0, 9)
		r.advance(DefaultJoinWait)
		if a := last[*Failed](d); a.Code != CodePrompt {
			t.Errorf("answer is %+v", a)
		}
		if len(r.started)+len(r.stopped)+len(r.p.jobs) > 0 {
			t.Error("the inference engine has heard of it")
		}
	})
	t.Run("no dispatch", func(t *testing.T) {
		r := newServeRig(t, PrefillerConfig{})
		j, err := r.p.Expect(r.now, "r", Prompt{Tokens: 9})
		if err != nil {
			t.Fatal(err)
		}
		if again, err := r.p.Expect(r.now, "r", Prompt{Tokens: 9}); err != nil || again != j {
			t.Errorf("expected again: job %d, %v", again, err)
		}
		if _, err := r.p.Expect(r.now, "r", Prompt{Tokens: 8}); !errors.Is(err, hawser.ErrInvalid) {
			t.Errorf("another prompt: %v", err)
		}
		r.advance(DefaultJoinWait)
		r.over(j)
	})
	t.Run("left in between", func(t *testing.T) {
		r := newServeRig(t, PrefillerConfig{})
		r.admit = unknown(r)
		d0, d1 := twoMembers(r)
		m := d0.dispatch("r", 0, 9)
		d0.send(&Cancel{Seq: m.Seq, Request: "r"})
		if _, err := r.p.Expect(r.now, "r", Prompt{Tokens: 9}); err != nil {
			t.Fatal(err)
		}
		if len(r.started) > 0 {
			t.Error("started although nobody wants it")
		}
		d1.dispatch("r", 0, 9)
		r.finish(9, 1)
		r.over(1)
	})
	t.Run("no room for the half that was missing", func(t *testing.T) {
		r := newServeRig(t, PrefillerConfig{Jobs: 1})
		r.admit = unknown(r)
		d := r.link(1, "d", nil, 0)
		d.dispatch("r", 0, 9)
		r.admit = func(_ JobID, info *JobInfo) Admission { return r.admitNow(info.Prompt.Tokens, 0) }
		d.dispatch("s", 0, 9)
		if _, err := r.p.Expect(r.now, "r", Prompt{Tokens: 9}); err != nil {
			t.Fatal(err)
		}
		if a := last[*Failed](d); a.Code != CodeBusy || r.stopped[1] != 1 {
			t.Errorf("answer is %+v, stopped %d", a, r.stopped[1])
		}
	})
}

// TestTwoDecodersWithOneRequestID are two jobs.
func TestTwoDecodersWithOneRequestID(t *testing.T) {
	r := newServeRig(t, PrefillerConfig{})
	a, b, c := r.link(1, "a", nil, 0), r.link(2, "b", nil, 0), r.link(3, "c", nil, 0)
	for _, d := range []*rigLink{a, b, c} {
		d.dispatch("r", 0, 9)
	}
	if len(r.admitted) != 3 {
		t.Fatalf("%d jobs", len(r.admitted))
	}
	r.finish(9, 2)
	r.finish(9, 3)
	r.finish(9, 1)
	for j := range JobID(3) {
		r.over(j + 1)
	}
	if len(r.p.named) > 0 {
		t.Error("names of jobs are kept")
	}
}

// TestWaitingJobsAreBounded per link.
func TestWaitingJobsAreBounded(t *testing.T) {
	r := newServeRig(t, PrefillerConfig{})
	_, d1 := twoMembers(r)
	r.t.Helper()
	for i := range maxWaiting {
		m := d1.ask(string(rune('a'+i%26))+time.Duration(i).String(), 0, 9)
		d1.p.Message(d1.now, d1.peer, Encode(d1.head, m))
	}
	if s := r.p.Stats(); s.Waiting != maxWaiting {
		t.Fatalf("%d wait", s.Waiting)
	}
	d1.dispatch("more", 0, 9)
	if a := last[*Reject](d1); a.Code != CodeBusy {
		t.Errorf("answer is %+v", a)
	}
	r.advance(DefaultJoinWait)
	if s := r.p.Stats(); s.Waiting != 0 || s.Failed != maxWaiting {
		t.Errorf("%+v", s)
	}
}

// TestEngineGivesUp tells the decoders why.
func TestEngineGivesUp(t *testing.T) {
	r := newServeRig(t, PrefillerConfig{})
	d0, d1 := twoMembers(r)
	d0.dispatch("r", 0, 9)
	d1.dispatch("r", 0, 9)
	r.compute(0, 8, 1)
	r.complete(1)
	r.p.Fail(r.now, 1, CodeEngine, "out of luck")
	if r.stopped[1] != 1 || r.pinned[1] != 1 {
		t.Errorf("stopped %d, pinned %d while writes are outstanding", r.stopped[1], r.pinned[1])
	}
	r.complete(-1)
	for _, d := range []*rigLink{d0, d1} {
		if a := last[*Failed](d); a.Code != CodeEngine || a.Text != "out of luck" {
			t.Errorf("answer is %+v", a)
		}
	}
	r.over(1)
	if err := r.p.Sourced(r.now, 1, r.source(9, 0)); !errors.Is(err, hawser.ErrClosed) {
		t.Errorf("pages for a job that has ended: %v", err)
	}
	if err := r.p.Tail(r.now, 7); !errors.Is(err, hawser.ErrInvalid) {
		t.Errorf("tail of a job that never was: %v", err)
	}
}

// TestPreemption: what was sent is not sent again (the rig looks), with other pages, in mid-layer, twice.
func TestPreemption(t *testing.T) { preemption(t) }

func preemption(t tb) {
	for cut := range 12 {
		cfg := PrefillerConfig{Verify: true}
		cfg.Window.Writes = 4
		r := newServeRig(t, cfg)
		d := r.link(1, "d", nil, 0)
		m := d.dispatch("r", 0, 40, func(m *Dispatch) { m.Tail = true })
		for round := range 2 {
			r.compute(0, 24, 1)
			r.complete(cut + 5*round)
			if round == 0 {
				if err := r.p.Tail(r.now, 1); err != nil {
					t.Fatal(err)
				}
			}
			r.p.Preempt(r.now, 1)
			r.check()
			if err := r.p.Sourced(r.now, 1, r.source(40, 0)); !errors.Is(err, hawser.ErrBusy) {
				t.Fatalf("pages before Unpin: %v", err)
			}
			n := len(r.open)
			if done := r.complete(-1); done != n {
				t.Fatalf("%d posts while it pauses", done-n)
			}
			if r.pinned[1] != 0 || r.stopped[1] != 0 {
				t.Fatalf("pinned %d, stopped %d", r.pinned[1], r.stopped[1])
			}
			r.give(1, 40, 8*round)
		}
		r.compute(8, 40, 1)
		r.complete(-1)
		if n := r.posted[servedAs{1, m.Seq}]; n != m.Expected-1 {
			t.Fatalf("cut %d: %d writes, want %d and the tail, which was taken back", cut, n, m.Expected-1)
		}
		if err := r.p.Tail(r.now, 1); err != nil {
			t.Fatal(err)
		}
		r.complete(-1)
		if n := r.posted[servedAs{1, m.Seq}]; n != m.Expected {
			t.Fatalf("cut %d: %d writes, want %d", cut, n, m.Expected)
		}
		r.over(1)
	}
}

// TestPreemptedPassMeansNothing: it goes on for a while with pages that are no longer the job's.
func TestPreemptedPassMeansNothing(t *testing.T) {
	r := newServeRig(t, PrefillerConfig{})
	d := r.link(1, "d", nil, 0)
	m := d.dispatch("r", 0, 9)
	pass := r.begin(0, 9, 1)
	r.p.LayerReady(r.now, pass, 0, 0)
	r.complete(-1)
	r.p.Preempt(r.now, 1)
	r.give(1, 9, 0)
	r.p.PassEnd(r.now, pass)
	if n := r.complete(-1); n != 0 {
		t.Errorf("%d operations from a pass over other pages", n)
	}
	r.finish(9, 1)
	if n := r.posted[servedAs{1, m.Seq}]; n != m.Expected {
		t.Errorf("%d writes, want %d", n, m.Expected)
	}
	r.over(1)
}

// TestPrefixHitIsPostedAtOnce, without a pass.
func TestPrefixHitIsPostedAtOnce(t *testing.T) {
	r := newServeRig(t, PrefillerConfig{})
	r.admit = func(_ JobID, info *JobInfo) Admission { return r.admitNow(info.Prompt.Tokens, info.Prompt.Tokens) }
	d := r.link(1, "d", nil, 0)
	m := d.dispatch("r", 0, 9)
	r.complete(-1)
	if n := r.posted[servedAs{1, m.Seq}]; n != m.Expected {
		t.Errorf("%d writes, want %d", n, m.Expected)
	}
	r.over(1)
}

// TestQueuedForPages: Admit may say that there are none yet.
func TestQueuedForPages(t *testing.T) {
	r := newServeRig(t, PrefillerConfig{})
	r.admit = func(JobID, *JobInfo) Admission { return Admission{Verdict: AdmitQueued} }
	d := r.link(1, "d", nil, 0)
	m := d.dispatch("r", 0, 9)
	last[*Accept](d)
	r.compute(0, 9, 1) // nothing: it has no pages
	if n := r.complete(-1); n > 0 {
		t.Errorf("%d operations without source pages", n)
	}
	r.give(1, 9, 4)
	r.complete(-1)
	if n := r.posted[servedAs{1, m.Seq}]; n != 6 {
		t.Errorf("%d writes of the page that is cached", n)
	}
	r.compute(4, 9, 1)
	r.complete(-1)
	r.over(1)
}
