package hawser

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/internal/rail"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/shm"
	"github.com/hawser-project/hawser/provider/sim"
	"github.com/hawser-project/hawser/provider/tcp"
)

// duo is two connected engines in one process, with several rails each.
type duo struct {
	*testing.T
	a, b     *Engine
	src, dst *Region
	rem      *Remote

	ordered                  bool   // the network keeps order, so it is always known what arrived
	parts, signals, messages uint64 // sent by stream
}

// duos runs f over every network that -worlds names, or over some. The simulated one keeps order, as the others do: without order, operations with immediates of
// one class, and messages, may end as ErrUnfenced when a link fails under them.
func duos(t *testing.T, rails int, f func(d *duo), names ...string) {
	fabric := sim.New(sim.Config{NICs: rails, NIC: sim.NIC{Ordered: true}})
	if len(names) == 0 {
		names = WorldNames()
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			options := func(host string) Options {
				o := Options{PeerTimeout: 5 * time.Second}
				var p provider.Provider
				var devs []string
				if name == "sim" {
					p = fabric.Provider(host)
				} else {
					p, devs = Network(t, name, rails)
				}
				o.Providers = []provider.Provider{p}
				for r := range rails {
					dev := map[string]string{"sim": fmt.Sprintf("nic%d", r), "tcp": fmt.Sprintf("127.0.0.%d", r+1)}[name]
					if dev == "" {
						dev = devs[r]
					}
					o.Rails = append(o.Rails, Rail{Provider: p.Name(), Device: dev})
				}
				return o
			}
			d := newDuo(t, options("a"), options("b"), name == "sim" || name == "tcp")
			d.ordered = name == "shm" || name == "tcp" || name == "verbs"
			f(d)
		})
	}
}

const duoSize = 8 << 20

func newDuo(t *testing.T, a, b Options, heap bool) *duo {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	d := &duo{T: t}
	open := func(o Options) *Engine {
		e, err := Open(ctx, o)
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
	d.a, d.b = open(a), open(b)
	var err error
	if d.src, err = d.a.Alloc(duoSize, MemOptions{Heap: heap}); err != nil {
		t.Fatal(err)
	}
	if d.dst, err = d.b.Alloc(duoSize, MemOptions{Heap: heap}); err != nil {
		t.Fatal(err)
	}
	for i := range d.src.Bytes() {
		d.src.Bytes()[i] = byte(i*7) + byte(i>>12)
	}
	if d.rem, err = d.a.Import(ctx, d.dst.Descriptor(d.dst.All(), RightWrite)); err != nil {
		t.Fatal(err)
	}
	return d
}

// lose takes a link out of service on one side.
func (d *duo) lose(e, other *Engine, link int) {
	s := e.known(other.id).cur.Load()
	e.worker.group.Call(func(g *rail.Group) { g.Lose(s.links.Load(), link, "told to") })
}

// links describes the links of a to b.
func (d *duo) links() []rail.LinkInfo {
	var out []rail.LinkInfo
	s := d.a.known(d.b.id).cur.Load()
	err := d.a.worker.do(func(g *rail.Group) error {
		out = g.Links(s.links.Load())
		return nil
	})
	if err != nil {
		d.Fatal(err)
	}
	return out
}

func (d *duo) await(what string, cond func() bool) {
	d.Helper()
	for end := time.Now().Add(hang); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			d.Fatalf("%s: not in time; links: %+v", what, d.links())
		}
	}
}

// stream writes everything, in parts with immediates, again and again while harm does what it likes, and checks bytes and counts of
// each round. Messages and signals go along.
func (d *duo) stream(rounds int, harm func(round int)) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var got sync.Map
	var readers sync.WaitGroup
	rctx, stop := context.WithCancel(ctx)
	readers.Go(func() {
		for {
			m, err := d.b.Receive(rctx)
			if err != nil {
				return
			}
			if _, twice := got.LoadOrStore(string(m.Data), true); twice {
				d.Errorf("message %q arrived twice", m.Data)
			}
		}
	})
	defer readers.Wait()
	defer stop()
	p := d.a.known(d.b.id)
	const parts = 40
	for i := range rounds {
		clear(d.dst.Bytes())
		d.b.Stats() // orders the clearing before the writes, for the race detector
		tr, err := d.a.Write(Write{Src: d.src.All(), Dst: d.rem.All(), Imm: Imm(1), Parts: parts})
		if err != nil {
			d.Fatal(err)
		}
		others := []*Transfer{tr}
		for range 10 {
			sig, err := d.a.Signal(Signal{To: p, Imm: 2})
			if err != nil {
				d.Fatal(err)
			}
			d.messages++
			msg, err := d.a.Send(p, []byte(strconv.FormatUint(d.messages, 10)))
			if err != nil {
				d.Fatal(err)
			}
			others = append(others, sig, msg)
		}
		harm(i)
		for k, tr := range others {
			err := tr.Wait(ctx)
			if !d.ordered && k > 0 && k%2 == 0 && errors.Is(err, ErrUnfenced) {
				continue // a message of which nobody knows
			}
			if err != nil {
				d.Fatalf("round %d, operation %d: %v; links: %+v", i, k, err, d.links())
			}
		}
		d.parts, d.signals = d.parts+parts, d.signals+10
		if err := errors.Join(d.b.Counter(1).Wait(ctx, d.parts), d.b.Counter(2).Wait(ctx, d.signals)); err != nil {
			d.Fatal(err)
		}
		d.b.Stats()
		if !bytes.Equal(d.src.Bytes(), d.dst.Bytes()) {
			d.Fatalf("round %d: bytes differ", i)
		}
	}
	if n, m := d.b.Counter(1).Load(), d.b.Counter(2).Load(); n != d.parts || m != d.signals {
		d.Fatalf("%d and %d immediates, want %d and %d", n, m, d.parts, d.signals)
	}
	d.await("all messages", func() bool {
		n := 0
		got.Range(func(any, any) bool { n++; return true })
		return n == rounds*10 || !d.ordered
	})
}

