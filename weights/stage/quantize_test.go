package stage

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/hawser-project/hawser/moe/numeric"
	"github.com/hawser-project/hawser/reshard"
)

// sharding cuts a tensor into boxes, each held by a source of its own, at places that need not be block borders.
type sharding struct {
	t     *tensor
	codec reshard.Codec
	from  reshard.DType
	boxes [][2][]int64 // lo, hi
}

func randomSharding(r *rand.Rand) *sharding {
	s := &sharding{t: &tensor{}, from: []reshard.DType{reshard.BF16, reshard.F16, reshard.F32}[r.IntN(3)]}
	s.codec = reshard.Codec{Kind: fp8, Block: [2]int{1 << r.IntN(6), 1 << r.IntN(6)}, Recip: r.IntN(3) == 0}
	if r.IntN(3) == 0 {
		s.codec.Block[1] = 128 + r.IntN(3)*64
	}
	if r.IntN(3) == 0 {
		s.codec.Scale = reshard.F8E8M0
	}
	if r.IntN(4) == 0 {
		s.codec.Floor = 0.01
	}
	for range r.IntN(3) {
		s.t.shape = append(s.t.shape, 1+r.Int64N(3))
	}
	s.t.shape = append(s.t.shape, 1+r.Int64N(50), 1+r.Int64N(150))
	if r.IntN(8) == 0 {
		s.t.shape = s.t.shape[len(s.t.shape)-1:]
	}
	s.t.values = hardValues(r, s.t.elements(), s.from)
	if r.IntN(2) == 0 { // a block of zeros, some of them negative
		for k := range s.t.elements() {
			if b := newOracleBlock(s, k); b == [3]int64{} {
				s.t.values[k] = float32(math.Copysign(0, float64(r.IntN(2))-0.5))
			}
		}
	}
	s.boxes = [][2][]int64{{make([]int64, len(s.t.shape)), slices.Clone(s.t.shape)}}
	for range r.IntN(5) { // cut one of them
		i, d := r.IntN(len(s.boxes)), r.IntN(len(s.t.shape))
		lo, hi := s.boxes[i][0], s.boxes[i][1]
		if hi[d]-lo[d] < 2 {
			continue
		}
		cut := lo[d] + 1 + r.Int64N(hi[d]-lo[d]-1)
		lo2, hi1 := slices.Clone(lo), slices.Clone(hi)
		lo2[d], hi1[d] = cut, cut
		s.boxes[i] = [2][]int64{lo, hi1}
		s.boxes = append(s.boxes, [2][]int64{lo2, hi})
	}
	return s
}

func newOracleBlock(s *sharding, k int64) [3]int64 { return (&oracle{t: s.t, codec: s.codec}).block(k) }

// source makes the slice and the buffer of the source that holds a box. It sends the scales of all its blocks.
func (s *sharding) source(r *rand.Rand, lo, hi []int64) (*reshard.Slice, []byte) {
	n := len(lo)
	shape := make([]int64, n)
	for d := range shape {
		shape[d] = hi[d] - lo[d]
	}
	p := reshard.Piece{From: s.from, To: reshard.F8E4M3, Shape: shape, Offset: r.Int64N(9), Dst: r.Int64N(9), Origin: lo, BlockRows: 1}
	bc := int64(s.codec.Block[1])
	p.BlockCols = int((lo[n-1]%bc + shape[n-1] + bc - 1) / bc)
	if n > 1 {
		br := int64(s.codec.Block[0])
		p.BlockRows = int((lo[n-2]%br + shape[n-2] + br - 1) / br)
	}
	var srcSize, dstSize int64
	p.SrcStride, srcSize = shuffled(r, shape, s.from.Size())
	p.DstStride, dstSize = shuffled(r, shape, 1)
	p.Maxima = r.IntN(5)
	p.ScaleHi = [2]int{p.BlockRows, p.BlockCols}
	p.Scale = p.Dst + dstSize
	p.ScaleStride = dense(s.blocks(&p), s.scaleSize())
	size := p.Scale + product(s.blocks(&p))*s.scaleSize()
	src := make([]byte, p.Offset+srcSize)
	index := make([]int64, n)
	each(shape, func(i []int64) {
		for d := range i {
			index[d] = i[d] + lo[d]
		}
		put(src[p.Offset+dot(i, p.SrcStride):], s.from, s.t.at(index))
	})
	sl := slice(p, s.codec, int64(len(src)), size)
	sl.Amax = []reshard.Amax{{Table: p.Maxima + int(product(s.blocks(&p)))}}
	return sl, src
}

