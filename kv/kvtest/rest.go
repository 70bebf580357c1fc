package kvtest

import (
	"fmt"
	"time"
)

// idle reports whether nothing is left to happen to any request or job.
func (w *world) idle() bool { return w.unrest() == "" }

func (w *world) unrest() string {
	for _, q := range w.asked {
		for _, f := range q.of {
			if !f.d.dead && !f.over() {
				return fmt.Sprintf("%s: request %s (ready %v, released %v, ended %v, quiet %v)", f.d.name, f.id, f.ready, f.released, f.ended, f.quiet)
			}
		}
	}
	for _, d := range w.decoders {
		if !d.dead && len(d.live) > 0 {
			return d.live[0].String()
		}
	}
	for _, p := range w.prefillers {
		if !p.dead && !p.idle() {
			if len(p.order) > 0 {
				return fmt.Sprintf("%s: job of %s", p.name, p.order[0].q.id)
			}
			return fmt.Sprintf("%s: pages %+v", p.name, p.pools[0].Counts())
		}
	}
	for _, p := range w.prefillers {
		if s := p.m.Stats(); !p.dead && s.Jobs+s.Waiting+s.Attempts+s.Outstanding > 0 {
			return fmt.Sprintf("%s: %+v", p.name, s)
		}
	}
	for _, d := range w.decoders {
		if s := d.m.Stats(); !d.dead && s.Live+s.Held+s.Waiting+s.Quarantined+s.Fencing > 0 {
			return fmt.Sprintf("%s: %+v", d.name, s)
		}
	}
	return ""
}

// close ends all machines.
func (w *world) close() {
	for _, d := range w.decoders {
		d.run(func() { d.m.Close(w.now) })
	}
	w.until(w.now+20*time.Second, func() bool {
		for _, d := range w.decoders {
			if !d.dead && !d.m.Done() {
				return false
			}
		}
		return true
	})
	for _, p := range w.prefillers {
		p.run(func() {
			p.closed = true
			p.m.Close(w.now)
		})
	}
	w.until(w.now+20*time.Second, func() bool { return w.notDone() == "" })
	if s := w.notDone(); s != "" {
		w.fail("I9", "Close of %s has not come to its end", s)
	}
}

// drains is a machine that drains and is not done.
func (w *world) drains() string {
	for _, d := range w.decoders {
		if !d.dead && d.draining && !d.m.Done() {
			return d.name
		}
	}
	for _, p := range w.prefillers {
		if !p.dead && p.draining && !p.m.Done() {
			return p.name
		}
	}
	return ""
}

// notDone is a machine that was closed and is not done.
func (w *world) notDone() string {
	for _, d := range w.decoders {
		if !d.dead && !d.m.Done() {
			return d.name
		}
	}
	for _, p := range w.prefillers {
		if p.closed && !p.dead && !p.m.Done() {
			return p.name
		}
	}
	return ""
}

// probe asks each decoder for as much as it and a prefiller have, from each prefiller: what has leaked is missed now.
func (w *world) probe() {
	for i := range w.sc.Requests {
		if w.sc.Requests[i].Alias {
			return // a decoder has one link to a prefiller, by one of its addresses
		}
	}
	for _, u := range w.users {
		for i := range w.sc.Prefillers {
			if w.broken != nil || !u.probes(i) {
				continue
			}
			if why := u.probe(i); why != "" {
				w.fail("I4", "d%d: at the end a request to p%d is not ready: %s", u.index, i, why)
			}
		}
	}
}

// probe says why a request does not become ready.
func (u *users) probe(instance int) (why string) {
	w := u.w
	first := len(w.asked)
	u.ask(&Request{Sources: []int{instance}, Family: 7, Tokens: maxTokens, Tail: true}, len(w.sc.Requests)+first)
	if len(w.asked) == first {
		return "no pages"
	}
	w.until(w.now+2*deadline, w.idle)
	for _, f := range w.asked[first].of {
		if !f.ready {
			why = fmt.Sprintf("%s: %v", f.d.name, f.err)
		}
	}
	return why
}

// probes reports whether all members are there and take requests.
func (u *users) probes(instance int) bool {
	for _, d := range u.members {
		if d.dead || d.draining {
			return false
		}
	}
	all := u.w.prefillersOf(instance)
	for _, p := range all {
		if p.draining || p.closed {
			return false
		}
	}
	return len(all) == len(u.w.shape.src.Members)
}

func (w *world) finalChecks() {
	if w.broken != nil {
		return
	}
	for _, h := range w.hosts {
		if !h.dead {
			h.check()
		}
	}
	for _, d := range w.decoders {
		if d.dead {
			continue
		}
		for _, p := range d.pools {
			if c := p.Counts(); c.Leased+c.Pinned+c.Quarantined > 0 {
				w.fail("I4", "%s: pages at the end: %+v", d.name, c)
			}
			if err := p.Check(); err != nil {
				w.fail("I4", "%s: %v", d.name, err)
			}
		}
	}
	if s := w.unrest(); s != "" {
		w.fail("I4", "at the end: %s", s)
	}
	w.until(w.now+10*time.Second, func() bool { return w.drains() == "" })
	if s := w.drains(); s != "" {
		w.fail("I9", "Drain of %s has not come to its end", s)
	}
}
