package proto

import (
	"fmt"
	"slices"

	"github.com/hawser-project/hawser"
)

// operation is what a user wants. Owned by the Controller.
type operation struct {
	id       uint64
	kind     opKind
	version  Version
	skip     bool // leave instances with a suspended rank out
	deadline Time // until an epoch of it begins; 0: one runs
	again    Time // when it looks again whether it can begin; 0: after the next event
	tried    []int
	why      string // what it waits for
	done     Outcome

	of    Key // decide
	want  Decision
	force bool
	heard []ID // who has answered
	facts []Decision
	rest  []Member // members of the epoch, as those in doubt know them
}

type opKind uint8

const (
	opUpdate opKind = 1 + iota
	opRollback
	opCopy
	opDecide
)

// UpdateOptions are those of Update.
type UpdateOptions struct {
	SkipSuspended bool // instances with a suspended rank are left out; else they make the update fail before anybody is stopped
}

// Update pushes version v from the joined publishers to all instances whose ranks have joined. ControllerOut.Ended ends it.
func (c *Controller) Update(now Time, v Version, o UpdateOptions) (uint64, error) {
	return c.order(now, &operation{kind: opUpdate, version: v, skip: o.SkipSuspended})
}

// Rollback makes all instances serve version v again, if it is still anywhere: as a kept copy, or served by another instance.
func (c *Controller) Rollback(now Time, v Version) (uint64, error) {
	return c.order(now, &operation{kind: opRollback, version: v})
}

func (c *Controller) order(now Time, o *operation) (uint64, error) {
	c.now = max(c.now, now)
	switch {
	case o.version == 0 && o.kind != opDecide:
		return 0, fmt.Errorf("weights: version 0: %w", ErrVersion)
	case c.deposed:
		return 0, fmt.Errorf("weights: members obey another controller: %w", hawser.ErrStale)
	case c.broken != nil:
		return 0, fmt.Errorf("weights: %w: %w; start the controller again", ErrLog, c.broken)
	case c.op != nil && c.op.kind != opCopy:
		return 0, fmt.Errorf("weights: v%d is under way: %w", c.op.version, hawser.ErrBusy)
	}
	c.ops++
	o.id = c.ops
	o.deadline = c.now + c.cfg.Limits.Offer
	if o.kind == opDecide {
		o.deadline = c.now + c.cfg.Limits.Ask
	}
	if e := c.epoch; e != nil { // a copy; it may end
		e.deadline = min(e.deadline, c.now+c.cfg.Limits.Copy)
	}
	c.op = o
	c.advance()
	return o.id, nil
}

// Cancel ends an operation that is not decided.
func (c *Controller) Cancel(now Time, op uint64) {
	c.now = max(c.now, now)
	if c.op == nil || c.op.id != op {
		return
	}
	if e := c.epoch; e != nil && e.op == op {
		if !e.begun {
			e.code = CodeCancelled
			c.over(nil)
		} else {
			c.fail(-1, CodeCancelled, "", false)
		}
	} else {
		c.endOp(&EpochError{Version: c.op.version, Code: CodeCancelled, Err: ErrAborted})
	}
	c.advance()
}

// endOp ends the operation with an error.
func (c *Controller) endOp(err error) {
	if o := c.op; o != nil {
		c.finishOp(Outcome{Version: o.version, Err: err})
	}
}

func (c *Controller) finishOp(o Outcome) {
	id := c.op.id
	c.op = nil
	if id != 0 {
		c.out.Ended(id, o)
	}
}

// opLate: what an operation waits for has not come.
func (c *Controller) opLate() {
	o := c.op
	o.deadline = 0
	if o.kind == opDecide {
		c.settle(o)
		return
	}
	if c.epoch != nil && c.epoch.op == o.id {
		return
	}
	c.endOp(&EpochError{Version: o.version, Code: CodeTimeout, Text: o.why, Err: ErrAborted})
}

// opOver takes the end of an epoch.
func (c *Controller) opOver(e *epoch, r *Outcome) {
	o := c.op
	if o == nil || o.id != e.op {
		if r.Err != nil && e.mode == ModeCopy {
			c.copyAt = c.now + c.cfg.Limits.Copy
		}
		return
	}
	switch {
	case o.kind == opRollback:
		o.done.Version, o.done.Epoch = o.version, r.Epoch
		o.done.Serving = append(o.done.Serving, r.Serving...)
		o.done.Out = append(o.done.Out, r.Out...)
		if r.Err != nil && o.done.Err == nil {
			o.done.Err = r.Err
		}
	default:
		c.finishOp(*r)
	}
}

