package sim

import "time"

// inOrder lets a fragment take effect once all that were sent before it over its connection have, and then those that waited for it.
func (f *Fabric) inOrder(to *end, o *op, frag uint32) {
	if seq := o.seq + uint64(frag); seq != to.arrived {
		f.stats.Reordered++
		o.events++ // it is named by parked
		to.parked.push(event{at: time.Duration(seq), op: o, frag: frag})
		return
	}
	to.arrived++
	f.arrive(o, frag)
	for len(to.parked) > 0 && uint64(to.parked[0].at) == to.arrived {
		ev, _ := to.parked.pop()
		ev.op.events--
		to.arrived++
		f.arrive(ev.op, ev.frag)
	}
}

// unpark drops what came too early at an end that is gone.
func (f *Fabric) unpark(e *end) {
	for _, ev := range e.parked {
		if ev.op.events--; ev.op.done {
			f.recycle(ev.op)
		}
	}
	e.parked = nil
}

// earliest is the message that was posted first of those that wait and come over the same connection as o.
func (d *domain) earliest(o *op) *op {
	for _, x := range d.waiting {
		if x.from == o.from && x.seq < o.seq {
			o = x
		}
	}
	return o
}
