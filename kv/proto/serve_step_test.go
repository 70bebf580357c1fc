package proto

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestServeScripts and TestJobScripts run testdata/serve.txt and job.txt. Each command is an event, its output the state after it,
// the fields that matter and the effects. "go test ./kv/proto -run Scripts -rewrite" rewrites the outputs: review them as a
// specification.
func TestServeScripts(t *testing.T) {
	var a serveStep
	datadriven.RunTest(t, "testdata/serve.txt", func(t *testing.T, d *datadriven.TestData) string {
		switch d.Cmd {
		case "new":
			a = serveStep{}
			return showServe(a, 0, true)
		case "matrix":
			return serveMatrix()
		}
		e := serveEvent{kind: findKind[serveEventKind](t, d, int(serveEvents)), ok: !d.HasArg("error")}
		if d.HasArg("n") {
			d.ScanArgs(t, "n", &e.n)
		}
		next, fx, ok := a.step(e)
		a = next
		return showServe(a, fx, ok)
	})
}

func TestJobScripts(t *testing.T) {
	var j jobStep
	datadriven.RunTest(t, "testdata/job.txt", func(t *testing.T, d *datadriven.TestData) string {
		switch d.Cmd {
		case "new":
			j = jobStep{}
			return showJob(j, 0, true)
		case "matrix":
			return jobMatrix()
		}
		next, fx, ok := j.step(findKind[jobEvent](t, d, int(jobEvents)))
		j = next
		return showJob(j, fx, ok)
	})
}

var serveEffectNames = []string{"accept", "reject", "timing", "digest", "cancel-ack", "failed"}

func showServe(a serveStep, fx serveEffect, ok bool) string {
	line := a.state.String()
	if a.state == serveStopping {
		line += " " + a.end.String()
	}
	if a.state != serveNew {
		line += fmt.Sprintf(" left=%d outstanding=%d posted=%d", a.left, a.outstanding, a.posted)
		if !a.exact {
			line += " inexact"
		}
	}
	return showStep(line, serveEffectNames, uint8(fx), ok)
}

var jobEffectNames = []string{"admit", "wait", "busy", "fail", "stop"}

func showJob(j jobStep, fx jobEffect, ok bool) string {
	line := j.state.String()
	if j.payer {
		line += " payer"
	}
	if j.asked {
		line += " asked"
	}
	if j.wanted > 0 {
		line += fmt.Sprintf(" wanted=%d", j.wanted)
	}
	return showStep(line, jobEffectNames, uint8(fx), ok)
}

func showStep(line string, names []string, fx uint8, ok bool) string {
	if !ok {
		return line + ": unexpected\n"
	}
	var did []string
	for i, name := range names {
		if fx&(1<<i) != 0 {
			did = append(did, name)
		}
	}
	if len(did) > 0 {
		line += ": " + strings.Join(did, " ")
	}
	return line + "\n"
}

// serveMatrix shows every event in every state, with one write left and one outstanding where that can be.
func serveMatrix() string {
	var b strings.Builder
	for state := range serveStates {
		for kind := range serveEvents {
			a := serveStep{state: state, left: 1, exact: true}
			if state >= serveRunning && state <= serveStopping {
				a.outstanding = 1
			}
			if state == serveStopping {
				a.end = endFail
			}
			next, fx, ok := a.step(serveEvent{kind: kind, n: 1, ok: true})
			if !ok {
				fmt.Fprintf(&b, "%-9s %-11s -\n", state, kind)
				continue
			}
			fmt.Fprintf(&b, "%-9s %-11s %s", state, kind, showServe(next, fx, ok))
		}
	}
	return b.String()
}

func jobMatrix() string {
	var b strings.Builder
	for state := range jobStates {
		for e := range jobEvents {
			j := jobStep{state: state}
			if state >= jobWaiting {
				j.wanted = 1
			}
			next, fx, ok := j.step(e)
			if !ok {
				fmt.Fprintf(&b, "%-8s %-8s -\n", state, e)
				continue
			}
			fmt.Fprintf(&b, "%-8s %-8s %s", state, e, showJob(next, fx, ok))
		}
	}
	return b.String()
}

