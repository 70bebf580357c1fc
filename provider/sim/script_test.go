package sim_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/sim"
)

// drama is a small run on two hosts with two NICs each, one connection a NIC, that a script of faults disturbs: every write has a
// slot of its own in the destination, and every message a length of its own.
type drama struct {
	*world
	links [2]*link
	imms  [2][]uint32 // delivered at b, by link
	lens  [2][]uint64 // messages delivered at b
	done  [2]map[uint64]provider.Status
	down  [4]bool // KindPeerDown: a and b of link 0, then of link 1
	err   error
}

const (
	dramaWrites = 12
	dramaSends  = 4
	dramaSlot   = 9 << 10 // three fragments of the default MTU
	dramaLink   = 2       // completions a link of owners: a0, b0, a1, b1
)

// small is memory for all slots and one receive.
func small(*owner) provider.Memory {
	return provider.Memory{Bytes: make([]byte, dramaWrites*dramaSlot+64), FD: -1}
}

// playDrama runs the drama to its end and returns what went wrong with the contract.
func playDrama(t *testing.T, seed uint64, ordered bool, loss float64, script []sim.Fault) (*drama, error) {
	d := &drama{world: newWorld(t, sim.Config{
		Seed: seed, NICs: 2, NIC: sim.NIC{Ordered: ordered, PeerDepth: 64}, Manual: true,
		Loss: loss, RetryTimeout: 500 * time.Microsecond,
	})}
	for i := range d.links {
		nic := fmt.Sprintf("nic%d", i)
		d.links[i] = d.link(d.open("a", nic), d.open("b", nic), small)
		d.done[i] = map[uint64]provider.Status{}
	}
	d.drain()
	for _, o := range d.owners {
		o.got = nil
	}
	start := d.fab.Events()
	shifted := slices.Clone(script)
	for i := range shifted {
		shifted[i].At += start
	}
	d.fab.Script(shifted...)
	for i, l := range d.links {
		src := l.a.memory[:dramaWrites*dramaSlot]
		for j := range src {
			src[j] = byte(j>>3) + byte(i) + 1
		}
		for k := range dramaSends {
			l.b.try(provider.WR{Op: provider.OpRecv, Token: uint64(1000 + k), LocalKey: l.local[1].ID, LocalAddr: l.local[1].Base + dramaWrites*dramaSlot, Len: 64})
		}
		for k := range uint64(dramaWrites) {
			wr := l.write(0, k, dramaSlot-k)
			wr.LocalAddr += k * dramaSlot
			wr.RemoteAddr += k * dramaSlot
			l.a.try(wr)
			if k%3 == 2 {
				l.a.try(provider.WR{Op: provider.OpSend, Token: 100 + k/3, Peer: l.pa, LocalKey: l.local[0].ID, LocalAddr: l.local[0].Base, Len: k / 3})
			}
		}
	}
	d.watch()
	for d.err == nil && d.fab.Step() {
		d.watch()
	}
	if d.err == nil {
		d.err = d.judge()
	}
	return d, d.err
}

// try posts, where the domain lives and its owner is not held.
func (o *owner) try(wr provider.WR) {
	if n, err := o.dom.Post([]provider.WR{wr}); err == nil && n == 1 {
		o.posted++
	}
}

// watch polls and checks what came.
func (d *drama) watch() {
	d.poll()
	for i, o := range d.owners {
		l, link := i/dramaLink, d.links[i/dramaLink]
		for _, c := range o.got {
			if d.down[i] {
				d.err = fmt.Errorf("link %d: %v after KindPeerDown", l, c.Kind)
			}
			switch c.Kind {
			case provider.KindImm:
				k := uint64(c.Imm)
				if at := link.b.memory[k*dramaSlot:][:dramaSlot-k]; !bytes.Equal(at, link.a.memory[k*dramaSlot:][:dramaSlot-k]) {
					d.err = fmt.Errorf("link %d: immediate %d before its bytes", l, k)
				}
				d.imms[l] = append(d.imms[l], c.Imm)
			case provider.KindRecv:
				d.lens[l] = append(d.lens[l], c.Len)
			case provider.KindWrite, provider.KindSend:
				if _, twice := d.done[l][c.Token]; twice {
					d.err = fmt.Errorf("link %d: token %d completed twice", l, c.Token)
				}
				d.done[l][c.Token] = c.Status
			case provider.KindPeerDown:
				d.down[i] = true
			}
		}
		o.got = nil
	}
}

