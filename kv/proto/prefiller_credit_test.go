package proto

import "testing"

// TestSharesOfPages: the first link has all, the next ones get their share, and what comes back goes by shares.
func TestSharesOfPages(t *testing.T) {
	r := newServeRig(t, PrefillerConfig{Pages: 60})
	a := r.link(1, "a", nil, 0)
	b := r.link(2, "b", nil, 0)
	c := r.link(3, "c", nil, 0)
	if a.granted != 60 || b.granted != 30 || c.granted != 20 {
		t.Fatalf("granted %d, %d, %d", a.granted, b.granted, c.granted)
	}
	for i := range 5 {
		a.dispatch(string(rune('a'+i)), 0, 40) // 10 pages each
	}
	for i := range 5 {
		r.finish(40, JobID(i+1))
	}
	// Of the 60 it has 10 free; others have 50. Of its share of 20 it lacks 10, but all is in circulation.
	if c := r.p.links[0].credit; c.granted != 60 || c.used != 50 {
		t.Errorf("%+v", c)
	}
	r.p.PeerDown(r.now, 2)
	r.check()
	if c := r.p.links[0].credit; c.free() != 30 {
		t.Errorf("after another link has gone: %+v", c)
	}
}

// TestWantsAreServed: what comes back goes to those who wait for it, in their order.
func TestWantsAreServed(t *testing.T) {
	r := newServeRig(t, PrefillerConfig{Pages: 20})
	a := r.link(1, "a", nil, 0)
	b := r.link(2, "b", nil, 0)
	a.dispatch("x", 0, 40)
	a.dispatch("y", 0, 40)
	b.dispatch("z", 0, 40)
	b.send(&Beat{Wants: 10})
	if m := last[*Beat](b); m.Granted != b.granted { // answered at once, but there is nothing
		t.Errorf("granted %d", m.Granted)
	}
	r.finish(40, 1)
	r.finish(40, 2)
	if m := last[*Beat](b); m.Granted != b.granted+10 {
		t.Errorf("granted %d, had %d, wants 10", m.Granted, b.granted)
	}
	b.dispatch("w", 0, 40)
	last[*Accept](b)
}

// TestIdleLinkGetsWhatItWants: nothing of its own will come back.
func TestIdleLinkGetsWhatItWants(t *testing.T) {
	r := newServeRig(t, PrefillerConfig{Pages: 20})
	a := r.link(1, "a", nil, 0)
	b := r.link(2, "b", nil, 0)
	a.dispatch("x", 0, 40)
	a.dispatch("y", 0, 40)
	b.send(&Beat{Wants: 15})
	if m := last[*Beat](b); m.Granted != 15 {
		t.Errorf("granted %d", m.Granted)
	}
	b.send(&Beat{Wants: 1000}) // more than there is at all
	if m := last[*Beat](b); m.Granted != 20 {
		t.Errorf("granted %d", m.Granted)
	}
	b.send(&Beat{Wants: 20}) // it has not heard
	if m := last[*Beat](b); m.Granted != 20 {
		t.Errorf("granted %d", m.Granted)
	}
}

// TestAttachCostsNothing: what it paid comes back at once, also when it came before the one that pays.
func TestAttachCostsNothing(t *testing.T) {
	r := newServeRig(t, PrefillerConfig{})
	d0, d1 := twoMembers(r)
	d1.dispatch("r", 0, 9, func(m *Dispatch) { m.Cost = 5 })
	if a := last[*Accept](d1); a.Granted != d1.granted+5 {
		t.Errorf("granted %d, had %d", a.Granted, d1.granted)
	}
	d0.dispatch("r", 0, 9)
	if a := last[*Accept](d0); a.Granted != d0.granted {
		t.Errorf("granted %d, had %d", a.Granted, d0.granted)
	}
	r.finish(9, 1)
	r.over(1)
}

// TestSpendingTooMuchEndsTheLink, by Dispatch or Cancel.
func TestSpendingTooMuchEndsTheLink(t *testing.T) {
	for _, cancel := range []bool{false, true} {
		r := newServeRig(t, PrefillerConfig{})
		d := r.link(1, "d", nil, 0)
		m := d.ask("r", 0, 9, func(m *Dispatch) { m.Cost = d.granted + 1 })
		if cancel {
			d.send(&Cancel{Seq: m.Seq, Request: "r", Cost: m.Cost})
		} else {
			d.send(m)
		}
		last[*Bye](d)
		if !r.forgot[1] {
			t.Error("the link goes on")
		}
	}
}
