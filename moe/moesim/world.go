package moesim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/internal/rail"
	"github.com/hawser-project/hawser/internal/wire"
	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/internal/exec"
	"github.com/hawser-project/hawser/moe/proto"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/sim"
)

// world is the ranks, the fabric between them, and the loop that lets them act.
type world struct {
	o     *Options
	f     *sim.Fabric
	ranks []*rank
	awake []*rank  // whose bell has rung
	due   []func() // of timers that have fired
	busy  int      // ranks that have not come to the end of the phase
	fault error    // the first thing that should not have happened
	mem   memory
}

// rank is one engine without its goroutines, one lane of a group, and a GPU.
type rank struct {
	w     *world
	index int
	cfg   *proto.Layout
	g     *rail.Group
	rung  bool
	peers []*peer // by rank; of itself nil
	areas [exec.Areas]*rail.Memory
	mem   exec.Memory
	send  []byte
	e     *exec.Exec
	b     *phantom
	in    backend.Input
	out   backend.Output
	sum   backend.Reduction
	ended func() bool // of the phase; nil: it is at its end
	at    time.Duration
	posts phasePosts
}

// phasePosts is what a rank posted in a phase.
type phasePosts struct {
	far, near  int // posts by NIC, and inside the node
	bytes, all int64
}

// peer is a rank as another one sees it.
type peer struct {
	p      *rail.Peer
	to     *rank
	local  bool
	remote [exec.Areas]*rail.Remote
	total  [proto.Kinds]uint64 // immediates that came from it
	last   [proto.Kinds]exec.Post
}

// bell is what the fabric rings when a rank may have something to do.
type bell struct{ r *rank }

func (b bell) Wake()             { b.r.wake() }
func (b bell) FD() int           { return -1 }
func (b bell) Watch(int) error   { return nil }
func (b bell) Unwatch(int) error { return nil }

func (r *rank) wake() {
	if !r.rung {
		r.rung = true
		r.w.awake = append(r.w.awake, r)
	}
}

// after has f called after a time, between two events of the fabric.
func (w *world) after(d time.Duration, f func()) {
	w.f.After(d, func() { w.due = append(w.due, f) })
}

func (w *world) fail(format string, args ...any) {
	if w.fault == nil {
		w.fault = fmt.Errorf("moesim: at %v: "+format, append([]any{w.f.Now()}, args...)...)
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
		for _, r := range awake {
			r.rung = false
			for r.g.Step() > 0 {
				continue
			}
			if r.g.Arm() {
				r.wake()
			}
		}
	}
}

// play lets time pass until done.
func (w *world) play(ctx context.Context, done func() bool) error {
	for n := 0; ; n++ {
		w.settle()
		switch {
		case w.fault != nil:
			return w.fault
		case done():
			return nil
		case n%1024 == 0 && ctx.Err() != nil:
			return fmt.Errorf("moesim: %w", context.Cause(ctx))
		}
		if !w.f.Step() {
			return fmt.Errorf("moesim: nothing is left to happen at %v", w.f.Now())
		}
	}
}

// newWorld makes all ranks and connects each with each.
func newWorld(ctx context.Context, o *Options, cfg *proto.Layout) (w *world, err error) {
	rails := o.NICs
	if o.Node > 0 {
		rails = append(append([]sim.NIC(nil), rails...), o.Local)
	}
	w = &world{o: o, f: sim.New(sim.Config{Seed: o.Seed, Rails: rails, Manual: true})}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	if err := w.mem.make(cfg); err != nil {
		return w, err
	}
	for range cfg.MaxRanks {
		if err := w.addRank(ctx, cfg); err != nil {
			return w, err
		}
	}
	for i, a := range w.ranks {
		for _, b := range w.ranks[i+1:] {
			if err := w.offer(a, b); err != nil {
				return w, err
			}
		}
	}
	if err := w.play(ctx, w.connected); err != nil {
		return w, err
	}
	for _, r := range w.ranks {
		if err := r.open(); err != nil {
			return w, err
		}
	}
	return w, nil
}

func (w *world) addRank(ctx context.Context, cfg *proto.Layout) error {
	r := &rank{w: w, index: len(w.ranks), peers: make([]*peer, cfg.MaxRanks)}
	own := *cfg
	own.Rank = r.index
	r.cfg = &own
	p := w.f.Provider(fmt.Sprint("rank-", r.index))
	devices, err := p.Devices(ctx)
	if err != nil {
		return err
	}
	var domains []provider.Domain
	for _, dev := range devices {
		d, err := p.Open(ctx, dev, provider.Config{Bell: bell{r}, MaxPeers: cfg.MaxRanks})
		if err != nil {
			return err
		}
		domains = append(domains, d)
	}
	if r.g, err = rail.New(domains, r, r.wake); err != nil {
		return err
	}
	w.ranks = append(w.ranks, r)
	places := exec.PlacesOf(r.cfg)
	for a := range exec.Areas {
		acc := provider.Access(0)
		if a == exec.Blocks || a == exec.Pool || a == exec.Results {
			acc = provider.AccessRemoteWrite
		}
		if r.areas[a], err = r.g.Register(provider.Memory{FD: -1, Phantom: uint64(max(places.Bytes(a), 1))}, acc); err != nil {
			return err
		}
	}
	if r.mem, err = w.mem.of(r.cfg); err != nil {
		return err
	}
	r.send = r.mem[exec.Send]
	r.b = newPhantom(r)
	r.e = exec.New(r.cfg, r.b, r, r.mem, exec.Options{})
	r.out.X.Shape[1] = r.cfg.MaxRecv
	r.wake() // to look once, and to have its bell rung from then on
	return nil
}

