package proto

import (
	"fmt"
	"slices"

	"github.com/hawser-project/hawser"
)

// Op is what a write carries.
type Op uint8

// The operations.
const (
	OpHead   Op = 1 + iota // S to HD of the target: header and the first records
	OpChunk                // S to chunk Chunk of the target's pool
	OpGrant                // a Grant to slot Piece mod Window of MB at the target
	OpComb                 // Y to slots First .. of the target's results
	OpCancel               // a Cancel to XB at the target
)

var opNames = [...]string{OpHead: "head", OpChunk: "chunk", OpGrant: "grant", OpComb: "comb", OpCancel: "cancel"}

func (o Op) String() string { return opNames[o] }

// Target is one part of a Transfer, with one immediate.
type Target struct {
	Rank  int
	Kind  Kind   // of the immediate
	Piece uint32 // of the records between the two; OpGrant: the chunk's number; OpChunk: the piece is one more than the chunk's number
	Chunk uint32 // of a pool: OpChunk the target's, OpGrant the own
	First uint32 // OpHead, OpChunk: the first record in S's run of the target; OpComb: the first slot in the target's results
	N     uint32 // records; may be 0
	Half  uint8  // OpComb: of Y, when the step is streamed
}

// Transfer names a Transfer that is not complete. What its values are is known by then only to one, so it needs no number.
type Transfer struct {
	Op   Op
	Rank int  // All for a scatter
	Kind Kind // 0 for a scatter
}

// All is the rank of a Transfer that went to many.
const All = -1

// LaneOut does what a lane wants. It must not call the lane. Targets are the lane's and change after the call.
type LaneOut interface {
	// Pack: S may be written: headers and records. Answer: Packed.
	Pack(step uint64)
	// Scatter posts a Transfer to many, Write one to one peer. Answer: Fault for each target that it failed for, then Ended.
	Scatter(op Op, targets []Target)
	Write(op Op, t Target)
	// Head, Grant and Cancel are what a peer wrote here. Read once it was counted.
	Head(rank int) []byte
	Grant(rank, slot int) []byte
	Cancel(rank int) []byte
	// HeadsIn: who is not missing has said what comes. Answer, if nobody has called it: Receive.
	HeadsIn(step uint64)
	// Arrived: a piece can be unpacked, from chunk of the pool if it is not the first. Answer: Unpacked.
	Arrived(rank int, piece, chunk uint32)
	// Received: all pieces are unpacked.
	Received(step uint64)
	// PackY: Y may be written, all of it. Answer: YPacked.
	PackY(step uint64)
	// HalfFree: this half of Y may be written again.
	HalfFree(half uint8)
	// CombIn: all results are here, but those of who is missing. Answer: Reduced.
	CombIn(step uint64)
	// Missing: the step goes on without this rank: nothing of it may be read any more, no piece that has not been unpacked, no result.
	// Pieces that were offered are answered all the same.
	Missing(step uint64, rank int, why Code)
	// Failed: the step has ended. Or, if it is none that was begun, the lane refuses to begin it.
	Failed(step uint64, why Code, blamed int)
}

// phase of the step in progress.
type phase uint8

const (
	idle      phase = iota
	packing         // waits until S is free, and packed
	receiving       // headers and records come
	computing       // the experts' turn
	packingY        // waits until Y is free, and packed
	combining       // results come
	reducing
)

// slot of the window of chunks that a source may have under way.
type slot struct {
	state slotState
	seq   uint32 // of the chunk among the source's
	chunk uint32 // of the pool
}

type slotState uint8

const (
	slotFree    slotState = iota
	slotGranted           // the source may write
	slotArrived           // counted
	slotOffered           // being unpacked
)

// peer is what a lane knows about a member of the view. The first group lasts for the view, the others for a step.
type peer struct {
	member    bool
	down      bool
	missing   bool // held missing; lasts to the end of the view, as no step follows
	unfenced  bool // a Transfer to it ended without proof that it is quiet
	seen      [Kinds]uint64
	taken     [Kinds]uint64
	busy      [Kinds]uint16 // parts that are not complete, by value
	half      [Window]uint8 // that a streamed Write of results reads, and one more; 0: none
	scattered bool          // the parts of results are a scatter's
	route     uint64        // hash of the ids of its last header

	out, base uint32         // records for it, and the first of their slots
	due       [Window]uint32 // chunk whose grant comes next in this slot
	lent      [Window]uint32 // chunk of its pool, if ready
	ready     [Window]bool   // a grant that is not used yet
	combIn    bool

	head     bool // its header is taken
	first    slotState
	in       uint32 // records from it
	inBase   uint32
	granted  uint32 // chunks
	unpacked uint32 // pieces
	back     uint32 // pieces whose results were handed over
	window   [Window]slot
}

