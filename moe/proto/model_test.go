package proto

import (
	"flag"
	"fmt"
	"hash/maphash"
	"slices"
	"testing"
)

var modelStates = flag.Int("moe.states", 20_000, "states that TestProtocolModel looks at in each world that is larger; 0: all")

// clone is a copy of a world that shares nothing with it that changes. TestCloneIsAlone sees that nothing was forgotten.
func (w *world) clone() *world {
	c := *w
	c.parts, c.trs, c.msgs, c.downs, c.faults = slices.Clone(w.parts), slices.Clone(w.trs), slices.Clone(w.msgs), slices.Clone(w.downs), slices.Clone(w.faults)
	c.nodes = make([]*node, len(w.nodes))
	c.target.Members = slices.Clone(w.target.Members)
	c.nexts = map[uint32]uint64{}
	for k, v := range w.nexts {
		c.nexts[k] = v
	}
	for i, n := range w.nodes {
		m := *n
		m.w = &c
		m.todo, m.hd, m.xb, m.mb, m.pl, m.c = slices.Clone(n.todo), slices.Clone(n.hd), slices.Clone(n.xb), slices.Clone(n.mb), slices.Clone(n.pl), slices.Clone(n.c)
		m.counts, m.gen, m.desc, m.missing = slices.Clone(n.counts), slices.Clone(n.gen), slices.Clone(n.desc), slices.Clone(n.missing)
		m.peers = slices.Clone(n.peers)
		m.lane = n.lane.Clone(&m)
		g := *n.group
		g.out, g.lanes, g.seats, g.message = &m, []*Lane{m.lane}, slices.Clone(g.seats), nil
		m.group = &g
		c.nodes[i] = &m
	}
	return &c
}

// hash is what a world is told apart by. Order in a set does not matter, nor does what time it is.
type hash uint64

var seed = maphash.MakeSeed()

func (h *hash) add(v uint64) {
	x := uint64(*h) ^ v*0x9e3779b97f4a7c15
	x = (x ^ x>>29) * 0xbf58476d1ce4e5b9
	*h = hash((x ^ x>>32) * 0x94d049bb133111eb)
}

func hashOf[T comparable](h *hash, v T) { h.add(maphash.Comparable(seed, v)) }

func hashList[T comparable](h *hash, list []T) {
	h.add(uint64(len(list)))
	for _, v := range list {
		hashOf(h, v)
	}
}

func hashSet[T comparable](h *hash, list []T) {
	sum := uint64(len(list))
	for _, v := range list {
		sum += maphash.Comparable(seed, v)
	}
	h.add(sum)
}

func (w *world) hash() hash {
	var h hash
	hashSet(&h, w.parts)
	hashSet(&h, w.trs)
	hashSet(&h, w.msgs)
	hashSet(&h, w.downs)
	b := w.budget
	hashOf(&h, [8]int{b.rejoins, b.kills, b.lates, b.cancels, b.unended, b.unfenced, b.losses, b.doubles})
	h.add(uint64(w.target.Epoch))
	for _, n := range w.nodes {
		hashOf(&h, [4]int{n.steps, n.region, int(n.view), len(n.todo)})
		hashOf(&h, n.alive)
		hashOf(&h, n.id)
		if !n.alive {
			continue
		}
		hashSet(&h, n.todo)
		hashList(&h, n.hd)
		hashList(&h, n.xb)
		hashList(&h, n.mb)
		hashList(&h, n.pl)
		hashList(&h, n.c)
		hashList(&h, n.counts)
		hashList(&h, n.gen)
		hashList(&h, n.desc)
		n.lane.hash(&h)
		n.group.hash(&h)
	}
	return h
}

func (l *Lane) hash(h *hash) {
	hashOf(h, [12]int{
		int(l.view), int(l.step), int(l.completed), int(l.phase), int(l.why), l.blamed, l.heads, l.left, l.combs, l.wanted, l.reading, int(l.mode),
	})
	hashOf(h, [8]bool{l.open, l.active, l.begun, l.partial, l.stale, l.told, l.headsIn, l.asked})
	hashOf(h, [9]int{l.fromS, l.fromY, l.wholeY, l.busy, l.half[0], l.half[1], l.away, l.turn, len(l.free)})
	hashOf(h, l.sent)
	hashList(h, l.peers)
	hashList(h, l.free)
	hashList(h, l.waiting)
}

