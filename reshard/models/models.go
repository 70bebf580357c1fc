package models

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/hawser-project/hawser/reshard"
)

//go:embed models.json
var data []byte

// Model is a published model.
type Model struct {
	Name            string           `json:"name"`
	Arch            string           `json:"arch"`
	PublishedTotal  int64            `json:"published_total_params"`
	PublishedAdjust int64            `json:"published_adjust"` // added to our total before it is compared with the published one
	PublishedGroups map[string]int64 `json:"published_groups"` // parameters of groups that are counted apart
	PublishedSource string           `json:"published_source"`
	Notes           string           `json:"notes"`
	Scales          *Scales          `json:"scales"` // nil: the checkpoint stores none
	Config          Config           `json:"config"`
	Tensors         []Pattern        `json:"tensors"` // in order of execution
}

// Scales says which scales a quantized checkpoint stores besides its tensors.
type Scales struct {
	Rule  string   `json:"rule"`
	Block [2]int64 `json:"block"`
}

// Config has those fields of a checkpoint's config.json that say how its tensors may be cut.
type Config struct {
	Layers  int  `json:"num_hidden_layers"`
	Heads   int  `json:"num_attention_heads"`
	KVHeads int  `json:"num_key_value_heads"` // 0: latent attention, which has none
	Tied    bool `json:"tie_word_embeddings"` // lm_head is another name of the embedding
}

// Pattern is a tensor, or one for each layer and expert.
type Pattern struct {
	Name   string        `json:"name"` // with {layer} and {expert}
	Shape  []int64       `json:"shape"`
	DType  reshard.DType `json:"dtype"` // of the public checkpoint
	TP     *int          `json:"tp"`    // dimension that tensor parallelism cuts; nil: every rank has all of it
	EP     *int          `json:"ep"`    // dimension that counts experts, where the checkpoint stacks them; nil: {expert} does, if there is one
	Fuse   *Fuse         `json:"fuse"`
	Q      bool          `json:"q"` // served as FP8 with a scale for each block of 128 x 128
	Group  string        `json:"group"`
	Layer  *[2]int       `json:"layer"` // half open, as Expert
	Expert *[2]int       `json:"expert"`
	Params *int64        `json:"params_per_elem"`
}

// Fuse places a tensor in a parameter of an inference engine, which has several, one after the other, on their first dimension.
type Fuse struct {
	Param string
	Slot  int
}

// UnmarshalJSON reads ["qkv_proj", 0].
func (f *Fuse) UnmarshalJSON(b []byte) error {
	pair := [2]any{&f.Param, &f.Slot}
	return json.Unmarshal(b, &pair)
}

// all is models.json. It cannot fail: the file is part of the program and a test reads it.
var all = sync.OnceValue(func() []Model {
	var file struct {
		Schema string            `json:"schema"`
		Fields map[string]string `json:"fields"`
		Models []Model           `json:"models"`
	}
	if err := json.NewDecoder(bytes.NewReader(data)).Decode(&file); err != nil {
		panic("models: the embedded models.json: " + err.Error())
	}
	return file.Models
})

// Names lists the models, in the order of the file.
func Names() []string {
	var names []string
	for _, m := range all() {
		names = append(names, m.Name)
	}
	return names
}

// Lookup finds a model by its name, in any case.
func Lookup(name string) (*Model, error) {
	if name == TinyName {
		return tiny(), nil
	}
	for i := range all() {
		if m := &all()[i]; strings.EqualFold(m.Name, name) {
			return m, nil
		}
	}
	return nil, fmt.Errorf("models: no model %q: there are %s", name, strings.Join(Names(), ", "))
}

// Totals are sums over a model's tensors without those of groups.
type Totals struct {
	Tensors    int              // of the checkpoint, with its tensors of scales
	Params     int64            // parameters; scales are none
	Checkpoint int64            // bytes of the public checkpoint
	BF16       int64            // bytes with all parameters in BF16
	FP8        int64            // bytes when an engine quantizes what it can
	Groups     map[string]int64 // parameters by group
}

