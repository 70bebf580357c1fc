package weights

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/reshard/models"
)

// TestQwen3 pushes a model of full size, 1.2 GB in 310 tensors, from 4 trainers to 2 ranks with fused parameters, twice, and compares every byte with what the whole
// tensors have there.
func TestQwen3(t *testing.T) {
	if testing.Short() || race {
		t.Skip("2.4 GB of memory; minutes under the race detector")
	}
	c, err := models.Reference("Qwen3-0.6B", "small")
	if err != nil {
		t.Fatal(err)
	}
	src, dst, err := c.Layouts(false)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorldOf(t, networks["shm"](), toy{}, src, dst, change{})
	whole := int64(0)
	for i := range src.Tensors {
		n := src.Tensors[i].DType.Size()
		for _, x := range src.Tensors[i].Shape {
			n *= x
		}
		whole += n
	}
	for v := Version(1); v < 3; v++ {
		ranks(len(w.pubs), func(r int) { densePieces(t, src, r, func(p piece) { p.fill(w.pubs[r].memory[p.buffer].Bytes(), v) }) })
		report, err := w.pushFilled(v)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("v%d: %d bytes in %v", v, report.Bytes, report.Wall)
		if report.Bytes < whole {
			t.Errorf("%d bytes were written, the model has %d", report.Bytes, whole)
		}
		ranks(len(w.recs), func(r int) {
			seen := map[string]bool{}
			densePieces(t, dst, r, func(p piece) {
				seen[p.name] = true
				if err := p.compare(w.recs[r].Active()[p.buffer].Bytes(), v); err != nil {
					t.Errorf("v%d, rank %d: %v", v, r, err)
				}
			})
			if len(seen) != len(src.Tensors) {
				t.Errorf("rank %d has %d of %d tensors", r, len(seen), len(src.Tensors))
			}
		})
	}
}

// ranks calls f for some ranks at once.
func ranks(n int, f func(r int)) {
	var wg sync.WaitGroup
	for r := range n {
		wg.Go(func() { f(r) })
	}
	wg.Wait()
}

// piece is what a rank has of a tensor: indices [first, first+row) of it, and so on rows times, every step, one after the other in a buffer.
type piece struct {
	name             string
	buffer           int
	offset           int64
	first, row, step int64
	rows             int64
}

// densePieces finds the pieces of a rank by the rule of torch.chunk alone: nothing of package reshard but the description is used. It takes only what the reference
// case has: grids that one dimension of a mesh cuts or copies, of BF16.
func densePieces(t *testing.T, l *reshard.Layout, rank int, f func(piece)) {
	if len(l.Fragments) > 0 {
		t.Error("a layout with single fragments")
	}
	for _, g := range l.Grids {
		inOrder := slices.IsSorted(g.Mesh.Ranks) && (g.Mesh.Ranks == nil || len(g.Mesh.Ranks) == g.Mesh.Shape[0])
		if len(g.Place) != 1 || !inOrder || len(g.Strides) > 0 || g.Scales || g.Codec.Kind != "" && g.Codec.Kind != "raw" {
			t.Errorf("a grid of %s that is not of the simple kind", l.Tensors[g.Tensors[0]].Name)
			continue
		}
		for i, at := range g.Offsets {
			tensor := &l.Tensors[g.Tensors[i]]
			p := piece{name: tensor.Name, buffer: g.Buffer, offset: at, rows: 1, row: 1}
			dim := -1
			if g.Place[0].Kind == "shard" {
				dim = g.Place[0].Dim
			}
			for d, n := range tensor.Shape {
				lo, hi := int64(0), n
				if d == dim {
					chunk := (n + int64(g.Mesh.Shape[0]) - 1) / int64(g.Mesh.Shape[0])
					lo, hi = min(int64(rank)*chunk, n), min(int64(rank+1)*chunk, n)
				}
				if d <= dim {
					p.rows *= p.row
					p.row, p.step, p.first = hi-lo, n, p.first*n+lo
				} else {
					p.row, p.step, p.first = p.row*n, max(p.step, 1)*n, p.first*n
				}
			}
			f(p)
		}
	}
}

// each calls f for each row: where it lies, and its first index.
func (p *piece) each(f func(at, first int64)) {
	for r := range p.rows {
		f(p.offset+r*p.row*2, p.first+r*p.step)
	}
}

// seed is that of a tensor in a version. Elements are any 16 bits.
func (p *piece) seed(v Version) uint64 {
	h := uint64(v) << 56
	for _, c := range []byte(p.name) {
		h = mix(h ^ uint64(c))
	}
	return h
}

func (p *piece) fill(b []byte, v Version) {
	seed := p.seed(v)
	p.each(func(at, first int64) {
		row := b[at : at+p.row*2]
		for i := range p.row {
			binary.LittleEndian.PutUint16(row[2*i:], uint16(mix(seed^uint64(first+i))))
		}
	})
}

func (p *piece) compare(b []byte, v Version) (err error) {
	seed := p.seed(v)
	p.each(func(at, first int64) {
		row := b[at : at+p.row*2]
		for i := range p.row {
			if got, want := binary.LittleEndian.Uint16(row[2*i:]), uint16(mix(seed^uint64(first+i))); got != want && err == nil {
				err = fmt.Errorf("%s, element %d: %#x, want %#x", p.name, first+i, got, want)
			}
		}
	})
	return err
}
