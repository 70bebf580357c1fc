package exec

import (
	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/proto"
)

// laneOut is what the lane speaks to: it notes what is wanted, which Run does when the lane has returned.
type laneOut struct{ *Exec }

// Pack notes that S may be written.
func (o *laneOut) Pack(uint64) { o.wantPack = true }

// PackY notes that Y may be.
func (o *laneOut) PackY(uint64) { o.wantY = true }

// HeadsIn notes that all headers are here.
func (o *laneOut) HeadsIn(uint64) { o.headsIn = true }

// Arrived notes a piece.
func (o *laneOut) Arrived(rank int, piece, chunk uint32) {
	o.arrived = append(o.arrived, arrival{rank, piece, chunk})
}

// Received notes that all pieces are unpacked.
func (o *laneOut) Received(uint64) { o.received = true }

// HalfFree needs no note: whoever waits asks the lane.
func (o *laneOut) HalfFree(uint8) {}

// CombIn notes that all results are here.
func (o *laneOut) CombIn(uint64) { o.combIn = true }

// Cancel copies a cancel record.
func (o *laneOut) Cancel(rank int) []byte { return o.cancelOf(rank) }

// Missing forgets what a rank has sent, and that is not unpacked.
func (o *laneOut) Missing(_ uint64, rank int, _ proto.Code) {
	o.gone[rank/64] |= 1 << (rank % 64)
	o.lost = true
	kept := o.arrived[:0]
	for _, a := range o.arrived {
		if a.rank != rank {
			kept = append(kept, a)
		} else {
			o.dropped = append(o.dropped, a)
		}
	}
	o.arrived = kept
}

// Failed notes the end of the step.
func (o *laneOut) Failed(_ uint64, why proto.Code, blamed int) {
	o.failed, o.code, o.blamed = true, why, blamed
	o.arrived = o.arrived[:0]
}

// Run does what is possible by now. Only who has a backend that works by itself calls it, when a flag of it may have moved.
//
// hot:
func (e *Exec) Run() {
	for again := true; again; {
		again = false
		for len(e.dropped) > 0 { // the lane lends their memory to others then
			a := e.dropped[len(e.dropped)-1]
			e.dropped = e.dropped[:len(e.dropped)-1]
			e.lane.Unpacked(a.rank, a.piece)
			again = true
		}
		for k := packing; k < kinds; k++ {
			if seq := e.under[k]; seq != 0 && e.flag(k).Load() >= seq {
				e.under[k] = 0
				e.finished(k)
				again = true
			}
		}
		again = e.start() || again
	}
}

func (e *Exec) flag(k kind) *backend.Flag {
	switch k {
	case packing:
		return &e.flags.Packed
	case unpacking:
		return &e.flags.Unpacked
	case arranging:
		return &e.flags.Arranged
	case packingY:
		return &e.flags.YPacked
	default:
		return &e.flags.Reduced
	}
}

// finished tells the lane what the backend has done.
func (e *Exec) finished(k kind) {
	switch k {
	case packing:
		e.packed = true
		e.lane.Packed()
	case unpacking:
		for _, a := range e.reading {
			e.lane.Unpacked(a.rank, a.piece)
		}
		e.reading = e.reading[:0]
		if e.streamed && !e.failed {
			e.check(e.b.Arrange(e.out.Queue, e.next(arranging), nil, e.counts, e.offsets, e.out))
		}
	case arranging:
		e.arranged, e.st.ready = !e.streamed, e.streamed
	case packingY:
		if e.streamed {
			e.st.packed(e)
		} else {
			e.lane.YPacked()
		}
	case reducing:
		e.summed = true
		e.lane.Reduced()
	}
}

// start begins the next work of the backend, if there is any.
func (e *Exec) start() bool {
	if e.failed {
		return false
	}
	switch {
	case e.wantPack:
		e.wantPack = false
		p := e.b.Plan()
		h := proto.Header{View: e.view, Step: e.lane.Step(), Source: e.cfg.Rank, Flags: e.flagged, Tokens: uint32(e.in.N), RouteHash: p.RouteHash}
		if e.cfg.Meta {
			h.Flags |= proto.FlagMeta
		}
		e.check(e.b.Pack(e.in.Queue, e.next(packing), e.in, e.quantize, h))
	case e.whole && e.headsIn:
		e.whole = false
		e.place()
	case e.placed && (len(e.arrived) > 0 || e.ownDue) && e.under[unpacking] == 0:
		e.unpack()
	case e.placed && e.received && !e.arranged && e.under[arranging] == 0 && e.under[unpacking] == 0:
		e.arrange()
	case e.wantY:
		e.wantY = false
		e.packY()
	case e.combIn && e.r != nil && !e.summed && e.under[reducing] == 0:
		e.r.Gone = e.gone
		e.check(e.b.Reduce(e.r.Queue, e.next(reducing), e.r))
	default:
		return false
	}
	return true
}

// check: an error of the backend ends the step, and the lane.
func (e *Exec) check(err error) {
	if err == nil {
		return
	}
	e.err = err
	e.lane.Cancel(proto.CodeBackend)
}
