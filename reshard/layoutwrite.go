package reshard

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// WriteLayout writes a layout in JSON, with rules if there are any. Tensors of layers and experts whose places differ by a constant step
// are one line, so that the text of a large model stays small. ParseLayout gives back an equal layout, with the same order of tensors if
// layers follow each other; the order of grids and fragments may differ.
func WriteLayout(w io.Writer, l *Layout, rules []Rule) error {
	lw := &layoutWriter{l: l, meshes: map[string]string{}, file: layoutFile{Schema: LayoutSchema, Side: l.Side, Buffers: l.Buffers, Aliases: l.Aliases}}
	lw.file.Meshes = map[string]meshFile{}
	for _, step := range []func() error{lw.names, lw.codecs, lw.tensors, lw.grids, lw.fragments} {
		if err := step(); err != nil {
			return fmt.Errorf("layout: %w", err)
		}
	}
	lw.rest(rules)
	return lw.write(w)
}

// layoutWriter turns a layout into the file; owned by WriteLayout.
type layoutWriter struct {
	l      *Layout
	file   layoutFile
	name   []numberedName // by tensor
	codec  []Codec        // by tensor
	meshes map[string]string
	placed [][2]bool // by tensor: values, scales are in a place already
}

// numberedName is a name whose numbers of layer and expert are out.
type numberedName struct {
	pattern       string
	layer, expert int // -1: none
}

// number takes the first number after ".layers." or ".experts." out of a name.
func number(name string) numberedName {
	n := numberedName{name, -1, -1}
	cut := func(word, mark string, to *int) {
		before, rest, ok := strings.Cut(n.pattern, word)
		if !ok {
			return
		}
		digits, after, ok := strings.Cut(rest, ".")
		v, err := strconv.Atoi(digits)
		if ok && err == nil && v < maxLayoutTensors && strconv.Itoa(v) == digits {
			*to = v
			n.pattern = before + word + mark + "." + after
		}
	}
	cut(".layers.", layerMark, &n.layer)
	cut(".experts.", expertMark, &n.expert)
	return n
}

func (w *layoutWriter) names() error {
	for _, t := range w.l.Tensors {
		if strings.ContainsAny(t.Name, "{}*") || t.Name == "" {
			return fmt.Errorf("tensor %q: a name must not have braces or stars", t.Name)
		}
		w.name = append(w.name, number(t.Name))
	}
	w.placed = make([][2]bool, len(w.l.Tensors))
	return nil
}

// codecs finds the codec of every tensor: in this form a tensor has one, wherever it lies.
func (w *layoutWriter) codecs() error {
	w.codec = make([]Codec, len(w.l.Tensors))
	known := make([]bool, len(w.l.Tensors))
	set := func(t int, c Codec) error {
		if known[t] && w.codec[t] != c {
			return fmt.Errorf("%s has two codecs, %+v and %+v", w.l.Tensors[t].Name, w.codec[t], c)
		}
		known[t], w.codec[t] = true, c
		return nil
	}
	for i := range w.l.Grids {
		for _, t := range w.l.Grids[i].Tensors {
			if err := set(t, w.l.Grids[i].Codec); err != nil {
				return err
			}
		}
	}
	for i := range w.l.Fragments {
		if err := set(w.l.Fragments[i].Tensor, w.l.Fragments[i].Codec); err != nil {
			return err
		}
	}
	return nil
}

func codecJSON(c Codec) *codecFile {
	if c == (Codec{}) {
		return nil
	}
	f := &codecFile{Kind: c.Kind, Scale: c.Scale, Floor: c.Floor, Recip: c.Recip}
	if c.Block != [2]int{} {
		f.Block = &c.Block
	}
	return f
}

// tensors writes equal tensors of layers and experts as one.
func (w *layoutWriter) tensors() error {
	type key struct {
		pattern, shape string
		dtype          DType
		codec          Codec
	}
	groups := map[key][]offsetOf{}
	var order []key
	for i, t := range w.l.Tensors {
		k := key{w.name[i].pattern, fmt.Sprint(t.Shape), t.DType, w.codec[i]}
		if groups[k] == nil {
			order = append(order, k)
		}
		groups[k] = append(groups[k], offsetOf{w.name[i].layer, w.name[i].expert, 0, i})
	}
	for _, k := range order {
		for _, r := range rectangles(groups[k]) {
			w.file.Tensors = append(w.file.Tensors, tensorFile{
				Name: k.pattern, Layer: r.layers(), Expert: r.experts(), Shape: w.l.Tensors[r.first].Shape, DType: k.dtype, Codec: codecJSON(k.codec),
			})
		}
	}
	return nil
}

// offsetOf is where a tensor lies, by its numbers of layer and expert.
type offsetOf struct {
	layer, expert int
	offset        int64
	tensor        int
}

// rectangle is a range of layers and a range of experts, whose offsets grow by constant steps.
type rectangle struct {
	layer, expert         [2]int // from -1: none
	offset                int64
	layerStep, expertStep int64
	first                 int // tensor
}

