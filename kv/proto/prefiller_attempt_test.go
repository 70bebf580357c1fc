package proto

import (
	"testing"
	"time"

	"github.com/hawser-project/hawser/kv/layout"
)

// TestCancelOvertakesDispatch: the Dispatch that comes later must not start anything, as the decoder may have reused the pages.
func TestCancelOvertakesDispatch(t *testing.T) { cancelOvertakesDispatch(t) }

func cancelOvertakesDispatch(t tb) {
	r := newServeRig(t, PrefillerConfig{})
	d := r.link(1, "d", nil, 0)
	m := d.ask("r", 0, 9)
	for range 2 {
		d.send(&Cancel{Seq: m.Seq, Request: "r", Cost: m.Cost})
		if a := last[*CancelAck](d); a.Seq != m.Seq || a.Posted != 0 || !a.Exact || a.Granted != d.granted+m.Cost {
			t.Fatalf("answer is %+v, %d granted before", a, d.granted)
		}
	}
	d.send(m)
	d.send(m)
	none[*Accept](d)
	if len(r.admitted) > 0 || d.phase(m.Seq).Phase != PhaseTomb {
		t.Error("the dispatch was taken")
	}
	d.send(&Cancel{Seq: m.Seq, Request: "r", Cost: m.Cost})
	if a := last[*CancelAck](d); a.Granted != d.granted+m.Cost {
		t.Errorf("%d granted, want the cost back once only", a.Granted)
	}
}

// TestRejectedIsRemembered: a repetition of a refused Dispatch must not be accepted once there is room.
func TestRejectedIsRemembered(t *testing.T) { rejectedIsRemembered(t) }

func rejectedIsRemembered(t tb) {
	r := newServeRig(t, PrefillerConfig{Jobs: 1})
	d := r.link(1, "d", nil, 0)
	a := d.dispatch("a", 0, 9)
	b := d.dispatch("b", 0, 9)
	if m := last[*Reject](d); m.Seq != b.Seq || m.Code != CodeBusy || m.RetryAfter <= 0 || m.Granted != d.granted+b.Cost {
		t.Fatalf("answer is %+v", m)
	}
	d.send(&Cancel{Seq: a.Seq, Request: "a"})
	last[*CancelAck](d)
	d.send(b)
	if m := last[*Reject](d); m.Code != CodeBusy {
		t.Errorf("answer is %+v", m)
	}
	d.send(&Cancel{Seq: b.Seq, Request: "b"})
	if m := last[*CancelAck](d); m.Posted != 0 || !m.Exact {
		t.Errorf("answer is %+v", m)
	}
}

// TestCancelWaitsForWrites: the answer comes when no write is outstanding, and none starts after the Cancel.
func TestCancelWaitsForWrites(t *testing.T) { cancelWaitsForWrites(t) }

func cancelWaitsForWrites(t tb) {
	cfg := PrefillerConfig{}
	cfg.Window.Writes = 8
	r := newServeRig(t, cfg)
	d := r.link(1, "d", nil, 0)
	m := d.dispatch("r", 0, 40)
	r.compute(0, 40, 1)
	if n := len(r.open); n != 4 {
		t.Fatalf("%d operations outstanding, want the window in four parts", n)
	}
	r.complete(2)
	d.send(&Cancel{Seq: m.Seq, Request: "r"})
	none[*CancelAck](d)
	r.complete(3)
	none[*CancelAck](d)
	d.send(m)
	none[*Accept](d)
	if s := d.phase(m.Seq); s.Phase != PhaseRunning {
		t.Errorf("phase is %v", s.Phase)
	}
	r.complete(1)
	if a := last[*CancelAck](d); a.Posted != 12 || !a.Exact || r.stopped[1] != 1 || r.pinned[1] != 0 {
		t.Errorf("answer is %+v, job stopped %d, pinned %d", a, r.stopped[1], r.pinned[1])
	}
}

// TestFailedWriteIsNotExact, and a Cancel in between is answered with CancelAck.
func TestFailedWriteIsNotExact(t *testing.T) {
	for _, cancel := range []bool{false, true} {
		cfg := PrefillerConfig{}
		cfg.Window.Writes = 8
		r := newServeRig(t, cfg)
		d := r.link(1, "d", nil, 0)
		m := d.dispatch("r", 0, 40)
		r.compute(0, 40, 1)
		r.completeOne(1, errInjected)
		if cancel {
			d.send(&Cancel{Seq: m.Seq, Request: "r"})
		}
		r.complete(-1)
		if cancel {
			if a := last[*CancelAck](d); a.Exact || a.Posted != 6 {
				t.Errorf("answer is %+v", a)
			}
			continue
		}
		if a := last[*Failed](d); a.Exact || a.Posted != 6 || a.Code != CodeTransfer || a.Text != errInjected.Error() {
			t.Errorf("answer is %+v", a)
		}
		d.send(m)
		if a := last[*Failed](d); a.Exact || a.Posted != 6 {
			t.Errorf("the repetition is answered with %+v", a)
		}
	}
}

