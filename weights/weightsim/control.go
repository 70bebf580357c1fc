package weightsim

import (
	"errors"
	"fmt"
	"time"

	"github.com/hawser-project/hawser/internal/rail"
	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/weights/proto"
)

// control is the machines of the protocol, and what carries messages between them. Nothing is lost.
type control struct {
	w     *world
	ctl   *node
	m     *proto.Controller
	nodes []*node // members: publishers, then receivers, each by rank; the controller last
	byID  map[proto.ID]*node
	free  time.Duration // when the controller, which does one thing after the other, is idle again

	plans   int // that were made
	lost    []int
	repairs error // why one was not found
	started bool  // BEGIN was said
	stale   int
	traffic Traffic

	done    bool
	outcome proto.Outcome
	total   time.Duration
}

// Traffic is what went over control connections from BEGIN on.
type Traffic struct {
	Messages int
	Bytes    int64
	Kinds    map[string]int // messages, by what they are
	Busy     time.Duration  // of the controller
}

// newControl makes a machine for every host, and the controller's.
func newControl(w *world, sources, dests []*reshard.Slice) (*control, error) {
	c := &control{w: w, byID: map[proto.ID]*node{}, traffic: Traffic{Kinds: map[string]int{}}}
	w.ctl = c
	for _, s := range sources {
		me := proto.Member{Role: proto.RolePublisher, Rank: s.Rank}
		if err := c.add(w.byName[fmt.Sprintf("train-%d", s.Rank)], me, len(sources)); err != nil {
			return nil, err
		}
	}
	size := map[int]int{}
	for _, d := range dests {
		size[w.o.instance(d.Rank)]++
	}
	next := map[int]int{}
	for _, d := range dests {
		me := proto.Member{Role: proto.RoleReceiver, Rank: d.Rank, Instance: w.o.instance(d.Rank)}
		me.Shard, me.Leader = next[me.Instance], next[me.Instance] == 0
		next[me.Instance]++
		if err := c.add(w.byName[fmt.Sprintf("infer-%d", d.Rank)], me, size[me.Instance]); err != nil {
			return nil, err
		}
	}
	c.ctl = c.newNode(nil)
	var err error
	c.m, err = proto.NewController(proto.ControllerConfig{ID: c.ctl.id, Log: c.ctl.id, Expect: len(c.nodes) - 1, Repairs: 1 + len(w.o.Faults)}, controllerOut{c.ctl})
	c.ctl.m = c.m
	return c, err
}

func (c *control) newNode(h *host) *node {
	n := &node{w: c.w, c: c, h: h, id: proto.ID{byte(1 + len(c.nodes)), byte((1 + len(c.nodes)) >> 8), 1}, blobs: map[proto.Hash]bool{}, imported: map[proto.ID]uint64{}}
	c.nodes, c.byID[n.id] = append(c.nodes, n), n
	return n
}

func (c *control) add(h *host, me proto.Member, group int) (err error) {
	n := c.newNode(h)
	h.node = n
	me.ID, me.Addr, me.Layout = n.id, h.name+":7000", proto.Hash{byte(me.Role)}
	cfg := proto.MemberConfig{Member: me, Name: h.name, Group: group}
	if me.Role == proto.RolePublisher {
		n.p, err = proto.NewPublisher(cfg, publisherOut{n})
		n.m, n.member = n.p, n.p
	} else {
		n.r, err = proto.NewReceiver(proto.ReceiverConfig{MemberConfig: cfg}, receiverOut{n})
		n.m, n.member = n.r, n.r
	}
	return err
}

// version is that of the push.
const version proto.Version = 1

// begin lets everybody join, publishers offer the version, and a user order it. The push begins with BEGIN.
func (c *control) begin() {
	for _, n := range c.nodes[:len(c.nodes)-1] {
		n.event(func(now proto.Time) { n.member.Controller(now, c.ctl.id) })
		if n.p != nil {
			n.event(func(now proto.Time) { c.w.check(n.p.Push(now, version)) })
		}
	}
	c.ctl.event(func(now proto.Time) {
		_, err := c.m.Update(now, version, proto.UpdateOptions{})
		c.w.check(err)
	})
}

// work has f called when the controller has done everything before, and this, which costs something for each message and its bytes.
func (c *control) work(bytes int, f func()) {
	d := c.w.o.Handling + took(int64(bytes), c.w.o.ControlRate)
	now := c.w.f.Now()
	c.free = max(c.free, now) + d
	c.traffic.Busy += d
	c.w.after(c.free-now, f)
}

