package proto

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
)

// tb is what the tests of guards need of a testing.T: mutated machines are tried with a witness.
type tb interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

func (w *world) wellFor(t tb) {
	t.Helper()
	if len(w.faults) > 0 {
		t.Fatalf("%v\n%v", w.faults, w)
	}
}

// ready is a world in which everybody has joined, and pushes nothing.
func ready(t tb, cfg worldConfig) *world {
	t.Helper()
	w := newWorld(cfg)
	w.connect(w.nodes[0])
	w.settle(5 * time.Second)
	w.wellFor(t)
	return w
}

// orders an update, and lets time pass.
func (w *world) orders(t tb, v Version, span Time) *Outcome {
	t.Helper()
	c := w.ctl()
	n := len(c.result)
	w.wants = v
	w.pushAll()
	if _, err := c.c.Update(w.now, v, UpdateOptions{}); err != nil {
		t.Fatalf("update v%d: %v", v, err)
	}
	w.settle(span)
	w.wellFor(t)
	if len(c.result) == n {
		return nil
	}
	return &c.result[n]
}

// heard are messages of a kind that are under way to somebody.
func (w *world) heard(to *node, k Kind) (list []Body) {
	for _, p := range w.net {
		if h, b, err := Decode(p.data); err == nil && p.to == to.id && b.Kind() == k {
			_ = h
			list = append(list, b)
		}
	}
	return list
}

// hold takes messages of a kind out of the network until it is called.
func (w *world) hold(which func(p packet, k Kind) bool) (held []packet) {
	w.net = slices.DeleteFunc(w.net, func(p packet) bool {
		if which(p, Kind(p.data[3])) {
			held = append(held, p)
			return true
		}
		return false
	})
	return held
}

// emptyStateDir: a controller that comes with an empty log has a higher term than the one before, knows nothing of its epochs, and can
// go on.
func emptyStateDir(t tb) {
	w := ready(t, worldConfig{publishers: 1, instances: 1, ranks: 2})
	for v := Version(2); v < 5; v++ {
		if o := w.orders(t, v, time.Minute); o == nil || o.Err != nil {
			t.Fatalf("%+v", o)
		}
	}
	old := w.ctl()
	w.crash(old)
	w.settle(time.Second)
	w.logs = append(w.logs, &logOf{id: ID{0xd2}})
	c := w.controller(1)
	w.connect(c)
	w.settle(5 * time.Second)
	if c.c.term.Number <= old.c.top {
		t.Errorf("term %v after epoch %d", c.c.term, old.c.top)
	}
	if o := w.orders(t, 5, time.Minute); o == nil || o.Err != nil {
		t.Fatalf("%+v\n%v", o, w)
	}
}

func TestEmptyStateDir(t *testing.T) { emptyStateDir(t) }

// twoControllers: of two terms with the same number the higher id wins; the other one's orders are not obeyed, and it hears so.
func twoControllers(t tb) {
	w := newWorld(worldConfig{publishers: 1, instances: 1, ranks: 1})
	w.logs = append(w.logs, &logOf{id: ID{0xd2}})
	c := w.controller(1)
	w.connect(w.nodes[0])
	w.connect(c)
	w.settle(5 * time.Second)
	low := w.nodes[0]
	if low.c.term.Number != c.c.term.Number || low.c.term.Compare(c.c.term) >= 0 {
		t.Fatalf("terms %v and %v", low.c.term, c.c.term)
	}
	w.wants = 2
	w.pushAll()
	_, err := low.c.Update(w.now, 2, UpdateOptions{})
	w.settle(10 * time.Second)
	w.wellFor(t)
	if err == nil && len(low.result) == 1 {
		err = low.result[0].Err
	}
	if !errors.Is(err, hawser.ErrStale) || w.nodes[2].r.Status().Version != 1 {
		t.Fatalf("the lower of two controllers is obeyed, or does not hear why not: %v, %+v\n%v", err, low.result, w)
	}
	if _, err = low.c.Update(w.now, 3, UpdateOptions{}); err == nil {
		t.Fatalf("a controller that is not obeyed takes orders")
	}
	if o := w.orders(t, 2, time.Minute); o == nil || o.Err != nil {
		t.Fatalf("%+v\n%v", o, w)
	}
}

