package reshard_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/reshard/models"
)

func written(t testing.TB, l *reshard.Layout, rules []reshard.Rule) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := reshard.WriteLayout(&b, l, rules); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Every layout of a reference case is the same after it was written and read, and its text stays small.
func TestLayoutRoundTrip(t *testing.T) {
	for _, c := range models.Cases() {
		src, dst, err := c.Layouts(false)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range []*reshard.Layout{src, dst} {
			text := written(t, l, nil)
			got, rules, err := reshard.ParseLayout(bytes.NewReader(text))
			if err != nil {
				t.Fatalf("%s: %v", c.Name, err)
			}
			if len(text) > 1<<20 || len(rules) > 0 {
				t.Errorf("%s %s: %d bytes, %d rules", c.Name, l.Side, len(text), len(rules))
			}
			if !reflect.DeepEqual(got, l) {
				t.Errorf("%s %s: %s", c.Name, l.Side, difference(got, l))
			}
			if !json.Valid(text) {
				t.Errorf("%s: no JSON", c.Name)
			}
		}
	}
}

// difference names the first field that differs.
func difference(got, want *reshard.Layout) string {
	g, w := reflect.ValueOf(*got), reflect.ValueOf(*want)
	for i := range g.NumField() {
		a, b := g.Field(i), w.Field(i)
		if reflect.DeepEqual(a.Interface(), b.Interface()) {
			continue
		}
		if a.Kind() == reflect.Slice {
			for j := range min(a.Len(), b.Len()) {
				if x, y := a.Index(j).Interface(), b.Index(j).Interface(); !reflect.DeepEqual(x, y) {
					text, _ := json.Marshal([]any{x, y})
					return g.Type().Field(i).Name + ": " + string(text[:min(len(text), 1000)])
				}
			}
		}
		return g.Type().Field(i).Name
	}
	return "none"
}

const handmade = `{
"schema": "hawser-layout/1", "side": "infer",
"meshes": {"tp": {"dims": ["tp"], "shape": [2]}, "all": {"dims": ["box", "tp"], "shape": [1, 2], "ranks": [1, 0]}},
"topology": {"nodes": [0, 0], "rails": [0, 1], "instances": [0, 0]},
"tensors": [
  {"name": "embed.weight", "shape": [5, 4], "dtype": "BF16"},
  {"name": "model.layers.{layer}.up.weight", "layer": [0, 2], "shape": [256, 256], "dtype": "F8_E4M3", "codec": {"kind": "fp8block", "scale": "F32"}},
  {"name": "model.layers.{layer}.experts.{expert}.w", "layer": [1, 2], "expert": [2, 4], "shape": [8], "dtype": "U8"},
  {"name": "q", "shape": [8, 2], "dtype": "U8"},
  {"name": "odd", "shape": [4], "dtype": "U8"}
],
"place": [
  {"match": "model.layers.1.up.weight", "mesh": "tp", "placements": ["shard1"], "auto": true},
  {"match": "*.up.weight", "mesh": "tp", "placements": ["shard0"], "auto": true},
  {"match": "embed*", "mesh": "all", "placements": ["replicate", "shard0"], "auto": true},
  {"match": "model.layers.{layer}.experts.{expert}.w", "expert": [2, 4], "mesh": "tp", "placements": ["replicate"], "buffer": 1, "offset": 100, "expert_step": 8, "layer_step": 1000},
  {"match": "q", "mesh": "tp", "placements": ["shard1"], "buffer": 1, "offset": 3000, "digits": [[2, 8], [4, 2], [2, 1]]}
],
"rules": [{"match": "a.{expert}", "into": "b", "view": [2, 3], "slot": -1, "codec": {"kind": "cast"}}],
"aliases": {"head": "embed.weight"},
"pads": [{"ranks": [0, 2], "offset": 199000, "len": 2}],
"derived": [{"name": "d", "from": ["q"], "hook": "h"}],
"buffers": [[200000, 4000], [200000, 4000]],
"fragments": [{"tensor": "odd", "lo": [1], "hi": [3], "rank": 1, "buffer": 1, "offset": 7, "digits": [[4, 2]]}]
}`