// TestServeStepKeepsItsPromises walks over every reachable state for every order of events up to a depth and checks what must
// hold whatever happens.
func TestServeStepKeepsItsPromises(t *testing.T) {
	const writes, depth = 3, 12
	events := []serveEvent{
		{kind: svDispatch, n: writes},
		{kind: svRefuse},
		{kind: svStart},
		{kind: svPost, n: 1},
		{kind: svPost, n: 2},
		{kind: svPreempt},
		{kind: svComplete, n: 1, ok: true},
		{kind: svComplete, n: 1},
		{kind: svCancel},
		{kind: svFail},
		{kind: svLinkEnded},
	}
	// history is what the decoder and the inference engine have seen so far.
	type history struct {
		ended    bool // CancelAck, Failed or Reject was sent
		answered uint64
		admitted bool
		inexact  bool
	}
	type node struct {
		a serveStep
		h history
	}
	now := map[node]bool{{}: true}
	visited := map[node]bool{}
	for range depth {
		later := map[node]bool{}
		for n := range now {
			for _, e := range events {
				a, fx, ok := n.a.step(e)
				h := n.h
				if !ok && (a != n.a || fx != 0) {
					t.Fatalf("%+v, event %+v: a refused event changed something: %+v, effects %b", n.a, e, a, fx)
				}
				if e.kind == svPost && ok && (h.ended || !n.a.open()) {
					t.Fatalf("%+v, event %+v: a write is submitted after the answer or with the gate closed", n.a, e)
				}
				h.inexact = h.inexact || e.kind == svComplete && ok && !e.ok
				if a.state == serveQueued && n.a.state == serveNew {
					if h.ended || h.admitted {
						t.Fatalf("%+v, event %+v: admitted twice or after the end", n.a, e)
					}
					h.admitted = true
				}
				if n.a.state.live() && a.state == serveTomb && a.outstanding > 0 {
					t.Fatalf("%+v, event %+v: ended while a write reads the source pages", n.a, e)
				}
				if fx&(fxCancelAck|fxFailed|fxReject) != 0 {
					if a.outstanding > 0 || h.ended && h.answered != a.posted || a.exact == h.inexact {
						t.Fatalf("%+v, event %+v: answered with writes outstanding, two numbers, or a wrong exact", n.a, e)
					}
					h.ended, h.answered = true, a.posted
				}
				if sum := a.posted + a.outstanding + a.left; sum > writes || h.admitted && a.exact && sum != writes {
					t.Fatalf("%+v, event %+v: %+v counts %d writes of %d", n.a, e, a, sum, writes)
				}
				if fx&fxDigest != 0 && a.posted != writes {
					t.Fatalf("%+v, event %+v: %+v is done", n.a, e, a)
				}
				if m := (node{a, h}); !visited[m] {
					visited[m], later[m] = true, true
				}
			}
		}
		now = later
	}
	t.Logf("%d states", len(visited))
}

// TestJobStepKeepsItsPromises does the same for jobs.
func TestJobStepKeepsItsPromises(t *testing.T) {
	type history struct{ admits, stops int }
	type node struct {
		j jobStep
		h history
	}
	now := map[node]bool{{}: true}
	visited := map[node]bool{}
	for range 10 {
		later := map[node]bool{}
		for n := range now {
			for e := range jobEvents {
				j, fx, ok := n.j.step(e)
				h := n.h
				if !ok && (j != n.j || fx != 0) {
					t.Fatalf("%+v, event %v: a refused event changed something: %+v, effects %b", n.j, e, j, fx)
				}
				if fx&jxAdmit != 0 {
					if h.admits++; j.state != jobLive || !j.payer || j.wanted == 0 {
						t.Fatalf("%+v, event %v: %+v is admitted although nobody wants it or pays", n.j, e, j)
					}
				}
				if fx&jxStop != 0 {
					h.stops++
				}
				if e == jobUnknown && ok {
					h.admits--
				}
				if h.admits < 0 || h.admits > 1 || h.stops > 1 || (j.state == jobEnded) != (h.stops == 1) || j.wanted < 0 {
					t.Fatalf("%+v, event %v: %+v with %+v", n.j, e, j, h)
				}
				if m := (node{j, h}); !visited[m] {
					visited[m], later[m] = true, true
				}
			}
		}
		now = later
	}
	t.Logf("%d states", len(visited))
}
