package weights

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/reshard"
)

var le = binary.LittleEndian

// inbound is the receiving half of one epoch: an immediate for each stage, and how many of them each publisher owes.
type inbound struct {
	eng      *hawser.Engine
	slice    *reshard.Slice
	memory   []*hawser.Region
	counters []*hawser.Counter // by stage; nil: nothing comes
	runs     []map[int][]reshard.Run
	peers    map[int]*hawser.Peer // publishers, by rank
}

// newInbound takes the immediates of the stages that are not kept. put gives them back.
func newInbound(eng *hawser.Engine, slice *reshard.Slice, memory []*hawser.Region, kept func(stage int) bool) (*inbound, error) {
	in := &inbound{
		eng: eng, slice: slice, memory: memory, counters: make([]*hawser.Counter, len(slice.Stages)),
		runs: runsByPeer(slice), peers: map[int]*hawser.Peer{},
	}
	for s, runs := range in.runs {
		if len(runs) == 0 || kept(s) {
			continue
		}
		c, err := eng.Imms().Take()
		if err != nil {
			in.put()
			return nil, fmt.Errorf("%s: %w", slice.Stages[s], err)
		}
		in.counters[s] = c
	}
	return in, nil
}

// runsByPeer are the runs of each stage, by source.
func runsByPeer(s *reshard.Slice) []map[int][]reshard.Run {
	all := make([]map[int][]reshard.Run, len(s.Stages))
	for i := 0; i < len(s.Runs); {
		r, k := &s.Runs[i], i
		for k < len(s.Runs) && s.Runs[k].Peer == r.Peer && s.Runs[k].Stage == r.Stage {
			k++
		}
		if all[r.Stage] == nil {
			all[r.Stage] = map[int][]reshard.Run{}
		}
		all[r.Stage][r.Peer] = s.Runs[i:k]
		i = k
	}
	return all
}

// imms are the immediates by stage, 0 where nothing comes.
func (in *inbound) imms() []uint32 {
	v := make([]uint32, len(in.counters))
	for s, c := range in.counters {
		if c != nil {
			v[s] = c.Imm()
		}
	}
	return v
}

// wait waits until all runs of a stage have arrived. The error of a wait that ends early names who owes how many.
func (in *inbound) wait(ctx context.Context, stage int) error {
	c := in.counters[stage]
	if c == nil {
		return nil
	}
	want := make(map[*hawser.Peer]uint64, len(in.runs[stage]))
	for rank, runs := range in.runs[stage] {
		want[in.peers[rank]] = uint64(len(runs))
	}
	if err := c.Expect(ctx, want); err != nil {
		return fmt.Errorf("%s: %w", in.slice.Stages[stage], err)
	}
	return in.exact(stage)
}

// exact checks that nobody has sent more than its part.
func (in *inbound) exact(stage int) error {
	c := in.counters[stage]
	if c == nil {
		return nil
	}
	total := uint64(0)
	for rank, runs := range in.runs[stage] {
		have, want := c.From(in.peers[rank]), uint64(len(runs))
		if have > want {
			return fmt.Errorf("%s: %w: publisher %d has written %d runs, its part are %d", in.slice.Stages[stage], ErrDigest, rank, have, want)
		}
		total += want
	}
	if have := c.Load(); have > total {
		return fmt.Errorf("%s: %w: %d runs have come, %d of them of nobody who was asked", in.slice.Stages[stage], ErrDigest, have, have-total)
	}
	return nil
}

// digest is the sum over what a publisher has written in a stage, from memory.
func (in *inbound) digest(stage, rank int, sum func(offset int64, data []byte) uint64) (d uint64) {
	for _, r := range in.runs[stage][rank] {
		d += sum(r.Offset, in.memory[r.Buffer].Bytes()[r.Offset:r.Offset+r.Len])
	}
	return d
}

// expected is how many runs a publisher writes in a stage.
func (in *inbound) expected(stage, rank int) int {
	if stage < 0 || stage >= len(in.runs) {
		return 0
	}
	return len(in.runs[stage][rank])
}

// owed is how many runs all publishers write in a stage.
func (in *inbound) owed(stage string) (n uint64) {
	for _, runs := range in.runs[slices.Index(in.slice.Stages, stage)] {
		n += uint64(len(runs))
	}
	return n
}

// stage is the name of a stage, which may come from elsewhere.
func (in *inbound) stage(s int) string {
	if s < 0 || s >= len(in.slice.Stages) {
		return fmt.Sprint("stage ", s)
	}
	return in.slice.Stages[s]
}

// owing are the ranks that write here.
func (in *inbound) owing() map[int]bool {
	ranks := map[int]bool{}
	for s, runs := range in.runs {
		for rank := range runs {
			if in.counters[s] != nil {
				ranks[rank] = true
			}
		}
	}
	return ranks
}

// put gives the immediates back. Every writer must be quiet or fenced.
func (in *inbound) put() {
	for i, c := range in.counters {
		if c != nil {
			_ = in.eng.Imms().Put(c) // only this type gives it back
			in.counters[i] = nil
		}
	}
}
