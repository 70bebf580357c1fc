package kvtest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/hawser-project/hawser/kv/proto"
)

// Coverage counts what was seen, over many runs: changes of state, events in a state, and those that meant nothing there.
type Coverage struct {
	Changes    map[Change]int
	Unexpected map[Change]int
	decoder    []uint64 // by proto.DecoderPairs
	prefiller  []uint64
}

// Change is a change of state, or an event in a state.
type Change struct{ Of, From, To string }

// NewCoverage makes an empty one.
func NewCoverage() *Coverage {
	return &Coverage{map[Change]int{}, map[Change]int{}, make([]uint64, len(proto.DecoderPairs())), make([]uint64, len(proto.PrefillerPairs()))}
}

func (c *Coverage) String() string {
	var b strings.Builder
	for _, m := range []struct {
		title string
		of    map[Change]int
	}{{"changes of state", c.Changes}, {"events that meant nothing", c.Unexpected}} {
		var all []Change
		for k := range m.of {
			all = append(all, k)
		}
		slices.SortFunc(all, func(a, b Change) int {
			return cmp.Or(cmp.Compare(a.Of, b.Of), cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To))
		})
		fmt.Fprintf(&b, "%d %s\n", len(all), m.title)
		for _, k := range all {
			fmt.Fprintf(&b, "  %-16s %-12s -> %-14s %10d\n", k.Of, k.From, k.To, m.of[k])
		}
	}
	b.WriteString(c.pairs())
	return b.String()
}

// pairs says how often each event came in each state, machine by machine.
func (c *Coverage) pairs() string {
	var b strings.Builder
	seen := append(slices.Clone(c.decoder), c.prefiller...)
	some := 0
	last := proto.Pair{}
	for i, p := range append(proto.DecoderPairs(), proto.PrefillerPairs()...) {
		if seen[i] == 0 {
			continue
		}
		some++
		if p.Of != last.Of || p.State != last.State {
			fmt.Fprintf(&b, "\n  %-14s %-12s", p.Of, p.State)
		}
		last = p
		fmt.Fprintf(&b, " %s %d", p.Event, seen[i])
	}
	return fmt.Sprintf("%d of %d pairs of state and event%s\n", some, len(seen), b.String())
}

// collect takes what the machines of a run have counted.
func (w *world) collect() {
	if w.cover == nil {
		return
	}
	for _, d := range w.decoders {
		d.m.AddSeen(w.cover.decoder)
	}
	for _, p := range w.prefillers {
		p.m.AddSeen(w.cover.prefiller)
	}
}

func (w *world) noted(name string, n proto.Note) {
	if w.tell {
		m := n
		m.Timing = nil // a pointer
		w.note("%s: %+v", name, m)
	}
	switch n.Kind {
	case proto.NoteAttempt:
		w.seen("attempt on D", n.From, n.To)
	case proto.NoteWriter:
		w.seen("writer", n.From, n.To)
	case proto.NoteUnexpected:
		w.unexpected(name, "D", n.From, n.To)
	}
}

func (w *world) servedNote(name string, n proto.ServeNote) {
	if w.tell {
		w.note("%s: %+v", name, n)
	}
	switch n.Kind {
	case proto.ServeAttempt:
		w.seen("attempt on P", n.From, n.To)
	case proto.ServeJob:
		w.seen("job", n.From, n.To)
	case proto.ServeUnexpected:
		w.unexpected(name, "P", n.From, n.To)
	}
}

func (w *world) seen(of, from, to string) {
	if w.cover != nil {
		w.cover.Changes[Change{of, from, to}]++
	}
}

func (w *world) unexpected(name, of, state, event string) {
	c := Change{of, state, event}
	if w.cover != nil {
		w.cover.Unexpected[c]++
	}
	if _, ok := benign[c]; !ok {
		w.fail("unexpected", "%s: event %s in state %s", name, event, state)
	}
}

// benign are events that may come in a state in which they mean nothing, and why.
var benign = map[Change]string{}