func TestTwoControllers(t *testing.T) { twoControllers(t) }

// TestPushDuringTakeover: a push that begins when a second controller rules, and the members have not heard of it yet, is offered to that one too.
func TestPushDuringTakeover(t *testing.T) {
	w := ready(t, worldConfig{publishers: 1, instances: 1, ranks: 1})
	w.logs = append(w.logs, &logOf{id: ID{0xd2}})
	c := w.controller(1)
	w.connect(c)
	w.until(func() bool { return c.c.ruling })
	if w.nodes[1].p.term.ID == c.id {
		t.Fatal("the publisher has heard of the second controller already")
	}
	if o := w.orders(t, 2, time.Minute); o == nil || o.Err != nil {
		t.Fatalf("%+v\n%v", o, w)
	}
}

// lateStopped: that the instance was stopped in an earlier epoch means nothing.
func lateStopped(t tb) {
	w := ready(t, worldConfig{publishers: 1, instances: 1, ranks: 2})
	w.wants = 2
	w.pushAll()
	_, _ = w.ctl().c.Update(w.now, 2, UpdateOptions{})
	var late []packet
	w.until(func() bool {
		for _, p := range w.net {
			if Kind(p.data[3]) == KindStopped {
				late = append(late, p)
			}
		}
		return len(late) > 0
	})
	w.settle(time.Minute)
	w.wellFor(t)
	w.wants = 3
	w.pushAll()
	_, _ = w.ctl().c.Update(w.now, 3, UpdateOptions{})
	rank := w.nodes[3]
	w.until(func() bool { return rank.r.part != nil })
	w.net = append([]packet{late[0]}, w.net...)
	w.deliver(0)
	w.look()
	w.wellFor(t)
	w.settle(time.Minute)
	w.wellFor(t)
	if rank.r.Status().Version != 3 {
		t.Fatalf("%v", w)
	}
}

func TestLateStopped(t *testing.T) { lateStopped(t) }

// TestLateBegin: an epoch of a push that was given up begins when the next push is offered. The end of the one is not the end of the other, which the controller
// would wait for in vain.
func TestLateBegin(t *testing.T) {
	w := ready(t, worldConfig{publishers: 1, instances: 1, ranks: 1})
	n := w.nodes[1]
	if err := n.p.Push(w.now, 3); err != nil {
		t.Fatal(err)
	}
	k := Key{w.ctl().c.term, w.ctl().c.term.Number + 1}
	h := Head{Seq: 99, Term: k.Term, Epoch: k.Number, Version: 2}
	n.p.Message(w.now, k.Term.ID, Encode(h, &Begin{Mode: ModePush, Members: []Member{n.p.cfg.Member, w.nodes[2].r.cfg.Member}}))
	higher := Term{k.Number + 1, ID{0xcc}}
	n.p.Message(w.now, higher.ID, Encode(Head{Seq: 1, Term: higher}, &Joined{}))
	if n.p.State() != StateOffered || n.p.offered != 3 {
		t.Errorf("the push of v3 is %v, of v%d", n.p.State(), n.p.offered)
	}
}

// leased: what is copied from refuses to be written.
func leased(t tb) {
	w := newWorld(worldConfig{publishers: 1, instances: 1, ranks: 1, shadow: false, copies: true})
	w.cfg.instances = 2
	w.engines = append(w.engines, engine{})
	w.receiver(1, 0, 0)
	w.connect(w.nodes[0])
	from := w.nodes[2]
	w.until(func() bool { return len(w.writes) > 0 })
	w.wellFor(t)
	p := from.r.part
	if p == nil || p.Mode != ModeCopy || !p.source() {
		t.Fatalf("no copy:\n%v", w)
	}
	k := Key{p.Key.Term, p.Key.Number + 1}
	h := Head{Seq: 99, Term: k.Term, Epoch: k.Number, Version: 2}
	from.r.Message(w.now, k.Term.ID, Encode(h, &Begin{Mode: ModePush, Members: p.Members[:1]}))
	if from.r.part.Key != p.Key || len(w.heard(w.nodes[0], KindFailed)) != 1 {
		t.Fatalf("a lease is broken: %v\n%v", from.r.part.Key, w)
	}
}

