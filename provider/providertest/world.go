package providertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/hawser-project/hawser/internal/cpu"
	"github.com/hawser-project/hawser/mem"
	"github.com/hawser-project/hawser/provider"
)

const (
	// hangGuard ends a test that waits for something that never comes.
	hangGuard = time.Minute
	// idleRounds polls without a completion make the test goroutine park.
	idleRounds = 64
	// idlePark is short: a provider that loses wakes fails the wake properties, not every other.
	idlePark = time.Millisecond
	// settleRounds polls of every domain are enough for a provider to show what it should not have done.
	settleRounds = 300
	// pollBatch is the length of the slice that Poll fills.
	pollBatch = 64
)

// world is the hosts of one test. Owned by the test's goroutine, but for hosts that a test hands to another one.
type world struct {
	*testing.T
	f     Factory
	net   Network
	rng   *rand.Rand
	bell  *cpu.Parker // of all hosts that have none of their own
	hosts []*host
	spans []*mem.Span
	bells []*cpu.Parker

	guard time.Duration // of until

	name  string        // of the property
	table *expectations // nil in a child
}

// unpromised skips a property that the network does not promise, and says so in the table of expectations.
func (w *world) unpromised(reason string) {
	w.Helper()
	w.table.add(unpromised, w.name, reason)
	w.Skip("not promised: " + reason)
}

func newWorld(t *testing.T, f Factory) *world {
	w := &world{T: t, f: f, net: f.Network(t), rng: newRand(t), guard: hangGuard}
	w.bell = w.newBell()
	t.Cleanup(w.end)
	return w
}

func (w *world) newBell() *cpu.Parker {
	w.Helper()
	b, err := cpu.NewParker()
	if err != nil {
		w.Fatal(err)
	}
	w.bells = append(w.bells, b)
	return b
}

// end closes the domains first: no memory and no bell may go before the network that uses it.
func (w *world) end() {
	for _, h := range w.hosts {
		if err := h.close(); err != nil {
			w.Errorf("host %s: close: %v", h.name, err)
		}
	}
	for _, s := range w.spans {
		if err := s.Free(); err != nil {
			w.Error(err)
		}
	}
	for _, b := range w.bells {
		if err := b.Close(); err != nil {
			w.Error(err)
		}
	}
}

// open opens a domain on the named host that shares the world's bell.
func (w *world) open(name string) *host {
	w.Helper()
	return w.openWith(name, provider.Config{Bell: w.bell}, w.bell)
}

// openOwn opens a domain with a bell of its own, for another goroutine to own.
func (w *world) openOwn(name string) *host {
	w.Helper()
	b := w.newBell()
	return w.openWith(name, provider.Config{Bell: b}, b)
}

func (w *world) openWith(name string, cfg provider.Config, bell *cpu.Parker) *host {
	w.Helper()
	h, err := openHost(w.net, name, cfg, bell)
	if err != nil {
		w.Fatal(err)
	}
	h.w = w
	w.hosts = append(w.hosts, h)
	return h
}

func openHost(net Network, name string, cfg provider.Config, bell *cpu.Parker) (*host, error) {
	ctx := context.Background()
	p := net.Provider(name)
	devs, err := p.Devices(ctx)
	if err != nil {
		return nil, fmt.Errorf("devices of host %s: %w", name, err)
	}
	if len(devs) == 0 {
		return nil, fmt.Errorf("devices of host %s: none, and no error", name)
	}
	dev := devs[0]
	if net.Device != nil {
		dev = net.Device(name, devs)
	}
	dom, err := p.Open(ctx, dev, cfg)
	if err != nil {
		return nil, fmt.Errorf("open %s on host %s: %w", dev.Name, name, err)
	}
	return newHost(name, dev, dom, cfg, bell), nil
}

// pump polls every host once and reports the number of completions.
func (w *world) pump() int {
	w.Helper()
	if w.net.Pump != nil {
		w.net.Pump()
	}
	sum := 0
	for _, h := range w.hosts {
		if h.paused || h.closed {
			continue
		}
		n, err := h.step()
		if err != nil {
			w.Fatal(err)
		}
		sum += n
	}
	return sum
}

