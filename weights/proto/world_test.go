package proto

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"
)

// world is members and controllers over a model of everything below them: a network, memory, engines, disks. It changes by steps that a
// test chooses: nothing happens by itself. Whatever must never be is written to faults.
type world struct {
	now     Time
	nodes   []*node
	net     []packet
	writes  []flight
	logs    []*logOf
	epochs  []*epochTruth
	engines []engine // by instance
	cfg     worldConfig
	wants   Version // publishers push it whenever they may
	faults  []string
	unquiet bool // the next Wrote does not know of its writes
	stops   int  // of engines
}

type worldConfig struct {
	publishers int
	instances  int
	ranks      int // of each instance
	shadow     bool
	stages     int
	copies     bool
	minInst    int
	noReplica  bool // Repair finds nothing
	rootless   bool // roots are not known when a rank is prepared
	window     Time
}

// packet is a message under way.
type packet struct {
	from, to ID
	data     []byte
}

// flight is a write under way.
type flight struct {
	from, to int // nodes
	key      Key
	stage    int
	version  Version
	again    bool // it has arrived already
}

// logOf is a decision log.
type logOf struct {
	id      ID
	records []Record
}

// engine is what an instance does.
type engine struct{ running bool }

// epochTruth is what the world knows of an epoch.
type epochTruth struct {
	key       Key
	abandoned []int // instances of which a rank has voted and ended its part without a commit
}

// node is one process.
type node struct {
	w     *world
	i     int
	id    ID
	alive bool
	c     *Controller
	p     *Publisher
	r     *Receiver
	disk  int

	todo []answer // wishes that are not answered

	// Receivers.
	copies  [2][]Version // content of each stage; in place only the first one
	active  int
	tag     Version // what this rank says it serves
	imms    []lent
	perms   []int // nodes that may write here
	parts   []partTruth
	flipped []Key

	// Publishers.
	jobs   []job
	ended  []end
	wanted Version
	pushed Version
	result []Outcome
}

// lent is the immediates of an epoch on a receiver.
type lent struct {
	key    Key
	kept   []uint64
	counts []int  // writes that landed, by stage
	sums   []int  // writers that have told, by stage
	told   []bool // Verified was called
	ready  bool
	epoch  *Epoch
}

// job is the writing of a source.
type job struct {
	key     Key
	epoch   *Epoch
	stopped bool
	left    int // writes that are not over
	failed  []int
	wrote   bool
	staged  bool
}

type end struct {
	key Key
	err error
}

// partTruth is what a member was last seen in.
type partTruth struct {
	key   Key
	voted bool
	phase phase
	inst  int
}

// answer is an event that is to come.
type answer struct {
	kind  string
	key   Key
	err   error
	seq   uint64
	id    ID
	epoch *Epoch
	plan  *Planned
	stage int
	v     Version
	hard  bool
}

func nodeID(i int) ID { return ID{0: byte(i + 1), 15: 0xee} }

func newWorld(cfg worldConfig) *world {
	cfg.stages = max(cfg.stages, 1)
	w := &world{cfg: cfg, logs: []*logOf{{id: ID{0xd1}}}, now: time.Second}
	w.controller(0)
	for i := range cfg.publishers {
		n := w.add()
		n.p, _ = NewPublisher(MemberConfig{Member: Member{ID: n.id, Addr: "p", Rank: i, Layout: Hash{1}}, Group: cfg.publishers}, n)
	}
	for i := range cfg.instances {
		w.engines = append(w.engines, engine{true})
		for k := range cfg.ranks {
			w.receiver(i, k, 1)
		}
	}
	return w
}

func (w *world) add() *node {
	n := &node{w: w, i: len(w.nodes), id: nodeID(len(w.nodes)), alive: true}
	w.nodes = append(w.nodes, n)
	return n
}

