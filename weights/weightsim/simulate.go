package weightsim

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/hawser-project/hawser/internal/rail"
	"github.com/hawser-project/hawser/internal/wire"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/sim"
	"github.com/hawser-project/hawser/reshard"
)

// Simulate plays the push of sources to dests, which are the slices of one plan; see Run. repair may be nil: then no trainer may die.
func Simulate(ctx context.Context, sources, dests []*reshard.Slice, repair RepairFunc, o Options) (*Timeline, error) {
	o = o.withDefaults()
	w := &world{
		o: &o, repair: repair, byName: map[string]*host{}, notices: map[[2]int][]*wire.LinkNotice{},
		f: sim.New(sim.Config{Seed: o.Seed, Rails: o.NICs, Hosts: o.Hosts, RetryTimeout: o.RetryTimeout, Manual: true}),
	}
	w.ctl = &control{server: server{w: w}}
	defer w.close()
	if err := w.open(sources, dests); err != nil {
		return nil, fmt.Errorf("weightsim: %w", err)
	}
	if err := w.checkFaults(); err != nil {
		return nil, fmt.Errorf("weightsim: %w", err)
	}
	w.bounds()
	w.start = w.f.Now()
	w.ctl.begin()
	w.injectFaults()
	if err := w.play(ctx, func() bool { return w.ctl.done }); err != nil {
		return nil, err
	}
	return w.timeline(), nil
}

// open makes the hosts, connects those that the plan has to do with each other, and aims the publishers.
func (w *world) open(sources, dests []*reshard.Slice) error {
	rcvs := map[int]*host{}
	for _, d := range dests {
		h, err := w.addReceiver(d, len(sources))
		if err != nil {
			return err
		}
		rcvs[d.Rank] = h
	}
	for _, s := range sources {
		if err := w.addPublisher(s, rcvs); err != nil {
			return err
		}
	}
	return w.connect()
}

// destinations of a source, ascending.
func destinations(s *reshard.Slice) []int {
	to := map[int]bool{}
	for i := range s.Tasks {
		for k := range s.Tasks[i].Runs {
			to[s.Tasks[i].Runs[k].Peer] = true
		}
	}
	return slices.Sorted(maps.Keys(to))
}

func (w *world) addReceiver(s *reshard.Slice, peers int) (*host, error) {
	h, err := w.addHost(fmt.Sprintf("infer-%d", s.Rank), peers)
	if err != nil {
		return nil, err
	}
	h.rcv = newReceiver(h, s, w.o)
	w.ctl.rcvs = append(w.ctl.rcvs, h.rcv)
	for _, n := range s.Buffers {
		if err := h.phantom(n, provider.AccessRemoteWrite); err != nil {
			return nil, err
		}
	}
	return h, nil
}

// stagingSpace is the staging memory of every publisher. It has no bytes, and the arena decides how much of it is used.
const stagingSpace = 1 << 40

func (w *world) addPublisher(s *reshard.Slice, rcvs map[int]*host) error {
	h, err := w.addHost(fmt.Sprintf("train-%d", s.Rank), len(rcvs))
	if err != nil {
		return err
	}
	h.pub = newPublisher(h, s, 0, w.o)
	w.ctl.pubs = append(w.ctl.pubs, h.pub)
	for _, n := range append(slices.Clone(s.Buffers), stagingSpace) {
		if err := h.phantom(n, 0); err != nil {
			return err
		}
	}
	for _, d := range destinations(s) {
		r := rcvs[d]
		if r == nil {
			return fmt.Errorf("%s writes to rank %d, of which there is no slice", h.name, d)
		}
		h.pub.byRank[d] = len(h.pub.dests)
		h.pub.dests = append(h.pub.dests, &destination{h: r})
		if err := w.offer(h, r); err != nil {
			return err
		}
	}
	return nil
}

// connect waits until all sessions are there, and has receivers grant what publishers will write to.
func (w *world) connect() error {
	for w.settle(); w.f.Step(); w.settle() {
		if w.fault != nil {
			return w.fault
		}
	}
	return w.aim()
}

// aim has receivers grant what publishers will write to, and publishers make their windows. All sessions are there.
func (w *world) aim() error {
	for _, p := range w.ctl.pubs {
		for _, d := range p.dests {
			if err := w.live(p.h, d.h); err != nil {
				return err
			}
			d.peer = p.h.peers[d.h.index]
			for k, n := range d.h.rcv.buffers {
				keys, err := d.h.g.Grant(d.h.regions[k], d.h.peers[p.h.index], 0, n)
				if err != nil {
					return err
				}
				r := &rail.Remote{}
				r.Init(d.peer, k, keys)
				d.remotes = append(d.remotes, r)
			}
		}
		p.aim(w.o)
	}
	return nil
}

func (w *world) close() {
	for _, h := range w.hosts {
		h.g.Close()
	}
}

func (w *world) progress() {
	if w.o.Progress == nil {
		return
	}
	w.o.Progress(w.now(), w.landed, w.plan.Bytes)
}

// bounds is what follows from the slices and the speed of the NICs.
func (w *world) bounds() {
	t := &w.plan
	for _, r := range w.ctl.rcvs {
		t.Bytes += r.bytes
		t.MaxIn = max(t.MaxIn, r.bytes)
		t.Floor = max(t.Floor, took(r.bytes*8, bits(w.o, r.h.name)))
	}
	for _, p := range w.ctl.pubs {
		n := int64(0)
		for i := range p.slice.Tasks {
			for k := range p.slice.Tasks[i].Runs {
				n += p.slice.Tasks[i].Runs[k].Len
			}
		}
		t.MaxOut = max(t.MaxOut, n)
		t.AvgOut += float64(n) / float64(len(w.ctl.pubs))
		t.Floor = max(t.Floor, took(n*8, bits(w.o, p.h.name)))
	}
}

func (w *world) timeline() *Timeline {
	t := &w.plan
	t.Total, t.LastByte, t.Stale, t.Events, t.FirstByte = w.ctl.total, w.lastByte, w.ctl.stale, w.f.Stats().Events, math.MaxInt64
	t.Repaired, t.Resent = w.repaired, w.resent
	for _, r := range w.ctl.rcvs {
		t.Receivers = append(t.Receivers, r.times)
		t.receiverAt = append(t.receiverAt, r.marks)
		t.stages = r.slice.Stages
	}
	for _, p := range append(w.past, w.ctl.pubs...) { // of an epoch that was repaired, each stands for itself
		x := p.times
		x.Peak = p.arena.Peak()
		nic := &w.o.NICs[0]
		x.Post = time.Duration(x.Writes) * (nic.PostCost + nic.DoorbellCost)
		t.Publishers = append(t.Publishers, x)
		t.publisherAt = append(t.publisherAt, p.marks)
		t.Start, t.Writes = max(t.Start, x.Start), t.Writes+x.Writes
		if x.Writes > 0 {
			t.FirstByte = min(t.FirstByte, x.First)
		}
	}
	return t
}

// bits is what the rails of a host do together, bits per second.
func bits(o *Options, host string) (n float64) {
	nics, ok := o.Hosts[host]
	if !ok {
		nics = o.NICs
	}
	for i := range nics {
		n += float64(nics[i].LinkBits)
	}
	return n
}