// Lane is the protocol of one lane of one rank. Between views it refuses everything but Ended and Fault.
type Lane struct {
	cfg *Layout
	out LaneOut

	view      uint32
	open      bool // peers of the view may write
	active    bool // and so may this lane
	begun     bool // a step was, in this view
	step      uint64
	completed uint64
	phase     phase
	deadline  Time
	partial   bool // somebody was missing in the step
	stale     bool // no step begins any more in this view
	told      bool // the one Cancel is sent
	why       Code
	blamed    int

	peers   []peer
	heads   int // headers that are awaited
	left    int // pieces that are announced and not unpacked
	combs   int // peers whose results are awaited
	wanted  int // chunks that are announced and not granted
	reading int // pieces that are offered and not unpacked
	mode    Mode
	headsIn bool
	asked   bool // results of the whole step are to be sent
	sent    bool // they are, or are under way

	fromS, fromY int // Transfers that read S or Y
	wholeY       int // scatters among them that read Y: all of it, if the step was not streamed
	busy         int // Transfers of any kind
	half         [2]int

	free    []uint32 // chunks of the pool
	away    int      // chunks that nobody gives back in this view
	turn    int      // whose grant is next
	waiting []Target // streamed results that wait for their value
	targets []Target
}

// Mode is how a step is received.
type Mode uint8

// The modes.
const (
	Undecided Mode = iota
	Whole          // pieces are offered when all headers are in
	Streamed       // pieces are offered as they come
)

// NewLane makes a lane that takes part in nothing yet. cfg is not copied and does not change.
func NewLane(cfg *Layout, out LaneOut) *Lane {
	pieces := 2*cfg.MaxRanks + max(cfg.YRows, cfg.MaxRecv)/min(cfg.ChunkRecords, max(cfg.FirstChunk, 1)) // of duplicates there may be more
	return &Lane{
		cfg: cfg, out: out, peers: make([]peer, cfg.MaxRanks), free: make([]uint32, 0, cfg.PoolChunks),
		waiting: make([]Target, 0, pieces), targets: make([]Target, 0, pieces),
	}
}

// Open begins a view, in which steps begin with next: peers may write. All Transfers of the last one have ended, and its memory is quiet.
func (l *Lane) Open(view uint32, next uint64, member func(rank int) bool) {
	*l = Lane{
		cfg: l.cfg, out: l.out, view: view, open: true, step: next - 1, completed: l.completed,
		peers: l.peers, free: l.free[:0], waiting: l.waiting[:0], targets: l.targets[:0],
	}
	for i := range l.peers {
		l.peers[i] = peer{member: member(i) && i != l.cfg.Rank}
	}
	for c := range l.cfg.PoolChunks {
		l.free = append(l.free, uint32(c))
	}
}

// Activate: this lane may write, too.
func (l *Lane) Activate() {
	l.active = true
	if l.stale {
		l.tell()
	}
}

// Step is the last step that was begun, Completed the last that was completed.
func (l *Lane) Step() uint64      { return l.step }
func (l *Lane) Completed() uint64 { return l.completed }

// Idle: no step is in progress.
func (l *Lane) Idle() bool { return l.phase == idle }

// Quiet: no Transfer of this lane is under way, and no step.
func (l *Lane) Quiet() bool { return l.busy == 0 && l.phase == idle }

// Free are the chunks of the pool that nobody has.
func (l *Lane) Free() int { return len(l.free) }

// Serves: peers may need something of the step in progress that no call of this rank has given yet: grants of chunks, or chunks, once they
// are granted. Events must be told even if nobody waits for the step.
func (l *Lane) Serves() bool {
	switch l.phase {
	case idle:
		return false
	case packing, receiving, packingY:
		return true
	case computing, combining, reducing:
	}
	for i := range l.peers {
		p := &l.peers[i]
		if !l.talks(p) {
			continue
		}
		for w, chunks := 0, uint32(l.cfg.Chunks(int(p.out))); w < l.cfg.Window; w++ {
			if p.ready[w] || p.due[w] < chunks {
				return true
			}
		}
	}
	return false
}

// Held says what makes it necessary to fence this peer, and whether a Transfer to it makes it necessary there.
func (l *Lane) Held(rank int) (missing, unfenced bool) {
	return l.peers[rank].missing, l.peers[rank].unfenced
}

// Partial: somebody was missing in the step.
func (l *Lane) Partial() bool { return l.partial }

// Slots are those that results of a rank lie in, of a step in progress.
func (l *Lane) Slots(rank int) (first, n uint32) { return l.peers[rank].base, l.peers[rank].out }

// Records are how many come from a rank, once its header was taken, and 0 if it is missing.
func (l *Lane) Records(rank int) uint32 {
	if l.peers[rank].missing {
		return 0
	}
	return l.peers[rank].in
}