// receiver adds a rank that serves v; 0: it is empty.
func (w *world) receiver(instance, shard int, v Version) *node {
	n := w.add()
	n.r, _ = NewReceiver(ReceiverConfig{MemberConfig: MemberConfig{
		Member: Member{
			ID: n.id, Addr: "r", Rank: instance*w.cfg.ranks + shard, Instance: instance, Shard: shard, Leader: shard == 0,
			Shadow: w.cfg.shadow, Layout: Hash{2},
		}, Group: w.cfg.ranks,
	}}, n)
	for c := range n.copies {
		n.copies[c] = make([]Version, w.cfg.stages)
	}
	if n.tag = v; v != 0 {
		for s := range n.copies[0] {
			n.copies[0][s] = v
		}
		n.r.Serving(v, rootOf(v))
	}
	return n
}

func rootOf(v Version) Hash { return Hash{byte(v), 1} }

// controller adds a controller with a log.
func (w *world) controller(disk int) *node {
	n := w.add()
	n.disk = disk
	cfg := ControllerConfig{ID: n.id, Log: w.logs[disk].id, Records: slices.Clone(w.logs[disk].records), MinInstances: max(1, w.cfg.minInst), Copy: w.cfg.copies, JoinWindow: w.cfg.window}
	n.c, _ = NewController(cfg, ctlOut{n})
	return n
}

func (w *world) fault(format string, args ...any) {
	if len(w.faults) < 5 {
		w.faults = append(w.faults, fmt.Sprintf(format, args...))
	}
}

func (w *world) node(id ID) *node {
	for _, n := range w.nodes {
		if n.id == id {
			return n
		}
	}
	return nil
}

// ctl is the newest controller that lives, or nil.
func (w *world) ctl() *node {
	for i := len(w.nodes) - 1; i >= 0; i-- {
		if n := w.nodes[i]; n.c != nil && n.alive {
			return n
		}
	}
	return nil
}

// connect gives all members a session with a controller.
func (w *world) connect(c *node) {
	for _, n := range w.nodes {
		if n.alive && n.c == nil {
			n.later(answer{kind: "controller", id: c.id})
		}
	}
}

func (n *node) later(a answer) { n.todo = append(n.todo, a) }

func (n *node) member() *member {
	if n.p != nil {
		return &n.p.member
	}
	return &n.r.member
}

// Out.

func (n *node) Send(to ID, data []byte) {
	if t := n.w.node(to); t == nil || !t.alive || !n.alive {
		return
	}
	n.w.net = append(n.w.net, packet{n.id, to, data})
}
func (n *node) Meet(ID, string)   {}
func (n *node) Has(Hash) bool     { return true }
func (n *node) SendBlob(ID, Hash) {}
func (n *node) Note(x Note) {
	if x.Kind == NoteProtocol {
		n.w.fault("node %d: protocol: %s", n.i, x.Text)
	}
}

// MemberOut.

func (n *node) Adopt(e Key, _ Mode, _ Version, _, _ Hash) { n.later(answer{kind: "adopted", key: e}) }

func (n *node) Grant(e *Epoch, serial uint64, kept []uint64) {
	if n.r != nil {
		if !n.w.cfg.shadow && n.w.engines[n.r.cfg.Member.Instance].running {
			n.w.fault("node %d grants %v while its instance runs", n.i, e.Key)
		}
		if len(n.imms) > 0 {
			n.w.fault("node %d grants %v while it has %v", n.i, e.Key, n.imms[0].key)
		}
		stages := n.w.cfg.stages
		n.imms = append(n.imms, lent{key: e.Key, kept: kept, counts: make([]int, stages), sums: make([]int, stages), told: make([]bool, stages), epoch: e})
	}
	for _, t := range e.Writers {
		if i := n.w.node(e.Members[t].ID).i; !slices.Contains(n.perms, i) {
			n.perms = append(n.perms, i)
		}
	}
	n.later(answer{kind: "granted", key: e.Key})
}

func (n *node) Imported(ID) uint64 { return 0 }

func (n *node) Put(e Key) {
	if n.r == nil {
		return
	}
	i := slices.IndexFunc(n.imms, func(l lent) bool { return l.key == e })
	if i < 0 {
		n.w.fault("node %d puts %v, which it has not", n.i, e)
		return
	}
	for _, f := range n.w.writes {
		if f.to == n.i && slices.Contains(n.perms, f.from) {
			n.w.fault("node %d puts %v, a write of %v from node %d is under way", n.i, e, f.key, f.from)
		}
	}
	n.imms = slices.Delete(n.imms, i, i+1)
}

