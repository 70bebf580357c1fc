package models

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hawser-project/hawser/reshard"
)

func spec(t *testing.T, dims, preset string, places ...string) MeshSpec {
	t.Helper()
	d, err := ParseMesh(dims)
	if err != nil {
		t.Fatal(err)
	}
	s := MeshSpec{Dims: d, Preset: preset}
	for _, text := range places {
		p, err := ParsePlace(text)
		if err != nil {
			t.Fatal(err)
		}
		s.Place = append(s.Place, p)
	}
	return s
}

// where is the grid and the offset of a tensor's values.
func where(t *testing.T, l *reshard.Layout, name string) (*reshard.Grid, int64) {
	t.Helper()
	for i := range l.Grids {
		g := &l.Grids[i]
		for j, k := range g.Tensors {
			if l.Tensors[k].Name == name && !g.Scales {
				return g, g.Offsets[j]
			}
		}
	}
	t.Fatalf("no %s", name)
	return nil, 0
}

// Parameters that engines fuse lie side by side: q, k, v of a rank, gate and up, and the rows of both for each expert.
func TestFusedParameters(t *testing.T) {
	const layer = "model.layers.0."
	m, err := Generate("Qwen3-235B-A22B", Infer, spec(t, "tp=4", "vllm"))
	if err != nil {
		t.Fatal(err)
	}
	_, q := where(t, m, layer+"self_attn.q_proj.weight")
	_, k := where(t, m, layer+"self_attn.k_proj.weight")
	_, v := where(t, m, layer+"self_attn.v_proj.weight")
	if k-q != 2048*4096*2 || v-k != 128*4096*2 {
		t.Errorf("q, k, v at %d, %d, %d", q, k, v)
	}
	g, gate := where(t, m, layer+"mlp.experts.gate_proj.weight")
	_, up := where(t, m, layer+"mlp.experts.up_proj.weight")
	const rows = 1536 / 4
	if up-gate != rows*4096*2 || !slices.Equal(g.Strides, []int64{2 * rows * 4096 * 2, 4096 * 2, 2}) {
		t.Errorf("gate and up at %d and %d, strides %v", gate, up, g.Strides)
	}
	m, err = Generate("Qwen3-235B-A22B", Infer, spec(t, "tp=4", "hf"))
	if err != nil {
		t.Fatal(err)
	}
	if g, _ := where(t, m, layer+"mlp.experts.gate_proj.weight"); g.Strides != nil {
		t.Errorf("as in the checkpoint, strides %v", g.Strides)
	}
}

// With more ranks than heads of keys, neighbouring ranks have the same head.
func TestHeadsReplicated(t *testing.T) {
	m, err := Generate("Qwen3-235B-A22B", Infer, spec(t, "inst=2,tp=8", "vllm"))
	if err != nil {
		t.Fatal(err)
	}
	for _, proj := range []string{"k", "v"} {
		name := "model.layers.93.self_attn." + proj + "_proj.weight"
		g, _ := where(t, m, name)
		rows := map[int]string{}
		for i, b := range boxes(g, []int64{512, 4096}) {
			rows[g.Mesh.Ranks[i]] = fmt.Sprint(b.lo[0], b.hi[0])
		}
		for rank, want := range []string{"0 128", "0 128", "128 256", "128 256", "256 384", "256 384", "384 512", "384 512"} {
			if rows[rank] != want || rows[rank+8] != want {
				t.Errorf("%s: ranks %d and %d have rows %s and %s, want %s", name, rank, rank+8, rows[rank], rows[rank+8], want)
			}
		}
	}
	if !slices.Equal(m.Topo.Instance, []int{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1}) {
		t.Errorf("instances %v", m.Topo.Instance)
	}
}

// Engines pad the vocabulary to a multiple of 64 that every rank has the same share of; what is no token is a pad.
func TestVocabularyPadded(t *testing.T) {
	m, err := Generate("Qwen3-0.6B", Infer, spec(t, "tp=3", "vllm", "embed=shard0:tp", "*=replicate"))
	if err != nil {
		t.Fatal(err)
	}
	const rows, row = 152064 / 3, 1024 * 2
	if len(m.Fragments) != 3 {
		t.Fatalf("%d fragments", len(m.Fragments))
	}
	for rank, f := range m.Fragments {
		hi := min(151936, int64(rank+1)*rows)
		if f.Rank != rank || f.Lo[0] != int64(rank)*rows || f.Hi[0] != hi {
			t.Errorf("fragment %d: rank %d, rows [%d,%d)", rank, f.Rank, f.Lo[0], f.Hi[0])
		}
	}
	want := reshard.Range{Rank: 2, Offset: m.Fragments[2].Offset + (rows-128)*row, Len: 128 * row}
	if !slices.Contains(m.Pads, want) {
		t.Errorf("no pad %v in %v", want, m.Pads)
	}
	if m.Aliases["lm_head.weight"] != "model.embed_tokens.weight" {
		t.Errorf("tied embeddings: %v", m.Aliases)
	}
}