// judge compares the two sides of each link after everything has happened.
func (d *drama) judge() error {
	for l, link := range d.links {
		if link.a.dead == nil && len(d.done[l]) != link.a.posted {
			return fmt.Errorf("link %d: %d of %d WRs completed", l, len(d.done[l]), link.a.posted)
		}
		if link.b.dead != nil {
			continue // nobody knows what it had seen
		}
		for tok, st := range d.done[l] {
			if tok < 100 && st == provider.StatusOK && !slices.Contains(d.imms[l], uint32(tok)) {
				return fmt.Errorf("link %d: write %d ended with ok and its immediate did not come", l, tok)
			}
			if tok >= 100 && st == provider.StatusOK && !slices.Contains(d.lens[l], tok-100) {
				return fmt.Errorf("link %d: message %d ended with ok and did not come", l, tok-100)
			}
		}
		imms, lens := slices.Sorted(slices.Values(d.imms[l])), slices.Sorted(slices.Values(d.lens[l]))
		if len(slices.Compact(slices.Clone(imms))) != len(imms) || len(slices.Compact(slices.Clone(lens))) != len(lens) {
			return fmt.Errorf("link %d: something came twice: %v, %v", l, d.imms[l], d.lens[l])
		}
		if link.b.dom.Caps().Ordered {
			if !isPrefix(d.imms[l]) || !isPrefix(d.lens[l]) {
				return fmt.Errorf("link %d: not the first ones in order: immediates %v, messages %v", l, d.imms[l], d.lens[l])
			}
		}
		if !d.down[2*l] && !d.down[2*l+1] && link.a.dead == nil && link.a.posted == dramaWrites+dramaSends && len(imms)+len(lens) != dramaWrites+dramaSends {
			return fmt.Errorf("link %d: the connection is up, and of %d writes and messages %d came", l, dramaWrites+dramaSends, len(imms)+len(lens))
		}
	}
	return nil
}

func isPrefix[T uint32 | uint64](s []T) bool {
	for i, v := range s {
		if v != T(i) {
			return false
		}
	}
	return true
}

// everyFault is one fault of each kind at each kind of place, short and long.
func everyFault(at uint64) [][]sim.Fault {
	var all [][]sim.Fault
	add := func(kind sim.FaultKind, d time.Duration, places ...string) {
		all = append(all, []sim.Fault{{At: at, Kind: kind, Places: places, For: d}})
	}
	const short, long = 100 * time.Microsecond, 5 * time.Millisecond // RetryTimeout is between them
	add(sim.FaultKill, 0, "b")
	add(sim.FaultKill, 0, "a/nic1")
	add(sim.FaultFail, 0, "b/nic1")
	add(sim.FaultFail, 0, "a")
	add(sim.FaultCut, short, "a", "b")
	add(sim.FaultCut, long, "b/nic1")
	add(sim.FaultCut, 0, "a/nic1", "b")
	add(sim.FaultPartition, short, "a")
	add(sim.FaultPartition, long, "b")
	add(sim.FaultStall, short, "b")
	add(sim.FaultStall, long, "a")
	return all
}

