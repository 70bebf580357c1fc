package proto

import (
	"fmt"
	"slices"
	"strings"
)

// absent is a publisher whose session has ended without a word, and whose rank nobody has taken since.
type absent struct {
	Member
	group int
	at    Time // of the end
}

// miss notes that a publisher is gone.
func (c *Controller) miss(id ID) {
	if p := c.peer(id); p != nil && p.join != nil && p.join.Member.Role == RolePublisher {
		c.back(&p.join.Member)
		c.gone = append(c.gone, absent{p.join.Member, p.join.Group, c.now})
	}
}

// back notes that a publisher is there: again, or another one in its place. With another layout it has nothing to do with those who are gone.
func (c *Controller) back(m *Member) {
	if m.Role == RolePublisher {
		c.gone = slices.DeleteFunc(c.gone, func(a absent) bool { return a.Rank == m.Rank || a.Layout != m.Layout })
	}
}

// missing are the publishers without which an update begins: those that do not come back. why says whom it waits for: those that never were
// there, and for a moment those that are gone.
func (c *Controller) missing(o *operation, list []*peer) (lost []Member, why string) {
	group := 0
	switch {
	case len(list) > 0:
		group = list[0].join.Group
	case len(c.gone) > 0:
		group = c.gone[0].group
	default:
		return nil, "publishers: none has joined"
	}
	there := make([]bool, group)
	for _, p := range list {
		if r := p.join.Member.Rank; r >= group || there[r] {
			return nil, fmt.Sprintf("publisher %d, of whom there are two, or too many", r)
		} else {
			there[r] = true
		}
	}
	for i := range c.gone {
		a := &c.gone[i]
		if a.Rank >= group || there[a.Rank] || a.group != group {
			continue
		}
		there[a.Rank] = true
		lost = append(lost, a.Member)
		if at := a.at + c.cfg.Limits.Return; at > c.now {
			o.again = max(o.again, at)
		}
	}
	var never []Member
	for r, ok := range there {
		if !ok {
			never = append(never, Member{Role: RolePublisher, Rank: r})
		}
	}
	if len(never) > 0 {
		o.again = 0
		return nil, fmt.Sprintf("%s not there, of %d", ranksText(never), group)
	}
	if o.again != 0 {
		return nil, ranksText(lost) + " gone"
	}
	return lost, ""
}

// mostRanks is how many ranks are named.
const mostRanks = 8

// ranksText names publishers, with a verb.
func ranksText(list []Member) string {
	var ranks []int
	for i := range list {
		ranks = append(ranks, list[i].Rank)
	}
	slices.Sort(ranks)
	text := strings.Trim(fmt.Sprint(ranks[:min(len(ranks), mostRanks)]), "[]")
	if n := len(ranks) - mostRanks; n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	if len(ranks) == 1 {
		return "publisher " + text + " is"
	}
	return "publishers " + text + " are"
}
