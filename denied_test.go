package hawser

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hawser-project/hawser/internal/rail"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/sim"
)

// strictHost are the options of an engine whose network ends connections for writes that it refuses, as RC queue pairs do.
func strictHost(f *sim.Fabric, host string) Options {
	return Options{Providers: []provider.Provider{f.Provider(host)}, Rails: []Rail{{"sim", AllDevices}}, PeerTimeout: 5 * time.Second}
}

func strictFabric(nics int) *sim.Fabric {
	return sim.New(sim.Config{NICs: nics, NIC: sim.NIC{Ordered: true, AccessEnds: true}})
}

// stolen is memory of b that a has imported and whose keys have gone since, without a word to a: what happens to an engine that does not
// answer in time when memory is taken back.
func (d *duo) stolen() *Remote {
	d.Helper()
	r, err := d.b.Alloc(4096, MemOptions{Heap: true})
	if err != nil {
		d.Fatal(err)
	}
	rem, err := d.a.Import(d.Context(), r.Descriptor(r.All(), RightWrite))
	if err != nil {
		d.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := d.b.worker.do(func(g *rail.Group) error { return g.Deregister(&r.mr) }); err != nil {
		d.Fatal(err)
	}
	r.freed = true
	return rem
}

// offend writes to memory that was taken back, twice at once, and returns how both ended.
func (d *duo) offend(rem *Remote) error {
	var ended []error
	for range 2 {
		tr, err := d.a.Write(Write{Src: d.src.Slice(0, 100), Dst: rem.Slice(0, 100), Imm: Imm(9)})
		if err == nil {
			ctx, cancel := context.WithTimeout(d.Context(), time.Minute)
			defer cancel()
			err = tr.Wait(ctx)
		}
		if err == nil {
			d.Fatal("a write to memory that was taken back has ended well")
		}
		ended = append(ended, err)
	}
	return errors.Join(ended...)
}

// A write that is refused fails by itself, though its connection ends with it: everything else of that connection is there once, the session
// goes on, and both sides count what it cost.
func TestRefusedWriteCostsOnlyItself(t *testing.T) {
	f := strictFabric(2)
	d := newDuo(t, strictHost(f, "a"), strictHost(f, "b"), true)
	d.ordered = true
	const rounds = 4
	back := func() { d.await("both links are back", func() bool { return d.a.Stats().Peers[0].Degraded == "" }) }
	next := d.stolen()
	d.stream(rounds, func(int) {
		if err := d.offend(next); !errors.Is(err, ErrAccess) || errors.Is(err, ErrPeerDown) {
			t.Errorf("a write to memory that was taken back: %v", err)
		}
		back()
		next = d.stolen()
	})
	if n := d.b.Counter(9).Load(); n != 0 {
		t.Errorf("%d immediates of refused writes were counted", n)
	}
	a, b := d.a.Stats(), d.b.Stats()
	if !a.Peers[0].Up || a.Peers[0].Denials != rounds || b.Peers[0].Denials != rounds || len(b.Refused) != 0 {
		t.Errorf("of %d refused writes, %d and %d connections have ended; refused: %v", rounds, a.Peers[0].Denials, b.Peers[0].Denials, b.Refused)
	}
	if a.Peers[0].Resent == 0 {
		t.Error("nothing else was under way")
	}
}

// A peer that writes again and again where it may not loses its session soon, and nobody else loses anything.
func TestRepeatedOffencesCostTheSession(t *testing.T) {
	f := strictFabric(1)
	d := newDuo(t, strictHost(f, "a"), strictHost(f, "b"), true)
	other := openWith(t, strictHost(f, "c"))
	p, err := other.Connect(t.Context(), d.b.Addr())
	if err != nil {
		t.Fatal(err)
	}
	p.e.OnPeer(func(ev PeerEvent) {
		if ev.Kind == PeerDown && !p.e.closing.Load() && !d.b.closing.Load() {
			t.Errorf("another peer is down: %v", ev.Cause)
		}
	})
	const enough = 20
	offences := 0
	for d.b.Stats().Refused[RefusedLink] == 0 {
		if offences++; offences > enough {
			t.Fatalf("the session goes on after %d writes that were refused", enough)
		}
		rem := d.stolen()
		err := d.offend(rem)
		if !errors.Is(err, ErrAccess) && !errors.Is(err, ErrPeerDown) {
			t.Fatal(err)
		}
		d.await("the link is back, or the session has ended", func() bool {
			return d.b.Stats().Refused[RefusedLink] > 0 || d.links()[0].Ready && d.b.Stats().Peers[0].Degraded == ""
		})
	}
	t.Logf("the session has ended after %d offences", offences)
	for range 5 {
		tr, err := other.Signal(Signal{To: p, Imm: 3})
		if err == nil {
			err = tr.Wait(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