func (g *Group) hash(h *hash) {
	hashOf(h, [4]uint64{uint64(g.stage), uint64(g.epoch), uint64(g.opened), g.next[0]})
	hashOf(h, [2]bool{g.fresh, g.parked})
	hashOf(h, g.states)
	for i := range g.seats {
		s := &g.seats[i]
		hashOf(h, [9]bool{s.member, s.heard[0], s.heard[1], s.fence, s.imports, s.done, s.unsent[0], s.unsent[1], s.given})
		hashOf(h, [3]bool{s.listed, s.suspected, s.holds})
		hashOf(h, s.holder)
		hashOf(h, [2]uint32{s.has, s.gave})
		for r := range s.said {
			if s.heard[r] {
				hashOf(h, [2]uint64{uint64(s.said[r].View), s.said[r].Lanes[0].Begun})
				h.add(uint64(s.said[r].Has))
				hashOf(h, string(s.said[r].Descriptors))
			}
		}
	}
}

// choice is something that may happen next.
type choice struct {
	kind string
	a, b int
}

// slow are things to do that take a time that matters.
func slow(kind string) bool { return kind == "unpack" || kind == "reduce" || kind == "fence" }

// settle does what does not depend on when it is done.
func (w *world) settle() (did bool) {
	for again := true; again; {
		again = false
		for _, n := range w.nodes {
			for i := 0; n.alive && i < len(n.todo); i++ {
				if !slow(n.todo[i].kind) {
					n.do(i)
					again = true
					break
				}
			}
			for r := range w.nodes {
				if n.alive && w.nodes[r].alive && n.group.Waits(r) {
					n.group.Again(r)
					again = true
				}
			}
		}
		for i := 0; w.swift && i < len(w.trs); i++ {
			if w.ends(&w.trs[i]) {
				w.end(i)
				again = true
				break
			}
		}
		did = did || again
	}
	return did
}

func (w *world) choices() (list []choice) {
	add := func(kind string, a, b int) { list = append(list, choice{kind, a, b}) }
	b := &w.budget
	for i := range w.parts {
		switch p := &w.parts[i]; {
		case p.counted || p.gone:
		case w.split && !p.placed:
			add("place", i, 0)
		default:
			add("count", i, 0)
		}
		if p := &w.parts[i]; b.unended > 0 && p.open && !p.counted && !p.gone && !p.failed && w.nodes[p.from].alive {
			add("unended", i, 0)
		}
	}
	for i := range w.trs {
		if !w.swift && w.ends(&w.trs[i]) {
			add("end", i, 0)
		}
	}
	for i := range w.msgs {
		add("deliver", i, 0)
		if b.losses > 0 {
			add("lose", i, 0)
		}
		if b.doubles > 0 {
			add("lose after delivery", i, 0)
		}
	}
	for i := range w.downs {
		add("down", i, 0)
	}
	for i, n := range w.nodes {
		if !n.alive {
			if b.rejoins > 0 {
				add("rejoin", i, 0)
			}
			continue
		}
		for j, t := range n.todo {
			if t.kind == "unpack" && w.stream && !n.lane.HalfFree(0) && !n.lane.HalfFree(1) {
				continue
			}
			add("do", i, j)
			if t.kind == "fence" && b.unfenced > 0 {
				add("fail", i, j)
			}
		}
		if (n.lane.phase == idle || broken(mutBusy) && n.lane.phase == reducing) && n.steps > 0 && n.lane.active && (!n.lane.stale || broken(mutRefuse)) && n.group.Active() {
			add("begin", i, 0)
		}
		if n.lane.phase == idle && (n.group.Epoch() < w.target.Epoch || n.lane.stale && n.group.Active()) {
			add("activate", i, 0)
		}
		if _, waits := n.lane.Next(); waits && b.lates > 0 {
			add("late", i, 0)
		}
		if b.cancels > 0 && n.lane.phase != idle {
			add("cancel", i, 0)
		}
		if b.kills > 0 {
			add("kill", i, 0)
		}
	}
	return list
}

