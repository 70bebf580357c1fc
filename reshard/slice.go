package reshard

// ID is the SHA-256 of what a plan was computed from: both layouts, the rules and the options.
type ID [32]byte

// Slice is one rank's part of a plan. A source has Tasks and Amax, a destination Runs and Pads.
type Slice struct {
	Plan    ID
	Source  bool
	Rank    int
	Stages  []string // names of all stages of the plan, in order: "embed", "layer-0", ..., "head"; the same in every slice
	Buffers []int64  // bytes of the rank's buffers
	Tensors []string // names that pieces refer to
	Codecs  []Codec  // that pieces refer to

	Tasks []Task // source: in order of execution, stage by stage, destinations rotated
	Amax  []Amax // source: one for each stage that has straddled blocks, in order

	Runs []Run   // destination: sorted by stage, peer, buffer, offset
	Pads []Range // destination: bytes to zero once
}

// Run is a range of bytes of a destination that one source writes, as one part with the stage's immediate.
type Run struct {
	Peer   int // the other rank: of the destination in a source's slice, of the source in a destination's
	Stage  int
	Buffer int   // destination's
	Offset int64 // in the destination's buffer
	Len    int64
	From   int64 // source's slice: where the bytes are, in the task's staging or (direct) in the buffer Task.Buffer
}

// Task is the smallest unit of work of a source: bytes that become ready together, and the runs that carry them away. The same bytes may
// go to several destinations.
type Task struct {
	Stage  int
	Size   int64   // bytes of staging; 0: direct, the runs read the source's buffer as it is
	Buffer int     // direct: the source's buffer
	Pieces []Piece // how staging is filled; none if direct
	Runs   []Run
}

// Piece is a box that one codec moves from a buffer of the source into the staging of a task. Strides are in bytes.
type Piece struct {
	Codec     int // index in Slice.Codecs
	Tensor    int // index in Slice.Tensors, for errors
	From, To  DType
	Shape     []int64 // elements in each dimension, outermost first; never empty
	Buffer    int     // source
	Offset    int64   // source: of the first element
	SrcStride []int64
	Dst       int64 // offset in staging of the first element; -1: no values, scales only
	DstStride []int64
	Origin    []int64 // logical index of the first element in the whole tensor: names it in errors, aligns blocks

	// fp8block: the last two dimensions are cut into blocks, aligned to the whole tensor. Block i, j (of the piece's first block) of
	// the k-th matrix has its maximum at Maxima + (k*BlockRows + i)*BlockCols + j in the stage's table.
	Maxima               int
	BlockRows, BlockCols int
	// The scales that this source sends: a box of blocks [ScaleLo, ScaleHi) in rows and columns of the piece's blocks, for every matrix.
	// Empty if others send them. Scale is where the first of them goes in staging.
	ScaleLo, ScaleHi [2]int
	Scale            int64
	ScaleStride      []int64 // as many as Shape
}

// Amax says how the sources of a stage agree on the maxima of blocks that several of them hold parts of. Each source has a table of
// maxima (FP32, absolute values) for each stage, fills it from what it holds, sends ranges of it to partners, and takes the larger of
// its own and what it receives.
type Amax struct {
	Stage int
	Table int        // entries of the table; also for stages without partners, so every stage with fp8block has one
	Own   []Same     // blocks of which this source has several pieces: before it sends, their entries take the larger value
	Peers []Exchange // sorted by rank
}

// Same is two lists of entries of one table for the same blocks, of equal length in sum.
type Same struct{ A, B []BlockRange }

// Exchange is what one source sends to another for the blocks that both hold.
type Exchange struct {
	Rank   int
	Blocks []BlockRange // of this source's table: what is sent, in this order, and what the answer is for
	Inbox  int64        // where this source writes in the partner's inbox: bytes
	Answer int64        // where the partner writes in ours
}

// BlockRange is a range of a table of maxima.
type BlockRange struct{ First, Len int }