func (r *rectangle) layers() *[2]int  { return rangeJSON(r.layer) }
func (r *rectangle) experts() *[2]int { return rangeJSON(r.expert) }

func rangeJSON(r [2]int) *[2]int {
	if r[0] < 0 {
		return nil
	}
	return &r
}

// rectangles covers list, greedily: runs of experts first, then runs of layers with equal runs.
func rectangles(list []offsetOf) []rectangle {
	slices.SortStableFunc(list, func(a, b offsetOf) int {
		if a.layer != b.layer {
			return a.layer - b.layer
		}
		return a.expert - b.expert
	})
	var runs []rectangle
	for _, s := range list {
		if n := len(runs); n > 0 {
			r := &runs[n-1]
			count := int64(r.expert[1] - r.expert[0])
			by := s.offset - r.offset
			switch {
			case r.layer[0] != s.layer || s.expert != r.expert[1] || s.expert < 0 || by < 0:
			case count == 1 || by == count*r.expertStep:
				r.expertStep = by / count
				r.expert[1]++
				continue
			}
		}
		runs = append(runs, rectangle{[2]int{s.layer, s.layer + 1}, [2]int{s.expert, s.expert + 1}, s.offset, 0, 0, s.tensor})
	}
	var out []rectangle
	open := map[[2]int]int{} // range of experts -> the rectangle that the next layer may extend
	for _, r := range runs {
		if i, ok := open[r.expert]; ok && r.layer[0] >= 0 {
			o := &out[i]
			count := int64(o.layer[1] - o.layer[0])
			by := r.offset - o.offset
			if r.layer[0] == o.layer[1] && r.expertStep == o.expertStep && by >= 0 && (count == 1 || by == count*o.layerStep) {
				o.layerStep = by / count
				o.layer[1]++
				continue
			}
		}
		open[r.expert] = len(out)
		out = append(out, r)
	}
	return out
}

// grids writes places. A tensor that lies in a second grid too is written as fragments, because the first place that matches counts.
func (w *layoutWriter) grids() error {
	for i := range w.l.Grids {
		g := &w.l.Grids[i]
		if len(g.Offsets) != len(g.Tensors) || len(g.Place) != len(g.Mesh.Shape) || len(g.Tensors) == 0 {
			return fmt.Errorf("grid %d: %d tensors, %d offsets; %d placements, %d dimensions of the mesh", i, len(g.Tensors), len(g.Offsets), len(g.Place), len(g.Mesh.Shape))
		}
		kind := 0
		if g.Scales {
			kind = 1
		}
		groups := map[string][]offsetOf{}
		var order []string
		for j, t := range g.Tensors {
			if w.placed[t][kind] {
				w.explicit(g, j)
				continue
			}
			w.placed[t][kind] = true
			n := w.name[t]
			if groups[n.pattern] == nil {
				order = append(order, n.pattern)
			}
			groups[n.pattern] = append(groups[n.pattern], offsetOf{n.layer, n.expert, g.Offsets[j], t})
		}
		p := placeFile{Scales: g.Scales, Mesh: w.mesh(&g.Mesh), Buffer: g.Buffer, Strides: g.Strides}
		for _, x := range g.Place {
			p.Placements = append(p.Placements, x.text())
		}
		for _, pattern := range order {
			for _, r := range rectangles(groups[pattern]) {
				p.Match, p.Layer, p.Expert = pattern, r.layers(), r.experts()
				p.Offset, p.LayerStep, p.ExpertStep = r.offset, r.layerStep, r.expertStep
				w.file.Place = append(w.file.Place, p)
			}
		}
	}
	return nil
}

// mesh names a mesh.
func (w *layoutWriter) mesh(m *Mesh) string {
	f := meshFile{Dims: m.Dims, Shape: m.Shape}
	for i, r := range m.Ranks {
		if r != i {
			f.Ranks = m.Ranks
			break
		}
	}
	key := fmt.Sprint(f)
	name, ok := w.meshes[key]
	if !ok {
		base := strings.Join(m.Dims, ".")
		name = base
		for n := 2; ; n++ {
			if _, taken := w.file.Meshes[name]; !taken {
				break
			}
			name = fmt.Sprint(base, "#", n)
		}
		w.meshes[key], w.file.Meshes[name] = name, f
	}
	return name
}

// explicit writes a tensor of a grid as fragments.
func (w *layoutWriter) explicit(g *Grid, i int) {
	t := &w.l.Tensors[g.Tensors[i]]
	shape := t.Shape
	if g.Scales {
		shape = blocks(shape, g.Codec)
	}
	for cell := range g.Mesh.cells() {
		f := fragmentFile{
			Tensor: t.Name, Lo: make([]int64, len(shape)), Hi: make([]int64, len(shape)), Rank: g.Mesh.rank(cell), Buffer: g.Buffer, Offset: g.Offsets[i], Scales: g.Scales,
		}
		g.box(cell, shape, f.Lo, f.Hi)
		for d := range g.Strides {
			f.Digits = append(f.Digits, [2]int64{shape[d], g.Strides[d]})
		}
		w.file.Fragments = append(w.file.Fragments, f)
	}
}

