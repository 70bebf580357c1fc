package chart_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/hawser-project/hawser/bench/chart"
)

// texts returns the texts of an SVG, and fails when it is not well formed.
func texts(t *testing.T, svg []byte) string {
	t.Helper()
	var all []string
	d := xml.NewDecoder(bytes.NewReader(svg))
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			return strings.Join(all, "|")
		}
		if err != nil {
			t.Fatalf("not well formed: %v", err)
		}
		if s, ok := tok.(xml.CharData); ok && strings.TrimSpace(string(s)) != "" {
			all = append(all, strings.TrimSpace(string(s)))
		}
	}
}

func TestThroughput(t *testing.T) {
	var svg bytes.Buffer
	err := chart.Throughput(&svg, "pages, cold", []chart.Line{
		{Name: "ours", Points: []chart.Point{{X: 1 << 20, Y: 11, Min: 10, Max: 12}, {X: 64, Y: 1, Min: 0.5, Max: 2}, {X: 65536, Y: 9, Min: 9, Max: 9}}},
		{Name: "theirs <&>", Points: []chart.Point{{X: 65536, Y: 5, Min: 4, Max: 6}}},
		{Name: "absent"},
	})
	if err != nil {
		t.Fatal(err)
	}
	got := texts(t, svg.Bytes())
	for _, want := range []string{"pages, cold", "ours", "theirs <&>", "64 B", "64 KiB", "1 MiB", "GB/s"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q among %s", want, got)
		}
	}
	if strings.Contains(got, "absent") {
		t.Errorf("a line without points is in the legend: %s", got)
	}
}

func TestLatency(t *testing.T) {
	var svg bytes.Buffer
	err := chart.Latency(&svg, "imm", []chart.Line{{Name: "ours", Points: []chart.Point{
		{X: 0.4, Y: 0}, {X: 0.5, Y: 0.5}, {X: 0.9, Y: 0.99}, {X: 30, Y: 0.9999}, {X: 90, Y: 1}, {X: 0, Y: 0.1},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	got := texts(t, svg.Bytes())
	for _, want := range []string{"0.5", "20", "50 %", "99.99 %", "latency, us"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q among %s", want, got)
		}
	}
}

func TestNothingToDraw(t *testing.T) {
	for _, lines := range [][]chart.Line{nil, {{Name: "ours"}}} {
		if err := chart.Throughput(io.Discard, "x", lines); !errors.Is(err, chart.ErrEmpty) {
			t.Errorf("Throughput of %v: %v, want ErrEmpty", lines, err)
		}
	}
	if err := chart.Throughput(io.Discard, "x", []chart.Line{{Points: []chart.Point{{X: 0, Y: 1}}}}); err == nil {
		t.Error("a size of 0 on a logarithmic axis was accepted")
	}
}

func TestScaling(t *testing.T) {
	var svg bytes.Buffer
	if err := chart.Scaling(&svg, "dispatch", []chart.Line{{Name: "floor", Points: []chart.Point{{X: 64, Y: 133}, {X: 8, Y: 130}}}}); err != nil {
		t.Fatal(err)
	}
	got := texts(t, svg.Bytes())
	for _, want := range []string{"dispatch", "floor", "ranks", "us", "64"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q among %s", want, got)
		}
	}
}
