package cpu

import (
	"fmt"
	"testing"

	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/proto"
)

// dsv3 is the shape of a large model of today. Records carry FP8 and scales, results bf16.
func dsv3(ranks, tokens int) shape {
	return shape{
		ranks: ranks, tokens: tokens, hidden: 7168, topK: 8, experts: 256,
		in: backend.E4M3, x: backend.BF16, scale: backend.F32x128, wire: backend.BF16, out: backend.BF16,
	}
}

// Each stage of a step of one rank of four, against a copy of the bytes that the stage must write or, summing, read. MB/s are of these.
func BenchmarkStages(b *testing.B) {
	for _, tokens := range []int{128, 2048} {
		for procs := 1; procs <= 2; procs++ {
			b.Run(fmt.Sprintf("tokens=%d/procs=%d", tokens, procs), func(b *testing.B) { benchStages(b, tokens, procs) })
		}
	}
}

func benchStages(b *testing.B, tokens, procs int) {
	s := dsv3(4, tokens)
	s.procs = procs
	w := newBench(b, s)
	defer w.close()
	l, lane, in := &w.cfg[0], w.lanes[0], &w.ins[0]
	seq := uint64(0)
	stage := func(name string, bytes int, f func() error) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(bytes))
			b.ReportAllocs()
			for b.Loop() {
				seq++
				if err := f(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	if err := lane.Count(0, 1, in, false); err != nil {
		b.Fatal(err)
	}
	seq++
	records := len(lane.plan.Token)
	var runs []backend.Run
	var backs []backend.Back
	row := 0
	for place, n := range lane.plan.Counts { // everything comes back to this rank, as if it were all of them
		at := (place/l.Local+1)*l.HeadBytes + row*l.Dispatch
		for n := int(n); n > 0; n -= min(n, 1+tokens/32) {
			k := min(n, 1+tokens/32)
			runs = append(runs, backend.Run{From: w.mem[0].Send[at:], Row: row, Local: place % l.Local, N: k, Src: place / l.Local})
			backs = append(backs, backend.Back{Row: row, Local: place % l.Local, N: k, Slot: row, Own: true})
			row += k
			at += k * l.Dispatch
		}
	}
	out := backend.Output{X: w.tensor(w.shape.in, records, w.hidden), XScale: w.scales(records, false)}
	columns := out
	columns.XScale = w.scales(records, true)
	y := backend.Tensor{Type: backend.BF16, Shape: [3]int{0, records, w.hidden}, Data: make([]byte, 2*records*w.hidden)}
	red := backend.Reduction{Out: backend.Tensor{Type: backend.BF16, Shape: [3]int{0, in.N, w.hidden}, Data: make([]byte, 2*in.N*w.hidden)}, Weights: in.Weights}
	fp8 := *in
	fp8.X = backend.Tensor{Type: backend.E4M3, Shape: [3]int{0, in.N, w.hidden}, Data: w.noise(in.N * w.hidden)}
	fp8.XScale = w.scales(in.N, false)

	src, dst := w.mem[0].Results, make([]byte, records*l.Combine)
	memcpy := func(n int) func() error {
		return func() error {
			copy(dst[:n], src[:n])
			return nil
		}
	}
	stage("memcpy/dispatch", records*l.Dispatch, memcpy(records*l.Dispatch))
	stage("memcpy/combine", records*l.Combine, memcpy(records*l.Combine))
	stage("count", 4*in.N*w.topK, func() error { return lane.Count(0, seq, in, false) })
	stage("pack", records*l.Dispatch, func() error { return lane.Pack(0, seq, &fp8, backend.Quantize{}, proto.Header{}) })
	stage("quantize", records*l.Dispatch, func() error { return lane.Pack(0, seq, in, backend.Quantize{On: true}, proto.Header{}) })
	stage("unpack", records*l.Dispatch, func() error { return lane.Unpack(0, seq, runs, &out) })
	stage("unpack/columns", records*l.Dispatch, func() error { return lane.Unpack(0, seq, runs, &columns) })
	stage("packcombine", records*l.Combine, func() error { return lane.PackCombine(0, seq, y, backs) })
	stage("reduce", records*l.Combine, func() error { return lane.Reduce(0, seq, &red) })
}

// newBench is newWorld with one rank that sends its whole input, and numbers that are quick to make.
func newBench(b *testing.B, s shape) *world {
	one := s
	one.tokens = 1
	w := newWorld(b, one, 1) // only its backend and its random numbers are used
	w.shape = s
	c := s.config()
	l, err := proto.NewLayout(c)
	if err != nil {
		b.Fatal(err)
	}
	w.cfg[0] = l
	w.mem[0] = backend.Memory{Send: make([]byte, l.MaxRanks*l.HeadBytes+l.Records()*l.Dispatch), Results: make([]byte, l.Records()*l.Combine), Y: make([]byte, l.YRows*l.Combine)}
	lane, err := w.b.NewLane(backend.Spec{Layout: &w.cfg[0], In: s.in, Wire: s.wire, Scale: s.scale, Memory: w.mem[0]})
	if err != nil {
		b.Fatal(err)
	}
	w.lanes[0] = lane.(*Lane)
	in := backend.Input{N: s.tokens, X: backend.Tensor{Type: s.x, Shape: [3]int{0, s.tokens, s.hidden}}, IDs: backend.Tensor{Type: backend.I32, Shape: [3]int{0, s.tokens, s.topK}}}
	row := w.numbers(s.x, s.hidden)
	for range s.tokens {
		in.X.Data = append(in.X.Data, row...)
		for _, id := range w.rng.Perm(s.experts)[:s.topK] {
			in.IDs.Data = le.AppendUint32(in.IDs.Data, uint32(id))
		}
	}
	in.Weights = w.tensor(backend.F32, s.tokens, s.topK)
	for r := 0; r < len(w.mem[0].Results); r += 2 * s.hidden {
		copy(w.mem[0].Results[r:], row)
	}
	w.ins[0] = in
	return w
}
