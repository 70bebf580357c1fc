//go:build soak

package soak

import (
	"flag"
	"math/rand/v2"
	"syscall"
	"time"
)

// faults breaks things at random, and heals them after a while. Owned by the test.
type faults struct {
	c      *cluster
	rng    *rand.Rand
	broken map[string]repair // by what is broken
}

type repair struct {
	at time.Time
	f  func()
}

// A fault lasts from unnoticed to well beyond Options.PeerTimeout, 1.3 s.
const faultMin = 2 * time.Millisecond

var faultMax = flag.Duration("soak.fault", 4*time.Second, "longest fault")

// chaos breaks things until a time, then heals everything.
func (f *faults) chaos(until time.Time) {
	pace := time.Duration(100<<f.rng.IntN(4)) * time.Millisecond // some times are wilder than others
	for time.Now().Before(until) && !f.c.bad.Load() {
		f.step()
		time.Sleep(pace/2 + time.Duration(f.rng.Int64N(int64(pace))))
		f.mend(time.Now())
	}
	f.mend(until.Add(time.Hour))
}

// railCuts cuts the second cable again and again, which carries one rail of two and nothing else.
func (f *faults) railCuts(until time.Time) {
	const cable = 1
	for time.Now().Before(until) && !f.c.bad.Load() {
		end := f.rng.IntN(2)
		f.c.total.add("cuts of one rail", 1)
		must(f.c.t, f.c.net.cut(end, cable))
		time.Sleep(f.duration())
		must(f.c.t, f.c.net.plug(end, cable))
		time.Sleep(f.duration() / 4)
	}
}

// mend repairs what is due.
func (f *faults) mend(now time.Time) {
	for what, r := range f.broken {
		if r.at.Before(now) {
			delete(f.broken, what)
			r.f()
		}
	}
}

// duration is how long a fault lasts: each order of magnitude is as likely as any other.
func (f *faults) duration() time.Duration {
	d := faultMin
	for d < *faultMax && f.rng.IntN(5) > 0 {
		d *= 2
	}
	return min(*faultMax, d+time.Duration(f.rng.Int64N(int64(d))))
}

func (f *faults) step() {
	seat := f.c.seats[f.rng.IntN(memberCount)]
	what := "member " + string(rune('0'+seat.index))
	if _, busy := f.broken[what]; busy {
		return
	}
	lasts := f.duration()
	repairAt := func(what string, g func()) { f.broken[what] = repair{time.Now().Add(lasts), g} }
	switch k := f.rng.IntN(100); {
	case k < 20:
		f.c.total.add("kills", 1)
		seat.p.kill()
		repairAt(what, func() { f.restart(seat) })
	case k < 50:
		f.c.total.add("stops", 1)
		p := seat.p
		_ = p.child.Signal(syscall.SIGSTOP) // one that has ended by itself was noticed
		repairAt(what, func() {
			if f.rng.IntN(4) == 0 { // it never goes on
				f.c.total.add("kills", 1)
				p.kill()
				f.restart(seat)
				return
			}
			_ = p.child.Signal(syscall.SIGCONT)
		})
	case k < 65:
		f.c.total.add("engines closed", 1)
		o := order{What: orderReopen, Rude: f.rng.IntN(2) == 0}
		done := seat.p.order(o)
		f.broken[what] = repair{time.Now(), func() { seat.p.await(o, done) }} // members wait for nobody for long
	case f.c.net != nil:
		f.cut(repairAt)
	}
}

// restart puts a new process on a seat whose process is dead.
func (f *faults) restart(s *seat) {
	f.c.start(s)
	s.p.carry(order{What: orderRun})
}

// cut cuts one cable, or both, at one end.
func (f *faults) cut(repairAt func(string, func())) {
	end, which := f.rng.IntN(2), f.rng.IntN(cableCount+1)
	if _, busy := f.broken["cables"]; busy {
		return
	}
	var cut []int
	for c := range cableCount {
		if which == c || which == cableCount {
			cut = append(cut, c)
		}
	}
	f.c.total.add("cuts", 1)
	for _, c := range cut {
		must(f.c.t, f.c.net.cut(end, c))
	}
	repairAt("cables", func() {
		for _, c := range cut {
			must(f.c.t, f.c.net.plug(end, c))
		}
	})
}
