package proto

import (
	"fmt"
	"slices"
)

// epochPhase is what an epoch waits for.
type epochPhase uint8

const (
	epPlanning  epochPhase = 1 + iota // Planned
	epAdopting                        // PLANNED of all
	epOffering                        // Push of all publishers
	epGranting                        // GRANT of all
	epWriting                         // PUSHED of all sources, PREPARED of all receivers
	epHalting                         // QUIET of all sources
	epFencing                         // HALTED of all
	epRepairing                       // Planned, without those who are lost
	epDeciding                        // Logged
	epSwitching                       // DONE of all, after a commit
	epAborting                        // the same after an abort
)

var epochPhaseNames = [...]string{
	epPlanning: "planning", epAdopting: "adopting", epOffering: "offering", epGranting: "granting", epWriting: "writing", epHalting: "halting",
	epFencing: "fencing", epRepairing: "repairing", epDeciding: "deciding", epSwitching: "switching", epAborting: "aborting",
}

func (p epochPhase) String() string { return epochPhaseNames[p] }

// epoch is the one that is under way. Owned by the Controller.
type epoch struct {
	op         uint64 // that it is for; 0: none, a copy
	key, since Key
	chain      []Key // since, ..., key
	version    Version
	mode       Mode
	phase      epochPhase
	deadline   Time // of the phase; 0: none
	members    []Member
	sources    []int
	without    []Member // publishers that were gone before it began
	at         []progress
	planned    *Planned
	begun      bool // BEGIN was said, in this epoch or one that it continues
	started    bool // START was
	pushed     bool // all sources have
	round      int  // of Halt
	log        uint64
	commit     bool
	instances  []int  // that switch
	next       *epoch // it is being logged that this one continues

	repairs    int
	repairable bool // of what ends it
	blame      int  // -1: nobody
	code       Code
	text       string

	sums   []forward
	sumsAt Time
	outs   []InstanceOut
}

// forward is stages that a receiver is to be told of.
type forward struct {
	to   int
	body Stage
}

// progress is what the controller knows of a member in the epoch.
type progress struct {
	source   bool
	out      bool // receivers: the instance is no part of it any more
	lost     bool // gone, or silent
	planned  bool
	granted  bool
	grant    Grant
	holds    []Import
	quiet    *Quiet
	prepared bool
	root     Hash
	halted   int // the round
	verified []uint64
	kept     []uint64 // stages that the plan takes for there
	done     bool
	ok       bool
}

func (e *epoch) index(id ID) int {
	return slices.IndexFunc(e.members, func(m Member) bool { return m.ID == id })
}

// all reports whether f is true of all members that are still part of it.
func (e *epoch) all(f func(p *progress) bool) bool {
	for i := range e.at {
		if p := &e.at[i]; !p.lost && !p.out && !f(p) {
			return false
		}
	}
	return true
}

func (c *Controller) head() Head {
	return Head{Term: c.term, Epoch: c.epoch.key.Number, Version: c.epoch.version}
}

// sayTo says something to a member of the epoch.
func (c *Controller) sayTo(i int, b Body) { c.say(c.epoch.members[i].ID, c.head(), b) }

func (c *Controller) enter(p epochPhase, limit Time) {
	e := c.epoch
	from := ""
	if e.phase != 0 {
		from = e.phase.String()
	}
	c.out.Note(Note{Kind: NotePhase, Epoch: e.key, Version: e.version, From: from, To: p.String()})
	e.phase, e.deadline = p, 0
	if limit > 0 {
		e.deadline = c.now + limit
	}
}

// newEpoch begins an epoch with a plan. lost are publishers without which it must do.
func (c *Controller) newEpoch(o *operation, v Version, mode Mode, members []Member, sources []int, lost []Member) {
	c.top++
	k := Key{c.term, c.top}
	e := &epoch{
		key: k, since: k, chain: []Key{k}, version: v, mode: mode, members: members, sources: sources, without: lost, at: make([]progress, len(members)), blame: -1,
	}
	for _, s := range sources {
		e.at[s].source = true
	}
	if o != nil {
		e.op = o.id
	}
	c.epoch = e
	c.enter(epPlanning, c.cfg.Limits.Plan)
	if mode == ModeBack {
		e.planned = &Planned{Slices: make([]Hash, len(members)), Writes: make([][]int, len(members))}
		c.adopt()
		return
	}
	c.out.Plan(&PlanRequest{Epoch: k, Version: v, Mode: mode, Members: members, Sources: sources, Lost: lost})
}

