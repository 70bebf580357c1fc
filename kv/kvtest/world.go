package kvtest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/hawser-project/hawser/kv/proto"
)

// world is one run: machines on a network that does what an engine may do.
type world struct {
	clock
	sc    *Scenario
	shape *shape
	rng   *rand.Rand
	calm  bool // no more faults
	cover *Coverage

	users      []*users
	decoders   []*decoder   // all that ever were
	prefillers []*prefiller // likewise
	hosts      []*host
	at         map[string]*prefiller // by address
	pairs      map[uint64]*pair
	allPairs   []*pair
	cuts       []cut
	asked      []*asked
	byID       map[string]*asked
	judge      judge

	broken *Failure
	tell   bool
	story  []string

	Result
}

// Result counts what happened in a run.
type Result struct {
	Events, Messages, Landed, Posts, Attempts, Fences, Aborts int
	Ready, Ended, Refused, Hits                               int
	Time                                                      time.Duration
}

// Failure is a broken invariant.
type Failure struct {
	Invariant string
	Text      string
	At        time.Duration
}

func (f *Failure) Error() string { return fmt.Sprintf("%s at %v: %s", f.Invariant, f.At, f.Text) }

// fail notes the first broken invariant.
func (w *world) fail(invariant, format string, args ...any) {
	if w.broken == nil {
		w.broken = &Failure{invariant, fmt.Sprintf(format, args...), w.now}
		w.note("BROKEN %s: %s", invariant, w.broken.Text)
	}
}

const storyLines = 4000

func (w *world) note(format string, args ...any) {
	if !w.tell {
		return
	}
	if len(w.story) >= storyLines {
		w.story = w.story[storyLines/2:]
	}
	w.story = append(w.story, fmt.Sprintf("%12v ", w.now)+fmt.Sprintf(format, args...))
}

// told is a message that is sent.
func (w *world) told(from, to string, h proto.Head, b proto.Body) {
	w.Messages++
	if w.tell {
		w.note("%s to %s: %v %+v %+v", from, to, b.Kind(), h, b)
	}
}

func (w *world) chance(p float64) bool {
	return p > 0 && !w.calm && w.rng.Float64() < p
}

func (w *world) upTo(d time.Duration) time.Duration { return time.Duration(w.rng.Int64N(int64(d))) }

// quick is a delay of something that is not delayed.
func (w *world) quick() time.Duration { return w.upTo(200 * time.Microsecond) }

// delay is mostly short.
func (w *world) delay() time.Duration {
	if w.chance(w.sc.Net.Slow) {
		return w.upTo(w.sc.Net.SlowFor)
	}
	return w.upTo(2 * time.Millisecond)
}

// born gives a host its identity.
func (w *world) born(h *host, name, addr string) {
	w.hosts = append(w.hosts, h)
	*h = host{w: w, id: proto.Peer(len(w.hosts)), name: fmt.Sprintf("%s#%d", name, len(w.hosts)), addr: addr}
	w.note("%s begins", h.name)
}

func (w *world) pairOf(d, p proto.Peer) *pair { return w.pairs[uint64(d)<<32|uint64(p)] }

func (w *world) addrs(instance int) []string {
	all := make([]string, len(w.shape.src.Members))
	for m := range all {
		all[m] = fmt.Sprintf("p%d.%d", instance, m)
	}
	return all
}

// one lets the next thing happen.
func (w *world) one() bool {
	at, ok := w.next()
	var first *host
	for _, h := range w.hosts {
		if due := max(h.due, h.thaw); !h.dead && h.ticks && (!ok || due < at) {
			at, first, ok = due, h, true
		}
	}
	if !ok {
		return false
	}
	w.Events++
	if first != nil {
		first.tick()
	} else {
		w.pop()()
	}
	return true
}

const (
	maxEvents = 300_000
	lastly    = 90 * time.Second // of virtual time after the last fault, in which everything must have come to rest
)

// run goes through a scenario.
func (w *world) run() {
	for i := range w.sc.Prefillers {
		w.startInstance(i)
	}
	for i := range w.sc.Decoders {
		w.users = append(w.users, w.newUsers(i))
	}
	end := proto.Time(0)
	for i := range w.sc.Requests {
		r := &w.sc.Requests[i]
		end = max(end, r.At)
		w.after(r.At, func() { w.users[r.Decoder%len(w.users)].ask(r, i) })
	}
	for i := range w.sc.Faults {
		f := &w.sc.Faults[i]
		end = max(end, f.At+f.For)
		w.after(f.At, func() { w.strike(f) })
	}
	end += 10 * time.Millisecond
	w.until(end, func() bool { return false })
	w.now = max(w.now, end)
	w.calm = true
	w.note("calm")
	w.until(end+lastly, w.idle)
	if w.broken == nil && !w.idle() {
		w.fail("I4", "not at rest %v after the last fault: %s", lastly, w.unrest())
	}
	if w.broken == nil {
		// Everybody knows who is dead, and what was very late has come.
		w.until(max(w.now, end)+3*beats+w.sc.Net.SlowFor+patience, func() bool { return false })
		w.until(w.now+lastly, w.idle)
		w.probe()
		w.until(w.now+lastly, w.idle)
	}
	w.finalChecks()
	if w.sc.Close {
		w.close()
	}
	w.Time = w.now
}

// until lets things happen until a time, or until something is so.
func (w *world) until(end proto.Time, so func() bool) {
	for n := 0; w.broken == nil; n++ {
		if w.Events > maxEvents {
			w.fail("timers", "more than %d events", maxEvents)
			return
		}
		if n%16 == 0 && so() || w.now >= end || !w.one() {
			return
		}
	}
}

// Run runs a scenario. Its result is the same each time.
func Run(sc *Scenario, cover *Coverage) (Result, *Failure) {
	w := newWorld(sc, cover)
	w.protected()
	return w.Result, w.broken
}

// Tell runs a scenario and tells what happens.
func Tell(sc *Scenario) (string, *Failure) {
	w := newWorld(sc, nil)
	w.tell = true
	w.protected()
	return strings.Join(w.story, "\n"), w.broken
}

func newWorld(sc *Scenario, cover *Coverage) *world {
	w := &world{
		sc: sc, shape: shapeOf(sc.Shape), rng: rand.New(rand.NewPCG(sc.Seed, 2)), cover: cover,
		at: map[string]*prefiller{}, pairs: map[uint64]*pair{}, byID: map[string]*asked{},
	}
	w.judge = judge{w: w, links: map[linkKey]*promises{}, newest: map[newestKey]*promises{}}
	w.judge.aliased = slices.ContainsFunc(w.sc.Requests, func(r Request) bool { return r.Alias })
	return w
}

// protected is run, in which a panic is a failure.
func (w *world) protected() {
	defer func() {
		if r := recover(); r != nil {
			w.fail("panic", "%v\n%s", r, stack())
		}
	}()
	w.run()
	w.collect()
}
