package stage

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/hawser-project/hawser/moe/numeric"
	"github.com/hawser-project/hawser/reshard"
)

// planned is a pair of layouts of tensors that are quantized on their way, and the memory of both sides.
type planned struct {
	src, dst *reshard.Layout
	from     reshard.DType
	codec    reshard.Codec
	tensors  []*tensor
	sources  [][]byte // by rank
	dests    [][]byte
}

// lay puts a tensor's grid behind what the layout has.
func lay(l *reshard.Layout, ranks int, g reshard.Grid, bytes int64) {
	if l.Buffers == nil {
		for range ranks {
			l.Buffers = append(l.Buffers, []int64{0})
		}
	}
	at := l.Buffers[0][0]
	g.Offsets = []int64{at}
	for r := range l.Buffers {
		l.Buffers[r][0] = at + (bytes+7)/8*8 // room for the whole, on every rank
	}
	l.Grids = append(l.Grids, g)
}

func randomPlanned(r *rand.Rand) *planned {
	p := &planned{src: &reshard.Layout{Side: "train"}, dst: &reshard.Layout{Side: "infer"}, from: []reshard.DType{reshard.BF16, reshard.F32}[r.IntN(2)]}
	p.codec = reshard.Codec{Kind: fp8, Block: [2]int{1 + r.IntN(9), 1 + r.IntN(9)}, Recip: r.IntN(3) == 0}
	if r.IntN(2) == 0 {
		p.codec.Scale = reshard.F8E8M0
	}
	a := reshard.Mesh{Dims: []string{"x", "y"}, Shape: []int{1 + r.IntN(3), 1 + r.IntN(4)}}
	b := reshard.Mesh{Dims: []string{"x", "y"}, Shape: []int{1 + r.IntN(2), 1 + r.IntN(2)}}
	for i := range 1 + r.IntN(3) {
		t := &tensor{shape: []int64{1 + r.Int64N(40), 1 + r.Int64N(40)}}
		if r.IntN(3) == 0 {
			t.shape = slices.Insert(t.shape, 0, 1+r.Int64N(4))
		}
		t.values = hardValues(r, t.elements(), p.from)
		p.tensors = append(p.tensors, t)
		name := fmt.Sprintf("layers.%d.w%d", i%2, i)
		p.src.Tensors = append(p.src.Tensors, reshard.Tensor{Name: name, Shape: t.shape, DType: p.from})
		p.dst.Tensors = append(p.dst.Tensors, reshard.Tensor{Name: name, Shape: t.shape, DType: reshard.F8E4M3})
		place := func(kinds ...string) (all []reshard.Placement) {
			for range 2 {
				all = append(all, reshard.Placement{Kind: kinds[r.IntN(len(kinds))], Dim: r.IntN(len(t.shape))})
			}
			return all
		}
		lay(p.src, a.Shape[0]*a.Shape[1], reshard.Grid{Tensors: []int{i}, Mesh: a, Place: place("shard", "shard", "strided", "replicate")}, t.elements()*4)
		to := place("replicate", "replicate", "shard") // refused where a block is cut
		lay(p.dst, b.Shape[0]*b.Shape[1], reshard.Grid{Tensors: []int{i}, Mesh: b, Place: to, Codec: p.codec}, t.elements())
		lay(p.dst, b.Shape[0]*b.Shape[1], reshard.Grid{Tensors: []int{i}, Mesh: b, Place: to, Codec: p.codec, Scales: true}, t.elements()*4)
	}
	p.sources, p.dests = memory(p.src), memory(p.dst)
	return p
}

func memory(l *reshard.Layout) (all [][]byte) {
	for _, b := range l.Buffers {
		all = append(all, make([]byte, b[0]))
	}
	return all
}

// load puts the tensors into the sources.
func (p *planned) load() error {
	for rank := range p.sources {
		for _, f := range p.src.OnRank(rank) {
			t := p.tensors[f.Tensor]
			if err := f.Each(t.shape, p.from.Size(), func(index []int64, at int64) { put(p.sources[rank][at:], p.from, t.at(index)) }); err != nil {
				return err
			}
		}
	}
	return nil
}

