package sim_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/hawser-project/hawser/internal/cpu"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/sim"
)

// play runs a fixed script with a cut in the middle, and returns what happened.
func play(t *testing.T, seed uint64) (trace uint64, now time.Duration, got []provider.Completion) {
	w := newWorld(t, sim.Config{Seed: seed, Manual: true})
	a, b := w.open("a", "nic0"), w.open("b", "nic0")
	l := w.link(a, b, heap)
	for i := range uint64(40) {
		a.post(l.write(0, i, i*700))
		b.post(l.write(1, i, i*300), provider.WR{Op: provider.OpSend, Token: 1000 + i, Peer: l.pb})
		a.post(provider.WR{Op: provider.OpRecv, Token: 2000 + i})
		for range i {
			w.fab.Step()
		}
		switch i {
		case 10:
			w.fab.Cut("a", "b")
		case 20:
			w.fab.Heal("a", "b")
		}
		w.poll()
	}
	w.drain()
	return w.fab.Trace(), w.fab.Now(), append(a.got, b.got...)
}

func TestSameSeedSameSchedule(t *testing.T) {
	s := seed(t)
	trace1, now1, got1 := play(t, s)
	trace2, now2, got2 := play(t, s)
	if trace1 != trace2 || now1 != now2 || !slices.Equal(got1, got2) {
		t.Fatalf("seed %d played twice: traces %#x and %#x, times %v and %v", s, trace1, trace2, now1, now2)
	}
	trace3, _, got3 := play(t, s+1)
	if trace1 == trace3 || slices.Equal(got1, got3) {
		t.Fatalf("seeds %d and %d give one schedule", s, s+1)
	}
}

// Timers of a model are events among the others, in the order of their times.
func TestAfter(t *testing.T) {
	w := newWorld(t, sim.Config{Seed: seed(t), Manual: true})
	var fired []time.Duration
	for _, d := range []time.Duration{3, 1, 2} {
		w.fab.After(d*time.Second, func() { fired = append(fired, d) })
	}
	for n := 1; w.fab.Step(); n++ {
		if len(fired) != n || w.fab.Now() != fired[n-1]*time.Second {
			t.Fatalf("%v after %d steps, the time is %v", fired, n, w.fab.Now())
		}
	}
	if !slices.Equal(fired, []time.Duration{1, 2, 3}) {
		t.Fatalf("order %v", fired)
	}
}

func TestPollMovesNoTimeInManualMode(t *testing.T) {
	w := newWorld(t, sim.Config{Seed: seed(t), Manual: true})
	a, b := w.open("a", "nic0"), w.open("b", "nic0")
	l := w.link(a, b, heap)
	w.drain()
	now, before := w.fab.Now(), len(b.got)
	a.post(l.write(0, 1, 100))
	for range 100 {
		w.poll()
	}
	if w.fab.Now() != now || len(b.got) != before {
		t.Fatal("something happened without a step")
	}
	if b.dom.Arm() {
		t.Fatal("arm reports true though only a step can bring something")
	}
	for w.fab.Step() {
	}
	if !b.bell.Park(time.Minute) {
		t.Fatal("no wake when the immediate came")
	}
}

func TestWritesOvertakeEachOther(t *testing.T) {
	w := newWorld(t, sim.Config{Seed: seed(t), Manual: true})
	a, b := w.open("a", "nic0"), w.open("b", "nic0")
	l := w.link(a, b, heap)
	for i := range uint64(100) {
		a.post(l.write(0, i, 5000))
	}
	w.drain()
	late := func(kind provider.Kind, of *owner, key func(provider.Completion) uint64) int {
		n, next := 0, uint64(0)
		for _, c := range of.got {
			if c.Kind == kind {
				if key(c) < next {
					n++
				}
				next = max(next, key(c))
			}
		}
		return n
	}
	// A hundred writes in the order of posting have a probability of 1 in 100!.
	if late(provider.KindImm, b, func(c provider.Completion) uint64 { return uint64(c.Imm) }) == 0 {
		t.Error("all immediates came in order")
	}
	if late(provider.KindWrite, a, func(c provider.Completion) uint64 { return c.Token }) == 0 {
		t.Error("all completions came in order")
	}
}

