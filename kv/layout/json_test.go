package layout

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

const twoGroups = `{"name": "mixed", "layers": 6, "tp": 2, "groups": [
	{"page_tokens": 64, "kv_heads": 4, "head_dim": 128, "elem_size": 2, "planes": 2},
	{"page_tokens": 32, "kv_heads": 4, "head_dim": 128, "elem_size": 2, "planes": 2, "window": 1024, "layers": [0, 1, 2, 4]}]}`

func TestReadJSON(t *testing.T) {
	got, err := ReadJSON(strings.NewReader(twoGroups))
	if err != nil {
		t.Fatal(err)
	}
	want := Model{
		Name: "mixed", Layers: 6, TP: 2, PP: 1, Groups: []Group{{64, 4, 128, 2, 2, 0}, {32, 4, 128, 2, 2, 1024}}, LayerGroups: []uint8{1, 1, 1, 0, 1, 0},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	instance(t, Spec{Model: got, Pages: 3, LayerRegions: true})
	half, err := got.Scale(0.1)
	if err != nil || half.Layers != 4 || half.Name != "mixed/4-of-6-layers" {
		t.Errorf("a tenth of the layers, at least one of each group: %+v, %v, want 4", half, err)
	}
	if got.BytesPerToken() != 6*4*128*2*2 {
		t.Errorf("%d bytes per token", got.BytesPerToken())
	}
}

func TestReadJSONErrors(t *testing.T) {
	for _, c := range []struct{ from, to, text string }{
		{twoGroups, "", "geometry file: EOF"},
		{twoGroups, twoGroups + "{}", "more follows"},
		{twoGroups, strings.Repeat(" ", maxJSON+1), "more than 1048576 bytes"},
		{`"layers": 6`, `"layer": 6`, `unknown field "layer"`},
		{`"window"`, `"Windows"`, `unknown field "Windows"`},
		{`"layers": 6`, `"layers": "6"`, "layers"},
		{`"layers": 6`, `"layers": 0`, "layers is 0, want 1 .. 1024"},
		{`"mixed"`, `""`, "length of name is 0"},
		{`"tp": 2`, `"tp": 0`, "tp is 0"},
		{`"tp": 2`, `"tp": 3`, "4 kv heads over 3 ranks"},
		{`"tp": 2`, `"pp": 7`, "pp is 7, want 1 .. 6"},
		{`"page_tokens": 32`, `"page_tokens": 0`, "groups[1]: invalid layout: page_tokens is 0"},
		{`"page_tokens": 32, "kv_heads": 4`, `"page_tokens": 32, "kv_heads": 8`, "group 1 has 8 kv heads, group 0 has 4"},
		{`"page_tokens": 32`, `"page_tokens": 1048576`, "a page of one plane has 536870912 bytes"},
		{`[0, 1, 2, 4]`, `[0, 6]`, "groups[1].layers has layer 6, want 0 .. 5"},
		{`[0, 1, 2, 4]`, `[0, 1, 0]`, "groups[1].layers has layer 0, which groups[1] has"},
		{`[0, 1, 2, 4]`, `[0, 1, 2, 3, 4, 5]`, "group 0 has no layer"},
		{`, "layers": [0, 1, 2, 4]`, ``, "groups[1].layers is missing, as groups[0].layers"},
		{`"planes": 2},`, `"planes": 2, "layers": [3]},`, "layer 5 is in no group's layers"},
	} {
		text := strings.Replace(twoGroups, c.from, c.to, 1)
		if text == twoGroups {
			t.Fatalf("%q is not in the file", c.from)
		}
		if m, err := ReadJSON(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%q instead of %q: %+v, %v, want %q", c.to, c.from, m, err, c.text)
		}
	}
}

// TestJSONDocumented: the file in the comment of ReadJSON is one.
func TestJSONDocumented(t *testing.T) {
	source, err := os.ReadFile("json.go")
	if err != nil {
		t.Fatal(err)
	}
	var file strings.Builder
	for line := range strings.Lines(string(source)) {
		if text, ok := strings.CutPrefix(line, "//\t"); ok {
			for _, remark := range []string{"fingerprint, at most", "optional, default"} {
				text, _, _ = strings.Cut(text, remark)
			}
			file.WriteString(text)
		}
	}
	if _, err := ReadJSON(strings.NewReader(file.String())); err != nil {
		t.Errorf("%v in %s", err, file.String())
	}
}

func TestModelErrors(t *testing.T) {
	if _, err := BuiltinModel("no"); err == nil || !strings.Contains(err.Error(), "want one of mini, qwen3-8b, qwen3-235b-tp4, llama3-70b-tp8, deepseek-v3") {
		t.Errorf("unknown model: %v", err)
	}
	mini := model(t, "mini", 0)
	for _, f := range []float64{0, -1, 1.01} {
		if _, err := mini.Scale(f); err == nil {
			t.Errorf("scale %v is accepted", f)
		}
	}
	for _, c := range []struct {
		spec Spec
		text string
	}{
		{Spec{Model: mini, TP: 3}, "2 kv heads over 3 ranks"},
		{Spec{Model: mini, TP: -1}, "tensor-parallel degree is -1"},
		{Spec{Model: mini, PP: 9}, "pipeline stages is 9, want 1 .. 8"},
		{Spec{Model: mini, TP: 2, First: 2}, "first rank of the member is 2"},
		{Spec{Model: mini, TP: 2, First: 1, Ranks: 2}, "ranks of the member is 2, want 1 .. 1"},
		{Spec{Model: mini, PageTokens: -1}, "page tokens is -1"},
		{Spec{Model: mini, Pages: MaxPages + 1}, "pages is 1048577"},
	} {
		if _, _, err := Build(c.spec); err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%+v: %v, want %q", c.spec, err, c.text)
		}
	}
	var o Order
	if err := o.UnmarshalText([]byte("nhd")); err != nil || o != NHD || o.String() != "NHD" {
		t.Errorf("nhd is %v, %v", o, err)
	}
	if err := o.UnmarshalText([]byte("HDN")); err == nil {
		t.Error("HDN is accepted")
	}
}

// FuzzReadJSON: what is accepted can be laid out.
func FuzzReadJSON(f *testing.F) {
	f.Add([]byte(twoGroups))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := ReadJSON(strings.NewReader(string(data)))
		if err != nil {
			return
		}
		if _, _, err := Build(Spec{Model: m}); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Scale(0.3); err != nil {
			t.Fatal(err)
		}
	})
}