// Planned answers Plan.
func (c *Controller) Planned(now Time, k Key, p *Planned, err error) {
	c.now = max(c.now, now)
	e := c.epoch
	if e == nil || e.key != k && (e.next == nil || e.next.key != k) || e.phase != epPlanning && e.phase != epRepairing {
		return
	}
	switch {
	case err == nil && (len(p.Slices) != len(c.planning().members) || len(p.Writes) != len(p.Slices)):
		panic(fmt.Sprintf("weights/proto: a plan for %d members, %d were asked for", len(p.Slices), len(c.planning().members)))
	case e.phase == epPlanning && err != nil:
		e.code, e.text = CodePlan, err.Error()
		if len(e.without) > 0 {
			e.code, e.text = CodeReplica, fmt.Sprintf("%s gone: %v", ranksText(e.without), err)
		}
		c.over(nil)
	case e.phase == epPlanning:
		e.planned = p
		c.adopt()
	case err != nil:
		e.next, e.code, e.text = nil, CodeReplica, err.Error()
		c.decide(false)
	default:
		e.next.planned = p
		c.supersede()
	}
	c.advance()
}

func (c *Controller) planning() *epoch {
	if c.epoch.next != nil {
		return c.epoch.next
	}
	return c.epoch
}

// adopt gives every member its slice.
func (c *Controller) adopt() {
	e := c.epoch
	c.enter(epAdopting, c.cfg.Limits.Plan)
	for i := range e.members {
		c.sayTo(i, &Plan{e.mode, e.planned.Plan, e.planned.Slices[i]})
	}
}

// epochStep goes on when what the phase waits for is there.
func (c *Controller) epochStep() bool {
	e := c.epoch
	switch e.phase {
	case epAdopting:
		if e.all(func(p *progress) bool { return p.planned }) {
			c.enter(epOffering, c.cfg.Limits.Offer)
			return true
		}
	case epOffering:
		if c.offered() {
			c.sayBegin()
			return true
		}
	case epGranting:
		if broken(mutStart) || e.all(func(p *progress) bool { return p.granted }) {
			c.sayStart()
			return true
		}
	case epWriting:
		return c.writing()
	case epHalting:
		if e.all(func(p *progress) bool { return !p.source || p.quiet != nil }) {
			c.sayFence()
			return true
		}
	case epFencing:
		if e.all(func(p *progress) bool { return p.halted == e.round }) {
			c.repair()
			return true
		}
	case epSwitching, epAborting:
		if e.all(func(p *progress) bool { return p.done }) {
			c.over(e.outcome())
			return true
		}
	}
	return false
}

// offered reports whether all publishers have called Push for the version. Those of an epoch that is repaired have.
func (c *Controller) offered() bool {
	e := c.epoch
	if e.mode != ModePush || e.begun {
		return true
	}
	for _, s := range e.sources {
		p := c.peer(e.members[s].ID)
		if p == nil || p.join.State != StateOffered || p.join.Pending != e.version {
			return false
		}
	}
	return true
}

func (c *Controller) peer(id ID) *peer {
	for _, p := range c.peers {
		if p.id == id {
			return p
		}
	}
	return nil
}

// sayBegin begins the epoch at its members.
func (c *Controller) sayBegin() {
	e := c.epoch
	e.begun = true
	c.enter(epGranting, c.cfg.Limits.Pause)
	writers := make([][]int, len(e.members))
	for i, to := range e.planned.Writes {
		for _, t := range to {
			writers[t] = append(writers[t], i)
		}
	}
	since := Key{}
	if e.since != e.key {
		since = e.since
	}
	for i := range e.members {
		if p := c.peer(e.members[i].ID); p != nil {
			p.in = e.key
		}
		c.sayTo(i, &Begin{
			Mode: e.mode, Log: c.cfg.Log, Since: since, Plan: e.planned.Plan, Slice: e.planned.Slices[i], Members: e.members,
			Kept: e.at[i].kept, Writers: writers[i], Targets: e.planned.Writes[i],
		})
	}
}

// sayStart lets the sources write.
func (c *Controller) sayStart() {
	e := c.epoch
	c.enter(epWriting, c.cfg.Limits.Push)
	for _, s := range e.sources {
		if e.at[s].lost {
			continue
		}
		e.started = true
		m := &Start{}
		for _, t := range e.planned.Writes[s] {
			p := &e.at[t]
			if p.out || p.lost || !p.granted && !broken(mutStart) {
				continue
			}
			g := p.grant
			if slices.ContainsFunc(e.at[s].holds, func(i Import) bool { return i.Member == t && i.Serial == g.Serial }) {
				g.Descriptors = nil
			}
			m.Grants = append(m.Grants, PeerGrant{t, g})
		}
		c.sayTo(s, m)
	}
}