func (n *node) Fence(id ID, hard bool)          { n.later(answer{kind: "fence", id: id, hard: hard}) }
func (n *node) Drop(e Key, _ []int)             {}
func (n *node) Doubt(*Epoch, bool)              {}
func (n *node) Wanted(v Version)                { n.wanted = v }
func (n *node) Ended(v Version, k Key, e error) { n.endPush(k, e) }

func (n *node) endPush(k Key, err error) {
	n.ended = append(n.ended, end{k, err})
	if err == nil {
		n.pushed = n.w.wants
	}
	for _, f := range n.w.writes {
		if f.from == n.i && n.alive {
			n.w.fault("node %d ends its push of %v, a write of %v is under way", n.i, k, f.key)
		}
	}
	if err == nil && !n.w.committed(k, -1) {
		n.w.fault("node %d ends its push of %v as committed, no log says so", n.i, k)
	}
}

// committed reports whether a log says that an epoch is committed, for an instance.
func (w *world) committed(k Key, instance int) bool {
	for _, d := range w.logs {
		for _, r := range d.records {
			if r.Decision.Of == k && r.By == (Key{}) && r.Decision.Commits(instance) {
				return true
			}
		}
	}
	return false
}

func (n *node) Start(e *Epoch, grants []PeerGrant) {
	j := job{key: e.Key, epoch: e}
	for _, g := range grants {
		t := n.w.node(e.Members[g.Member].ID)
		if t == nil || t.r == nil {
			continue
		}
		var kept []uint64
		for _, l := range t.imms {
			if l.key == e.Key {
				kept = l.kept
			}
		}
		if e.Mode == ModePush && n.w.started(e, t) {
			n.w.fault("node %d starts %v, node %d has not granted it", n.i, e.Key, t.i)
		}
		for s := range n.w.cfg.stages {
			if n.writes(e, s) && !hasBit(kept, s) {
				n.w.writes = append(n.w.writes, flight{n.i, t.i, e.Key, s, e.Version, false})
				j.left++
			}
		}
	}
	n.jobs = append(n.jobs, j)
	n.mayHaveWrote()
}

// started reports whether an instance of the epoch runs, or has not granted.
func (w *world) started(e *Epoch, t *node) bool {
	return t.alive && t.r.part != nil && t.r.part.Key == e.Key && t.r.part.phase < phReady
}

// writes reports whether a source writes a stage: stages are dealt to the sources of the epoch in turn.
func (n *node) writes(e *Epoch, stage int) bool {
	var sources []ID
	for i := range e.Members {
		if m := &e.Members[i]; m.Role == RolePublisher {
			sources = append(sources, m.ID)
		}
	}
	if e.Mode == ModeCopy {
		return true
	}
	return sources[stage%len(sources)] == n.id
}

func (n *node) Stop(e Key) {
	for i := range n.jobs {
		if n.jobs[i].key == e {
			n.jobs[i].stopped = true
		}
	}
}

// mayHaveWrote ends the job whose writes are over.
func (n *node) mayHaveWrote() {
	for i := range n.jobs {
		if j := &n.jobs[i]; j.left == 0 && !j.wrote {
			j.wrote = true
			n.later(answer{kind: "wrote", key: j.key, epoch: j.epoch})
		}
	}
}

// ReceiverOut.

func (n *node) Pause(v Version)          { n.later(answer{kind: "pause", v: v}) }
func (n *node) Resume(v Version)         { n.later(answer{kind: "resume", v: v}) }
func (n *node) Flip(e Key, v Version)    { n.later(answer{kind: "flip", key: e, v: v}) }
func (n *node) Restore(e Key, v Version) { n.later(answer{kind: "restore", key: e, v: v}) }
func (n *node) Suspended()               { n.later(answer{kind: "suspended"}) }
func (n *node) Sums(e Key, s []StageSum) {
	for i := range n.imms {
		if l := &n.imms[i]; l.key == e {
			for _, x := range s {
				l.sums[x.Stage]++
			}
		}
	}
	n.mayBeReady()
}

