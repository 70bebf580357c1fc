package stage

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/hawser-project/hawser/reshard"
)

// Boxes of random shapes with random strides move element by element as they should, and nothing else changes.
func TestMoveRandom(t *testing.T) {
	types := []reshard.DType{reshard.F32, reshard.F16, reshard.BF16, reshard.U8, reshard.I64}
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 1))
		from := types[r.IntN(len(types))]
		to, kind := from, "raw"
		if from != reshard.U8 && from != reshard.I64 && r.IntN(2) == 0 {
			to, kind = types[r.IntN(3)], "cast"
		}
		shape := make([]int64, 1+r.IntN(5))
		for d := range shape {
			shape[d] = 1 + r.Int64N(9)
			if r.IntN(20) == 0 {
				shape[d] = 100 + r.Int64N(100)
			}
		}
		for product(shape) > 1<<16 {
			shape[r.IntN(len(shape))] = 1
		}
		p := reshard.Piece{From: from, To: to, Shape: shape, Offset: r.Int64N(50), Dst: r.Int64N(50)}
		var srcSize, dstSize int64
		p.SrcStride, srcSize = shuffled(r, shape, from.Size())
		p.DstStride, dstSize = shuffled(r, shape, to.Size())
		src := make([]byte, p.Offset+srcSize)
		for i := range src {
			src[i] = byte(r.Uint32())
		}
		dst := bytes.Repeat([]byte{0xa5}, int(p.Dst+dstSize))
		want := bytes.Clone(dst)
		each(shape, func(index []int64) {
			a, b := src[p.Offset+dot(index, p.SrcStride):][:from.Size()], want[p.Dst+dot(index, p.DstStride):][:to.Size()]
			if from == to {
				copy(b, a)
			} else {
				put(b, to, get(a, from))
			}
		})
		s := slice(p, reshard.Codec{Kind: kind}, int64(len(src)), int64(len(dst)))
		if err := Check(s); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		var cpu CPU
		if err := cpu.Stage(t.Context(), s, &s.Tasks[0], [][]byte{src}, nil, dst); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(dst, want) {
			t.Fatalf("seed %d: %s of %v, strides %v to %v: %x, want %x", seed, kind, shape, p.SrcStride, p.DstStride, dst, want)
		}
	}
}

// slice is that of a source with one piece.
func slice(p reshard.Piece, c reshard.Codec, source, staging int64) *reshard.Slice {
	return &reshard.Slice{
		Source: true, Stages: []string{"layer-0"}, Buffers: []int64{source}, Tensors: []string{"w"}, Codecs: []reshard.Codec{c},
		Tasks: []reshard.Task{{Size: staging, Pieces: []reshard.Piece{p}}},
	}
}

// Columns of the same rows, for more destinations than are moved at the same time, are the same together as one by one.
func TestMoveBeside(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 2))
		rows, n := 1+r.Int64N(12), 2+r.IntN(2*maxBeside)
		from, to, kind := reshard.BF16, reshard.BF16, "raw"
		if r.IntN(2) == 0 {
			from, to, kind = reshard.F32, reshard.BF16, "cast"
		}
		var pieces []reshard.Piece
		cols, staged := int64(0), int64(0)
		for range n {
			wide := 1 + r.Int64N(40)
			pieces = append(pieces, reshard.Piece{
				From: from, To: to, Shape: []int64{rows, wide}, Offset: cols * from.Size(), Dst: staged, DstStride: []int64{wide * to.Size(), to.Size()},
				Origin: []int64{3, cols},
			})
			cols, staged = cols+wide, staged+rows*wide*to.Size()
		}
		for i := range pieces {
			pieces[i].SrcStride = []int64{cols * from.Size(), from.Size()}
		}
		src := make([]byte, rows*cols*from.Size())
		for i := range src {
			src[i] = byte(r.Uint32())
		}
		s := slice(pieces[0], reshard.Codec{Kind: kind}, int64(len(src)), staged)
		var cpu CPU
		want, got := make([]byte, staged), make([]byte, staged)
		for _, p := range pieces {
			s.Tasks[0].Pieces = []reshard.Piece{p}
			if err := cpu.Stage(t.Context(), s, &s.Tasks[0], [][]byte{src}, nil, want); err != nil {
				t.Fatal(err)
			}
		}
		s.Tasks[0].Pieces = pieces
		if err := Check(s); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if k := besides(pieces); k != min(n, maxBeside) {
			t.Fatalf("seed %d: %d of %d pieces are beside the first", seed, k, n)
		}
		if err := cpu.Stage(t.Context(), s, &s.Tasks[0], [][]byte{src}, nil, got); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("seed %d: %d pieces of %d rows, %s: together they differ (%v)", seed, n, rows, kind, err)
		}
		pieces[1].Origin = []int64{4, pieces[1].Origin[1]}
		if Beside(&pieces[0], &pieces[1]) {
			t.Fatal("other rows are beside")
		}
	}
}