func (w *world) take(x choice) {
	switch x.kind {
	case "place":
		w.place(x.a)
	case "count":
		w.count(x.a)
		w.sweep()
	case "unended":
		w.budget.unended--
		w.parts[x.a].failed = true
	case "end":
		w.end(x.a)
	case "deliver":
		w.deliver(x.a)
	case "lose":
		w.budget.losses--
		m := w.msgs[x.a]
		w.msgs = slices.Delete(w.msgs, x.a, x.a+1)
		w.unsent(m)
	case "lose after delivery":
		w.budget.doubles--
		m := w.msgs[x.a]
		w.deliver(x.a)
		w.unsent(m)
	case "down":
		d := w.downs[x.a]
		w.downs = slices.Delete(w.downs, x.a, x.a+1)
		if n, x := w.nodes[d[0]], w.nodes[d[1]]; n.alive && (!x.alive || n.peers[d[1]] != x.id) {
			n.group.PeerDown(d[1])
		}
	case "do":
		w.nodes[x.a].do(x.b)
	case "fail":
		w.budget.unfenced--
		w.nodes[x.a].todo[x.b].unfenced = true
		w.nodes[x.a].do(x.b)
	default:
		w.user(x.kind, w.nodes[x.a])
	}
	w.settle()
	w.gates()
}

// user does what users do.
func (w *world) user(kind string, n *node) {
	switch kind {
	case "begin":
		n.steps--
		records := make([]uint32, w.ranks)
		for to := range records {
			records[to] = w.records(n.lane.step+1, n.i, to)
		}
		w.check(n.lane.Begin(n.now, records))
	case "activate":
		if n.group.Epoch() == w.target.Epoch {
			w.wantView()
		}
		n.todo = nil
		w.check(n.group.Activate(w.target))
	case "late", "tick":
		if kind == "late" {
			w.budget.lates--
		}
		n.now, _ = n.lane.Next()
		n.lane.Tick(n.now)
	case "cancel":
		w.budget.cancels--
		n.lane.Cancel(CodeCanceled)
	case "rejoin":
		w.budget.rejoins--
		w.rejoin(n)
	case "kill":
		w.budget.kills--
		w.kill(n)
	}
	n.group.Progress()
}

// gates looks whether a count can mean two things: parts with one value on the way to one rank belong to one Transfer.
func (w *world) gates() {
	for i := range w.parts {
		for j := range w.parts[:i] {
			p, q := &w.parts[i], &w.parts[j]
			if p.open && q.open && p.from == q.from && p.to == q.to && p.t.Kind == q.t.Kind && (p.step != q.step || p.op != OpComb || w.stream && p.t.N > 0) {
				w.fault("rank %d has two Transfers with %v to rank %d under way: %+v, %+v", p.from, p.t.Kind, p.to, q.t, p.t)
			}
		}
	}
}

// over says whether everything that was to be done is done, and how it is not.
func (w *world) over() {
	for _, n := range w.nodes {
		if n.alive && (n.lane.phase != idle || n.steps > 0 || n.lane.stale || !n.group.Active() || n.lane.completed != n.lane.step || n.lane.busy > 0) {
			w.fault("nothing happens any more, and rank %d is at step %d (%d complete, phase %d, %d to begin, stale %v, stage %d of view %d)",
				n.i, n.lane.step, n.lane.completed, n.lane.phase, n.steps, n.lane.stale, n.group.stage, n.group.epoch)
		}
		if n.alive && n.lane.completed == n.lane.step && n.lane.phase == idle && len(n.lane.free)+n.lane.away != n.cfg.PoolChunks {
			w.fault("rank %d has %d chunks of %d", n.i, len(n.lane.free), n.cfg.PoolChunks)
		}
	}
}

