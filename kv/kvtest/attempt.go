package kvtest

import (
	"fmt"
)

// owed is a writer of an attempt.
type owed struct {
	x           *pair
	epoch       uint64
	expected    uint64
	from        uint64 // counted
	dispatched  bool
	over        bool   // p has said so
	outstanding int    // at p
	completed   uint64 // without error, at p
	tainted     bool   // a write ended with an error
	serial      uint64 // its descriptors have at most this number
}

// attempt is what is known of an attempt of a decoder without asking it.
type attempt struct {
	d       *decoder
	seq     uint64
	imm     uint32
	f       *fetch
	writers []*owed
	pages   [][]uint32 // of each group, by logical page from first on
	tail    bool
	slot    uint32
	total   uint64
	await   uint64 // call Counted then; 0: no
	put     bool
	ready   bool
	corrupt bool     // something landed with another content
	excused bool     // it may end although all that was expected has come
	landed  []*write // with digests
}

func (a *attempt) String() string {
	if a.f == nil {
		return fmt.Sprintf("attempt %d of %s", a.seq, a.d.name)
	}
	return fmt.Sprintf("attempt %d of %s (request %s)", a.seq, a.d.name, a.f.id)
}

// lands is a write that lands.
func (a *attempt) lands(t *write) {
	w := a.d.w
	if w.sc.Digests {
		a.landed = append(a.landed, t)
	}
	if a.put {
		w.fail("I1", "a write of %s lands on %s after it was over", t.x.p.name, a)
		return
	}
	if t.group < 0 {
		if a.d.tailOwner[t.page] != a {
			w.fail("I1", "the tail of %s lands in slot %d of another", a, t.page)
		}
		return
	}
	if o := a.d.owner[t.group][t.page]; o != a {
		w.fail("I1", "a write of %s lands on page %d of group %d of %v", a, t.page, t.group, o)
	}
}

// tainted is a write that ended with an error at its sender.
func (a *attempt) tainted(p *prefiller) {
	if o := a.writer(p); o != nil {
		o.tainted = true
	}
}

func (a *attempt) writer(p *prefiller) *owed {
	for _, o := range a.writers {
		if o.x.p == p {
			return o
		}
	}
	return nil
}

// fencedSince reports whether the descriptors that a writer was given are worthless now, or it is dead and its writes with it.
func (d *decoder) fencedSince(o *owed) bool { return o.x.fenced > 0 && o.serial <= o.x.fenced }

// settled reports whether nothing of a writer can land any more.
func (d *decoder) settled(o *owed) bool { return o.over || o.from == o.expected || d.fencedSince(o) }

// count is an immediate that came.
func (d *decoder) count(t *write) {
	a, w := d.imms[t.imm-1], d.w
	if a != t.a {
		w.fail("I6", "%s: a write of %s is counted for %v", d.name, t.a, a)
		return
	}
	o := a.writer(t.x.p)
	o.from++
	a.total++
	if o.from > o.expected {
		w.fail("I6", "%s: %d writes of %s are counted, %d are expected", a, o.from, t.x.p.name, o.expected)
	}
	if a.await > 0 && a.total >= a.await {
		a.await = 0
		d.do(w.quick(), func() { d.m.Counted(w.now, a.seq) })
	}
}