// mayBeReady calls Verified and Ready when writes and sums are here.
func (n *node) mayBeReady() {
	for i := range n.imms {
		l := &n.imms[i]
		if l.ready {
			continue
		}
		all := true
		for s := range l.counts {
			switch {
			case hasBit(l.kept, s) || l.told[s]:
			case l.counts[s] > 0 && l.sums[s] > 0:
				l.told[s] = true
				n.later(answer{kind: "verified", key: l.key, stage: s})
			default:
				all = false
			}
		}
		if all {
			l.ready = true
			n.later(answer{kind: "ready", key: l.key, v: l.epoch.Version})
		}
	}
}

// shadowCopy is the copy that is written.
func (n *node) target() int {
	if n.w.cfg.shadow {
		return 1 - n.active
	}
	return 0
}

// whole reports whether a copy has all of v.
func (n *node) whole(c int, v Version) bool {
	return !slices.ContainsFunc(n.copies[c], func(x Version) bool { return x != v })
}

// land lets a write arrive.
func (w *world) land(i int) {
	f := w.writes[i]
	w.writes = slices.Delete(w.writes, i, i+1)
	from, t := w.nodes[f.from], w.nodes[f.to]
	ok := false
	if t.alive && slices.Contains(t.perms, f.from) {
		ok = true
		k := slices.IndexFunc(t.imms, func(l lent) bool { return l.key == f.key })
		if k < 0 {
			w.fault("a write of %v from node %d lands on node %d, which has given its immediates back", f.key, f.from, f.to)
		} else {
			if !f.again {
				t.imms[k].counts[f.stage]++
			}
		}
		if !w.cfg.shadow && w.engines[t.r.cfg.Member.Instance].running {
			w.fault("a write of %v lands on node %d, whose instance runs", f.key, f.to)
		}
		t.copies[t.target()][f.stage] = f.version
		t.mayBeReady()
	}
	if !from.alive {
		return
	}
	for k := range from.jobs {
		if j := &from.jobs[k]; j.key == f.key {
			j.left--
			if !ok {
				if m := slices.IndexFunc(j.epoch.Members, func(m Member) bool { return m.ID == t.id }); !slices.Contains(j.failed, m) {
					j.failed = append(j.failed, m)
				}
			}
		}
	}
	from.mayHaveWrote()
}

// ControllerOut.

func (n *node) Plan(r *PlanRequest) {
	p := &Planned{Plan: Hash{9}, Slices: make([]Hash, len(r.Members)), Writes: make([][]int, len(r.Members))}
	a := answer{kind: "planned", key: r.Epoch, plan: p}
	for _, s := range r.Sources {
		for i := range r.Members {
			switch m := &r.Members[i]; {
			case r.Mode == ModePush && m.Role == RoleReceiver, r.Mode == ModeCopy && !slices.Contains(r.Sources, i) && m.Shard == r.Members[s].Shard:
				p.Writes[s] = append(p.Writes[s], i)
			}
		}
	}
	if r.Of != (Hash{}) && len(r.Lost) > 0 && n.w.cfg.noReplica {
		a.err = ErrNoReplica
	}
	n.later(a)
}

func (n *node) Log(r Record) {
	n.later(answer{kind: "log", seq: r.Seq, plan: nil, epoch: nil, key: r.Decision.Of})
}

// ctlOut is a node as a controller's shell.
type ctlOut struct{ *node }

func (ctlOut) Owed(Key, []Member, Time) string { return "" }

func (c ctlOut) Ended(_ uint64, o Outcome) { c.result = append(c.result, o) }