// TestRefusedPostFailsTheAttempt: the engine will not do it, ever.
func TestRefusedPostFailsTheAttempt(t *testing.T) {
	r := newServeRig(t, PrefillerConfig{})
	d := r.link(1, "d", nil, 0)
	d.dispatch("r", 0, 9)
	r.refuse = errInjected
	r.compute(0, 9, 1)
	if a := last[*Failed](d); !a.Exact || a.Posted != 0 || a.Code != CodeTransfer {
		t.Errorf("answer is %+v", a)
	}
}

// TestDeadline ends an attempt by itself.
func TestServeDeadline(t *testing.T) {
	r := newServeRig(t, PrefillerConfig{})
	d := r.link(1, "d", nil, 0)
	d.dispatch("r", 0, 9, func(m *Dispatch) { m.Remaining = time.Second })
	r.advance(999 * time.Millisecond)
	none[*Failed](d)
	r.advance(time.Millisecond)
	if a := last[*Failed](d); a.Code != CodeLate || r.stopped[1] != 1 {
		t.Errorf("answer is %+v, job stopped %d", a, r.stopped[1])
	}
	m := d.dispatch("s", 0, 9, func(m *Dispatch) { m.Remaining = 0 })
	if a := last[*Reject](d); a.Code != CodeLate || a.Seq != m.Seq {
		t.Errorf("answer is %+v", a)
	}
}

// TestDispatchThatCannotBe is refused with a word on what is wrong, and costs nothing.
func TestDispatchThatCannotBe(t *testing.T) {
	for _, c := range []struct {
		name   string
		code   Code
		change func(*Dispatch)
	}{
		{"plan", CodePlan, func(m *Dispatch) { m.Plan++ }},
		{"expected", CodePlan, func(m *Dispatch) { m.Expected++ }},
		{"no span", CodeInvalid, func(m *Dispatch) { m.Groups = append(m.Groups, m.Groups[0]) }},
		{"span beyond the prompt", CodeInvalid, func(m *Dispatch) { m.Groups[0].Span.N = m.Prompt.Tokens + 1 }},
		{"span in mid-page", CodeInvalid, func(m *Dispatch) { m.Groups[0].Span.First = 3 }},
		{"page missing", CodeInvalid, func(m *Dispatch) { m.Groups[0].Pages = m.Groups[0].Pages[1:] }},
		{"last page missing", CodeInvalid, func(m *Dispatch) { m.Groups[0].Pages = m.Groups[0].Pages[:2] }},
		{"page beyond the pool", CodeInvalid, func(m *Dispatch) { m.Groups[0].Pages[1].Physical = 48 }},
		{"run beyond the pool", CodeInvalid, func(m *Dispatch) { m.Groups[0].Pages = []Extent{{0, 46, 3}} }},
		{"page beyond the span", CodeInvalid, func(m *Dispatch) { m.Groups[0].Pages[2].Length = 2 }},
		{"tail slot", CodeInvalid, func(m *Dispatch) { m.Tail, m.TailSlot, m.Expected = true, 4, m.Expected+1 }},
		{"too long", CodeInfeasible, func(m *Dispatch) { m.Prompt.Tokens = 65*4 + 1 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newServeRig(t, PrefillerConfig{})
			d := r.link(1, "d", nil, 0)
			m := d.ask("r", 0, 9)
			c.change(m)
			d.send(m)
			if a := last[*Reject](d); a.Code != c.code || a.Text == "" || a.Granted != d.granted+m.Cost {
				t.Errorf("answer is %+v", a)
			}
			if len(r.admitted) > 0 || len(r.p.jobs) > 0 {
				t.Error("it was admitted")
			}
		})
	}
}

// TestEngineRefuses: a job that was never accepted is not stopped.
func TestEngineRefuses(t *testing.T) {
	r := newServeRig(t, PrefillerConfig{})
	r.admit = func(JobID, *JobInfo) Admission {
		return Admission{Verdict: AdmitRefused, Code: CodeInfeasible, Text: "why"}
	}
	d := r.link(1, "d", nil, 0)
	m := d.dispatch("r", 0, 9)
	if a := last[*Reject](d); a.Code != CodeInfeasible || a.Text != "why" || a.Granted != d.granted+m.Cost {
		t.Errorf("answer is %+v", a)
	}
	if len(r.stopped) > 0 || len(r.p.jobs) > 0 {
		t.Errorf("stopped %v, %d jobs", r.stopped, len(r.p.jobs))
	}
}