func TestLayoutByHand(t *testing.T) {
	l, rules, err := reshard.ParseLayout(strings.NewReader(handmade))
	if err != nil {
		t.Fatal(err)
	}
	grid := func(name string, scales bool) (g reshard.Grid, at int64) {
		for _, g := range l.Grids {
			for i, k := range g.Tensors {
				if l.Tensors[k].Name == name && g.Scales == scales {
					return g, g.Offsets[i]
				}
			}
		}
		t.Fatalf("no %s", name)
		return
	}
	if g, at := grid("embed.weight", false); !reflect.DeepEqual(g.Mesh.Ranks, []int{1, 0}) || at != 0 || g.Place[1] != (reshard.Placement{Kind: "shard"}) {
		t.Errorf("embed at %d: %+v", at, g)
	}
	// Behind the longer of the embedding's pieces, of 24 and 16 bytes; then the values, of 128 x 256, and their scales.
	if _, at := grid("model.layers.0.up.weight", false); at != 256 {
		t.Errorf("first auto at %d", at)
	}
	if _, at := grid("model.layers.0.up.weight", true); at != 256+128*256 {
		t.Errorf("its scales at %d", at)
	}
	if g, at := grid("model.layers.1.up.weight", false); at != 512+128*256 || g.Place[0].Dim != 1 {
		t.Errorf("the first place that matches does not count: at %d, %+v", at, g)
	}
	for expert, want := range map[string]int64{"2": 1100, "3": 1108} {
		if _, at := grid("model.layers.1.experts."+expert+".w", false); at != want {
			t.Errorf("expert %s at %d, want %d", expert, at, want)
		}
	}
	if len(l.Fragments) != 3 || !reflect.DeepEqual(l.Fragments[1].Lo, []int64{0, 2, 0}) || l.Fragments[1].Digits[1] != (reshard.Digit{Extent: 4, Stride: 2}) {
		t.Errorf("fragments %+v", l.Fragments)
	}
	want := []reshard.Rule{{Match: "a.{expert}", Into: "b", View: []int64{2, 3}, Slot: -1, Codec: reshard.Codec{Kind: "cast"}}}
	if !reflect.DeepEqual(rules, want) {
		t.Errorf("rules %+v", rules)
	}
	again, rules, err := reshard.ParseLayout(bytes.NewReader(written(t, l, rules)))
	if err != nil || !reflect.DeepEqual(rules, want) {
		t.Fatalf("again: %v, %v", rules, err)
	}
	if d := difference(again, l); d != "none" {
		t.Errorf("again: %s", d)
	}
	// Without sizes of buffers they are what auto has filled.
	small := handmade[:strings.Index(handmade, `"buffers"`)] + `"fragments": []}`
	small = strings.Replace(small, `"pads": [{"ranks": [0, 2], "offset": 199000, "len": 2}],`, "", 1)
	small = small[:strings.Index(small, "  {\"match\": \"model.layers.{layer}.experts")]
	small = strings.TrimRight(small, " \n,") + "]}"
	l, _, err = reshard.ParseLayout(strings.NewReader(small))
	if err != nil || len(l.Buffers) != 2 || len(l.Buffers[0]) != 1 || l.Buffers[0][0] != 256+2*(128*256+256)-256+8 {
		t.Errorf("buffers %v, %v", l.Buffers, err)
	}
}

