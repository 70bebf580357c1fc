package rail

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hawser-project/hawser/mem"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/sim"
)

// The adversary: the code that workers run, on a simulated network, stepped in an order that a seed decides. Nothing else moves:
// no goroutine, no clock. Equal seeds give equal runs.

var (
	simSeed = flag.Uint64("sim.seed", 0, "run only the schedule of this seed, and tell what happens")
	simTime = flag.Duration("sim.time", 2*time.Second, "for how long random schedules are tried")
	simRuns = flag.Int("sim.runs", 1<<30, "how many random schedules are tried at most")
)

const (
	cellLen   = 3000
	maxOps    = 64     // of a run
	settling  = 300    // events after the last end: what comes too late comes then
	maxEvents = 200000 // of a run; one takes some thousands
	recovery  = 1000   // ticks after which every link is back: more than the longest pause, for each rail that it may join
)

// story is what happens in one run.
type story struct {
	seed    uint64
	hosts   int
	rails   [2]int // of host 0, and of the others
	ops     int
	fault   int // the number of the event before which something fails; -1: at random; -2: never
	kind    int // of the fault, see world.fail
	without guard
	ordered bool
	crowded bool // many operations have immediates of one class
	ends    bool // a refused write ends its connection

	nics [2][]sim.NIC                                            // of host 0, and of the others; nil: at random
	wrap func(host, rail int, d provider.Domain) provider.Domain // nil: as they are
}

// rest lets everything happen that can, without a choice.
func (w *adversaryWorld) rest() {
	for range 10000 {
		moved := w.deliver() || w.f.Step() // in this order, or time would run while a notice is on its way
		for _, h := range w.host {
			moved = h.g.Step() > 0 || moved
		}
		if !moved {
			return
		}
	}
}

// one lets one thing happen, and reports whether anything could.
func (w *adversaryWorld) one() bool {
	w.events++
	start := w.rng.IntN(len(w.host) + 3)
	for i := range len(w.host) + 3 {
		switch k := (start + i) % (len(w.host) + 3); k {
		case 0, 1:
			if w.f.Step() {
				return true
			}
		case 2:
			if w.deliver() {
				return true
			}
		default:
			if w.host[k-3].g.Step() > 0 {
				return true
			}
		}
	}
	return false
}

// deliver hands over one notice.
func (w *adversaryWorld) deliver() bool {
	n := len(w.host)
	start := w.rng.IntN(n * n)
	for i := range n * n {
		k := (start + i) % (n * n)
		to, from := w.host[k/n], k%n
		if len(to.in[from]) == 0 {
			continue
		}
		m := to.in[from][0]
		to.in[from] = to.in[from][1:]
		w.note("%s hears from %c: link %d, %d. connection: step %d, %d immediates, %d messages %s", to.name, 'a'+rune(from), m.Link, m.Epoch, m.Step, m.Imms, m.Messages, m.Fault)
		to.g.Call(func(g *Group) { g.Notice(to.peers[from], m) })
		return true
	}
	return false
}

// kinds of faults.
const (
	faultLose  = iota // one side gives up a connection that works, as after a stall
	faultBlink        // the path between two NICs is cut, shorter than networks notice
	faultCut          // or longer
	faultStall        // a NIC does nothing for a while
	faultPart         // hosts do not reach each other for a while
	faultNIC          // a NIC dies
	faultClose        // a receiver takes its memory back
	faultFence        // a session is fenced, for good
	faultKinds
)

