package proto

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

var (
	randomRuns = flag.Int("weights.runs", 600, "random schedules of faults that TestProtocolRandom tries")
	randomSeed = flag.Uint64("weights.seed", 0, "one seed for TestProtocolRandom")
)

// chaos takes random steps, and does harm within limits.
type chaos struct {
	*world
	r        *rand.Rand
	loss     int // messages of a hundred that are lost
	crashes  int // that are left
	restarts int
	fails    int // hooks that fail, of a hundred
	hasty    int // of a hundred steps, those in which the time passes though something is under way
	slow     int // of a hundred choices of a write, those in which another one is made
	twice    int // of a hundred writes, those that arrive twice
	updates  int // orders that are left
	trace    []string
}

func newChaos(seed uint64) *chaos {
	r := rand.New(rand.NewPCG(seed, 1))
	cfg := worldConfig{
		publishers: 1 + r.IntN(3), instances: 1 + r.IntN(2), ranks: 1 + r.IntN(2), stages: 1 + r.IntN(3), shadow: r.IntN(2) == 0,
		copies: r.IntN(2) == 0, noReplica: r.IntN(4) == 0,
	}
	return &chaos{
		world: newWorld(cfg), r: r, loss: r.IntN(3) * 4, crashes: r.IntN(3), restarts: r.IntN(3), fails: r.IntN(3) * 3, hasty: r.IntN(3) * 2,
		updates: 2 + r.IntN(3), slow: r.IntN(3) * 45, twice: r.IntN(2) * 10,
	}
}

func (c *chaos) chance(percent int) bool { return c.r.IntN(100) < percent }

func (c *chaos) note(format string, args ...any) {
	c.trace = append(c.trace, fmt.Sprintf(format, args...))
}

// step does one thing that can be done.
func (c *chaos) step() bool {
	if c.chance(1) && c.chance(40) || len(c.writes) > 0 && c.chance(1) {
		c.harm()
	}
	busy := slices.Collect(func(yield func(*node) bool) {
		for _, n := range c.nodes {
			if n.alive && len(n.todo) > 0 && !yield(n) {
				return
			}
		}
	})
	total := len(c.net) + len(busy) + len(c.writes)
	if total == 0 || c.chance(c.hasty) {
		return c.pass()
	}
	switch k := c.r.IntN(total); {
	case k < len(c.net):
		p := c.net[k]
		if c.chance(c.loss) {
			c.note("lose %s", c.packet(p))
			c.net = slices.Delete(c.net, k, k+1)
			return true
		}
		c.note("deliver %s", c.packet(p))
		c.deliver(k)
	case k < len(c.net)+len(busy):
		n := busy[k-len(c.net)]
		fail := c.canFail(n.todo[0].kind) && c.chance(c.fails)
		c.note("node %d: %s %v fail %v", n.i, n.todo[0].kind, n.todo[0].key, fail)
		c.do(n, fail)
	default:
		k -= len(c.net) + len(busy)
		if c.chance(c.slow) {
			return true
		}
		if c.chance(c.twice) {
			c.double(k)
		}
		c.note("land %+v", c.writes[k])
		c.land(k)
	}
	return true
}

// double makes a write arrive twice, as it may when the way that it took is lost.
func (c *chaos) double(k int) {
	f := c.writes[k]
	from := c.nodes[f.from]
	for i := range from.jobs {
		if j := &from.jobs[i]; j.key == f.key && from.alive && !f.again {
			c.note("again %+v", f)
			f.again = true
			c.writes = append(c.writes, f)
			j.left++
		}
	}
}

func (c *chaos) packet(p packet) string {
	h, b, _ := Decode(p.data)
	return fmt.Sprintf("%d -> %d %v %v e%d %+v", c.node(p.from).i, c.node(p.to).i, b.Kind(), h.Term, h.Epoch, b)
}

func (*chaos) canFail(kind string) bool {
	return slices.Contains([]string{"pause", "resume", "flip", "granted", "ready", "fence"}, kind)
}

