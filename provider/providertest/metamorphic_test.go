package providertest

import (
	"fmt"
	"hash/crc64"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/hawser-project/hawser/mem"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/shm"
	"github.com/hawser-project/hawser/provider/sim"
	"github.com/hawser-project/hawser/provider/tcp"
)

// way is one way to do the same work: over a network, in batches of some size, with completions taken so many at a time.
type way struct {
	name   string
	memory mem.Kind
	make   func(host string) provider.Provider
}

func ways(seed uint64) []way {
	decorate := func(under func(string) provider.Provider, wrap func(provider.Domain) provider.Domain) func(string) provider.Provider {
		return func(host string) provider.Provider { return Decorate(under(host), wrap) }
	}
	overShm := func(string) provider.Provider { return shm.New() }
	overTCP := func(string) provider.Provider { return tcp.New() }
	return []way{
		{"shm", mem.Shared, overShm},
		{"shm, foreign memory", mem.Private, overShm},
		{"tcp", mem.Heap, overTCP},
		{"sim", mem.Heap, sim.New(sim.Config{Seed: seed}).Provider},
		{"sim, ordered and lossy", mem.Heap, sim.New(sim.Config{Seed: seed, NIC: sim.NIC{Ordered: true, PeerDepth: 5}, Loss: 0.1}).Provider},
		{"sim, refusals end connections", mem.Heap, sim.New(sim.Config{Seed: seed, NIC: sim.NIC{AccessEnds: true}}).Provider},
		{"sim of EFA", mem.Heap, sim.New(sim.Config{Seed: seed, Rails: sim.EFA2x200()}).Provider},
		{"shm, reordered", mem.Shared, decorate(overShm, func(d provider.Domain) provider.Domain { return Reordering(d, seed) })},
		{"tcp, slow", mem.Heap, decorate(overTCP, func(d provider.Domain) provider.Domain { return Slow(d, 4) })},
	}
}

// deed is one request of the work, free of any network.
type deed struct {
	op       provider.Op
	from, to int // offsets
	n        int
	imm      uint32
	bad      bool // outside the memory that was granted
}

const (
	workSource = 64 << 10
	workSlot   = 3000 // no two deeds write to one byte
	workImms   = 17
)

func work(rng *rand.Rand, total int) []deed {
	deeds := make([]deed, total)
	for i := range deeds {
		x := deed{op: provider.OpWrite, to: i * workSlot, n: rng.IntN(workSlot), imm: rng.Uint32N(workImms)}
		switch rng.IntN(8) {
		case 0:
			x.op = provider.OpSend
		case 1, 2, 3, 4:
			x.op = provider.OpWriteImm
		}
		if x.bad = x.op != provider.OpSend && rng.IntN(10) == 0; x.bad {
			x.n++ // an empty write is never bad
		}
		x.from = rng.IntN(workSource - x.n)
		deeds[i] = x
	}
	return deeds
}

// outcome is everything that the work leaves behind.
type outcome struct {
	memory   uint64
	statuses []provider.Status // by deed
	imms     map[uint32]int    // how often each came
	bytes    map[uint32]uint64 // the sum of their lengths
	messages []string          // sorted
}

var crc = crc64.MakeTable(crc64.ECMA)