// Connections that fail in the middle of everything, on either side, cost nothing but time: each byte is there, each immediate counted
// once, each message delivered once, and the links come back.
func TestLinksFailAndComeBack(t *testing.T) {
	duos(t, 2, func(d *duo) {
		d.stream(12, func(i int) {
			if i%2 == 0 {
				d.lose(d.a, d.b, i/2%2)
			} else {
				d.lose(d.b, d.a, i/2%2)
			}
		})
		d.await("both links are back", func() bool {
			l := d.links()
			return l[0].Ready && l[1].Ready && l[0].Epoch > 1 && l[1].Epoch > 1
		})
		if !d.a.known(d.b.id).Up() {
			d.Fatal("the session has ended")
		}
	})
}

// A single rail has nobody to fail over to: its operations wait until it is back.
func TestOnlyLinkComesBack(t *testing.T) {
	t.Parallel()
	duos(t, 1, func(d *duo) {
		d.stream(6, func(int) { d.lose(d.b, d.a, 0) })
	})
}

// Sockets that break under load, as when a middlebox forgets them.
func TestTCPRailBreaks(t *testing.T) {
	duos(t, 2, func(d *duo) {
		broken := 0
		d.stream(10, func(i int) {
			time.Sleep(time.Duration(i) * 200 * time.Microsecond) // into the middle of the transfer
			broken += breakSockets(d.T, netip.MustParseAddr(fmt.Sprintf("127.0.0.%d", 1+i%2)))
		})
		if broken == 0 {
			d.Fatal("no socket was found")
		}
	}, "tcp")
}

// breakSockets shuts down the established TCP sockets of this process that are bound to an address.
func breakSockets(t *testing.T, ip netip.Addr) int {
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, f := range fds {
		fd, _ := strconv.Atoi(f.Name())
		sa, err := unix.Getsockname(fd)
		if err != nil {
			continue
		}
		in, ok := sa.(*unix.SockaddrInet4)
		if !ok || netip.AddrFrom4(in.Addr) != ip {
			continue
		}
		if _, err := unix.Getpeername(fd); err != nil {
			continue // a listener
		}
		if unix.Shutdown(fd, unix.SHUT_RDWR) == nil {
			n++
		}
	}
	return n
}

// flaky is a provider whose domains give no addresses while it is told so.
type flaky struct {
	provider.Provider
	off atomic.Bool
}

type flakyDomain struct {
	provider.Domain
	p *flaky
}

func (p *flaky) Open(ctx context.Context, dev provider.Device, cfg provider.Config) (provider.Domain, error) {
	d, err := p.Provider.Open(ctx, dev, cfg)
	return flakyDomain{d, p}, err
}

func (d flakyDomain) Offer() (provider.Peer, provider.Addr, error) {
	if d.p.off.Load() {
		return 0, nil, fmt.Errorf("offer: %w: unplugged", provider.ErrUnavailable)
	}
	return d.Domain.Offer()
}

// When the best path fails for good, the next one takes over, and gives way again when the best is back.
func TestStandbyTakesOver(t *testing.T) {
	best := &flaky{Provider: shm.New()}
	o := Options{Providers: []provider.Provider{best, tcp.New()}, PeerTimeout: 5 * time.Second}
	d := newDuo(t, o, o, false)
	d.ordered = true
	if p := d.a.known(d.b.id).Path(); p != "shm" {
		t.Fatalf("path %s", p)
	}
	d.stream(2, func(int) {})
	best.off.Store(true)
	d.stream(3, func(i int) {
		if i == 0 {
			d.lose(d.a, d.b, 0)
		}
	})
	l := d.links()
	if len(l) != 2 || l[0].Ready || !l[1].Ready || l[1].TxBytes < 2*duoSize {
		t.Fatalf("links: %+v", l)
	}
	best.off.Store(false)
	d.await("the best link is back", func() bool { return d.links()[0].Ready })
	before := d.links()[0].TxBytes
	d.stream(1, func(int) {})
	if l := d.links(); l[0].TxBytes < before+duoSize {
		t.Fatalf("links: %+v", l)
	}
}

// A path works when one of its links does. The other one joins when it can.
func TestPathWithOneWorkingLink(t *testing.T) {
	t.Parallel()
	fabric := sim.New(sim.Config{NICs: 2})
	fabric.Cut("a/nic1", "b/nic1")
	options := func(host string) Options {
		p := fabric.Provider(host)
		return Options{Providers: []provider.Provider{p}, Rails: []Rail{{p.Name(), "nic0"}, {p.Name(), "nic1"}}, PeerTimeout: 5 * time.Second}
	}
	d := newDuo(t, options("a"), options("b"), true)
	if l := d.links(); !l[0].Ready || l[1].Ready {
		t.Fatalf("links: %+v", l)
	}
	for _, p := range []*Peer{d.a.known(d.b.id), d.b.known(d.a.id)} {
		s := p.cur.Load()
		s.mu.Lock()
		if s.told != 1 { // of link 1 nothing was known when the session was up
			t.Errorf("the session has waited for a link that leads nowhere: %b", s.told)
		}
		s.mu.Unlock()
	}
	d.stream(2, func(int) {})
	fabric.Heal("a/nic1", "b/nic1")
	d.await("both links are up", func() bool { l := d.links(); return l[0].Ready && l[1].Ready })
	d.stream(2, func(int) {})
}
