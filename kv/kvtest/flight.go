package kvtest

import (
	"bytes"
	"slices"

	"github.com/hawser-project/hawser"
)

// op is one Post or PostTail: some writes with one completion.
type op struct {
	x      *pair
	s      *session
	cookie uint64
	job    *job
	link   *imported
	left   int // writes that have not ended at p
	err    error
	done   bool
	writes []*write
}

// write is one write with its immediate.
type write struct {
	x      *pair
	s      *session
	a      *attempt // as its decoder knows it
	imm    uint32
	serial uint64 // of the descriptor that it was made with

	from        []byte // the source
	held        []byte // what that was when it was posted
	to          []byte // where it lands
	src         uint32 // page of the source that it reads, see prefiller.reading
	group, page int    // on d; group -1: a tail slot
	sum         int    // number of the digest that it belongs to; -1: the last one
	key         uint32 // what it is of, for the digest

	landed, counted, gone bool
	acked                 bool // ended at p
}

// mayLand is true as long as nothing keeps a write from landing.
func (t *write) mayLand() bool { return !t.landed && !t.gone && !t.x.d.dead }

// start lets the writes of an op go.
func (o *op) start() {
	w := o.x.w
	o.left = len(o.writes)
	o.s.ops = append(o.s.ops, o)
	o.x.posted += len(o.writes)
	for _, t := range o.writes {
		o.x.flight = append(o.x.flight, t)
		lands := w.delay()
		if w.chance(w.sc.Net.WriteError) || t.serial <= o.x.fenced {
			if !w.chance(w.sc.Net.Unknown) || t.serial <= o.x.fenced {
				t.gone = true
			}
			w.after(lands+w.quick(), func() { o.acked(t, hawser.ErrAccess) })
		} else {
			acked := lands + w.quick()
			if w.chance(w.sc.Net.EarlyDone) {
				acked = min(acked, w.delay())
			}
			w.after(acked, func() { o.acked(t, nil) })
		}
		if !t.gone {
			w.after(lands, t.lands)
		}
	}
	o.x.sweep()
}

// acked is when a write ends at its sender. The source has been read by then.
func (o *op) acked(t *write, err error) {
	if t.acked || o.done {
		return
	}
	t.acked = true
	t.read()
	if err == nil && t.gone && !t.landed {
		err = hawser.ErrPeerDown
	}
	if err != nil {
		o.err = err
		t.a.tainted(t.x.p)
	}
	if o.left--; o.left == 0 {
		o.end(o.err)
	}
}

// breaks is for the ops of a session that is down on the side of p: what has not ended has an unknown fate.
func (o *op) breaks() {
	w := o.x.w
	w.after(w.delay(), func() {
		for _, t := range o.writes {
			if !t.acked && !t.landed && w.chance(0.5) {
				t.gone = true
			}
			o.acked(t, hawser.ErrPeerDown)
		}
	})
}

func (o *op) end(err error) {
	o.done = true
	o.x.posted -= len(o.writes)
	o.s.ops = slices.DeleteFunc(o.s.ops, func(e *op) bool { return e == o })
	for _, t := range o.writes {
		if t.group >= 0 {
			o.x.p.reading[t.group][t.src]--
		}
	}
	o.job.outstanding--
	if a := o.writes[0].a.writer(o.x.p); a != nil {
		a.outstanding -= len(o.writes)
		if err == nil {
			a.completed += uint64(len(o.writes))
		}
	}
	p := o.x.p
	p.do(p.w.quick(), func() { p.m.Completed(p.w.now, o.cookie, err) })
}

// read takes what is in the source, which must be what was there when the write was posted.
func (t *write) read() {
	if !t.x.p.dead && !bytes.Equal(t.from, t.held) {
		t.x.w.fail("I2", "%s: the source of a write of %s has changed before it was read", t.x.p.name, t.a)
	}
}

// lands places a write.
func (t *write) lands() {
	x, w := t.x, t.x.w
	if !t.mayLand() {
		return
	}
	if w.now < x.cut {
		w.after(x.cut-w.now+w.delay(), t.lands)
		return
	}
	t.landed = true
	w.Landed++
	if !t.acked {
		t.read()
	}
	t.a.lands(t)
	copy(t.to, t.held)
	if w.sc.Digests && w.chance(w.sc.Net.Corrupt) {
		t.to[w.rng.IntN(len(t.to))] ^= 0x40
		t.a.corrupt = true
	}
	if w.chance(w.sc.Net.LateCount) {
		w.after(w.delay(), func() {
			t.count()
			x.sweep()
		})
		return
	}
	t.count()
	x.sweep()
}

// count is when the receiver gets the immediate.
func (t *write) count() {
	if t.counted || t.x.d.dead {
		return
	}
	t.counted = true
	t.x.d.count(t)
}

// ends is for a fence: the write has landed and is counted, or never will.
func (t *write) ends() {
	if t.landed {
		t.count()
		return
	}
	t.gone = true
}

// sweep forgets what is over.
func (x *pair) sweep() {
	x.flight = slices.DeleteFunc(x.flight, func(t *write) bool { return t.counted || t.gone })
}