// begin begins the next epoch, if one is wanted and everybody is ready.
func (c *Controller) begin() bool {
	o := c.op
	if c.broken != nil || c.deposed {
		return false
	}
	switch {
	case o == nil:
		return c.cfg.Copy && c.copyAt <= c.now && c.beginCopy()
	case o.kind == opUpdate:
		return c.beginUpdate(o)
	case o.kind == opRollback:
		return c.beginBack(o)
	}
	return false
}

// instance is a receiving engine all of whose ranks have joined.
type instance struct {
	number int
	ranks  []*peer // by shard
}

// busy reports whether a member is part of an epoch, or has not said yet what became of it.
func (p *peer) busy() bool {
	return (p.join.State.inEpoch() || p.join.Epoch.Compare(p.in) < 0) && !broken(mutQuiet)
}

// instances are those that are complete and not part of an epoch, ascending. waits: somebody else's epoch is about to end.
func (c *Controller) instances() (list []instance, waits bool) {
	for _, p := range c.peers {
		if p.join.Member.Role != RoleReceiver {
			continue
		}
		n := p.join.Member.Instance
		i := slices.IndexFunc(list, func(x instance) bool { return x.number == n })
		if i < 0 {
			i = len(list)
			list = append(list, instance{number: n})
		}
		list[i].ranks = append(list[i].ranks, p)
	}
	list = slices.DeleteFunc(list, func(x instance) bool {
		leaders, free := 0, true
		for _, p := range x.ranks {
			if p.join.Member.Leader {
				leaders++
			}
			if p.busy() {
				free = false
				waits = waits || p.join.Log == c.cfg.Log || !p.join.State.inEpoch()
			}
			if len(p.join.Stuck) > 0 && !broken(mutQuiet) || !c.out.Has(p.join.Member.Layout) {
				free = false
			}
		}
		return !free || leaders != 1 || len(x.ranks) != x.ranks[0].join.Group
	})
	for _, x := range list {
		slices.SortStableFunc(x.ranks, func(a, b *peer) int { return a.join.Member.Shard - b.join.Member.Shard })
	}
	slices.SortFunc(list, func(a, b instance) int { return a.number - b.number })
	return list, waits
}

// is reports whether all ranks are in a state, with the same version.
func (x *instance) is(s State) bool {
	for _, p := range x.ranks {
		if p.join.State != s || p.join.Version != x.ranks[0].join.Version {
			return false
		}
	}
	return true
}

func (x *instance) version() Version { return x.ranks[0].join.Version }

// serves reports whether all ranks serve v.
func (x *instance) serves(v Version) bool { return x.is(StateCommitted) && x.version() == v }

// suspended is a rank that is, or nil.
func (x *instance) suspended() *peer {
	for _, p := range x.ranks {
		if p.join.State == StateSuspended {
			return p
		}
	}
	return nil
}

func (c *Controller) beginUpdate(o *operation) bool {
	o.again = 0
	publishers, why := c.publishers()
	var lost []Member
	if why == "" {
		lost, why = c.missing(o, publishers)
	}
	if why != "" {
		o.why = why
		return false
	}
	if len(publishers) == 0 {
		c.endOp(&EpochError{Version: o.version, Code: CodeReplica, Text: "no publisher is left", Err: ErrAborted})
		return true
	}
	all, waits := c.instances()
	if waits {
		o.why = "the end of an earlier epoch" + c.stuckText()
		return false
	}
	var list []instance
	for _, x := range all {
		p := x.suspended()
		if p != nil && !o.skip {
			c.endOp(&EpochError{
				Version: o.version, Member: p.join.Member.String(), Code: CodeSuspended,
				Text: fmt.Sprintf("instance %d is suspended: resume it, or skip suspended ones", x.number), Err: ErrSuspended,
			})
			return true
		}
		if p == nil {
			list = append(list, x)
		}
	}
	if len(list) < c.cfg.MinInstances {
		o.why = fmt.Sprintf("%d instances are ready, want %d", len(list), c.cfg.MinInstances) + c.stuckText()
		return false
	}
	var members []Member
	var sources []int
	for i, p := range publishers {
		members = append(members, p.join.Member)
		sources = append(sources, i)
	}
	for _, x := range list {
		members = x.append(members)
	}
	c.run(o, o.version, ModePush, members, sources, lost)
	return true
}

