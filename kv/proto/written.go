package proto

import "github.com/hawser-project/hawser/kv/layout"

// Written is what one prefiller owes an attempt: the writes of Plan by a member of the source, into Pages, of each group.
type Written struct {
	Plan   *layout.Plan
	Member int
	Pages  []layout.Pages
}

// Written is for whoever answers Verify. It reports false when the attempt is over, or owes nothing from p.
func (d *Decoder) Written(seq uint64, p Peer) (Written, bool) {
	a := d.attempts[seq]
	if a == nil || a.step.state.quiet() {
		return Written{}, false
	}
	for i := range a.writers {
		w := &a.writers[i]
		if w.peer != p {
			continue
		}
		spans := make([]Span, len(d.groups))
		for g := range spans {
			spans[g] = a.span(g)
		}
		plan, err := a.r.src.pair.Plan(spans, seq)
		if err != nil {
			return Written{}, false
		}
		pages := make([]layout.Pages, len(d.groups))
		for g := range pages {
			pages[g] = layout.Pages{First: spans[g].First / d.groups[g].PageTokens, Index: a.pages(g)}
		}
		return Written{plan, w.member, pages}, true
	}
	return Written{}, false
}