func TestLeased(t *testing.T) { leased(t) }

// waitsForQuiet: an update waits for a member that is still fencing somebody of an earlier epoch, instead of leaving its instance out.
func waitsForQuiet(t tb) {
	w := ready(t, worldConfig{publishers: 1, instances: 2, ranks: 1})
	w.wants = 2
	w.pushAll()
	_, _ = w.ctl().c.Update(w.now, 2, UpdateOptions{})
	w.until(func() bool { return len(w.writes) > 0 })
	w.crash(w.ctl()) // in mid-push: everybody is dirty
	w.settle(time.Second)
	w.connect(w.controller(0))
	w.until(func() bool { return w.ctl().c.ruling })
	w.wants = 3
	_, _ = w.ctl().c.Update(w.now, 3, UpdateOptions{})
	slow := w.nodes[3]
	for end := w.now + 5*time.Second; w.now < end; w.look() {
		switch {
		case len(w.net) > 0:
			w.deliver(0)
		case w.busyBut(slow) != nil:
			w.do(w.busyBut(slow), false)
		case len(slow.todo) > 0 && slow.todo[0].kind != "fence":
			w.do(slow, false)
		case slices.ContainsFunc(slow.todo, func(a answer) bool { return a.kind != "fence" }): // the fence takes longer than what came after it
			slow.todo = append(slow.todo[1:], slow.todo[0])
		case len(w.writes) > 0:
			w.land(0)
		default:
			if at, ok := w.next(); !ok || at > end {
				w.now = end
				continue
			}
			w.tick()
		}
		w.wellFor(t)
	}
	w.settle(3 * time.Minute)
	w.wellFor(t)
	if o := w.ctl().result; len(o) != 1 || o[0].Err != nil || len(o[0].Serving) != 2 {
		t.Fatalf("%+v\n%v", o, w)
	}
}

// busyBut is another node with a wish.
func (w *world) busyBut(not *node) *node {
	for _, n := range w.nodes {
		if n != not && n.alive && len(n.todo) > 0 {
			return n
		}
	}
	return nil
}

func TestWaitsForQuiet(t *testing.T) { waitsForQuiet(t) }

// unfencedIsRefused: as long as a writer may still write, immediates are not given back and no epoch begins there.
func unfencedIsRefused(t tb) {
	w := ready(t, worldConfig{publishers: 1, instances: 1, ranks: 1})
	w.wants = 2
	w.pushAll()
	_, _ = w.ctl().c.Update(w.now, 2, UpdateOptions{})
	w.until(func() bool { return len(w.writes) > 0 })
	w.crash(w.nodes[1])
	r := w.nodes[2]
	w.until(func() bool { return len(r.todo) > 0 && r.todo[0].kind == "fence" })
	for range 5 { // the fence fails again and again, for some time
		w.do(r, true)
		frozen := w.writes
		w.writes = nil
		for len(r.todo) == 0 && len(w.faults) == 0 {
			w.progress()
		}
		w.writes = frozen
		w.wellFor(t)
	}
	if s := r.r.Status(); len(s.Stuck) != 1 || s.Active != StateFailed || len(r.imms) != 1 {
		t.Fatalf("%+v", s)
	}
	w.do(r, false)
	w.settle(time.Minute)
	w.wellFor(t)
	if s := r.r.Status(); len(s.Stuck) != 0 || s.State != StateFailed || len(r.imms) != 0 {
		t.Fatalf("%+v", s)
	}
}

func TestUnfencedIsRefused(t *testing.T) { unfencedIsRefused(t) }

// lostIsFenced: a publisher that dies with writes under way is fenced before the next attempt begins.
func lostIsFenced(t tb) {
	w := ready(t, worldConfig{publishers: 2, instances: 1, ranks: 1, stages: 2})
	w.wants = 2
	w.pushAll()
	_, _ = w.ctl().c.Update(w.now, 2, UpdateOptions{})
	w.until(func() bool { return len(w.writes) == 2 })
	dead := w.nodes[1]
	w.crash(dead)
	slow := slices.IndexFunc(w.writes, func(f flight) bool { return f.from == dead.i })
	for w.ctl().c.op != nil && len(w.faults) == 0 {
		if i := slices.IndexFunc(w.writes, func(f flight) bool { return f.from != dead.i }); i >= 0 {
			w.land(i)
		} else if !w.progress() {
			break
		}
		w.look()
	}
	w.wellFor(t)
	if o := w.ctl().result; slow < 0 || len(o) != 1 || o[0].Err != nil || o[0].Repairs != 1 {
		t.Fatalf("%+v\n%v", o, w)
	}
}

