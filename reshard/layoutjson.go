package reshard

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// LayoutSchema is the first field of every layout in JSON.
const LayoutSchema = "hawser-layout/1"

// Limits of layouts in JSON, so that a short text cannot ask for much memory.
const (
	maxLayoutBytes   = 1 << 30
	maxLayoutTensors = 1 << 18
	maxLayoutRanks   = 1 << 16
	maxLayoutPieces  = 1 << 20 // fragments and pads, as they come out
	maxLayoutDims    = 8
)

// The schema. Ranges of layers, experts and ranks are half open.
type layoutFile struct {
	Schema    string              `json:"schema"`
	Side      string              `json:"side"`
	Meshes    map[string]meshFile `json:"meshes"`
	Topology  topologyFile        `json:"topology"`
	Buffers   [][]int64           `json:"buffers"` // bytes, by rank; may be left out if all places are auto
	Tensors   []tensorFile        `json:"tensors"`
	Place     []placeFile         `json:"place"`
	Rules     []ruleFile          `json:"rules"`
	Aliases   map[string]string   `json:"aliases"`
	Pads      []padFile           `json:"pads"`
	Derived   []derivedFile       `json:"derived"`
	Fragments []fragmentFile      `json:"fragments"`
}

type meshFile struct {
	Dims  []string `json:"dims"`
	Shape []int    `json:"shape"`
	Ranks []int    `json:"ranks,omitempty"` // absent: 0, 1, 2, ...
}

type topologyFile struct {
	Nodes     []int `json:"nodes,omitempty"` // by rank
	Rails     []int `json:"rails,omitempty"`
	Instances []int `json:"instances,omitempty"`
}

// tensorFile is a tensor, or one for each layer and expert of the ranges. Tensors with layers that stand together go layer by layer.
type tensorFile struct {
	Name   string     `json:"name"`
	Layer  *[2]int    `json:"layer,omitempty"`
	Expert *[2]int    `json:"expert,omitempty"`
	Shape  []int64    `json:"shape"`
	DType  DType      `json:"dtype"`
	Codec  *codecFile `json:"codec,omitempty"`
}

type codecFile struct {
	Kind  string  `json:"kind"`
	Block *[2]int `json:"block,omitempty"`
	Scale DType   `json:"scale,omitempty"`
	Floor float32 `json:"floor,omitempty"`
	Recip bool    `json:"recip,omitempty"`
}

// placeFile says where the tensors that match lie. The first place that matches a tensor counts, once for values and once for scales.
type placeFile struct {
	Match      string     `json:"match"`
	Layer      *[2]int    `json:"layer,omitempty"` // only these, and the offset counts from the first one
	Expert     *[2]int    `json:"expert,omitempty"`
	Scales     bool       `json:"scales,omitempty"`
	Mesh       string     `json:"mesh"`
	Placements []string   `json:"placements"` // "shard0", "strided0", "replicate"
	Buffer     int        `json:"buffer,omitempty"`
	Auto       bool       `json:"auto,omitempty"` // behind what lies there already, and scales behind the values
	Offset     int64      `json:"offset,omitempty"`
	LayerStep  int64      `json:"layer_step,omitempty"`
	ExpertStep int64      `json:"expert_step,omitempty"`
	Strides    []int64    `json:"strides,omitempty"`
	Digits     [][2]int64 `json:"digits,omitempty"` // extent and stride; placements then count digits
}

type ruleFile struct {
	Match string     `json:"match"`
	Into  string     `json:"into,omitempty"`
	View  []int64    `json:"view,omitempty"`
	Slot  int        `json:"slot,omitempty"`
	Codec *codecFile `json:"codec,omitempty"`
}

type padFile struct {
	Ranks  [2]int `json:"ranks"`
	Buffer int    `json:"buffer,omitempty"`
	Offset int64  `json:"offset"`
	Len    int64  `json:"len"`
}

type derivedFile struct {
	Name string   `json:"name"`
	From []string `json:"from"`
	Hook string   `json:"hook"`
}

type fragmentFile struct {
	Tensor string     `json:"tensor"`
	Lo     []int64    `json:"lo"`
	Hi     []int64    `json:"hi"`
	Rank   int        `json:"rank"`
	Buffer int        `json:"buffer,omitempty"`
	Offset int64      `json:"offset"`
	Digits [][2]int64 `json:"digits,omitempty"`
	Scales bool       `json:"scales,omitempty"`
}

// ParseLayout reads a layout in JSON and the rules that come with it. Unknown fields are errors, and so is what Validate refuses.
func ParseLayout(r io.Reader) (*Layout, []Rule, error) { return parseLayout(r, maxLayoutTensors) }