// TestEveryFaultAtEveryEvent plays a small run once for each kind of fault and each event before which it can happen.
func TestEveryFaultAtEveryEvent(t *testing.T) {
	s := seed(t)
	for _, ordered := range []bool{false, true} {
		d, err := playDrama(t, s, ordered, 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		last := d.fab.Events()
		stride := uint64(1)
		if testing.Short() || raceEnabled {
			stride = 16
		}
		runs := 0
		for at := s % stride; at < last; at += stride {
			for _, script := range everyFault(at) {
				runs++
				d, err := playDrama(t, s, ordered, 0, script)
				if err != nil {
					t.Fatalf("ordered %v, %v: %v", ordered, script, err)
				}
				// What happens to nic1 alone is no matter of nic0.
				if p := script[0].Places[0]; p == "a/nic1" || p == "b/nic1" {
					if len(d.imms[0]) != dramaWrites || d.down[0] || d.down[1] {
						t.Fatalf("ordered %v, %v: the other NIC was hurt: %d of %d immediates", ordered, script, len(d.imms[0]), dramaWrites)
					}
				}
				d.close()
			}
		}
		t.Logf("ordered %v: %d runs of %d events", ordered, runs, last)
	}
}

// TestRandomFaults plays scripts of several faults over a bad cable; one that fails is made as short as it can be.
func TestRandomFaults(t *testing.T) {
	s := seed(t)
	runs := 400
	if testing.Short() || raceEnabled {
		runs = 40
	}
	var lost, dups, parked uint64
	for i := range uint64(runs) {
		ordered := i%2 == 0
		script := sim.RandomFaults(s+i, 1+int(i%6), 300, time.Millisecond, []string{"a", "b", "a/nic0", "b/nic1"},
			sim.FaultKill, sim.FaultFail, sim.FaultCut, sim.FaultCut, sim.FaultPartition, sim.FaultStall, sim.FaultStall)
		d, err := playDrama(t, s+i, ordered, 0.05, script)
		if err != nil {
			script = sim.Shrink(script, func(part []sim.Fault) bool {
				d, err := playDrama(t, s+i, ordered, 0.05, part)
				d.close()
				return err != nil
			})
			t.Fatalf("seed %d, ordered %v: %v\nscript: %v", s+i, ordered, err, script)
		}
		st := d.fab.Stats()
		lost, dups, parked = lost+st.Lost, dups+st.Duplicates, parked+st.Reordered
		d.close()
	}
	if lost == 0 || dups == 0 || parked == 0 {
		t.Errorf("%d losses, %d duplicates and %d overtaken fragments in %d runs: want some of each", lost, dups, parked, runs)
	}
	t.Logf("%d runs: %d losses, %d duplicates, %d fragments waited for an earlier one", runs, lost, dups, parked)
}

func TestSameScriptSameSchedule(t *testing.T) {
	s := seed(t)
	script := sim.RandomFaults(s, 5, 200, time.Millisecond, []string{"a", "b/nic0"}, sim.FaultCut, sim.FaultStall, sim.FaultKill)
	if again := sim.RandomFaults(s, 5, 200, time.Millisecond, []string{"a", "b/nic0"}, sim.FaultCut, sim.FaultStall, sim.FaultKill); fmt.Sprint(script) != fmt.Sprint(again) {
		t.Fatalf("one seed, two scripts: %v and %v", script, again)
	}
	d1, err1 := playDrama(t, s, false, 0.1, script)
	d2, err2 := playDrama(t, s, false, 0.1, script)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	if d1.fab.Trace() != d2.fab.Trace() || d1.fab.Stats() != d2.fab.Stats() || d1.fab.Now() != d2.fab.Now() {
		t.Fatalf("seed %d, script %v: two schedules", s, script)
	}
	d3, err := playDrama(t, s, false, 0.1, script[1:])
	if err != nil {
		t.Fatal(err)
	}
	if d3.fab.Trace() == d1.fab.Trace() {
		t.Fatal("a fault makes no difference")
	}
}

func TestFailIsNoticedLate(t *testing.T) {
	const retry = time.Millisecond
	took := func(fault func(f *sim.Fabric)) time.Duration {
		w := newWorld(t, sim.Config{Seed: seed(t), Manual: true, RetryTimeout: retry})
		a, b := w.open("a", "nic0"), w.open("b", "nic0")
		w.link(a, b, heap)
		w.drain()
		start := w.fab.Now()
		fault(w.fab)
		w.until("the peer is down", func() bool { return a.count(provider.KindPeerDown, provider.StatusPeerDown) == 1 })
		if !errors.Is(b.dead, provider.ErrUnavailable) {
			t.Errorf("the owner of a domain that failed gets %v", b.dead)
		}
		return w.fab.Now() - start
	}
	if d := took(func(f *sim.Fabric) { f.Kill("b") }); d >= retry/2 {
		t.Errorf("the death of a process was noticed after %v", d)
	}
	if d := took(func(f *sim.Fabric) { f.Fail("b/nic0") }); d < retry {
		t.Errorf("the death of a NIC was noticed after %v, before RetryTimeout", d)
	}
}

func TestStallHoldsTheOwnerAndNotTheNIC(t *testing.T) {
	w := newWorld(t, sim.Config{Seed: seed(t), Manual: true})
	a, b := w.open("a", "nic0"), w.open("b", "nic0")
	l := w.link(a, b, heap)
	w.drain()
	const long = 10 * time.Millisecond
	start := w.fab.Now()
	w.fab.Stall("b", long)
	a.post(l.write(0, 1, 5000))
	w.until("the write completes", func() bool { return a.count(provider.KindWrite, provider.StatusOK) == 1 })
	if b.count(provider.KindImm, provider.StatusOK) != 0 || w.fab.Now()-start >= long {
		t.Fatal("the owner of a stalled host was given an immediate, or the NIC has waited")
	}
	if n, err := b.dom.Post([]provider.WR{l.write(1, 2, 10)}); n != 0 || err != nil {
		t.Fatalf("post on a stalled host returned %d, %v", n, err)
	}
	if b.dom.Arm() {
		t.Fatal("arm reports true on a stalled host")
	}
	for w.fab.Now()-start < long && w.fab.Step() {
	}
	if !b.bell.Park(time.Minute) {
		t.Fatal("the end of a stall does not wake")
	}
	w.drain()
	if b.count(provider.KindImm, provider.StatusOK) != 1 {
		t.Fatal("the immediate did not come after the stall")
	}
}

func TestPartitionCutsTheGroupOff(t *testing.T) {
	w := newWorld(t, sim.Config{Seed: seed(t), Manual: true, RetryTimeout: time.Millisecond})
	a, b, c, e := w.open("a", "nic0"), w.open("b", "nic0"), w.open("c", "nic0"), w.open("e", "nic0")
	inside, outside, across := w.link(a, b, heap), w.link(c, e, heap), w.link(a, c, heap)
	w.drain()
	w.fab.Partition("a", "b")
	for i, l := range []*link{inside, outside, across} {
		l.a.post(l.write(0, uint64(i), 5000))
	}
	w.until("both writes that cross nothing complete", func() bool {
		return b.count(provider.KindImm, provider.StatusOK)+e.count(provider.KindImm, provider.StatusOK) == 2
	})
	if c.count(provider.KindImm, provider.StatusOK) != 0 {
		t.Fatal("a write crossed the partition")
	}
	w.fab.Rejoin()
	w.drain()
	if c.count(provider.KindImm, provider.StatusOK) != 1 || a.count(provider.KindPeerDown, provider.StatusPeerDown) != 0 {
		t.Fatal("a short partition was not survived")
	}
	w.fab.Partition("c")
	w.drain()
	if a.count(provider.KindPeerDown, provider.StatusPeerDown) != 1 || e.count(provider.KindPeerDown, provider.StatusPeerDown) != 1 ||
		b.count(provider.KindPeerDown, provider.StatusPeerDown) != 0 {
		t.Fatal("a long partition ends the connections that cross it, and no others")
	}
}

// A cable over which almost nothing passes ends the connection, on both sides and with everything flushed.
func TestNICGivesUpAfterRetries(t *testing.T) {
	w := newWorld(t, sim.Config{Seed: seed(t), Manual: true, Loss: 0.85})
	a, b := w.open("a", "nic0"), w.open("b", "nic0")
	l := w.link(a, b, heap)
	for i := range uint64(60) {
		a.post(l.write(0, i, 5000))
	}
	w.drain()
	ok, flushed := a.count(provider.KindWrite, provider.StatusOK), a.count(provider.KindWrite, provider.StatusFlushed)
	if ok+flushed != 60 || flushed == 0 || a.count(provider.KindPeerDown, provider.StatusPeerDown) != 1 || b.count(provider.KindPeerDown, provider.StatusPeerDown) != 1 {
		t.Fatalf("%d writes ended with ok and %d flushed, and the connection is not down on both sides", ok, flushed)
	}
}

func TestShrinkLeavesWhatFails(t *testing.T) {
	rng := rand.New(rand.NewPCG(seed(t), 1))
	for range 200 {
		script := make([]sim.Fault, 1+rng.IntN(20))
		for i := range script {
			script[i].At = uint64(i)
		}
		culprits := map[uint64]bool{}
		for range rng.IntN(4) {
			culprits[uint64(rng.IntN(len(script)))] = true
		}
		calls := 0
		fails := func(part []sim.Fault) bool {
			calls++
			n := 0
			for _, x := range part {
				if culprits[x.At] {
					n++
				}
			}
			return n == len(culprits)
		}
		got := sim.Shrink(script, fails)
		if len(got) != len(culprits) || !fails(got) {
			t.Fatalf("shrunk to %v, want the events %v", got, culprits)
		}
		if calls > 2*len(script)*len(script)+4 {
			t.Fatalf("%d calls for %d faults", calls, len(script))
		}
	}
}
