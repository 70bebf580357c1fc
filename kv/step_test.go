package kv

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestFetchScripts and TestServeScripts run testdata/fetch.txt and serve.txt. Each command is an event, its output the state after it,
// the fields that matter and the effects. "go test ./kv -run Scripts -rewrite" rewrites the outputs: review them as a specification.
func TestFetchScripts(t *testing.T) {
	var a fetchStep
	datadriven.RunTest(t, "testdata/fetch.txt", func(t *testing.T, d *datadriven.TestData) string {
		if d.Cmd == "new" {
			a = fetchStep{}
			scan(t, d, "expected", &a.expected)
			return showFetch(a, 0, true)
		}
		e := fetchEvent{kind: find(t, d, evAccept, evRelease), exact: !d.HasArg("inexact")}
		scan(t, d, "from", &e.from)
		scan(t, d, "posted", &e.posted)
		if d.HasArg("cause") {
			var cause string
			d.ScanArgs(t, "cause", &cause)
			e.cause = errors.New(cause)
		}
		next, fx, ok := a.step(e)
		a = next
		return showFetch(a, fx, ok)
	})
}

func TestServeScripts(t *testing.T) {
	var a serveStep
	datadriven.RunTest(t, "testdata/serve.txt", func(t *testing.T, d *datadriven.TestData) string {
		if d.Cmd == "new" {
			a = serveStep{}
			return showServe(a, 0, true)
		}
		e := serveEvent{kind: find(t, d, svDispatch, svLinkEnded), ok: !d.HasArg("error")}
		scan(t, d, "n", &e.n)
		next, fx, ok := a.step(e)
		a = next
		return showServe(a, fx, ok)
	})
}

func scan(t *testing.T, d *datadriven.TestData, name string, to *uint64) {
	if d.HasArg(name) {
		d.ScanArgs(t, name, to)
	}
}

// find returns the event kind whose name is the command.
func find[K interface {
	~uint8
	fmt.Stringer
}](t *testing.T, d *datadriven.TestData, first, last K) K {
	for k := first; k <= last; k++ {
		if k.String() == d.Cmd {
			return k
		}
	}
	d.Fatalf(t, "no event %q", d.Cmd)
	return 0
}

var fetchEffects = []string{"ready", "tell", "cancel", "fence", "quarantine", "quiet", "free"}

func showFetch(a fetchStep, fx fetchEffect, ok bool) string {
	line := a.state.String()
	if a.state == fetchSettling {
		line += fmt.Sprintf(" settle=%d", a.settle)
	}
	return show(line, fetchEffects, uint8(fx), ok) + causeIf(fx&fxTell != 0, a.cause)
}

func causeIf(told bool, cause error) string {
	if !told {
		return ""
	}
	return fmt.Sprintf("told %v\n", cause)
}

var serveEffects = []string{"accept", "reject", "timing", "unpin", "cancel-ack", "failed"}

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
	return show(line, serveEffects, uint8(fx), ok)
}