// do does the work in one way.
func (v way) do(t *testing.T, seed uint64, deeds []deed, batch, take int) outcome {
	w := newWorld(t, Factory{Memory: v.memory, Network: func(*testing.T) Network { return Network{Provider: v.make} }})
	l := w.lane(w.open("a"), w.open("b"), len(deeds)*workSlot)
	rng := rand.New(rand.NewPCG(seed, 2))
	for i := range l.src.b[:workSource] {
		l.src.b[i] = byte(rng.Uint32())
	}
	a, b := l.from, l.to
	a.cs, b.cs = make([]provider.Completion, take), make([]provider.Completion, take)
	const boxes = 8
	box := w.mailbox(b, boxes, workSlot)
	for i := range boxes {
		box.post(i, workSlot)
	}
	out := outcome{imms: map[uint32]int{}, bytes: map[uint32]uint64{}}
	refused, wantRefused := map[uint32]int{}, map[uint32]int{}
	collect := func() {
		for _, c := range b.msgs {
			out.messages = append(out.messages, fmt.Sprintf("%d bytes, crc %x", c.Len, crc64.Checksum(box.bytes(c), crc)))
			box.post(box.slot[c.Token], workSlot)
		}
		b.msgs = b.msgs[:0]
	}
	apart := *l // for what must be refused, where that may end a connection
	if a.caps.AccessEnds {
		apart.peer, apart.back = w.connect(a, b)
		apart.key = apart.regrant()
	}
	var toks []uint64 // by deed
	for part := range slices.Chunk(deeds, batch) {
		var wrs []provider.WR
		var at []int // the deeds of wrs
		for _, x := range part {
			wr := l.write(x.from, x.to, x.n)
			if wr.Op = x.op; x.op == provider.OpWriteImm {
				wr.Imm = x.imm
			}
			if x.op == provider.OpSend {
				wr = send(l.peer, l.src, x.from, x.n)
			}
			if x.bad {
				wr.RemoteAddr = l.key.Base + uint64(len(l.dst.b)-x.n+1) // its last byte is one too far
				if x.op == provider.OpWriteImm {
					wantRefused[x.imm]++
				}
			}
			toks = append(toks, 0)
			if x.bad && a.caps.AccessEnds {
				wr.Peer, wr.RemoteKey, wr.RemoteAddr = apart.peer, apart.key.ID, wr.RemoteAddr-l.key.Base+apart.key.Base
				tok := a.post(wr)
				apart.refused(tok)
				toks[len(toks)-1] = tok[0]
				continue
			}
			wrs, at = append(wrs, wr), append(at, len(toks)-1)
		}
		for len(wrs) > 0 {
			got, err := a.tryPost(wrs)
			if err != nil {
				t.Fatal(err)
			}
			for i, tok := range got {
				toks[at[i]] = tok
			}
			wrs, at = wrs[len(got):], at[len(got):]
			w.pump()
			collect()
		}
	}
	w.until("the work is done", func() bool {
		collect()
		return a.isDone(toks...) && len(b.imms) >= a.immsOK
	})
	w.settle()
	collect()
	for _, tok := range toks {
		out.statuses = append(out.statuses, a.done[tok])
	}
	for _, c := range b.told {
		if c.Kind == provider.KindRefused {
			refused[c.Imm]++
			continue
		}
		out.imms[c.Imm]++
		out.bytes[c.Imm] += c.Len
	}
	if b.caps.Refusals && !maps.Equal(refused, wantRefused) {
		t.Errorf("refusals by immediate: %v, want %v", refused, wantRefused)
	}
	out.memory = crc64.Checksum(l.dst.b, crc)
	slices.Sort(out.messages)
	return out
}

// TestSameWorkSameOutcome does one seeded list of requests over every network, in batches of every kind. Memory, counts, messages and
// statuses must come out the same.
func TestSameWorkSameOutcome(t *testing.T) {
	rng := newRand(t)
	seed := rng.Uint64()
	deeds := work(rng, 400)
	var want outcome
	for i, v := range ways(seed) {
		for j, shape := range [][2]int{{1, 64}, {400, 1}, {7, 5}, {64, 64}} {
			t.Run(fmt.Sprintf("%s/Batch%dTake%d", v.name, shape[0], shape[1]), func(t *testing.T) {
				got := v.do(t, seed, deeds, shape[0], shape[1])
				if i+j == 0 {
					want = got
					return
				}
				if got.memory != want.memory {
					t.Errorf("memory has checksum %x, want %x", got.memory, want.memory)
				}
				if !slices.Equal(got.statuses, want.statuses) {
					t.Errorf("statuses of the requests: %v, want %v", got.statuses, want.statuses)
				}
				if !maps.Equal(got.imms, want.imms) || !maps.Equal(got.bytes, want.bytes) {
					t.Errorf("immediates: %v of %v bytes, want %v of %v", got.imms, got.bytes, want.imms, want.bytes)
				}
				if !slices.Equal(got.messages, want.messages) {
					t.Errorf("messages: %v, want %v", got.messages, want.messages)
				}
			})
		}
	}
	if len(want.messages) == 0 || len(want.imms) != workImms || !slices.Contains(want.statuses, provider.StatusAccess) {
		t.Errorf("the work is too poor: %d messages, %d immediates", len(want.messages), len(want.imms))
	}
}
