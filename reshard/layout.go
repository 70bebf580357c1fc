package reshard

// DType is the type of a tensor's elements. Names are those of safetensors.
type DType uint8

// The types that plans know. Types of the same size without a codec between them move as they are (raw).
const (
	Invalid DType = iota
	F64
	F32
	F16
	BF16
	F8E4M3 // e4m3fn: no infinities, NaN is 0x7F and 0xFF
	F8E5M2
	F8E8M0 // a power of two: the exponent byte alone
	I64
	I32
	I16
	I8
	U64
	U32
	U16
	U8
	Bool
)

// Tensor is a logical tensor: what a checkpoint calls by this name, whole.
type Tensor struct {
	Name  string
	Shape []int64 // row major; the index space of fragments
	DType DType   // as this side holds it
}

// Codec turns the source's elements into the destination's. The zero value is raw.
type Codec struct {
	Kind  string  // "" or "raw": bytes as they are; "cast": round to nearest even; "fp8block": F8E4M3 values and a scale for each block
	Block [2]int  // fp8block: rows and columns of a block; default 128, 128
	Scale DType   // fp8block: F32 (default) or F8E8M0
	Floor float32 // fp8block: least absolute maximum; default 1e-10
	Recip bool    // fp8block: multiply by the reciprocal of the scale, as some engines do, instead of dividing
}

// Digit is one dimension of a fragment's box: a dimension of the tensor or, where that is refined, a digit of its index.
type Digit struct {
	Extent int64 // of the whole tensor in this digit; the extents of a refined dimension multiply to it
	Stride int64 // bytes from one index to the next in the buffer
}

// Fragment is a box of a tensor that lies in a buffer of a rank.
type Fragment struct {
	Tensor int     // index in Layout.Tensors
	Lo, Hi []int64 // the box [Lo, Hi) in digit space; empty boxes are legal
	Rank   int
	Buffer int     // index in Layout.Buffers[Rank]
	Offset int64   // bytes: where the element at Lo lies
	Digits []Digit // nil: the tensor's dimensions, and the box is stored row major without gaps
	Codec  Codec   // destinations only: how the values here are made
	Scales bool    // destinations only: not the values, but the scales of Codec; the box counts blocks in the last two dimensions
}

// Mesh is an array of ranks, row major, slowest dimension first.
type Mesh struct {
	Dims  []string // names, as "pp", "ep", "fsdp"
	Shape []int
	Ranks []int // one for each cell; nil: 0, 1, 2, ...
}

// Placement says what one dimension of a mesh does to a tensor. Placements are applied in the order of the mesh's dimensions, as
// DTensor does, each to what the ones before left.
type Placement struct {
	Kind string // "shard", "strided", "replicate", "partial" (refused: reduce it first)
	Dim  int    // shard, strided: the tensor's dimension that is cut
}

// Grid is a set of fragments by arithmetic: tensors of one shape and type that a mesh cuts in one way. Shard follows
// torch.chunk: pieces of ceil(n/p), the last ones shorter or empty.
type Grid struct {
	Tensors []int // indices in Layout.Tensors, all of one shape and type
	Mesh    Mesh
	Place   []Placement // one for each dimension of the mesh
	Buffer  int
	// Offsets[i] is where the piece of Tensors[i] begins in the buffer, the same on every rank. Pieces are row major without gaps
	// unless Strides is set (bytes, for each dimension).
	Offsets []int64
	Strides []int64
	Codec   Codec
	Scales  bool
}

// Derived is a tensor that the destination computes from others, and the hook that does so after a commit.
type Derived struct {
	Name string
	From []string
	Hook string
}

// Topology places ranks. Slices are indexed by rank; nil: every rank is its own node, rail 0, instance 0.
type Topology struct {
	Node     []int
	Rail     []int
	Instance []int // destinations: the engine that a rank is part of, the unit of commit
}

// Layout is where the tensors of one side lie. Grids and Fragments together are its contents.
type Layout struct {
	Side      string // "train" or "infer"
	Tensors   []Tensor
	Grids     []Grid
	Fragments []Fragment
	Pads      []Range           // destination bytes that belong to no tensor; the receiver zeroes them once
	Buffers   [][]int64         // bytes of each buffer, by rank
	Aliases   map[string]string // another name of a tensor -> its name: tied embeddings
	Derived   []Derived
	Topo      Topology
}

// Range is a piece of a rank's buffer, in bytes.
type Range struct {
	Rank, Buffer int
	Offset, Len  int64
}

// Rule renames and refines: a source tensor whose name matches becomes the destination's tensor Into.
type Rule struct {
	Match string  // a pattern with {layer}, {expert} and * ; captures may be used in Into
	Into  string  // name in the destination's layout; "" keeps it
	View  []int64 // the shape of the source tensor in the index space of the destination; nil keeps it
	Slot  int     // where View has one dimension more in front (stacked tensors): the index there; -1: the captured {expert}
	Codec Codec
}