// writing decides when all is written, and prepared.
func (c *Controller) writing() bool {
	e := c.epoch
	if !e.pushed && e.all(func(p *progress) bool { return !p.source || p.quiet != nil }) {
		e.pushed = true
		c.forward()
		e.deadline = c.now + c.cfg.Limits.PostLoad
	}
	pushed := e.pushed || broken(mutUnquiet)
	if pushed && e.all(func(p *progress) bool { return p.source || p.prepared }) || broken(mutPrepared) && slices.ContainsFunc(e.at, func(p progress) bool { return p.prepared }) {
		if i, j := e.differ(); i >= 0 {
			c.fail(i, CodeDigest, fmt.Sprintf("content root differs from that of %v", &e.members[j]), false)
			return true
		}
		c.decide(true)
		return true
	}
	return false
}

// differ finds two receivers that must hold the same and do not.
func (e *epoch) differ() (int, int) {
	type content struct {
		shard  int
		layout Hash
	}
	first := map[content]int{}
	for i := range e.at {
		p, m := &e.at[i], &e.members[i]
		if p.source || p.out || p.lost || p.root == (Hash{}) {
			continue
		}
		k := content{m.Shard, m.Layout}
		if j, ok := first[k]; !ok {
			first[k] = i
		} else if e.at[j].root != p.root {
			return i, j
		}
	}
	return -1, -1
}

// hear takes what a member says of the epoch.
func (c *Controller) hear(e *epoch, i int, b Body) {
	p := &e.at[i]
	switch x := b.(type) {
	case *PlannedBy:
		p.planned = true
	case *GrantOf:
		if !p.granted {
			p.granted, p.grant, p.holds = true, x.Grant, x.Holds
		}
	case *Stage:
		c.stage(i, x)
	case *Quiet:
		c.quiet(i, x)
	case *Prepared:
		p.prepared, p.root = true, x.Root
	case *Halted:
		if x.Round == e.round {
			p.halted, p.verified = x.Round, x.Verified
			if len(x.Stuck) > 0 {
				c.outInstance(i, CodeUnfenced, fmt.Sprintf("%v may still write", x.Stuck[0]))
			}
		}
	case *Failed:
		c.failed(i, x)
	}
}

// stage keeps what receivers are to be told.
func (c *Controller) stage(from int, x *Stage) {
	e := c.epoch
	if !e.at[from].source {
		return
	}
	for _, s := range x.Sums {
		if s.To >= len(e.members) || e.at[s.To].out || e.at[s.To].lost {
			continue
		}
		s.From = from
		i := slices.IndexFunc(e.sums, func(f forward) bool { return f.to == s.To && len(f.body.Sums) < maxSums })
		if i < 0 {
			i = len(e.sums)
			e.sums = append(e.sums, forward{to: s.To})
		}
		e.sums[i].body.Sums = append(e.sums[i].body.Sums, s)
	}
	if e.sumsAt == 0 && len(e.sums) > 0 {
		e.sumsAt = c.now + stagePause
		if e.pushed {
			c.forward()
		}
	}
}

// forward tells receivers of stages.
func (c *Controller) forward() {
	e := c.epoch
	for i := range e.sums {
		c.sayTo(e.sums[i].to, &e.sums[i].body)
	}
	e.sums, e.sumsAt = nil, 0
}

// quiet takes the end of a source's writing.
func (c *Controller) quiet(i int, x *Quiet) {
	e := c.epoch
	p := &e.at[i]
	if !p.source {
		return
	}
	if p.quiet == nil || x.How != QuietPushed {
		p.quiet = x
	}
	if e.phase > epWriting {
		return
	}
	whole := !slices.ContainsFunc(slices.Concat(x.Missed, x.Unquiet), func(t int) bool { return t < len(e.at) && !e.at[t].out && !e.at[t].lost })
	switch {
	case x.How == QuietLeft:
		p.lost = true
		c.fail(i, CodeLost, "it left the push", true)
	case x.How == QuietPushed && !whole && !broken(mutUnquiet):
		c.fail(i, CodeWrite, "it could not write everything", true)
	}
}
