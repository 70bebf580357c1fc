package exec

import (
	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/proto"
)

// place decides where all rows go, once all headers are here, and lets pieces in. Rows of an expert are in the order of their sources.
func (e *Exec) place() {
	total := 0
	for x := range e.cfg.Local {
		e.counts[x] = 0
		for rank := range e.cfg.MaxRanks {
			e.counts[x] += e.incoming(rank, x)
		}
		total += int(e.counts[x])
	}
	if e.limit = e.fits(total); e.limit != nil {
		return
	}
	e.group()
	for x := range e.cfg.Local {
		at := e.start0(x)
		for rank := range e.cfg.MaxRanks {
			e.rowAt[rank*e.cfg.Local+x] = at
			at += e.incoming(rank, x)
		}
	}
	if e.lane.Receive(proto.Whole) == nil {
		e.placed, e.ownDue, e.lost = true, e.b.Plan().Records[e.cfg.Rank] > 0, false
	}
}

// fits says what is too small for the counts, of that total, or nil.
func (e *Exec) fits(total int) *LimitError {
	if total > e.cfg.MaxRecv {
		return &LimitError{"MaxRecv", total, e.cfg.MaxRecv}
	}
	return e.roomy(e.counts)
}

// roomy says what of the Output is too small for counts, or nil.
func (e *Exec) roomy(counts []uint32) *LimitError {
	rows := 0
	for _, n := range counts {
		if e.opt.Batched && int(n) > e.opt.BatchCap {
			return &LimitError{"BatchCap", int(n), e.opt.BatchCap}
		}
		rows += e.padded(n)
	}
	if have := e.out.X.Shape[1]; !e.opt.Batched && rows > have {
		return &LimitError{"rows of the output", rows, have}
	}
	return nil
}

func (e *Exec) padded(n uint32) int {
	return (int(n) + e.opt.ExpertAlign - 1) / e.opt.ExpertAlign * e.opt.ExpertAlign
}

// group makes offsets of counts.
func (e *Exec) group() {
	at := 0
	for x, n := range e.counts {
		e.offsets[x] = uint32(at)
		at += e.padded(n)
	}
	e.offsets[len(e.counts)] = uint32(at)
}

// start0 is the first row of an expert.
func (e *Exec) start0(local int) uint32 {
	if e.opt.Batched {
		return 0
	}
	return e.offsets[local]
}

// unpack copies all pieces that have arrived to their rows, and the records that never travelled.
//
// hot:
func (e *Exec) unpack() {
	e.runs = e.runs[:0]
	e.reading = append(e.reading[:0], e.arrived...)
	e.arrived = e.arrived[:0]
	if e.ownDue {
		e.ownDue = false
		own := e.cfg.Rank
		e.addRuns(own, e.ownRecords(), 0, int(e.b.Plan().Records[own]))
	}
	for _, a := range e.reading {
		first, n := e.cfg.Piece(int(e.lane.Records(a.rank)), int(a.piece))
		e.addRuns(a.rank, e.arrivedAt(a), first, n)
	}
	e.check(e.b.Unpack(e.out.Queue, e.next(unpacking), e.runs, e.out))
}

// ownRecords are those that stay here.
func (e *Exec) ownRecords() []byte {
	own := e.cfg.Rank
	return e.mem[Send][e.places.send(own, e.b.Plan().Base[own])+int64(e.cfg.HeadBytes):]
}

// arrivedAt is where the records of a piece lie.
func (e *Exec) arrivedAt(a arrival) []byte {
	if a.piece == 0 {
		return e.block(a.rank)[e.cfg.HeadBytes:]
	}
	return e.mem[Pool][e.places.chunk(a.chunk):]
}

// addRuns adds runs for n records of a source from record first on, which lie at from.
func (e *Exec) addRuns(rank int, from []byte, first, n int) {
	sd, before := e.cfg.Dispatch, 0
	for x := 0; x < e.cfg.Local && n > 0; x++ {
		c := int(e.incoming(rank, x))
		if skip := first - before; skip < c {
			k := min(c-skip, n)
			e.runs = append(e.runs, backend.Run{From: from[:k*sd], Row: int(e.rowAt[rank*e.cfg.Local+x]) + skip, Local: x, N: k, Src: rank})
			from, first, n = from[k*sd:], first+k, n-k
		}
		before += c
	}
}

// arrange ends the reception: rows move together where those of somebody who is missing had a place.
func (e *Exec) arrange() {
	e.moves = e.moves[:0]
	if e.lost {
		e.close()
	}
	e.check(e.b.Arrange(e.out.Queue, e.next(arranging), e.moves, e.counts, e.offsets, e.out))
}

func (e *Exec) close() {
	for x := range e.cfg.Local {
		e.counts[x] = 0
		for rank := range e.cfg.MaxRanks {
			e.counts[x] += e.incoming(rank, x)
		}
	}
	e.group()
	for x := range e.cfg.Local {
		at := e.start0(x)
		for rank := range e.cfg.MaxRanks {
			n, r := e.incoming(rank, x), &e.rowAt[rank*e.cfg.Local+x]
			if n > 0 && *r != at {
				e.moves = append(e.moves, backend.Move{Local: x, From: int(*r), To: int(at), N: int(n)})
			}
			*r = at
			at += n
		}
	}
}

// packY copies the results of the step to where they are sent from.
//
// hot:
func (e *Exec) packY() {
	e.backs = e.backs[:0]
	at := uint32(0)
	for rank := range e.cfg.MaxRanks {
		own := rank == e.cfg.Rank
		slot := at
		if own {
			slot = e.b.Plan().Base[rank]
		}
		e.yBase[rank] = slot
		for x := range e.cfg.Local {
			n := e.incoming(rank, x)
			if n > 0 {
				e.backs = append(e.backs, backend.Back{Row: int(e.rowAt[rank*e.cfg.Local+x]), Local: x, N: int(n), Slot: int(slot), Own: own})
			}
			slot += n
		}
		if !own {
			at = slot
		}
	}
	e.check(e.b.PackCombine(e.out.Queue, e.next(packingY), e.y, e.backs))
}