func (w *adversaryWorld) harm(kind int) {
	w.faults++
	i := w.rng.IntN(w.hosts)
	k := (i + 1 + w.rng.IntN(w.hosts-1)) % w.hosts
	a, b := w.host[i], w.host[k]
	p := a.peers[k]
	l := p.links[w.rng.IntN(len(p.links))]
	switch kind {
	case faultLose:
		w.note("%s gives up link %d to %s", a.name, l.index, b.name)
		a.g.Call(func(g *Group) { g.lose(l, "told to") })
	case faultBlink, faultCut:
		x := fmt.Sprintf("%s/nic%d", a.name, l.rail.index)
		y := b.name
		w.note("cut %s from %s", x, y)
		w.f.Cut(x, y)
		for range 3 + w.rng.IntN(10) {
			w.one()
		}
		if kind == faultCut {
			until := w.f.Now() + 200*time.Microsecond
			for w.f.Now() < until && w.one() {
			}
		}
		w.note("heal %s from %s", x, y)
		w.f.Heal(x, y)
	case faultStall:
		w.note("%s/nic%d stalls", a.name, l.rail.index)
		d := time.Duration(w.rng.IntN(60)) * time.Microsecond
		w.stalled = max(w.stalled, w.f.Now()+d)
		w.f.Stall(fmt.Sprintf("%s/nic%d", a.name, l.rail.index), d)
	case faultPart:
		w.note("%s and %s part", a.name, b.name)
		w.f.Inject(sim.Fault{Kind: sim.FaultPartition, Places: []string{a.name}, For: time.Duration(1+w.rng.IntN(60)) * time.Microsecond})
	case faultNIC:
		if w.f.Now() < w.stalled {
			return // it may hold what has arrived and was not polled, which a domain that fails in order does not
		}
		w.note("rail %d of %s dies", l.rail.index, a.name)
		a.g.Call(func(g *Group) {
			for !l.rail.dead && g.poll(l.rail) > 0 { // a domain fails when everything that has arrived was polled
			}
			if !l.rail.dead {
				g.railDead(l.rail, errors.New("dead"))
			}
		})
	case faultClose:
		j := w.jobs[w.rng.IntN(len(w.jobs))]
		w.note("the remote of job %d is closed", j.id)
		j.closed = true
		w.host[j.from].g.Call(func(g *Group) { g.CloseRemote(j.remote) })
	case faultFence:
		if w.rng.IntN(2) == 0 { // while it sees to a link that has failed
			a.g.Call(func(g *Group) { g.lose(l, "told to") })
			for range w.rng.IntN(30) {
				w.one()
			}
		}
		w.note("%s fences %s", a.name, b.name)
		a.ended[k], b.ended[i] = true, true
		a.g.Call(func(g *Group) { g.Fence(p) })
		b.g.Call(func(g *Group) { g.Fence(b.peers[i]) })
	}
}

// run plays a story to its end and returns what went wrong.
func (s story) run(loud bool) (w *adversaryWorld, wrong string) {
	w, err := newAdversary(s)
	if err != nil {
		return w, err.Error()
	}
	w.loud = loud
	w.plan()
	next, after := 0, 0
	for w.wrong == "" && after < settling {
		if w.events > maxEvents {
			w.describe()
			w.fail("no rest")
		}
		if next == len(w.jobs) && w.ended() {
			after++ // what comes too late would come now
		}
		if next < len(w.jobs) && w.rng.IntN(4) == 0 {
			j := w.jobs[next]
			first := w.start(j)
			for last := first; ; last = last.Chain { // as the legs of a scatter, maybe
				if next++; next == len(w.jobs) || w.jobs[next].from != j.from || w.rng.IntN(2) == 0 {
					break
				}
				last.Chain = w.start(w.jobs[next])
			}
			if !w.host[j.from].g.Submit(first) {
				return w, "submit refused"
			}
		}
		switch {
		case s.fault == -1 && w.faults < 6 && next < len(w.jobs) && w.rng.IntN(60) == 0:
			k := w.rng.IntN(faultFence) // the end of a session is rare
			if w.rng.IntN(12) == 0 {
				k = faultFence
			}
			if k == faultNIC && w.rng.IntN(4) > 0 {
				k = faultLose
			}
			w.harm(k)
		case s.fault == w.events:
			w.harm(s.kind)
		}
		if w.one() && w.rng.IntN(200) > 0 {
			continue
		}
		for _, h := range w.host {
			h.g.tickAll()
		}
	}
	if w.wrong == "" {
		w.recover()
	}
	if w.wrong == "" {
		w.finish()
	}
	for _, h := range w.host {
		if err := h.g.Close(); err != nil && w.wrong == "" {
			w.wrong = err.Error()
		}
	}
	if w.refused {
		return w, ""
	}
	return w, w.wrong
}

