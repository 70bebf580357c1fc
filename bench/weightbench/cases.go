package weightbench

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/reshard/models"
)

// Case is what is pushed, from how many ranks to how many.
type Case struct {
	Model  string `json:"model"` // of models.json; "tiny": 310 tensors of 4 KiB; "one": one of them
	Src    int    `json:"src_ranks"`
	Dst    int    `json:"dst_ranks"`
	Codec  string `json:"codec"`            // raw, fp8block
	Layers []int  `json:"layers,omitempty"` // first and last; empty: all, and what is in no layer
}

// Layouts are FSDP on the one side; on the other tensor parallelism or, of models with experts, expert parallelism and data-parallel attention.
func (c Case) Layouts() (src, dst *reshard.Layout, err error) {
	if c.Model == "tiny" || c.Model == "one" {
		src, dst = c.tiny()
		return src, dst, nil
	}
	m, err := models.Lookup(c.Model)
	if err != nil {
		return nil, nil, err
	}
	to, preset := "tp", "vllm"
	if slices.ContainsFunc(m.Tensors, func(p models.Pattern) bool { return p.Expert != nil }) {
		to = "ep"
	}
	from, err := models.ParseMesh(fmt.Sprintf("fsdp=%d", c.Src))
	if err != nil {
		return nil, nil, err
	}
	into, err := models.ParseMesh(fmt.Sprintf("%s=%d", to, c.Dst))
	if err != nil {
		return nil, nil, err
	}
	if src, err = models.Generate(c.Model, models.Train, models.MeshSpec{Dims: from}); err != nil {
		return nil, nil, err
	}
	dst, err = models.Generate(c.Model, models.Infer, models.MeshSpec{Dims: into, Preset: preset, Codec: c.codec()})
	if err != nil {
		return nil, nil, err
	}
	if len(c.Layers) == 2 {
		err = keepLayers(src, c.Layers[0], c.Layers[1])
		if err == nil {
			err = keepLayers(dst, c.Layers[0], c.Layers[1])
		}
	}
	return src, dst, err
}

func (c Case) codec() reshard.Codec {
	if c.Codec == "fp8block" {
		return reshard.Codec{Kind: "fp8block"}
	}
	return reshard.Codec{}
}

// tiny is 310 tensors of 4 KiB, or one.
func (c Case) tiny() (src, dst *reshard.Layout) {
	side := func(name string, ranks int) *reshard.Layout {
		l := &reshard.Layout{Side: name}
		g := reshard.Grid{Mesh: reshard.Mesh{Dims: []string{"x"}, Shape: []int{ranks}}, Place: []reshard.Placement{{Kind: "shard"}}}
		rows, n := int64(16), 310
		if c.Model == "one" {
			n = 1
		}
		piece := (rows + int64(ranks) - 1) / int64(ranks) * 256
		for i := range n {
			l.Tensors = append(l.Tensors, reshard.Tensor{Name: fmt.Sprintf("model.layers.%d.w%d", i/11, i%11), Shape: []int64{rows, 128}, DType: reshard.BF16})
			g.Tensors, g.Offsets = append(g.Tensors, i), append(g.Offsets, int64(i)*piece)
		}
		l.Grids = []reshard.Grid{g}
		for range ranks {
			l.Buffers = append(l.Buffers, []int64{int64(n) * piece})
			l.Topo.Instance = append(l.Topo.Instance, 0)
		}
		return l
	}
	return side("train", c.Src), side("infer", c.Dst)
}

// keepLayers drops everything that is in no layer of first .. last, and closes the gaps.
func keepLayers(l *reshard.Layout, first, last int) error {
	if len(l.Fragments) > 0 {
		return fmt.Errorf("weightbench: %w: layers of a layout with fragments", hawser.ErrInvalid)
	}
	keep := func(tensor int) bool {
		var n int
		_, after, ok := strings.Cut(l.Tensors[tensor].Name, ".layers.")
		if !ok {
			return false
		}
		_, err := fmt.Sscanf(after, "%d.", &n)
		return err == nil && n >= first && n <= last
	}
	var starts []int64
	for _, g := range l.Grids {
		starts = append(starts, g.Offsets...)
	}
	end := int64(0)
	for _, b := range l.Buffers {
		end = max(end, b[0])
	}
	starts = append(starts, end)
	slices.Sort(starts)
	starts = slices.Compact(starts)
	kept := map[int64]bool{}
	for i := range l.Grids {
		g := &l.Grids[i]
		var tensors []int
		var offsets []int64
		for k, t := range g.Tensors {
			if keep(t) {
				kept[g.Offsets[k]] = true
				tensors, offsets = append(tensors, t), append(offsets, g.Offsets[k])
			}
		}
		g.Tensors, g.Offsets = tensors, offsets
	}
	to, at := map[int64]int64{}, int64(0)
	for i, s := range starts[:len(starts)-1] {
		if kept[s] {
			to[s] = at
			at += starts[i+1] - s
		}
	}
	for i := range l.Grids {
		for k, o := range l.Grids[i].Offsets {
			l.Grids[i].Offsets[k] = to[o]
		}
	}
	l.Grids = slices.DeleteFunc(l.Grids, func(g reshard.Grid) bool { return len(g.Tensors) == 0 })
	for r := range l.Buffers {
		l.Buffers[r][0] = at
	}
	l.Pads = nil
	dropTensors(l, keep)
	return nil
}

// dropTensors removes tensors that nothing places.
func dropTensors(l *reshard.Layout, keep func(int) bool) {
	number := make([]int, len(l.Tensors))
	var tensors []reshard.Tensor
	for i, t := range l.Tensors {
		if number[i] = len(tensors); keep(i) {
			tensors = append(tensors, t)
		}
	}
	for i := range l.Grids {
		for k, t := range l.Grids[i].Tensors {
			l.Grids[i].Tensors[k] = number[t]
		}
	}
	l.Tensors, l.Aliases, l.Derived = tensors, nil, nil
}

// delivered is how many bytes all destinations hold.
func delivered(l *reshard.Layout) (n int64, err error) {
	for r := range l.Buffers {
		held, err := l.Held(r)
		if err != nil {
			return 0, err
		}
		for i := range held {
			n += volume(&held[i]) * held[i].DType.Size()
		}
	}
	return n, nil
}

func volume(h *reshard.Held) int64 {
	n := int64(1)
	for _, e := range h.Extent {
		n *= e
	}
	return n
}
