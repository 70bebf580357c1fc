package models

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hawser-project/hawser/reshard"
)

// Sides of a layout.
const (
	Train = "train" // all in BF16 but what the checkpoint holds in FP32 or packed
	Infer = "infer" // as Train, or, with fp8block, FP8 and scales where the model allows
)

// align is where engine parameters begin: allocators of accelerators align at least so.
const align = 256

// Generate places a model on a mesh. The layout has one buffer for each rank, in which parameters follow each other in order of
// execution. For Infer the bytes between them are pads.
func Generate(model, side string, spec MeshSpec) (*reshard.Layout, error) {
	m, err := Lookup(model)
	if err != nil {
		return nil, err
	}
	return m.generate(side, spec, side == Infer)
}

func (m *Model) generate(side string, spec MeshSpec, pads bool) (*reshard.Layout, error) {
	fail := func(err error) (*reshard.Layout, error) {
		return nil, fmt.Errorf("models: %s, %s: %w", m.Name, side, err)
	}
	if side != Train && side != Infer {
		return fail(fmt.Errorf("no such side: want %s or %s", Train, Infer))
	}
	if err := spec.check(); err != nil {
		return fail(err)
	}
	if side == Train && (spec.Codec.Kind == "fp8block" || spec.Preset != "" && spec.Preset != "hf") {
		return fail(fmt.Errorf("trainers have preset hf and codec raw, not %s and %s", spec.Preset, spec.Codec.Kind))
	}
	g := &generator{model: m, side: side, spec: spec, pads: pads, memory: make([]memory, spec.size("pp"))}
	g.index, g.grids = map[string]int{}, map[string]int{}
	g.layout = &reshard.Layout{Side: side}
	for _, p := range g.params(m.expand(true)) {
		if err := g.place(p); err != nil {
			return fail(err)
		}
	}
	g.finish()
	return g.layout, nil
}

// generator builds one layout; owned by generate.
type generator struct {
	model  *Model
	side   string
	spec   MeshSpec
	pads   bool
	layout *reshard.Layout
	index  map[string]int // name -> index in layout.Tensors
	grids  map[string]int // key of a grid -> index in layout.Grids
	memory []memory       // by pipeline stage
}

// memory is the buffer of the ranks of a stage: all of them have the same.
type memory struct {
	used int64
	gaps []reshard.Range // Rank and Buffer are unused
}

// take reserves bytes at an aligned offset.
func (m *memory) take(n int64) int64 {
	at := (m.used + align - 1) / align * align
	if at > m.used {
		m.gaps = append(m.gaps, reshard.Range{Offset: m.used, Len: at - m.used})
	}
	m.used = at + n
	return at
}

// param is a parameter of an engine: tensors that lie side by side, on dimension axis.
type param struct {
	tensors []tensor
	axis    int
}

// params groups tensors into parameters.
func (g *generator) params(list []tensor) []param {
	var out []param
	at := map[string]int{}
	for _, t := range list {
		if t.Fuse == nil || g.spec.Preset == "" || g.spec.Preset == "hf" {
			out = append(out, param{tensors: []tensor{t}})
			continue
		}
		key := fmt.Sprint(t.layer, t.Fuse.Param)
		i, ok := at[key]
		if !ok {
			i = len(out)
			at[key] = i
			out = append(out, param{axis: t.experts + 1}) // the first dimension of a matrix
		}
		out[i].tensors = append(out[i].tensors, t)
	}
	for _, p := range out {
		slices.SortStableFunc(p.tensors, func(a, b tensor) int { return slot(a) - slot(b) })
	}
	return out
}

func slot(t tensor) int {
	if t.Fuse == nil {
		return 0
	}
	return t.Fuse.Slot
}

// quantized says whether this side has the tensor as FP8.
func (g *generator) quantized(t *tensor) bool {
	return g.side == Infer && g.spec.Codec.Kind == "fp8block" && t.Q
}

func (g *generator) dtype(t *tensor) reshard.DType {
	switch {
	case g.quantized(t):
		return reshard.F8E4M3
	case t.DType == reshard.F8E4M3:
		return reshard.BF16
	}
	return t.DType
}

// member is a tensor of a parameter, placed on a mesh.
type member struct {
	*tensor
	cuts  []step
	local []int64 // the largest piece
	pad   int64   // rows of the vocabulary with padding; 0: not padded
}

// step is a cut with what it is over: size ranks, each the next ones times copies.
type step struct {
	dim          int
	mesh         int
	size, copies int
}

// place reserves the memory of a parameter, and of its scales, and describes its tensors there.
func (g *generator) place(p param) error {
	members := make([]member, len(p.tensors))
	for i := range p.tensors {
		m, err := g.member(&p.tensors[i])
		if err != nil {
			return err
		}
		members[i] = m
	}
	for _, scales := range []bool{false, true} {
		if scales && !g.quantized(members[0].tensor) {
			break
		}
		g.lay(members, p.axis, scales)
	}
	return nil
}

// lay reserves the memory of a parameter's values or scales.
func (g *generator) lay(members []member, axis int, scales bool) {
	whole := slices.Clone(g.local(&members[0], scales))
	whole[axis] = 0
	for i := range members {
		whole[axis] += g.local(&members[i], scales)[axis]
	}
	elem := int64(4) // scales are FP32
	if !scales {
		elem = g.dtype(members[0].tensor).Size()
	}
	if g.spec.Codec.Scale == reshard.F8E8M0 && scales {
		elem = 1
	}
	strides := make([]int64, len(whole))
	size := elem
	for d := len(whole) - 1; d >= 0; d-- {
		strides[d] = size
		size *= whole[d]
	}
	stage := g.stage(members[0].tensor)
	at := g.memory[stage].take(size)
	for i := range members {
		m := &members[i]
		s := strides
		if axis == 0 || len(members) == 1 {
			s = nil // the piece has no gaps
		}
		g.describe(m, stage, at, s, strides[0], scales)
		at += g.local(m, scales)[axis] * strides[axis]
	}
}

