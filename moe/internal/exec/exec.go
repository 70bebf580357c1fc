// Package exec carries out what the protocol of one lane wants: it has a backend count, pack, unpack and sum, and a [Wire] write. It is
// single-threaded and has neither engine, clock nor goroutine, so it runs over networks of any kind: an engine's (package moe), one
// that delivers in any order (moetest), and one on virtual time (moesim).
//
// Owner: whoever made an Exec, who serializes all calls. Each event and each call does all that is possible by then. What is to be waited
// for is asked: [Exec.HeadsIn], [Exec.Received], [Exec.Summed], [Exec.Failed].
package exec

import (
	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/proto"
)

// Wire posts writes. It must not call the Exec. Posts are the Exec's and change after the call. Each call is one Transfer, whose end is
// told by Exec.Ended, after Exec.Fault for each peer that it failed towards.
type Wire interface {
	Scatter(op proto.Op, posts []Post)
	Write(op proto.Op, p Post)
}

// Memory are the areas of a lane.
type Memory [Areas][]byte

// Options say what an Exec does that the protocol leaves open.
type Options struct {
	ExpertAlign int  // rows; 0: 1
	Batched     bool // Output.X is [Local, BatchCap, Hidden]
	BatchCap    int
}

// Exec runs the steps of one lane of one rank.
type Exec struct {
	cfg    *proto.Layout
	opt    Options
	places Places
	lane   *proto.Lane
	b      backend.Lane
	flags  *backend.Flags
	wire   Wire
	mem    Memory
	head   [][]byte // copies: a source may be hostile and write while they are read
	record [proto.CancelBytes]byte
	posts  []Post
	view   uint32
	member []bool
	seq    [kinds]uint64 // last number of each kind of call
	under  [kinds]uint64 // number of the call that is not finished, or 0
	step
}

// kind of a call of the backend.
type kind int

const (
	counting kind = iota
	packing
	unpacking
	arranging
	packingY
	reducing
	kinds
)

// step is what is known about the step in progress.
type step struct {
	in       *backend.Input
	quantize backend.Quantize
	flagged  uint16

	wantPack, packed, wantY, headsIn, received, combIn, summed, failed bool
	code                                                               proto.Code
	blamed                                                             int
	err                                                                error // of the backend
	gone                                                               []uint64

	whole    bool // asked for in one piece, and not placed
	placed   bool // all rows have a place
	ownDue   bool // the records that never travel are not unpacked
	streamed bool
	out      *backend.Output
	limit    *LimitError
	arrived  []arrival // pieces that are not handed to the backend
	reading  []arrival // pieces that it copies
	dropped  []arrival // pieces that it will not, as their source is missing
	runs     []backend.Run
	backs    []backend.Back
	moves    []backend.Move
	counts   []uint32 // rows of each local expert
	offsets  []uint32
	rowAt    []uint32 // [rank][local]: first row of a source's records for an expert; batched: within it
	lost     bool     // somebody is missing whose rows have a place
	arranged bool
	yBase    []uint32 // [rank]: first slot in Y of its results

	y  backend.Tensor
	r  *backend.Reduction
	st stream
}

// arrival is a piece that came.
type arrival struct {
	rank         int
	piece, chunk uint32
}

// New makes an Exec without a view. cfg is not copied.
func New(cfg *proto.Layout, b backend.Lane, w Wire, mem Memory, o Options) *Exec {
	o.ExpertAlign = max(o.ExpertAlign, 1)
	e := &Exec{cfg: cfg, opt: o, places: Places{cfg}, b: b, flags: b.Flags(), wire: w, mem: mem}
	ranks, local := cfg.MaxRanks, cfg.Local
	e.head = make([][]byte, ranks)
	for i := range e.head {
		e.head[i] = make([]byte, cfg.HeadBytes)
	}
	e.member = make([]bool, ranks)
	e.gone = make([]uint64, (ranks+63)/64)
	pieces := ranks*(2+proto.Window) + cfg.Chunks(cfg.Records())
	e.arrived, e.reading = make([]arrival, 0, pieces), make([]arrival, 0, pieces)
	e.runs, e.backs = make([]backend.Run, 0, ranks*local+pieces), make([]backend.Back, 0, ranks*local)
	e.posts = make([]Post, 0, 2*ranks)
	e.counts, e.offsets = make([]uint32, local), make([]uint32, local+1)
	e.rowAt, e.yBase = make([]uint32, ranks*local), make([]uint32, ranks)
	e.st.init(cfg)
	e.lane = proto.NewLane(cfg, &laneOut{e})
	return e
}