// Totals adds the model up.
func (m *Model) Totals() Totals {
	t := Totals{Groups: map[string]int64{}}
	for i := range m.Tensors {
		p := &m.Tensors[i]
		n := int64(p.copies())
		elems := n * product(p.Shape)
		params := elems
		if p.Params != nil {
			params *= *p.Params
		}
		if p.Group != "" {
			t.Groups[p.Group] += params
			continue
		}
		t.Tensors += int(n)
		t.Params += params
		t.Checkpoint += elems * p.DType.Size()
		t.BF16 += 2 * params
		scales := n * 4 * blocks(p.Shape)
		if p.DType == reshard.F8E4M3 {
			t.Tensors += int(n)
			t.Checkpoint += scales
		}
		if p.Q {
			t.FP8 += params + scales
		} else {
			t.FP8 += 2 * params
		}
	}
	return t
}

// copies is how many tensors the pattern stands for.
func (p *Pattern) copies() int { return width(p.Layer) * width(p.Expert) }

func width(r *[2]int) int {
	if r == nil {
		return 1
	}
	return r[1] - r[0]
}

// blocks is how many scales a quantized tensor has.
func blocks(shape []int64) int64 {
	if len(shape) != 2 {
		return 0
	}
	return (shape[0] + 127) / 128 * ((shape[1] + 127) / 128)
}

func product(xs []int64) int64 {
	n := int64(1)
	for _, x := range xs {
		n *= x
	}
	return n
}

// Checkpoint lists the tensors of the model as a trainer would save them, experts one by one, in order of execution.
func (m *Model) Checkpoint() []reshard.Tensor {
	var out []reshard.Tensor
	for _, t := range m.expand(false) {
		x := reshard.Tensor{Name: t.name, Shape: t.shape, DType: t.DType}
		if x.DType == reshard.F8E4M3 {
			x.DType = reshard.BF16
		}
		out = append(out, x)
	}
	return out
}

// tensor is one tensor of an expanded model.
type tensor struct {
	*Pattern
	name    string
	layer   int // -1: none
	expert  int // -1: none, or all in one
	shape   []int64
	experts int // dimension that counts experts; -1: none
	tp      int // dimension that tensor parallelism cuts; -1: none
}

// expand lists the model's tensors in order of execution, without those of groups. Patterns of layers that stand together go
// layer by layer. With stack, the tensors of a layer's experts are one tensor with one dimension more in front, whose name lacks
// {expert}.
func (m *Model) expand(stack bool) []tensor {
	var list []tensor
	for i := 0; i < len(m.Tensors); {
		end := i + 1
		for m.Tensors[i].Layer != nil && end < len(m.Tensors) && m.Tensors[end].Layer != nil {
			end++
		}
		first, last := 0, 1
		for _, p := range m.Tensors[i:end] {
			if p.Layer != nil {
				last = max(last, p.Layer[1])
			}
		}
		for layer := first; layer < last; layer++ {
			for j := i; j < end; j++ {
				p := &m.Tensors[j]
				if p.Group == "" && (p.Layer == nil || p.Layer[0] <= layer && layer < p.Layer[1]) {
					list = p.expand(list, layer, stack)
				}
			}
		}
		i = end
	}
	return list
}

// expand appends the pattern's tensors of a layer.
func (p *Pattern) expand(list []tensor, layer int, stack bool) []tensor {
	t := tensor{Pattern: p, name: p.Name, layer: -1, expert: -1, shape: p.Shape, experts: -1, tp: -1}
	if p.Layer != nil {
		t.layer = layer
		t.name = strings.ReplaceAll(t.name, "{layer}", fmt.Sprint(layer))
	}
	if p.EP != nil {
		t.experts = *p.EP
	}
	if p.TP != nil {
		t.tp = *p.TP
	}
	switch {
	case p.Expert == nil:
		return append(list, t)
	case stack:
		t.name = strings.ReplaceAll(t.name, "{expert}.", "")
		t.shape = slices.Concat([]int64{int64(width(p.Expert))}, t.shape)
		t.experts = 0
		if t.tp >= 0 {
			t.tp++
		}
		return append(list, t)
	}
	name := t.name
	for e := p.Expert[0]; e < p.Expert[1]; e++ {
		t.expert = e
		t.name = strings.ReplaceAll(name, "{expert}", fmt.Sprint(e))
		list = append(list, t)
	}
	return list
}