func TestLostIsFenced(t *testing.T) { lostIsFenced(t) }

// unquietIsNoCommit: a publisher that cannot say that its writes are over ends the epoch; another attempt may commit.
func unquietIsNoCommit(t tb) {
	w := ready(t, worldConfig{publishers: 1, instances: 1, ranks: 1})
	w.wants = 2
	w.pushAll()
	_, _ = w.ctl().c.Update(w.now, 2, UpdateOptions{})
	p := w.nodes[1]
	w.until(func() bool { return len(p.todo) > 0 && p.todo[0].kind == "wrote" })
	w.unquiet = true
	w.do(p, false)
	w.unquiet = false
	w.settle(time.Minute)
	w.wellFor(t)
	if o := w.ctl().result; len(o) != 1 || o[0].Err != nil || o[0].Repairs != 1 {
		t.Fatalf("%+v\n%v", o, w)
	}
}

func TestUnquietIsNoCommit(t *testing.T) { unquietIsNoCommit(t) }

// progress does one thing other than to let a write land.
func (w *world) progress() bool {
	defer w.look()
	switch n := w.busy(); {
	case len(w.net) > 0:
		w.deliver(0)
	case n != nil:
		w.do(n, false)
	default:
		return w.tick()
	}
	return true
}

// TestInDoubtPeer: a member that did not hear the decision learns it from another one.
func TestInDoubtPeer(t *testing.T) {
	w := ready(t, worldConfig{publishers: 1, instances: 2, ranks: 1})
	w.wants = 2
	w.pushAll()
	_, _ = w.ctl().c.Update(w.now, 2, UpdateOptions{})
	last := w.nodes[3]
	w.until(func() bool {
		w.hold(func(p packet, k Kind) bool { return k == KindDecision && p.to == last.id })
		return w.nodes[2].r.Status().Version == 2
	})
	w.crash(w.ctl())
	w.hold(func(p packet, k Kind) bool { return p.to == last.id })
	w.until(func() bool { return last.r.State() == StateInDoubt })
	w.settle(time.Minute)
	w.wellFor(t)
	if s := last.r.Status(); s.State != StateCommitted || s.Version != 2 {
		t.Fatalf("%+v", s)
	}
}

// TestStrandedRank: a rank that learns of the commit from another member, when its leader has given the switch up and the controller is a
// new one with another log, does not wait for ever.
func TestStrandedRank(t *testing.T) {
	w := ready(t, worldConfig{publishers: 1, instances: 1, ranks: 2, shadow: true})
	w.wants = 2
	w.pushAll()
	_, _ = w.ctl().c.Update(w.now, 2, UpdateOptions{})
	leader, rank := w.nodes[2], w.nodes[3]
	w.until(func() bool {
		w.hold(func(p packet, k Kind) bool { return k == KindDecision && p.to == rank.id })
		return len(leader.todo) > 0 && leader.todo[0].kind == "pause"
	})
	w.do(leader, true)
	w.crash(w.ctl())
	w.hold(func(p packet, k Kind) bool { return true })
	w.logs = append(w.logs, &logOf{id: ID{0xd2}})
	w.connect(w.controller(1))
	w.until(func() bool {
		w.hold(func(p packet, k Kind) bool { return k == KindTold && p.to == rank.id })
		return w.ctl().c.ruling && rank.r.State() == StateInDoubt
	})
	w.settle(time.Minute)
	w.wellFor(t)
	if s := rank.r.Status(); s.State != StateFailed || leader.r.State() != StateFailed {
		t.Fatalf("%+v\n%v", s, w)
	}
}

