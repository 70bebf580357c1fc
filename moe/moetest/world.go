package moetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/backend/cpu"
	"github.com/hawser-project/hawser/moe/proto"
)

// Config is what ranks a World has, and how its schedule chooses.
type Config struct {
	Shape

	Hidden    int
	Dist      Dist
	Fixed     func(step uint64, r *Routing) // instead of Dist
	Seed      uint64
	Steps     int
	Align     int
	Wire, Out backend.DType // F32 where 0
	In        backend.DType // likewise

	FirstChunk, ChunkRecords, PoolRecords, Window, MaxRecv, StreamRows int // as in proto.Config

	Style  Style
	Faults []Fault
}

// Style is how a schedule chooses among what may happen next.
type Style uint8

// The styles.
const (
	Any            Style = iota // with equal chances
	Slow                        // one rank, of the seed's choosing, does something only when nothing else can happen
	ImmediatesLast              // immediates are counted only when no fragment can land
	Eager                       // ranks go on as early as they may: fragments land only when no rank can do anything
	styles

	Styles = uint64(styles) // how many there are
)

// FaultKind is what goes wrong.
type FaultKind uint8

// The faults. Peer is another rank.
const (
	Kill      FaultKind = iota // the rank ends at once; it comes again in a later view, as another engine
	Sever                      // the session with the peer ends: what is under way between them fails, and does not land
	RailDeath                  // what is under way to the peer is sent once more, unless it was counted: then its acknowledgement was lost
	BlackHole                  // nothing from the rank to the peer arrives any more, until somebody's time is over
	Unfenced                   // what is under way to the peer fails, and may yet land
	Frozen                     // likewise, and the peer's next fence of the rank proves nothing
	Cancel                     // the rank gives up the step in progress
	faultKinds
)

var faultNames = [faultKinds]string{"kill", "sever", "rail", "hole", "unfenced", "frozen", "cancel"}

// FaultKinds are all of them.
func FaultKinds() []FaultKind {
	return []FaultKind{Kill, Sever, RailDeath, BlackHole, Unfenced, Frozen, Cancel}
}

func (k FaultKind) String() string { return faultNames[k] }

// Fault strikes before the event with the number At.
type Fault struct {
	Kind       FaultKind
	At         int
	Rank, Peer int
}

func (f Fault) String() string { return fmt.Sprintf("%v@%d:%d,%d", f.Kind, f.At, f.Rank, f.Peer) }

// ErrCheck: a step did something else than it must.
var ErrCheck = errors.New("check failed")

// World is a group in one goroutine: its ranks run the protocol and the backend that all groups run, over a network and memory that are
// watched. What happens next is chosen by the seed.
type World struct {
	c       Config
	ref     *Ref
	draw    *Draw
	rng     *rand.Rand
	backend *cpu.Backend
	nodes   []*node // by rank: the latest
	born    int
	slow    int

	now    proto.Time
	events []event
	held   []event    // in black holes
	lost   []*part    // whose acknowledgements were lost
	holes  [][2]*node // from, to
	parts  []*part
	frozen map[proto.ID]bool // whose next fence proves nothing
	given  []*store          // what descriptors stand for

	view    proto.View
	due     []int  // ranks that are to come again
	last    uint64 // step
	seen    int    // events
	checked map[uint64]int
	report  Report
	err     error
}

// Report is what a World has done.
type Report struct {
	Events   int
	Steps    int // that all members of their view have done and that were right
	Partial  int // calls that said who is missing
	Failed   int // steps that ended early, of all ranks
	Streamed int // likewise
	Views    int
	Parked   int // sets of regions that were set aside
	Wrong    Wrong
}

// eventKind is something that can happen.
type eventKind uint8

const (
	fragment  eventKind = iota // lands
	immediate                  // is counted
	ack                        // arrives
	failure                    // of a part is told to its sender
	down                       // a node learns that the session with a peer has ended
	task                       // a backend does the next of what is queued
	call                       // a node is told something by what it asked for
)

type event struct {
	kind     eventKind
	part     *part
	try      int
	from, to int64
	unfenced bool
	node     *node
	peer     *node
	epoch    uint32
	watch    *watch
	f        func()
}

// NewWorld makes one that has done nothing. Close it.
func NewWorld(c Config) (*World, error) {
	for _, t := range []*backend.DType{&c.In, &c.Wire, &c.Out} {
		if *t == backend.None {
			*t = backend.F32
		}
	}
	w := &World{
		c: c, rng: rand.New(rand.NewPCG(c.Seed, 0xfab)), draw: NewDraw(c.Dist, c.Seed, true), last: uint64(c.Steps),
		frozen: map[proto.ID]bool{}, checked: map[uint64]int{},
		ref: &Ref{Shape: c.Shape, Hidden: c.Hidden, Align: c.Align, In: c.In, Wire: c.Wire, Out: c.Out},
	}
	w.slow = w.rng.IntN(c.Ranks)
	var err error
	if w.backend, err = cpu.New(1); err != nil {
		return nil, err
	}
	for rank := range c.Ranks {
		n, err := w.newNode(rank)
		if err != nil {
			_ = w.backend.Close() // it never fails
			return nil, fmt.Errorf("moetest: rank %d: %w", rank, err)
		}
		w.nodes = append(w.nodes, n)
	}
	w.publish()
	return w, nil
}

