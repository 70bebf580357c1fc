package sim

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hawser-project/hawser/provider"
)

const (
	// maxPeers is what the index of a handle can count.
	maxPeers = 1 << provider.PeerIndexBits
	// eventsPerPoll bounds the work of one Poll in auto mode.
	eventsPerPoll = 64
	// drainSlack covers the hops of a notice, and the sleep of whoever plays them.
	drainSlack = 10 * time.Millisecond
)

// hostProvider is one host's view of the fabric.
type hostProvider struct {
	f    *Fabric
	host string
}

func (p hostProvider) Name() string { return "sim" }

func (p hostProvider) Devices(context.Context) ([]provider.Device, error) {
	nics := p.f.cfg.nics(p.host)
	devs := make([]provider.Device, len(nics))
	for i := range devs {
		devs[i] = provider.Device{
			Provider: "sim",
			Name:     fmt.Sprintf("nic%d", i),
			Fabric:   p.f.label,
			LinkBits: nics[i].LinkBits,
			NUMA:     -1,
		}
	}
	return devs, nil
}

func (p hostProvider) Open(ctx context.Context, dev provider.Device, cfg provider.Config) (provider.Domain, error) {
	devs, _ := p.Devices(ctx)
	i := slices.IndexFunc(devs, func(d provider.Device) bool { return d.Name == dev.Name })
	if i < 0 {
		return nil, fmt.Errorf("open %s on sim host %s: %w: there are %d NICs", dev.Name, p.host, provider.ErrInvalid, len(devs))
	}
	orDefault(&cfg.MaxPeers, provider.DefaultMaxPeers)
	if cfg.Bell == nil || cfg.MaxPeers < 0 || cfg.MaxPeers > maxPeers {
		return nil, fmt.Errorf("open %s on sim host %s: %w: config needs a bell and at most %d peers", dev.Name, p.host, provider.ErrInvalid, maxPeers)
	}
	f := p.f
	f.mu.Lock()
	defer f.mu.Unlock()
	d := &domain{f: f, host: p.host, place: p.host + "/" + dev.Name, nic: &f.cfg.nics(p.host)[i], bell: cfg.Bell, slots: make([]slot, 0, 8), maxPeers: cfg.MaxPeers}
	if d.owner = f.owners[cfg.Bell]; d.owner == nil {
		d.owner = &owner{}
		f.owners[cfg.Bell] = d.owner
	}
	d.owner.domains++
	if d.port = f.ports[d.place]; d.port == nil {
		d.port = &port{}
		f.ports[d.place] = d.port
	}
	f.domains = append(f.domains, d)
	return d, nil
}

// domain is one open NIC. Guarded by the fabric's mutex; the methods of provider.Domain take it.
type domain struct {
	f           *Fabric
	host, place string // "a", "a/nic0"
	nic         *NIC
	port        *port
	owner       *owner
	bell        provider.Bell

	dead   error // Close or Kill ended it
	closed bool
	armed  bool // the owner is about to sleep

	slots    []slot
	live     int // slots in use
	maxPeers int
	regs     []*registration

	done    queue[entry] // completions, oldest first
	stray   int          // completions of WRs to handles that are not live, not yet polled
	recvs   queue[receive]
	posted  int   // receives, until their completion is polled
	waiting []*op // messages that arrived and found no receive, in no order
}

// entry is a completion on its way to the owner, and the end whose account it is on.
type entry struct {
	c   provider.Completion
	end *end
}

// receive is a posted OpRecv.
type receive struct {
	token uint64
	span  span
}

var (
	_ provider.Domain  = (*domain)(nil)
	_ provider.Revoker = (*domain)(nil)
)

func (d *domain) Caps() provider.Caps {
	n := d.nic
	return provider.Caps{
		MaxMsg: n.MaxMsg, MaxSend: provider.MinMaxSend, PeerDepth: n.PeerDepth, RecvDepth: n.RecvDepth,
		CrossHost: true, Ordered: n.Ordered, HeapMemory: true, Phantom: true, GrantRange: true, Refusals: !n.AccessEnds, AccessEnds: n.AccessEnds,
		LinkBits: n.LinkBits, Fabric: d.f.label,
		DrainBound: d.f.cfg.RetryTimeout + drainSlack,
	}
}

// fail is the error of a call, with the object that it was about.
func (d *domain) fail(call string, err error, format string, args ...any) error {
	return fmt.Errorf("sim: %s on %s: %w: %s", call, d.place, err, fmt.Sprintf(format, args...))
}

// complete queues a completion and rings if the owner sleeps.
func (d *domain) complete(e entry) {
	d.done.push(e)
	d.ring()
}

func (d *domain) ring() {
	if d.armed {
		d.armed = false
		d.bell.Wake()
	}
}