func (s *sharding) scaleSize() int64 {
	if s.codec.Scale == reshard.F8E8M0 {
		return 1
	}
	return 4
}

// blocks is the shape of a piece in blocks.
func (s *sharding) blocks(p *reshard.Piece) []int64 {
	b := slices.Clone(p.Shape)
	n := len(b)
	b[n-1] = int64(p.BlockCols)
	if n > 1 {
		b[n-2] = int64(p.BlockRows)
	}
	return b
}

// global names the block of a tensor that is a block of a piece.
func (s *sharding) global(p *reshard.Piece, block []int64) [3]int64 {
	n := len(block)
	var b [3]int64
	for d := range n - 2 {
		b[0] = b[0]*s.t.shape[d] + p.Origin[d] + block[d]
	}
	b[2] = p.Origin[n-1]/int64(s.codec.Block[1]) + block[n-1]
	if n > 1 {
		b[1] = p.Origin[n-2]/int64(s.codec.Block[0]) + block[n-2]
	}
	return b
}

// Whatever the sharding, the shards quantized apart, with maxima exchanged, are the tensor quantized whole, bit for bit, values and scales.
func TestFP8ShardsEqualWhole(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 2))
		s := randomSharding(r)
		o := newOracle(s.t, s.codec)
		var all []*reshard.Slice
		var buffers [][]byte
		var tables [][]float32
		agreed := map[[3]int64]float32{}
		var cpu CPU
		for _, b := range s.boxes {
			sl, src := s.source(r, b[0], b[1])
			if err := Check(sl); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			table := make([]float32, sl.Amax[0].Table)
			if err := cpu.Amax(t.Context(), sl, &sl.Tasks[0], [][]byte{src}, table); err != nil {
				t.Fatal(err)
			}
			s.eachBlock(sl, func(at int, b [3]int64) { agreed[b] = max(agreed[b], table[at]) })
			all, buffers, tables = append(all, sl), append(buffers, src), append(tables, table)
		}
		for i, sl := range all {
			s.eachBlock(sl, func(at int, b [3]int64) { tables[i][at] = agreed[b] })
			dst := make([]byte, sl.Tasks[0].Size)
			if err := cpu.Stage(t.Context(), sl, &sl.Tasks[0], [][]byte{buffers[i]}, tables[i], dst); err != nil {
				t.Fatal(err)
			}
			if err := s.compare(o, sl, dst); err != nil {
				t.Fatalf("seed %d, box %v of %v, %+v: %v", seed, s.boxes[i], s.t.shape, s.codec, err)
			}
			if len(all) > 1 {
				continue
			}
			clear(dst) // the whole tensor needs no table
			if err := cpu.Stage(t.Context(), sl, &sl.Tasks[0], [][]byte{buffers[i]}, nil, dst); err != nil {
				t.Fatal(err)
			}
			if err := s.compare(o, sl, dst); err != nil {
				t.Fatalf("seed %d, whole, %v: %v", seed, s.t.shape, err)
			}
		}
	}
}

func (s *sharding) eachBlock(sl *reshard.Slice, f func(at int, b [3]int64)) {
	p := &sl.Tasks[0].Pieces[0]
	at := p.Maxima
	each(s.blocks(p), func(block []int64) {
		f(at, s.global(p, block))
		at++
	})
}