// send carries a message, or a blob.
func (c *control) send(from *node, to proto.ID, kind string, bytes int, arrive func(t *node)) {
	t := c.byID[to]
	if c.started {
		c.traffic.Messages++
		c.traffic.Bytes += int64(bytes)
		c.traffic.Kinds[kind]++
	}
	travel := func(then func()) {
		c.w.after(c.w.o.Control+took(int64(bytes), c.w.o.ControlRate), func() {
			if !t.dead() {
				then()
			}
		})
	}
	switch {
	case from == c.ctl:
		c.work(bytes, func() { travel(func() { arrive(t) }) })
	case t == c.ctl:
		travel(func() { c.work(bytes, func() { arrive(t) }) })
	default:
		travel(func() { arrive(t) })
	}
}

// node is a machine, and does what it wants. Answers come when the call of the machine is over.
type node struct {
	w      *world
	c      *control
	h      *host // nil: the controller
	id     proto.ID
	m      machine
	member member
	p      *proto.Publisher // one of them, or neither
	r      *proto.Receiver

	due      proto.Time // when Tick is; 0: never
	blobs    map[proto.Hash]bool
	imported map[proto.ID]uint64 // serials of what others have granted; not there: that of the push before
	slice    *reshard.Slice      // that was adopted last
	fences   map[*rail.Peer]proto.ID
}

type machine interface {
	Message(now proto.Time, from proto.ID, data []byte)
	PeerDown(now proto.Time, p proto.ID)
	Blob(now proto.Time, h proto.Hash)
	Tick(now proto.Time)
	Next() (proto.Time, bool)
}

type member interface {
	Controller(now proto.Time, id proto.ID)
	Adopted(now proto.Time, e proto.Key, err error)
	Granted(now proto.Time, e proto.Key, imms []uint32, descriptors [][]byte, err error)
	Fenced(now proto.Time, id proto.ID)
	Unfenced(now proto.Time, id proto.ID, err error)
	Staged(now proto.Time, e proto.Key, sums []proto.StageSum)
	Wrote(now proto.Time, e proto.Key, missed, unquiet []int, err error)
}

func (n *node) dead() bool { return n.h != nil && n.h.dead }

// event tells the machine something.
func (n *node) event(f func(now proto.Time)) {
	if n.dead() {
		return
	}
	f(n.w.f.Now())
	at, ok := n.m.Next()
	if !ok || n.due != 0 && n.due <= at {
		return
	}
	n.due = max(at, n.w.f.Now())
	mine := n.due
	n.w.after(mine-n.w.f.Now(), func() {
		if n.due == mine {
			n.due = 0
			n.event(func(now proto.Time) { n.m.Tick(now) })
		}
	})
}

// later tells the machine something when its call is over.
func (n *node) later(f func(now proto.Time)) {
	n.w.due = append(n.w.due, func() { n.event(f) })
}

// Out.

func (n *node) Send(to proto.ID, data []byte) {
	n.c.send(n, to, proto.KindOf(data).String(), len(data), func(t *node) {
		t.event(func(now proto.Time) { t.m.Message(now, n.id, data) })
	})
}

func (n *node) Meet(proto.ID, string) {}

// Has: layouts are everywhere, and the slices of the first plan.
func (n *node) Has(h proto.Hash) bool { return n == n.c.ctl || planOf(h) <= 1 || n.blobs[h] }

func (n *node) SendBlob(to proto.ID, h proto.Hash) {
	n.c.send(n, to, "slice", n.w.encoded, func(t *node) {
		t.blobs[h] = true
		t.event(func(now proto.Time) { t.m.Blob(now, h) })
	})
}

// MemberOut.

func (n *node) Adopt(e proto.Key, _ proto.Mode, _ proto.Version, _, h proto.Hash) {
	n.slice = n.w.slices[h]
	if n.p != nil {
		if old := n.h.pub; old != nil {
			n.w.past = append(n.w.past, old)
		}
		n.h.pub = newPublisher(n.h, n.slice, uint32(e.Number), n.w.o)
	}
	n.later(func(now proto.Time) { n.member.Adopted(now, e, nil) })
}

// descriptor is about as long as that of a buffer with one rail.
const descriptor = 128