// TestSourceThatCannotBe: pages beyond the pool, too few of them.
func TestSourceThatCannotBe(t *testing.T) {
	for name, pages := range map[string]layout.Pages{"beyond": {Index: []uint32{1, 2, 64}}, "few": {Index: []uint32{1, 2}}, "late": {First: 1, Index: []uint32{1, 2, 3}}} {
		r := newServeRig(t, PrefillerConfig{})
		r.admit = func(JobID, *JobInfo) Admission { return Admission{Verdict: AdmitQueued} }
		d := r.link(1, "d", nil, 0)
		d.dispatch("r", 0, 9)
		err := r.p.Sourced(r.now, 1, SourcePages{Pages: []layout.Pages{pages}})
		if name == "beyond" {
			if err == nil {
				t.Errorf("%s: no error", name)
			}
			continue
		}
		r.pinned[1]++
		r.begin(0, 9, 1)
		if a := last[*Failed](d); err != nil || a.Code != CodeEngine {
			t.Errorf("%s: %v, answer is %+v", name, err, a)
		}
	}
}

// TestOldSeqs: what the decoder has forgotten is dropped, what it cannot have sent ends the link.
func TestOldSeqs(t *testing.T) { oldSeqs(t) }

func oldSeqs(t tb) {
	r := newServeRig(t, PrefillerConfig{})
	d := r.link(1, "d", nil, 0)
	m := d.dispatch("r", 0, 9)
	d.send(&Cancel{Seq: m.Seq, Request: "r"})
	last[*CancelAck](d)
	d.head.LowWater = d.head.Next
	d.send(&Beat{})
	d.send(m)
	d.send(&Cancel{Seq: m.Seq, Request: "r"})
	if got := d.take(1); len(got) > 0 {
		t.Errorf("answers came: %+v", got)
	}
	if s := d.phase(m.Seq); s.Phase != PhaseUnknown {
		t.Errorf("phase is %v", s.Phase)
	}
	d.head.LowWater = 1 // messages overtake each other
	d.send(m)
	if got := d.take(1); len(got) > 0 {
		t.Errorf("answers came: %+v", got)
	}
	m.Seq = d.head.Next
	d.send(m)
	last[*Bye](d)
	if r.p.Stats().Protocol != 1 || !r.forgot[1] {
		t.Error("a dispatch of an attempt that was never numbered did not end the link")
	}
}

// TestTombsAreBounded: a decoder that goes too far from its oldest live attempt loses the link.
func TestTombsAreBounded(t *testing.T) {
	r := newServeRig(t, PrefillerConfig{})
	d := r.link(1, "d", nil, 0)
	d.head.Next += seqWindow + 1
	for seq := d.head.LowWater; seq < d.head.LowWater+seqWindow; seq += 999 {
		d.send(&Cancel{Seq: seq, Request: "r"})
		last[*CancelAck](d)
	}
	d.send(&Cancel{Seq: d.head.LowWater + seqWindow, Request: "r"})
	last[*Bye](d)
	if len(r.p.detached) > 0 || !r.forgot[1] {
		t.Errorf("%d detachments outlive the link", len(r.p.detached))
	}
}

// TestLiveAttemptOutlivesLowWater: the decoder was fenced off, or has been told by another way; the attempt ends by itself.
func TestLiveAttemptOutlivesLowWater(t *testing.T) {
	r := newServeRig(t, PrefillerConfig{})
	d := r.link(1, "d", nil, 0)
	d.dispatch("r", 0, 9)
	d.head.LowWater = d.head.Next
	d.send(&Beat{})
	r.compute(0, 9, 1)
	r.complete(-1)
	if s := r.p.Stats(); s.Done != 1 || s.Tombs != 0 || s.Attempts != 0 {
		t.Errorf("%+v", s)
	}
}

// TestQueryTellsPhases of one after the other.
func TestQueryTellsPhases(t *testing.T) {
	cfg := PrefillerConfig{}
	cfg.Window.Writes = 4
	r := newServeRig(t, cfg)
	d := r.link(1, "d", nil, 0)
	m := d.dispatch("r", 0, 9)
	want := func(phase Phase, posted uint64) {
		t.Helper()
		if s := d.phase(m.Seq); s.Phase != phase || s.Posted != posted || !s.Exact {
			t.Errorf("state is %+v, want %v, %d posted", s, phase, posted)
		}
	}
	want(PhaseQueued, 0)
	pass := r.begin(0, 9, 1)
	want(PhaseRunning, 0)
	r.p.LayerReady(r.now, pass, 0, 0)
	r.complete(1)
	r.p.Preempt(r.now, 1)
	want(PhasePausing, 1)
	r.complete(-1)
	want(PhaseQueued, 5)
	d.send(&Cancel{Seq: m.Seq, Request: "r"})
	last[*CancelAck](d)
	want(PhaseTomb, 5)
}
