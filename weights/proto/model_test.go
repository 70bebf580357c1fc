package proto

import (
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"
)

var modelStates = flag.Int("weights.states", 1_000, "states that TestProtocolModel looks at in each of its worlds; 0: all")

// model is a world, and how much harm may still be done in it. All of them that can be reached are looked at.
type model struct {
	*world
	loss     int // messages that may be lost
	late     int // times that it may be before something that is under way has arrived
	crashes  int
	restarts int // of the controller
	fails    int // of hooks and fences
	updates  int
	how      *how
}

// how is how a model came about, backwards.
type how struct {
	choice choice
	from   *how
}

func (m *model) clone() *model {
	c := *m
	c.world = m.world.clone()
	return &c
}

// atOnce are wishes whose answer does not depend on anything, so that it does not matter when it comes.
var atOnce = []string{"adopted", "planned", "granted", "verified", "ready", "suspended", "controller", "restore"}

// after brings the world to where something is to be chosen.
func (m *model) after() {
	for {
		m.look()
		n := m.ctl()
		if n != nil && n.c.ruling && n.c.op == nil && n.c.epoch == nil && m.updates > 0 && !n.c.deposed && n.c.broken == nil {
			m.updates--
			m.wants++
			m.pushAll()
			_, _ = n.c.Update(m.now, m.wants, UpdateOptions{})
			continue
		}
		again := false
		for _, n := range m.nodes {
			for n.alive && len(n.todo) > 0 && slices.Contains(atOnce, n.todo[0].kind) {
				m.do(n, false)
				again = true
			}
		}
		if !again {
			return
		}
	}
}

// choices are what may happen next.
func (m *model) choices() (list []choice) {
	seen := map[string]bool{}
	for i, p := range m.net {
		if s := string(p.to[:1]) + string(p.from[:1]) + string(p.data[:8]) + string(p.data[16:]); !seen[s] {
			seen[s] = true
			list = append(list, choice{kind: "deliver", i: i})
			if m.loss > 0 {
				list = append(list, choice{kind: "lose", i: i})
			}
		}
	}
	for i, n := range m.nodes {
		if n.alive && len(n.todo) > 0 {
			list = append(list, choice{kind: "do", i: i})
			if m.fails > 0 && new(chaos).canFail(n.todo[0].kind) {
				list = append(list, choice{kind: "fail", i: i})
			}
		}
	}
	for i := range m.writes {
		list = append(list, choice{kind: "land", i: i})
	}
	if len(list) == 0 || m.late > 0 {
		list = append(list, choice{kind: "tick", i: len(list)})
	}
	for i, n := range m.nodes {
		if n.alive && m.crashes > 0 {
			list = append(list, choice{kind: "crash", i: i})
		}
	}
	if m.ctl() == nil && m.restarts > 0 {
		list = append(list, choice{kind: "controller"})
	}
	return list
}

type choice struct {
	kind string
	i    int
}

func (m *model) take(x choice) bool {
	m.how = &how{x, m.how}
	switch x.kind {
	case "deliver":
		m.deliver(x.i)
	case "lose":
		m.loss--
		m.net = slices.Delete(m.net, x.i, x.i+1)
	case "do":
		m.do(m.nodes[x.i], false)
	case "fail":
		m.fails--
		m.do(m.nodes[x.i], true)
	case "land":
		m.land(x.i)
	case "tick":
		if x.i > 0 {
			m.late--
		}
		if !m.tick() {
			return false
		}
	case "crash":
		m.crashes--
		m.crash(m.nodes[x.i])
	case "controller":
		m.restarts--
		m.connect(m.controller(0))
	}
	m.after()
	return true
}

func (m *model) name(x choice) string {
	switch x.kind {
	case "deliver", "lose":
		return x.kind + " " + new(chaos).packetIn(m.world, m.net[x.i])
	case "do", "fail":
		a := m.nodes[x.i].todo[0]
		return fmt.Sprintf("%s node %d %s %v", x.kind, x.i, a.kind, a.key)
	case "land":
		return fmt.Sprintf("land %+v", m.writes[x.i])
	}
	return fmt.Sprintf("%s %d", x.kind, x.i)
}

func (c *chaos) packetIn(w *world, p packet) string {
	h, b, _ := Decode(p.data)
	return fmt.Sprintf("%d -> %d %v %v e%d", w.node(p.from).i, w.node(p.to).i, b.Kind(), h.Term, h.Epoch)
}

// print tells models apart, with what may still happen to them.
func (m *model) print() uint64 {
	h := m.world.print()
	for _, v := range []int{m.loss, m.late, m.crashes, m.restarts, m.fails, m.updates} {
		h = h*1000003 + uint64(v)
	}
	return h
}