// do answers the first wish of a node. fail: it does not go well, where it can fail.
func (w *world) do(n *node, fail bool) {
	a := n.todo[0]
	n.todo = slices.Delete(n.todo, 0, 1)
	var err error
	if fail {
		err = errors.New("injected")
	}
	switch a.kind {
	case "controller":
		n.member().Controller(w.now, a.id)
		w.push(n)
	case "down":
		w.net = slices.DeleteFunc(w.net, func(p packet) bool { return p.from == a.id && p.to == n.id })
		if n.c != nil {
			n.c.PeerDown(w.now, a.id)
		} else {
			n.member().PeerDown(w.now, a.id)
		}
	case "adopted":
		n.member().Adopted(w.now, a.key, err)
	case "granted":
		n.member().Granted(w.now, a.key, make([]uint32, w.cfg.stages), nil, err)
		n.mayBeReady()
	case "planned":
		n.c.Planned(w.now, a.key, a.plan, a.err)
	case "log":
		w.log(n, a.seq, err)
	case "fence":
		w.fence(n, a.id, fail)
	case "wrote":
		w.wrote(n, a)
	default:
		w.doReceiver(n, a, err)
	}
}

func (w *world) doReceiver(n *node, a answer, err error) {
	at := &w.engines[n.r.cfg.Member.Instance]
	switch a.kind {
	case "pause":
		if err == nil {
			at.running = false
		}
		w.stops++
		n.r.Paused(w.now, err)
	case "resume":
		if err == nil {
			at.running = true
		}
		n.r.Resumed(w.now, err)
	case "flip":
		w.flip(n, a, err)
	case "restore":
		c := n.target()
		if !w.cfg.shadow || !n.whole(c, a.v) {
			err = errors.New("not kept")
		}
		n.r.Ready(w.now, a.key, rootOf(a.v), err)
	case "verified":
		n.r.Verified(w.now, a.key, a.stage)
	case "ready":
		if !n.whole(n.target(), a.v) {
			w.fault("node %d has not all of v%d", n.i, a.v)
		}
		root := rootOf(a.v)
		if w.cfg.rootless {
			root = Hash{}
		}
		n.r.Ready(w.now, a.key, root, err)
	case "suspended":
	default:
		panic(a.kind)
	}
}

func (w *world) flip(n *node, a answer, err error) {
	if !w.committed(a.key, n.r.cfg.Member.Instance) {
		w.fault("node %d flips to v%d of %v, no log says commit", n.i, a.v, a.key)
	}
	if err == nil {
		if w.cfg.shadow {
			n.active = 1 - n.active
		}
		n.tag = a.v
		n.flipped = append(n.flipped, a.key)
	}
	n.r.Flipped(w.now, err)
}

func (w *world) log(n *node, seq uint64, err error) {
	r := *n.c.recordOf(seq)
	d := w.logs[n.disk]
	if err == nil {
		d.records = append(slices.Clip(d.records), r)
		if r.Decision.Commit {
			w.checkCommit(&r)
		}
	}
	n.c.Logged(w.now, seq, err)
}

// checkCommit: everybody who is to switch has everything, and nobody has given up.
func (w *world) checkCommit(r *Record) {
	for _, e := range w.epochs {
		for _, i := range e.abandoned {
			if e.key == r.Decision.Of && r.Decision.Commits(i) {
				w.fault("%v is committed with instance %d, of which a rank had voted and ended without", e.key, i)
			}
		}
	}
	for _, n := range w.nodes {
		if n.r == nil || !n.alive || !r.Decision.Commits(n.r.cfg.Member.Instance) {
			continue
		}
		if p := n.r.part; !r.Decision.Operator && (p == nil || p.Key != r.Decision.Of || !p.voted) { // an operator may confirm what others have done
			w.fault("%v is committed, node %d is not prepared", r.Decision.Of, n.i)
		}
		for _, f := range w.writes {
			if f.to == n.i && slices.Contains(n.perms, f.from) {
				w.fault("%v is committed, a write from node %d to node %d is under way", r.Decision.Of, f.from, n.i)
			}
		}
	}
	for _, o := range w.logs {
		for _, x := range o.records {
			if x.Decision.Of == r.Decision.Of && x.Decision.Commit != r.Decision.Commit {
				w.fault("%v has two decisions", x.Decision.Of)
			}
		}
	}
}