func parseLayout(r io.Reader, limit int) (*Layout, []Rule, error) {
	var f layoutFile
	d := json.NewDecoder(io.LimitReader(r, maxLayoutBytes))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return nil, nil, fmt.Errorf("layout: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, nil, errors.New("layout: something follows the object, or it is too large")
	}
	if f.Schema != LayoutSchema {
		return nil, nil, fmt.Errorf("layout: schema %q, want %q", f.Schema, LayoutSchema)
	}
	p := &layoutParser{file: &f, limit: limit, layout: &Layout{Side: f.Side, Buffers: f.Buffers, Aliases: f.Aliases}, index: map[string]int{}}
	if err := p.parse(); err != nil {
		return nil, nil, fmt.Errorf("layout: %w", err)
	}
	if err := p.layout.Validate(); err != nil {
		return nil, nil, err
	}
	return p.layout, p.rules, nil
}

// layoutParser turns the file into a layout; owned by ParseLayout.
type layoutParser struct {
	file   *layoutFile
	limit  int // of tensors
	layout *Layout
	rules  []Rule
	index  map[string]int // name -> tensor
	named  []namedTensor  // by tensor
	ranks  int
	used   map[[2]int]int64 // rank, buffer -> end of what auto has placed
	grids  map[string]int
}

// namedTensor is where a tensor comes from.
type namedTensor struct {
	item          int // in layoutFile.Tensors
	layer, expert int // -1: none
}

