package exec

import "github.com/hawser-project/hawser/moe/proto"

// Area is a region of a lane.
type Area uint8

// The areas. A peer may write to three of them: its own part of Blocks, all of Pool, all of Results.
const (
	Blocks  Area = iota // for each source a block: header, first records, grants, cancel record
	Pool                // chunks
	Results             // a combine record for each slot
	Send                // headers and records to send
	Sources             // for each rank the grants and the cancel record that are sent to it
	Y                   // results to send
	Areas
)

const (
	grantsBytes  = proto.Window * proto.GrantBytes
	recordsBytes = grantsBytes + proto.CancelBytes // of a rank, in its block and in Sources
)

// Places says where in its areas everything of a lane lies, in bytes.
type Places struct{ l *proto.Layout }

// PlacesOf is that of a layout, which is not copied.
func PlacesOf(l *proto.Layout) Places { return Places{l} }

// Bytes are those of an area. Together they are what proto.Sizes says.
func (p Places) Bytes(a Area) int64 {
	l := p.l
	ranks := int64(l.MaxRanks)
	switch a {
	case Blocks:
		return ranks * p.Block()
	case Pool:
		return int64(l.PoolChunks) * int64(l.ChunkRecords) * int64(l.Dispatch)
	case Results:
		return int64(l.Records()) * int64(l.Combine)
	case Send:
		return ranks*int64(l.HeadBytes) + int64(l.Records())*int64(l.Dispatch)
	case Sources:
		return ranks * recordsBytes
	default:
		return int64(l.YRows) * int64(l.Combine)
	}
}

// Block is the length of a source's block, of which the one of rank r begins at r*Block.
func (p Places) Block() int64 { return p.first() + recordsBytes }

// first is the length of a header and the first records.
func (p Places) first() int64 {
	return int64(p.l.HeadBytes) + int64(p.l.FirstChunk)*int64(p.l.Dispatch)
}

// grant and cancel are within a block.
func (p Places) grant(slot int) int64 { return p.first() + int64(slot)*proto.GrantBytes }
func (p Places) cancel() int64        { return p.first() + grantsBytes }

// chunk begins a chunk of the pool.
func (p Places) chunk(c uint32) int64 {
	return int64(c) * int64(p.l.ChunkRecords) * int64(p.l.Dispatch)
}

// send is where the header for a rank lies, whose records begin with the slot base.
func (p Places) send(rank int, base uint32) int64 {
	return int64(rank)*int64(p.l.HeadBytes) + int64(base)*int64(p.l.Dispatch)
}

// Post is one write with one immediate: from an area of this rank to an area of a peer.
type Post struct {
	Rank     int
	Kind     proto.Kind // of the immediate
	From, To Area
	Src      int64 // bytes from the beginning of From
	Dst      int64 // bytes from the beginning of To, or of this rank's block of Blocks
	Len      int64
}
