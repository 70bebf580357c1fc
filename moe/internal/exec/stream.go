package exec

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/proto"
)

// stream is a step that is received in chunks: each is some pieces that arrived, expert by expert.
type stream struct {
	pieces int      // of a source at most
	at     []uint32 // [rank][piece]: slot in Y of the results of a piece

	own, ownEnd int // records that never travel: those that are in no chunk yet
	list        []part
	counts      []uint32 // of a piece that is looked at
	asked       bool     // a chunk is wanted, or is being made
	ready       bool     // it is there
	half        uint8    // of Y, for its results
	combining   bool
}

// part is a piece of a chunk. The own records have no piece.
type part struct {
	arrival
	first, n int // records of the source
}

func (s *stream) init(cfg *proto.Layout) {
	s.pieces = cfg.Pieces(cfg.Records())
	s.at = make([]uint32, cfg.MaxRanks*s.pieces)
	s.list = make([]part, 0, cap(s.list)+cfg.MaxRanks*(1+proto.Window)+1)
	s.counts = make([]uint32, cfg.Local)
}

func (s *stream) reset() {
	*s = stream{pieces: s.pieces, at: s.at, list: s.list[:0], counts: s.counts}
}

func (s *stream) begin(e *Exec) { s.ownEnd = int(e.b.Plan().Records[e.cfg.Rank]) }

func (s *stream) index(rank int, piece uint32) int { return rank*s.pieces + int(piece) }

// more: rows have arrived, or were here, that are in no chunk that was handed out.
func (s *stream) more(e *Exec) bool { return s.own < s.ownEnd || len(e.arrived) > 0 || s.asked }

// Chunk asks for the next chunk of a streamed step, whose rows are in the Output then; Counts and Offsets are the chunk's. It says
// whether it is there. If not, it is asked again after the next event, unless the step is Received, or a Limit says that not even one piece fits.
// The chunk before must be combined.
//
// hot:
func (e *Exec) Chunk() (ready bool) {
	s := &e.st
	if !s.asked && e.streamed && !e.failed {
		e.gather()
		e.Run()
	}
	return s.ready
}

// gather makes a chunk of what has arrived.
func (e *Exec) gather() {
	s := &e.st
	s.list = s.list[:0]
	clear(e.counts)
	rows := 0
	kept := e.arrived[:0]
	for _, a := range e.arrived {
		first, n := e.cfg.Piece(int(e.lane.Records(a.rank)), int(a.piece))
		if rows+n <= e.cfg.HalfRows && e.takes(a.rank, first, n) {
			s.list = append(s.list, part{a, first, n})
			rows += n
		} else {
			kept = append(kept, a)
		}
	}
	e.arrived = kept
	for n := min(s.ownEnd-s.own, e.cfg.HalfRows-rows); n > 0 && e.packed; n /= 2 {
		if e.takes(e.cfg.Rank, s.own, n) {
			s.list = append(s.list, part{arrival{rank: e.cfg.Rank}, s.own, n})
			s.own += n
			break
		}
	}
	if len(s.list) == 0 {
		return
	}
	e.limit = nil
	s.asked = true
	slices.SortFunc(s.list, func(a, b part) int { return cmp.Or(a.rank-b.rank, a.first-b.first) })
	e.copyOut()
}

// takes adds records to the counts of the chunk if they fit the Output.
func (e *Exec) takes(rank, first, n int) bool {
	copy(e.st.counts, e.counts)
	before := 0
	for x := 0; x < e.cfg.Local && n > 0; x++ {
		c := int(e.announced(rank, x))
		if skip := first - before; skip < c {
			k := min(c-skip, n)
			e.counts[x] += uint32(k)
			first, n = first+k, n-k
		}
		before += c
	}
	limit := e.roomy(e.counts)
	if limit == nil {
		return true
	}
	copy(e.counts, e.st.counts)
	e.limit = limit
	return false
}

// copyOut gives each piece its rows.
func (e *Exec) copyOut() {
	e.group()
	e.runs = e.runs[:0]
	e.reading = e.reading[:0]
	e.eachRun(func(p *part, x, row, k, skip int) {
		from := e.ownRecords()
		if p.rank == e.cfg.Rank {
			from = from[p.first*e.cfg.Dispatch:]
		} else {
			from = e.arrivedAt(p.arrival)
		}
		sd := e.cfg.Dispatch
		e.runs = append(e.runs, backend.Run{From: from[skip*sd : (skip+k)*sd], Row: row, Local: x, N: k, Src: p.rank})
	})
	for i := range e.st.list {
		if p := &e.st.list[i]; p.rank != e.cfg.Rank {
			e.reading = append(e.reading, p.arrival)
		}
	}
	e.check(e.b.Unpack(e.out.Queue, e.next(unpacking), e.runs, e.out))
}

// eachRun calls f for each run of records of a chunk's piece that are for one expert: the k records from the piece's record skip on,
// and where their rows begin.
func (e *Exec) eachRun(f func(p *part, x, row, k, skip int)) {
	for x := range e.cfg.Local {
		row := int(e.start0(x))
		for i := range e.st.list {
			p := &e.st.list[i]
			before := 0
			for y := range x {
				before += int(e.announced(p.rank, y))
			}
			lo, hi := max(p.first, before), min(p.first+p.n, before+int(e.announced(p.rank, x)))
			if lo < hi {
				f(p, x, row, hi-lo, lo-p.first)
				row += hi - lo
			}
		}
	}
}

// HalfFree: results of a chunk can be taken. It changes with Ended.
func (e *Exec) HalfFree() bool { return e.lane.HalfFree(e.st.half) && !e.st.combining }

// CombineChunk sends the results of the chunk, y being what the experts made of its rows; it is the lane's until ChunkTaken. ErrBusy: not
// HalfFree.
//
// hot:
func (e *Exec) CombineChunk(y backend.Tensor) error {
	s := &e.st
	if !s.ready || !e.HalfFree() {
		return fmt.Errorf("combine chunk of step %d: %w: there is no chunk, or no room for its results", e.lane.Step(), hawser.ErrBusy)
	}
	at := int(s.half) * e.cfg.HalfRows
	for i := range s.list {
		if p := &s.list[i]; p.rank != e.cfg.Rank {
			s.at[s.index(p.rank, p.piece)] = uint32(at)
			at += p.n
		}
	}
	e.backs = e.backs[:0]
	e.eachRun(func(p *part, x, row, k, skip int) {
		b := backend.Back{Row: row, Local: x, N: k, Own: p.rank == e.cfg.Rank}
		if b.Own {
			b.Slot = int(e.b.Plan().Base[p.rank]) + p.first + skip
		} else {
			b.Slot = int(s.at[s.index(p.rank, p.piece)]) + skip
		}
		e.backs = append(e.backs, b)
	})
	s.combining = true
	e.check(e.b.PackCombine(e.out.Queue, e.next(packingY), y, e.backs))
	e.Run()
	return nil
}

// ChunkTaken: the results of the chunk were taken; the next one may be asked for.
func (e *Exec) ChunkTaken() bool { return !e.st.asked }

// packed hands the results to the lane.
func (s *stream) packed(e *Exec) {
	for i := range s.list {
		if p := &s.list[i]; p.rank != e.cfg.Rank && !e.failed {
			if err := e.lane.CombinePiece(p.rank, p.piece, s.half); err != nil {
				e.check(err)
			}
		}
	}
	s.half ^= 1
	s.asked, s.ready, s.combining = false, false, false
}
