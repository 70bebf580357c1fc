package proto

import (
	"errors"
	"testing"
	"time"
)

// joined is a world in which everybody has joined.
func joined(t testing.TB, cfg worldConfig) *world {
	t.Helper()
	w := newWorld(cfg)
	w.connect(w.nodes[0])
	w.settle(5 * time.Second)
	w.sound(t)
	return w
}

func (w *world) sound(t testing.TB) {
	t.Helper()
	for _, f := range w.faults {
		t.Errorf("%s", f)
	}
	if len(w.faults) > 0 {
		t.Fatalf("%v", w)
	}
}

// update runs a whole update.
func (w *world) update(t testing.TB, v Version) Outcome {
	t.Helper()
	c := w.ctl()
	w.wants = v
	w.pushAll()
	if _, err := c.c.Update(w.now, v, UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	n := len(c.result)
	w.settle(5 * time.Minute)
	w.sound(t)
	if len(c.result) != n+1 {
		t.Fatalf("update v%d did not end:\n%v", v, w)
	}
	return c.result[n]
}

func modes(t *testing.T, f func(t *testing.T, shadow bool)) {
	t.Run("in place", func(t *testing.T) { f(t, false) })
	t.Run("shadow", func(t *testing.T) { f(t, true) })
}

// TestPush: two updates, one after the other, reach every rank.
func TestPush(t *testing.T) {
	modes(t, func(t *testing.T, shadow bool) {
		w := joined(t, worldConfig{publishers: 2, instances: 2, ranks: 2, stages: 3, shadow: shadow})
		for v := Version(2); v < 5; v++ {
			o := w.update(t, v)
			if o.Err != nil || len(o.Serving) != 2 || o.Repairs != 0 {
				t.Fatalf("%+v", o)
			}
			for _, n := range w.nodes {
				if n.r == nil {
					continue
				}
				if s := n.r.Status(); s.State != StateCommitted || s.Version != v || n.tag != v || shadow && s.Held != v-1 {
					t.Fatalf("%+v", s)
				}
			}
			for _, e := range w.engines {
				if !e.running {
					t.Fatal("an engine is stopped")
				}
			}
			for _, n := range w.nodes {
				if n.p != nil && (len(n.ended) != int(v-1) || n.ended[v-2].err != nil) {
					t.Fatalf("%+v", n.ended)
				}
			}
		}
	})
}

// TestTrainerDeathRepair: a publisher dies in mid-push; the others push the same version in a new epoch.
func TestTrainerDeathRepair(t *testing.T) {
	modes(t, func(t *testing.T, shadow bool) {
		w := joined(t, worldConfig{publishers: 2, instances: 2, ranks: 2, stages: 3, shadow: shadow})
		w.wants = 2
		w.pushAll()
		_, _ = w.ctl().c.Update(w.now, 2, UpdateOptions{})
		w.until(func() bool { return len(w.writes) == 5 })
		w.crash(w.nodes[1])
		w.settle(time.Minute)
		w.sound(t)
		if o := w.ctl().result; len(o) != 1 || o[0].Err != nil || o[0].Repairs != 1 || len(o[0].Serving) != 2 {
			t.Fatalf("%+v\n%v", o, w)
		}
	})
}

// TestTrainerDeathAbort: nobody else has what a dead publisher had. In place the instances are out, with a shadow they go on.
func TestTrainerDeathAbort(t *testing.T) {
	modes(t, func(t *testing.T, shadow bool) {
		w := joined(t, worldConfig{publishers: 2, instances: 2, ranks: 2, stages: 3, shadow: shadow, noReplica: true})
		w.wants = 2
		w.pushAll()
		_, _ = w.ctl().c.Update(w.now, 2, UpdateOptions{})
		w.until(func() bool { return len(w.writes) == 5 })
		w.crash(w.nodes[1])
		w.settle(time.Minute)
		w.sound(t)
		o := w.ctl().result
		if len(o) != 1 || !errors.Is(o[0].Err, ErrAborted) {
			t.Fatalf("%+v\n%v", o, w)
		}
		want := StateFailed
		if shadow {
			want = StateCommitted
		}
		for _, n := range w.nodes {
			if n.r != nil && n.r.State() != want {
				t.Fatalf("%+v", n.r.Status())
			}
		}
	})
}

// until takes steps until something is true.
func (w *world) until(f func() bool) {
	for len(w.faults) == 0 && !f() {
		switch n := w.busy(); {
		case len(w.net) > 0:
			w.deliver(0)
		case n != nil:
			w.do(n, false)
		case len(w.writes) > 0:
			w.land(0)
		default:
			if !w.tick() {
				w.fault("nothing is due")
			}
		}
		w.look()
	}
}

// TestLateReport: a rank's word that it is switching arrives after its word that it is done: it is not stranded.
func TestLateReport(t *testing.T) {
	w := joined(t, worldConfig{publishers: 1, instances: 1, ranks: 2, stages: 1})
	o := w.update(t, 2)
	c := w.ctl().c
	for _, n := range w.nodes {
		if n.r == nil || n.r.cfg.Member.Leader {
			continue
		}
		p := c.peer(n.id)
		late := *p.join
		late.State, late.Epoch, late.Version = StateSwitching, o.Epoch, 0
		c.Message(w.now, n.id, Encode(Head{Term: c.term, Seq: p.seq}, &late))
		w.settle(5 * time.Second)
		if s := n.r.Status(); s.State != StateCommitted || s.Version != 2 {
			t.Errorf("%v is %v, v%d", &n.r.cfg.Member, s.State, s.Version)
		}
	}
	w.sound(t)
}
