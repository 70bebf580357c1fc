// Package backend is the seam between the protocol of MoE dispatch and combine and whatever moves and computes the rows: the CPU
// (package cpu), or a GPU. A backend knows tensors, records and slots; it knows nothing of peers, immediates and steps that fail.
//
// A [Lane] belongs to whoever made it, who calls one method at a time. Memory that a method reads or writes is its caller's again when
// the method's flag says so.
package backend

import (
	"sync/atomic"

	"github.com/hawser-project/hawser/moe/proto"
)

// DType is the type of the elements of a tensor.
type DType uint8

// The types. Bytes are what dispatch carries without looking at them.
const (
	None DType = iota // the tensor is absent
	F32
	BF16
	F16
	E4M3
	E5M2
	E8M0
	Bytes
	I32
	U32
	I64
)

// Tensor is memory of the caller seen as up to three dimensions, the fastest last. The zero value is no tensor. Elements of a row of X, y
// and sums are adjacent; those of scales need not be.
type Tensor struct {
	Data   []byte
	Type   DType
	Shape  [3]int // unused leading dimensions are 0
	Stride [3]int // bytes from one index to the next, none negative; all 0: packed
}

// Queue is a queue of the backend's device, in whose order a method runs; 0 is the backend's own.
type Queue uintptr

// Input is what a rank sends in one step.
type Input struct {
	N       int    // tokens; may be 0
	X       Tensor // [N, Hidden], of Spec.In; of F32, BF16 or F16 if Pack quantizes
	XScale  Tensor // [N, blocks] when records carry scales and Pack does not quantize: F32, E8M0, or U32 of four E8M0
	IDs     Tensor // [N, TopK] of I32, U32 or I64; -1, or the largest U32, is no expert
	Weights Tensor // [N, TopK] F32; read by Pack only with Meta, by Reduce always
	Queue   Queue
}

// Output is where dispatch puts what arrives. Tensors that are absent are not written, but X must be there.
type Output struct {
	X           Tensor // [rows, Hidden], or batched [Local, Cap, Hidden], of Spec.In
	XScale      Tensor // [rows, blocks], or batched [Local, Cap, blocks]: F32, E8M0, or U32 of four E8M0, the lowest block in the low byte
	Counts      Tensor // [Local] I32: rows of each local expert
	Offsets     Tensor // [Local+1] I32: where its rows begin, with padding
	SrcRank     Tensor // [rows] I32, or batched [Local, Cap]
	SrcToken    Tensor // likewise; needs Meta
	Weights     Tensor // likewise, F32; needs Meta
	ZeroPadding bool   // padding rows of X and XScale, batched all behind an expert's, are set to zero; else they are not touched
	Queue       Queue
}

// Scaling says which scales records carry.
type Scaling uint8

// The scalings.
const (
	NoScale   Scaling = iota
	F32x128           // a float32 for 128 elements
	UE8M0x128         // an exponent byte for 128
	UE8M0x32          // an exponent byte for 32
)

// Quantize asks Pack to encode rows to E4M3 with the lane's Scaling: each block by its largest absolute value amax, NaN aside, but at
// least Floor. F32: the scale is amax/448, an element x becomes E4M3(x * (448/amax)). UE8M0: the scale s is the least power of two from
// amax/448 on, x becomes E4M3(x * (1/s)). Every operation is rounded to float32. Floor 0 is 1e-4.
type Quantize struct {
	On    bool
	Floor float32
}

// Plan is what Count finds. A lane's Plan is overwritten by its next Count.
type Plan struct {
	Tokens    int
	Records   []uint32 // to each rank
	Base      []uint32 // first slot of each rank's results: the sum of Records before
	Counts    []uint32 // [MaxRanks * Local]: records to each expert of each rank
	Slot      []uint32 // [MaxTokens * TopK]: the record and result slot of a (token, column), NoSlot without
	Token     []uint32 // [records]: the token that a slot belongs to
	Column    []uint16 // [records]: its column
	RouteHash uint64   // of all ids
}

// NoSlot is the slot of an id that is no expert.
const NoSlot = ^uint32(0)

// Run is a run of records of one source and one local expert: adjacent where they arrived, and adjacent in rows.
type Run struct {
	From  []byte // the records, where they arrived (or Send, for the own rank)
	Row   int    // the first of its rows in the Output, or in the results y that go back; batched: within its expert
	Local int    // the local expert
	N     int
	Src   int // rank
}