func randomStory(seed uint64) story {
	rng := rand.New(rand.NewPCG(seed, 5))
	return story{seed: seed, hosts: 2 + rng.IntN(2), rails: [2]int{1 + rng.IntN(3), 1 + rng.IntN(3)}, ops: 5 + rng.IntN(20), fault: -1}
}

// reuseBuffers makes groups take the message buffers of those before them. One goroutine only.
func reuseBuffers(t testing.TB) {
	free := map[uint64][]*mem.Span{}
	get, put := newBuffers, freeBuffers
	newBuffers = func(n uint64) (*mem.Span, error) {
		if l := free[n]; len(l) > 0 {
			free[n] = l[:len(l)-1]
			return l[len(l)-1], nil
		}
		return get(n)
	}
	freeBuffers = func(s *mem.Span) error {
		n := uint64(len(s.Bytes()))
		free[n] = append(free[n], s)
		return nil
	}
	t.Cleanup(func() {
		newBuffers, freeBuffers = get, put
		for _, l := range free {
			for _, s := range l {
				if err := s.Free(); err != nil {
					t.Error(err)
				}
			}
		}
	})
}

func TestAdversary(t *testing.T) {
	reuseBuffers(t)
	if *simSeed != 0 {
		w, wrong := randomStory(*simSeed).run(true)
		fmt.Fprintln(os.Stderr, strings.Join(w.log, "\n"))
		if wrong != "" {
			t.Fatal(wrong)
		}
		return
	}
	began := time.Now()
	base := rand.Uint64()
	runs, events, faults, refused := 0, 0, 0, 0
	for time.Since(began) < *simTime && runs < *simRuns {
		seed := base + uint64(runs)
		w, wrong := randomStory(seed).run(false)
		runs++
		events += w.events
		faults += w.faults
		if w.refused {
			refused++
		}
		if runs%10000 == 0 {
			fmt.Printf("adversary: %d schedules after %.0f s\n", runs, time.Since(began).Seconds())
		}
		if wrong != "" {
			t.Fatalf("%s\nrepeat with -run TestAdversary -sim.seed %d", wrong, seed)
		}
	}
	fmt.Printf("adversary: %d schedules, %d events, %d faults, %d runs cut short by refusals\n", runs, events, faults, refused)
	if refused*1000 > runs {
		t.Errorf("%d of %d runs were cut short: more than one in a thousand", refused, runs)
	}
}

// Every fault before every event of a small run.
func TestEveryFaultAtEveryEvent(t *testing.T) {
	reuseBuffers(t)
	runs := 0
	for seed := range uint64(2) {
		s := story{seed: 1000 + seed, hosts: 2, rails: [2]int{2, 1 + int(seed)}, ops: 8, fault: -2}
		w, wrong := s.run(false)
		if wrong != "" {
			t.Fatal(wrong)
		}
		for kind := range faultKinds {
			for at := range w.events - settling {
				s.fault, s.kind = at, kind
				if _, wrong := s.run(false); wrong != "" {
					t.Fatalf("%s\nfault %d at event %d of seed %d", wrong, kind, at, s.seed)
				}
				runs++
			}
		}
	}
	fmt.Printf("adversary: %d faults, one in each run\n", runs)
}

// Without any one of the guards something goes wrong, and the adversary sees it.
func TestGuardsAreNeeded(t *testing.T) {
	reuseBuffers(t)
	for name, g := range map[string]guard{
		"fence before the report": guardFence, "report before placing again": guardReport, "all flushed before dividing": guardFlushed,
		"immediate after its bytes": guardLast, "keys of one connection": guardKeys,
	} {
		t.Run(name, func(t *testing.T) {
			const enough = 5000
			for seed := range uint64(enough) {
				s := randomStory(seed)
				s.without = g
				// What the two sides say to each other goes wrong first, mostly; what matters is what a user would see.
				if _, wrong := s.run(false); wrong != "" && !strings.Contains(wrong, " gives ") {
					t.Logf("seed %d: %s", seed, wrong)
					return
				}
			}
			t.Fatalf("nothing goes wrong in %d runs", enough)
		})
	}
}
