//go:build !race

package cpu

import (
	"testing"

	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/proto"
)

// A step allocates nothing, shared by workers or not.
func TestStepsDoNotAllocate(t *testing.T) {
	for _, tokens := range []int{2, 64} {
		s := dsv3(2, tokens)
		s.procs, s.meta, s.align, s.hidden = 3, true, 4, 2048
		w := newWorld(t, s, 1)
		w.step(1)
		lane, in, out := w.lanes[0], &w.ins[0], &w.outs[0]
		out.ZeroPadding = true
		runs, counts, offsets := w.runs(0)
		backs := []backend.Back{{N: len(w.rows[0][0]), Slot: 0}}
		red := backend.Reduction{Out: w.tensor(backend.BF16, in.N, w.hidden), Weights: in.Weights, Gone: []uint64{2}, Rescale: true, Bias: []backend.Tensor{w.tensor(backend.F32, in.N, w.hidden)}}
		seq := uint64(1)
		if n := testing.AllocsPerRun(50, func() {
			seq++
			for _, err := range []error{
				lane.Count(0, seq, in, seq%2 == 0), lane.Pack(0, seq, in, backend.Quantize{On: true}, proto.Header{Flags: proto.FlagMeta}),
				lane.Unpack(0, seq, runs, out), lane.Arrange(0, seq, nil, counts, offsets, out), lane.PackCombine(0, seq, w.y[0], backs), lane.Reduce(0, seq, &red),
			} {
				if err != nil {
					t.Fatal(err)
				}
			}
		}); n != 0 {
			t.Errorf("%d tokens: %v allocations", tokens, n)
		}
		w.close()
	}
}
