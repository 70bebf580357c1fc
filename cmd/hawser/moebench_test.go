package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hawser-project/hawser/bench/moebench"
)

func moeReport(t *testing.T, args ...string) (r moebench.Report, raw map[string]any, stderr string) {
	t.Helper()
	stdout, stderr, code := tool(t, append([]string{"--json", "-", "moe", "bench"}, args...)...)
	if code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatal(err)
	}
	if r.Schema != moebench.Schema || r.Machine.Cores < 1 || r.Revision == "" || len(r.Command) < 4 || r.Began.IsZero() {
		t.Errorf("report is %+v", r)
	}
	return r, decodeJSON(t, stdout), stderr
}

// drawn is a picture that was made.
func drawn(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestMoEBenchOfTwoRanks(t *testing.T) {
	svg := filepath.Join(t.TempDir(), "times.svg")
	r, raw, stderr := moeReport(t, "--svg", svg, "--shape", "pair", "--rounds", "2", "--steps", "20", "--warm", "2", "--routing", "uniform", "--topk", "2", "--experts", "6", "--tokens", "3")
	if *r.MismatchedBytes != 0 || *r.VerifiedSteps != 3 || r.Shape.Tokens != 3 || r.Shape.Experts != 6 || r.Routing != "uniform" {
		t.Errorf("report is %+v", r)
	}
	for _, f := range []string{"dispatch_p50_us", "combine_p50_us", "step_p50_us", "exchange_p50_us", "floor_us"} {
		if x, ok := raw[f].(float64); !ok || x <= 0 {
			t.Errorf("%s is %v", f, raw[f])
		}
	}
	if v, ok := raw["ratio_mpi"]; !ok || v != nil {
		t.Errorf("ratio_mpi is %v, and nobody measured it", v)
	}
	if !strings.Contains(stderr, "exchange") || !strings.Contains(stderr, "0 bytes wrong") {
		t.Errorf("no table on standard error: %q", stderr)
	}
	if picture := drawn(t, svg); !strings.Contains(picture, ">step<") || !strings.Contains(picture, ">exchange<") {
		t.Errorf("lines are missing in %s", picture)
	}
}

func TestMoEBenchSizes(t *testing.T) {
	r, _, stderr := moeReport(t, "--sizes", "--ranks", "64", "--shape", "decode")
	if r.Sizes == nil || r.Sizes.Layout.FirstChunk != 32 || r.Sizes.Regions.Total() < 537e6 || r.Sizes.Regions.Total() > 538e6 {
		t.Errorf("sizes are %+v", r.Sizes)
	}
	if !strings.Contains(stderr, "32768 records") {
		t.Errorf("table is %q", stderr)
	}
}

func TestMoEBenchSimulates(t *testing.T) {
	svg := filepath.Join(t.TempDir(), "ranks.svg")
	r, raw, stderr := moeReport(t, "--svg", svg, "--sim", "ep=8,16", "--steps", "1", "--tokens", "16", "--profile", "efa")
	if picture := drawn(t, svg); !strings.Contains(picture, ">dispatch, simulated<") || !strings.Contains(picture, ">combine, floor<") {
		t.Errorf("lines are missing in %s", picture)
	}
	rows := raw["rows"].([]any)
	if len(rows) != 2 || !r.Simulated || r.Rows[1].Ranks != 16 || r.Rows[1].Node != 8 || r.Rows[0].Profile != "efa" || len(r.Assumptions) < 3 {
		t.Errorf("report is %+v", r)
	}
	if row := rows[0].(map[string]any); row["simulated"] != true || row["mismatched_bytes"] != nil || row["floor_us"].(float64) <= 0 {
		t.Errorf("row is %v", row)
	}
	if _, there := raw["ranks"]; there {
		t.Error("a simulation has rows, and no figures beside them")
	}
	if !strings.Contains(stderr, "SIMULATED") || !strings.Contains(stderr, "300 GB/s") {
		t.Errorf("the table does not say that it is simulated, or what was assumed: %q", stderr)
	}
}

func TestMoEBenchUsage(t *testing.T) {
	for _, args := range [][]string{
		{"--shape", "nothing"},
		{"--routing", "nothing"},
		{"--ranks", "0"},
		{"--tokens=-1"},
		{"--rounds", "0"},
		{"--dtype", "int3"},
		{"--peer", "nobody"},
		{"--sim", "ep=x"},
		{"--sim", "8"},
		{"--sim", "ep=8", "--routing", filepath.Join(t.TempDir(), "none")},
		{"--sizes", "--topk", "300"},
		{"--provider", "nothing"},
	} {
		if _, stderr, code := tool(t, append([]string{"moe", "bench"}, args...)...); code != exitUsage || strings.Count(stderr, "\n") > 2 {
			t.Errorf("%v: exit code %d, %q", args, code, stderr)
		}
	}
}
