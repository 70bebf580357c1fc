package main

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hawser-project/hawser"
)

var update = flag.Bool("update", false, "write the golden files of testdata anew")

// trees is where the machines are that package topo keeps.
const trees = "../../topo/testdata"

// TestTopoOfKeptMachines compares what is printed of each machine with a golden file.
func TestTopoOfKeptMachines(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(trees, "*.tar.gz"))
	if err != nil || len(files) < 7 {
		t.Fatalf("%d machines in %s: %v", len(files), trees, err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".tar.gz")
		t.Run(name, func(t *testing.T) {
			stdout, stderr, code := tool(t, "topo", "--gids", "--sysfs", file)
			if code != exitOK || stderr != "" {
				t.Fatalf("exit code %d: %s", code, stderr)
			}
			golden := filepath.Join("testdata", "topo-"+name+".txt")
			if *update {
				if err := os.WriteFile(golden, []byte(stdout), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if stdout != string(want) {
				t.Errorf("%s differs; go test ./cmd/hawser -run TopoOfKept -update if this is right:\n%s", golden, stdout)
			}
		})
	}
}

// TestTopoAsJSON looks for what programs rely on.
func TestTopoAsJSON(t *testing.T) {
	stdout, _, code := tool(t, "topo", "--json", "-", "--sysfs", filepath.Join(trees, "aws-p5en.tar.gz"))
	v := decodeJSON(t, stdout)
	host, plan := v["host"].(map[string]any), v["plan"].(map[string]any)
	if code != exitOK || len(host["nics"].([]any)) != 16 || len(plan["gpus"].([]any)) != 8 || len(v["distances"].([]any)) != 8 {
		t.Errorf("exit code %d\n%s", code, stdout)
	}
	if _, ok := v["providers"]; ok {
		t.Error("networks of this machine are told as if they were those of the capture")
	}
	if d := v["distances"].([]any)[0].(map[string]any)["nics"].(map[string]any)["rdmap85s0"]; d != "same switch" {
		t.Errorf("gpu0 to rdmap85s0: %v, want same switch", d)
	}
	for _, rails := range plan["gpus"].([]any) {
		if n := len(rails.(map[string]any)["rails"].([]any)); n != 2 {
			t.Errorf("a GPU of p5en is served by 2 NICs, not by %d", n)
		}
	}
}

// TestCapturedHereIsReadAnywhere captures this machine to both forms and reads them.
func TestCapturedHereIsReadAnywhere(t *testing.T) {
	dir := t.TempDir()
	for _, to := range []string{filepath.Join(dir, "machine"), filepath.Join(dir, "machine.tar.gz")} {
		if stdout, stderr, code := tool(t, "topo", "capture", to); code != exitOK || !strings.Contains(stdout, to) {
			t.Fatalf("exit code %d: %s%s", code, stdout, stderr)
		}
		if stdout, stderr, code := tool(t, "topo", "--sysfs", to); code != exitOK || stdout == "" {
			t.Errorf("%s: exit code %d: %s%s", to, code, stdout, stderr)
		}
		if _, stderr, code := tool(t, "topo", "capture", to); code != exitFailure || !strings.Contains(stderr, "exist") {
			t.Errorf("a capture over another one: exit code %d: %s", code, stderr)
		}
	}
}

// TestDefaultRailsAreTheEngines: each network that is there is a default rail, or topo says why not, and none other.
func TestDefaultRailsAreTheEngines(t *testing.T) {
	stdout, stderr, code := tool(t, "topo", "--json", "-")
	if code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	var r topoResult
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatal(err)
	}
	e, err := hawser.Open(t.Context(), hawser.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer closeEngine(t.Context(), e)
	var want []railInfo
	for _, s := range e.Stats().Rails {
		want = append(want, railInfo{s.Provider, s.Device})
	}
	if !slices.Equal(r.DefaultRails, want) {
		t.Errorf("default rails %v, want %v", r.DefaultRails, want)
	}
	for _, p := range hawser.DefaultProviders() {
		of := func(i railInfo) bool { return i.Provider == p.Name() }
		out := func(l leftOut) bool { return strings.HasPrefix(l.Network, p.Name()) && l.Reason != "" }
		why := func(i providerInfo) bool { return i.Name == p.Name() && i.Reason != "" }
		if !slices.ContainsFunc(r.DefaultRails, of) && !slices.ContainsFunc(r.LeftOut, out) && !slices.ContainsFunc(r.Providers, why) {
			t.Errorf("%s is no default rail, and nothing says why", p.Name())
		}
	}
}

func TestTopoOfWhatIsNoCapture(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.tar.gz")
	if err := os.WriteFile(file, []byte("no archive"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, filepath.Join(t.TempDir(), "none")} {
		if _, stderr, code := tool(t, "topo", "--sysfs", path); code != exitUsage || !strings.Contains(stderr, path) {
			t.Errorf("exit code %d, %q: want the path and a usage error", code, stderr)
		}
	}
}
