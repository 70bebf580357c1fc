package weightsim

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/hawser-project/hawser/internal/wire"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/sim"
	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/weights/proto"
)

// Simulate plays the push of sources to dests, which are the slices of one plan; see Run. repair may be nil: then no trainer may die.
func Simulate(ctx context.Context, sources, dests []*reshard.Slice, repair RepairFunc, o Options) (*Timeline, error) {
	o = o.withDefaults()
	w := &world{
		o: &o, repair: repair, byName: map[string]*host{}, notices: map[[2]int][]*wire.LinkNotice{},
		f: sim.New(sim.Config{Seed: o.Seed, Rails: o.NICs, Hosts: o.Hosts, RetryTimeout: o.RetryTimeout, Manual: true}),
	}
	w.first = Repaired{Sources: sources, Dests: dests}
	defer w.close()
	err := w.open(sources, dests)
	if err == nil {
		err = w.checkFaults()
	}
	if err == nil {
		_, err = newControl(w, sources, dests)
	}
	if err != nil {
		return nil, fmt.Errorf("weightsim: %w", err)
	}
	w.bounds(sources, dests)
	w.ctl.begin()
	if err := w.play(ctx, func() bool { return w.ctl.done }); err != nil {
		return nil, err
	}
	if x := &w.ctl.outcome; x.Err != nil || len(x.Out) > 0 {
		if w.ctl.repairs != nil {
			return nil, fmt.Errorf("weightsim: at %v: %w: the plan cannot be repaired: %w", w.now().Round(time.Microsecond), x.Err, w.ctl.repairs)
		}
		return nil, fmt.Errorf("weightsim: at %v: instances out %v: %w", w.now().Round(time.Microsecond), x.Out, cmp.Or(x.Err, proto.ErrAborted))
	}
	return w.timeline(), nil
}

// open makes the hosts, and connects those that the plan has to do with each other.
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
	for w.settle(); w.f.Step(); w.settle() {
		if w.fault != nil {
			return w.fault
		}
	}
	return nil
}

// partners of a source are those that it agrees with on maxima, in the order in which they come first.
func partners(s *reshard.Slice) (ranks []int) {
	seen := map[int]bool{}
	for i := range s.Amax {
		for _, x := range s.Amax[i].Peers {
			if !seen[x.Rank] {
				seen[x.Rank] = true
				ranks = append(ranks, x.Rank)
			}
		}
	}
	return ranks
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
		if err := w.offer(h, r); err != nil {
			return err
		}
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
func (w *world) bounds(sources, dests []*reshard.Slice) {
	t := &w.plan
	for _, d := range dests {
		n := int64(0)
		for i := range d.Runs {
			n += d.Runs[i].Len
		}
		t.Bytes += n
		t.MaxIn = max(t.MaxIn, n)
		t.Floor = max(t.Floor, took(n*8, bits(w.o, fmt.Sprintf("infer-%d", d.Rank))))
	}
	for _, s := range sources {
		n := int64(0)
		for i := range s.Tasks {
			for k := range s.Tasks[i].Runs {
				n += s.Tasks[i].Runs[k].Len
			}
		}
		t.MaxOut = max(t.MaxOut, n)
		t.AvgOut += float64(n) / float64(len(sources))
		t.Floor = max(t.Floor, took(n*8, bits(w.o, fmt.Sprintf("train-%d", s.Rank))))
	}
}

func (w *world) timeline() *Timeline {
	t := &w.plan
	t.Total, t.LastByte, t.Stale, t.Events, t.FirstByte = w.ctl.total, w.lastByte, w.ctl.stale, w.f.Stats().Events, math.MaxInt64
	t.Repaired, t.Resent, t.Control = w.repaired, w.resent, w.ctl.traffic
	pubs := w.past // each epoch of a publisher stands for itself
	for _, n := range w.ctl.nodes {
		switch {
		case n.r != nil:
			r := n.h.rcv
			t.Receivers = append(t.Receivers, r.times)
			t.receiverAt = append(t.receiverAt, r.marks)
			t.stages = r.slice.Stages
		case n.p != nil:
			pubs = append(pubs, n.h.pub)
		}
	}
	for _, p := range pubs {
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
