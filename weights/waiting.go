package weights

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hawser-project/hawser/weights/proto"
)

// Waiting is what a receiver waits for in the epoch that is under way: the first stage that it does not have completely.
type Waiting struct {
	Stage      string
	Have, Want uint64    // writes
	Missing    []Missing // those who owe most first, at most mostMissing
	More       int       // others who owe something
}

// Missing is what a publisher owes of a stage.
type Missing struct {
	Publisher  int // rank
	Stage      string
	Have, Want uint64
	Down       bool // there is no session with it
}

// mostMissing bounds how many publishers are named.
const mostMissing = 8

// waiting sums up what is owed, nil when that is nothing. all is in the order of stages.
func waiting(all []Missing, want func(stage string) uint64) *Waiting {
	if len(all) == 0 {
		return nil
	}
	w := &Waiting{Stage: all[0].Stage, Want: want(all[0].Stage)}
	w.Have = w.Want
	for _, m := range all {
		if m.Stage == w.Stage {
			w.Missing = append(w.Missing, m)
			w.Have -= m.Want - m.Have
		}
	}
	slices.SortFunc(w.Missing, func(a, b Missing) int {
		return cmp.Or(cmp.Compare(b.Want-b.Have, a.Want-a.Have), a.Publisher-b.Publisher)
	})
	if n := len(w.Missing) - mostMissing; n > 0 {
		w.Missing, w.More = w.Missing[:mostMissing], n
	}
	return w
}

// text says it for people. after is how long it has waited.
func (w *Waiting) text(rank int, after time.Duration) string {
	var b strings.Builder
	fmt.Fprintf(&b, "receiver %d stage %s: %d of %d writes after %v; missing: ", rank, w.Stage, w.Have, w.Want, after)
	for i, m := range w.Missing {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "publisher %d (%d", m.Publisher, m.Want-m.Have)
		if m.Down {
			b.WriteString(", peer down")
		}
		b.WriteByte(')')
	}
	if w.More > 0 {
		fmt.Fprintf(&b, " and %d more", w.More)
	}
	return b.String()
}

// tellPause is how often a receiver tells what it waits for; quick pushes are over before.
const tellPause = 250 * time.Millisecond

// progress tells the controller what is missing, until the epoch is over. Nothing depends on it: it is for people.
func (x *reception) progress(ctx context.Context) {
	t := time.NewTicker(tellPause)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			x.tell()
		case <-x.over:
			x.tell() // nothing is missing, or the epoch ends
			return
		case <-ctx.Done():
			return
		}
	}
}

func (x *reception) tell() {
	x.r.mu.Lock()
	defer x.r.mu.Unlock()
	if x.r.in[x.e.Key] != x {
		return // its counters have been given back
	}
	if w := waiting(x.missing(), x.in.owed); w != nil || x.waits {
		x.waits = w != nil
		x.r.tell(x.e.Key, memberReport{Waiting: w, Arrived: x.in.arrived()})
	}
}

// Arrived is how much a receiver has of an epoch. Of stages that are not complete it is known how many writes have come, not which: their bytes are estimated.
type Arrived struct{ Bytes, Of int64 }

// arrived is what has come.
func (in *inbound) arrived() (a Arrived) {
	for s, runs := range in.runs {
		c := in.counters[s]
		if c == nil {
			continue
		}
		for rank, list := range runs {
			n := int64(0)
			for i := range list {
				n += list[i].Len
			}
			a.Of += n
			if p := in.peers[rank]; p != nil {
				a.Bytes += int64(float64(n) * min(1, float64(c.From(p))/float64(len(list))))
			}
		}
	}
	return a
}

// arrived is what has come to a member, as it has told.
func (k *clock) arrived(id proto.ID, epoch uint64) Arrived {
	if r, ok := k.reports[id]; ok && r.Epoch == epoch {
		return r.Arrived
	}
	return Arrived{}
}

// owing is what a member waits for, as it has told.
func (k *clock) owing(id proto.ID, epoch uint64) *Waiting {
	if r, ok := k.reports[id]; ok && r.Epoch == epoch {
		return r.Waiting
	}
	return nil
}

// Owed names what the receiver waits for that lacks most, as receivers have told last.
func (c controllerOut) Owed(e proto.Key, members []proto.Member, after time.Duration) string {
	var worst *Waiting
	rank, all := 0, 0
	for i := range members {
		w := c.clock.owing(members[i].ID, e.Number)
		if w == nil {
			continue
		}
		all++
		if worst == nil || w.Want-w.Have > worst.Want-worst.Have {
			worst, rank = w, members[i].Rank
		}
	}
	if worst == nil {
		return ""
	}
	text := worst.text(rank, after)
	if all > 1 {
		text += fmt.Sprintf("; %d more receivers wait", all-1)
	}
	return text
}