// Close ends what a World has.
func (w *World) Close() error { return w.backend.Close() }

func (w *World) add(e event) { w.events = append(w.events, e) }

// fault notes the first thing that must not happen.
func (w *World) fault(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf("%w: event %d: %s", ErrCheck, w.seen, fmt.Sprintf(format, args...))
	}
}

// Run does all steps, and tells after each of them how many were done. stop ends it early.
func (w *World) Run(stop func(done int) bool) (Report, error) {
	told := 0
	for w.err == nil {
		w.strike()
		if !w.step() && !w.stuck() {
			break
		}
		if w.seen++; w.seen > w.limit() {
			w.fault("it does not end, %d views: %s", w.report.Views, w)
		}
		if w.report.Steps > told {
			if told = w.report.Steps; stop != nil && stop(told) {
				break
			}
		}
	}
	if w.err == nil && (stop == nil || told >= w.c.Steps) {
		w.rest()
	}
	w.report.Events = w.seen
	return w.report, w.err
}

// limit is far more than all steps take.
func (w *World) limit() int {
	return 10_000 + (w.c.Steps+10)*w.c.Ranks*w.c.Ranks*(200+20*w.c.Tokens*w.c.TopK)
}

// step lets one thing happen. false: nothing can.
func (w *World) step() bool {
	if w.c.Style == Eager && w.drive(-1) {
		return true
	}
	first := w.rng.IntN(len(w.events) + len(w.nodes))
	if first >= len(w.events) && w.drive(first-len(w.events)) {
		return true
	}
	i := w.choose()
	if i >= 0 && w.c.Style == Slow && w.events[i].of(w.nodes[w.slow]) && w.drive(-1) {
		return true
	}
	if i >= 0 {
		e := w.events[i]
		w.events[i] = w.events[len(w.events)-1]
		w.events = w.events[:len(w.events)-1]
		w.happen(&e)
		return true
	}
	return w.drive(-1)
}

// choose is the next event, or -1.
func (w *World) choose() int {
	w.fall()
	n := len(w.events)
	if n == 0 {
		return -1
	}
	at := w.rng.IntN(n)
	var late func(e *event) bool
	switch w.c.Style {
	case Slow:
		late = func(e *event) bool { return e.of(w.nodes[w.slow]) }
	case ImmediatesLast:
		late = func(e *event) bool { return e.kind == immediate }
	case Any, Eager:
		return at
	}
	for i := range n {
		if at := (at + i) % n; !late(&w.events[at]) {
			return at
		}
	}
	return at
}

// fall moves what is in a black hole out of sight.
func (w *World) fall() {
	if len(w.holes) == 0 {
		return
	}
	kept := w.events[:0]
	for _, e := range w.events {
		if p := e.part; p != nil && e.kind <= immediate && slices.Contains(w.holes, [2]*node{p.from, p.to}) {
			w.held = append(w.held, e)
		} else {
			kept = append(kept, e)
		}
	}
	w.events = kept
}

func (e *event) of(n *node) bool {
	if e.part != nil {
		return e.part.from == n
	}
	return e.node == n
}

func (w *World) happen(e *event) {
	switch e.kind {
	case fragment:
		w.fragment(e)
	case immediate:
		w.immediate(e)
	case ack:
		w.acked(e.part)
	case failure:
		w.failed(e)
	case down:
		if n := e.node; !n.dead && n.group.Active() && n.group.Epoch() == e.epoch {
			n.group.PeerDown(e.peer.rank)
			n.exec.Run()
			n.after()
		}
	case task:
		if !e.node.dead {
			e.watch.next()
		}
	case call:
		e.f()
	}
	if w.seen%64 == 0 {
		w.sweep()
	}
}

// drive lets a rank do what it has to do next: this one if it can, else another.
func (w *World) drive(first int) bool {
	if first < 0 {
		first = w.rng.IntN(len(w.nodes))
	}
	for pass := range 2 {
		for i := range w.nodes {
			n := w.nodes[(first+i)%len(w.nodes)]
			if late := w.c.Style == Slow && n.rank == w.slow; late == (pass == 1) && !n.dead && n.act() {
				return true
			}
		}
	}
	return false
}

// stuck: nothing can happen. Lost acknowledgements come, then time passes, then what no time ends is a fault. false: all is done.
func (w *World) stuck() bool {
	if len(w.lost) > 0 {
		for _, p := range w.lost {
			w.add(event{kind: ack, part: p})
		}
		w.lost = nil
		return true
	}
	if w.finished() {
		return false
	}
	if at, ok := w.deadline(); ok {
		w.now = max(w.now, at)
		for _, n := range w.nodes {
			if !n.dead {
				n.exec.Tick(w.now)
				n.after()
			}
		}
		return true
	}
	if len(w.holes) > 0 {
		holes := w.holes
		w.holes = nil
		w.events = append(w.events, w.held...)
		w.held = nil
		for _, h := range holes {
			w.sever(h[0], h[1])
		}
		return true
	}
	w.fault("nothing can happen any more: %s", w)
	return true
}

