package weightsim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hawser-project/hawser/internal/rail"
	"github.com/hawser-project/hawser/internal/wire"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/sim"
	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/weights/proto"
)

// world is the hosts of a push, the fabric between them, and the loop that lets them act. Everything in it belongs to the goroutine that
// calls Run.
type world struct {
	o     *Options
	f     *sim.Fabric
	start time.Duration // of the push, in the fabric's time
	hosts []*host
	awake []*host  // whose bell has rung
	due   []func() // of timers that have fired
	plan  Timeline // what follows from the plan alone
	fault error    // the first thing that should not have happened

	ctl      *control
	byName   map[string]*host
	landed   int64 // bytes of writes that have ended
	arrived  int   // immediates
	repair   RepairFunc
	notices  map[[2]int][]*wire.LinkNotice // under way, by sender and receiver
	shares   []Fault                       // that wait for their share of landed
	first    Repaired                      // the plan
	slices   map[proto.Hash]*reshard.Slice // of the plan that was made last
	encoded  int                           // bytes of one of them
	past     []*publisher                  // of epochs that have ended
	lastByte time.Duration                 // every receiver has everything
	repaired time.Duration                 // see Timeline
	resent   int64
}

// host is one engine without its goroutines: the worker's rails, with the sessions that it has. A host that publishes has pub, one that
// receives has rcv.
type host struct {
	w       *world
	index   int
	name    string
	g       *rail.Group
	rung    bool
	dead    bool
	regions []*rail.Memory     // by buffer; of a publisher, its staging comes last
	peers   map[int]*rail.Peer // sessions, by host
	live    map[int]bool       // those that are complete
	node    *node
	pub     *publisher // of the epoch that was planned last
	rcv     *receiver  // of the epoch that was granted last
}

// bell is what the fabric rings when a host may have something to do.
type bell struct{ h *host }

func (b bell) Wake()             { b.h.wake() }
func (b bell) FD() int           { return -1 }
func (b bell) Watch(int) error   { return nil }
func (b bell) Unwatch(int) error { return nil }

func (h *host) wake() {
	if !h.rung {
		h.rung = true
		h.w.awake = append(h.w.awake, h)
	}
}

// now is the time since the push began.
func (w *world) now() time.Duration { return w.f.Now() - w.start }

// after has f called after a time, between two events of the fabric.
func (w *world) after(d time.Duration, f func()) {
	w.f.After(d, func() { w.due = append(w.due, f) })
}

func (w *world) fail(format string, args ...any) {
	if w.fault == nil {
		w.fault = fmt.Errorf("weightsim: at %v: "+format, append([]any{w.now().Round(time.Microsecond)}, args...)...)
	}
}

func (w *world) check(err error) {
	if err != nil {
		w.fail("%w", err)
	}
}

// settle lets everybody act who can, without time passing.
func (w *world) settle() {
	for len(w.awake) > 0 || len(w.due) > 0 {
		due := w.due
		w.due = nil
		for _, f := range due {
			f()
		}
		awake := w.awake
		w.awake = nil
		for _, h := range awake {
			h.rung = false
			if h.g == nil {
				continue
			}
			for h.g.Step() > 0 {
				continue
			}
			if h.g.Arm() && !h.dead {
				h.wake()
			}
		}
	}
}

// play lets time pass until done. What cannot end that way is a fault of the simulation, not of what it simulates.
func (w *world) play(ctx context.Context, done func() bool) error {
	for n := 0; ; n++ {
		w.settle()
		if len(w.shares) > 0 {
			w.checkShares()
		}
		switch {
		case w.fault != nil:
			return w.fault
		case done():
			return nil
		case n%1024 == 0 && ctx.Err() != nil:
			return fmt.Errorf("weightsim: %w", context.Cause(ctx))
		case n%(1<<16) == 0:
			w.progress()
		}
		if !w.f.Step() {
			return fmt.Errorf("weightsim: nothing is left to happen at %v", w.now())
		}
	}
}

// addHost opens the NICs of a host.
func (w *world) addHost(name string, peers int) (*host, error) {
	h := &host{w: w, index: len(w.hosts), name: name, peers: make(map[int]*rail.Peer, peers), live: make(map[int]bool, peers)}
	p := w.f.Provider(name)
	devices, err := p.Devices(context.Background())
	if err != nil {
		return nil, err
	}
	var domains []provider.Domain
	for _, dev := range devices {
		d, err := p.Open(context.Background(), dev, provider.Config{Bell: bell{h}, MaxPeers: max(peers, 1)})
		if err != nil {
			return nil, err
		}
		domains = append(domains, d)
	}
	if h.g, err = rail.New(domains, h, h.wake); err != nil {
		return nil, err
	}
	w.hosts, w.byName[name] = append(w.hosts, h), h
	h.wake() // to look once, and to have its bell rung from then on
	return h, nil
}