// how is how a world came about, backwards.
type how struct {
	choice choice
	from   *how
}

type found struct {
	w   *world
	how *how
}

// result is what a search has seen.
type result struct {
	states, steps int
	whole         bool
	faults, trace []string
}

// search looks at every world that can be reached from s, at most so many.
func search(s setting, most int) (r result) {
	first := newWorld(s)
	seen := map[hash]struct{}{first.hash(): {}}
	stack := []found{{first, nil}}
	r.whole = true
	for len(stack) > 0 {
		at := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if r.states++; most > 0 && r.states > most {
			r.whole = false
			return r
		}
		list := at.w.choices()
		if len(list) == 0 {
			list = at.w.ticks()
		}
		self, moved := at.w.hash(), false
		for _, x := range list {
			next := at.w.clone()
			next.take(x)
			r.steps++
			h := next.hash()
			moved = moved || h != self
			if len(next.faults) > 0 {
				return r.failed(s, next, &how{x, at.how})
			}
			if _, ok := seen[h]; !ok {
				seen[h] = struct{}{}
				stack = append(stack, found{next, &how{x, at.how}})
			}
		}
		if !moved {
			if at.w.over(); len(at.w.faults) > 0 {
				return r.failed(s, at.w, at.how)
			}
		}
	}
	return r
}

// ticks is time that goes by when nothing else can happen.
func (w *world) ticks() (list []choice) {
	for i, n := range w.nodes {
		if _, ok := n.lane.Next(); ok && n.alive {
			list = append(list, choice{"tick", i, 0})
		}
	}
	return list
}

// failed tells how it came about.
func (r result) failed(s setting, w *world, h *how) result {
	r.faults = w.faults
	var list []choice
	for ; h != nil; h = h.from {
		list = append(list, h.choice)
	}
	slices.Reverse(list)
	again := newWorld(s)
	for _, x := range list {
		r.trace = append(r.trace, again.name(x))
		again.take(x)
	}
	return r
}

func (w *world) name(x choice) string {
	switch x.kind {
	case "place", "count", "unended":
		p := &w.parts[x.a]
		return fmt.Sprintf("%s %v %v piece %d of step %d, view %d: %d -> %d", x.kind, p.op, p.t.Kind, p.t.Piece, p.step, p.view, p.from, p.to)
	case "end":
		return fmt.Sprintf("end %+v", w.trs[x.a])
	case "deliver", "lose", "lose after delivery":
		m := w.msgs[x.a]
		return fmt.Sprintf("%s ready %d: %d -> %d", x.kind, m.round, m.from, m.to)
	case "do", "fail":
		return fmt.Sprintf("%s rank %d %+v", x.kind, x.a, w.nodes[x.a].todo[x.b])
	}
	return fmt.Sprintf("%s %d %d", x.kind, x.a, x.b)
}

// all sends so many records to every other rank.
func all(n uint32) func(uint64, int, int) uint32 { return func(uint64, int, int) uint32 { return n } }

