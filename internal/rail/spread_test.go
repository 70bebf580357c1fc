package rail

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/providertest"
	"github.com/hawser-project/hawser/provider/sim"
)

// ending notes the end of an operation.
type ending struct{ status []provider.Status }

func (e *ending) Complete(op *Op) { e.status = append(e.status, op.Status) }

const spreadPages, spreadSize = 4000, 16 << 10

// spread has host a write pages to b, many more than are under way at a time, and returns the bytes that went over each rail of a. With a window
// each page is an operation, and so many are under way; without, one operation has them all, and queues are as full as they can be.
func spread(t *testing.T, s story, window int) []uint64 {
	t.Helper()
	s.hosts, s.fault, s.rails = 2, -2, [2]int{len(s.nics[0]), len(s.nics[1])}
	s.ops = spreadSize/cellLen + 1 // so long is the memory
	w, err := newAdversary(s)
	if err != nil {
		t.Fatal(err)
	}
	a, b := w.host[0], w.host[1]
	end := &ending{}
	dst := &Remote{Peer: a.peers[1], Tag: &job{}}
	w.jobs = []*job{{w: w, to: 1, count: spreadPages, Op: Op{HasImm: true, Imm: 5}}} // so many may come
	parts, ops := spreadPages, 1
	if window > 0 {
		parts, ops = 1, spreadPages
	}
	submitted := 0
	for len(end.status) < ops && w.wrong == "" {
		for ; submitted < ops && submitted-len(end.status) < max(window, 1); submitted++ {
			op := &Op{
				Kind: Pages, Peer: a.peers[1], Owner: end, Src: a.srcMR, Dst: dst, Len: spreadSize, Parts: parts,
				SrcIdx: make([]uint32, parts), DstIdx: make([]uint32, parts), HasImm: true, Imm: 5,
			}
			if !a.g.Submit(op) {
				t.Fatal("submit refused")
			}
		}
		moved := false
		for _, h := range w.host { // workers are as fast as the network's next event
			moved = h.g.Step() > 0 || moved
		}
		moved = w.deliver() || w.f.Step() || moved
		if !moved && s.wrap == nil {
			t.Fatal("nothing moves, and the operation has not ended")
		}
	}
	w.rest()
	if w.wrong != "" || slices.ContainsFunc(end.status, func(st provider.Status) bool { return st != provider.StatusOK }) {
		t.Fatalf("ended with %v; %s", end.status, w.wrong)
	}
	if n := b.imms.Counter(5).Load(); n != spreadPages {
		t.Errorf("%d immediates of %d", n, spreadPages)
	}
	if !slices.Equal(b.dst[:spreadSize], a.want[:spreadSize]) {
		t.Error("wrong bytes arrived")
	}
	var bytes []uint64
	for i := range s.nics[0] {
		bytes = append(bytes, a.g.Info(i).TxBytes)
	}
	for _, h := range w.host {
		if err := h.g.Close(); err != nil {
			t.Error(err)
		}
	}
	return bytes
}

// bySpeed checks shares against speeds.
func bySpeed(t *testing.T, bytes, speeds []uint64) {
	t.Helper()
	const tolerance = 0.1
	var all, fast uint64
	for i := range bytes {
		all, fast = all+bytes[i], fast+speeds[i]
	}
	var shares []float64
	for i := range bytes {
		shares = append(shares, float64(bytes[i])/float64(all)/(float64(speeds[i])/float64(fast)))
	}
	t.Logf("bytes %v, shares by speed %.3f", bytes, shares)
	if slices.Min(shares) < 1-tolerance || slices.Max(shares) > 1+tolerance {
		t.Errorf("bytes %v over rails of speeds %v: shares %.3f, 1 is fair", bytes, speeds, shares)
	}
}

func speeds(nics []sim.NIC) (s []uint64) {
	for _, n := range nics {
		s = append(s, n.LinkBits)
	}
	return s
}

// Rails of simulated adapters, as many on one side as on the other or not, carry what their speed says.
func TestLoadIsSpreadBySpeed(t *testing.T) {
	four, two := sim.EFA4x100(), sim.EFA2x200()
	for _, nics := range [][]sim.NIC{four, two} {
		for i := range nics {
			nics[i].PostCost, nics[i].Latency = 0, time.Microsecond // so that nothing but its speed limits a rail
		}
	}
	uneven := slices.Clone(four[:3])
	for i := range uneven {
		// A slow rail has its queue full when there is no more for the others: a short one, so that it is little of all.
		uneven[i].LinkBits, uneven[i].PeerDepth = 50e9<<i, 32
	}
	for name, nics := range map[string][2][]sim.NIC{
		"4 to 4": {four, four}, "4 to 2": {four, two}, "4 to 1": {four, two[:1]},
		"2 to 4": {two, four}, "2 to 2": {two, two}, "2 to 1": {two, two[:1]}, "1 to 4": {four[:1], four},
		"50, 100 and 200 Gbit/s": {uneven, uneven},
	} {
		t.Run(name, func(t *testing.T) {
			for _, window := range []int{0, 16 * len(nics[0])} {
				bySpeed(t, spread(t, story{seed: 1, nics: nics}, window), speeds(nics[0]))
			}
		})
	}
}

// One write to each of many peers is spread over the rails, as many writes to one peer are.
func TestLoadIsSpreadOverPeers(t *testing.T) {
	const rails, peers = 4, 8
	nics := slices.Repeat(sim.EFA4x100()[:1], rails)
	w, err := newAdversary(story{seed: 1, hosts: 1 + peers, fault: -2, rails: [2]int{rails, rails}, ops: 2, nics: [2][]sim.NIC{nics, nics}})
	if err != nil {
		t.Fatal(err)
	}
	a, end := w.host[0], &ending{}
	for _, p := range a.peers[1:] {
		dst := &Remote{Peer: p, Tag: &job{}}
		if !a.g.Submit(&Op{Kind: Write, Peer: p, Owner: end, Src: a.srcMR, Dst: dst, Len: cellLen, Parts: 1}) {
			t.Fatal("submit refused")
		}
	}
	w.rest()
	for i := range rails {
		if n := a.g.Info(i).TxBytes; n != peers/rails*cellLen {
			t.Errorf("rail %d: %d bytes, want %d", i, n, peers/rails*cellLen)
		}
	}
	if len(end.status) != peers || slices.ContainsFunc(end.status, func(st provider.Status) bool { return st != provider.StatusOK }) {
		t.Errorf("ended with %v", end.status)
	}
	for _, h := range w.host {
		if err := h.g.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Rails that say they are equally fast and are not carry what they turn out to be able to.
func TestLoadIsSpreadByWhatRailsTurnOutToCarry(t *testing.T) {
	const unit = 64 // bytes a poll, so few that nothing else is slower
	for _, fast := range [][]uint64{{1, 1}, {1, 2, 4}, {2, 2, 2, 2}, {4, 4, 4, 1}} {
		t.Run(fmt.Sprint(fast), func(t *testing.T) {
			nics := slices.Repeat(sim.EFA4x100()[:1], len(fast))
			for i := range nics {
				nics[i].PostCost, nics[i].PeerDepth = 0, 16
			}
			limit := func(host, rail int, d provider.Domain) provider.Domain {
				if host > 0 {
					return d
				}
				return providertest.Limited(d, unit*fast[rail])
			}
			for _, window := range []int{0, 8 * len(nics)} {
				bySpeed(t, spread(t, story{seed: 1, nics: [2][]sim.NIC{nics, nics}, wrap: limit}, window), fast)
			}
		})
	}
}