// phantom registers a buffer that has a length and no bytes.
func (h *host) phantom(n int64, acc provider.Access) error {
	m, err := h.g.Register(provider.Memory{FD: -1, Phantom: uint64(max(n, 1))}, acc)
	if err != nil {
		return err
	}
	h.regions = append(h.regions, m)
	return nil
}

// offer begins a session over as many links as the host with more rails has: rail i of one to rail i of the other.
func (w *world) offer(a, b *host) error {
	a.peers[b.index], b.peers[a.index] = &rail.Peer{Tag: b}, &rail.Peer{Tag: a}
	p, q := a.peers[b.index], b.peers[a.index]
	for i := range max(a.g.Rails(), b.g.Rails()) {
		x, err := a.g.Offer(p, i%a.g.Rails())
		if err != nil {
			return err
		}
		y, err := b.g.Offer(q, i%b.g.Rails())
		if err != nil {
			return err
		}
		if err := errors.Join(a.g.Connect(p, i, y, false), b.g.Connect(q, i, x, true)); err != nil {
			return err
		}
	}
	return nil
}

// live says that a session is complete, so that links that fail are replaced.
func (w *world) live(a, b *host) error {
	if a.live[b.index] {
		return nil
	}
	a.live[b.index] = true
	p, q := a.peers[b.index], b.peers[a.index]
	links := max(a.g.Rails(), b.g.Rails())
	if p.Ready() != links || q.Ready() != links {
		return fmt.Errorf("%s to %s: %d and %d of %d links", a.name, b.name, p.Ready(), q.Ready(), links)
	}
	slots := make([]rail.Slot, links)
	for i := range slots {
		slots[i].Local = i % a.g.Rails()
		for k := range b.g.Rails() {
			slots[i].Remote = append(slots[i].Remote, uint16((i+k)%b.g.Rails()))
		}
	}
	a.g.Live(p, true, slots)
	b.g.Live(q, false, nil)
	return nil
}

// tick is the clock of everything that has to do with links; only pushes in which rails fail need it.
func (w *world) tick() {
	for _, h := range w.hosts {
		if !h.dead {
			h.g.Tick()
			h.wake()
		}
	}
	w.after(time.Second/rail.TicksPerSecond, w.tick)
}

// Sink of the host's group.

func (h *host) Imm(_ *rail.Peer, imm uint32) {
	if h.rcv != nil {
		h.rcv.counted(imm)
	}
}

func (h *host) Message(_ *rail.Peer, m *rail.Message) { h.g.Release(m) }

func (h *host) Link(*rail.Peer, int, bool, string) {}

// Tell carries a notice over the control connection, which keeps order.
func (h *host) Tell(p *rail.Peer, n *wire.LinkNotice) {
	to, c := p.Tag.(*host), *n
	line := [2]int{h.index, to.index}
	h.w.notices[line] = append(h.w.notices[line], &c)
	h.w.after(h.w.o.Control, func() {
		first := h.w.notices[line][0]
		h.w.notices[line] = h.w.notices[line][1:]
		if q := to.peers[h.index]; q != nil && !to.dead {
			to.g.Notice(q, first)
			to.wake()
		}
	})
}

// Keys asks the owner of a remote for the keys of links that have come up since.
func (h *host) Keys(r *rail.Remote) {
	to := r.Peer.Tag.(*host)
	h.w.after(2*h.w.o.Control, func() { h.grant(to, r) })
}

// grant gives r the keys of to's buffer for all links that there are.
func (h *host) grant(to *host, r *rail.Remote) {
	if to.dead || h.dead {
		return
	}
	k := r.Tag.(int)
	keys, err := to.g.Grant(to.regions[k], to.peers[h.index], 0, to.rcv.buffers[k])
	switch {
	case errors.Is(err, provider.ErrBusy):
		h.w.after(h.w.o.Control, func() { h.grant(to, r) })
	case err != nil:
		h.w.fail("%s grants buffer %d to %s: %w", to.name, k, h.name, err)
	default:
		h.g.SetKeys(r, keys)
		h.wake()
	}
}

func (h *host) GiveUp(p *rail.Peer, why string, _ bool) {
	to := p.Tag.(*host)
	if to.dead || h.dead {
		h.lostPeer(p)
		return
	}
	h.w.fail("%s gives the session with %s up: %s", h.name, to.name, why)
}

func (h *host) Fenced(p *rail.Peer, proved bool) { h.node.fenced(p, proved) }
func (h *host) Settle()                          {}

func (h *host) Dead(i int, err error) {
	h.w.o.note(h.w.now(), "%s: rail %d is dead: %v", h.name, i, err)
}