// Lane is the protocol's. Its methods may be called where Exec has none of that name; those that it has are called through it.
func (e *Exec) Lane() *proto.Lane { return e.lane }

// Places says where everything lies.
func (e *Exec) Places() Places { return e.places }

// Rebase gives it other memory, between views.
func (e *Exec) Rebase(mem Memory) { e.mem = mem }

// Open begins a view: see proto.Lane.Open, which whoever owns a proto.Group lets it call. It is told here who is a member.
func (e *Exec) Open(view uint32, member func(rank int) bool) {
	e.view = view
	for i := range e.member {
		e.member[i] = member(i)
	}
	e.reset()
	e.under = [kinds]uint64{}
}

// reset forgets the step before.
func (e *Exec) reset() {
	s := &e.step
	*s = step{
		gone: s.gone, arrived: s.arrived[:0], reading: s.reading[:0], dropped: s.dropped[:0], runs: s.runs[:0], backs: s.backs[:0], moves: s.moves[:0],
		counts: s.counts, offsets: s.offsets, rowAt: s.rowAt, yBase: s.yBase, st: s.st,
	}
	clear(s.gone)
	for i, m := range e.member {
		if !m && i != e.cfg.Rank { // nobody sends what its experts would
			s.gone[i/64] |= 1 << (i % 64)
		}
	}
	s.st.reset()
}

// Counted, Ended, Fault, PeerDown and Tick are the events of proto.Lane.
//
// hot:
func (e *Exec) Counted(rank int, k proto.Kind, total uint64) {
	e.lane.Counted(rank, k, total)
	e.Run()
}

// Ended: see proto.Lane.
//
// hot:
func (e *Exec) Ended(t proto.Transfer) {
	e.lane.Ended(t)
	e.Run()
}

// Fault: see proto.Lane. Ended follows.
func (e *Exec) Fault(rank int, unfenced bool) {
	e.lane.Fault(rank, unfenced)
	e.Run()
}

// PeerDown: see proto.Lane.
func (e *Exec) PeerDown(rank int) {
	e.lane.PeerDown(rank)
	e.Run()
}

// Tick: see proto.Lane.
func (e *Exec) Tick(now proto.Time) {
	e.lane.Tick(now)
	e.Run()
}

// Cancel ends the step in progress, and the lane until the next view.
func (e *Exec) Cancel(why proto.Code) {
	e.lane.Cancel(why)
	e.Run()
}

// HeadsIn: everybody who is not missing has said what comes.
func (e *Exec) HeadsIn() bool { return e.headsIn }

// Received: all rows are in the Output, or, streamed, all chunks were handed out.
func (e *Exec) Received() bool {
	if e.streamed {
		return e.received && !e.st.more(e)
	}
	return e.arranged
}

// Summed: the step is complete.
func (e *Exec) Summed() bool { return e.summed }

// Failed says why the step ended early, and which rank is to blame. err is the backend's, if it is.
func (e *Exec) Failed() (failed bool, why proto.Code, blamed int, err error) {
	return e.failed, e.code, e.blamed, e.err
}

// Limit is what did not fit, after Receive; nil if all does.
func (e *Exec) Limit() *LimitError { return e.limit }

// PartialError says who was missing in the step; nil if nobody.
func (e *Exec) PartialError() *proto.PartialError {
	p := e.b.Plan()
	return e.lane.PartialError(p.Token, p.Tokens)
}

// Counts are the rows of each local expert, Offsets where they begin, with padding, once Received.
func (e *Exec) Counts() []uint32  { return e.counts }
func (e *Exec) Offsets() []uint32 { return e.offsets }

// isGone: the rank is missing.
func (e *Exec) isGone(rank int) bool { return e.gone[rank/64]>>(rank%64)&1 != 0 }

// incoming is the number of records of a source for a local expert, none if it is missing.
func (e *Exec) incoming(rank, local int) uint32 {
	if rank != e.cfg.Rank && (!e.member[rank] || e.isGone(rank)) {
		return 0
	}
	return e.announced(rank, local)
}

// announced is what a source said in its header, and has perhaps sent, even if it is missing by now.
func (e *Exec) announced(rank, local int) uint32 {
	if rank == e.cfg.Rank {
		return e.b.Plan().Counts[rank*e.cfg.Local+local]
	}
	return proto.Count(e.head[rank], local)
}
