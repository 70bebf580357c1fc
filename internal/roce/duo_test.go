//go:build vm

package roce

import (
	"context"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/tcp"
	"github.com/hawser-project/hawser/provider/verbs"
)

const (
	page     = 16 << 10
	pages    = 64 // of a region
	batch    = 16 // of an operation
	immData  = 1
	peerTime = 10 * time.Second // emulated machines are slow
)

// network is a provider and the devices that the two sides of a duo open.
type network struct {
	name string
	dev  [2][]string
}

// overVerbs uses the two devices of each pair.
func overVerbs(ps ...pair) network {
	n := network{name: "verbs"}
	for side := range 2 {
		for _, p := range ps {
			n.dev[side] = append(n.dev[side], p.dev[side]+"/1")
		}
	}
	return n
}

// overTCP uses the loopback, which no cable touches.
func overTCP() network {
	return network{name: "tcp", dev: [2][]string{{"127.0.0.1"}, {"127.0.0.1"}}}
}

func options(side int, networks ...network) hawser.Options {
	o := hawser.Options{PeerTimeout: peerTime}
	for _, n := range networks {
		o.Providers = append(o.Providers, map[string]provider.Provider{"verbs": verbs.New(verbs.Options{}), "tcp": tcp.New()}[n.name])
		for _, d := range n.dev[side] {
			o.Rails = append(o.Rails, hawser.Rail{Provider: n.name, Device: d})
		}
	}
	return o
}

func open(t testing.TB, o hawser.Options) *hawser.Engine {
	t.Helper()
	e, err := hawser.Open(testContext(t), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), hang)
		defer cancel()
		if err := e.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return e
}

// duo is two engines, of which a writes to b's memory.
type duo struct {
	a, b     *hawser.Engine
	src, dst *hawser.Region
	rem      *hawser.Remote
	peer     *hawser.Peer // b, of a
	sent     uint64       // pages
}

func newDuo(t testing.TB, networks ...network) *duo {
	t.Helper()
	d := &duo{a: open(t, options(0, networks...)), b: open(t, options(1, networks...))}
	d.src, d.dst = alloc(t, d.a), alloc(t, d.b)
	var err error
	if d.rem, err = d.a.Import(testContext(t), d.dst.Descriptor(d.dst.All(), hawser.RightWrite)); err != nil {
		t.Fatal(err)
	}
	d.peer = d.rem.Peer()
	return d
}

func alloc(t testing.TB, e *hawser.Engine) *hawser.Region {
	t.Helper()
	r, err := e.Alloc(pages*page, hawser.MemOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// round rewrites all pages of the source, writes them to other places of the destination, and looks at every byte there when the
// immediates say that they have come.
func (d *duo) round(t testing.TB, seed uint64) {
	t.Helper()
	d.write(t, seed)
	d.check(t, seed)
}

// write submits a round; the transfers are waited for.
func (d *duo) write(t testing.TB, seed uint64) {
	t.Helper()
	for i := range pages {
		mark(d.src.Bytes()[i*page:][:page], seed, uint64(i))
	}
	var all []*hawser.Transfer
	for at := 0; at < pages; at += batch {
		w := hawser.WritePages{
			PageLen: page, Imm: hawser.Imm(immData),
			Src: hawser.Pages{Region: d.src, Stride: page}, Dst: hawser.RemotePages{Remote: d.rem, Stride: page},
		}
		for i := at; i < at+batch; i++ {
			w.Src.Indices = append(w.Src.Indices, uint32(i))
			w.Dst.Indices = append(w.Dst.Indices, uint32(place(i, seed)))
		}
		tr, err := d.a.WritePages(w)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, tr)
	}
	for _, tr := range all {
		if err := tr.Wait(testContext(t)); err != nil {
			t.Fatal(err)
		}
	}
	d.sent += pages
}

// check looks at the memory and the count after a round.
func (d *duo) check(t testing.TB, seed uint64) {
	t.Helper()
	if err := d.look(testContext(t), seed); err != nil {
		t.Fatal(err)
	}
}

func (d *duo) look(ctx context.Context, seed uint64) error {
	ctx, cancel := context.WithTimeout(ctx, hang)
	defer cancel()
	if err := d.b.Counter(immData).Wait(ctx, d.sent); err != nil {
		return err
	}
	if n := d.b.Counter(immData).Load(); n != d.sent {
		return fmt.Errorf("counted %d immediates, %d were sent", n, d.sent)
	}
	want := make([]byte, page)
	for i := range pages {
		mark(want, seed, uint64(i))
		if got := d.dst.Bytes()[place(i, seed)*page:][:page]; string(got) != string(want) {
			return fmt.Errorf("round %d: page %d is not as it was sent", seed, i)
		}
	}
	return nil
}

// place is where page i goes in a round.
func place(i int, seed uint64) int { return (i*5 + int(seed)) % pages }

// mark gives a page contents that differ from page to page and from round to round.
func mark(b []byte, seed, page uint64) {
	x := seed<<32 | page<<16 | 1
	for at := 0; at < len(b); at += 8 {
		x = x*6364136223846793005 + 1442695040888963407
		binary.LittleEndian.PutUint64(b[at:], x)
	}
}

// links returns the links of the path that a writes over.
func (d *duo) links() []hawser.LinkStats { return d.stats().PerLink }

func (d *duo) stats() hawser.PeerStats {
	for _, p := range d.a.Stats().Peers {
		if p.ID == d.b.ID() {
			return p
		}
	}
	return hawser.PeerStats{}
}