func (w *world) fence(n *node, id ID, fail bool) {
	if fail {
		n.member().Unfenced(w.now, id, errors.New("frozen"))
		return
	}
	from := w.node(id)
	n.perms = slices.DeleteFunc(n.perms, func(i int) bool { return i == from.i })
	for i := len(w.writes) - 1; i >= 0; i-- { // they fail at the writer
		if f := w.writes[i]; f.from == from.i && f.to == n.i {
			w.land(i)
		}
	}
	n.member().Fenced(w.now, id)
}

func (w *world) wrote(n *node, a answer) {
	i := slices.IndexFunc(n.jobs, func(j job) bool { return j.key == a.key })
	j := n.jobs[i]
	n.jobs = slices.Delete(n.jobs, i, i+1)
	if !j.staged {
		var sums []StageSum
		for _, t := range j.epoch.Targets {
			for s := range w.cfg.stages {
				if n.writes(j.epoch, s) && !slices.Contains(j.failed, t) {
					sums = append(sums, StageSum{To: t, Stage: s, Runs: 1})
				}
			}
		}
		n.member().Staged(w.now, a.key, sums)
	}
	var missed []int
	if missed = j.failed; j.stopped {
		missed = nil
	}
	var unquiet []int
	if w.unquiet {
		unquiet = j.epoch.Targets
	}
	if n.p != nil {
		n.p.Wrote(w.now, a.key, missed, unquiet, nil)
	} else {
		n.r.Wrote(w.now, a.key, missed, unquiet, nil)
	}
}

// push lets a publisher push what is wanted.
func (w *world) push(n *node) {
	if n.p != nil && n.alive && w.wants != n.pushed && n.p.State() == StateIdle {
		_ = n.p.Push(w.now, w.wants)
	}
}

func (w *world) pushAll() {
	for _, n := range w.nodes {
		w.push(n)
	}
}

// deliver lets a message arrive. Acknowledgments arrive at once, so that there are fewer states: they only end repetitions.
func (w *world) deliver(i int) {
	p := w.net[i]
	w.net = slices.Delete(w.net, i, i+1)
	t := w.node(p.to)
	if !t.alive {
		return
	}
	sent := len(w.net)
	w.hand(t, p)
	for k := sent; k < len(w.net); {
		if q := w.net[k]; Kind(q.data[3]) == KindAck {
			w.net = slices.Delete(w.net, k, k+1)
			if at := w.node(q.to); at.alive {
				w.hand(at, q)
			}
		} else {
			k++
		}
	}
}

func (w *world) hand(t *node, p packet) {
	switch {
	case t.c != nil:
		t.c.Message(w.now, p.from, p.data)
	default:
		t.member().Message(w.now, p.from, p.data)
	}
}

// next is when something is due.
func (w *world) next() (at Time, ok bool) {
	for _, n := range w.nodes {
		if !n.alive {
			continue
		}
		var t Time
		var is bool
		if n.c != nil {
			t, is = n.c.Next()
		} else {
			t, is = n.member().Next()
		}
		if is && (!ok || t < at) {
			at, ok = t, true
		}
	}
	return max(at, w.now), ok
}

// tick lets the time pass until something is due.
func (w *world) tick() bool {
	at, ok := w.next()
	if !ok {
		return false
	}
	w.now = at
	for _, n := range w.nodes {
		if !n.alive {
			continue
		}
		if n.c != nil {
			n.c.Tick(w.now)
		} else {
			n.member().Tick(w.now)
		}
	}
	return true
}

// crash ends a process. Its writes that are under way stay so.
func (w *world) crash(n *node) {
	n.alive = false
	n.todo = nil
	w.net = slices.DeleteFunc(w.net, func(p packet) bool { return p.to == n.id })
	for _, o := range w.nodes {
		if o.alive {
			o.later(answer{kind: "down", id: n.id})
		}
	}
}

// look checks what must always be. It is called after each step.
func (w *world) look() {
	w.pushAll()
	for i := range w.engines {
		if !w.engines[i].running {
			continue
		}
		var first *node
		for _, n := range w.nodes {
			if n.r == nil || !n.alive || n.r.cfg.Member.Instance != i || n.tag == 0 {
				continue
			}
			if !n.whole(n.active, n.tag) {
				w.fault("instance %d runs, and node %d serves %v as v%d", i, n.i, n.copies[n.active], n.tag)
			}
			if first == nil {
				first = n
			} else if first.tag != n.tag {
				w.fault("instance %d runs, and serves v%d on node %d and v%d on node %d", i, first.tag, first.i, n.tag, n.i)
			}
		}
	}
	for _, n := range w.nodes {
		if n.alive && n.c == nil {
			w.lookMember(n)
		}
	}
}