func (s *sharding) compare(o *oracle, sl *reshard.Slice, dst []byte) (err error) {
	p := &sl.Tasks[0].Pieces[0]
	each(p.Shape, func(index []int64) {
		k := int64(0)
		for d, i := range index {
			k = k*s.t.shape[d] + p.Origin[d] + i
		}
		if got, want := dst[p.Dst+dot(index, p.DstStride)], o.value(k); got != want && err == nil {
			err = fmt.Errorf("element %v, %v by %v: %#x, want %#x", index, s.t.values[k], o.scale(o.block(k)), got, want)
		}
	})
	each(s.blocks(p), func(block []int64) {
		at, want := p.Scale+dot(block, p.ScaleStride), o.scale(s.global(p, block))
		var got float32
		if s.codec.Scale == reshard.F8E8M0 {
			got = numeric.FromE8M0(dst[at])
		} else {
			got = math.Float32frombits(le.Uint32(dst[at:]))
		}
		if got != want && err == nil {
			err = fmt.Errorf("scale of block %v: %v, want %v", block, got, want)
		}
	})
	return err
}

// quarter is a piece of 300 x 300 BF16 at row 100, column 200 of a tensor, with blocks of 128.
func quarter() (*reshard.Slice, []byte) {
	src := make([]byte, 2*180000)
	for i := range 180000 {
		le.PutUint16(src[2*i:], numeric.BF16(float32(i%977)/977-0.3))
	}
	return quarterSlice(), src
}

func quarterSlice() *reshard.Slice {
	p := reshard.Piece{
		From: reshard.BF16, To: reshard.F8E4M3, Shape: []int64{2, 300, 300}, SrcStride: dense([]int64{2, 300, 300}, 2), DstStride: dense([]int64{2, 300, 300}, 1),
		Origin: []int64{7, 100, 200}, BlockRows: 4, BlockCols: 3, ScaleLo: [2]int{1, 1}, ScaleHi: [2]int{3, 3}, Scale: 180000, ScaleStride: []int64{16, 8, 4},
	}
	return slice(p, reshard.Codec{Kind: fp8}, 360000, 180032)
}

// The scales that are another's stay with the other: only a box of blocks is written.
func TestScaleBox(t *testing.T) {
	s, src := quarter()
	p := &s.Tasks[0].Pieces[0]
	if err := Check(s); err != nil {
		t.Fatal(err)
	}
	dst := make([]byte, s.Tasks[0].Size)
	var cpu CPU
	if err := cpu.Stage(t.Context(), s, &s.Tasks[0], [][]byte{src}, nil, dst); err != nil {
		t.Fatal(err)
	}
	for m := range 2 {
		for i := range 2 {
			for j := range 2 {
				rows, cols := [2]int{28 + i*128, 156 + i*128}, [2]int{56 + j*128, min(300, 184+j*128)}
				amax := float32(0)
				for r := rows[0]; r < rows[1]; r++ {
					for c := cols[0]; c < cols[1]; c++ {
						amax = max(amax, float32(math.Abs(float64(get(src[2*((m*300+r)*300+c):], reshard.BF16)))))
					}
				}
				if got := math.Float32frombits(le.Uint32(dst[180000+16*m+8*i+4*j:])); got != amax/448 {
					t.Fatalf("scale %d, %d, %d: %v, want %v", m, i, j, got, amax/448)
				}
			}
		}
	}
	p.Dst = -1 // scales alone
	again := make([]byte, s.Tasks[0].Size)
	if err := cpu.Stage(t.Context(), s, &s.Tasks[0], [][]byte{src}, nil, again); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(again[180000:], dst[180000:]) || slices.ContainsFunc(again[:180000], func(b byte) bool { return b != 0 }) {
		t.Fatal("scales alone: other scales, or values")
	}
}

