package kvtest

import (
	"fmt"
	"strings"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv/proto"
)

// machine is what both machines have in common.
type machine interface {
	Message(now proto.Time, from proto.Peer, data []byte)
	Tick(now proto.Time)
	Next() (proto.Time, bool)
	Check() error
}

// host is a process: one machine and its engine. Its number is its identity: one that starts again is another host.
type host struct {
	w       *world
	id      proto.Peer
	name    string
	addr    string
	m       machine
	dead    bool
	thaw    proto.Time // frozen until then
	next    proto.Time // what Next said
	due     proto.Time // when it is to Tick
	ticks   bool       // due means something
	spins   int        // ticks without time going on
	ticked  proto.Time // the last one
	handled int        // events
	after   func()     // each event; may be nil
}

// do makes the host handle something d from now.
func (h *host) do(d proto.Time, f func()) {
	h.w.after(d, func() { h.run(f) })
}

// run makes the host handle something now, or when it is not frozen any more, or never when it is dead.
func (h *host) run(f func()) {
	switch {
	case h.dead:
	case h.w.now < h.thaw:
		h.do(h.thaw-h.w.now+h.w.quick(), f)
	default:
		f()
		h.handledOne()
	}
}

// handledOne looks at the machine after an event.
func (h *host) handledOne() {
	h.handled++
	if h.after != nil {
		h.after()
	}
	if n := h.w.sc.Checks; n > 0 && h.handled%n == 0 {
		h.check()
	}
	at, ok := h.m.Next()
	if !ok {
		h.ticks = false
		return
	}
	if !h.ticks || at != h.next {
		h.ticks, h.next, h.due = true, at, at
		if h.w.chance(h.w.sc.Net.LateTick) {
			h.due += h.w.delay()
		}
	}
}

func (h *host) check() {
	if err := h.m.Check(); err != nil {
		h.w.fail("check", "%s: %v", h.name, err)
	}
}

// tick lets the timers of the host run.
func (h *host) tick() {
	w := h.w
	w.now = max(w.now, h.due, h.thaw)
	if h.spins++; w.now > h.ticked {
		h.spins, h.ticked = 0, w.now
	} else if h.spins > 1000 {
		w.fail("timers", "%s: a thousand ticks at %v, and the next one is due at %v", h.name, w.now, h.next)
	}
	h.ticks = false
	h.m.Tick(w.now)
	h.handledOne()
}

// The sides of a pair.
const (
	atD = iota
	atP
)

// pair is what there is between a decoder and a prefiller: both are identities.
type pair struct {
	w   *world
	d   *decoder
	p   *prefiller
	s   *session // the last one; nil: never
	cut proto.Time

	flight []*write // may still land on d, or be counted there
	posted int      // writes that have not completed at p

	fenced   uint64     // descriptors up to this number are worthless for p
	fencing  bool       // a fence has not been answered
	serial   uint64     // descriptors up to this number will be, when the fence under way has its proof
	unproven proto.Time // no fence has a proof before
}

// session is a connection of a pair. Each side finds out by itself that it has ended.
type session struct {
	up    [2]bool
	told  [2]bool       // that side knows about its end, or is dead
	final bool          // nothing of it lands any more
	heard [2]proto.Time // that side knows about its beginning
	ops   []*op         // of p, not completed
}

func (w *world) pair(d *decoder, p *prefiller) *pair {
	key := uint64(d.id)<<32 | uint64(p.id)
	x := w.pairs[key]
	if x == nil {
		x = &pair{w: w, d: d, p: p}
		w.pairs[key] = x
		w.allPairs = append(w.allPairs, x)
		x.cut = w.cutUntil(d, p)
	}
	return x
}

func (x *pair) end(side int) *host {
	if side == atD {
		return &x.d.host
	}
	return &x.p.host
}

// leave ends the session on one side. The other one notices later.
func (x *pair) leave(side int, why error) {
	s, w := x.s, x.w
	if s == nil || !s.up[side] {
		return
	}
	s.up[side] = false
	h, o := x.end(side), x.end(1-side)
	if !h.dead {
		w.note("%s: session with %s is down: %v", h.name, o.name, why)
	}
	wait := min(w.delay(), beats)
	h.do(max(wait, s.heard[side]-w.now+1), func() {
		s.told[side] = true
		x.down(s, side, why)
	})
	if side == atP {
		for _, o := range s.ops {
			o.breaks()
		}
	} else {
		w.after(min(w.delay(), beats), func() { x.settle(s) })
	}
	if s.up[1-side] {
		wait := w.quick()
		if w.chance(0.3) || w.now < x.cut || w.now < h.thaw {
			wait = 500*time.Millisecond + w.upTo(time.Second)
		}
		w.after(wait, func() { x.leave(1-side, hawser.ErrPeerDown) })
	}
}

