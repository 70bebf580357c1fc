package models

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/hawser-project/hawser/reshard"
)

// MeshSpec says how a side holds a model. What Place does not say follows from the names of the mesh's dimensions:
//
//	pp                        layers, in runs; the embedding goes first, the final norm and the head last
//	tp                        the dimension that tensor parallelism cuts
//	ep                        experts; a trainer also cuts everything else over it, on dimension 0
//	fsdp, dp_shard            dimension 0 of what the ones above left
//	dp, dp_replicate, rep     copies
//	inst                      copies; each is an engine of its own, the unit of a commit
type MeshSpec struct {
	Dims    []MeshDim // slowest first
	Place   []Place   // the first that matches a tensor places it, instead of the names of dimensions
	Split   bool      // every expert is a tensor of its own, as in checkpoints; else one tensor has all experts of a layer
	Preset  string    // how engine parameters are made: "hf" or "": as in the checkpoint; "vllm" and "sglang": fused, vocabulary padded
	Codec   reshard.Codec
	PerNode int // ranks of a node; default 8
}

// MeshDim is a dimension of a mesh.
type MeshDim struct {
	Name string
	Size int
}

// Place says how the tensors that it matches are cut; over dimensions that it does not name they are replicated.
type Place struct {
	Match string // "experts", "embed" (and head), "attn", "*", or a pattern of path.Match
	Cuts  []Cut
}

// Cut shards a dimension of a tensor over dimensions of the mesh, in this order. Of tensors of experts it counts with all experts stacked:
// 0 is the expert, 1 its rows.
type Cut struct {
	Dim  int
	Over []string
}

// ParseMesh reads "pp=2,ep=8,fsdp=16", slowest dimension first.
func ParseMesh(s string) ([]MeshDim, error) {
	var dims []MeshDim
	for part := range strings.SplitSeq(s, ",") {
		name, size, ok := strings.Cut(part, "=")
		n, err := strconv.Atoi(size)
		if !ok || err != nil || n < 1 || name == "" {
			return nil, fmt.Errorf("models: mesh %q: %q is no dimension: want NAME=SIZE, as in pp=2,ep=8,fsdp=16", s, part)
		}
		dims = append(dims, MeshDim{name, n})
	}
	return dims, nil
}

// ParsePlace reads "experts=shard0:ep.fsdp,shard1:tp" or "norm*=replicate".
func ParsePlace(s string) (Place, error) {
	match, cuts, ok := strings.Cut(s, "=")
	p := Place{Match: match}
	bad := func(why string) (Place, error) {
		return Place{}, fmt.Errorf("models: placement %q: %s: want GROUP=shardN:DIM.DIM,... or GROUP=replicate", s, why)
	}
	if !ok || match == "" {
		return bad("no group")
	}
	if _, err := path.Match(match, ""); err != nil {
		return bad(err.Error())
	}
	if cuts == "replicate" {
		return p, nil
	}
	for c := range strings.SplitSeq(cuts, ",") {
		digits, over, ok := strings.Cut(strings.TrimPrefix(c, "shard"), ":")
		dim, err := strconv.Atoi(digits)
		if !ok || !strings.HasPrefix(c, "shard") || err != nil || dim < 0 || over == "" {
			return bad(strconv.Quote(c) + " is no cut")
		}
		p.Cuts = append(p.Cuts, Cut{dim, strings.Split(over, ".")})
	}
	return p, nil
}

// Limits that keep mistakes from becoming gigabytes.
const maxRanks = 1 << 16

// check looks for what does not depend on a model.
func (s *MeshSpec) check() error {
	if len(s.Dims) == 0 {
		return errors.New("mesh: no dimension")
	}
	ranks := 1
	used := map[string]bool{}
	for i, d := range s.Dims {
		switch {
		case d.Name == "" || d.Size < 1:
			return fmt.Errorf("mesh: dimension %d: %q of size %d", i, d.Name, d.Size)
		case used[d.Name]:
			return fmt.Errorf("mesh: dimension %q twice", d.Name)
		case d.Size > maxRanks/ranks:
			return fmt.Errorf("mesh: more than %d ranks", maxRanks)
		}
		used[d.Name] = known[d.Name] != 0
		ranks *= d.Size
	}
	for _, p := range s.Place {
		var over []string
		for _, c := range p.Cuts {
			for _, name := range c.Over {
				if s.dim(name) < 0 || name == "pp" {
					return fmt.Errorf("placement of %s: mesh has no dimension %q to cut over", p.Match, name)
				}
				if slices.Contains(over, name) {
					return fmt.Errorf("placement of %s: mesh dimension %q twice", p.Match, name)
				}
				over = append(over, name)
				used[name] = true
			}
		}
	}
	for name, ok := range used {
		if !ok {
			return fmt.Errorf("mesh dimension %q: no placement uses it, and the name says nothing: pp, tp, ep, fsdp, dp_shard, dp, dp_replicate, rep and inst do", name)
		}
	}
	switch s.Preset {
	case "", "hf", "vllm", "sglang":
	default:
		return fmt.Errorf("preset %q: want hf, vllm or sglang", s.Preset)
	}
	switch s.Codec.Kind {
	case "", "raw", "fp8block":
	default:
		return fmt.Errorf("codec %q: want raw or fp8block", s.Codec.Kind)
	}
	if s.PerNode < 0 {
		return fmt.Errorf("%d ranks of a node", s.PerNode)
	}
	return nil
}