// TestInDoubtOperator: nobody has heard the decision, and its log is lost: an operator decides, if nobody knows better.
func TestInDoubtOperator(t *testing.T) {
	for _, commit := range []bool{true, false} {
		w := ready(t, worldConfig{publishers: 1, instances: 1, ranks: 2})
		w.wants = 2
		w.pushAll()
		_, _ = w.ctl().c.Update(w.now, 2, UpdateOptions{})
		w.until(func() bool { return w.ctl().c.epoch != nil && w.ctl().c.epoch.phase == epDeciding })
		w.crash(w.ctl())
		w.logs = append(w.logs, &logOf{id: ID{0xd2}})
		c := w.controller(1)
		w.connect(c)
		w.settle(time.Minute)
		if s := w.nodes[2].r.State(); s != StateInDoubt {
			t.Fatalf("%v\n%v", s, w)
		}
		k := w.nodes[2].r.part.Key
		if _, err := c.c.Decide(w.now, k.Number+7, commit, false); err == nil {
			t.Fatal("an epoch that nobody waits for was decided")
		}
		if _, err := c.c.Decide(w.now, k.Number, commit, false); err != nil {
			t.Fatal(err)
		}
		w.settle(time.Minute)
		w.wellFor(t)
		s := w.nodes[2].r.Status()
		if commit != (s.State == StateCommitted && s.Version == 2) || !commit && s.State != StateFailed || w.nodes[1].p.State() == StateInDoubt {
			t.Fatalf("commit %v: %+v", commit, s)
		}
		if r := w.logs[1].records; len(r) != 1 || !r[0].Decision.Operator {
			t.Fatalf("%+v", r)
		}
	}
}

// TestOperatorIsRefused: what somebody knows is not decided otherwise, and without force nothing is decided while somebody is missing.
func TestOperatorIsRefused(t *testing.T) {
	w := ready(t, worldConfig{publishers: 1, instances: 2, ranks: 1})
	w.wants = 2
	w.pushAll()
	_, _ = w.ctl().c.Update(w.now, 2, UpdateOptions{})
	last := w.nodes[3]
	w.until(func() bool {
		w.hold(func(p packet, k Kind) bool { return k == KindDecision && p.to == last.id })
		return w.nodes[2].r.Status().Version == 2
	})
	k := last.r.part.Key
	w.crash(w.ctl())
	w.logs = append(w.logs, &logOf{id: ID{0xd2}})
	c := w.controller(1)
	c.c.cfg.Limits.Ask = 100 * time.Millisecond
	w.connect(c)
	w.until(func() bool {
		w.hold(func(p packet, k Kind) bool { return p.to == last.id && k == KindTold })
		return c.c.ruling && len(c.c.peers) == 3 && c.c.peers[2].join.State.inEpoch()
	})
	if _, err := c.c.Decide(w.now, k.Number, false, true); err != nil {
		t.Fatal(err)
	}
	w.until(func() bool {
		w.hold(func(p packet, k Kind) bool { return p.to == last.id && k == KindTold })
		return len(c.result) == 1
	})
	if c.result[0].Err == nil || len(w.logs[1].records) != 0 {
		t.Fatalf("%+v", c.result)
	}
	w.crash(w.nodes[1])
	w.crash(w.nodes[2])
	w.until(func() bool { return len(c.c.peers) == 1 })
	if _, err := c.c.Decide(w.now, k.Number, true, false); err != nil {
		t.Fatal(err)
	}
	w.until(func() bool { return len(c.result) == 2 })
	if c.result[1].Err == nil {
		t.Fatal("decided while members are missing")
	}
	if _, err := c.c.Decide(w.now, k.Number, true, true); err != nil {
		t.Fatal(err)
	}
	w.until(func() bool { return len(c.result) == 3 })
	w.settle(time.Minute)
	w.wellFor(t)
	if s := last.r.Status(); s.State != StateCommitted || s.Version != 2 {
		t.Fatalf("%+v", s)
	}
}

