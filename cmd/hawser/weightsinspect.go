package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/reshard/safetensors"
)

type weightsInspectCmd struct {
	quietFlag

	Path string `arg:"" placeholder:"FILE|DIR" help:"A safetensors file, its index, a directory of them, a layout or a plan."`
}

// inspected is the result in JSON.
type inspected struct {
	weightsHead

	Kind     string            `json:"kind"` // checkpoint, layout of ..., plan ...
	Tensors  []inspectedTensor `json:"tensors"`
	Types    []inspectedType   `json:"types"`
	Count    int               `json:"count"`
	Bytes    int64             `json:"bytes"` // of the checkpoint; of a layout: of all ranks; of a plan: that are delivered
	Files    []inspectedFile   `json:"files,omitempty"`
	Ranks    []inspectedRank   `json:"ranks,omitempty"`
	Problems []string          `json:"problems"`
}

type inspectedTensor struct {
	Name  string        `json:"name"`
	DType reshard.DType `json:"dtype"`
	Shape []int64       `json:"shape"`
	Bytes int64         `json:"bytes"`
	File  string        `json:"file,omitempty"`
}

type inspectedType struct {
	DType  reshard.DType `json:"dtype"`
	Count  int           `json:"count"`
	Params int64         `json:"elements"`
	Bytes  int64         `json:"bytes"`
}

type inspectedFile struct {
	Name  string `json:"name"`
	Count int    `json:"count"`
	Bytes int64  `json:"bytes"`
}

type inspectedRank struct {
	Rank     int   `json:"rank"`
	Node     int   `json:"node"`
	Instance int   `json:"instance"`
	Buffers  int   `json:"buffers"`
	Bytes    int64 `json:"bytes"` // of its buffers; of a plan: that it receives
}

// Run prints what is there.
func (c *weightsInspectCmd) Run(u *ui) error {
	c.hush(u)
	r, err := inspect(c.Path)
	if err != nil {
		return err
	}
	r.print(u)
	return u.result(r)
}

// inspect finds out what a path is by its begin, not by its name.
func inspect(path string) (*inspected, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, usage("%w", err)
	}
	if info.IsDir() {
		return inspectCheckpoint(path, "")
	}
	dir, name := filepath.Split(path)
	if dir == "" {
		dir = "."
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, usage("%w", err)
	}
	defer f.Close()
	b := bufio.NewReader(f)
	head, _ := b.Peek(1 << 10) // a short file is what its begin says
	switch {
	case len(head) > 0 && strings.TrimSpace(string(head))[0] == '{' && strings.Contains(string(head), reshard.LayoutSchema):
		l, rules, err := reshard.ParseLayout(b)
		if err != nil {
			return nil, layoutInput(path, err)
		}
		return inspectLayout(l, rules), nil
	case strings.HasPrefix(string(head), reshard.PlanMagic):
		p, err := reshard.ReadPlan(b)
		if err != nil {
			return nil, &usageError{fmt.Errorf("%s: %w", path, err)}
		}
		return inspectPlan(p), nil
	case name == safetensors.IndexName:
		return inspectCheckpoint(dir, "")
	}
	return inspectCheckpoint(dir, name)
}

// layoutInput is a layout that cannot be read, or one that makes no sense.
func layoutInput(path string, err error) error {
	err = fmt.Errorf("%s: %w", path, err)
	if weightsCode(err) != 0 {
		return err
	}
	return &usageError{err}
}