// What the name of a dimension says about tensors that no Place matches.
const (
	_ = iota
	stages
	copies
	tensorCut
	expertCut
	dataCut
)

var known = map[string]int{
	"pp": stages, "inst": copies, "dp": copies, "dp_replicate": copies, "rep": copies,
	"tp": tensorCut, "ep": expertCut, "fsdp": dataCut, "dp_shard": dataCut,
}

// dim is the index of a dimension, or -1.
func (s *MeshSpec) dim(name string) int {
	return slices.IndexFunc(s.Dims, func(d MeshDim) bool { return d.Name == name })
}

func (s *MeshSpec) size(name string) int {
	if i := s.dim(name); i >= 0 {
		return s.Dims[i].Size
	}
	return 1
}

func (s *MeshSpec) ranks() int {
	n := 1
	for _, d := range s.Dims {
		n *= d.Size
	}
	return n
}

// cut is one step of cutting a tensor.
type cut struct {
	dim  int // of the tensor, with experts stacked
	mesh int // index in MeshSpec.Dims
}

// cuts says how a tensor, with experts stacked, is cut: in this order, each step what the one before left.
func (s *MeshSpec) cuts(side string, t *tensor) ([]cut, error) {
	var list []cut
	for _, p := range s.Place {
		if !p.matches(t) {
			continue
		}
		for _, c := range p.Cuts {
			if c.Dim >= len(t.shape) {
				return nil, fmt.Errorf("%s %v: placement of %s cuts dimension %d: place it by a line before", t.name, t.shape, p.Match, c.Dim)
			}
			for _, name := range c.Over {
				list = append(list, cut{c.Dim, s.dim(name)})
			}
		}
		return list, nil
	}
	return s.defaults(side, t), nil
}

func (s *MeshSpec) defaults(side string, t *tensor) []cut {
	var list []cut
	experts := 1 // over how many ranks they are already cut
	data := 0    // dimension that is cut over what is left
	for i, d := range s.Dims {
		if known[d.Name] == expertCut && t.experts >= 0 {
			list = append(list, cut{t.experts, i})
			experts *= d.Size
		}
	}
	for i, d := range s.Dims {
		if known[d.Name] == tensorCut && t.tp >= 0 {
			list = append(list, cut{t.tp, i})
		}
	}
	for _, d := range s.Dims {
		if known[d.Name] == dataCut {
			experts *= d.Size
		}
	}
	if t.experts == 0 && t.shape[0]%int64(experts) != 0 {
		data = 1 // fewer experts than ranks: their rows are cut
	}
	for i, d := range s.Dims {
		kind := known[d.Name]
		if kind == dataCut || kind == expertCut && t.experts < 0 && side == Train {
			list = append(list, cut{data, i})
		}
	}
	return list
}

func (p *Place) matches(t *tensor) bool {
	switch p.Match {
	case "*":
		return true
	case "experts":
		return t.experts >= 0
	case "embed":
		return vocabulary(t.name)
	case "attn":
		return strings.Contains(t.name, ".self_attn.")
	}
	ok, err := path.Match(p.Match, t.name)
	return ok && err == nil
}

// vocabulary says whether the rows of a tensor are tokens.
func vocabulary(name string) bool {
	return strings.Contains(name, "embed_tokens") || strings.Contains(name, "lm_head")
}

// piece is the part of n that chunk i of p gets, by the rule of torch.chunk.
func piece(lo, hi int64, i, p int) (int64, int64) {
	chunk := (hi - lo + int64(p) - 1) / int64(p)
	lo = min(lo+int64(i)*chunk, hi)
	return lo, min(lo+chunk, hi)
}
