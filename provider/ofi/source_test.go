//go:build cgo

package ofi

import (
	"errors"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/hawser-project/hawser/provider"
)

// end is one of two Domains that use libfabric's tcp as if it were EFA.
type end struct {
	*domain
	got []provider.Completion
}

func openBySource(t *testing.T) *end {
	t.Helper()
	return openEnd(t, BySource(New(Options{Provider: "tcp"}), true))
}

func (e *end) poll(t *testing.T) {
	t.Helper()
	var cs [16]provider.Completion
	n, err := e.Poll(cs[:])
	if err != nil {
		t.Fatal(err)
	}
	e.got = append(e.got, cs[:n]...)
}

// has finds what h was given of a kind.
func (e *end) has(h provider.Peer, kind provider.Kind) (provider.Completion, bool) {
	i := slices.IndexFunc(e.got, func(c provider.Completion) bool { return c.Peer == h && c.Kind == kind })
	if i < 0 {
		return provider.Completion{}, false
	}
	return e.got[i], true
}

func until(t *testing.T, a, b *end, what string, done func() bool) {
	t.Helper()
	for guard := time.Now().Add(20 * time.Second); !done(); {
		if time.Now().After(guard) {
			t.Fatalf("not in time: %s\n%+v\n%+v", what, a.got, b.got)
		}
		a.poll(t)
		b.poll(t)
	}
}

// handles begins a connection, a being active.
func handles(t *testing.T, a, b *end) (ha, hb provider.Peer) {
	t.Helper()
	ha, addrA, err := a.Offer()
	if err != nil {
		t.Fatal(err)
	}
	hb, addrB, err := b.Offer()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(b.Connect(hb, addrA, false), a.Connect(ha, addrB, true)); err != nil {
		t.Fatal(err)
	}
	return ha, hb
}

func bothUp(a, b *end, ha, hb provider.Peer) bool {
	_, upA := a.has(ha, provider.KindPeerUp)
	_, upB := b.has(hb, provider.KindPeerUp)
	return upA && upB
}

func connected(t *testing.T, a, b *end) (ha, hb provider.Peer) {
	t.Helper()
	ha, hb = handles(t, a, b)
	until(t, a, b, "both sides are up", func() bool { return bothUp(a, b, ha, hb) })
	return ha, hb
}

func immediates(t *testing.T, e *end, h provider.Peer, imms ...uint32) {
	t.Helper()
	for _, imm := range imms {
		if n, err := e.Post([]provider.WR{{Op: provider.OpWriteImm, Peer: h, Imm: imm}}); n != 1 || err != nil {
			t.Fatalf("post: %d, %v", n, err)
		}
	}
}

// All 32 bits of an immediate arrive, of the right one of several writers.
func TestBySourceNamesTheWriter(t *testing.T) {
	b, writers := openBySource(t), []*end{openBySource(t), openBySource(t), openBySource(t)}
	for i, a := range writers {
		ha, hb := connected(t, a, b)
		imm := ^uint32(0) - uint32(i)
		immediates(t, a, ha, imm)
		until(t, a, b, "the immediate", func() bool { _, ok := b.has(hb, provider.KindImm); return ok })
		if c, _ := b.has(hb, provider.KindImm); c.Imm != imm {
			t.Errorf("writer %d: immediate %#x, want %#x", i, c.Imm, imm)
		}
	}
}

func TestBySourceOneConnection(t *testing.T) {
	a, b := openBySource(t), openBySource(t)
	ha, hb := connected(t, a, b)
	ha2, hb2 := handles(t, a, b)
	until(t, a, b, "the second connection is refused", func() bool {
		_, downA := a.has(ha2, provider.KindPeerDown)
		_, downB := b.has(hb2, provider.KindPeerDown)
		return downA && downB
	})
	for _, c := range append(a.got, b.got...) {
		if c.Kind == provider.KindPeerDown && (c.Status != provider.StatusRefused || c.Detail != DetailBusy) {
			t.Errorf("the second connection ended as %+v, want refused and busy", c)
		}
	}
	immediates(t, a, ha, 7)
	until(t, a, b, "an immediate of the first", func() bool { _, ok := b.has(hb, provider.KindImm); return ok })
	if err := a.Disconnect(ha); err != nil {
		t.Fatal(err)
	}
	ha3, hb3 := connected(t, a, b) // while the end of the first is on its way
	immediates(t, b, hb3, 8)
	until(t, a, b, "an immediate of the third", func() bool { _, ok := a.has(ha3, provider.KindImm); return ok })
}

