package hawser

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-project/hawser/internal/rail"
	"github.com/hawser-project/hawser/provider"
)

// mock is a network that costs nothing: it accepts every write and completes it at the next look. Connections come up at once, and
// nothing arrives anywhere.
type mock struct {
	opened atomic.Pointer[mockDomain]
}

func (*mock) Name() string { return "mock" }
func (*mock) Devices(context.Context) ([]provider.Device, error) {
	return []provider.Device{{Provider: "mock", Name: "mock0", NUMA: -1}}, nil
}

func (m *mock) Open(context.Context, provider.Device, provider.Config) (provider.Domain, error) {
	m.opened.Store(&mockDomain{})
	return m.opened.Load(), nil
}

// mockDepth is Caps.PeerDepth of the mock: no batch of a benchmark waits for room.
const mockDepth = 4096

type mockDomain struct {
	ready, events []provider.Completion
	given         int // of ready
	peers         int
	keys          uint64
	hold          bool          // completions stay inside
	spent         time.Duration // in Post and Poll
}

func (d *mockDomain) Caps() provider.Caps {
	return provider.Caps{MaxMsg: 1 << 30, MaxSend: provider.MinMaxSend, PeerDepth: mockDepth, RecvDepth: 4, HeapMemory: true}
}

func (d *mockDomain) Register(provider.Memory, provider.Access) (provider.Key, error) {
	d.keys++
	return provider.Key{ID: d.keys}, nil
}
func (d *mockDomain) Deregister(provider.Key) error { return nil }
func (d *mockDomain) Grant(k provider.Key, _ provider.Peer, off, _ uint64) (provider.Key, error) {
	return provider.Key{ID: k.ID, Base: off}, nil
}

func (d *mockDomain) Offer() (provider.Peer, provider.Addr, error) {
	d.peers++
	return provider.Peer(1<<provider.PeerIndexBits | d.peers), provider.Addr("mock"), nil
}

func (d *mockDomain) Connect(p provider.Peer, _ provider.Addr, _ bool) error {
	d.events = append(d.events, provider.Completion{Kind: provider.KindPeerUp, Peer: p})
	return nil
}

func (d *mockDomain) Disconnect(p provider.Peer) error {
	d.events = append(d.events, provider.Completion{Kind: provider.KindPeerDown, Peer: p, Status: provider.StatusFlushed})
	return nil
}

func (d *mockDomain) Fence(p provider.Peer) error {
	_ = d.Disconnect(p)
	d.events = append(d.events, provider.Completion{Kind: provider.KindFenced, Peer: p})
	return nil
}

func (d *mockDomain) Post(wrs []provider.WR) (int, error) {
	start := time.Now()
	for i := range wrs {
		if wrs[i].Op != provider.OpRecv {
			d.ready = append(d.ready, provider.Completion{Kind: provider.KindWrite, Token: wrs[i].Token, Peer: wrs[i].Peer})
		}
	}
	d.spent += time.Since(start)
	return len(wrs), nil
}

func (d *mockDomain) Poll(cs []provider.Completion) (int, error) {
	start := time.Now()
	n := copy(cs, d.events)
	d.events = d.events[:copy(d.events, d.events[n:])]
	if !d.hold {
		k := copy(cs[n:], d.ready[d.given:])
		n += k
		if d.given += k; d.given == len(d.ready) {
			d.ready, d.given = d.ready[:0], 0
		}
	}
	d.spent += time.Since(start)
	return n, nil
}
func (d *mockDomain) Arm() bool    { return len(d.events) > 0 || len(d.ready) > 0 && !d.hold }
func (d *mockDomain) Close() error { return nil }

// benchPeers is the size of the batch in which experts' tokens leave one of 57 machines.
const benchPeers = 56

// mockWorld is an engine with remotes at n peers, all over mocks.
func mockWorld(tb testing.TB, n int) (*Engine, *mock, []*Remote) {
	tb.Helper()
	p := &mock{}
	o := Options{Providers: providers(p), PeerTimeout: time.Minute}
	e := openEngine(tb, o)
	var remotes []*Remote
	for range n {
		o.Providers = providers(&mock{})
		x := openEngine(tb, o)
		r, err := x.Alloc(1<<16, MemOptions{Heap: true})
		if err != nil {
			tb.Fatal(err)
		}
		rem, err := e.Import(context.Background(), r.Descriptor(r.All(), RightWrite))
		if err != nil {
			tb.Fatal(err)
		}
		remotes = append(remotes, rem)
	}
	return e, p, remotes
}

