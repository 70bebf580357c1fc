package bench

import (
	"context"
	"slices"
	"strings"

	"github.com/hawser-project/hawser"
)

// scenario is what a Kind means. It does not change.
type scenario struct {
	sizes   []uint64 // the default sweep
	size    uint64   // the only block size, 0: it is the config's
	maxSize uint64   // of a block, 0: any
	pool    uint64   // the default pool, 0: by cold and hot

	// A sample moves no more than these.
	sampleBytes  uint64
	sampleBlocks int

	batch   func(size uint64) int // the default of Config.Batch; nil: an operation is a block
	targets bool                  // a batch is one of targets
	group   bool                  // there may be several receiving processes

	measures []measure // the first one gives the ratio of a row

	// corrupt counts wrong bytes in a receiver after so many blocks were moved; nil: the receiver's pool is compared.
	corrupt func(r *receiver, moved uint64) uint64
}

// measure is one figure of a scenario: in each round both sides do the same work.
type measure struct {
	latency bool               // of operations that wait for one another; else a rate
	count   func(c Config) int // of blocks, messages or round trips in a sample
	ours    side
	yard    func(c Config) side
}

// side is how ours, or the yardstick, does the work of a sample.
type side struct {
	name string // of a yardstick, in reports

	// send is the work of the measuring process. It adds the latencies that it observes to lat, which has room for as many as
	// the task counts, or for sampledOps.
	send func(ctx context.Context, s *Session, t task, lat *trips) error

	// receive is that of each receiving process at the same time; nil: send needs none.
	receive func(ctx context.Context, r *receiver, t task) error
}

// task is one sample's part.
type task struct {
	First uint64 `json:"first"` // position of its first block, counted from the start of the run
	Count int    `json:"count"` // as measure.count
}

const (
	immSize = 8        // bytes of the block that comes with an immediate in Imm
	immPool = 64 << 10 // memory that these go to: always in a cache

	// A sample moves this much: 20 ms or more of copying, so that the start and the confirmation do not count.
	sampleBytes = 256 << 20
	// Small blocks cost per operation, not per byte: a sample has no more than these.
	sampleBlocks = 1 << 17

	// A rate of immediates, or of messages, is measured over so many, and a message's over no more bytes than these.
	rateOps      = 200_000
	messageOps   = 20_000
	messageBytes = 64 << 20

	// Pages of one operation: as many as a layer of a short prompt, at most a quarter of the window in bytes.
	maxPages = 256

	defaultTargets = 16
)

var scenarios = map[Kind]*scenario{
	Write: {
		sizes:       []uint64{64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 32 << 20, 64 << 20},
		sampleBytes: sampleBytes, sampleBlocks: sampleBlocks,
		measures: []measure{{count: Config.blocks, ours: side{send: sendWrites, receive: countBlocks}, yard: blockYard}},
	},
	Pages: {
		sizes:       []uint64{1 << 10, 4 << 10, 16 << 10, 32 << 10, 64 << 10, 256 << 10},
		sampleBytes: sampleBytes, sampleBlocks: sampleBlocks,
		batch:    func(size uint64) int { return int(min(max(windowBytes/4/size, 1), maxPages)) },
		measures: []measure{{count: Config.blocks, ours: side{send: sendPages, receive: countBlocks}, yard: blockYard}},
	},
	Scatter: {
		sizes:       []uint64{4 << 10, 64 << 10},
		sampleBytes: sampleBytes, sampleBlocks: sampleBlocks,
		batch:   func(uint64) int { return defaultTargets },
		targets: true, group: true,
		measures: []measure{{count: Config.blocks, ours: side{send: sendScatters, receive: countBlocks}, yard: blockYard}},
	},
	Imm: {
		sizes: []uint64{immSize}, size: immSize, pool: immPool,
		sampleBytes: rateOps * immSize, sampleBlocks: rateOps,
		measures: []measure{
			{latency: true, count: pings, ours: side{send: sendPings, receive: answerPings}, yard: pingYard},
			{count: Config.blocks, ours: side{send: sendImms, receive: countBlocks}, yard: floodYard},
		},
	},
	Message: {
		sizes: []uint64{8, 64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10}, maxSize: hawser.MaxMessage, pool: hawser.MaxMessage,
		sampleBytes: messageBytes, sampleBlocks: messageOps,
		measures: []measure{
			{latency: true, count: pings, ours: side{send: pingMessages, receive: answerMessages}, yard: pingYard},
			{count: Config.blocks, ours: side{send: sendMessages, receive: takeMessages}, yard: floodYard},
		},
		corrupt: func(r *receiver, _ uint64) uint64 { return r.wrong },
	},
	Barrier: {
		sizes: []uint64{immSize}, size: immSize, pool: immPool,
		sampleBytes: rateOps * immSize, sampleBlocks: rateOps,
		group:    true,
		measures: []measure{{latency: true, count: pings, ours: side{send: sendBarriers, receive: joinBarriers}, yard: meshYard}},
		corrupt:  func(*receiver, uint64) uint64 { return 0 }, // a barrier carries nothing
	},
}

func pings(c Config) int { return c.Pings }

func kinds() string {
	var names []string
	for k := range scenarios {
		names = append(names, string(k))
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// Sizes is the default sweep of a scenario, nil for one that does not exist.
func (k Kind) Sizes() []uint64 {
	if s := scenarios[k]; s != nil {
		return slices.Clone(s.sizes)
	}
	return nil
}

func (k *scenario) batchName() string {
	if k.targets {
		return "targets"
	}
	return "pages of one operation"
}

func (k *scenario) maxBatch() int {
	if k.targets {
		return hawser.MaxTargets
	}
	return maxCount
}
