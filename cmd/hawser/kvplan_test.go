package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPlan(t *testing.T) {
	stdout, stderr, code := tool(t, "kv", "plan", "--geometry", "qwen3-235b-tp4", "--dst-tp", "1", "--src-members", "4", "--first", "256", "--tokens", "1000")
	if code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	for _, want := range []string{
		"plan of qwen3-235b-tp4", "32 KiB", "98304", "tokens 256 to 1000 in 6 units",
		"4512 writes, 48 per layer, 147849216 bytes, smallest write 32 KiB", "expected of each writer: 1128, 1128, 1128, 1128", "digest ",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("output lacks %q:\n%s", want, stdout)
		}
	}
}

// TestPlanJSON: the entries multiply to the writes, and a digest is that of the arguments.
func TestPlanJSON(t *testing.T) {
	plan := func(args ...string) (r planResult) {
		t.Helper()
		stdout, stderr, code := tool(t, append([]string{"--json", "-", "kv", "plan"}, args...)...)
		if code != exitOK {
			t.Fatalf("exit code %d: %s", code, stderr)
		}
		if err := json.Unmarshal([]byte(stdout), &r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	args := []string{"--geometry", "qwen3-8b", "--scale", "0.1", "--src-page", "16", "--tokens", "160"}
	r := plan(args...)
	if len(r.Flows) != 1 || len(r.Flows[0].Entries) != 1 || r.Flows[0].DstFold != 64 {
		t.Fatalf("flows %+v, want one of one entry, pages in 64 parts: 8 heads of 8 units", r.Flows)
	}
	e := r.Flows[0].Entries[0]
	writes := uint64(e.Dims[0].N*e.Dims[1].N) * uint64(r.Flows[0].Arrays) * uint64(r.Spans[0].Units)
	if r.Writes != writes || r.Expected[0] != writes || r.Bytes != writes*uint64(e.Len) || r.SmallestWrite != e.Len {
		t.Errorf("%+v: writes, expected, bytes, or smallest write differ from the entries'", r)
	}
	if again := plan(args...); again.Digest != r.Digest {
		t.Errorf("digest %s, then %s", r.Digest, again.Digest)
	}
	if other := plan(append(args, "--seq", "1")...); other.Digest == r.Digest {
		t.Errorf("another attempt has the same digest, %s", r.Digest)
	}
}

func TestPlanRefuses(t *testing.T) {
	dir := t.TempDir()
	bad, good := filepath.Join(dir, "bad.json"), filepath.Join(dir, "good.json")
	for path, text := range map[string]string{
		bad:  `{"name": "x", "layer": 3}`,
		good: `{"name": "x", "layers": 3, "groups": [{"page_tokens": 16, "kv_heads": 8, "head_dim": 128, "elem_size": 1, "planes": 2}]}`,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		args []string
		code int
		text string
	}{
		{[]string{"--dst-order", "NHD"}, exitFailure, "infeasible: layer 0 needs writes of 128 bytes, want at least 4096"},
		{[]string{"--dst-order", "NHD", "--allow-small-writes"}, exitOK, ""},
		{[]string{"--dst-order", "NHD", "--min-write", "128"}, exitOK, ""},
		{[]string{"--src-page", "1021"}, exitFailure, "pages of 1021 tokens on the prefill side and of 128 on the decode side repeat"},
		{[]string{"--geometry", "gpt-9"}, exitUsage, "want one of mini, qwen3-8b"},
		{[]string{"--geometry", bad}, exitUsage, `unknown field "layer"`},
		{[]string{"--geometry", good}, exitOK, ""},
		{[]string{"--geometry", good, "--src-tp", "8"}, exitFailure, "writes of 2048 bytes"},
		{[]string{"--geometry", good + ".gone.json"}, exitUsage, "no such file"},
		{[]string{"--scale", "2"}, exitUsage, "--scale"},
		{[]string{"--src-tp", "3"}, exitUsage, "--src-tp"},
		{[]string{"--dst-page=-1"}, exitUsage, "--dst-page"},
		{[]string{"--dst-order", "DHN"}, exitUsage, "want HND or NHD"},
		{[]string{"--dst-members", "2"}, exitUsage, "--dst-members: 2, want a divisor of the 1 ranks"},
		{[]string{"--tokens=-1"}, exitUsage, "--tokens"},
		{[]string{"--tokens", "1000000000"}, exitUsage, "--tokens"},
		{[]string{"--first", "20000"}, exitUsage, "--first"},
	} {
		_, stderr, code := tool(t, append([]string{"kv", "plan"}, c.args...)...)
		if code != c.code || !strings.Contains(stderr, c.text) {
			t.Errorf("%v: exit code %d, %s, want %d, %q", c.args, code, stderr, c.code, c.text)
		}
	}
}
