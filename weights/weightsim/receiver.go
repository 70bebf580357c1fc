package weightsim

import (
	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/weights/proto"
)

// receiver counts what arrives at one inference rank in one epoch, stage by stage, as weights.Receiver does with its counters.
type receiver struct {
	h       *host
	key     proto.Key
	epoch   uint32
	slice   *reshard.Slice
	buffers []uint64 // lengths
	expect  []int    // runs by stage
	left    []int    // of these, to come
	owing   []int    // publishers by stage that have not said what they wrote
	next    int      // stage: all before are verified
	open    int      // stages that are not complete
	bytes   int64
	ready   bool

	times Receiver
	marks []marks
}

func newReceiver(h *host, s *reshard.Slice, e *proto.Epoch, o *Options) *receiver {
	r := &receiver{h: h, key: e.Key, epoch: uint32(e.Key.Number), slice: s, expect: make([]int, len(s.Stages)), owing: make([]int, len(s.Stages))}
	for _, n := range s.Buffers {
		r.buffers = append(r.buffers, uint64(max(n, 1)))
	}
	type part struct{ stage, from int }
	seen := map[part]bool{}
	for i := range s.Runs {
		x := &s.Runs[i]
		r.expect[x.Stage]++
		r.bytes += x.Len
		if at := (part{x.Stage, x.Peer}); !seen[at] {
			seen[at] = true
			r.owing[x.Stage]++
		}
	}
	r.times.Rank, r.times.Bytes = s.Rank, r.bytes
	r.left = append([]int(nil), r.expect...)
	for _, n := range r.left {
		if n > 0 {
			r.open++
		}
	}
	if o.Trace {
		r.marks = make([]marks, len(s.Stages))
	}
	return r
}

// immOf is the immediate of a stage: those of different epochs differ.
func immOf(epoch uint32, stage int) uint32 { return epoch<<stageBits | uint32(stage) }

const stageBits = 16

// counted takes an immediate.
func (r *receiver) counted(imm uint32) {
	w := r.h.w
	stage, epoch := int(imm&(1<<stageBits-1)), imm>>stageBits
	if epoch != r.epoch {
		w.ctl.stale++
		return
	}
	w.arrived++
	r.left[stage]--
	if r.marks != nil {
		m := &r.marks[stage]
		if m.last = w.now(); m.first == 0 {
			m.first = m.last
		}
	}
	switch {
	case r.left[stage] < 0:
		w.fail("%s: %d writes of %s too many", r.h.name, -r.left[stage], r.slice.Stages[stage])
	case r.left[stage] > 0:
		return
	}
	if r.open--; r.open == 0 {
		r.times.Done = w.now()
		w.lastByte = max(w.lastByte, r.times.Done)
	}
	r.advance()
}

// hear takes what publishers say.
func (r *receiver) hear(sums []proto.StageSum) {
	for i := range sums {
		r.owing[sums[i].Stage]--
	}
	r.advance()
}

// advance verifies stages in their order, once their writes are counted and announced.
func (r *receiver) advance() {
	n := r.h.node
	for ; r.next < len(r.left) && r.left[r.next] == 0 && r.owing[r.next] <= 0; r.next++ {
		if stage := r.next; r.expect[stage] > 0 {
			n.later(func(now proto.Time) { n.r.Verified(now, r.key, stage) })
		}
	}
	if r.next == len(r.left) && !r.ready {
		r.ready = true
		n.later(func(now proto.Time) { n.r.Ready(now, r.key, proto.Hash{}, nil) })
	}
}