func TestPhantomBytesTakeTime(t *testing.T) {
	const n, bitsPerNano = 1 << 30, 100 // of the default LinkBits
	w := newWorld(t, sim.Config{Seed: seed(t), Manual: true})
	phantom := func(*owner) provider.Memory { return provider.Memory{FD: -1, Phantom: 1 << 42} }
	a, b, c := w.open("a", "nic0"), w.open("b", "nic0"), w.open("c", "nic0")
	ab, cb := w.link(a, b, phantom), w.link(c, b, phantom)
	took := func(links ...*link) time.Duration {
		w.drain()
		start, before := w.fab.Now(), b.count(provider.KindImm, provider.StatusOK)
		for _, l := range links {
			for i := range uint64(10) {
				l.a.post(l.write(0, i, n))
			}
		}
		w.until("all immediates have come", func() bool {
			return b.count(provider.KindImm, provider.StatusOK) == before+10*len(links)
		})
		return w.fab.Now() - start
	}
	ideal := 10 * n * 8 * time.Nanosecond / bitsPerNano
	one, two := took(ab), took(ab, cb)
	if one < ideal || one > ideal*102/100 {
		t.Errorf("10 GiB took %v of virtual time, want %v and little more", one, ideal)
	}
	if two < 2*ideal || two > 2*ideal*102/100 {
		t.Errorf("10 GiB from each of two senders into one NIC took %v of virtual time, want %v and little more", two, 2*ideal)
	}
}

func TestOpenNamesWhatIsWrong(t *testing.T) {
	p := sim.New(sim.Config{NICs: 2}).Provider("a")
	devs, err := p.Devices(context.Background())
	if err != nil || len(devs) != 2 || devs[1].Name != "nic1" || devs[0].Fabric != devs[1].Fabric {
		t.Fatalf("devices: %+v, %v", devs, err)
	}
	bell, err := cpu.NewParker()
	if err != nil {
		t.Fatal(err)
	}
	defer bell.Close()
	for _, tc := range []struct {
		name string
		dev  provider.Device
		cfg  provider.Config
	}{
		{"no such NIC", provider.Device{Name: "nic2"}, provider.Config{Bell: bell}},
		{"no bell", devs[0], provider.Config{}},
		{"too many peers", devs[0], provider.Config{Bell: bell, MaxPeers: 1<<16 + 1}},
		{"a negative number of peers", devs[0], provider.Config{Bell: bell, MaxPeers: -1}},
	} {
		if _, err := p.Open(context.Background(), tc.dev, tc.cfg); !errors.Is(err, provider.ErrInvalid) {
			t.Errorf("open with %s returned %v, want ErrInvalid", tc.name, err)
		}
	}
}

// Hosts may have other NICs than the rest, and a host NICs of several kinds. What they send to each other goes at the slower one's pace.
func TestNICsDiffer(t *testing.T) {
	w := newWorld(t, sim.Config{
		Seed: seed(t), Manual: true,
		Rails: []sim.NIC{{LinkBits: 400e9, Jitter: -1, Ordered: true}},
		Hosts: map[string][]sim.NIC{"old": {{LinkBits: 10e9, Jitter: -1}, {LinkBits: 40e9, Jitter: -1, PeerDepth: 7}}},
	})
	phantom := func(*owner) provider.Memory { return provider.Memory{FD: -1, Phantom: 1 << 32} }
	for host, want := range map[string][]uint64{"new": {400e9}, "other": {400e9}, "old": {10e9, 40e9}} {
		devs, err := w.fab.Provider(host).Devices(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		var got []uint64
		for _, d := range devs {
			got = append(got, d.LinkBits)
		}
		if !slices.Equal(got, want) {
			t.Errorf("host %s has NICs of %d bits per second, want %d", host, got, want)
		}
	}
	a, b, slow, slower := w.open("new", "nic0"), w.open("other", "nic0"), w.open("old", "nic1"), w.open("old", "nic0")
	if c := slow.dom.Caps(); c.Ordered || c.PeerDepth != 7 || !a.dom.Caps().Ordered {
		t.Fatalf("caps are not those of the NIC: %+v", c)
	}
	const n = 100 << 20
	for _, pair := range []struct {
		l    *link
		bits uint64
	}{{w.link(a, b, phantom), 400e9}, {w.link(a, slow, phantom), 40e9}, {w.link(slower, b, phantom), 10e9}} {
		w.drain()
		from := pair.l.a
		from.got = nil
		start := w.fab.Now()
		from.post(pair.l.write(0, 1, n))
		w.until("a write completes", func() bool { return from.count(provider.KindWrite, provider.StatusOK) == 1 })
		ideal := time.Duration(n * 8 * 1e9 / pair.bits)
		if took := w.fab.Now() - start; took < ideal || took > ideal*105/100 {
			t.Errorf("100 MiB from %d to %d bits per second took %v, want %v and little more", from.dom.Caps().LinkBits, pair.l.b.dom.Caps().LinkBits, took, ideal)
		}
	}
}