func (w *World) String() string {
	all := make([]string, len(w.nodes))
	for i, n := range w.nodes {
		all[i] = fmt.Sprintf("rank %d: %s", i, n)
	}
	return strings.Join(all, "; ")
}

func (w *World) deadline() (at proto.Time, ok bool) {
	for _, n := range w.nodes {
		if t, waits := n.exec.Lane().Next(); waits && !n.dead && t > w.now && (!ok || t < at) {
			at, ok = t, true
		}
	}
	return at, ok
}

// finished: all ranks are in one view and have done all steps.
func (w *World) finished() bool {
	for _, n := range w.nodes {
		if n.dead || !n.group.Active() || n.group.Epoch() != w.view.Epoch || n.stale || n.stage != toBegin || n.exec.Lane().Step() < w.last {
			return false
		}
	}
	return true
}

// rest looks whether anything is left over.
func (w *World) rest() {
	for _, n := range w.nodes {
		if !n.exec.Lane().Quiet() {
			w.fault("rank %d: a Transfer has not ended", n.rank)
		}
		n.store.canaries()
		for name, slots := range map[string][]slot{"chunk": n.store.chunks, "header": n.store.heads, "result": n.store.results} {
			for i, t := range slots {
				if t.state != free {
					w.fault("rank %d: %s %d is %s (of rank %d) when all is done", n.rank, name, i, stateNames[t.state], t.from)
				}
			}
		}
	}
	if w.report.Steps < w.c.Steps && len(w.c.Faults) == 0 {
		w.fault("%d of %d steps were verified", w.report.Steps, w.c.Steps)
	}
}

// strike lets the faults happen whose time has come.
func (w *World) strike() {
	for _, f := range w.c.Faults {
		if f.At == w.seen {
			w.inject(f)
		}
	}
}

func (w *World) inject(f Fault) {
	n, peer := w.nodes[f.Rank], w.nodes[f.Peer]
	if n.dead || peer.dead {
		return
	}
	switch f.Kind {
	case Kill:
		w.kill(n)
	case Sever:
		w.sever(n, peer)
	case RailDeath:
		w.resend(n, peer)
	case BlackHole:
		w.holes = append(w.holes, [2]*node{n, peer})
	case Frozen:
		w.frozen[n.id] = true
		w.between(n, peer, func(p *part) { w.fail(p, true) })
	case Unfenced:
		w.between(n, peer, func(p *part) { w.fail(p, true) })
	case Cancel:
		if n.group.Active() {
			n.exec.Cancel(proto.CodeCanceled)
			n.after()
		}
	}
}

// suspect: a fault has struck this rank, or its connection. Where time passes anybody may be held missing who only waits for another.
func (w *World) suspect(rank int) bool {
	return slices.ContainsFunc(w.c.Faults, func(f Fault) bool {
		return f.Rank == rank || f.Peer == rank && f.Kind != Kill || w.now > 0
	})
}

// kill ends a node. What it has under way lands, or does not; what goes there is lost.
func (w *World) kill(n *node) {
	n.dead = true
	w.due = append(w.due, n.rank)
	for _, p := range w.parts {
		switch {
		case p.from == n:
			p.ended, p.void = true, p.void || w.rng.IntN(2) == 0
		case p.to == n:
			w.fail(p, false)
		}
	}
	for _, o := range w.nodes {
		if !o.dead {
			o.cut[n.rank] = true
			w.add(event{kind: down, node: o, peer: n, epoch: o.group.Epoch()})
		}
	}
}

// publish makes a view of who lives, and of who comes again.
func (w *World) publish() {
	w.view.Epoch++
	w.view.Members = nil
	for _, n := range w.nodes {
		if !n.dead {
			w.view.Members = append(w.view.Members, proto.Member{Rank: n.rank, ID: n.id})
		}
	}
	w.report.Views++
}

// outdated: the latest view is not what it should be: somebody has given it up, or is dead, or wants to come.
func (w *World) outdated() bool {
	for _, m := range w.view.Members {
		if n := w.nodes[m.Rank]; n.dead || n.id != m.ID {
			return true
		}
	}
	settled := true
	for _, n := range w.nodes {
		if n.dead {
			continue
		}
		if n.group.Epoch() == w.view.Epoch && (n.group.Active() && n.stale || n.failed) {
			return true
		}
		settled = settled && n.group.Active() && n.group.Epoch() == w.view.Epoch && n.exec.Lane().Completed() >= w.last
	}
	if settled && len(w.due) > 0 {
		rank := w.due[0]
		w.due = w.due[1:]
		n, err := w.newNode(rank)
		if err != nil {
			w.fault("rank %d comes again: %v", rank, err)
			return false
		}
		w.nodes[rank] = n
		return true
	}
	return false
}

// stepTimeout is on the World's clock.
const stepTimeout = time.Second
