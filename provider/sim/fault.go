package sim

import (
	"fmt"

	"github.com/hawser-project/hawser/provider"
)

// cut is a pair of places in order.
type cut [2]string

func between(a, b string) cut { return cut{min(a, b), max(a, b)} }

// at reports whether a domain is at a place: a host, a NIC, or "".
func (d *domain) at(place string) bool { return place == "" || place == d.host || place == d.place }

func (f *Fabric) isCut(a, b *domain) bool {
	if len(f.cuts) == 0 {
		return false
	}
	for _, x := range [...]string{"", a.host, a.place} {
		for _, y := range [...]string{"", b.host, b.place} {
			if f.cuts[between(x, y)] {
				return true
			}
		}
	}
	return false
}

// Kill ends every open domain of a place as a crash does: its owner gets errors that wrap provider.ErrUnavailable, its
// peers get KindPeerDown. A later Open is a program that was started anew.
func (f *Fabric) Kill(place string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hashText("kill", place, "")
	for _, d := range append([]*domain(nil), f.domains...) {
		if d.at(place) {
			f.vanish(d, fmt.Errorf("sim: %s was killed: %w", d.place, provider.ErrUnavailable))
		}
	}
}

// Cut holds everything that travels between two places, in both directions. Connections that are still cut after
// Config.RetryTimeout go down on both sides.
func (f *Fabric) Cut(a, b string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hashText("cut", a, b)
	f.cuts[between(a, b)] = true
	for _, d := range f.domains {
		for _, s := range d.slots {
			e := s.end
			if e == nil || e.state != up || e.limit.running() || !f.isCut(d, e.other.d) {
				continue
			}
			e.limit = f.after(f.cfg.RetryTimeout, func() { f.down(e, provider.StatusPeerDown) })
		}
	}
}

// Heal undoes the Cut of the same two places: what was held arrives late, but arrives.
func (f *Fabric) Heal(a, b string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hashText("heal", a, b)
	delete(f.cuts, between(a, b))
	for _, d := range f.domains {
		for _, s := range d.slots {
			if e := s.end; e != nil && e.state == up && !f.isCut(d, e.other.d) {
				e.limit.stop()
			}
		}
	}
	held := f.held
	f.held = nil
	for _, ev := range held { // those of other cuts come back at once when they are played
		ev.at, ev.tie = f.now+f.hop(), f.rng.Uint64()
		f.events.push(ev)
	}
	for _, d := range f.domains {
		d.stir()
	}
}

// hashText puts a fault into the trace: it is part of the schedule.
func (f *Fabric) hashText(words ...string) {
	for _, w := range words {
		for _, c := range []byte(w) {
			f.hash(uint64(c))
		}
	}
}
