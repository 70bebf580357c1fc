package main

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
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