// A batch of 56 writes of 256 bytes to 56 peers, from submit to its end, in the three ways there are. The phases are measured one
// after the other on the worker's goroutine, so nothing of it is the cost of changing threads; the driver's own time is taken off.
func BenchmarkBatchOf56(b *testing.B) {
	e, p, remotes := mockWorld(b, benchPeers)
	src, err := e.Alloc(1<<20, MemOptions{Heap: true})
	if err != nil {
		b.Fatal(err)
	}
	q := e.NewQueue(mockDepth)
	scatter := Scatter{Src: src.All(), Imm: Imm(1)}
	args := Args{Imm: Imm(2)}
	for i, r := range remotes {
		scatter.Targets = append(scatter.Targets, Target{Dst: r.All(), SrcOff: uint64(i) * 256, Len: 256})
		args.Targets = append(args.Targets, TargetArgs{SrcOff: uint64(i) * 256, DstOff: 512, Len: 256})
	}
	tmpl, err := e.Prepare(scatter)
	if err != nil {
		b.Fatal(err)
	}
	same := tmpl.Args()
	for _, c := range []struct {
		name   string
		ends   int
		submit func() error
	}{
		{"template as prepared", 1, func() error { return q.Submit(tmpl, same, 0) }},
		{"template with other targets", 1, func() error { return q.Submit(tmpl, args, 0) }},
		{"scatter", 1, func() error { return q.Scatter(scatter, 0) }},
		{"56 writes", benchPeers, func() error {
			for i := range scatter.Targets {
				t := &scatter.Targets[i]
				if err := q.Write(Write{Src: src.Slice(t.SrcOff, t.Len), Dst: t.Dst, Imm: scatter.Imm}, 0); err != nil {
					return err
				}
			}
			return nil
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			err := e.worker.do(func(g *rail.Group) error {
				return phases(b, g, p.opened.Load(), q, c.ends, c.submit)
			})
			if err != nil {
				b.Fatal(err)
			}
		})
	}
}

// phases runs the benchmark on the worker. It prints medians, which hardly notice when the machine does something else, and takes off
// what looking at the clock costs.
func phases(b *testing.B, g *rail.Group, d *mockDomain, q *Queue, ends int, submit func() error) error {
	const keep = 1 << 16 // batches, more than enough for a median
	out := make([]Done, ends)
	var samples [6][]time.Duration
	for i := range samples {
		samples[i] = make([]time.Duration, 0, keep)
	}
	tick := clockCost()
	for b.Loop() {
		d.spent = 0
		t0 := time.Now()
		if err := submit(); err != nil {
			return err
		}
		t1 := time.Now()
		d.hold = true
		for len(d.ready) < benchPeers {
			g.Step()
		}
		t2 := time.Now()
		driver := d.spent
		d.hold = false
		for len(d.ready) > 0 {
			g.Step()
		}
		t3 := time.Now()
		if n := q.Poll(out); n != len(out) {
			return fmt.Errorf("%d of %d ends", n, len(out))
		}
		t4 := time.Now()
		if len(samples[0]) == keep {
			continue
		}
		for i, t := range [...]time.Duration{
			t1.Sub(t0), t2.Sub(t1) - driver - 2*tick, t3.Sub(t2) - (d.spent - driver) - 2*tick, t4.Sub(t3), d.spent - 2*tick,
			t4.Sub(t0) - d.spent - 7*tick,
		} {
			samples[i] = append(samples[i], t-tick)
		}
	}
	for i, name := range [...]string{"submit", "place", "complete", "poll", "driver", "go"} {
		slices.Sort(samples[i])
		b.ReportMetric(float64(samples[i][len(samples[i])/2]), name+"-ns/batch")
	}
	return nil
}

// clockCost is the median time of looking at the clock.
func clockCost() time.Duration {
	var took [1001]time.Duration
	for i := range took {
		start := time.Now()
		took[i] = time.Since(start)
	}
	slices.Sort(took[:])
	return took[len(took)/2]
}
