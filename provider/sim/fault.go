package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/hawser-project/hawser/provider"
)

// cut is a pair of places in order.
type cut [2]string

// island is hosts that are cut off from all others.
type island struct{ hosts []string }

func between(a, b string) cut { return cut{min(a, b), max(a, b)} }

// at reports whether a domain is at a place: a host, a NIC, or "".
func (d *domain) at(place string) bool { return place == "" || place == d.host || place == d.place }

func (f *Fabric) isCut(a, b *domain) bool {
	for _, island := range f.islands {
		if slices.Contains(island.hosts, a.host) != slices.Contains(island.hosts, b.host) {
			return true
		}
	}
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

// isStalled reports whether the owner of a domain is held.
func (d *domain) isStalled() bool {
	s := d.f.stalls
	return len(s) > 0 && (s[""] > 0 || s[d.host] > 0 || s[d.place] > 0)
}

// Kill ends every open domain of a place as the death of a process does: its owner gets errors that wrap
// provider.ErrUnavailable, its peers are told and get KindPeerDown. A later Open is a program that was started anew.
func (f *Fabric) Kill(place string) { f.Inject(Fault{Kind: FaultKill, Places: []string{place}}) }

// Fail is Kill in silence: a NIC that dies, or a host that loses its power. Peers get KindPeerDown after Config.RetryTimeout.
func (f *Fabric) Fail(place string) { f.Inject(Fault{Kind: FaultFail, Places: []string{place}}) }

// Cut holds everything that travels between two places, in both directions. Connections that are still cut after
// Config.RetryTimeout go down on both sides. Cut(place, "") is a NIC or a cable that does nothing for a while.
func (f *Fabric) Cut(a, b string) { f.Inject(Fault{Kind: FaultCut, Places: []string{a, b}}) }

// Heal undoes the Cut of the same two places: what was held arrives late, but arrives.
func (f *Fabric) Heal(a, b string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hashText("heal", a, b)
	delete(f.cuts, between(a, b))
	f.mend()
}

// Partition cuts a group of hosts off from all others; within the group, and among the others, nothing changes. Several groups may be cut
// off at once.
func (f *Fabric) Partition(hosts ...string) { f.Inject(Fault{Kind: FaultPartition, Places: hosts}) }

// Rejoin undoes all Partitions.
func (f *Fabric) Rejoin() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hashText("rejoin")
	f.islands = nil
	f.mend()
}

// Stall holds the owners of a place for a time, as a host does that is out of processors or memory: Poll returns nothing and Post
// takes nothing, while the NIC goes on receiving. The time is real in auto mode.
func (f *Fabric) Stall(place string, d time.Duration) {
	f.Inject(Fault{Kind: FaultStall, Places: []string{place}, For: d})
}

func (f *Fabric) vanishAt(place string, silent bool) {
	for _, d := range append([]*domain(nil), f.domains...) {
		if d.at(place) {
			f.vanish(d, fmt.Errorf("sim: %s was killed: %w", d.place, provider.ErrUnavailable), silent)
		}
	}
}

// limitCuts gives every connection that is cut now its time.
func (f *Fabric) limitCuts() {
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

// mend lets what was held go on.
func (f *Fabric) mend() {
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
		ev.at, ev.tie = f.now+ev.trip(), f.rng.Uint64()
		f.events.push(ev)
	}
	for _, d := range f.domains {
		d.stir()
	}
}

// trip is what a held event still has to travel.
func (ev *event) trip() time.Duration {
	if ev.op != nil {
		return ev.op.from.trip()
	}
	return ev.end.trip()
}

// stall holds owners, and lets them go on later.
func (f *Fabric) stall(place string, d time.Duration) {
	f.stalls[place]++
	f.after(d, func() {
		if f.stalls[place]--; f.stalls[place] == 0 {
			delete(f.stalls, place)
		}
		for _, d := range f.domains {
			if d.at(place) {
				d.ring()
			}
		}
	})
}

// hashText puts a fault into the trace: it is part of the schedule.
func (f *Fabric) hashText(words ...string) {
	for _, w := range words {
		for _, c := range []byte(w) {
			f.hash(uint64(c))
		}
	}
}
