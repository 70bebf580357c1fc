package weights

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/reshard"
)

// TestExchangeIsMaximum: after each stage all sources that share a block have the largest of what they had, what is not a number included,
// and other blocks are as they were.
func TestExchangeIsMaximum(t *testing.T) {
	onNetworks(t, func(t *testing.T, open network) {
		const sources, blocks, stages = 3, 20, 5
		ex := newExchanges(t, open, sources, blocks, stages)
		rng := rand.New(rand.NewPCG(1, 2))
		for stage := range stages {
			before := make([][]float32, sources)
			after := make([][]float32, sources)
			for s := range before {
				for range blocks + 1 { // the last one is the source's own
					before[s] = append(before[s], rng.Float32())
				}
				if s == stage%sources {
					before[s][7] = float32(math.NaN())
				}
				after[s] = append(after[s], before[s]...)
			}
			var wg sync.WaitGroup
			for s := range ex {
				wg.Go(func() {
					if err := ex[s].e.trade(limit(t), &ex[s].slice.Amax[stage], after[s]); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			for s := range after {
				for b, got := range after[s] {
					want := before[s][b]
					for o := range before {
						if b < blocks {
							want = larger(want, before[o][b])
						}
					}
					if math.Float32bits(got) != math.Float32bits(want) && (got == got || want == want) {
						t.Fatalf("stage %d source %d block %d: %v, want %v", stage, s, b, got, want)
					}
				}
			}
		}
	})
}

type exchanger struct {
	e     *exchange
	slice *reshard.Slice
}

// newExchanges makes sources that all share the first blocks of their tables, in two ranges.
func newExchanges(t testing.TB, open network, sources, blocks, stages int) (all []exchanger) {
	shared := []reshard.BlockRange{{First: 0, Len: 5}, {First: 5, Len: blocks - 5}}
	size := int64(4 * blocks)
	for s := range sources {
		slice := &reshard.Slice{Source: true, Rank: s}
		for stage := range stages {
			a := reshard.Amax{Stage: stage, Table: blocks + 1}
			for o := range sources {
				if o != s { // a place of its own for each partner and stage
					a.Peers = append(a.Peers, reshard.Exchange{
						Rank: o, Blocks: shared, Inbox: int64(stage*sources+s) * size, Answer: int64(stage*sources+o) * size,
					})
				}
			}
			slice.Amax = append(slice.Amax, a)
		}
		eng := open(t, fmt.Sprint("p", s))
		in, out := inboxBytes(slice)
		c, err := eng.Imms().Take()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, exchanger{&exchange{
			eng: eng, inbox: alloc(t, eng, in)[0], outbox: alloc(t, eng, out)[0], counter: c, partners: map[int]*partner{},
		}, slice})
	}
	for s := range all {
		for o := range all {
			if o == s {
				continue
			}
			rem, err := all[s].e.eng.Import(limit(t), all[o].e.inbox.Descriptor(all[o].e.inbox.All(), hawser.RightWrite))
			if err != nil {
				t.Fatal(err)
			}
			all[s].e.partners[o] = &partner{peer: rem.Peer(), inbox: rem, imm: all[o].e.counter.Imm()}
		}
	}
	return all
}