// local is the shape of the largest piece, or of its scales.
func (g *generator) local(m *member, scales bool) []int64 {
	if !scales {
		return m.local
	}
	s := slices.Clone(m.local)
	rows, cols := g.block()
	n := len(s)
	s[n-2] = (s[n-2] + rows - 1) / rows
	s[n-1] = (s[n-1] + cols - 1) / cols
	return s
}

func (g *generator) block() (rows, cols int64) {
	b := g.spec.Codec.Block
	if b == [2]int{} {
		return 128, 128
	}
	return int64(b[0]), int64(b[1])
}

// member finds how a tensor is cut and how large its pieces are.
func (g *generator) member(t *tensor) (member, error) {
	cuts, err := g.spec.cuts(g.side, t)
	if err != nil {
		return member{}, err
	}
	m := member{tensor: t, local: slices.Clone(t.shape)}
	for _, c := range cuts {
		m.cuts = append(m.cuts, step{c.dim, c.mesh, g.spec.Dims[c.mesh].Size, 1})
	}
	if err := g.heads(&m); err != nil {
		return member{}, err
	}
	for _, c := range m.cuts {
		m.local[c.dim] = (m.local[c.dim] + int64(c.size) - 1) / int64(c.size)
	}
	g.vocabulary(&m)
	return m, g.even(&m)
}

// heads replicates the heads of keys and values where an engine has more tensor-parallel ranks than heads, and refuses to cut a head.
func (g *generator) heads(m *member) error {
	has := func(proj string) bool { return strings.Contains(m.name, "."+proj+"_proj.") }
	query, key := has("q") || has("q_b") || has("kv_b"), has("k") || has("v") // latent attention has keys for every head
	if g.side != Infer || !query && !key {
		return nil
	}
	heads := int64(g.model.Config.KVHeads)
	if query {
		heads = int64(g.model.Config.Heads)
	}
	n := int64(1)
	last := -1
	for i, c := range m.cuts {
		if c.dim == 0 {
			n *= int64(c.size)
			last = i
		}
	}
	switch {
	case heads%n == 0:
		return nil
	case query || n%heads != 0 || int64(m.cuts[last].size)%(n/heads) != 0:
		return fmt.Errorf("%s: %d heads cannot be spread over %d ranks", m.name, heads, n)
	}
	m.cuts[last].copies = int(n / heads)
	m.cuts[last].size /= int(n / heads)
	return nil
}

// vocabularyUnit is what engines round the vocabulary up to.
const vocabularyUnit = 64

// vocabulary pads the rows of the embedding and the head as engines do.
func (g *generator) vocabulary(m *member) {
	if g.side != Infer || g.spec.Preset == "" || g.spec.Preset == "hf" || !vocabulary(m.name) {
		return
	}
	n := int64(1)
	for _, c := range m.cuts {
		if c.dim == 0 {
			n *= int64(c.size)
		}
	}
	unit := int64(vocabularyUnit)
	for unit%n != 0 {
		unit += vocabularyUnit
	}
	rows := (m.shape[0] + unit - 1) / unit * unit
	if rows != m.shape[0] {
		m.pad = rows
		m.local[0] = rows / n
	}
}

// even refuses pieces of unequal size on the side that has none: there only padded rows may differ.
func (g *generator) even(m *member) error {
	if g.side == Train || m.pad > 0 {
		return nil
	}
	n := slices.Clone(m.shape)
	for _, c := range m.cuts {
		if n[c.dim]%int64(c.size) != 0 {
			return fmt.Errorf("%s %v: dimension %d does not divide by mesh dimension %s=%d", m.name, m.shape, c.dim, g.spec.Dims[c.mesh].Name, c.size)
		}
		n[c.dim] /= int64(c.size)
	}
	return nil
}

// stage is the pipeline stage that holds a tensor.
func (g *generator) stage(t *tensor) int {
	n := len(g.memory)
	if t.layer < 0 {
		if strings.Contains(t.name, "embed_tokens") {
			return 0
		}
		return n - 1
	}
	chunk := (g.model.Config.Layers + n - 1) / n
	return min(t.layer/chunk, n-1)
}

func (g *generator) finish() {
	l := g.layout
	ranks := g.spec.ranks()
	pp := g.spec.dim("pp")
	inst := g.spec.dim("inst")
	perNode := g.spec.PerNode
	if perNode == 0 {
		perNode = 8
	}
	l.Buffers = make([][]int64, ranks)
	for r := range ranks {
		stage := &g.memory[g.coordinate(r, pp)]
		l.Buffers[r] = []int64{stage.used}
		l.Topo.Node = append(l.Topo.Node, r/perNode)
		l.Topo.Rail = append(l.Topo.Rail, r%perNode)
		if g.side == Infer {
			l.Topo.Instance = append(l.Topo.Instance, g.coordinate(r, inst))
		}
		if g.pads {
			for _, gap := range stage.gaps {
				gap.Rank = r
				l.Pads = append(l.Pads, gap)
			}
		}
	}
	if g.model.Config.Tied {
		l.Aliases = map[string]string{"lm_head.weight": "model.embed_tokens.weight"}
	}
}

// coordinate is where a rank is in a dimension of the mesh; 0 if there is none.
func (g *generator) coordinate(rank, dim int) int {
	if dim < 0 {
		return 0
	}
	for _, d := range g.spec.Dims[dim+1:] {
		rank /= d.Size
	}
	return rank % g.spec.Dims[dim].Size
}