// stuckText says which member cannot take part because somebody may still write into it.
func (c *Controller) stuckText() string {
	for _, p := range c.peers {
		if len(p.join.Stuck) > 0 {
			return fmt.Sprintf("; engine %v may still write into %v, until it goes on or dies", p.join.Stuck[0], &p.join.Member)
		}
	}
	return ""
}

func (x *instance) append(members []Member) []Member {
	for _, p := range x.ranks {
		members = append(members, p.join.Member)
	}
	return members
}

func (c *Controller) run(o *operation, v Version, mode Mode, members []Member, sources []int, lost []Member) {
	if o != nil {
		o.deadline = 0
	}
	c.newEpoch(o, v, mode, members, sources, lost)
}

// publishers are those who have joined, by rank, or why they cannot begin.
func (c *Controller) publishers() (list []*peer, why string) {
	for _, p := range c.peers {
		if p.join.Member.Role != RolePublisher {
			continue
		}
		if p.busy() {
			return nil, fmt.Sprintf("%v, which is %v", &p.join.Member, p.join.State)
		}
		if !c.out.Has(p.join.Member.Layout) {
			return nil, fmt.Sprintf("the layout of %v", &p.join.Member)
		}
		list = append(list, p)
	}
	slices.SortStableFunc(list, func(a, b *peer) int { return a.join.Member.Rank - b.join.Member.Rank })
	return list, ""
}

// beginCopy fills one instance that has no version from one that has.
func (c *Controller) beginCopy() bool {
	list, _ := c.instances()
	for _, x := range list {
		if !x.is(StateEmpty) && !x.is(StateFailed) {
			continue
		}
		if y := twin(&x, list, c.version); y != nil {
			c.copy(nil, y, &x)
			return true
		}
	}
	return false
}

// twin is an instance that serves a version, v if there is one, and whose ranks hold the same as those of x.
func twin(x *instance, list []instance, v Version) (best *instance) {
	for i := range list {
		y := &list[i]
		if y.number == x.number || !y.is(StateCommitted) || len(y.ranks) != len(x.ranks) || best != nil && y.version() != v {
			continue
		}
		same := true
		for k := range x.ranks {
			a, b := &x.ranks[k].join.Member, &y.ranks[k].join.Member
			same = same && a.Shard == b.Shard
		}
		if same {
			best = y
		}
	}
	return best
}

// copy fills instance to from instance from.
func (c *Controller) copy(o *operation, from, to *instance) {
	members := from.append(nil)
	var sources []int
	for i := range members {
		sources = append(sources, i)
	}
	c.run(o, from.version(), ModeCopy, to.append(members), sources, nil)
}

// beginBack goes on with a rollback: first those who kept the version take it back, then others copy it from them.
func (c *Controller) beginBack(o *operation) bool {
	list, waits := c.instances()
	if waits {
		o.why = "the end of an earlier epoch" + c.stuckText()
		return false
	}
	// What an epoch of this operation has reached is true, also before the members report it.
	serving := func(x *instance) bool { return x.serves(o.version) || slices.Contains(o.done.Serving, x.number) }
	var members []Member
	missing := 0
	for _, x := range list {
		if serving(&x) || x.suspended() != nil {
			continue
		}
		missing++
		if !slices.Contains(o.tried, x.number) && !slices.ContainsFunc(x.ranks, func(p *peer) bool { return p.join.Held != o.version }) {
			o.tried = append(o.tried, x.number)
			members = x.append(members)
		}
	}
	if len(members) > 0 {
		c.run(o, o.version, ModeBack, members, nil, nil)
		return true
	}
	for _, x := range list {
		if serving(&x) || x.suspended() != nil || slices.Contains(o.tried, -1-x.number) {
			continue
		}
		if y := twin(&x, list, o.version); y != nil && y.version() == o.version {
			o.tried = append(o.tried, -1-x.number)
			c.copy(o, y, &x)
			return true
		}
	}
	done := o.done
	done.Version, done.Serving = o.version, nil
	for _, x := range list {
		if serving(&x) {
			done.Serving = append(done.Serving, x.number)
		}
	}
	if len(done.Serving) == 0 && done.Err == nil {
		done.Err = &EpochError{Version: o.version, Code: CodeRestore, Text: "nobody has kept it, or serves it", Err: ErrVersion}
	} else if missing == 0 {
		done.Err = nil
	}
	c.version = o.version
	c.finishOp(done)
	return true
}