// TestSuspended: an update to an instance with a suspended rank fails before anybody is stopped, unless such instances are left out.
func TestSuspended(t *testing.T) {
	w := ready(t, worldConfig{publishers: 1, instances: 2, ranks: 1})
	w.orders(t, 2, time.Minute)
	r := w.nodes[3]
	if err := r.r.Suspend(w.now); err != nil {
		t.Fatal(err)
	}
	w.settle(time.Second)
	if len(r.perms) != 0 {
		t.Fatal("a publisher may write into what is suspended")
	}
	stops := w.stops
	if o := w.orders(t, 3, time.Minute); o == nil || !errors.Is(o.Err, ErrSuspended) || w.stops != stops {
		t.Fatalf("%+v", o)
	}
	if _, err := w.ctl().c.Update(w.now, 3, UpdateOptions{SkipSuspended: true}); err != nil {
		t.Fatal(err)
	}
	w.settle(time.Minute)
	if o := w.ctl().result; o[len(o)-1].Err != nil || len(o[len(o)-1].Serving) != 1 {
		t.Fatalf("%+v", o)
	}
	if err := r.r.Awake(w.now, rootOf(2)); err != nil || r.r.State() != StateCommitted {
		t.Fatalf("%v %v", err, r.r.State())
	}
	w.settle(time.Second)
	if o := w.orders(t, 4, time.Minute); o == nil || o.Err != nil || len(o.Serving) != 2 {
		t.Fatalf("%+v", o)
	}
	_ = r.r.Suspend(w.now)
	w.settle(time.Second)
	if err := r.r.Awake(w.now, rootOf(9)); err != nil || r.r.State() != StateEmpty {
		t.Fatalf("%v %v", err, r.r.State())
	}
	w.wellFor(t)
}

// TestRooted: a root that comes after the commit is that of the version that is served, the controller learns it, and it is what a rank that was suspended is compared
// with. The first one stays, and one of another version is nothing.
func TestRooted(t *testing.T) {
	w := ready(t, worldConfig{publishers: 1, instances: 2, ranks: 1, rootless: true})
	w.orders(t, 2, time.Minute)
	told := func(i int) Hash {
		w.settle(time.Second)
		for _, m := range w.ctl().c.Status().Members {
			if m.Member.ID == w.nodes[i].id {
				return m.Root
			}
		}
		return Hash{}
	}
	a, b := w.nodes[2].r, w.nodes[3].r
	if err := b.Suspend(w.now); err != nil {
		t.Fatal(err)
	}
	for _, r := range []*Receiver{a, b} {
		r.Rooted(w.now, 1, rootOf(1))
		if s := r.Status(); s.Root != (Hash{}) {
			t.Fatalf("the root of another version is taken: %+v", s)
		}
		r.Rooted(w.now, 2, rootOf(2))
		r.Rooted(w.now, 2, rootOf(7))
	}
	if x, y := told(2), told(3); x != rootOf(2) || y != rootOf(2) {
		t.Fatalf("the controller knows the roots %v and %v, want %v", x, y, rootOf(2))
	}
	if err := b.Awake(w.now, rootOf(2)); err != nil || b.State() != StateCommitted {
		t.Fatalf("%v %v", err, b.State())
	}
	w.settle(time.Second)
	if o := w.orders(t, 3, time.Minute); o == nil || o.Err != nil || len(o.Serving) != 2 {
		t.Fatalf("%+v", o)
	}
	if x := told(2); x != (Hash{}) {
		t.Fatalf("v3 has the root %v before anybody has said it", x)
	}
	w.wellFor(t)
}

// TestJoinMidPush: an instance that comes during a push is served by a copy from another one, afterwards.
func TestJoinMidPush(t *testing.T) {
	w := ready(t, worldConfig{publishers: 1, instances: 1, ranks: 2, copies: true})
	w.wants = 2
	w.pushAll()
	_, _ = w.ctl().c.Update(w.now, 2, UpdateOptions{})
	w.until(func() bool { return len(w.writes) > 0 })
	w.cfg.instances = 2
	w.engines = append(w.engines, engine{})
	for k := range 2 {
		w.receiver(1, k, 0).later(answer{kind: "controller", id: w.ctl().id})
	}
	w.settle(time.Minute)
	w.wellFor(t)
	if o := w.ctl().result; len(o) != 1 || o[0].Err != nil {
		t.Fatalf("%+v", o)
	}
	for _, n := range w.nodes[4:] {
		if s := n.r.Status(); s.State != StateCommitted || s.Version != 2 || !w.engines[1].running {
			t.Fatalf("%+v\n%v", s, w)
		}
	}
}