// pass lets the time pass, and gives orders.
func (c *chaos) pass() bool {
	if n := c.ctl(); n != nil && n.c.op == nil && n.c.ruling && c.updates > 0 && c.chance(50) {
		c.updates--
		c.wants++
		c.pushAll()
		v := c.wants + 1
		c.note("update v%d", v)
		_, _ = n.c.Update(c.now, c.wants, UpdateOptions{})
		return true
	}
	if !c.tick() {
		return false
	}
	c.note("time %v", c.now)
	return true
}

// harm crashes somebody, or starts a controller.
func (c *chaos) harm() {
	if c.restarts > 0 && (c.ctl() == nil || c.chance(20)) {
		c.restarts--
		c.startController()
		return
	}
	if c.crashes == 0 {
		return
	}
	n := c.nodes[c.r.IntN(len(c.nodes))]
	if !n.alive {
		return
	}
	c.crashes--
	c.note("crash %d", n.i)
	c.crash(n)
}

// startController starts one with the first log, if that is free, or with an empty one.
func (c *chaos) startController() {
	disk := 0
	if slices.ContainsFunc(c.nodes, func(n *node) bool { return n.c != nil && n.alive && n.disk == 0 }) || c.chance(25) {
		disk = len(c.logs)
		c.logs = append(c.logs, &logOf{id: ID{0xd1, byte(disk)}})
	}
	n := c.controller(disk)
	c.note("controller %d with log %d", n.i, disk)
	c.connect(n)
}

func (c *chaos) run(t *testing.T, steps int) {
	if c.play(steps); len(c.faults) > 0 {
		for _, s := range c.trace[max(0, len(c.trace)-150):] {
			t.Log(s)
		}
		t.Fatalf("%v\n%+v\n%v", c.faults, c.cfg, c.world)
	}
}

// play takes random steps; then the world heals, and everything comes to an end.
func (c *chaos) play(steps int) {
	c.wants = 1
	for _, n := range c.nodes {
		n.pushed = 1
	}
	c.connect(c.nodes[0])
	for range steps {
		if len(c.faults) > 0 || !c.step() {
			break
		}
		c.look()
	}
	if c.ctl() == nil {
		c.startController()
	}
	if len(c.faults) == 0 {
		c.settle(20 * time.Minute)
		c.operate()
	}
	if len(c.faults) == 0 {
		c.unfinished()
	}
}

// operate decides what nobody knows any more.
func (w *world) operate() {
	for range 4 {
		n := w.ctl()
		i := slices.IndexFunc(w.nodes, func(n *node) bool { return n.alive && n.c == nil && n.member().part != nil })
		if i < 0 || len(w.faults) > 0 {
			return
		}
		k := w.nodes[i].member().part.Key
		commit := w.committed(k, -1)
		if _, err := n.c.Decide(w.now, k.Number, commit, true); err != nil {
			w.fault("decide %v: %v", k, err)
		}
		w.settle(10 * time.Minute)
	}
}

// unfinished: every epoch has ended, for everybody.
func (w *world) unfinished() {
	for _, n := range w.nodes {
		switch {
		case !n.alive:
		case n.c != nil && n != w.ctl():
		case n.c != nil && (n.c.epoch != nil || n.c.op != nil):
			w.fault("the controller's epoch or operation does not end")
		case n.c == nil && n.member().part != nil:
			w.fault("node %d: %v does not end", n.i, n.member().part.Key)
		case n.c == nil && len(n.member().said.all) > 0:
			w.fault("node %d still says %v to %d", n.i, n.member().said.all[0].kind, w.node(n.member().said.all[0].to).i)
		}
	}
}

func TestProtocolRandom(t *testing.T) {
	if *randomSeed != 0 {
		newChaos(*randomSeed).run(t, 3000)
		return
	}
	for seed := range uint64(*randomRuns) {
		t.Run(fmt.Sprint("seed ", seed+1), func(t *testing.T) { newChaos(seed+1).run(t, 3000) })
		if t.Failed() {
			return
		}
	}
}
