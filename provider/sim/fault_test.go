package sim_test

import (
	"errors"
	"testing"
	"time"

	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/sim"
)

func TestKilledHostIsDownForItsPeers(t *testing.T) {
	w := newWorld(t, sim.Config{Seed: seed(t), Manual: true})
	a, b, c := w.open("a", "nic0"), w.open("b", "nic0"), w.open("c", "nic0")
	ab, ac, bc := w.link(a, b, heap), w.link(a, c, heap), w.link(b, c, heap)
	for i := range uint64(20) {
		a.post(ab.write(0, i, 10000), ac.write(0, 100+i, 10000))
		b.post(ab.write(1, i, 10000))
	}
	for range 30 {
		w.fab.Step()
	}
	w.fab.Kill("b")
	w.drain()
	if !errors.Is(b.dead, provider.ErrUnavailable) {
		t.Errorf("the owner of a killed domain gets %v, want ErrUnavailable", b.dead)
	}
	if n := a.count(provider.KindPeerDown, provider.StatusPeerDown); n != 1 {
		t.Errorf("a saw %d KindPeerDown, want one", n)
	}
	ok, flushed := a.count(provider.KindWrite, provider.StatusOK), a.count(provider.KindWrite, provider.StatusFlushed)
	if ok+flushed != 40 || flushed == 0 || c.count(provider.KindImm, provider.StatusOK) != 20 {
		t.Errorf("of 40 writes %d ended with ok and %d flushed; c got %d of 20 immediates", ok, flushed, c.count(provider.KindImm, provider.StatusOK))
	}
	if n, err := b.dom.Post([]provider.WR{bc.write(0, 1, 1)}); n != 0 || !errors.Is(err, provider.ErrUnavailable) {
		t.Errorf("post on a killed domain returned %d, %v", n, err)
	}
	// The host comes back as a new program.
	again := w.open("b", "nic0")
	l := w.link(a, again, heap)
	a.post(l.write(0, 500, 100))
	w.until("the new program gets an immediate", func() bool { return again.count(provider.KindImm, provider.StatusOK) == 1 })
}

func TestKilledNICLeavesTheOtherOne(t *testing.T) {
	w := newWorld(t, sim.Config{Seed: seed(t), NICs: 2, Manual: true})
	a0, a1, b0, b1 := w.open("a", "nic0"), w.open("a", "nic1"), w.open("b", "nic0"), w.open("b", "nic1")
	l0, l1 := w.link(a0, b0, heap), w.link(a1, b1, heap)
	w.fab.Kill("b/nic1")
	a0.post(l0.write(0, 1, 100))
	a1.post(l1.write(0, 1, 100))
	w.drain()
	if a0.count(provider.KindWrite, provider.StatusOK) != 1 || b0.dead != nil {
		t.Error("the other NIC was hurt")
	}
	if a1.count(provider.KindWrite, provider.StatusFlushed) != 1 || a1.count(provider.KindPeerDown, provider.StatusPeerDown) != 1 || b1.dead == nil {
		t.Error("the killed NIC works")
	}
}

func TestShortCutIsSurvived(t *testing.T) {
	const retry = time.Millisecond
	w := newWorld(t, sim.Config{Seed: seed(t), Manual: true, RetryTimeout: retry})
	a, b, c := w.open("a", "nic0"), w.open("b", "nic0"), w.open("c", "nic0")
	ab, cb := w.link(a, b, heap), w.link(c, b, heap)
	a.post(ab.write(0, 1, 50000))
	w.fab.Step()
	w.fab.Cut("b", "a")
	c.post(cb.write(0, 2, 50000))
	w.until("the write beside the cut completes", func() bool { return c.count(provider.KindWrite, provider.StatusOK) == 1 })
	if b.count(provider.KindImm, provider.StatusOK) != 1 || w.fab.Now() > retry {
		t.Fatalf("at %v b has %d immediates, want the one of c", w.fab.Now(), b.count(provider.KindImm, provider.StatusOK))
	}
	w.fab.Heal("a", "b")
	w.drain()
	if a.count(provider.KindWrite, provider.StatusOK) != 1 || b.count(provider.KindImm, provider.StatusOK) != 2 {
		t.Fatal("the write that was cut did not arrive after the cut was healed")
	}
	if a.count(provider.KindPeerDown, provider.StatusPeerDown) != 0 {
		t.Fatal("a cut shorter than RetryTimeout ended a connection")
	}
}