// Begin begins a step that sends records[r] records to each rank r. The records for the own rank never travel. It fails, and nothing
// begins, with ErrBusy while a step is in progress, with ErrStale if a new view is needed.
//
// hot:
func (l *Lane) Begin(now Time, records []uint32) error {
	switch {
	case l.phase != idle && !broken(mutBusy):
		return fmt.Errorf("begin step %d: %w: step %d is not complete", l.step+1, hawser.ErrBusy, l.step)
	case !l.active || l.stale && !broken(mutRefuse):
		return fmt.Errorf("begin step %d: %w: %v (rank %d): activate a new view", l.step+1, hawser.ErrStale, l.why, l.blamed)
	}
	l.step++
	l.begun = true
	l.phase, l.deadline = packing, now+l.cfg.StepTimeout
	l.heads, l.left, l.combs, l.wanted, l.reading = 0, 0, 0, 0, 0
	l.mode, l.headsIn, l.asked, l.sent = Undecided, false, false, false
	base := uint32(0)
	for i := range l.peers {
		p := &l.peers[i]
		p.out, p.base = records[i], base
		base += records[i]
		if !p.member {
			continue
		}
		for w := range l.cfg.Window {
			p.due[w] = uint32(w)
		}
		p.ready, p.window = [Window]bool{}, [Window]slot{}
		p.combIn, p.head, p.first, p.in, p.granted, p.unpacked, p.back = false, false, slotFree, 0, 0, 0, 0
		if !p.missing {
			l.heads++
			l.combs++
		}
	}
	for i := range l.peers {
		if p := &l.peers[i]; p.member && p.down && !p.missing {
			l.miss(i, CodeDown)
		}
	}
	l.pack()
	return nil
}

// pack, once nothing reads S any more.
func (l *Lane) pack() {
	if l.phase == packing && (l.fromS == 0 || broken(mutSource)) {
		l.out.Pack(l.step)
	}
}

// Packed: S holds headers and records of the step.
//
// hot:
func (l *Lane) Packed() {
	if l.phase != packing {
		return
	}
	l.phase = receiving
	l.targets = l.targets[:0]
	l.cfg.Order(func(i int) {
		if p := &l.peers[i]; l.talks(p) {
			_, n := l.cfg.Piece(int(p.out), 0)
			l.targets = append(l.targets, Target{Rank: i, Kind: KindHead, N: uint32(n)})
		}
	})
	l.scatter(OpHead)
	for i := range l.peers {
		l.advance(i)
	}
	l.turned()
}

// talks: something may be written to this peer.
func (l *Lane) talks(p *peer) bool { return p.member && !p.down && !p.missing }

func (l *Lane) scatter(op Op) {
	if len(l.targets) == 0 {
		return
	}
	for i := range l.targets {
		l.peers[l.targets[i].Rank].busy[l.targets[i].Kind]++
	}
	l.reads(op, +1)
	if op == OpComb {
		l.wholeY++
	}
	l.out.Scatter(op, l.targets)
}

func (l *Lane) write(op Op, t Target) {
	l.peers[t.Rank].busy[t.Kind]++
	l.reads(op, +1)
	l.out.Write(op, t)
}

// reads counts the Transfers that read what must not change meanwhile.
func (l *Lane) reads(op Op, n int) {
	l.busy += n
	switch op {
	case OpHead, OpChunk:
		l.fromS += n
	case OpComb:
		l.fromY += n
	}
}

// Ended: a Transfer is complete. Its local memory is read no more, and none of it is placed again.
//
// hot:
func (l *Lane) Ended(t Transfer) {
	l.reads(t.Op, -1)
	if t.Rank == All {
		l.releaseAll(t.Op)
	} else {
		p := &l.peers[t.Rank]
		p.busy[t.Kind]--
		if w := t.Kind - KindComb; t.Op == OpComb && p.half[w] > 0 {
			l.freeHalf(p.half[w] - 1)
			p.half[w] = 0
		}
	}
	switch t.Op {
	case OpHead, OpChunk:
		l.pack()
		if t.Rank != All && l.phase != idle {
			l.postChunks(t.Rank)
		}
	case OpComb:
		l.flush()
		l.packY()
	case OpGrant:
		l.grant()
	}
}

// releaseAll frees the values that a scatter used.
func (l *Lane) releaseAll(op Op) {
	for i := range l.peers {
		switch p := &l.peers[i]; op {
		case OpHead:
			p.busy[KindHead] = 0
		case OpComb:
			if p.scattered {
				p.scattered = false
				clear(p.busy[KindComb : KindComb+Window])
			}
		}
	}
	if op == OpComb {
		l.wholeY--
	}
}

func (l *Lane) freeHalf(h uint8) {
	if l.half[h]--; l.half[h] == 0 && l.phase != idle {
		l.out.HalfFree(h)
	}
}

// Clone is a copy that shares nothing with it that changes, for who explores what may happen.
func (l *Lane) Clone(out LaneOut) *Lane {
	c := *l
	c.out = out
	c.peers, c.free, c.waiting = slices.Clone(l.peers), slices.Clone(l.free), slices.Clone(l.waiting)
	c.targets = make([]Target, 0, cap(l.targets))
	return &c
}
