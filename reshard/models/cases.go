package models

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hawser-project/hawser/reshard"
)

// Case is a pair of meshes with a fixed name: tests, commands and published figures mean the same by it.
type Case struct {
	Name  string
	Model string // the model that it is for
	Src   MeshSpec
	Dst   MeshSpec
}

// fp8 quantizes as the public checkpoints of DeepSeek-V3 and Kimi-K2 are.
var fp8 = reshard.Codec{Kind: "fp8block"}

// Cases lists the reference cases; the first one of a model is its default.
func Cases() []Case {
	byNode := func(split bool) MeshSpec { // experts whole, everything else over the ranks of a node
		return mesh("pp=2,node=16,gpu=8", "", split, "experts=shard0:node.gpu", "*=shard0:gpu")
	}
	serve := mesh("inst=4,ep=32", "vllm", false).with(fp8)
	split := serve
	split.Split = true
	cases := []Case{
		{"k2", "Kimi-K2", byNode(false), serve},
		{"k2-split", "Kimi-K2", byNode(true), split},
		{"k2-rows", "Kimi-K2", mesh("pp=2,fsdp=16,ep=8", "", true, "experts=shard0:ep,shard1:fsdp", "*=shard0:ep"), split},
		{"k2-tp8", "Kimi-K2", byNode(false), mesh("inst=4,dp=4,tp=8", "vllm", false, "experts=shard0:dp.tp").with(fp8)},
		{"q235", "Qwen3-235B-A22B", mesh("fsdp=128", "", false), mesh("inst=4,ep=8", "vllm", false).with(fp8)},
		{"q235-tp8", "Qwen3-235B-A22B", mesh("fsdp=128", "", false), mesh("inst=4,tp=8", "vllm", false, "experts=shard0:tp").with(fp8)},
		{"q235-rows", "Qwen3-235B-A22B", mesh("fsdp=128", "", true, "experts=shard1:fsdp"), mesh("inst=4,ep=8", "vllm", true).with(fp8)},
		{"l70", "Llama-3-70B", mesh("fsdp=64", "", false), mesh("inst=4,tp=8", "vllm", false)},
		{"dsv3", "DeepSeek-V3", byNode(false), serve},
		{"q30", "Qwen3-30B-A3B", mesh("fsdp=8", "", false), mesh("ep=4", "vllm", false).with(fp8)},
		{"oss", "gpt-oss-120b", mesh("fsdp=8", "", false), mesh("ep=4", "vllm", false)},
	}
	for _, name := range []string{"Qwen3-0.6B", "Qwen3-8B", "Llama-3-8B"} {
		cases = append(cases, Case{"small", name, mesh("fsdp=4", "", false), mesh("tp=2", "vllm", false)})
	}
	return cases
}

// mesh is a spec of the tables above, which are known to parse.
func mesh(dims, preset string, split bool, places ...string) MeshSpec {
	d, err := ParseMesh(dims)
	if err != nil {
		panic(err)
	}
	s := MeshSpec{Dims: d, Preset: preset, Split: split}
	for _, text := range places {
		p, err := ParsePlace(text)
		if err != nil {
			panic(err)
		}
		s.Place = append(s.Place, p)
	}
	return s
}

func (s MeshSpec) with(c reshard.Codec) MeshSpec {
	s.Codec = c
	return s
}

// Reference finds a case by its name and its model; "" for the name is the model's default, "" for the model the first that the case is for.
func Reference(model, name string) (Case, error) {
	var all []string
	for _, c := range Cases() {
		if (model == "" || strings.EqualFold(c.Model, model)) && (name == "" || c.Name == name) {
			return c, nil
		}
		if !slices.Contains(all, c.Name) {
			all = append(all, c.Name)
		}
	}
	if _, err := Lookup(model); model != "" && err != nil {
		return Case{}, err
	}
	return Case{}, fmt.Errorf("models: no case %q of %s: there are %s", name, model, strings.Join(all, ", "))
}

// Layouts generates both sides. With reverse the inference layout is the source, and both sides are as trainers have them.
func (c Case) Layouts(reverse bool) (src, dst *reshard.Layout, err error) {
	m, err := Lookup(c.Model)
	if err != nil {
		return nil, nil, err
	}
	if reverse {
		c.Dst.Codec = reshard.Codec{}
	}
	if src, err = m.generate(Train, c.Src, reverse); err != nil {
		return nil, nil, err
	}
	if dst, err = m.generate(Infer, c.Dst, !reverse); err != nil {
		return nil, nil, err
	}
	if reverse {
		src, dst = dst, src
	}
	return src, dst, nil
}
