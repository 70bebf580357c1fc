package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hawser-project/hawser/bench"
	"github.com/hawser-project/hawser/bench/compare"
)

// results measures a little, and writes a second result in which ours is half as fast.
func results(t *testing.T) (before, after string) {
	t.Helper()
	dir := t.TempDir()
	before, after = filepath.Join(dir, "a.json"), filepath.Join(dir, "b.json")
	_, stderr, code := tool(t, "bench", "pages", "--provider", "shm,tcp", "--size", "4KiB,64KiB", "--bytes", "256KiB", "--rounds", "9", "--json", before)
	if code != exitOK {
		t.Fatalf("bench: exit %d: %s", code, stderr)
	}
	var r bench.Report
	text, err := os.ReadFile(before)
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		t.Fatal(err)
	}
	for i := range r.Rows {
		for j := range r.Rows[i].Ours.Samples {
			r.Rows[i].Ours.Samples[j].Seconds *= 100 // far beyond any noise
		}
	}
	if text, err = json.Marshal(r); err == nil {
		err = os.WriteFile(after, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return before, after
}

func TestCompareAndPlot(t *testing.T) {
	a, b := results(t)
	t.Run("same", func(t *testing.T) {
		stdout, stderr, code := tool(t, "bench", "compare", a, a, "--fail", "1")
		if code != exitOK || !strings.Contains(stdout, "+0.0 %") || strings.Contains(stdout, "worse\n") {
			t.Errorf("exit %d, %s, %s", code, stderr, stdout)
		}
	})
	t.Run("worse", func(t *testing.T) {
		stdout, stderr, code := tool(t, "bench", "compare", a, b, "--fail", "10", "--json", "-")
		var c compare.Comparison
		if err := json.Unmarshal([]byte(stdout), &c); err != nil {
			t.Fatal(err)
		}
		if code != exitFailure || !strings.Contains(stderr, "worse by more than 10 %") || !strings.Contains(stderr, "pages tcp 64 KiB") {
			t.Errorf("exit %d: %s", code, stderr)
		}
		if len(c.Changes) != 8 || c.Changes[0].Verdict != compare.Worse {
			t.Errorf("changes: %+v", c.Changes)
		}
	})
	t.Run("plot", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "charts")
		stdout, stderr, code := tool(t, "bench", "plot", a, "--out", dir)
		if code != exitOK {
			t.Fatalf("exit %d: %s", code, stderr)
		}
		for file, texts := range map[string][]string{
			"throughput-pages.svg":     {"hawser shm", "hawser tcp", "memcpy beside shm", "go socket beside tcp", "4 KiB", "64 KiB"},
			"latency-pages-64-KiB.svg": {"hawser shm", "hawser tcp", "share of operations"},
		} {
			svg, err := os.ReadFile(filepath.Join(dir, file))
			if err != nil || !strings.Contains(stdout, file) {
				t.Errorf("%s: %v; said: %s", file, err, stdout)
			}
			for _, text := range texts {
				if !strings.Contains(string(svg), text) {
					t.Errorf("%s does not show %q", file, text)
				}
			}
		}
	})
	t.Run("refused", func(t *testing.T) {
		other := filepath.Join(t.TempDir(), "other.json")
		if err := os.WriteFile(other, []byte(`{"schema":1}`), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			args []string
			code int
			want string
		}{
			{[]string{"compare", a, filepath.Join(t.TempDir(), "none.json")}, exitUsage, "no such file"},
			{[]string{"compare", other, a}, exitFailure, "schema 1"},
			{[]string{"compare", a, b, "--fail=-1"}, exitUsage, "--fail"},
			{[]string{"plot", other}, exitFailure, "schema 1"},
		} {
			if _, stderr, code := tool(t, append([]string{"bench"}, c.args...)...); code != c.code || !strings.Contains(stderr, c.want) {
				t.Errorf("%v: exit %d, %s, want %d and %q", c.args, code, stderr, c.code, c.want)
			}
		}
	})
}
