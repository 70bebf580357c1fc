package proto

import (
	"fmt"
	"slices"

	"github.com/hawser-project/hawser"
)

// Decide says how an epoch ended that members are in doubt about, because the log that says so is lost or cannot be reached. It asks all
// members that are there first, and refuses if one of them knows the other decision; without force also if a member of the epoch is
// missing. The decision is logged before it is told. ControllerOut.Ended ends it.
func (c *Controller) Decide(now Time, epoch uint64, commit, force bool) (uint64, error) {
	c.now = max(c.now, now)
	k, v, rest := c.doubted(epoch)
	switch {
	case k == (Key{}):
		return 0, fmt.Errorf("weights: nobody who has joined waits for the decision of e%d: %w", epoch, hawser.ErrInvalid)
	case c.running(k) || c.epoch != nil:
		return 0, fmt.Errorf("weights: %v is under way: %w", c.epoch.key, hawser.ErrBusy)
	}
	o := &operation{kind: opDecide, version: v, of: k, want: Decision{Of: k, Version: v, Commit: commit, Operator: true}, force: force, rest: rest}
	id, err := c.order(now, o)
	if err != nil {
		return 0, err
	}
	for _, p := range c.peers {
		if p.join.Last.Of == k {
			o.facts = append(o.facts, p.join.Last)
		}
		c.tell(p.id, Head{Term: c.term}, &Ask{Of: k})
	}
	return id, nil
}

// doubted finds the epoch with a number that somebody is in doubt about, and who is part of it.
func (c *Controller) doubted(number uint64) (k Key, v Version, rest []Member) {
	for _, p := range c.peers {
		j := p.join
		if j.Epoch.Number == number && j.State.inEpoch() && (k == (Key{}) || j.Epoch == k) {
			k, v = j.Epoch, j.Pending
			if len(j.Others) > 0 {
				rest = j.Others
			}
		}
	}
	return k, v, rest
}

// told takes the answer of a member.
func (c *Controller) told(from ID, x *Told) {
	o := c.op
	if o == nil || o.kind != opDecide || o.of != x.Of || slices.Contains(o.heard, from) {
		return
	}
	o.heard = append(o.heard, from)
	if x.Known {
		o.facts = append(o.facts, x.Decision)
	}
	for _, p := range c.peers {
		if !slices.Contains(o.heard, p.id) {
			return
		}
	}
	c.settle(o)
}

// settle decides, when everybody was asked.
func (c *Controller) settle(o *operation) {
	refuse := func(format string, args ...any) {
		c.endOp(&EpochError{Version: o.version, Epoch: o.of, Code: CodeCancelled, Text: fmt.Sprintf(format, args...), Err: hawser.ErrRefused})
	}
	if r := c.decided(o.of); r != nil {
		o.facts = append(o.facts, r.Decision)
	}
	for _, d := range o.facts {
		if d.Commit != o.want.Commit {
			refuse("it is known that the decision was %s", decisionText(d.Commit))
			return
		}
	}
	var missing []string
	for i := range o.rest {
		if c.peer(o.rest[i].ID) == nil {
			missing = append(missing, o.rest[i].String())
		}
	}
	if len(missing) > 0 && !o.force {
		refuse("not there: %v; force decides without them", missing)
		return
	}
	c.settled(o)
}

// settled logs what the operator has decided, and tells it.
func (c *Controller) settled(o *operation) {
	e := &epoch{key: o.of, since: o.of, chain: []Key{o.of}, version: o.version, mode: ModePush, begun: true, started: true, blame: -1, op: o.id, planned: &Planned{}}
	unready := map[int]bool{}
	for _, m := range o.rest {
		p := c.peer(m.ID)
		if m.Role == RoleReceiver && p != nil && p.join.Epoch == o.of && p.join.State.inEpoch() &&
			p.join.State != StatePrepared && p.join.State != StateInDoubt && p.join.State != StateSwitching {
			unready[m.Instance] = true
		}
	}
	for _, m := range o.rest {
		p := c.peer(m.ID)
		if p == nil || p.join.Epoch != o.of || !p.join.State.inEpoch() {
			continue
		}
		e.members = append(e.members, m)
		e.at = append(e.at, progress{source: m.Role == RolePublisher, out: m.Role == RoleReceiver && unready[m.Instance]})
	}
	e.commit = o.want.Commit
	if e.commit {
		e.instances = e.left()
		o.want.Instances = e.instances
	}
	o.deadline = 0
	c.epoch = e
	c.enter(epDeciding, 0)
	c.write(Record{Decision: o.want})
	c.waitLog()
}