// worlds are what is looked at: those whose every state is seen in each run, and larger ones.
func worlds() (small, large map[string]setting) {
	one := setting{ranks: 2, steps: 2, records: all(1), first: 1, chunk: 1, pool: 1, window: 2}
	with := func(s setting, f func(*setting)) setting { f(&s); return s }
	credits := with(one, func(s *setting) {
		s.first, s.records = -1, func(step uint64, from, to int) uint32 { return 3 - uint32(from)*2 }
	})
	faulty := with(one, func(s *setting) { s.steps, s.swift = 1, true })
	small = map[string]setting{
		"2 ranks, 2 steps":                             with(one, func(s *setting) { s.split = true }),
		"2 ranks, nothing to send":                     with(one, func(s *setting) { s.records = all(0) }),
		"2 ranks, credits, pool of 1, window of 1":     with(credits, func(s *setting) { s.window = 1; s.swift = true }),
		"2 ranks, credits, pool of 2, window of 2":     with(credits, func(s *setting) { s.pool, s.steps, s.swift = 2, 1, true }),
		"2 ranks, credits, streamed":                   with(credits, func(s *setting) { s.stream, s.steps, s.first = true, 1, 1 }),
		"2 ranks, a cancel":                            with(faulty, func(s *setting) { s.cancels, s.steps = 1, 2 }),
		"2 ranks, a death":                             with(faulty, func(s *setting) { s.kills = 1 }),
		"2 ranks, one dies and comes back":             with(faulty, func(s *setting) { s.kills, s.rejoins = 1, 1 }),
		"2 ranks, a false suspicion":                   with(faulty, func(s *setting) { s.lates = 1 }),
		"2 ranks, a Transfer that does not end well":   with(faulty, func(s *setting) { s.unended = 1 }),
		"2 ranks, a suspicion, and a READY lost":       with(faulty, func(s *setting) { s.lates, s.losses = 1, 1 }),
		"2 ranks, a suspicion, and a READY doubled":    with(faulty, func(s *setting) { s.lates, s.doubles = 1, 1 }),
		"2 ranks, a suspicion, and a fence that fails": with(faulty, func(s *setting) { s.lates, s.unfenced = 1, 1 }),
	}
	small["2 ranks, two suspicions, and a READY lost"] = with(faulty, func(s *setting) { s.lates, s.losses, s.records = 2, 1, all(0) })
	three := with(faulty, func(s *setting) { s.ranks = 3 })
	large = map[string]setting{
		"2 ranks, credits, pool of 2, window of 2, slow ends": with(credits, func(s *setting) { s.pool, s.steps = 2, 1 }),
		"2 ranks, 3 steps, credits, window of 4":              with(credits, func(s *setting) { s.steps, s.window, s.pool, s.records = 3, 4, 2, all(5) }),
		"2 ranks, 2 steps, credits, split":                    with(credits, func(s *setting) { s.pool, s.split = 2, true }),
		"2 ranks, 2 steps, credits, streamed":                 with(credits, func(s *setting) { s.stream, s.pool = true, 2 }),
		"2 ranks, 2 steps, credits, a death":                  with(credits, func(s *setting) { s.kills = 1 }),
		"2 ranks, 2 steps, credits, a cancel":                 with(credits, func(s *setting) { s.cancels = 1 }),
		"2 ranks, 2 steps, credits, a suspicion":              with(credits, func(s *setting) { s.lates = 1 }),
		"2 ranks, 2 steps, an ill Transfer and a cancel":      with(one, func(s *setting) { s.unended, s.cancels = 1, 1 }),
		"3 ranks, 2 steps, credits":                           with(three, func(s *setting) { s.steps, s.records = 2, all(2) }),
		"3 ranks, a false suspicion":                          with(three, func(s *setting) { s.lates = 1 }),
		"3 ranks, a death":                                    with(three, func(s *setting) { s.kills = 1 }),
		"3 ranks, a death and a false suspicion":              with(three, func(s *setting) { s.kills, s.lates = 1, 1 }),
		"3 ranks, a cancel":                                   with(three, func(s *setting) { s.cancels, s.steps = 1, 2 }),
		"3 ranks, two suspicions, credits":                    with(three, func(s *setting) { s.lates, s.records, s.pool = 2, all(2), 1 }),
	}
	return small, large
}

// TestProtocolModel: in small worlds, with every order of writes, counts, ends, answers and messages, and some harm, no byte lands where
// it must not, none is read too early, and everything ends.
func TestProtocolModel(t *testing.T) {
	small, large := worlds()
	run := func(name string, s setting, most int) {
		t.Run(name, func(t *testing.T) {
			r := search(s, most)
			if len(r.faults) > 0 {
				for _, line := range r.trace {
					t.Log(line)
				}
				t.Fatalf("%q", r.faults)
			}
			t.Logf("%d states, %d steps, all of them: %v", r.states, r.steps, r.whole)
		})
	}
	for name, s := range small {
		run(name, s, *modelStates)
	}
	if testing.Short() {
		return
	}
	for name, s := range large {
		run(name, s, *modelStates/10)
	}
}
