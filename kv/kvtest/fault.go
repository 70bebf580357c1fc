package kvtest

import (
	"fmt"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv/proto"
)

type cut struct {
	d, p  int // instances
	until proto.Time
}

func (w *world) cutUntil(d *decoder, p *prefiller) (until proto.Time) {
	for _, c := range w.cuts {
		if c.d == d.of.index && c.p == p.instance {
			until = max(until, c.until)
		}
	}
	return until
}

// crash ends a process: all that it knew is gone.
func (w *world) crash(h *host) {
	if h.dead {
		return
	}
	w.note("%s dies", h.name)
	h.dead = true
	for _, x := range w.allPairs {
		switch h {
		case &x.d.host:
			x.flight = nil
			x.leave(atD, hawser.ErrClosed)
		case &x.p.host:
			for _, t := range x.flight {
				if !t.landed && w.chance(0.5) {
					t.gone = true
				}
			}
			x.sweep()
			x.leave(atP, hawser.ErrClosed)
			if s := x.s; s != nil {
				s.told[atP] = true
			}
		}
	}
}

// beats is how long an engine is silent before its peers give it up.
const beats = 1500 * time.Millisecond

// freeze makes a host stand still.
func (w *world) freeze(h *host, f *Fault) {
	if h.dead {
		return
	}
	w.note("%s freezes for %v", h.name, f.For)
	h.thaw = max(h.thaw, w.now+f.For)
	for _, x := range w.allPairs {
		side := atD
		if h == &x.p.host {
			side = atP
			if f.Mid && len(x.flight) > 0 {
				x.unproven = h.thaw
			}
		} else if h != &x.d.host {
			continue
		}
		s := x.s
		w.after(beats, func() {
			if w.now < h.thaw && x.s == s {
				x.leave(1-side, fmt.Errorf("silent: %w", hawser.ErrPeerDown))
			}
		})
	}
}

// cut parts two instances.
func (w *world) cut(f *Fault) {
	w.note("d%d and p%d are cut off for %v", f.A, f.B, f.For)
	w.cuts = append(w.cuts, cut{f.A, f.B, w.now + f.For})
	for _, x := range w.allPairs {
		if x.d.of.index != f.A || x.p.instance != f.B {
			continue
		}
		x.cut = max(x.cut, w.now+f.For)
		s := x.s
		w.after(beats+w.quick(), func() {
			if w.now < x.cut && x.s == s {
				x.leave(w.rng.IntN(2), fmt.Errorf("silent: %w", hawser.ErrPeerDown))
			}
		})
	}
}

// prefillersOf are the living members of an instance.
func (w *world) prefillersOf(instance int) []*prefiller {
	var all []*prefiller
	for _, addr := range w.addrs(instance) {
		if p := w.at[addr]; p != nil && !p.dead {
			all = append(all, p)
		}
	}
	return all
}

// strike is a fault that happens.
func (w *world) strike(f *Fault) {
	w.note("fault: %v %+v", f.Kind, *f)
	switch f.Kind {
	case CrashD, FreezeD, DrainD:
		u := w.users[f.A%len(w.users)]
		d := u.members[f.Member%len(u.members)]
		w.strikeD(f, u, d)
	case Cut:
		w.cut(f)
	case Snap:
		for _, x := range w.allPairs {
			if x.d.of.index == f.A && x.p.instance == f.B && !x.d.dead && !x.p.dead {
				x.leave(w.rng.IntN(2), fmt.Errorf("broken: %w", hawser.ErrPeerDown))
			}
		}
	case Join:
		if w.at[w.addrs(w.sc.Prefillers)[0]] == nil {
			w.startInstance(w.sc.Prefillers)
		}
	default:
		if all := w.prefillersOf(f.A); len(all) > 0 {
			w.strikeP(f, all[f.Member%len(all)])
		}
	}
}

func (w *world) strikeD(f *Fault, u *users, d *decoder) {
	switch {
	case d.dead:
	case f.Kind == CrashD:
		w.crash(&d.host)
		for _, q := range w.asked {
			if len(q.of) > 0 && q.of[0].d.of == u {
				u.over(q)
			}
		}
		w.after(f.For, func() { u.start(d.member) })
	case f.Kind == FreezeD:
		w.freeze(&d.host, f)
	default:
		d.draining = true
		d.run(func() { d.m.Drain(w.now) })
	}
}

func (w *world) strikeP(f *Fault, p *prefiller) {
	switch f.Kind {
	case CrashP:
		w.crash(&p.host)
		w.after(f.For, func() { w.startPrefiller(p.instance, p.member) })
	case FreezeP:
		w.freeze(&p.host, f)
	case DrainP:
		p.draining = true
		p.run(func() { p.m.Drain(w.now) })
	case CloseP:
		p.run(func() {
			if !p.closed {
				p.close(f.For)
			}
		})
	case Full:
		p.full = max(p.full, w.now+f.For)
		p.do(f.For, func() { p.m.Room(w.now) })
	}
}

func (w *world) startInstance(instance int) {
	for m := range w.shape.src.Members {
		w.startPrefiller(instance, m)
	}
}
