package weightsim

import (
	"time"

	"github.com/hawser-project/hawser/reshard"
)

// receiver counts what arrives at one inference rank, stage by stage, as weights.Receiver does with its counters.
type receiver struct {
	h       *host
	slice   *reshard.Slice
	buffers []uint64 // lengths
	expect  []int    // runs by stage
	left    []int    // of these, to come
	open    int      // stages that are not complete
	bytes   int64
	full    func() // every stage is complete

	times Receiver
	marks []marks
}

func newReceiver(h *host, s *reshard.Slice, o *Options) *receiver {
	r := &receiver{h: h, slice: s, expect: make([]int, len(s.Stages))}
	for _, n := range s.Buffers {
		r.buffers = append(r.buffers, uint64(max(n, 1)))
	}
	for i := range s.Runs {
		r.expect[s.Runs[i].Stage]++
		r.bytes += s.Runs[i].Len
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

// epochs are told apart by the immediates that receivers hand out: here by the bits above the stage.
const stageBits = 16

// counted takes an immediate.
func (r *receiver) counted(_ *host, imm uint32) {
	w := r.h.w
	stage, epoch := int(imm&(1<<stageBits-1)), imm>>stageBits
	if epoch != w.ctl.epoch {
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
		r.full()
	}
}

// complete reports whether a stage has everything.
func (r *receiver) complete(stage int) bool { return r.left[stage] == 0 }

// server is the controller's one thread: it handles a message at a time.
type server struct {
	w    *world
	free time.Duration // when it is idle again
}

// work has f called when the controller has got to it.
func (s *server) work(f func()) {
	now := s.w.now()
	s.free = max(s.free, now) + s.w.o.Handling
	s.w.after(s.free-now, f)
}

// tell sends a message to a member, where f handles it.
func (s *server) tell(h *host, f func()) {
	s.work(func() {
		s.w.after(s.w.o.Control, func() {
			if !h.dead {
				f()
			}
		})
	})
}

// hear has a member send a message, which f handles on the controller.
func (s *server) hear(h *host, f func()) {
	s.w.after(s.w.o.Control, func() {
		if !h.dead {
			s.work(f)
		}
	})
}