// result is what a search has seen.
type result struct {
	states, steps, healed int
	whole                 bool
	faults                []string
	trace                 []string
}

// search looks at every model that can be reached, at most so many.
func search(begin func() *model, most int) (r result) {
	m := begin()
	m.after()
	seen := map[uint64]struct{}{m.print(): {}}
	stack := []*model{m}
	r.whole = true
	for len(stack) > 0 {
		at := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		r.states++
		if most > 0 && r.states > most {
			r.whole = false
			return r
		}
		for _, x := range at.choices() {
			next := at.clone()
			if !next.take(x) {
				continue
			}
			r.steps++
			if len(next.faults) > 0 {
				return r.failed(begin, next)
			}
			h := next.print()
			if _, ok := seen[h]; ok {
				continue
			}
			seen[h] = struct{}{}
			if h%32 == 0 {
				r.healed++
				if c := next.clone(); !c.heals() {
					return r.failed(begin, c)
				}
			}
			stack = append(stack, next)
		}
	}
	return r
}

// failed tells how it came about.
func (r result) failed(begin func() *model, m *model) result {
	r.faults = append(r.faults, m.faults...)
	r.faults = append(r.faults, m.String())
	var steps []choice
	for h := m.how; h != nil; h = h.from {
		steps = append(steps, h.choice)
	}
	slices.Reverse(steps)
	again := begin()
	again.after()
	for _, x := range steps {
		r.trace = append(r.trace, again.name(x))
		if x.kind != "heal" {
			again.take(x)
		}
	}
	return r
}

// heals lets no more harm be done: then everything comes to an end.
func (m *model) heals() bool {
	m.how = &how{choice{kind: "heal"}, m.how}
	if m.ctl() == nil {
		m.connect(m.controller(0))
	}
	m.settle(20 * time.Minute)
	if len(m.faults) == 0 {
		m.unfinished()
	}
	return len(m.faults) == 0
}

// models are the worlds of two or three members and a controller, and one kind of harm each.
func models() map[string]func() *model {
	world := func(publishers, instances, ranks int, shadow bool, set func(*model)) func() *model {
		return func() *model {
			m := &model{world: newWorld(worldConfig{publishers: publishers, instances: instances, ranks: ranks, shadow: shadow}), updates: 2}
			m.wants = 1
			for _, n := range m.nodes {
				n.pushed = 1
			}
			m.connect(m.nodes[0])
			m.settle(5 * time.Second)
			set(m)
			return m
		}
	}
	all := map[string]func() *model{}
	for _, shadow := range []bool{false, true} {
		place := "in place"
		if shadow {
			place = "shadow"
		}
		for name, set := range map[string]func(*model){
			"order":   func(m *model) {},
			"crash":   func(m *model) { m.crashes = 1 },
			"restart": func(m *model) { m.crashes, m.restarts = 1, 1 },
			"loss":    func(m *model) { m.loss = 1 },
			"late":    func(m *model) { m.late = 1 },
			"fail":    func(m *model) { m.fails = 1 },
		} {
			all[fmt.Sprintf("1 publisher, 1 rank, %s, %s", place, name)] = world(1, 1, 1, shadow, set)
			all[fmt.Sprintf("1 publisher, 2 ranks, %s, %s", place, name)] = world(1, 1, 2, shadow, set)
			all[fmt.Sprintf("2 publishers, 1 rank, %s, %s", place, name)] = world(2, 1, 1, shadow, set)
			all[fmt.Sprintf("1 publisher, 2 instances, %s, %s", place, name)] = world(1, 2, 1, shadow, set)
		}
	}
	return all
}

// TestProtocolModel: in worlds of three members and a controller, over two epochs, with every order of messages, writes and answers, and one
// kind of harm, nothing ever happens that must not, and everything ends.
func TestProtocolModel(t *testing.T) {
	all := models()
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			r := search(all[name], *modelStates)
			if len(r.faults) > 0 {
				for _, s := range r.trace {
					t.Log(s)
				}
				t.Fatalf("%v", r.faults)
			}
			t.Logf("%d states, %d steps, %d healed, all of them: %v", r.states, r.steps, r.healed, r.whole)
		})
	}
}

// TestCloneIsAlone: what happens in a copy does not happen in the original.
func TestCloneIsAlone(t *testing.T) {
	c := newChaos(7)
	c.wants = 1
	c.connect(c.nodes[0])
	for range 400 {
		before := c.world.print()
		d := c.world.clone()
		if d.print() != before {
			t.Fatal("a copy differs")
		}
		d.settle(30 * time.Second)
		if c.world.print() != before {
			t.Fatalf("a copy changed the original at step:\n%v", c.world)
		}
		if !c.step() {
			break
		}
		c.look()
	}
}