func inspectCheckpoint(dir, name string) (r *inspected, err error) {
	open := func() (*safetensors.Checkpoint, error) { return safetensors.Open(os.DirFS(dir)) }
	if name != "" {
		open = func() (*safetensors.Checkpoint, error) { return safetensors.OpenFile(os.DirFS(dir), name) }
	}
	c, err := open()
	if err != nil {
		return nil, usage("%s: %w", dir, err)
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	r = &inspected{weightsHead: weightsResult("inspect"), Kind: "checkpoint", Problems: []string{}}
	for _, f := range c.Files {
		for _, t := range f.Header.Tensors {
			r.Tensors = append(r.Tensors, inspectedTensor{t.Name, t.DType, t.Shape, t.End - t.Begin, f.Name})
		}
		r.Files = append(r.Files, inspectedFile{f.Name, len(f.Header.Tensors), f.Size})
	}
	r.total()
	r.Problems = append(r.Problems, checkpointProblems(c)...)
	return r, nil
}

func inspectLayout(l *reshard.Layout, rules []reshard.Rule) *inspected {
	r := &inspected{weightsHead: weightsResult("inspect"), Kind: "layout of " + l.Side, Problems: []string{}}
	for _, t := range l.Tensors {
		n := t.DType.Size()
		for _, x := range t.Shape {
			n *= x
		}
		r.Tensors = append(r.Tensors, inspectedTensor{t.Name, t.DType, t.Shape, n, ""})
	}
	r.total()
	r.Bytes = 0
	at := func(list []int, rank int) int {
		if list == nil {
			return 0
		}
		return list[rank]
	}
	for rank, buffers := range l.Buffers {
		x := inspectedRank{Rank: rank, Node: at(l.Topo.Node, rank), Instance: at(l.Topo.Instance, rank), Buffers: len(buffers)}
		for _, n := range buffers {
			x.Bytes += n
		}
		r.Bytes += x.Bytes
		r.Ranks = append(r.Ranks, x)
	}
	if len(rules) > 0 {
		r.Kind += fmt.Sprintf(", with %d rules", len(rules))
	}
	return r
}

// inspectPlan lists the destinations and what they receive; hawser weights plan says the rest of the layouts.
func inspectPlan(p *reshard.Plan) *inspected {
	sources, dests := p.Ranks()
	id := p.ID()
	r := &inspected{
		weightsHead: weightsResult("inspect"), Kind: fmt.Sprintf("plan %x, from %d ranks", id[:8], sources), Tensors: []inspectedTensor{}, Types: []inspectedType{},
		Problems: []string{},
	}
	for rank := range dests {
		s := p.Dest(rank)
		x := inspectedRank{Rank: rank, Instance: p.Instance(rank), Buffers: len(s.Buffers)}
		for i := range s.Runs {
			x.Bytes += s.Runs[i].Len
		}
		r.Bytes += x.Bytes
		r.Ranks = append(r.Ranks, x)
	}
	return r
}

// total adds the tensors up.
func (r *inspected) total() {
	r.Count = len(r.Tensors)
	at := map[reshard.DType]int{}
	for _, t := range r.Tensors {
		i, ok := at[t.DType]
		if !ok {
			i = len(r.Types)
			at[t.DType] = i
			r.Types = append(r.Types, inspectedType{DType: t.DType})
		}
		x := &r.Types[i]
		x.Count++
		x.Bytes += t.Bytes
		x.Params += t.Bytes / t.DType.Size()
		r.Bytes += t.Bytes
	}
	slices.SortFunc(r.Types, func(a, b inspectedType) int { return cmp.Compare(b.Bytes, a.Bytes) })
}

// checkpointProblems lists what is legal in the format, and still wrong: FP8 without its scales, and layers or experts that are missing.
func checkpointProblems(c *safetensors.Checkpoint) (list []string) {
	numbers := map[string]map[int]bool{}
	for _, f := range c.Files {
		for _, t := range f.Header.Tensors {
			if t.DType == reshard.F8E4M3 && len(t.Shape) == 2 {
				if s, ok := c.Tensor(t.Name + "_scale_inv"); !ok {
					list = append(list, fmt.Sprintf("%s is FP8, and there is no %s_scale_inv", t.Name, t.Name))
				} else if len(s.Shape) != 2 || s.Shape[0] != (t.Shape[0]+127)/128 || s.Shape[1] != (t.Shape[1]+127)/128 {
					list = append(list, fmt.Sprintf("%s %v: blocks of 128 x 128 of %v have other scales", s.Name, s.Shape, t.Shape))
				}
			}
			for _, word := range []string{".layers.", ".experts."} {
				before, rest, ok := strings.Cut(t.Name, word)
				var n int
				if _, err := fmt.Sscanf(rest, "%d.", &n); ok && err == nil {
					key := before + word
					if numbers[key] == nil {
						numbers[key] = map[int]bool{}
					}
					numbers[key][n] = true
				}
			}
		}
	}
	for key, have := range numbers {
		most := 0
		for n := range have {
			most = max(most, n)
		}
		if missing := most + 1 - len(have); missing > 0 {
			list = append(list, fmt.Sprintf("%s: numbers go to %d, %d of them are missing", key, most, missing))
		}
	}
	slices.Sort(list)
	return list
}

// Rows of tables that people see; JSON has all.
const maxInspectRows = 60

func (r *inspected) print(u *ui) {
	var rows [][]string
	for _, g := range r.patterns() {
		rows = append(rows, []string{g.name, fmt.Sprint(g.dtype), fmt.Sprint(g.shape), fmt.Sprint(g.count), bytesText(g.bytes)})
	}
	if len(rows) == 0 {
		u.printf("%s: %s are delivered to %d ranks\n", r.Kind, bytesText(r.Bytes), len(r.Ranks))
		return
	}
	more := len(rows) - maxInspectRows
	u.table(r.Kind, []string{"tensors", "type", "shape", "count", "together"}, rows[:min(len(rows), maxInspectRows)])
	if more > 0 {
		u.printf("and %d kinds more, all of them with --json\n", more)
	}
	for _, t := range r.Types {
		u.printf("%v: %d tensors, %d elements, %s\n", t.DType, t.Count, t.Params, bytesText(t.Bytes))
	}
	switch {
	case len(r.Files) > 0:
		u.printf("in all %d tensors, %s, in %d files\n", r.Count, bytesText(r.Bytes), len(r.Files))
	case len(r.Ranks) > 0:
		least := slices.MinFunc(r.Ranks, func(a, b inspectedRank) int { return cmp.Compare(a.Bytes, b.Bytes) })
		most := slices.MaxFunc(r.Ranks, func(a, b inspectedRank) int { return cmp.Compare(a.Bytes, b.Bytes) })
		u.printf("in all %d tensors on %d ranks, %s to %s each\n", r.Count, len(r.Ranks), bytesText(least.Bytes), bytesText(most.Bytes))
	}
	for _, p := range r.Problems {
		u.printf("problem: %s\n", p)
	}
}

// kind is tensors that differ in their numbers of layers and experts only.
type kind struct {
	name  string
	dtype reshard.DType
	shape []int64
	count int
	bytes int64
}

func (r *inspected) patterns() []*kind {
	var list []*kind
	at := map[string]*kind{}
	for _, t := range r.Tensors {
		name := star(star(t.Name, ".layers."), ".experts.")
		key := fmt.Sprint(name, t.DType, t.Shape)
		k := at[key]
		if k == nil {
			k = &kind{name: name, dtype: t.DType, shape: t.Shape}
			at[key] = k
			list = append(list, k)
		}
		k.count++
		k.bytes += t.Bytes
	}
	return list
}

// star replaces the number after a word.
func star(name, word string) string {
	before, rest, ok := strings.Cut(name, word)
	digits, after, dot := strings.Cut(rest, ".")
	if !ok || !dot || strings.Trim(digits, "0123456789") != "" {
		return name
	}
	return before + word + "*." + after
}