func show(line string, names []string, fx uint8, ok bool) string {
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

// TestFetchStepKeepsItsPromises walks over every reachable state for every order of events up to a depth and checks what must
// hold whatever happens.
func TestFetchStepKeepsItsPromises(t *testing.T) {
	const expected, depth = 2, 7
	cause := errors.New("some cause")
	var events []fetchEvent
	for from := range uint64(expected + 2) {
		events = append(events, fetchEvent{kind: evCount, from: from}, fetchEvent{kind: evFenced, from: from})
		for posted := range uint64(expected + 2) {
			events = append(events, fetchEvent{kind: evAnswer, from: from, posted: posted, exact: true, cause: cause},
				fetchEvent{kind: evAnswer, from: from, posted: posted, cause: cause})
		}
	}
	for _, k := range []fetchEventKind{evAccept, evCancel, evLinkEnded, evUnsure, evUnfenced, evRelease} {
		events = append(events, fetchEvent{kind: k, cause: cause})
	}
	// history is what the caller and the pool have seen so far.
	type history struct{ told, quiet, freed int }
	type node struct {
		a fetchStep
		h history
	}
	now := map[node]bool{{a: fetchStep{expected: expected}}: true}
	visited := map[node]bool{}
	reached := map[fetchState]bool{}
	for range depth {
		later := map[node]bool{}
		for n := range now {
			for _, e := range events {
				a, fx, ok := n.a.step(e)
				h := n.h
				if !ok && (a != n.a || fx != 0) {
					t.Fatalf("%+v, event %+v: a refused event changed something: %+v, effects %b", n.a, e, a, fx)
				}
				if fx&fxReady != 0 {
					h.told++
					if n.a.told || e.from != expected && !(e.kind == evAnswer) {
						t.Fatalf("%+v, event %+v: ready, but told before or the count is not %d", n.a, e, expected)
					}
				}
				if fx&fxTell != 0 {
					h.told++
				}
				if fx&fxQuiet != 0 {
					h.quiet++
				}
				if fx&fxFree != 0 {
					h.freed++
				}
				switch {
				case h.told > 1 || h.quiet > 1 || h.freed > 1:
					t.Fatalf("%+v, event %+v: told, quiet, freed are %+v, want each at most 1", n.a, e, h)
				case h.freed > h.quiet:
					t.Fatalf("%+v, event %+v: pages freed while writes may land", n.a, e)
				case a.state == fetchReleased && h != (history{1, 1, 1}):
					t.Fatalf("%+v, event %+v: released with %+v, want told, quiet and freed once", n.a, e, h)
				case a.told != (h.told == 1):
					t.Fatalf("%+v, event %+v: told is %v after %+v", n.a, e, a.told, h)
				case fx&fxFree != 0 && n.a.state.writing() && !proof(n.a, e):
					t.Fatalf("%+v, event %+v: freed without proof that nothing can land", n.a, e)
				}
				reached[a.state] = true
				if m := (node{a, h}); !visited[m] {
					visited[m], later[m] = true, true
				}
			}
		}
		now = later
	}
	if len(reached) != int(fetchReleased)+1 {
		t.Errorf("reached only %v", slices.Sorted(maps.Keys(reached)))
	}
	t.Logf("%d states", len(visited))
}

// proof: the fence says so, or P's answer and the count agree, or everything asked for has landed.
func proof(before fetchStep, e fetchEvent) bool {
	switch e.kind {
	case evFenced:
		return true
	case evAnswer:
		return e.exact && e.from == e.posted
	case evCount:
		return before.state == fetchSettling && e.from == before.settle || e.from == before.expected
	}
	return false
}

// TestServeStepKeepsItsPromises does the same for the other side.
func TestServeStepKeepsItsPromises(t *testing.T) {
	const writes, depth = 3, 12
	events := []serveEvent{
		{kind: svDispatch, n: writes},
		{kind: svRefuse},
		{kind: svStart},
		{kind: svPost, n: 1},
		{kind: svPost, n: 2},
		{kind: svComplete, n: 1, ok: true},
		{kind: svComplete, n: 1},
		{kind: svCancel},
		{kind: svFail},
		{kind: svLinkEnded},
	}
	type history struct {
		ended    bool // CancelAck, Failed or Reject was sent
		answered uint64
		admitted bool
		unpinned bool
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
				if fx&fxUnpin != 0 {
					if h.unpinned || !h.admitted || a.outstanding > 0 {
						t.Fatalf("%+v, event %+v: unpinned twice, without admission, or while a write reads the pages", n.a, e)
					}
					h.unpinned = true
				}
				if fx&(fxCancelAck|fxFailed|fxReject) != 0 {
					if a.outstanding > 0 || h.ended && h.answered != a.posted || a.exact == h.inexact {
						t.Fatalf("%+v, event %+v: answered with writes outstanding, two numbers, or a wrong exact", n.a, e)
					}
					h.ended, h.answered = true, a.posted
				}
				if a.posted+a.outstanding+a.left > writes {
					t.Fatalf("%+v, event %+v: %+v counts more than %d writes", n.a, e, a, writes)
				}
				if m := (node{a, h}); !visited[m] {
					visited[m], later[m] = true, true
				}
			}
		}
		now = later
	}
	for n := range visited {
		if n.a.state == serveTomb && n.h.admitted != n.h.unpinned {
			t.Errorf("%+v: ended with source pages held", n.a)
		}
	}
	t.Logf("%d states", len(visited))
}
