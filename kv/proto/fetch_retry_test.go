package proto

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
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
