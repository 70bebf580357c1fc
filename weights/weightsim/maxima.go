package weightsim

import (
	"time"

	"github.com/hawser-project/hawser/reshard"
)

// maxima are what a publisher has to agree on with others before it can quantize a stage: blocks that straddle shards. Their computation
// and their way to the others are times here, not writes.
type maxima struct {
	stages []exchange
}

type exchange struct {
	peers    []reshard.Exchange
	computed bool
	got      int
}

func newMaxima(s *reshard.Slice) maxima {
	m := maxima{stages: make([]exchange, len(s.Stages))}
	for i := range s.Amax {
		m.stages[s.Amax[i].Stage].peers = s.Amax[i].Peers
	}
	return m
}

// needed reports whether others have to be heard before a stage can be staged.
func (m *maxima) needed(stage int) bool { return len(m.stages[stage].peers) > 0 }

// agreed reports whether they have been heard.
func (m *maxima) agreed(stage int) bool {
	x := &m.stages[stage]
	return len(x.peers) == 0 || x.computed && x.got >= len(x.peers)
}

// begin sends the partial maxima of stages of which this publisher has no tasks.
func (m *maxima) begin(p *publisher) {
	has := make([]bool, len(m.stages))
	for i := range p.slice.Tasks {
		has[p.slice.Tasks[i].Stage] = true
	}
	for s := range m.stages {
		if m.needed(s) && !has[s] {
			m.send(p, s)
		}
	}
}

// compute reads all that the publisher has of a stage, and sends the partial maxima.
func (m *maxima) compute(p *publisher, stage int) {
	d := time.Duration(0)
	for _, j := range p.copied {
		if j.task.Stage == stage {
			d += took(j.read, p.h.w.o.StageRate) + p.h.w.o.TaskCost
		}
	}
	p.busy(&p.times.Amax, stepStage, stage, d, func() { m.send(p, stage) })
}

// send sends the partial maxima to every partner, each of which has them a little later.
func (m *maxima) send(p *publisher, stage int) {
	x := &m.stages[stage]
	x.computed = true
	w := p.h.w
	nic := &w.o.NICs[0]
	for i := range x.peers {
		to := w.ctl.publisher(x.peers[i].Rank)
		n := int64(0)
		for _, b := range x.peers[i].Blocks {
			n += 4 * int64(b.Len)
		}
		w.after(time.Duration(i+1)*(nic.PostCost+nic.DoorbellCost)+nic.Latency+took(8*n, bits(w.o, p.h.name)), func() {
			if to != nil && !to.h.dead {
				to.maxima.stages[stage].got++
				to.advance()
			}
		})
	}
}