func (w *layoutWriter) fragments() error {
	for i := range w.l.Fragments {
		f := &w.l.Fragments[i]
		out := fragmentFile{Tensor: w.l.Tensors[f.Tensor].Name, Lo: f.Lo, Hi: f.Hi, Rank: f.Rank, Buffer: f.Buffer, Offset: f.Offset, Scales: f.Scales}
		for _, d := range f.Digits {
			out.Digits = append(out.Digits, [2]int64{d.Extent, d.Stride})
		}
		w.file.Fragments = append(w.file.Fragments, out)
	}
	return nil
}

func (w *layoutWriter) rest(rules []Rule) {
	w.file.Topology = topologyFile{w.l.Topo.Node, w.l.Topo.Rail, w.l.Topo.Instance}
	for _, r := range rules {
		w.file.Rules = append(w.file.Rules, ruleFile{Match: r.Match, Into: r.Into, View: r.View, Slot: r.Slot, Codec: codecJSON(r.Codec)})
	}
	for _, d := range w.l.Derived {
		w.file.Derived = append(w.file.Derived, derivedFile(d))
	}
	pads := slices.Clone(w.l.Pads)
	slices.SortStableFunc(pads, func(a, b Range) int {
		return slices.Compare([]int64{int64(a.Buffer), a.Offset, a.Len, int64(a.Rank)}, []int64{int64(b.Buffer), b.Offset, b.Len, int64(b.Rank)})
	})
	for _, p := range pads {
		if n := len(w.file.Pads); n > 0 {
			if l := &w.file.Pads[n-1]; l.Buffer == p.Buffer && l.Offset == p.Offset && l.Len == p.Len && l.Ranks[1] == p.Rank {
				l.Ranks[1]++
				continue
			}
		}
		w.file.Pads = append(w.file.Pads, padFile{[2]int{p.Rank, p.Rank + 1}, p.Buffer, p.Offset, p.Len})
	}
}

// write prints one element of a list on a line, so that people can read it and tools can compare lines.
func (w *layoutWriter) write(to io.Writer) error {
	b := bufio.NewWriter(to)
	e := &lineEncoder{w: b}
	e.field("schema", w.file.Schema)
	e.field("side", w.file.Side)
	var names []string
	for name := range w.file.Meshes {
		names = append(names, name)
	}
	slices.Sort(names)
	e.open("meshes", '{', len(names))
	for _, name := range names {
		e.member(name, w.file.Meshes[name])
	}
	e.shut('}', len(names))
	e.field("topology", w.file.Topology)
	if len(w.file.Buffers) > 0 {
		e.field("buffers", w.file.Buffers)
	}
	list(e, "tensors", w.file.Tensors)
	list(e, "place", w.file.Place)
	list(e, "rules", w.file.Rules)
	if len(w.file.Aliases) > 0 {
		e.field("aliases", w.file.Aliases)
	}
	list(e, "pads", w.file.Pads)
	list(e, "derived", w.file.Derived)
	list(e, "fragments", w.file.Fragments)
	if e.err == nil {
		_, e.err = b.WriteString("\n}\n")
	}
	if e.err != nil {
		return fmt.Errorf("layout: %w", e.err)
	}
	return b.Flush()
}

// lineEncoder writes a JSON object line by line and keeps the first error.
type lineEncoder struct {
	w    *bufio.Writer
	any  bool // a field was written
	item bool // of the list that is open
	err  error
}

func (e *lineEncoder) text(s string) {
	if e.err == nil {
		_, e.err = e.w.WriteString(s)
	}
}

func (e *lineEncoder) value(v any) {
	b, err := json.Marshal(v)
	if err != nil && e.err == nil {
		e.err = err
	}
	e.text(string(b))
}

func (e *lineEncoder) key(name string) {
	if e.any {
		e.text(",\n")
	} else {
		e.text("{\n")
	}
	e.any = true
	e.value(name)
	e.text(": ")
}

func (e *lineEncoder) field(name string, v any) {
	e.key(name)
	e.value(v)
}

func (e *lineEncoder) open(name string, bracket byte, n int) {
	if n > 0 {
		e.key(name)
		e.text(string(bracket))
		e.item = false
	}
}

func (e *lineEncoder) line() {
	if e.item {
		e.text(",")
	}
	e.item = true
	e.text("\n  ")
}

func (e *lineEncoder) member(name string, v any) {
	e.line()
	e.value(name)
	e.text(": ")
	e.value(v)
}

func (e *lineEncoder) shut(bracket byte, n int) {
	if n > 0 {
		e.text(string(bracket))
	}
}

// list writes a list, or nothing if it is empty.
func list[T any](e *lineEncoder, name string, items []T) {
	e.open(name, '[', len(items))
	for _, x := range items {
		e.line()
		e.value(x)
	}
	e.shut(']', len(items))
}
