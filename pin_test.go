package hawser

import (
	"context"
	"testing"

	"github.com/hawser-project/hawser/internal/rail"
	"github.com/hawser-project/hawser/provider/sim"
)

// What is pinned to a rail goes over that rail, and nothing of it over another.
func TestPinnedRequestsUseTheirRail(t *testing.T) {
	f := sim.New(sim.Config{NICs: 3})
	several := func(host string) *Engine {
		p := f.Provider(host)
		o := Options{Providers: providers(p)}
		for _, nic := range []string{"nic0", "nic1", "nic2"} {
			o.Rails = append(o.Rails, Rail{Provider: p.Name(), Device: nic})
		}
		return openEngine(t, o)
	}
	a, b := several("a"), several("b")
	const size = 3 << 20 // more than one piece of a write that may use all rails
	src, err := a.Alloc(size, MemOptions{Heap: true})
	if err != nil {
		t.Fatal(err)
	}
	dst, err := b.Alloc(size, MemOptions{Heap: true})
	if err != nil {
		t.Fatal(err)
	}
	rem, err := a.Import(t.Context(), dst.Descriptor(dst.All(), RightWrite))
	if err != nil {
		t.Fatal(err)
	}
	counts := func() (out [3]uint64) {
		err := a.worker.do(func(g *rail.Group) error {
			for _, l := range g.Links(rem.sess.links.Load()) {
				out[l.Rail] += l.TxWrites
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	idx := []uint32{0, 1, 2, 3, 4, 5, 6, 7, 8}
	for i := range 3 {
		pin := OnRail(i)
		for name, r := range map[string]Request{
			"write":       Write{Src: src.All(), Dst: rem.All(), Pin: pin},
			"write pages": WritePages{PageLen: 4096, Src: Pages{Region: src, Indices: idx, Stride: 8192}, Dst: RemotePages{Remote: rem, Indices: idx, Stride: 4096}, Pin: pin},
			"scatter":     Scatter{Src: src.All(), Targets: []Target{{Dst: rem.All(), Len: size}, {Dst: rem.All(), Len: 100, Imm: Imm(1), Parts: 9}}, Pin: pin},
			"signal":      Signal{To: rem.Peer(), Imm: 1, Pin: pin},
		} {
			before := counts()
			tmpl, err := a.Prepare(r)
			if err != nil {
				t.Fatal(err)
			}
			tr, err := tmpl.Submit(tmpl.Args())
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), hang)
			err = tr.Wait(ctx)
			cancel()
			if err != nil {
				t.Fatal(err)
			}
			for k, n := range counts() {
				if used := n > before[k]; used != (k == i) {
					t.Errorf("%s on rail %d: %d writes over rail %d", name, i, n-before[k], k)
				}
			}
		}
	}
}
