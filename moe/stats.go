package moe

import (
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/moe/proto"
)

// LaneStats is what a lane has done since it was made.
type LaneStats struct {
	Steps, Partial, Failed, Streamed, Overflowed uint64 // steps
	Posts                                        uint64 // to the engine
	Grants, Chunks                               uint64 // sent
	Dispatch, Receive, Combine, Sum              hawser.Histogram
	Peers                                        []PeerStats // by rank
}

// PeerStats is what a lane has sent to a rank.
type PeerStats struct {
	Bytes uint64
}

// laneCounts are what LaneStats is made of. The lane writes, anybody reads.
type laneCounts struct {
	steps, partial, failed, streamed, overflowed atomic.Uint64
	posts, grants, chunks                        atomic.Uint64
	bytes                                        []atomic.Uint64 // by rank
}

func (c *laneCounts) init(l *proto.Layout) { c.bytes = make([]atomic.Uint64, l.MaxRanks) }

// hot:
func (c *laneCounts) sent(rank int, n int64) { c.bytes[rank].Add(uint64(n)) }

// hot:
func (c *laneCounts) wrote(op proto.Op, rank int, n int64) {
	c.sent(rank, n)
	switch op {
	case proto.OpGrant:
		c.grants.Add(1)
	case proto.OpChunk:
		c.chunks.Add(1)
	case proto.OpHead, proto.OpComb, proto.OpCancel:
	}
}

// marks are when the stages of the step in progress began.
type marks struct{ at time.Time }

func (m *marks) begin(*Lane)    {}
func (m *marks) received(*Lane) {}
func (m *marks) combine(*Lane)  {}
func (m *marks) summed(*Lane)   {}