func (p *layoutParser) parse() error {
	for _, step := range []func() error{p.tensors, p.meshes, p.places, p.fragments, p.pads, p.rest} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (p *layoutParser) tensors() error {
	items := p.file.Tensors
	for i := 0; i < len(items); {
		end := i + 1
		for items[i].Layer != nil && end < len(items) && items[end].Layer != nil {
			end++
		}
		lo, hi := math.MaxInt, 0
		for j := i; j < end; j++ {
			if err := p.item(&items[j]); err != nil {
				return fmt.Errorf("tensor %q: %w", items[j].Name, err)
			}
			if l := items[j].Layer; l != nil {
				lo, hi = min(lo, l[0]), max(hi, l[1])
			}
		}
		if items[i].Layer == nil {
			lo, hi = 0, 1
		}
		for layer := lo; layer < hi; layer++ {
			for j := i; j < end; j++ {
				if err := p.expand(j, layer); err != nil {
					return fmt.Errorf("tensor %q: %w", items[j].Name, err)
				}
			}
		}
		i = end
	}
	return nil
}

// item checks one item of the list of tensors.
func (p *layoutParser) item(t *tensorFile) error {
	pattern, err := ParsePattern(t.Name)
	if err != nil {
		return err
	}
	for _, x := range []struct {
		mark string
		r    *[2]int
	}{{layerMark, t.Layer}, {expertMark, t.Expert}} {
		if pattern.Has(x.mark) != (x.r != nil) {
			return fmt.Errorf("%s in the name and a range of them come together", x.mark)
		}
		if r := x.r; r != nil && (r[0] < 0 || r[0] >= r[1] || r[1] > p.limit) {
			return fmt.Errorf("range %v", *r)
		}
	}
	switch {
	case t.Name == "" || strings.Contains(t.Name, star):
		return errors.New("no name of a tensor")
	case t.DType == Invalid:
		return errors.New("no dtype")
	case len(t.Shape) > maxLayoutDims:
		return fmt.Errorf("%d dimensions: the limit is %d", len(t.Shape), maxLayoutDims)
	}
	n := t.DType.Size()
	for _, x := range t.Shape {
		if x < 0 || x > 0 && n > math.MaxInt64/x {
			return fmt.Errorf("shape %v: negative, or more bytes than 2^63", t.Shape)
		}
		n *= x
	}
	return nil
}

// expand adds the tensors of an item that a layer has.
func (p *layoutParser) expand(item, layer int) error {
	t := &p.file.Tensors[item]
	if t.Layer == nil {
		layer = -1
	} else if layer < t.Layer[0] || layer >= t.Layer[1] {
		return nil
	}
	lo, hi := -1, 0
	if t.Expert != nil {
		lo, hi = t.Expert[0], t.Expert[1]
	}
	pattern, err := ParsePattern(t.Name)
	if err != nil {
		return err
	}
	for e := lo; e < hi; e++ {
		name := pattern.Expand(Captures{Layer: layer, Expert: e})
		if _, twice := p.index[name]; twice {
			return fmt.Errorf("%s twice", name)
		}
		if len(p.named) == p.limit {
			return fmt.Errorf("more than %d tensors", p.limit)
		}
		p.index[name] = len(p.named)
		p.named = append(p.named, namedTensor{item, layer, e})
		p.layout.Tensors = append(p.layout.Tensors, Tensor{Name: name, Shape: t.Shape, DType: t.DType})
	}
	return nil
}

// meshes checks meshes and topology, and counts ranks.
func (p *layoutParser) meshes() error {
	t := &p.file.Topology
	p.ranks = max(len(p.file.Buffers), len(t.Nodes), len(t.Rails), len(t.Instances))
	for name, m := range p.file.Meshes {
		cells := 1
		for _, n := range m.Shape {
			if n < 1 || n > maxLayoutRanks/cells {
				return fmt.Errorf("mesh %q: shape %v: the limit is %d ranks", name, m.Shape, maxLayoutRanks)
			}
			cells *= n
		}
		if len(m.Dims) != len(m.Shape) || m.Ranks != nil && len(m.Ranks) != cells {
			return fmt.Errorf("mesh %q: %d dims, shape %v, %d ranks do not belong together", name, len(m.Dims), m.Shape, len(m.Ranks))
		}
		if m.Ranks == nil {
			for r := range cells {
				m.Ranks = append(m.Ranks, r)
			}
			p.file.Meshes[name] = m
		}
		for _, r := range m.Ranks {
			if r < 0 || r >= maxLayoutRanks {
				return fmt.Errorf("mesh %q: rank %d: want 0 to %d", name, r, maxLayoutRanks-1)
			}
			p.ranks = max(p.ranks, r+1)
		}
	}
	if p.ranks > maxLayoutRanks {
		return fmt.Errorf("%d ranks: the limit is %d", p.ranks, maxLayoutRanks)
	}
	for _, list := range []int{len(t.Nodes), len(t.Rails), len(t.Instances)} {
		if list != 0 && list != p.ranks {
			return fmt.Errorf("topology: %d entries for %d ranks", list, p.ranks)
		}
	}
	p.layout.Topo = Topology{Node: t.Nodes, Rail: t.Rails, Instance: t.Instances}
	return nil
}

func (p *layoutParser) fragments() error {
	for i, f := range p.file.Fragments {
		t, ok := p.index[f.Tensor]
		if !ok {
			return fmt.Errorf("fragment %d: no tensor %q", i, f.Tensor)
		}
		codec := p.codec(t)
		p.layout.Fragments = append(p.layout.Fragments, Fragment{
			Tensor: t, Lo: f.Lo, Hi: f.Hi, Rank: f.Rank, Buffer: f.Buffer, Offset: f.Offset, Digits: digits(f.Digits), Codec: codec, Scales: f.Scales,
		})
	}
	return nil
}

func (p *layoutParser) codec(tensor int) Codec {
	return p.file.Tensors[p.named[tensor].item].Codec.codec()
}

func (c *codecFile) codec() Codec {
	if c == nil {
		return Codec{}
	}
	out := Codec{Kind: c.Kind, Scale: c.Scale, Floor: c.Floor, Recip: c.Recip}
	if c.Block != nil {
		out.Block = *c.Block
	}
	return out
}

func digits(list [][2]int64) []Digit {
	var out []Digit
	for _, d := range list {
		out = append(out, Digit{Extent: d[0], Stride: d[1]})
	}
	return out
}

func (p *layoutParser) pads() error {
	for i, f := range p.file.Pads {
		if f.Ranks[0] < 0 || f.Ranks[0] >= f.Ranks[1] || f.Ranks[1] > p.ranks {
			return fmt.Errorf("pad %d: ranks %v of %d", i, f.Ranks, p.ranks)
		}
		if len(p.layout.Pads)+f.Ranks[1]-f.Ranks[0] > maxLayoutPieces {
			return fmt.Errorf("more than %d pads", maxLayoutPieces)
		}
		for r := f.Ranks[0]; r < f.Ranks[1]; r++ {
			p.layout.Pads = append(p.layout.Pads, Range{r, f.Buffer, f.Offset, f.Len})
		}
	}
	slices.SortStableFunc(p.layout.Pads, comparePads)
	return nil
}

// rest is what needs no more than a copy, and the sizes of buffers that auto has filled.
func (p *layoutParser) rest() error {
	for _, r := range p.file.Rules {
		p.rules = append(p.rules, Rule{Match: r.Match, Into: r.Into, View: r.View, Slot: r.Slot, Codec: r.Codec.codec()})
	}
	for _, d := range p.file.Derived {
		p.layout.Derived = append(p.layout.Derived, Derived(d))
	}
	if len(p.file.Buffers) > 0 {
		if len(p.file.Buffers) != p.ranks {
			return fmt.Errorf("buffers of %d ranks, others speak of %d", len(p.file.Buffers), p.ranks)
		}
		return nil
	}
	p.layout.Buffers = make([][]int64, p.ranks)
	for at, end := range p.used {
		b := &p.layout.Buffers[at[0]]
		for len(*b) <= at[1] {
			*b = append(*b, 0)
		}
		(*b)[at[1]] = end
	}
	return nil
}