func TestLongCutEndsConnections(t *testing.T) {
	const retry = time.Millisecond
	w := newWorld(t, sim.Config{Seed: seed(t), Manual: true, RetryTimeout: retry, NICs: 2})
	a, b, other := w.open("a", "nic0"), w.open("b", "nic0"), w.open("a", "nic1")
	ab, ob := w.link(a, b, heap), w.link(other, b, heap)
	a.post(ab.write(0, 1, 50000))
	start := w.fab.Now()
	w.fab.Cut("a/nic0", "") // from everything
	other.post(ob.write(0, 2, 50000))
	w.drain()
	for i, o := range []*owner{a, b} {
		if o.count(provider.KindPeerDown, provider.StatusPeerDown) != 1 {
			t.Errorf("side %d of a cut connection is not down", i)
		}
	}
	if took := w.fab.Now() - start; took < retry || took > 2*retry {
		t.Errorf("a cut connection went down after %v, want about %v", took, retry)
	}
	if a.count(provider.KindWrite, provider.StatusFlushed) != 1 || other.count(provider.KindWrite, provider.StatusOK) != 1 {
		t.Error("the write over the cut is not flushed, or the one beside it did not arrive")
	}
	// What was held is of a connection that has gone.
	w.fab.Heal("", "a/nic0")
	w.drain()
	if b.count(provider.KindImm, provider.StatusOK) != 1 {
		t.Error("an immediate arrived over a connection that had gone")
	}
	again := w.link(a, b, heap)
	a.post(again.write(0, 3, 100))
	w.until("a new connection works after the cut", func() bool { return a.count(provider.KindWrite, provider.StatusOK) == 1 })
}

// In auto mode the time limits are real, and their end wakes an owner that sleeps.
func TestLongCutWakesSleepers(t *testing.T) {
	w := newWorld(t, sim.Config{Seed: seed(t), RetryTimeout: 30 * time.Millisecond})
	a, b := w.open("a", "nic0"), w.open("b", "nic0")
	l := w.link(a, b, heap)
	w.fab.Cut("a", "b")
	a.post(l.write(0, 1, 100))
	start := time.Now()
	if err := a.wait("KindPeerDown of a cut connection", func() bool { return a.count(provider.KindPeerDown, provider.StatusPeerDown) == 1 }); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < 20*time.Millisecond {
		t.Errorf("the cut connection went down after %v, RetryTimeout is 30 ms", took)
	}
	if a.count(provider.KindWrite, provider.StatusFlushed) != 1 {
		t.Error("the write over the cut was not flushed")
	}
}

func TestKillWakesSleepers(t *testing.T) {
	w := newWorld(t, sim.Config{Seed: seed(t)})
	a, b := w.open("a", "nic0"), w.open("b", "nic0")
	w.link(a, b, heap)
	w.drain()
	for _, o := range w.owners {
		if o.dom.Arm() {
			t.Fatal("arm reports true though nothing is to come")
		}
	}
	w.fab.Kill("b")
	for _, o := range w.owners {
		if !o.bell.Park(time.Minute) {
			t.Fatal("a kill does not wake")
		}
	}
	w.drain()
	if b.dead == nil || a.count(provider.KindPeerDown, provider.StatusPeerDown) != 1 {
		t.Fatal("the killed domain lives, or its peer does not know")
	}
}
