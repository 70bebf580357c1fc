package proto

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestWriterScripts and TestFetchScripts run testdata/writer.txt and fetch.txt. Each command is an event, its output the state after it and
// the effects. "go test ./kv/proto -run Scripts -rewrite" rewrites the outputs: review them as a specification.
func TestWriterScripts(t *testing.T) {
	var w writerStep
	datadriven.RunTest(t, "testdata/writer.txt", func(t *testing.T, d *datadriven.TestData) string {
		if d.Cmd == "new" {
			w = writerStep{}
			scanArg(t, d, "expected", &w.expected)
			return showWriter(w, 0, true)
		}
		e := writerEvent{kind: findKind[writerEventKind](t, d, int(writerEvents)), exact: !d.HasArg("inexact")}
		scanArg(t, d, "from", &e.from)
		scanArg(t, d, "posted", &e.posted)
		if d.HasArg("cause") {
			var cause string
			d.ScanArgs(t, "cause", &cause)
			e.cause = errors.New(cause)
		}
		next, fx, ok := w.step(e)
		w = next
		return showWriter(w, fx, ok)
	})
}

func TestFetchScripts(t *testing.T) {
	var a fetchStep
	datadriven.RunTest(t, "testdata/fetch.txt", func(t *testing.T, d *datadriven.TestData) string {
		if d.Cmd == "new" {
			a = fetchStep{}
			return showFetch(a, 0, true)
		}
		e := fetchEvent{kind: findKind[fetchEventKind](t, d, int(fetchEvents)), again: d.HasArg("again")}
		for i, name := range writersAreNames {
			if d.HasArg(name) {
				e.writers |= 1 << i
			}
		}
		next, fx, ok := a.step(e)
		a = next
		return showFetch(a, fx, ok)
	})
}

var (
	writersAreNames   = []string{"accepted", "complete", "proved", "settled", "stuck"}
	writerEffectNames = []string{"fence", "lost", "overrun", "changed"}
	fetchEffectNames  = []string{"ready", "tell", "cancel", "quarantine", "quiet", "again", "release"}
)

func scanArg(t *testing.T, d *datadriven.TestData, name string, to *uint64) {
	if d.HasArg(name) {
		d.ScanArgs(t, name, to)
	}
}

// findKind returns the event kind whose name is the command.
func findKind[K interface {
	~uint8
	fmt.Stringer
}](t *testing.T, d *datadriven.TestData, n int) K {
	for k := range n {
		if K(k).String() == d.Cmd {
			return K(k)
		}
	}
	d.Fatalf(t, "no event %q", d.Cmd)
	return 0
}

func showWriter(w writerStep, fx writerEffect, ok bool) string {
	line := w.state.String()
	if w.state == writerSettling {
		line += fmt.Sprintf(" at %d", w.settle)
	}
	line = showStep(line, writerEffectNames, uint8(fx), ok)
	if fx&fxLost != 0 {
		line += fmt.Sprintf("lost: %v\n", w.cause)
	}
	return line
}

func showFetch(a fetchStep, fx fetchEffect, ok bool) string {
	line := a.state.String()
	if a.again {
		line += " again"
	}
	return showStep(line, fetchEffectNames, uint8(fx), ok)
}

// TestStepTables holds every pair of a state and an event against the table of what is expected there. A pair that is in no table must
// change nothing and be reported.
func TestStepTables(t *testing.T) {
	writers := map[writerState]string{
		writerAsked:    "accept reject answer count link-ended unanswered",
		writerAccepted: "accept answer count link-ended unanswered",
		writerSettling: "accept answer count link-ended unsettled",
		writerFencing:  "count link-ended fenced unfenced",
		writerStuck:    "count link-ended fenced unfenced",
		writerComplete: "accept answer count link-ended",
		writerEnded:    "accept reject answer count link-ended",
	}
	for s := range writerStates {
		for k := range writerEvents {
			w := writerStep{state: s, expected: 3, settle: 2}
			next, fx, ok := w.step(writerEvent{kind: k, from: 1, posted: 2, exact: true, cause: errors.New("x")})
			if want := slices.Contains(strings.Fields(writers[s]), k.String()); ok != want {
				t.Errorf("writer %v: %v is expected: %v, want %v", s, k, ok, want)
			}
			if !ok && (next != w || fx != 0) {
				t.Errorf("writer %v: %v is unexpected, and changes %+v to %+v, effects %b", s, k, w, next, fx)
			}
		}
	}
	fetches := map[fetchState]string{
		fetchAsked:       "writers lost stop corrupt",
		fetchActive:      "writers lost stop corrupt",
		fetchReady:       "stop release",
		fetchStopping:    "writers lost stop corrupt",
		fetchQuarantined: "writers lost stop corrupt",
	}
	for s := range fetchStates {
		for k := range fetchEvents {
			a := fetchStep{state: s}
			next, fx, ok := a.step(fetchEvent{kind: k})
			if want := slices.Contains(strings.Fields(fetches[s]), k.String()); ok != want {
				t.Errorf("fetch %v: %v is expected: %v, want %v", s, k, ok, want)
			}
			if !ok && (next != a || fx != 0) {
				t.Errorf("fetch %v: %v is unexpected, and changes %+v to %+v, effects %b", s, k, a, next, fx)
			}
		}
	}
}