// push carries a plan out.
func (p *planned) push(t *testing.T, plan *reshard.Plan) (shared int) {
	var all []*reshard.Slice
	var tables []map[int][]float32 // by source, stage
	var cpu CPU
	for rank, memory := range p.sources {
		s := plan.Source(rank)
		if err := Check(s); err != nil {
			t.Fatalf("source %d: %v", rank, err)
		}
		table := map[int][]float32{}
		for _, a := range s.Amax {
			table[a.Stage] = make([]float32, a.Table)
		}
		for i := range s.Tasks {
			if err := cpu.Amax(t.Context(), s, &s.Tasks[i], [][]byte{memory}, table[s.Tasks[i].Stage]); err != nil {
				t.Fatal(err)
			}
		}
		all, tables = append(all, s), append(tables, table)
	}
	inboxes := map[[3]int64]float32{} // rank, stage, offset
	exchange := func(f func(rank, stage int, x *reshard.Exchange, m []float32)) {
		for rank, s := range all {
			for i := range s.Amax {
				for k := range s.Amax[i].Peers {
					f(rank, s.Amax[i].Stage, &s.Amax[i].Peers[k], tables[rank][s.Amax[i].Stage])
				}
			}
		}
	}
	exchange(func(_, stage int, x *reshard.Exchange, m []float32) {
		at := x.Inbox
		for _, b := range x.Blocks {
			for _, v := range m[b.First : b.First+b.Len] {
				inboxes[[3]int64{int64(x.Rank), int64(stage), at}] = v
				at += 4
				shared++
			}
		}
	})
	exchange(func(rank, stage int, x *reshard.Exchange, m []float32) {
		at := x.Answer
		for _, b := range x.Blocks {
			for k := b.First; k < b.First+b.Len; k++ {
				m[k] = max(m[k], inboxes[[3]int64{int64(rank), int64(stage), at}])
				at += 4
			}
		}
	})
	for rank, s := range all {
		for i := range s.Tasks {
			task := &s.Tasks[i]
			staging := make([]byte, task.Size)
			if err := cpu.Stage(t.Context(), s, task, [][]byte{p.sources[rank]}, tables[rank][task.Stage], staging); err != nil {
				t.Fatal(err)
			}
			for _, run := range task.Runs {
				copy(p.dests[run.Peer][run.Offset:], staging[run.From:run.From+run.Len])
			}
		}
	}
	return shared
}

// compare looks at every value and every scale of every destination.
func (p *planned) compare() (err error) {
	for i, t := range p.tensors {
		o := newOracle(t, p.codec)
		for rank, memory := range p.dests {
			for _, f := range p.dst.OnRank(rank) {
				if f.Tensor != i {
					continue
				}
				shape, size, check := t.shape, int64(1), o.compareValue
				if f.Scales {
					shape, size, check = p.codec.Blocks(t.shape), p.codec.Normal().Scale.Size(), o.compareScale
				}
				e := f.Each(shape, size, func(index []int64, at int64) {
					if wrong := check(index, memory[at:]); wrong != nil && err == nil {
						err = fmt.Errorf("rank %d, %s%v: %w", rank, p.dst.Tensors[i].Name, index, wrong)
					}
				})
				err = errors.Join(err, e)
			}
		}
	}
	return err
}

func (o *oracle) compareValue(index []int64, b []byte) error {
	k := dot(index, dense(o.t.shape, 1))
	if want := o.value(k); b[0] != want {
		return fmt.Errorf("%#x, want %#x", b[0], want)
	}
	return nil
}

func (o *oracle) compareScale(index []int64, b []byte) error {
	n := len(index)
	block := [3]int64{0, index[n-2], index[n-1]}
	if n > 2 {
		block[0] = index[0]
	}
	got := numeric.FromE8M0(b[0])
	if o.codec.Scale != reshard.F8E8M0 {
		got = math.Float32frombits(le.Uint32(b))
	}
	if want := o.scale(block); got != want {
		return fmt.Errorf("scale %v, want %v", got, want)
	}
	return nil
}

// TestFP8ShardwiseEqualsFull plans random pushes, with blocks that sources share, carries them out, and compares with whole tensors.
func TestFP8ShardwiseEqualsFull(t *testing.T) {
	done, shared := 0, 0
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 4))
		p := randomPlanned(r)
		plan, err := reshard.Compute(t.Context(), p.src, p.dst, nil, reshard.Options{MaxWrite: 1 + r.Int64N(2000), SmallTensor: 1 + r.Int64N(500)})
		if errors.Is(err, reshard.ErrLayout) {
			continue // a destination cuts a block
		}
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if err := p.load(); err != nil {
			t.Fatal(err)
		}
		shared += p.push(t, plan)
		if err := p.compare(); err != nil {
			t.Fatalf("seed %d, %+v: %v", seed, p.codec, err)
		}
		done++
	}
	t.Logf("%d pushes, %d maxima exchanged", done, shared)
	if done < 50 || shared < 500 {
		t.Fatalf("only %d pushes, %d maxima exchanged", done, shared)
	}
}
