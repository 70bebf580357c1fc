package stage

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/hawser-project/hawser/reshard"
)

// Each of these would make staging read or write elsewhere, run for ever, or divide by zero.
func TestCheckRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		want   string
		change func(s *reshard.Slice, p *reshard.Piece)
	}{
		"codec":           {"codec 1 of 1", func(_ *reshard.Slice, p *reshard.Piece) { p.Codec = 1 }},
		"tensor":          {"tensor -1", func(_ *reshard.Slice, p *reshard.Piece) { p.Tensor = -1 }},
		"buffer":          {"buffer 9", func(_ *reshard.Slice, p *reshard.Piece) { p.Buffer = 9 }},
		"dimensions":      {"strides", func(_ *reshard.Slice, p *reshard.Piece) { p.SrcStride = p.SrcStride[1:] }},
		"empty":           {"shape", func(_ *reshard.Slice, p *reshard.Piece) { p.Shape[0] = 0 }},
		"source offset":   {"source", func(_ *reshard.Slice, p *reshard.Piece) { p.Offset = 2 }},
		"negative offset": {"source", func(_ *reshard.Slice, p *reshard.Piece) { p.Offset = -2 }},
		"source stride":   {"source", func(_ *reshard.Slice, p *reshard.Piece) { p.SrcStride[0]++ }},
		"no stride":       {"source", func(_ *reshard.Slice, p *reshard.Piece) { p.SrcStride[1] = 0 }},
		"huge":            {"source", func(_ *reshard.Slice, p *reshard.Piece) { p.Shape = []int64{1 << 31, 1 << 31, 4} }},
		"many": {"source", func(_ *reshard.Slice, p *reshard.Piece) {
			p.Shape = []int64{8e4, 8e4, 8e4}
			p.SrcStride = []int64{1, 1, 1}
		}},
		"staging":          {"staging", func(_ *reshard.Slice, p *reshard.Piece) { p.Dst = 33 }},
		"staging stride":   {"staging", func(_ *reshard.Slice, p *reshard.Piece) { p.DstStride[1] = 400 }},
		"rows of blocks":   {"blocks", func(_ *reshard.Slice, p *reshard.Piece) { p.BlockRows = 3 }},
		"origin":           {"origin", func(_ *reshard.Slice, p *reshard.Piece) { p.Origin[1] = -1 }},
		"origin of blocks": {"blocks", func(_ *reshard.Slice, p *reshard.Piece) { p.Origin[1] = 0 }},
		"table":            {"maxima", func(s *reshard.Slice, _ *reshard.Piece) { s.Amax = []reshard.Amax{{Table: 23}} }},
		"table's start":    {"maxima", func(_ *reshard.Slice, p *reshard.Piece) { p.Maxima = -1 }},
		"scales":           {"scales", func(_ *reshard.Slice, p *reshard.Piece) { p.ScaleHi[0] = 5 }},
		"scales' place":    {"scales", func(_ *reshard.Slice, p *reshard.Piece) { p.Scale = 180004 }},
		"type":             {"cannot turn", func(_ *reshard.Slice, p *reshard.Piece) { p.From = reshard.I16 }},
		"scales' type":     {"cannot turn", func(s *reshard.Slice, _ *reshard.Piece) { s.Codecs[0].Scale = reshard.BF16 }},
		"floor":            {"floor", func(s *reshard.Slice, _ *reshard.Piece) { s.Codecs[0].Floor = 1e-40 }},
		"block":            {"blocks", func(s *reshard.Slice, _ *reshard.Piece) { s.Codecs[0].Block[0] = -128 }},
		"run":              {"run 0", func(s *reshard.Slice, _ *reshard.Piece) { s.Tasks[0].Runs = []reshard.Run{{From: 180000, Len: 33}} }},
		"direct": {"run 0", func(s *reshard.Slice, _ *reshard.Piece) {
			s.Tasks[0] = reshard.Task{Runs: []reshard.Run{{From: 1, Len: 360000}}}
		}},
		"direct buffer": {"buffer 1", func(s *reshard.Slice, _ *reshard.Piece) { s.Tasks[0] = reshard.Task{Buffer: 1} }},
		"exchange": {"maxima of stage", func(s *reshard.Slice, _ *reshard.Piece) {
			s.Amax = []reshard.Amax{{Table: 24, Peers: []reshard.Exchange{{Blocks: []reshard.BlockRange{{First: 24, Len: 1}}}}}}
		}},
	} {
		s, _ := quarter()
		c.change(s, &s.Tasks[0].Pieces[0])
		if err := Check(s); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// tenth is a smaller quarter, with blocks of 13.
func tenth() *reshard.Slice {
	s := quarterSlice()
	p := &s.Tasks[0].Pieces[0]
	p.Shape, p.Origin, p.SrcStride, p.DstStride = []int64{2, 30, 30}, []int64{7, 10, 20}, dense([]int64{2, 30, 30}, 2), dense([]int64{2, 30, 30}, 1)
	p.Scale, s.Codecs[0].Block = 1800, [2]int{13, 13}
	s.Buffers[0], s.Tasks[0].Size = 3600, 1832
	return s
}

// What Check lets through never reaches outside of its memory.
func TestCheckedSlicesDoNotPanic(t *testing.T) {
	passed := 0
	_, src := quarter()
	src = src[:3600]
	for seed := range uint64(5000) {
		r := rand.New(rand.NewPCG(seed, 3))
		s := tenth()
		p := &s.Tasks[0].Pieces[0]
		odd := func() int64 {
			return []int64{0, 1, 2, 3, 10, 13, 29, 30, 60, 1800, -1, 1 << 40, 1<<63 - 1}[r.IntN(13)]
		}
		fields := []func(){
			func() { p.Shape[r.IntN(len(p.Shape))] = odd() },
			func() { p.SrcStride[r.IntN(3)] = odd() },
			func() { p.DstStride[r.IntN(3)] = odd() },
			func() { p.Origin[r.IntN(3)] = odd() },
			func() { p.Offset = odd() },
			func() { p.Dst = odd() },
			func() { p.BlockRows, p.BlockCols = r.IntN(6), r.IntN(6) },
			func() { p.ScaleLo[r.IntN(2)], p.ScaleHi[r.IntN(2)] = r.IntN(5)-1, r.IntN(5)-1 },
			func() { p.ScaleStride[r.IntN(3)] = odd() },
			func() { p.Scale = odd() },
			func() { p.Shape = p.Shape[:1+r.IntN(3)] },
			func() { s.Codecs[0].Kind, p.To = "raw", p.From },
			func() { s.Codecs[0].Kind, p.To = "cast", reshard.F32 },
		}
		for range 1 + r.IntN(3) {
			fields[r.IntN(len(fields))]()
		}
		s.Amax = []reshard.Amax{{Table: 24}}
		if Check(s) != nil {
			continue
		}
		passed++
		cpu := CPU{AllowNonFinite: true} // odd offsets make any bits of any numbers
		table := make([]float32, 24)
		if err := cpu.Amax(t.Context(), s, &s.Tasks[0], [][]byte{src}, table); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if err := cpu.Stage(t.Context(), s, &s.Tasks[0], [][]byte{src}, table, make([]byte, s.Tasks[0].Size)); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
	if passed < 100 {
		t.Fatalf("only %d slices passed", passed)
	}
}
