package sim_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/sim"
)

// path is two devices that are connected NIC by NIC.
type path struct {
	w        *world
	rails    []sim.NIC
	from, to []*owner
	links    []*link
}

const (
	phantomBytes = 1 << 40
	postBatch    = 32  // WRs that the owner posts in one call
	window       = 200 // WRs outstanding on each NIC: more than bandwidth and latency ask for
)

// newPath connects the NICs of two hosts; those of one host have one bell, which makes them one owner.
func newPath(t *testing.T, rails []sim.NIC) *path {
	p := &path{rails: rails, w: newWorld(t, sim.Config{Seed: 1, Rails: rails, Manual: true})}
	phantom := func(*owner) provider.Memory { return provider.Memory{FD: -1, Phantom: phantomBytes} }
	for i := range rails {
		nic := fmt.Sprintf("nic%d", i)
		a, b := p.w.openBeside("a", nic, p.from), p.w.openBeside("b", nic, p.to)
		p.from, p.to = append(p.from, a), append(p.to, b)
		p.links = append(p.links, p.w.link(a, b, phantom))
	}
	p.w.drain()
	return p
}

// writes is n writes of a size, spread over the NICs in batches, and the time until the last one has completed at the writer.
func (p *path) writes(n int, size uint64) time.Duration {
	start := p.w.fab.Now()
	out, left := make([]int, len(p.links)), n
	for done := 0; ; {
		p.w.poll()
		for _, o := range p.to {
			o.got = o.got[:0]
		}
		for i, o := range p.from {
			k := o.count(provider.KindWrite, provider.StatusOK)
			o.got = o.got[:0]
			done, out[i] = done+k, out[i]-k
			// As an engine does, so that a doorbell is shared.
			if k = min(left, postBatch, max(1, n/len(p.links))); out[i]+k <= window {
				o.post(slices.Repeat([]provider.WR{p.links[i].write(0, 0, size)}, k)...)
				out[i], left = out[i]+k, left-k
			}
		}
		if done == n {
			return p.w.fab.Now() - start
		}
		if !p.w.fab.Step() {
			p.w.Fatal("nothing is left to happen")
		}
	}
}

// paged is the bandwidth, in Gbit/s, of a long stream of writes of one size.
func (p *path) paged(size uint64) float64 {
	n := 10_000 // so that the first and the last trip do not count
	if size > 8<<10 {
		n = 2500 // which take as long
	}
	return gbits(uint64(n)*size, p.writes(n, size))
}

// single is that of one write at a time, cut evenly over the NICs.
func (p *path) single(size uint64) float64 {
	const n = 20
	k := len(p.links)
	return gbits(n*size, func() (sum time.Duration) {
		for range n {
			sum += p.writes(k, size/uint64(k))
		}
		return sum
	}())
}

func gbits(bytes uint64, t time.Duration) float64 {
	return float64(bytes) * 8 / float64(t.Nanoseconds())
}

// post is how long the owner is busy with one write to each of n peers, in µs: until the last one leaves, without what NIC and
// wire add.
func postTime(t *testing.T, rails []sim.NIC, peers int) float64 {
	w := newWorld(t, sim.Config{Seed: 1, Rails: rails[:1], Manual: true})
	phantom := func(*owner) provider.Memory { return provider.Memory{FD: -1, Phantom: phantomBytes} }
	a := w.open("a", "nic0")
	var wrs []provider.WR
	var first, last *owner
	for i := range peers {
		b := w.open(fmt.Sprintf("b%d", i), "nic0")
		wrs = append(wrs, w.link(a, b, phantom).write(0, uint64(i), 8))
		if last = b; i == 0 {
			first = b
		}
	}
	w.drain()
	arrival := func(o *owner) func() bool {
		return func() bool { return o.count(provider.KindImm, provider.StatusOK) == 1 }
	}
	start := w.fab.Now()
	a.post(wrs...)
	w.until("the first write arrives", arrival(first))
	one := w.fab.Now() - start
	w.until("the last write arrives", arrival(last))
	all := w.fab.Now() - start
	// The first one alone has everything but the others' posts.
	return float64(all-one)/1000 + float64(rails[0].PostCost+rails[0].DoorbellCost)/1000
}

// TestProfiles plays the rows of the published table (Lequn Chen et al., "RDMA point-to-point communication for LLM systems") and
// compares. Rows that a profile was calibrated on must be met; the others are predictions, printed and loosely bounded.
func TestProfiles(t *testing.T) {
	const calibrated, predicted = 0.02, 0.20 // how far off a row may be
	type row struct {
		name     string
		play     func(p *path) float64
		cx7, efa float64 // published
		within   float64
	}
	rows := []row{
		{"single write, 256 KiB, Gbit/s", func(p *path) float64 { return p.single(256 << 10) }, 116, 54, calibrated},
		{"single write, 32 MiB, Gbit/s", func(p *path) float64 { return p.single(32 << 20) }, 378, 336, predicted},
		{"paged writes, 1 KiB, M op/s", func(p *path) float64 { return p.paged(1<<10) * 1000 / (8 << 10) }, 11.1, 2.1, calibrated},
		{"paged writes, 8 KiB, Gbit/s", func(p *path) float64 { return p.paged(8 << 10) }, 320, 138, predicted},
		{"paged writes, 16 KiB, Gbit/s", func(p *path) float64 { return p.paged(16 << 10) }, 367, 274, predicted},
		{"paged writes, 64 KiB, Gbit/s", func(p *path) float64 { return p.paged(64 << 10) }, 370, 364, calibrated},
	}
	for _, post := range []struct {
		peers  int
		cx7    float64
		efa    float64
		within float64
	}{{8, 1.93, 6.54, 0.40}, {24, 4.14, 13.4, predicted}, {56, 8.50, 27.9, calibrated}} { // a call has a fixed cost, which the profiles do not
		play := func(p *path) float64 { return postTime(t, p.rails, post.peers) }
		rows = append(rows, row{fmt.Sprintf("post to %d peers, us", post.peers), play, post.cx7, post.efa, post.within})
	}
	t.Logf("%-32s %25s %25s %10s %10s", "", "ConnectX7", "EFA2x200", "EFA4x100", "RoCE")
	for _, r := range rows {
		cx7, efa := r.play(newPath(t, sim.ConnectX7())), r.play(newPath(t, sim.EFA2x200()))
		old, roce := r.play(newPath(t, sim.EFA4x100())), r.play(newPath(t, sim.RoCE()))
		kind := "predicted"
		if r.within == calibrated {
			kind = "calibrated"
		}
		off := func(got, want float64) float64 { return got/want - 1 }
		t.Logf("%-32s %6.4g of %5.4g  (%+5.1f %%) %6.4g of %5.4g  (%+5.1f %%) %10.4g %10.4g  %s", r.name,
			cx7, r.cx7, 100*off(cx7, r.cx7), efa, r.efa, 100*off(efa, r.efa), old, roce, kind)
		for name, d := range map[string]float64{"ConnectX7": off(cx7, r.cx7), "EFA2x200": off(efa, r.efa)} {
			if math.Abs(d) > r.within {
				t.Errorf("%s, %s: %+.1f %%, want at most %.0f %%", r.name, name, 100*d, 100*r.within)
			}
		}
	}
}