// Back is a run of results: N rows of y from Row on, which go to slots from Slot on, of Y or, if they are the own rank's, of Results.
type Back struct {
	Row   int // batched: within its expert
	Local int
	N     int
	Slot  int
	Own   bool
}

// Move moves N rows of an Output to the front: to row To from row From, which is larger. Batched: within their expert.
type Move struct {
	Local, From, To, N int
}

// Reduction is what Reduce computes: out[t] = round((Accumulate ? out[t] : 0) + the sum over columns j, ascending, of w[t][j] * y[slot of
// t, j] + biases in order), in float32, each product and each sum rounded, none fused. A NaN among the sums is stored as the one quiet
// NaN without sign and payload: machines differ in what they make of others.
type Reduction struct {
	Out        Tensor // [N, Hidden] of F32, BF16 or F16
	Weights    Tensor // [N, TopK] F32; absent: all are 1
	Accumulate bool
	Bias       []Tensor // each [N, Hidden] of F32, BF16 or F16
	// Gone has a bit for each rank whose results are missing: those are left out. Rescale multiplies each weight of a token that lacks
	// some by (the sum of the token's weights / the sum of those that are present), in float32, the sums in the order of columns; a token
	// of which nothing is present is not rescaled.
	Gone    []uint64
	Rescale bool
	Queue   Queue
}

// Memory is a lane's, each slice a region or a part of one. The backend reads and writes Send and Y, and reads Results and whatever runs
// name.
type Memory struct {
	Send    []byte // [proto.Regions.Send]: header and records of rank r from r*HeadBytes + Base[r]*Dispatch on
	Results []byte // a record of proto.Layout.Combine bytes for each slot
	Y       []byte // likewise
}

// Spec is what a lane is made of.
type Spec struct {
	Layout *proto.Layout
	In     DType // of rows that travel: F32, BF16, F16, E4M3, E5M2 or Bytes (Layout.InBytes each)
	Wire   DType // of results: F32, BF16 or F16
	Scale  Scaling
	Place  Placement
	Memory Memory
}

// Flags say what is finished. Each is the last number that its method was called with and that is done, on a cache line of its own; it
// is compared with >=.
type Flags struct {
	Counted, Packed, Unpacked, Arranged, YPacked, Reduced Flag
}

// Flag is a word on a cache line of its own.
type Flag struct {
	atomic.Uint64
	_ [56]byte
}

// Caps is what a backend can do.
type Caps struct {
	Name       string
	MaxTopK    int
	MaxHidden  int
	MaxLocal   int
	NeedDevice bool // tensors are device memory
}

// Backend makes lanes. It outlives them.
type Backend interface {
	Caps() Caps
	NewLane(Spec) (Lane, error)
	Close() error
}

// Lane does the work of one lane of one rank. Each method enqueues its work and returns; it is finished when its flag is at least seq,
// which rises from call to call of that method. An error means that nothing was enqueued. No method allocates in steady state.
type Lane interface {
	// Count sorts the ids of in by (destination rank, expert, token, column) into Plan. It fails with an error that names token and column
	// if an id is neither an expert nor -1. Reuse keeps the plan of before, if the ids have the same hash, and fails if not.
	Count(q Queue, seq uint64, in *Input, reuse bool) error
	// Plan is valid once Counted is.
	Plan() *Plan
	// Pack writes the records of the plan, and a header h with the counts before each rank's, into Send. Fields of h that differ from
	// rank to rank are set by Pack.
	Pack(q Queue, seq uint64, in *Input, quantize Quantize, h proto.Header) error
	// Unpack copies runs of records to rows of out.
	Unpack(q Queue, seq uint64, runs []Run, out *Output) error
	// Arrange ends what Unpack began: it moves rows, in order, zeroes padding if out wants that, and writes Counts and Offsets of out. counts
	// are the rows of each local expert, offsets where they begin and, one more, where they end with padding; batched without.
	Arrange(q Queue, seq uint64, moves []Move, counts, offsets []uint32, out *Output) error
	// PackCombine copies rows of y to slots, which it converts to Spec.Wire if y is of another type.
	PackCombine(q Queue, seq uint64, y Tensor, runs []Back) error
	// Reduce sums the results of the plan.
	Reduce(q Queue, seq uint64, r *Reduction) error
	Flags() *Flags
	// Rebase gives the lane other memory and another placement, after a change of view.
	Rebase(Memory, Placement) error
	// Abort ends all work within 100 ms: what is enqueued, and all that comes before the next Rebase, fails. Anybody may call it.
	Abort(cause error)
	Close() error
}
