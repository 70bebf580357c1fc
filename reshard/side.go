package reshard

import (
	"encoding/binary"
	"slices"
)

// side is a layout by tensor: what lies where, with equal ways to lie found.
type side struct {
	*Layout
	byName map[string]int
	ways   []way
	way    []int   // by tensor; -1: lies nowhere
	first  []int   // by tensor: its offsets are offsets[first[i]:first[i+1]], one for each unit of its way
	offs   []int64 //
}

// way is how tensors of one shape and type lie: only offsets and names differ between them.
type way struct {
	shape []int64
	dtype DType
	units []what
}

// what is a grid, or a fragment.
type what struct {
	grid   *Grid
	frag   *Fragment
	scales bool
}

// newSide groups the contents of a valid layout.
func newSide(l *Layout) *side {
	s := &side{Layout: l, byName: make(map[string]int, len(l.Tensors)), way: make([]int, len(l.Tensors)), first: make([]int, len(l.Tensors)+1)}
	for i := range l.Tensors {
		s.byName[l.Tensors[i].Name] = i
	}
	for i := range l.Grids {
		for _, t := range l.Grids[i].Tensors {
			s.first[t+1]++
		}
	}
	for i := range l.Fragments {
		s.first[l.Fragments[i].Tensor+1]++
	}
	for i := range l.Tensors {
		s.first[i+1] += s.first[i]
	}
	n := s.first[len(l.Tensors)]
	s.offs = make([]int64, n)
	ids, units := s.collect(n)
	s.classify(ids, units)
	return s
}

// collect fills the offsets, and returns what each of them is an offset of: an index in units.
func (s *side) collect(n int) (ids []int32, units []what) {
	ids = make([]int32, n)
	next, known := slices.Clone(s.first), map[string]int32{}
	var key []byte
	intern := func(u what) int32 {
		id, ok := known[string(key)]
		if !ok {
			id = int32(len(units))
			known[string(key)] = id
			units = append(units, u)
		}
		return id
	}
	put := func(t int, id int32, off int64) {
		ids[next[t]], s.offs[next[t]] = id, off
		next[t]++
	}
	for i := range s.Grids {
		g := &s.Grids[i]
		key = g.key(key[:0])
		id := intern(what{grid: g, scales: g.Scales})
		for k, t := range g.Tensors {
			put(t, id, g.Offsets[k])
		}
	}
	for i := range s.Fragments {
		f := &s.Fragments[i]
		key = f.key(key[:0])
		put(f.Tensor, intern(what{frag: f, scales: f.Scales}), f.Offset)
	}
	return ids, units
}

// classify finds the ways.
func (s *side) classify(ids []int32, units []what) {
	known := map[string]int{}
	var key []byte
	for i := range s.Tensors {
		t := &s.Tensors[i]
		mine := ids[s.first[i]:s.first[i+1]]
		if len(mine) == 0 {
			s.way[i] = -1
			continue
		}
		key = append(key[:0], byte(t.DType))
		for _, id := range mine {
			key = binary.AppendUvarint(key, uint64(id))
		}
		key = appendInts(append(key, '|'), t.Shape)
		w, ok := known[string(key)]
		if !ok {
			w = len(s.ways)
			known[string(key)] = w
			y := way{shape: t.Shape, dtype: t.DType}
			for _, id := range mine {
				y.units = append(y.units, units[id])
			}
			s.ways = append(s.ways, y)
		}
		s.way[i] = w
	}
}

// offsets of a tensor, by unit.
func (s *side) offsets(tensor int) []int64 {
	return s.offs[s.first[tensor]:s.first[tensor+1]]
}

// placements of a way: of values, or of scales. The boxes of scales are in blocks.
func (w *way) placements(scales bool) ([]placement, error) {
	var out []placement
	for i := range w.units {
		u := &w.units[i]
		if u.scales != scales {
			continue
		}
		shape, size := w.shape, w.dtype.Size()
		codec := w.codec(u)
		if scales {
			shape, size = blocks(shape, codec), codec.scale().Size()
		}
		if u.grid != nil {
			out = append(out, u.grid.placements(shape, size, i)...)
			continue
		}
		p, err := u.frag.placements(shape, size, i)
		if err != nil {
			return nil, err
		}
		out = append(out, p...)
	}
	return out, nil
}

func (w *way) codec(u *what) Codec {
	if u.grid != nil {
		return u.grid.Codec
	}
	return u.frag.Codec
}

// appendInts writes a list with its length.
func appendInts[T int | int64](b []byte, list []T) []byte {
	b = binary.AppendUvarint(b, uint64(len(list)))
	for _, x := range list {
		b = binary.AppendVarint(b, int64(x))
	}
	return b
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// key is all of a grid but the tensors and their offsets.
func (g *Grid) key(b []byte) []byte {
	b = append(b, 'g')
	b = appendInts(b, g.Mesh.Shape)
	b = appendInts(b, g.Mesh.Ranks)
	for _, p := range g.Place {
		b = binary.AppendVarint(appendString(b, p.Kind), int64(p.Dim))
	}
	b = binary.AppendVarint(b, int64(g.Buffer))
	b = appendInts(b, g.Strides)
	return g.Codec.key(appendBool(b, g.Scales))
}

// key is all of a fragment but the tensor and the offset.
func (f *Fragment) key(b []byte) []byte {
	b = append(b, 'f')
	b = appendInts(appendInts(b, f.Lo), f.Hi)
	b = binary.AppendVarint(binary.AppendVarint(b, int64(f.Rank)), int64(f.Buffer))
	b = binary.AppendUvarint(b, uint64(len(f.Digits)))
	for _, d := range f.Digits {
		b = binary.AppendVarint(binary.AppendVarint(b, d.Extent), d.Stride)
	}
	return f.Codec.key(appendBool(b, f.Scales))
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}