func TestLayoutRefused(t *testing.T) {
	for _, c := range []struct{ old, new, want string }{
		{`hawser-layout/1`, `hawser-layout/2`, "schema"},
		{`"side"`, `"sides"`, `unknown field "sides"`},
		{`"offset": 7`, `"ofset": 7`, `unknown field "ofset"`},
		{`}]
}`, `}]
} {}`, "follows"},
		{`"name": "odd"`, `"name": "q"`, "q twice"},
		{`"dtype": "BF16"`, `"dtype": "BF17"`, "BF17"},
		{`"shape": [5, 4], "dtype": "BF16"`, `"shape": [5, 4]`, "no dtype"},
		{`"shape": [5, 4]`, `"shape": [5, -4]`, "negative"},
		{`"shape": [5, 4]`, `"shape": [4294967296, 4294967296]`, "2^63"},
		{`"shape": [5, 4]`, `"shape": [1,1,1,1,1,1,1,1,1]`, "9 dimensions"},
		{`"layer": [0, 2], `, ``, "{layer} in the name"},
		{`"layer": [0, 2]`, `"layer": [2, 2]`, "range [2 2]"},
		{`"layer": [0, 2]`, `"layer": [0, 262144], "expert": [0, 2]`, "{expert} in the name"},
		{`"layer": [1, 2], "expert": [2, 4]`, `"layer": [0, 262144], "expert": [2, 4]`, "more than 262144"},
		{`"name": "odd"`, `"name": "o*"`, "no name"},
		{`"mesh": "all"`, `"mesh": "none"`, `no mesh "none"`},
		{`["replicate", "shard0"]`, `["shard0"]`, "1 placements on a mesh of 2"},
		{`["replicate", "shard0"]`, `["replicate", "shard2"]`, "shard2 of 2 dimensions"},
		{`["replicate", "shard0"]`, `["replicate", "split0"]`, `"split0"`},
		{`["replicate", "shard0"]`, `["replicate", "partial(sum)"]`, `Partial on mesh dim "tp"; reduce it`},
		{`"ranks": [1, 0]`, `"ranks": [1]`, "do not belong together"},
		{`"ranks": [1, 0]`, `"ranks": [1, -1]`, "rank -1"},
		{`"ranks": [1, 0]`, `"ranks": [1, 70000]`, "rank 70000"},
		{`"shape": [2]}`, `"shape": [70000]}`, "limit is 65536 ranks"},
		{`"rails": [0, 1]`, `"rails": [0]`, "1 entries for 2 ranks"},
		{`"auto": true}`, `"auto": true, "offset": 1}`, "auto finds"},
		{`"tensor": "odd"`, `"tensor": "even"`, `no tensor "even"`},
		{`"ranks": [0, 2]`, `"ranks": [0, 3]`, "pad 0"},
		{`"expert_step": 8`, `"expert_step": -8`, "negative"},
		{`"layer_step": 1000`, `"layer_step": 9223372036854775800`, "2^63"},
		{`"match": "q"`, `"match": "{q}"`, "wildcards"},
		{`"match": "q"`, `"layer": [0, 1], "match": "q"`, "captures none"},
		{`"buffers": [[200000, 4000], [200000, 4000]]`, `"buffers": [[200000, 4000]]`, "buffers of 1 ranks"},
	} {
		text := strings.Replace(handmade, c.old, c.new, 1)
		if text == handmade {
			t.Fatalf("%q is not there", c.old)
		}
		if _, _, err := reshard.ParseLayout(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.new, err, c.want)
		}
	}
}

// A layout that is accepted is the same after it was written and read.
func FuzzLayoutJSON(f *testing.F) {
	f.Add([]byte(handmade))
	c, err := models.Reference("Qwen3-0.6B", "")
	if err != nil {
		f.Fatal(err)
	}
	_, dst, err := c.Layouts(false)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(written(f, dst, nil))
	f.Fuzz(func(t *testing.T, text []byte) {
		l, rules, err := reshard.ParseSmallLayout(bytes.NewReader(text))
		if err != nil {
			return
		}
		var b bytes.Buffer
		if err := reshard.WriteLayout(&b, l, rules); err != nil {
			return // two codecs of a tensor cannot come from a file, but empty names of dims and the like can
		}
		again, _, err := reshard.ParseSmallLayout(bytes.NewReader(b.Bytes()))
		if err != nil {
			t.Fatalf("%v\n%s", err, b.Bytes())
		}
		if a, b := content(l), content(again); !reflect.DeepEqual(a, b) {
			t.Fatalf("%v\nwritten and read\n%v", a, b)
		}
	})
}

// content is what lies where, without order.
func content(l *reshard.Layout) map[string]int {
	m := map[string]int{}
	add := func(v ...any) {
		text, _ := json.Marshal(v)
		m[string(text)]++
	}
	for _, g := range l.Grids {
		for i, k := range g.Tensors {
			add(l.Tensors[k], g.Offsets[i], g.Mesh.Shape, g.Mesh.Ranks, g.Place, g.Buffer, g.Strides, g.Codec, g.Scales)
		}
	}
	for _, f := range l.Fragments {
		name := l.Tensors[f.Tensor].Name
		f.Tensor = 0
		add(name, f)
	}
	for _, p := range l.Pads {
		add(p)
	}
	add(l.Buffers, l.Topo, l.Side)
	return m
}