func (n *node) Grant(e *proto.Epoch, _ uint64, _ []uint64) {
	imms, d := []uint32{1}, make([][]byte, 1)
	if n.r != nil {
		r := newReceiver(n.h, n.slice, e, n.w.o)
		n.h.rcv = r
		imms, d = make([]uint32, len(n.slice.Stages)), make([][]byte, len(n.slice.Buffers))
		for s := range imms {
			imms[s] = immOf(r.epoch, s)
		}
		n.w.due = append(n.w.due, r.advance) // nothing may be to come
	}
	for i := range d {
		d[i] = make([]byte, descriptor)
	}
	n.later(func(now proto.Time) { n.member.Granted(now, e.Key, imms, d, nil) })
}

func (n *node) Imported(id proto.ID) uint64 {
	if s := n.imported[id]; s != 0 {
		return s
	}
	return 1
}

func (n *node) Put(proto.Key) {}

// Fence takes the right of a peer away, in the fabric if it may not be quiet.
func (n *node) Fence(id proto.ID, hard bool) {
	q := n.h.peers[n.c.byID[id].index()]
	if !hard || q == nil {
		n.later(func(now proto.Time) { n.member.Fenced(now, id) })
		return
	}
	if n.fences == nil {
		n.fences = map[*rail.Peer]proto.ID{}
	}
	n.fences[q] = id
	n.w.due = append(n.w.due, func() {
		n.h.g.Fence(q)
		n.h.wake()
	})
}

func (n *node) index() int {
	if n.h == nil {
		return -1
	}
	return n.h.index
}

// fenced is told by the host.
func (n *node) fenced(q *rail.Peer, proved bool) {
	id, ok := n.fences[q]
	if !ok {
		return
	}
	delete(n.fences, q)
	n.later(func(now proto.Time) {
		if proved {
			n.member.Fenced(now, id)
		} else {
			n.member.Unfenced(now, id, errors.New("the fabric cannot prove it"))
		}
	})
}

func (n *node) Start(e *proto.Epoch, grants []proto.PeerGrant) {
	for i := range grants {
		n.imported[e.Members[grants[i].Member].ID] = grants[i].Grant.Serial
	}
	p := n.h.pub
	n.w.due = append(n.w.due, func() { p.start(e) })
}

func (n *node) Drop(proto.Key, []int) {
	n.w.fail("%s: a receiver is dropped, and only the death of trainers is simulated", n.h.name)
}

func (n *node) Stop(proto.Key) {
	p := n.h.pub
	n.w.due = append(n.w.due, func() {
		p.stop()
		p.advance()
	})
}

func (n *node) Doubt(e *proto.Epoch, doubt bool) {
	if doubt {
		n.w.fail("%s is in doubt about %v", n.h.name, e.Key)
	}
}

// publisherOut is a node as the shell of a publisher.
type publisherOut struct{ *node }

func (publisherOut) Wanted(proto.Version)                        {}
func (publisherOut) Ended(_ proto.Version, _ proto.Key, _ error) {}
func (n publisherOut) Note(x proto.Note)                         { n.note(x) }
func (n *node) note(x proto.Note) {
	if x.Kind == proto.NoteProtocol || x.Kind == proto.NoteUnexpected {
		n.w.fail("a machine finds that %s%s makes no sense", x.Text, x.To)
	}
}

// receiverOut is a node as the shell of a receiver.
type receiverOut struct{ *node }

func (n receiverOut) Pause(proto.Version) {
	n.later(func(now proto.Time) { n.r.Paused(now, nil) })
}

func (n receiverOut) Resume(proto.Version) {
	n.later(func(now proto.Time) { n.r.Resumed(now, nil) })
}

func (n receiverOut) Flip(proto.Key, proto.Version) {
	n.later(func(now proto.Time) { n.r.Flipped(now, nil) })
}

func (n receiverOut) Sums(_ proto.Key, sums []proto.StageSum) { n.h.rcv.hear(sums) }

func (n receiverOut) Restore(proto.Key, proto.Version) { n.w.fail("nobody keeps a version") }
func (n receiverOut) Suspended()                       {}
func (n receiverOut) Note(x proto.Note)                { n.note(x) }

// controllerOut is a node as the shell of the controller.
type controllerOut struct{ *node }

func (n controllerOut) Log(r proto.Record) {
	n.w.after(n.w.o.Decide, func() { n.event(func(now proto.Time) { n.c.m.Logged(now, r.Seq, nil) }) })
}

func (n controllerOut) Owed(proto.Key, []proto.Member, proto.Time) string { return "" }

func (n controllerOut) Ended(_ uint64, o proto.Outcome) {
	n.c.done, n.c.outcome, n.c.total = true, o, n.w.now()
}