func TestNonFinite(t *testing.T) {
	for _, x := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))} {
		s, src := quarter()
		put(src[2*((300+299)*300+150):], reshard.BF16, x)
		dst := make([]byte, s.Tasks[0].Size)
		var cpu CPU
		table := make([]float32, 24)
		for name, err := range map[string]error{
			"amax":  cpu.Amax(t.Context(), s, &s.Tasks[0], [][]byte{src}, table),
			"stage": cpu.Stage(t.Context(), s, &s.Tasks[0], [][]byte{src}, nil, dst),
		} {
			var e *NonFiniteError
			if !errors.Is(err, ErrCorrupt) || !errors.As(err, &e) || e.Tensor != "w" || !slices.Equal(e.Index, []int64{8, 399, 350}) || e.Value != x && x == x {
				t.Fatalf("%s: %v", name, err)
			}
		}
		cpu.AllowNonFinite = true
		if err := cpu.Stage(t.Context(), s, &s.Tasks[0], [][]byte{src}, nil, dst); err != nil {
			t.Fatal(err)
		}
		if got := dst[(300+299)*300+150] & 0x7f; got != 0x7f {
			t.Fatalf("%v became %#x", x, got)
		}
		if got, want := dst[(300+299)*300+151], byte(0x7f); x == x && got != 0 && got != 0x80 || x != x && got == want {
			t.Fatalf("the neighbour of %v became %#x", x, got)
		}
		table[14] = x // as a partner's maximum
		cpu.AllowNonFinite = false
		s, src = quarter()
		if err := cpu.Stage(t.Context(), s, &s.Tasks[0], [][]byte{src}, table, dst); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("a partner's %v: %v", x, err)
		}
	}
}

func TestStageEndsWithItsContext(t *testing.T) {
	s, src := quarter()
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	cancel(stop)
	var cpu CPU
	if err := cpu.Stage(ctx, s, &s.Tasks[0], [][]byte{src}, nil, make([]byte, s.Tasks[0].Size)); !errors.Is(err, stop) {
		t.Fatal(err)
	}
	if err := cpu.Amax(ctx, s, &s.Tasks[0], [][]byte{src}, make([]float32, 24)); !errors.Is(err, stop) {
		t.Fatal(err)
	}
}

func TestStageDoesNotAllocate(t *testing.T) {
	s, src := quarter()
	dst, table := make([]byte, s.Tasks[0].Size), make([]float32, 24)
	var cpu CPU
	if n := testing.AllocsPerRun(20, func() {
		_ = cpu.Amax(t.Context(), s, &s.Tasks[0], [][]byte{src}, table)
		_ = cpu.Stage(t.Context(), s, &s.Tasks[0], [][]byte{src}, table, dst)
		_ = cpu.Stage(t.Context(), s, &s.Tasks[0], [][]byte{src}, nil, dst)
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

// BenchmarkFP8 quantizes a layer's projection, 4096 x 4096, on one core: elements per second.
func BenchmarkFP8(b *testing.B) {
	for _, from := range []reshard.DType{reshard.BF16, reshard.F32} {
		shape := []int64{4096, 4096}
		p := reshard.Piece{
			From: from, To: reshard.F8E4M3, Shape: shape, SrcStride: dense(shape, from.Size()), DstStride: dense(shape, 1), Origin: []int64{0, 0},
			BlockRows: 32, BlockCols: 32, ScaleHi: [2]int{32, 32}, Scale: 1 << 24, ScaleStride: []int64{128, 4},
		}
		src := make([]byte, (1<<24)*from.Size())
		for i := range 1 << 24 {
			put(src[int64(i)*from.Size():], from, float32(i%1013)/1013-0.5)
		}
		s := slice(p, reshard.Codec{Kind: fp8}, int64(len(src)), 1<<24+4096)
		dst := make([]byte, s.Tasks[0].Size)
		var cpu CPU
		b.Run(from.String(), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := cpu.Stage(b.Context(), s, &s.Tasks[0], [][]byte{src}, nil, dst); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)*(1<<24)/b.Elapsed().Seconds()/1e6, "Melem/s")
		})
	}
}
