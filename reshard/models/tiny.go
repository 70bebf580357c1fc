package models

import "github.com/hawser-project/hawser/reshard"

// TinyName is a model that nobody published: the shape of Qwen3 in 53 MB, for demonstrations and tests. Lookup and Generate know it, Names
// does not list it.
const TinyName = "tiny"

// tiny has all that a dense model has: grouped heads, fused parameters, norms that are not cut, an embedding and a head.
func tiny() *Model {
	const hidden, inner, heads, kv, dim, vocabulary = 512, 1536, 8, 4, 64, 8000
	m := &Model{
		Name: TinyName, Arch: "Qwen3ForCausalLM", PublishedSource: "none: made for demonstrations and tests",
		Config: Config{Layers: 6, Heads: heads, KVHeads: kv},
	}
	layers := [2]int{0, m.Config.Layers}
	at := func(d int) *int { return &d }
	add := func(name string, layer bool, tp *int, fuse *Fuse, shape ...int64) {
		p := Pattern{Name: name, Shape: shape, DType: reshard.BF16, TP: tp, Fuse: fuse, Q: layer && tp != nil}
		if layer {
			p.Name, p.Layer = "model.layers.{layer}."+name, &layers
		}
		m.Tensors = append(m.Tensors, p)
	}
	add("model.embed_tokens.weight", false, at(0), nil, vocabulary, hidden)
	add("input_layernorm.weight", true, nil, nil, hidden)
	add("self_attn.q_proj.weight", true, at(0), &Fuse{"qkv_proj", 0}, heads*dim, hidden)
	add("self_attn.k_proj.weight", true, at(0), &Fuse{"qkv_proj", 1}, kv*dim, hidden)
	add("self_attn.v_proj.weight", true, at(0), &Fuse{"qkv_proj", 2}, kv*dim, hidden)
	add("self_attn.o_proj.weight", true, at(1), nil, hidden, heads*dim)
	add("self_attn.q_norm.weight", true, nil, nil, dim)
	add("post_attention_layernorm.weight", true, nil, nil, hidden)
	add("mlp.gate_proj.weight", true, at(0), &Fuse{"gate_up_proj", 0}, inner, hidden)
	add("mlp.up_proj.weight", true, at(0), &Fuse{"gate_up_proj", 1}, inner, hidden)
	add("mlp.down_proj.weight", true, at(1), nil, hidden, inner)
	add("model.norm.weight", false, nil, nil, hidden)
	add("lm_head.weight", false, at(0), nil, vocabulary, hidden)
	return m
}
