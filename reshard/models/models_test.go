package models

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"
)

// The largest difference from a published total, in percent. Publishers round.
const published = 1.0

func TestModelTotals(t *testing.T) {
	want := map[string]Totals{ // exact: a changed tensor shows
		"Qwen3-0.6B":      {Tensors: 310, Params: 596_049_920},
		"Qwen3-8B":        {Tensors: 399, Params: 8_190_735_360},
		"Qwen3-30B-A3B":   {Tensors: 18_867, Params: 30_532_122_624},
		"Qwen3-235B-A22B": {Tensors: 36_945, Params: 235_093_634_560},
		"DeepSeek-V3":     {Tensors: 90_427, Params: 671_026_419_200},
		"Kimi-K2":         {Tensors: 139_583, Params: 1_026_408_232_448},
		"Llama-3-8B":      {Tensors: 291, Params: 8_030_261_248},
		"Llama-3-70B":     {Tensors: 723, Params: 70_553_706_496},
		"gpt-oss-120b":    {Tensors: 687, Params: 116_829_156_672},
	}
	off := func(got, want int64) float64 { return 100 * math.Abs(float64(got-want)) / float64(want) }
	for i := range all() {
		m := &all()[i]
		got := m.Totals()
		if w := want[m.Name]; got.Tensors != w.Tensors || got.Params != w.Params {
			t.Errorf("%s: %d tensors, %d parameters, want %d, %d", m.Name, got.Tensors, got.Params, w.Tensors, w.Params)
		}
		if d := off(got.Params+m.PublishedAdjust, m.PublishedTotal); d > published {
			t.Errorf("%s: %d parameters, %.2f %% off the published %d", m.Name, got.Params, d, m.PublishedTotal)
		}
		for group, w := range m.PublishedGroups {
			if d := off(got.Groups[group], w); d > published {
				t.Errorf("%s: %s: %d parameters, %.2f %% off the published %d", m.Name, group, got.Groups[group], d, w)
			}
		}
		if m.PublishedSource == "" {
			t.Errorf("%s: no source of the published total", m.Name)
		}
	}
	if len(want) != len(all()) {
		t.Errorf("%d models, want %d", len(all()), len(want))
	}
}

// The file has no field that is not read, and patterns and ranges agree.
func TestModelData(t *testing.T) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	var file struct {
		Schema string            `json:"schema"`
		Fields map[string]string `json:"fields"`
		Models []struct {
			Model
			Config map[string]any `json:"config"` // has more than Config reads
		} `json:"models"`
	}
	if err := d.Decode(&file); err != nil || file.Schema != "weights-models/1" {
		t.Fatalf("schema %q, %v", file.Schema, err)
	}
	for _, m := range all() {
		for _, p := range m.Tensors {
			if strings.Contains(p.Name, "{layer}") != (p.Layer != nil) || strings.Contains(p.Name, "{expert}") != (p.Expert != nil) {
				t.Errorf("%s: %s: name and ranges disagree", m.Name, p.Name)
			}
			for _, r := range []*[2]int{p.Layer, p.Expert} {
				if r != nil && (r[0] < 0 || r[0] >= r[1]) {
					t.Errorf("%s: %s: range %v", m.Name, p.Name, *r)
				}
			}
			for _, dim := range []*int{p.TP, p.EP} {
				if dim != nil && (*dim < 0 || *dim >= len(p.Shape)) {
					t.Errorf("%s: %s: dimension %d of %v", m.Name, p.Name, *dim, p.Shape)
				}
			}
		}
	}
}

// Expansion gives as many tensors as the totals count, less the scales of quantized checkpoints, and each name once.
func TestExpand(t *testing.T) {
	for i := range all() {
		m := &all()[i]
		var elems int64
		seen := map[string]bool{}
		for _, e := range m.expand(false) {
			if seen[e.name] || strings.Contains(e.name, "{") {
				t.Errorf("%s: %s twice, or not expanded", m.Name, e.name)
			}
			seen[e.name] = true
			elems += product(e.shape)
		}
		var stacked int64
		for _, e := range m.expand(true) {
			stacked += product(e.shape)
		}
		if elems != stacked {
			t.Errorf("%s: %d elements, %d stacked", m.Name, elems, stacked)
		}
	}
	for name, want := range map[string][2]int{"Kimi-K2": {1_035, 69_975}, "Qwen3-235B-A22B": {1_131, 36_945}, "Llama-3-70B": {723, 723}} {
		m, err := Lookup(strings.ToLower(name))
		if err != nil {
			t.Fatal(err)
		}
		if got := [2]int{len(m.expand(true)), len(m.expand(false))}; got != want {
			t.Errorf("%s: %v tensors stacked and split, want %v", name, got, want)
		}
	}
}

func TestLookupNamesWhatThereIs(t *testing.T) {
	_, err := Lookup("GPT-9")
	if err == nil || !strings.Contains(err.Error(), "Kimi-K2") {
		t.Fatalf("%v", err)
	}
}