func (n controllerOut) Note(x proto.Note) {
	n.note(x)
	switch {
	case x.Kind == proto.NotePhase && !n.c.started && x.To == "granting":
		n.c.started, n.w.start = true, n.w.f.Now()
		n.w.injectFaults()
	case x.Kind == proto.NotePhase && n.c.started && len(n.c.lost) > 0 || x.To == "halting":
		n.w.o.note(n.w.now(), "epoch %d: %s", x.Epoch.Number, x.To)
	}
}

// Plan answers with the plan that there is, or repairs it.
func (n controllerOut) Plan(r *proto.PlanRequest) {
	c, w := n.c, n.w
	if r.Of == (proto.Hash{}) {
		plan := c.planned(r, w.first.Sources, w.first.Dests)
		n.later(func(now proto.Time) { c.m.Planned(now, r.Epoch, plan, nil) })
		return
	}
	for i := range r.Lost {
		c.lost = append(c.lost, r.Lost[i].Rank)
	}
	x, err := w.repair(c.lost, verifiedOf(r))
	took := w.o.Replan
	if took == 0 {
		took = x.Took
	}
	if c.repairs = err; err != nil {
		w.after(took, func() { n.event(func(now proto.Time) { c.m.Planned(now, r.Epoch, nil, err) }) })
		return
	}
	w.resent, w.encoded = 0, int(x.Bytes/int64(max(1, len(x.Sources)+len(x.Dests))))
	for _, d := range x.Dests {
		for i := range d.Runs {
			w.resent += d.Runs[i].Len
		}
	}
	w.o.note(w.now(), "the plan is repaired in %v, and sends %d bytes again or for the first time; its slices have %d bytes", took.Round(time.Microsecond), w.resent, x.Bytes)
	plan := c.planned(r, x.Sources, x.Dests)
	w.after(took, func() { n.event(func(now proto.Time) { c.m.Planned(now, r.Epoch, plan, nil) }) })
}

func verifiedOf(r *proto.PlanRequest) func(dst, stage int) bool {
	bits := map[int][]uint64{}
	for i := range r.Members {
		if r.Members[i].Role == proto.RoleReceiver {
			bits[r.Members[i].Rank] = r.Verified[i]
		}
	}
	return func(dst, stage int) bool {
		b := bits[dst]
		return stage/64 < len(b) && b[stage/64]>>(stage%64)&1 != 0
	}
}

// planned names slices, and says who writes to whom.
func (c *control) planned(r *proto.PlanRequest, sources, dests []*reshard.Slice) *proto.Planned {
	c.plans++
	out := &proto.Planned{Plan: hashOf(c.plans, -1), Slices: make([]proto.Hash, len(r.Members)), Writes: make([][]int, len(r.Members))}
	type place struct {
		role proto.Role
		rank int
	}
	index := map[place]int{}
	for i := range r.Members {
		index[place{r.Members[i].Role, r.Members[i].Rank}] = i
	}
	c.w.slices = make(map[proto.Hash]*reshard.Slice, len(r.Members))
	name := func(s *reshard.Slice, role proto.Role) int {
		i, ok := index[place{role, s.Rank}]
		if !ok {
			c.w.fail("the plan has a slice for %v %d, which is no member", role, s.Rank)
			return -1
		}
		out.Slices[i] = hashOf(c.plans, i)
		c.w.slices[out.Slices[i]] = s
		return i
	}
	for _, d := range dests {
		name(d, proto.RoleReceiver)
	}
	for _, s := range sources {
		i := name(s, proto.RolePublisher)
		if i < 0 {
			continue
		}
		for _, d := range destinations(s) {
			out.Writes[i] = append(out.Writes[i], index[place{proto.RoleReceiver, d}])
		}
		for _, p := range partners(s) {
			out.Writes[i] = append(out.Writes[i], index[place{proto.RolePublisher, p}])
		}
	}
	return out
}

// hashOf is the name of a member's slice in a plan, -1: of the plan. Nothing is hashed.
func hashOf(plan, member int) proto.Hash {
	return proto.Hash{0xff, byte(plan), byte(member + 1), byte((member + 1) >> 8), 1}
}

// planOf is 0 for what is no slice.
func planOf(h proto.Hash) int {
	if h[0] != 0xff {
		return 0
	}
	return int(h[1])
}

// publisher is that of a rank, nil if it is lost.
func (c *control) publisher(rank int) *publisher {
	if h := c.w.byName[fmt.Sprintf("train-%d", rank)]; h != nil && !h.dead {
		return h.pub
	}
	return nil
}