// TestWriterStepKeepsItsPromises walks over every reachable state for every order of events up to a depth, with a count that only
// grows, and checks what must hold whatever a peer says.
func TestWriterStepKeepsItsPromises(t *testing.T) {
	const expected, depth = 2, 8
	cause := errors.New("some cause")
	var events []writerEvent
	for from := range uint64(expected + 2) {
		for _, k := range []writerEventKind{evCount, evFenced, evReject} {
			events = append(events, writerEvent{kind: k, from: from, cause: cause})
		}
		for posted := range uint64(expected + 2) {
			events = append(events, writerEvent{kind: evAnswer, from: from, posted: posted, exact: true, cause: cause},
				writerEvent{kind: evAnswer, from: from, posted: posted, cause: cause})
		}
	}
	for _, k := range []writerEventKind{evAccept, evLinkEnded, evUnanswered, evUnsettled, evUnfenced} {
		events = append(events, writerEvent{kind: k, cause: cause})
	}
	type node struct {
		state  writerState
		lost   bool
		settle uint64
		from   uint64 // landed so far
		told   int
	}
	step := func(n node) writerStep {
		return writerStep{state: n.state, lost: n.lost, settle: n.settle, expected: expected, cause: cause}
	}
	now := []node{{}}
	visited := map[node]bool{{}: true}
	reached := map[writerState]bool{}
	for range depth {
		var later []node
		for _, n := range now {
			for _, e := range events {
				counts := e.kind == evCount || e.kind == evFenced || e.kind == evReject || e.kind == evAnswer
				if counts && e.from < n.from {
					continue
				}
				w, fx, ok := step(n).step(e)
				m := node{w.state, w.lost, w.settle, n.from, n.told}
				if counts {
					m.from = e.from
				}
				if fx&fxLost != 0 {
					m.told++
				}
				where := fmt.Sprintf("%+v, event %v %+v: %+v, effects %b", n, e.kind, e, w, fx)
				switch {
				case ok && w.state == writerComplete && n.state != writerComplete && (m.from != expected || n.lost && n.state != writerSettling):
					t.Fatalf("%s: complete, but %d landed", where, m.from)
				case w.state.settled() && !n.state.settled() && !writerProof(n.settle, m.from, expected, step(n).state, e):
					t.Fatalf("%s: nothing can land any more, without a proof", where)
				case m.told > 1 || m.lost != (m.told == 1):
					t.Fatalf("%s: lost is told %d times", where, m.told)
				case fx&fxLost != 0 && e.kind == evFenced && e.from == expected:
					t.Fatalf("%s: lost, although all is here", where)
				case w.state == writerEnded && !w.lost:
					t.Fatalf("%s: ended, and nobody knows", where)
				case w.state == writerFencing && n.state != writerFencing && fx&fxFenceLink == 0:
					t.Fatalf("%s: waits for a fence that nobody asks for", where)
				}
				reached[w.state] = true
				if !visited[m] {
					visited[m] = true
					later = append(later, m)
				}
			}
		}
		now = later
	}
	if len(reached) != int(writerStates) {
		t.Errorf("reached only %v", reached)
	}
	t.Logf("%d states", len(visited))
}

// writerProof: the fence says so, or P's answer and the count agree, or everything asked for has landed, or P never began.
func writerProof(settle, from, expected uint64, before writerState, e writerEvent) bool {
	switch e.kind {
	case evFenced:
		return true
	case evReject:
		return e.from == 0
	case evAnswer:
		return e.exact && from == e.posted
	case evCount:
		return before == writerSettling && from == settle || from == expected
	}
	return false
}
