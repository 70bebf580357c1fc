package hawser_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/ofi"
	"github.com/hawser-project/hawser/provider/shm"
	"github.com/hawser-project/hawser/provider/sim"
	"github.com/hawser-project/hawser/provider/tcp"
)

// hang bounds every wait of a test: it guards against hangs and asserts nothing.
const hang = time.Minute

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	t.Cleanup(cancel)
	return ctx
}

// awake counts the time in which this process runs from now on: what the machine spends on others makes a test late, not wrong.
func awake(t testing.TB) (ran func() time.Duration) {
	const tick = 10 * time.Millisecond
	var sum atomic.Int64
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(tick)
		defer ticker.Stop()
		for last := time.Now(); ; {
			select {
			case now := <-ticker.C:
				sum.Add(int64(min(now.Sub(last), 2*tick)))
				last = now
			case <-stop:
				return
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		<-ended
	})
	return func() time.Duration { return time.Duration(sum.Load()) }
}

// world makes engines that reach each other over one network.
type world struct {
	name string
	heap bool // memory from the Go heap, where the race detector sees payloads
	// options returns the options of engine i with a number of rails.
	options func(i, rails int) hawser.Options
}

// worlds runs f over every network that -worlds names.
func worlds(t *testing.T, f func(t *testing.T, w *world)) {
	for _, name := range hawser.WorldNames() {
		t.Run(name, func(t *testing.T) { f(t, newWorld(t, name)) })
	}
}

// hostWorlds are those that are not simulated.
func hostWorlds() []string {
	return slices.DeleteFunc(hawser.WorldNames(), func(name string) bool { return name == "sim" })
}

func newWorld(t testing.TB, name string) *world {
	w := &world{name: name, heap: name == "sim" || name == "tcp"}
	switch name {
	case "sim":
		seed := rand.Uint64()
		t.Logf("sim seed %d", seed)
		fabric := sim.New(sim.Config{Seed: seed, NICs: 4})
		w.options = func(i, rails int) hawser.Options {
			return railsOf(fabric.Provider(fmt.Sprintf("host%d", i)), rails, func(r int) string { return fmt.Sprintf("nic%d", r) })
		}
	case "shm":
		w.options = func(_, rails int) hawser.Options {
			return railsOf(shm.New(), rails, func(int) string { return "" })
		}
	case "efa": // four simulated adapters, as strict as real ones
		fabric := sim.New(sim.Config{Seed: rand.Uint64(), Rails: sim.EFA4x100()})
		w.options = func(i, rails int) hawser.Options {
			p := strictEFA(t, fabric.Provider(fmt.Sprintf("host%d", i)))
			return railsOf(p, rails, func(r int) string { return fmt.Sprintf("nic%d", r) })
		}
	case "efa over ofi":
		w.options = func(_, rails int) hawser.Options {
			return railsOf(strictEFA(t, ofi.New(ofi.Options{Provider: "tcp"})), rails, func(int) string { return "" })
		}
	case "efa over tcp":
		w.options = func(_, rails int) hawser.Options {
			return railsOf(strictEFA(t, tcp.New()), rails, func(r int) string { return fmt.Sprintf("127.0.0.%d", r+1) })
		}
	case "tcp":
		w.options = func(_, rails int) hawser.Options {
			return railsOf(tcp.New(), rails, func(r int) string { return fmt.Sprintf("127.0.0.%d", r+1) })
		}
	default:
		w.options = func(_, rails int) hawser.Options {
			p, devs := hawser.Network(t, name, rails)
			return railsOf(p, rails, func(r int) string { return devs[r] })
		}
		hawser.Network(t, name, 1) // here, or a test that makes engines elsewhere could not skip
	}
	return w
}

func railsOf(p provider.Provider, n int, device func(int) string) hawser.Options {
	o := hawser.Options{Providers: []provider.Provider{p}, PeerTimeout: 5 * time.Second}
	for r := range n {
		o.Rails = append(o.Rails, hawser.Rail{Provider: p.Name(), Device: device(r)})
	}
	return hawser.Flagged(o)
}

// engine opens engine i with a number of rails and closes it at the end of the test.
func (w *world) engine(t testing.TB, i, rails int) *hawser.Engine {
	t.Helper()
	return open(t, w.options(i, rails))
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

func (w *world) alloc(t testing.TB, e *hawser.Engine, size uint64) *hawser.Region {
	t.Helper()
	r, err := e.Alloc(size, hawser.MemOptions{Heap: w.heap})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// pair is two connected engines: b's region is imported by a.
type pair struct {
	a, b     *hawser.Engine
	src, dst *hawser.Region
	rem      *hawser.Remote
}

func (w *world) pair(t testing.TB, railsA, railsB int, size uint64) *pair {
	t.Helper()
	p := &pair{a: w.engine(t, 0, railsA), b: w.engine(t, 1, railsB)}
	p.src, p.dst = w.alloc(t, p.a, size), w.alloc(t, p.b, size)
	rem, err := p.a.Import(testContext(t), p.dst.Descriptor(p.dst.All(), hawser.RightWrite))
	if err != nil {
		t.Fatal(err)
	}
	p.rem = rem
	return p
}

// sync orders what the test did to b's memory before what b's worker does from now on, and the other way round. The order
// is there anyway, through the network; the race detector does not see networks.
func (p *pair) sync() { p.b.Stats() }

func wait(t testing.TB, tr *hawser.Transfer, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if err := tr.Wait(testContext(t)); err != nil {
		t.Fatal(err)
	}
}

func reach(t testing.TB, c *hawser.Counter, n uint64) {
	t.Helper()
	if err := c.Wait(testContext(t), n); err != nil {
		t.Fatal(err)
	}
}

// fill gives b contents that differ from place to place and from seed to seed.
func fill(b []byte, seed uint64) {
	rng := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), 1})
	_, _ = rng.Read(b)
}

func same(t testing.TB, what string, got, want []byte) {
	t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("%s: byte %d of %d is %#x, want %#x", what, i, len(got), got[i], want[i])
		}
	}
}

// eventually polls a condition that no event announces.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(hang); !cond(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, hang)
		}
	}
}