// lookMember follows a member's parts, and compares what members know.
func (w *world) lookMember(n *node) {
	m := n.member()
	last := partTruth{inst: -1}
	if len(n.parts) > 0 {
		last = n.parts[0]
	}
	if last.key != (Key{}) && last.voted && (m.part == nil || m.part.Key != last.key) && last.phase != phSwitch && !slices.Contains(n.flipped, last.key) && n.r != nil {
		inst := n.r.cfg.Member.Instance
		// An instance that could not switch is out, though the decision was commit.
		if out := n.r.doneOf.Of == last.key && n.r.doneOf.Code != 0; w.committed(last.key, inst) && !m.part.continues(last.key) && !out {
			w.fault("node %d has voted in %v, which is committed, and ended without", n.i, last.key)
		}
		w.truth(last.key).abandoned = append(w.truth(last.key).abandoned, inst)
	}
	n.parts = nil
	if p := m.part; p != nil {
		voted := p.voted && !p.source() || last.voted && last.key == p.Key && p.phase != phHalting && p.phase != phHalted
		n.parts = []partTruth{{key: p.Key, voted: voted, phase: p.phase}}
	}
	for _, d := range m.history {
		for _, o := range w.nodes {
			if o.c != nil {
				continue
			}
			for _, x := range o.member().history {
				if x.Of == d.Of && x.Commit != d.Commit {
					w.fault("%v: node %d knows %v, node %d %v", d.Of, n.i, decisionText(d.Commit), o.i, decisionText(x.Commit))
				}
			}
		}
	}
}

func (p *part) continues(k Key) bool { return p != nil && inChain(p.Since, p.Key, k) }

func (w *world) truth(k Key) *epochTruth {
	for _, e := range w.epochs {
		if e.key == k {
			return e
		}
	}
	w.epochs = append(w.epochs, &epochTruth{key: k})
	return w.epochs[len(w.epochs)-1]
}

// settle does everything that can be done, in order, for a span of time.
func (w *world) settle(span Time) {
	end := w.now + span
	for len(w.faults) == 0 {
		switch n := w.busy(); {
		case len(w.net) > 0:
			w.deliver(0)
		case n != nil:
			w.do(n, false)
		case len(w.writes) > 0:
			w.land(0)
		default:
			if at, ok := w.next(); !ok || at > end {
				w.now = end
				return
			}
			w.tick()
		}
		w.look()
	}
}

// busy is a node with a wish.
func (w *world) busy() *node {
	for _, n := range w.nodes {
		if n.alive && len(n.todo) > 0 {
			return n
		}
	}
	return nil
}

// String is the state for people.
func (w *world) String() string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "at %v\n", w.now)
	for _, n := range w.nodes {
		switch {
		case !n.alive:
			fmt.Fprintf(&b, " %d dead\n", n.i)
		case n.c != nil:
			fmt.Fprintf(&b, " %d controller %v", n.i, n.c.term)
			if e := n.c.epoch; e != nil {
				fmt.Fprintf(&b, " %v %v", e.key, e.phase)
			}
			fmt.Fprintf(&b, " op %v\n", n.c.op != nil)
		case n.p != nil:
			fmt.Fprintf(&b, " %d publisher %v %v\n", n.i, n.p.State(), n.todo)
		default:
			fmt.Fprintf(&b, " %d receiver %+v %v copies %v tag v%d %v\n", n.i, n.r.Status(), n.r.State(), n.copies, n.tag, n.todo)
		}
	}
	for _, p := range w.net {
		h, x, _ := Decode(p.data)
		fmt.Fprintf(&b, " %d -> %d %v e%d\n", w.node(p.from).i, w.node(p.to).i, x.Kind(), h.Epoch)
	}
	return b.String()
}