// until pumps until cond holds; a test whose condition never holds fails with what and the state of all hosts.
func (w *world) until(what string, cond func() bool) {
	w.Helper()
	w.within(w.guard, what, cond)
}

func (w *world) within(d time.Duration, what string, cond func() bool) {
	w.Helper()
	deadline := time.Now().Add(d)
	for round, idle := 1, 0; !cond(); round++ {
		if w.pump() > 0 {
			idle = 0
		} else {
			idle++
		}
		if round%idleRounds == 0 && time.Now().After(deadline) && !cond() {
			w.Fatalf("not within %v: %s\n%s", d, what, w.state())
		}
		if idle >= idleRounds {
			idle = 0
			if !w.armed() {
				w.bell.Park(idlePark)
			}
		}
	}
}

func (w *world) armed() bool {
	ready := false
	for _, h := range w.hosts {
		if !h.paused && !h.closed {
			ready = h.dom.Arm() || ready
		}
	}
	return ready
}

// settle gives the providers time to show what they should not do.
func (w *world) settle() {
	w.Helper()
	for range settleRounds {
		w.pump()
	}
	if !w.armed() {
		w.bell.Park(idlePark)
	}
	for range settleRounds {
		w.pump()
	}
}

func (w *world) state() string {
	var b strings.Builder
	for _, h := range w.hosts {
		fmt.Fprintf(&b, "host %s: %d WRs outstanding, %d immediates and %d messages received, paused %v, closed %v\n",
			h.name, len(h.out), len(h.imms), len(h.msgs), h.paused, h.closed)
		for p, st := range h.peers {
			fmt.Fprintf(&b, "  peer %#x: up %v, down %v (%v), fenced %v (%v), %d outstanding\n",
				p, st.up, st.down, st.downStatus, st.fenced, st.fenceStatus, st.out)
		}
		for _, c := range h.last() {
			fmt.Fprintf(&b, "  %s\n", show(c))
		}
	}
	return b.String()
}

// connect joins two hosts: a is active. It returns a's handle of b and b's handle of a.
func (w *world) connect(a, b *host) (pa, pb provider.Peer) {
	w.Helper()
	pa, addrA := a.offer()
	pb, addrB := b.offer()
	a.mustConnect(pa, addrB, true)
	b.mustConnect(pb, addrA, false)
	w.until(fmt.Sprintf("%s and %s see KindPeerUp", a.name, b.name), func() bool {
		for _, s := range []*peerState{a.peer(pa), b.peer(pb)} {
			if s.down {
				w.Fatalf("connect %s to %s: KindPeerDown with status %v", a.name, b.name, s.downStatus)
			}
		}
		return a.peer(pa).up && b.peer(pb).up
	})
	return pa, pb
}

// span makes memory of the factory's kind, freed after the domains are closed.
func (w *world) span(size int) *mem.Span {
	w.Helper()
	s, err := mem.New(uint64(size), w.f.Memory)
	if err != nil {
		w.Fatal(err)
	}
	w.spans = append(w.spans, s)
	return s
}

// region is registered memory of one host.
type region struct {
	h   *host
	b   []byte
	key provider.Key
}

func (w *world) region(h *host, size int, acc provider.Access) *region {
	w.Helper()
	return w.register(h, w.span(size), acc)
}

func (w *world) register(h *host, s *mem.Span, acc provider.Access) *region {
	w.Helper()
	k, err := h.dom.Register(provider.Memory{Bytes: s.Bytes(), FD: s.FD()}, acc)
	if err != nil {
		w.Fatalf("host %s: register %d bytes: %v", h.name, len(s.Bytes()), err)
	}
	return &region{h: h, b: s.Bytes(), key: k}
}