// Neither side speaks up for a connection while a write of its own of an older one is under way.
func TestBySourceWaitsForOlderWrites(t *testing.T) {
	for name, side := range map[string]func(a, b *end, ha, hb provider.Peer) *end{
		"active":  func(a, _ *end, _, _ provider.Peer) *end { return a },
		"passive": func(_, b *end, _, _ provider.Peer) *end { return b },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := openBySource(t), openBySource(t)
			ha, hb := connected(t, a, b)
			e, h := side(a, b, ha, hb), hb
			if e == a {
				h = ha
			}
			// A write that libfabric has not reported as done, as when an adapter goes on trying.
			old := e.peer(h)
			old.inflight++
			old.nfree--
			late := &old.ops[old.free[old.nfree]]
			late.kind, late.dest = opWriteData, old.data
			ctx := entry{context: unsafe.Pointer(late)}
			if err := errors.Join(a.Disconnect(ha), b.Disconnect(hb)); err != nil {
				t.Fatal(err)
			}
			until(t, a, b, "the first connection has ended", func() bool {
				_, downA := a.has(ha, provider.KindPeerDown)
				_, downB := b.has(hb, provider.KindPeerDown)
				return downA && downB
			})
			ha2, hb2 := handles(t, a, b)
			for range 2000 {
				a.poll(t)
				b.poll(t)
			}
			if _, up := b.has(hb2, provider.KindPeerUp); up || a.peer(ha2).welcomed {
				t.Fatal("confirmed while an older write is under way")
			}
			e.entry(&ctx, 0)
			until(t, a, b, "the second connection is up", func() bool { return bothUp(a, b, ha2, hb2) })
			if len(e.haunted) > 0 {
				t.Error("the address is kept for ever")
			}
		})
	}
}

// What is in the queue when the other side speaks up for a connection is of an older one.
func TestBySourceDropsOlderImmediates(t *testing.T) {
	a, b := openBySource(t), openBySource(t)
	ha, hb := connected(t, a, b)
	scratch := b.peer(hb).scratch // is kept, so that the immediates arrive as those do that were there before
	b.peer(hb).scratch = mr{}
	t.Cleanup(func() {
		if err := b.rail.deregister(scratch); err != nil {
			t.Error(err)
		}
	})
	if err := b.Disconnect(hb); err != nil {
		t.Fatal(err)
	}
	b.poll(t)
	if i := slices.IndexFunc(b.sources, func(peer uint32) bool { return peer != 0 }); i >= 0 {
		t.Errorf("address %d leads to a peer that has ended", i)
	}
	immediates(t, a, ha, 1, 2, 3) // a has not been polled: it knows of nothing
	ha2, addrA, err := a.Offer()
	if err != nil {
		t.Fatal(err)
	}
	hb2, _, err := b.Offer()
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Connect(hb2, addrA, false); err != nil {
		t.Fatal(err)
	}
	p := b.peer(hb2)
	p.spent, p.hello = true, hello{handle: ha2, secret: p.remote.secret} // the hello is read, the immediates are behind it
	b.admit()
	if p.phase != welcomed {
		t.Fatalf("phase %d after the hello", p.phase)
	}
	for range 2000 {
		b.poll(t)
	}
	if c, ok := b.has(hb2, provider.KindImm); ok || b.Stats().Unknown != 3 {
		t.Errorf("an immediate of the old connection is the new one's: %+v; unknown %d, want 3", c, b.Stats().Unknown)
	}
}

func TestBySourceUnknown(t *testing.T) {
	a, b := openBySource(t), openBySource(t)
	_, hb := connected(t, a, b)
	before, e := b.Stats().Unknown, entry{flags: flagRemoteData, data: uint64(hb) << 32} // the upper half means nothing
	for k, src := range []uint64{addrUnspec, uint64(len(b.sources)), maxSources} {
		b.from[0] = src
		b.entry(&e, 0)
		if got := b.Stats().Unknown; got != before+uint64(k)+1 || b.out.len() > 0 {
			t.Errorf("an immediate of source %#x: unknown %d, completions %d", src, got, b.out.len())
		}
	}
	if err := b.sources.fit(maxSources); !errors.Is(err, provider.ErrUnsupported) {
		t.Errorf("an address that is no index: %v", err)
	}
	if n := testing.AllocsPerRun(100, func() { b.sender(&e, 0) }); n > 0 {
		t.Errorf("%v allocations to tell a source", n)
	}
}

// EFA, as libfabric 1.18 and later describe it, is listed where it tells sources.
func TestEFAIsListed(t *testing.T) {
	i := &info{}
	for k, c := range "efa" {
		s := &i.desc
		for _, name := range []*[maxName]deviceChar{&s.provider, &s.fabric} {
			name[k] = deviceChar(c)
		}
	}
	i.desc.has_nic, i.desc.data_size = 1, 4
	n := network{Options: Options{Provider: efaName}}
	if d, ok := n.describe(i); ok || !d.source {
		t.Errorf("without FI_SOURCE: listed %v, by source %v", ok, d.source)
	}
	i.desc.caps = capSource
	if d, ok := n.describe(i); !ok || !d.source {
		t.Errorf("with FI_SOURCE: listed %v, by source %v", ok, d.source)
	}
	i.desc.data_size = 0
	if _, ok := n.describe(i); ok {
		t.Error("listed without data")
	}
}

// The passive side is not up, and so writes nothing, before the active one has emptied its queue.
func TestBySourcePassiveSideWaits(t *testing.T) {
	a, b := openBySource(t), openBySource(t)
	ha, hb := handles(t, a, b)
	until(t, a, b, "the hello", func() bool { return b.peer(hb).phase >= welcomed })
	for range 2000 {
		b.poll(t)
	}
	if _, up := b.has(hb, provider.KindPeerUp); up || a.confirmed(ha) {
		t.Errorf("the passive side is up: %v; the active one, which has not been polled, has confirmed: %v", up, a.confirmed(ha))
	}
	until(t, a, b, "both sides are up", func() bool { return bothUp(a, b, ha, hb) })
}

// confirmed reports whether the address of h leads to it.
func (e *end) confirmed(h provider.Peer) bool {
	return e.sources[e.peer(h).data.addr] == uint32(h.Index())+1
}