// stir rings an owner that could sleep while events for it are left, in auto mode.
func (d *domain) stir() {
	if !d.f.cfg.Manual {
		d.ring()
	}
}

func (d *domain) Arm() bool {
	f := d.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if d.dead != nil || !d.isStalled() && (d.done.len() > 0 || !f.cfg.Manual && len(f.events) > 0) {
		return true
	}
	d.armed = true
	return false
}

func (d *domain) Poll(cs []provider.Completion) (int, error) {
	f := d.f
	f.mu.Lock()
	defer f.mu.Unlock()
	d.armed = false
	if d.dead != nil {
		return 0, d.dead
	}
	if d.isStalled() {
		return 0, nil
	}
	// At least one, so that time passes for an owner that always has completions.
	for i := 0; i < eventsPerPoll && !f.cfg.Manual && (i == 0 || d.done.len() == 0); i++ {
		if !f.step() {
			break
		}
	}
	n := 0
	for ; n < len(cs) && d.done.len() > 0; n++ {
		e := d.done.pop()
		d.deliver(e)
		cs[n] = e.c
	}
	return n, d.dead
}

// deliver settles the accounts of a completion that the owner gets now.
func (d *domain) deliver(e entry) {
	switch e.c.Kind {
	case provider.KindWrite, provider.KindSend:
		if e.end != nil {
			e.end.out--
		} else {
			d.stray--
		}
	case provider.KindRecv:
		d.posted--
	case provider.KindImm, provider.KindRefused:
		e.end.unpolled--
		d.f.unstall(e.end)
	case provider.KindPeerDown:
		e.end.told = true
		d.f.settle(e.end)
	case provider.KindFenced:
		d.release(e.end)
	}
}

func (d *domain) Post(wrs []provider.WR) (int, error) {
	f := d.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if d.dead != nil {
		return 0, d.dead
	}
	if d.isStalled() {
		return 0, nil
	}
	last := provider.Peer(0)
	for i := range wrs {
		if wrs[i].Op != provider.OpRecv && wrs[i].Peer != last {
			last = wrs[i].Peer
			d.busy(d.nic.DoorbellCost)
		}
		if !d.post(&wrs[i]) {
			return i, nil
		}
	}
	return len(wrs), nil
}

// busy keeps the domain's owner busy.
func (d *domain) busy(t time.Duration) { d.owner.free = max(d.owner.free, d.f.now) + t }

// post accepts one WR, or reports that its queue is full.
func (d *domain) post(wr *provider.WR) bool {
	if wr.Op == provider.OpRecv {
		return d.postRecv(wr)
	}
	depth := d.nic.PeerDepth
	e := d.find(wr.Peer)
	if e == nil {
		if d.stray == depth {
			return false
		}
		d.stray++
		d.reject(wr, nil, d.strayStatus(wr.Peer))
		return true
	}
	if e.out == depth || e.state == gone && !e.told {
		return false // a WR after KindPeerDown is queued would complete after it
	}
	e.out++
	switch e.state {
	case up:
	case offered, connecting:
		d.reject(wr, e, provider.StatusLocal)
		return true
	default:
		d.reject(wr, e, provider.StatusFlushed)
		return true
	}
	limit := d.nic.MaxMsg
	switch wr.Op {
	case provider.OpWrite, provider.OpWriteImm:
	case provider.OpSend:
		limit = provider.MinMaxSend
	default:
		limit = 0
	}
	local, ok := d.local(wr)
	if !ok || wr.Len > limit || wr.Op < provider.OpWrite || wr.Op > provider.OpSend {
		d.reject(wr, e, provider.StatusLocal)
		return true
	}
	d.f.start(e, wr, local)
	e.other.d.stir()
	return true
}

// reject completes a WR that cannot be executed.
func (d *domain) reject(wr *provider.WR, e *end, st provider.Status) {
	kind := provider.KindWrite
	if wr.Op == provider.OpSend {
		kind = provider.KindSend
	}
	d.complete(entry{provider.Completion{Token: wr.Token, Peer: wr.Peer, Kind: kind, Status: st}, e})
}

func (d *domain) postRecv(wr *provider.WR) bool {
	if d.posted == d.nic.RecvDepth {
		return false
	}
	d.posted++
	s, ok := d.local(wr)
	if !ok {
		d.complete(entry{c: provider.Completion{Token: wr.Token, Kind: provider.KindRecv, Status: provider.StatusLocal}})
		return true
	}
	d.recvs.push(receive{wr.Token, s})
	if n := len(d.waiting); n > 0 {
		o := d.waiting[d.f.rng.IntN(n)]
		if d.nic.Ordered {
			o = d.earliest(o)
		}
		d.unwait(o)
		d.f.match(o)
	}
	return true
}

func (d *domain) Close() error {
	f := d.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	f.vanish(d, fmt.Errorf("sim: %s: %w", d.place, provider.ErrClosed), false)
	return nil
}
