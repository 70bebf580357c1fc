package reshard

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// NIC is what one rank's network card moves. The zero value is NIC400G.
type NIC struct {
	BytesPerSecond float64
}

// Cards of the published figures: the line rate of 400 Gbit/s, and 378 Gbit/s as measured for large writes.
var (
	NIC400G = NIC{50e9}
	NIC378G = NIC{47.25e9}
)

// Rates and times that the bounds of a push count with, beside the network's: assumptions, of no machine here.
const (
	hostToDevice = 51e9                 // bytes/s: PCIe 5 x16
	deviceRead   = 2.5e12               // bytes/s: what staging reads
	post         = time.Microsecond     // of one write
	fill         = 2 * time.Millisecond // until the first bytes are staged
	tail         = 0.04                 // of the floor: the end, when not all are busy
	commit       = time.Millisecond     // a round trip to the controller and back
)

// maxImports is how many descriptors a source may import before Stats warns.
const maxImports = 4096

// Load is bytes by rank.
type Load struct {
	ByRank      []int64
	Sum, Max    int64
	Avg         float64 // over all ranks of the side
	MaxOverAvg  float64 // 1 if nothing moves
	BusiestRank int
}

// Stats is what a plan costs. All numbers are exact but FloorMS and ExpectedMS, which count with assumed rates.
type Stats struct {
	Tensors    int   // of the destination, without aliases and derived ones
	Classes    int   // of tensors that lie alike
	Regions    int64 // of values; scales go with them
	Writes     int64 // runs, after merging
	Tasks      int64
	Staged     int64 // bytes that go through staging, once for all destinations of the same bytes
	Bytes      int64 // delivered
	Uncovered  int64 // destination bytes without a source: 0 in every plan that Compute returns
	Egress     Load
	Ingress    Load
	Grants     int   // descriptors: one for each buffer of a destination that is written
	Imports    int   // of descriptors, by all sources
	MaxImports int   // of one source
	Exchanged  int64 // bytes of maxima that sources send each other
	MaxWrites  int64 // of one source
	Read       int64 // most bytes that one source reads from its memory, each once

	Dedup      int64 // bytes that would not cross the network if one rank of each node received them for the others
	DedupMax   int64 // greatest ingress of a rank then, if the ranks of a node take turns
	FloorMS    float64
	ExpectedMS float64
	Warnings   []string
}

func newLoad(by []int64) Load {
	l := Load{ByRank: by, MaxOverAvg: 1}
	for r, b := range by {
		l.Sum += b
		if b > l.Max {
			l.Max, l.BusiestRank = b, r
		}
	}
	l.Avg = float64(l.Sum) / float64(len(by))
	if l.Sum > 0 {
		l.MaxOverAvg = float64(l.Max) / l.Avg
	}
	return l
}

// Stats lowers the whole plan, on all processors, to count what it takes.
func (p *Plan) Stats(nic NIC) Stats {
	if nic.BytesPerSecond <= 0 {
		nic = NIC400G
	}
	s := p.loads()
	p.lowered(&s, nic)
	return s
}

// loads is the part of the statistics that needs no lowering.
func (p *Plan) loads() Stats {
	s := Stats{Classes: len(p.classes), Regions: p.regions, Egress: newLoad(p.out), Ingress: newLoad(p.in)}
	s.Bytes = s.Ingress.Sum
	seen := make([]bool, len(p.dst.Tensors))
	for _, c := range p.classes {
		for _, l := range c.members {
			if !seen[l.dst] {
				seen[l.dst] = true
				s.Tensors++
			}
		}
	}
	p.dedup(&s)
	return s
}

// lowered is the other part.
func (p *Plan) lowered(s *Stats, nic NIC) {
	costs := p.costs()
	grants := map[[2]int32]bool{}
	for i := range costs {
		c := &costs[i]
		s.Writes += c.writes
		s.Tasks += c.tasks
		s.Staged += c.staged
		s.Exchanged += c.exchanged
		s.MaxWrites, s.Read = max(s.MaxWrites, c.writes), max(s.Read, c.read)
		s.Imports += len(c.grants)
		s.MaxImports = max(s.MaxImports, len(c.grants))
		for g := range c.grants {
			grants[g] = true
		}
	}
	s.Grants = len(grants)
	if s.MaxImports > maxImports {
		s.Warnings = append(s.Warnings, "a source imports more than 4096 descriptors: register whole segments of an allocator as buffers, not tensors")
	}
	s.bound(nic, costs)
}

// bound computes the times.
func (s *Stats) bound(nic NIC, costs []cost) {
	floor := max(float64(s.Ingress.Max), float64(s.Egress.Max)) / nic.BytesPerSecond
	for i := range costs {
		c := &costs[i]
		floor = max(floor, float64(c.read)/hostToDevice, float64(c.read)/deviceRead, float64(c.writes)*post.Seconds())
	}
	s.FloorMS = floor * 1e3
	s.ExpectedMS = s.FloorMS*(1+tail) + float64(fill+commit)/float64(time.Millisecond)
}

// cost is what one source does.
type cost struct {
	writes, tasks, staged, exchanged, read int64
	grants                                 map[[2]int32]bool // rank and buffer of destinations
}

// costs of all sources. Sums are the same whatever order they are made in.
func (p *Plan) costs() []cost {
	out := make([]cost, len(p.src.Buffers))
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(out)) {
		workers.Go(func() {
			for r := int(next.Add(1)) - 1; r < len(out); r = int(next.Add(1)) - 1 {
				out[r] = p.cost(r)
			}
		})
	}
	workers.Wait()
	return out
}

func (p *Plan) cost(rank int) cost {
	c := cost{grants: map[[2]int32]bool{}}
	s := p.Source(rank)
	c.tasks = int64(len(s.Tasks))
	for i := range s.Tasks {
		t := &s.Tasks[i]
		c.staged += t.Size
		c.writes += int64(len(t.Runs))
		for k := range t.Runs {
			c.grants[[2]int32{int32(t.Runs[k].Peer), int32(t.Runs[k].Buffer)}] = true
		}
	}
	for i := range s.Amax {
		for _, x := range s.Amax[i].Peers {
			for _, b := range x.Blocks {
				c.exchanged += 4 * int64(b.Len)
			}
		}
	}
	c.read = p.read(rank)
	return c
}

// read is the bytes of the cells that a source sends anything of.
func (p *Plan) read(rank int) (n int64) {
	for _, c := range p.classes {
		for s := range c.src {
			for r := range c.src[s].holders {
				if c.src[s].holders[r].rank == rank && len(c.bySrc[s]) > 0 {
					n += boxVolume(c.src[s].lo, c.src[s].hi) * c.from.Size() * int64(len(c.members))
				}
			}
		}
	}
	return n
}

// dedup counts what a node receives more than once.
func (p *Plan) dedup(s *Stats) {
	node := p.dst.Topo.Node
	if node == nil {
		s.DedupMax = s.Ingress.Max
		return
	}
	once, ranks := map[int]int64{}, map[int]int64{}
	for _, n := range node {
		ranks[n]++
	}
	count := map[int]bool{}
	for _, c := range p.classes {
		for i := range c.pairs {
			x := &c.pairs[i]
			clear(count)
			bytes := x.bytes * int64(len(c.members))
			for _, h := range c.dst[x.dst].holders {
				if n := node[h.rank]; !count[n] {
					count[n] = true
					once[n] += bytes
				} else {
					s.Dedup += bytes
				}
			}
		}
	}
	for n, b := range once {
		s.DedupMax = max(s.DedupMax, ceil(b, ranks[n]))
	}
}