// fill puts random bytes there.
func (w *world) fill(b []byte) {
	var seed [32]byte
	for i := range seed {
		seed[i] = byte(w.rng.Uint32())
	}
	_, _ = rand.NewChaCha8(seed).Read(b) // never fails
}

// grant returns the key under which peer p of the region's owner may write to all of it.
func (w *world) grant(r *region, p provider.Peer) provider.Key {
	w.Helper()
	return w.grantRange(r, p, 0, len(r.b))
}

// grantRange is grant of the bytes [off, off+n).
func (w *world) grantRange(r *region, p provider.Peer, off, n int) provider.Key {
	w.Helper()
	var key provider.Key
	w.until(fmt.Sprintf("host %s grants", r.h.name), func() bool {
		k, err := r.h.dom.Grant(r.key, p, uint64(off), uint64(n))
		if errors.Is(err, provider.ErrBusy) {
			return false
		}
		if err != nil {
			w.Fatalf("host %s: grant: %v", r.h.name, err)
		}
		key = k
		return true
	})
	return key
}

// lane is a connection with memory on both ends and the right to write from one to the other.
type lane struct {
	w        *world
	from, to *host
	peer     provider.Peer // from's handle of to
	back     provider.Peer // to's handle of from
	src, dst *region
	key      provider.Key // of dst, for from
	whole    *region      // of which dst is the part that was granted, from off; nil: dst itself was
	off      int
}

func (w *world) lane(from, to *host, size int) *lane {
	w.Helper()
	l := &lane{w: w, from: from, to: to}
	l.peer, l.back = w.connect(from, to)
	l.src = w.region(from, size, 0)
	l.dst = w.region(to, size, provider.AccessRemoteWrite)
	w.fill(l.src.b)
	l.key = w.grant(l.dst, l.back)
	return l
}

// pair is a lane from a new host a to a new host b.
func (w *world) pair(size int) *lane {
	w.Helper()
	return w.lane(w.open("a"), w.open("b"), size)
}

// reverse is the lane in the other direction over the same connection, with memory of its own.
func (l *lane) reverse() *lane {
	l.w.Helper()
	w := l.w
	r := &lane{w: w, from: l.to, to: l.from, peer: l.back, back: l.peer}
	r.src = w.region(r.from, len(l.src.b), 0)
	r.dst = w.region(r.to, len(l.dst.b), provider.AccessRemoteWrite)
	w.fill(r.src.b)
	r.key = w.grant(r.dst, r.back)
	return r
}

// write is a WR that copies n bytes from offset so of the source to offset do of the destination.
func (l *lane) write(so, do, n int) provider.WR {
	return provider.WR{
		Op: provider.OpWrite, Peer: l.peer, Len: uint64(n),
		LocalKey: l.src.key.ID, LocalAddr: l.src.key.Base + uint64(so),
		RemoteKey: l.key.ID, RemoteAddr: l.key.Base + uint64(do),
	}
}

func (l *lane) writeImm(so, do, n int, imm uint32) provider.WR {
	wr := l.write(so, do, n)
	wr.Op, wr.Imm = provider.OpWriteImm, imm
	return wr
}

// works checks that the lane still carries a write with an immediate.
func (l *lane) works() {
	l.w.Helper()
	const imm = 0xA11600D
	n := min(100, len(l.src.b))
	before := len(l.to.imms)
	arrived := func() bool {
		for _, c := range l.to.imms[before:] {
			if c.Imm == imm && c.Peer == l.back {
				return true
			}
		}
		return false
	}
	l.w.fill(l.src.b[:n])
	tok := l.from.post(l.writeImm(0, 0, n, imm))
	l.w.until(fmt.Sprintf("a write from %s to %s and its immediate complete", l.from.name, l.to.name), func() bool {
		return l.from.isDone(tok...) && arrived()
	})
	l.from.wantStatus(provider.StatusOK, tok...)
	if string(l.dst.b[:n]) != string(l.src.b[:n]) {
		l.w.Fatal("the connection is damaged: wrong bytes arrived")
	}
}