// TestRollback: with a shadow the copy of the version before is flipped to.
func TestRollback(t *testing.T) {
	w := ready(t, worldConfig{publishers: 1, instances: 2, ranks: 2, shadow: true})
	w.orders(t, 2, time.Minute)
	if _, err := w.ctl().c.Rollback(w.now, 1); err != nil {
		t.Fatal(err)
	}
	w.settle(time.Minute)
	w.wellFor(t)
	o := w.ctl().result[1]
	if o.Err != nil || len(o.Serving) != 2 {
		t.Fatalf("%+v\n%v", o, w)
	}
	for _, n := range w.nodes {
		if n.r != nil && (n.tag != 1 || n.r.Status().Held != 2) {
			t.Fatalf("%+v", n.r.Status())
		}
	}
	if _, err := w.ctl().c.Rollback(w.now, 7); err != nil {
		t.Fatal(err)
	}
	w.settle(time.Minute)
	if o := w.ctl().result[2]; !errors.Is(o.Err, ErrVersion) {
		t.Fatalf("%+v", o)
	}
}

// TestRollbackFromPeer: in place, from an instance that still serves the version.
func TestRollbackFromPeer(t *testing.T) {
	w := ready(t, worldConfig{publishers: 1, instances: 2, ranks: 1})
	r := w.nodes[3]
	w.orders(t, 2, time.Minute)
	_ = r.r.Suspend(w.now)
	w.settle(time.Second)
	_, _ = w.ctl().c.Update(w.now, 3, UpdateOptions{SkipSuspended: true})
	w.wants = 3
	w.settle(time.Minute)
	_ = r.r.Awake(w.now, rootOf(2))
	w.settle(time.Second)
	if _, err := w.ctl().c.Rollback(w.now, 2); err != nil {
		t.Fatal(err)
	}
	w.settle(time.Minute)
	w.wellFor(t)
	o := w.ctl().result
	if x := o[len(o)-1]; x.Err != nil || len(x.Serving) != 2 || w.nodes[2].tag != 2 {
		t.Fatalf("%+v\n%v", o, w)
	}
}

// TestPushLeaves: a publisher that gives up counts as lost; its Push ends in doubt, and the others go on.
func TestPushLeaves(t *testing.T) {
	w := ready(t, worldConfig{publishers: 2, instances: 1, ranks: 1, stages: 2})
	w.wants = 2
	w.pushAll()
	_, _ = w.ctl().c.Update(w.now, 2, UpdateOptions{})
	w.until(func() bool { return len(w.writes) == 2 })
	p := w.nodes[1]
	p.p.Leave(w.now)
	if len(p.ended) != 0 {
		t.Fatal("a Push ended while it writes")
	}
	p.pushed = 2
	w.settle(3 * time.Second)
	if s := p.p.State(); s != StateIdle {
		t.Errorf("a publisher that has left is %v: it must ask, instead of being told", s)
	}
	w.settle(time.Minute)
	w.wellFor(t)
	if len(p.ended) != 1 || !errors.Is(p.ended[0].err, ErrInDoubt) {
		t.Fatalf("%+v", p.ended)
	}
	if o := w.ctl().result; len(o) != 1 || o[0].Err != nil || o[0].Repairs != 1 {
		t.Fatalf("%+v\n%v", o, w)
	}
}

// TestPauseFails: the instance is left out; before anybody was told to start, nothing is lost.
func TestPauseFails(t *testing.T) {
	w := ready(t, worldConfig{publishers: 1, instances: 1, ranks: 2})
	w.wants = 2
	w.pushAll()
	_, _ = w.ctl().c.Update(w.now, 2, UpdateOptions{})
	r := w.nodes[2]
	w.until(func() bool { return len(r.todo) > 0 && r.todo[0].kind == "pause" })
	w.do(r, true)
	w.settle(time.Minute)
	w.wellFor(t)
	o := w.ctl().result
	if len(o) != 1 || !errors.Is(o[0].Err, ErrAborted) {
		t.Fatalf("%+v", o)
	}
	for _, n := range w.nodes[2:] {
		if s := n.r.Status(); s.State != StateCommitted || s.Version != 1 {
			t.Fatalf("%+v", s)
		}
	}
	if !w.engines[0].running {
		t.Fatal("the engine is stopped")
	}
}