func (x *pair) down(s *session, side int, why error) {
	if x.s != s {
		x.w.fail("model", "a session begins before the one before is over")
	}
	if side == atD {
		x.d.m.PeerDown(x.w.now, x.p.id, fmt.Errorf("%w: %w", hawser.ErrPeerDown, why))
		return
	}
	x.p.m.PeerDown(x.w.now, x.d.id)
	x.w.judge.parted(x)
}

// settle is what the engine of d does by itself when a session has ended: nothing of it lands after that.
func (x *pair) settle(s *session) {
	switch {
	case x.d.dead:
		s.final = true
	case x.w.now < x.unproven && !x.p.dead:
		x.w.after(x.unproven-x.w.now+1, func() { x.settle(s) })
	default:
		for _, t := range x.flight {
			if t.s == s {
				t.ends()
			}
		}
		x.sweep()
		s.final = true
	}
}

// fence is asked for by d.
func (x *pair) fence() {
	x.serial = x.d.serial
	x.leave(atD, errFenced)
	if x.fencing {
		return
	}
	x.fencing = true
	x.w.after(x.w.delay(), x.prove)
}

var errFenced = fmt.Errorf("fenced: %w", hawser.ErrPeerDown)

// prove tries to prove that nothing which p started can land any more.
func (x *pair) prove() {
	w := x.w
	if x.d.dead {
		return
	}
	if x.w.now < x.unproven && !x.p.dead {
		w.note("%s: fence of %s has no proof", x.d.name, x.p.name)
		w.judge.unproven(x)
		again := w.chance(0.5)
		x.fencing = again
		x.d.do(w.delay(), func() { x.d.m.Unfenced(w.now, x.p.id, hawser.ErrUnfenced) })
		if again {
			w.after(max(x.unproven-w.now, 0)+w.delay(), x.prove)
		}
		return
	}
	x.fencing = false
	x.fenced = x.serial
	for _, t := range x.flight {
		if t.serial <= x.fenced {
			t.ends()
		}
	}
	x.sweep()
	w.note("%s: fence of %s is proved", x.d.name, x.p.name)
	x.d.do(w.delay(), func() { x.d.m.Fenced(w.now, x.p.id) })
}

// alias ends the other address of a prefiller.
const alias = "/alias"

// patience is how long a connect tries.
const patience = 3 * time.Second

// connect gets a session for a decoder with whoever answers at an address.
func (d *decoder) connect(l proto.Link, addr string, until proto.Time) {
	w := d.w
	if d.dead {
		return
	}
	p := w.at[strings.TrimSuffix(addr, alias)]
	if p == nil || p.dead {
		d.do(w.delay(), func() { d.m.ConnectFailed(w.now, l, fmt.Errorf("%w: nobody at %s", hawser.ErrPeerDown, addr)) })
		return
	}
	x := w.pair(d, p)
	reachable := w.now >= x.cut && w.now >= p.thaw
	if s := x.s; reachable && (s == nil || s.final && s.told[atD] && s.told[atP]) {
		w.note("session of %s and %s", d.name, p.name)
		x.s = &session{up: [2]bool{true, true}}
	}
	if s := x.s; s != nil && s.up[atD] {
		wait := w.delay()
		s.heard[atD] = max(s.heard[atD], w.now+wait)
		d.do(wait, func() {
			if x.s == s && s.up[atD] {
				d.m.Connected(w.now, l, p.id)
			} else {
				d.connect(l, addr, until)
			}
		})
		return
	}
	if w.now >= until {
		d.do(w.quick(), func() { d.m.ConnectFailed(w.now, l, fmt.Errorf("%w: no answer from %s", hawser.ErrPeerDown, addr)) })
		return
	}
	w.after(20*time.Millisecond, func() { d.connect(l, addr, until) })
}

// send sends a message, or loses it.
func (x *pair) send(from int, data []byte) {
	w, s := x.w, x.s
	if s == nil || !s.up[from] || w.now < x.cut || w.chance(w.sc.Net.Loss) {
		return
	}
	to := x.end(1 - from)
	goes := w.chance(0.5) // lost with the session
	w.after(w.delay(), func() {
		if goes && !s.up[1-from] || w.now < x.cut {
			return
		}
		to.run(func() {
			w.judge.handled(x, from, data)
			to.m.Message(w.now, x.end(from).id, data)
		})
	})
}
