package hawser

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/hawser-project/hawser/internal/rail"
	"github.com/hawser-project/hawser/mem"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/providertest"
	"github.com/hawser-project/hawser/provider/sim"
)

// phantom makes a region without bytes, of any length; only simulated networks take it.
func phantom(t *testing.T, e *Engine, length uint64) *Region {
	t.Helper()
	span, err := mem.New(1, mem.Heap) // for Close to free
	if err != nil {
		t.Fatal(err)
	}
	r := &Region{e: e, len: length, span: span}
	err = e.worker.do(func(g *rail.Group) error {
		mr, err := g.Register(provider.Memory{Phantom: length}, provider.AccessRemoteWrite)
		if err == nil {
			r.mr = *mr
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	e.addRegion(r)
	return r
}

// extents notes where writes read and write, as offsets of the regions that are registered and granted.
type extents struct {
	mu         sync.Mutex
	bases      []provider.Key // at random places, so that an address tells its own; ID is the length
	spans      [][3]uint64    // source, destination, length
	immediates int
}

type extentsDomain struct {
	provider.Domain
	x *extents
}

func (d *extentsDomain) Register(m provider.Memory, acc provider.Access) (provider.Key, error) {
	k, err := d.Domain.Register(m, acc)
	d.x.mu.Lock()
	defer d.x.mu.Unlock()
	d.x.bases = append(d.x.bases, provider.Key{ID: m.Len(), Base: k.Base})
	return k, err
}

func (d *extentsDomain) Grant(k provider.Key, p provider.Peer, off, n uint64) (provider.Key, error) {
	g, err := d.Domain.Grant(k, p, off, n)
	d.x.mu.Lock()
	defer d.x.mu.Unlock()
	d.x.bases = append(d.x.bases, provider.Key{ID: n, Base: g.Base})
	return g, err
}

func (d *extentsDomain) Post(wrs []provider.WR) (int, error) {
	n, err := d.Domain.Post(wrs)
	d.x.mu.Lock()
	defer d.x.mu.Unlock()
	for _, wr := range wrs[:n] {
		if wr.Op == provider.OpWriteImm {
			d.x.immediates++
		}
		if (wr.Op == provider.OpWrite || wr.Op == provider.OpWriteImm) && wr.Len > 0 {
			d.x.spans = append(d.x.spans, [3]uint64{d.x.offset(wr.LocalAddr), d.x.offset(wr.RemoteAddr), wr.Len})
		}
	}
	return n, err
}

// offset is where an address is in its region; needs mu.
func (x *extents) offset(addr uint64) uint64 {
	for _, b := range x.bases {
		if addr-b.Base < b.ID {
			return addr - b.Base
		}
	}
	return 1 << 63
}

// Lengths and offsets went through 32 bits: of 5 GiB, 1 GiB arrived, and pages beyond 4 GiB overwrote those at the beginning.
func TestDefect18LengthsCutTo32Bits(t *testing.T) {
	const gib = 1 << 30
	f := sim.New(sim.Config{NICs: 2})
	x := &extents{}
	open := func(host string) *Engine {
		p := providertest.Decorate(f.Provider(host), func(d provider.Domain) provider.Domain { return &extentsDomain{d, x} })
		e, err := Open(t.Context(), Options{Providers: []provider.Provider{p}, Rails: []Rail{{"sim", "nic0"}, {"sim", "nic1"}}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := e.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
		return e
	}
	a, b := open("a"), open("b")
	const size = 20*gib + 5
	src, dst := phantom(t, a, size), phantom(t, b, size)
	const first = 3 // bytes before the descriptor's range
	rem, err := a.Import(t.Context(), dst.Descriptor(dst.Slice(first, size-first), RightWrite))
	if err != nil {
		t.Fatal(err)
	}
	if rem.Len() != size-first {
		t.Fatalf("a remote of %d bytes, want %d", rem.Len(), uint64(size-first))
	}
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	check := func(what string, tr *Transfer, err error, imms int, want ...[3]uint64) {
		t.Helper()
		if err == nil {
			err = tr.Wait(ctx)
		}
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		x.mu.Lock()
		defer x.mu.Unlock()
		slices.SortFunc(x.spans, func(p, q [3]uint64) int { return cmp.Compare(p[0], q[0]) })
		var got [][3]uint64 // joined
		for _, s := range x.spans {
			if n := len(got); n > 0 && got[n-1][0]+got[n-1][2] == s[0] && got[n-1][1]+got[n-1][2] == s[1] {
				got[n-1][2] += s[2]
			} else {
				got = append(got, s)
			}
		}
		if !slices.Equal(got, want) || x.immediates != imms {
			t.Fatalf("%s: %d spans, %v ..., with %d immediates, want %v with %d", what, len(got), got[:min(len(got), 4)], x.immediates, want, imms)
		}
		x.spans, x.immediates = nil, 0
	}
	const long = 5*gib + 1
	tr, err := a.Write(Write{Src: src.Slice(2, long), Dst: rem.Slice(7*gib, long)})
	check("plain write", tr, err, 0, [3]uint64{2, 7 * gib, long})
	tr, err = a.Write(Write{Src: src.Slice(6*gib, long), Dst: rem.Slice(1, long), Imm: Imm(1)})
	check("write with an immediate", tr, err, 1, [3]uint64{6 * gib, 1, long})
	tr, err = a.Write(Write{Src: src.Slice(0, 9*gib), Dst: rem.Slice(0, 9*gib), Imm: Imm(1), Parts: 2})
	check("write in parts of 4.5 GiB", tr, err, 2, [3]uint64{0, 0, 9 * gib})
	tr, err = a.WritePages(WritePages{
		PageLen: 100, Imm: Imm(1),
		Src: Pages{Region: src, Indices: []uint32{0, 4}, Stride: 4*gib + 1, Offset: 11},
		Dst: RemotePages{Remote: rem, Indices: []uint32{1 << 31, 3}, Stride: 8, Offset: 3*gib + 1},
	})
	check("pages", tr, err, 2, [3]uint64{11, 19*gib + 1, 100}, [3]uint64{16*gib + 15, 3*gib + 25, 100})
	st := a.Stats().Peers[0]
	if want := uint64(2*long + 9*gib + 200); st.TxBytes != want {
		t.Fatalf("%d bytes were sent, want %d", st.TxBytes, want)
	}
	for _, bad := range []Write{
		{Src: src.Slice(size-1, 1<<32+1), Dst: rem.All()},
		{Src: src.Slice(1<<32+size, 1), Dst: rem.All()},
		{Src: src.Slice(0, 1), Dst: rem.Slice(size-first, 1)},
	} {
		if _, err := a.Write(bad); err == nil {
			t.Fatalf("[%d, +%d) of %d bytes to [%d, +%d) was taken", bad.Src.Off, bad.Src.Len, uint64(size), bad.Dst.Off, bad.Dst.Len)
		}
	}
}

// Engines sign with secrets of their own: what one has issued is nothing to the other, also in one process.
func TestEnginesSignWithSecretsOfTheirOwn(t *testing.T) {
	f := sim.New(sim.Config{})
	a, b := simEngine(t, f, "a"), simEngine(t, f, "b")
	if a.secret == b.secret || a.secret == ([32]byte{}) {
		t.Fatal("two engines sign with one secret")
	}
}
