package rail

import (
	"fmt"

	"github.com/hawser-project/hawser/provider"
)

// describe notes everything that is not at rest.
func (w *adversaryWorld) describe() {
	for _, j := range w.jobs {
		if o := j.run; o != nil {
			w.note("job %d: kind %d cursor %d/%d begun %v redo %d inflight %d frags %d strict %v only %v listed %v",
				j.id, o.Kind, o.cursor, o.Parts, o.begun, len(o.redo), o.inflight, o.frags, o.strict, o.only != nil, o.listed)
		}
	}
	for _, h := range w.host {
		for _, p := range h.peers {
			for _, l := range p.links {
				w.note("%s to %v: link %d class %d of %d state %d epoch %d outstanding %d lost %d fencing %v proved %v report %v tries %d dead %v",
					h.name, p.Tag, l.index, l.class, p.class, l.state, l.epoch, l.outstanding, len(l.lost), l.fencing, l.proved, l.report != nil, l.tries, l.rail.dead)
			}
		}
	}
}

// recover waits until each link is back that can come back, and everything has come to rest.
func (w *adversaryWorld) recover() {
	w.f.Rejoin()
	for range recovery {
		w.rest()
		missing := w.missing()
		if missing == "" {
			return
		}
		if w.wrong != "" {
			return
		}
		for _, h := range w.host {
			h.g.tickAll()
		}
		if w.loud {
			w.note("waits: %s", missing)
		}
	}
	w.describe()
	w.fail("after %d ticks without trouble: %s", recovery, w.missing())
}

// missing is the first link that is not in service and could be, or the first fence without its outcome.
func (w *adversaryWorld) missing() string {
	for i, a := range w.host {
		for k, b := range w.host {
			p, q := a.peers[k], b.peers[i]
			switch {
			case i == k:
			case a.ended[k] && !a.quiet[k]:
				return fmt.Sprintf("%s does not know that %s is fenced", a.name, b.name)
			case a.ended[k] || !p.lead:
			default:
				if l := missingLink(p, q, b); l != nil {
					return fmt.Sprintf("link %d of %s and %s does not come back", l.index, a.name, b.name)
				}
			}
		}
	}
	return ""
}

// missingLink is for a leader p, and q, which is p as the other side b sees it.
func missingLink(p, q *Peer, b *simHost) *link {
	best := uint8(0xFF) // class of links that are there
	for _, l := range p.links {
		alive := false
		for _, r := range p.slots[l.index].Remote {
			alive = alive || !b.g.rails[r].dead
		}
		if l.rail.dead || !alive || l.class > best {
			continue
		}
		best = l.class
		if l.state != ready || len(q.links) <= l.index || q.links[l.index].state != ready || q.links[l.index].epoch != l.epoch {
			return l
		}
	}
	return nil
}

// ended reports whether all jobs have.
func (w *adversaryWorld) ended() bool {
	for _, j := range w.jobs {
		if j.ends == 0 && !w.stranded(j) {
			return false
		}
	}
	return true
}

// finish checks what must be true at rest.
func (w *adversaryWorld) finish() {
	open := 0
	for _, j := range w.jobs {
		if j.ends == 0 {
			open++
		}
		w.checkEnd(j)
	}
	w.checkCounts()
	if open > 0 {
		return // it has no way to go
	}
	for _, h := range w.host {
		for _, p := range h.peers {
			if err := h.g.audit(p); err != nil {
				w.fail("%s at rest: %v", h.name, err)
			}
		}
	}
}

// checkEnd checks how a job has ended, and that nothing of it came afterwards.
func (w *adversaryWorld) checkEnd(j *job) {
	if j.read {
		for _, s := range j.bytes {
			for at := s.from; at < s.to; at++ {
				if w.host[j.to].dst[at] != mark {
					w.fail("job %d: byte %d changed after its count", j.id, at)
					return
				}
			}
		}
	}
	if j.ends == 0 {
		if !w.stranded(j) {
			w.fail("job %d has not ended", j.id)
		}
		return
	}
	if j.Kind == Send && j.Status == provider.StatusOK && w.host[j.to].msgs[uint32(j.id)] != 1 {
		w.fail("message %d arrived %d times", j.id, w.host[j.to].msgs[uint32(j.id)])
	}
	want := provider.StatusOK
	if j.bad || j.closed && j.Status == provider.StatusAccess {
		want = provider.StatusAccess
	}
	if j.Status != want && !w.host[j.from].ended[j.to] && !w.ambiguous(j) {
		w.fail("job %d failed: %v, want %v", j.id, j.Status, want)
	}
}

// checkCounts checks that each immediate of an operation without error was counted, and none twice.
func (w *adversaryWorld) checkCounts() {
	type key struct {
		to  int
		imm uint32
	}
	least, most := map[key]uint64{}, map[key]uint64{}
	for _, j := range w.jobs {
		k := key{j.to, j.Op.Imm}
		most[k] += j.count
		if j.ends > 0 && j.Status == provider.StatusOK {
			least[k] += j.count
		}
	}
	for k, n := range most {
		if got := w.host[k.to].imms.Counter(k.imm).Load(); got < least[k] || got > n {
			w.fail("%d immediates %d at host %d, want %d .. %d", got, k.imm, k.to, least[k], n)
		}
	}
}

// stranded reports whether a job cannot end because no link is left and none can come.
func (w *adversaryWorld) stranded(j *job) bool {
	for _, h := range []*simHost{w.host[j.from], w.host[j.to]} {
		alive := false
		for _, r := range h.g.rails {
			alive = alive || !r.dead
		}
		if !alive {
			return true
		}
	}
	return false
}

// ambiguous reports whether a job may fail because immediates of its class of values were under way for others too, on a network
// without order.
func (w *adversaryWorld) ambiguous(j *job) bool {
	switch {
	case w.ordered:
		return false
	case j.Kind == Send:
		return true // two messages at once are enough
	case !j.HasImm:
		return false
	}
	for _, k := range w.jobs {
		if k != j && k.from == j.from && k.to == j.to && k.HasImm && bucket(k.Op.Imm) == bucket(j.Op.Imm) {
			return true
		}
	}
	return false
}