// Every parameter is on exactly one pipeline stage.
func TestPipelineStages(t *testing.T) {
	m, err := Generate("Llama-3-8B", Train, spec(t, "pp=3,fsdp=2", ""))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]int{
		"model.embed_tokens.weight":              {0, 1},
		"model.layers.10.input_layernorm.weight": {0, 1},
		"model.layers.11.input_layernorm.weight": {2, 3},
		"model.layers.31.mlp.down_proj.weight":   {4, 5},
		"model.norm.weight":                      {4, 5},
		"lm_head.weight":                         {4, 5},
	} {
		if g, _ := where(t, m, name); !slices.Equal(g.Mesh.Ranks, want) {
			t.Errorf("%s on %v, want %v", name, g.Mesh.Ranks, want)
		}
	}
	if len(m.Tensors) != 291 {
		t.Errorf("%d tensors", len(m.Tensors))
	}
}

// Cuts are applied in the order of the placement, not of the mesh: tensor parallelism first, then data parallelism over what it left.
func TestOrderOfCuts(t *testing.T) {
	m, err := Generate("Llama-3-8B", Train, spec(t, "fsdp=2,tp=4", ""))
	if err != nil {
		t.Fatal(err)
	}
	g, _ := where(t, m, "model.layers.0.self_attn.q_proj.weight")
	for i, b := range boxes(g, []int64{4096, 4096}) {
		rank := g.Mesh.Ranks[i]
		if want := int64(rank%4*1024 + rank/4*512); b.lo[0] != want || b.hi[0] != want+512 {
			t.Errorf("rank %d: rows [%d,%d), want from %d", rank, b.lo[0], b.hi[0], want)
		}
	}
}

// Of experts that are tensors of their own each rank has those it would have of the stack, at the same place.
func TestSplitExpertsLieWhereStackedOnesDo(t *testing.T) {
	s := spec(t, "inst=2,ep=8", "vllm")
	s.Codec = fp8
	stacked, err := Generate("Qwen3-30B-A3B", Infer, s)
	if err != nil {
		t.Fatal(err)
	}
	s.Split = true
	split, err := Generate("Qwen3-30B-A3B", Infer, s)
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(stacked.Buffers, stacked.Pads) != fmt.Sprint(split.Buffers, split.Pads) {
		t.Errorf("memory differs")
	}
	for _, expert := range []int{0, 15, 16, 127} {
		g, at := where(t, stacked, "model.layers.47.mlp.experts.up_proj.weight")
		e, got := where(t, split, fmt.Sprintf("model.layers.47.mlp.experts.%d.up_proj.weight", expert))
		if want := at + int64(expert%16)*g.Strides[0]; got != want || !slices.Equal(e.Mesh.Ranks, []int{expert / 16, 8 + expert/16}) {
			t.Errorf("expert %d at %d on ranks %v, want %d", expert, got, e.Mesh.Ranks, want)
		}
	}
	checkMemory(t, stacked)
	checkMemory(t, split)
}

func TestGenerateRefuses(t *testing.T) {
	for _, c := range []struct{ side, dims, preset, codec, place, want string }{
		{Infer, "tp=3", "hf", "", "", "does not divide"},
		{Infer, "tp=6", "vllm", "", "*k_proj*=shard0:tp *=replicate", "cannot be spread"},
		{Infer, "tp=32", "vllm", "", "", "16 heads cannot"},
		{Infer, "box=2", "", "", "", `"box": no placement uses it`},
		{Infer, "tp=2,tp=2", "", "", "", "twice"},
		{Infer, "tp=2", "", "", "*=shard0:ep", `no dimension "ep"`},
		{Infer, "tp=2", "", "", "*=shard1:tp", "cuts dimension 1"},
		{Infer, "tp=2", "", "", "*=shard0:tp.tp", "twice"},
		{Infer, "tp=2", "megatron", "", "", "preset"},
		{Infer, "tp=2", "", "int4", "", "codec"},
		{Infer, "tp=70000", "", "", "", "more than 65536 ranks"},
		{Train, "fsdp=2", "vllm", "", "", "trainers have"},
		{Train, "fsdp=2", "", "fp8block", "", "trainers have"},
		{"test", "fsdp=2", "", "", "", "no such side"},
	} {
		s := spec(t, c.dims, c.preset, strings.Fields(c.place)...)
		s.Codec.Kind = c.codec
		if _, err := Generate("Qwen3-0.6B", c.side, s); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	for _, text := range []string{"", "=shard0:tp", "x", "x=shard:tp", "x=cut0:tp", "x=shard0", "x=shard-1:tp", "[=shard0:tp"} {
		if p, err := ParsePlace(text); err == nil {
			t.Errorf("placement %q is %v", text, p)
		}
	}
	for _, text := range []string{"", "tp", "tp=0", "tp=2,", "=2", "tp=x"} {
		if d, err := ParseMesh(text); err == nil {
			t.Errorf("mesh %q is %v", text, d)
		}
	}
}

// Trainers may have fewer rows than ranks: the last pieces are empty, and the plan of memory still holds.
func TestEmptyShards(t *testing.T) {
	m, err := Generate("Qwen3-0.6B", Train, spec(t, "fsdp=96", ""))
	if err != nil {
		t.Fatal(err)
	}
	g, _ := where(t, m, "model.layers.0.self_attn.q_norm.weight")
	b := boxes(g, []int64{128})
	if b[63].volume() != 2 || b[64].volume() != 0 || b[95].volume() != 0 {
		t.Errorf("%v", b)
	}
	checkMemory(t, m)
}