// offer begins a session: inside a node by what is for that, else rail by rail.
func (w *world) offer(a, b *rank) error {
	local := w.o.local(a.index, b.index)
	a.peers[b.index] = &peer{p: &rail.Peer{}, to: b, local: local}
	b.peers[a.index] = &peer{p: &rail.Peer{}, to: a, local: local}
	p, q := a.peers[b.index].p, b.peers[a.index].p
	p.Tag, q.Tag = a.peers[b.index], b.peers[a.index]
	from, to := 0, len(w.o.NICs)
	if local {
		from, to = to, to+1
	}
	for i := range to - from {
		x, err := a.g.Offer(p, from+i)
		if err != nil {
			return err
		}
		y, err := b.g.Offer(q, from+i)
		if err != nil {
			return err
		}
		if err := errors.Join(a.g.Connect(p, i, y, false), b.g.Connect(q, i, x, true)); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) connected() bool {
	for _, r := range w.ranks {
		for _, p := range r.peers {
			if p != nil && p.p.Ready() < 1 || p != nil && !p.local && p.p.Ready() < len(w.o.NICs) {
				return false
			}
		}
	}
	return true
}

// open grants what peers write to, and begins the view.
func (r *rank) open() error {
	places := exec.PlacesOf(r.cfg)
	for _, p := range r.peers {
		if p == nil {
			continue
		}
		back := p.to.peers[r.index]
		for _, a := range []exec.Area{exec.Blocks, exec.Pool, exec.Results} {
			off, n := int64(0), places.Bytes(a)
			if a == exec.Blocks {
				n = places.Block()
				off = n * int64(p.to.index)
			}
			keys, err := r.g.Grant(r.areas[a], p.p, uint64(off), uint64(n))
			if err != nil {
				return err
			}
			back.remote[a] = &rail.Remote{}
			back.remote[a].Init(back.p, nil, keys)
		}
	}
	all := func(int) bool { return true }
	r.e.Lane().Open(1, 1, all)
	r.e.Open(1, all)
	r.e.Lane().Activate()
	return nil
}

func (w *world) close() error {
	var errs []error
	for _, r := range w.ranks {
		errs = append(errs, r.g.Close())
	}
	return errors.Join(append(errs, w.mem.free())...)
}

// memory is address space for the areas of all ranks. Only headers and grants are ever written, so most of it never becomes memory; what
// nobody writes to is the same for all.
type memory struct {
	maps   [][]byte
	shared exec.Memory
}

func (m *memory) make(cfg *proto.Layout) (err error) {
	for _, a := range []exec.Area{exec.Pool, exec.Results, exec.Y} {
		if m.shared[a], err = m.space(exec.PlacesOf(cfg).Bytes(a)); err != nil {
			return err
		}
	}
	return nil
}

func (m *memory) of(cfg *proto.Layout) (mem exec.Memory, err error) {
	mem = m.shared
	for _, a := range []exec.Area{exec.Blocks, exec.Send, exec.Sources} {
		if mem[a], err = m.space(exec.PlacesOf(cfg).Bytes(a)); err != nil {
			return mem, err
		}
	}
	return mem, nil
}

func (m *memory) space(n int64) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, int(max(n, 1)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("address space of %d bytes: %w", n, err)
	}
	m.maps = append(m.maps, b)
	return b, nil
}

func (m *memory) free() error {
	var errs []error
	for _, b := range m.maps {
		errs = append(errs, unix.Munmap(b))
	}
	m.maps = nil
	return errors.Join(errs...)
}

// Sink of the rank's worker.

// Imm brings what the write carried, if it is more than rows, and counts it.
func (r *rank) Imm(p *rail.Peer, imm uint32) {
	from, k := p.Tag.(*peer), proto.Kind(imm)
	x := &from.to.peers[r.index].last[k]
	if x.To == exec.Blocks {
		n := min(x.Len, int64(r.cfg.HeadBytes))
		block := exec.PlacesOf(r.cfg).Block() * int64(from.to.index)
		copy(r.mem[exec.Blocks][block+x.Dst:][:n], from.to.mem[x.From][x.Src:][:n])
	}
	from.total[k]++
	r.e.Counted(from.to.index, k, from.total[k])
	r.look()
}

// Message is none of ours.
func (r *rank) Message(_ *rail.Peer, m *rail.Message) { r.g.Release(m) }

// Link tells of connections, which all last.
func (r *rank) Link(p *rail.Peer, _ int, up bool, why string) {
	if !up {
		r.w.fail("rank %d: a link to rank %d is down: %s", r.index, p.Tag.(*peer).to.index, why)
	}
}

// Tell, Keys, GiveUp, Fenced, Settle and Dead have to do with failures.
func (r *rank) Tell(*rail.Peer, *wire.LinkNotice) {}

// Keys is not called: all links have keys.
func (r *rank) Keys(*rail.Remote) {}

// GiveUp is a fault.
func (r *rank) GiveUp(p *rail.Peer, why string, _ bool) {
	r.w.fail("rank %d gives up rank %d: %s", r.index, p.Tag.(*peer).to.index, why)
}

// Fenced is not called.
func (r *rank) Fenced(*rail.Peer, bool) {}

// Settle has nothing to do.
func (r *rank) Settle() {}

// Dead is a fault.
func (r *rank) Dead(i int, err error) { r.w.fail("rank %d: rail %d is dead: %w", r.index, i, err) }
