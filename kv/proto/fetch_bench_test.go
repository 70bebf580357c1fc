package proto

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/hawser-project/hawser/kv/pool"
)

// benchDesk has pages for many attempts of 128, and does not look at what the machine does.
func benchDesk(t testing.TB, attempts int) *desk {
	pages := 128 * attempts
	p, err := pool.New(pages, 1)
	if err != nil {
		t.Fatal(err)
	}
	k := newDesk(t, func(c *DecoderConfig) {
		c.Topology, c.Pools, c.TailSlots, c.TailBytes = deskTopology(t, pages, 1, 1), []*pool.Pool{p}, attempts, 64
	})
	k.host("a", deskTopology(t, pages, 1, 1), 0)
	k.d.Warm(k.now, "a")
	k.run()
	k.fast = true
	return k
}

var benchFrom = []Source{{[]string{"a"}}}

// quick asks for a prompt without any of the tests' checks.
func (k *desk) quick(id string, pages int) Request {
	r, err := k.d.Fetch(k.now, Fetch{ID: id, Prompt: Prompt{Tokens: 16 * pages, Key: id}, From: benchFrom, Tail: true})
	if err != nil {
		k.t.Fatal(err)
	}
	return r
}

// BenchmarkAttempt is the machine's part of an attempt: Fetch, Dispatch, Accept, Ready, Release. The time includes the encoding of Dispatch
// and the decoding of Accept, and a stand-in for the prefiller.
func BenchmarkAttempt(b *testing.B) {
	for _, c := range []struct{ pages, live int }{{0, 1}, {1, 1}, {128, 1}, {128, 1000}} {
		b.Run(fmt.Sprintf("pages=%d,live=%d", c.pages, c.live), func(b *testing.B) {
			k := benchDesk(b, c.live+1)
			out := &benchOut{desk: k}
			k.d.out = out
			h := k.hosts["a"]
			tokens := max(1, 16*c.pages)
			ring := make([]Request, c.live)
			seqs := make([]uint64, c.live)
			fetch := Fetch{ID: "request", Prompt: Prompt{Tokens: tokens, Key: "key"}, From: benchFrom, Tail: true}
			if c.pages == 0 {
				fetch.Pages, fetch.Spans = [][]uint32{{}}, []Span{{First: 1, N: 1}} // a tail alone
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				slot := i % c.live
				if ring[slot] != 0 {
					out.landed = out.expected
					k.d.Counted(k.now, seqs[slot])
					k.d.Release(k.now, ring[slot])
					out.landed = 0
				}
				k.now += 50 * time.Microsecond
				r, err := k.d.Fetch(k.now, fetch)
				if err != nil {
					b.Fatal(err)
				}
				ring[slot], seqs[slot] = r, k.d.lastSeq
				k.d.Message(k.now, h.peer, Encode(Head{Epoch: h.epoch}, &Accept{Seq: k.d.lastSeq, Granted: 1 << 60}))
				if at, ok := k.d.Next(); ok && at <= k.now {
					k.d.Tick(k.now)
				}
			}
			if s := k.d.Stats(); s.Ready+uint64(c.live) < s.Requests || s.Failed > 0 {
				b.Fatalf("%+v", s)
			}
		})
	}
}

// benchOut does as little as possible.
type benchOut struct {
	*desk
	expected, landed uint64
	bytes            int
}

func (o *benchOut) Send(_ Peer, data []byte)               { o.bytes += len(data) }
func (o *benchOut) Take(seq uint64) (uint32, error)        { return uint32(seq), nil }
func (o *benchOut) Expect(_ uint64, _ Peer, writes uint64) { o.expected = writes }
func (o *benchOut) Await(uint64, uint64)                   {}
func (o *benchOut) Landed(uint64, Peer) uint64             { return o.landed }
func (o *benchOut) Put(uint64)                             {}
func (o *benchOut) Ready(Request, Result)                  {}
func (o *benchOut) Quiet(Request)                          {}
func (o *benchOut) Note(Note)                              {}
func (o *benchOut) Fence(Peer)                             {}
func (o *benchOut) Verify(uint64, Peer, []uint64)          {}
func (o *benchOut) Connect(Link, string)                   {}
func (o *benchOut) Describe(Peer) ([][]byte, error)        { return nil, nil }
func (o *benchOut) Ended(_ Request, err error)             { o.t.Errorf("ended with %v", err) }

// TestMemoryOfAnAttempt: 10,000 attempts of 128 pages in flight.
func TestMemoryOfAnAttempt(t *testing.T) {
	const n = 5000
	k := benchDesk(t, n)
	out := &benchOut{desk: k}
	k.d.out = out
	before := heap()
	for range n {
		k.quick("request", 128)
	}
	per := (heap() - before) / n
	if s := k.d.Stats(); s.Live != n {
		t.Fatalf("%+v", s)
	}
	t.Logf("%d bytes per attempt, of it 512 its pages", per)
	if per > 3000 {
		t.Errorf("%d bytes per attempt, want at most 3,000", per)
	}
	runtime.KeepAlive(k)
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
