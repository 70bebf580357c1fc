package lint

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// listed is the part of "go list -json" that the rules need.
type listed struct {
	ImportPath   string
	Standard     bool
	Imports      []string
	TestImports  []string
	XTestImports []string
	CgoFiles     []string
	Deps         []string
	Module       *struct{ Path string }
}

// goList lists packages of the module for one platform and one set of build tags.
func goList(t *testing.T, env []string, args ...string) []listed {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-e", "-json=ImportPath,Standard,Imports,TestImports,XTestImports,CgoFiles,Deps,Module"}, args...)...)
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, stderr.String())
	}
	var all []listed
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("%s: %v", cmd, err)
		}
		all = append(all, p)
	}
}

// worlds are the builds whose files differ.
var worlds = []struct {
	name string
	env  []string
	tags string
}{
	{"amd64 cgo", []string{"GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=1"}, ""},
	{"arm64", []string{"GOOS=linux", "GOARCH=arm64", "CGO_ENABLED=0"}, ""},
	{"tags", []string{"GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=1"}, "invariants,processes,soak,vm"},
}

func TestImportsFollowTheRules(t *testing.T) {
	for _, w := range worlds {
		t.Run(w.name, func(t *testing.T) {
			packages := goList(t, w.env, "-tags="+w.tags, "./...")
			if len(packages) == 0 {
				t.Fatal("the module has no packages: the test looks in the wrong place")
			}
			for _, p := range packages {
				for _, line := range check(Package{
					Path:        p.ImportPath,
					Imports:     p.Imports,
					TestImports: append(p.TestImports, p.XTestImports...),
					Cgo:         len(p.CgoFiles) > 0,
				}) {
					t.Error(line)
				}
			}
		})
	}
}

// beside are packages for the tool alone, which bring libraries of their own along.
var beside = []string{"bench/chart", "bench/compare", "bench/weightbench"}

// TestLibraryHasOneForeignModule looks at everything that the library brings along, directly or not.
func TestLibraryHasOneForeignModule(t *testing.T) {
	top := []string{"", "bench", "internal", "kv", "mem", "provider", "topo"}
	for _, p := range goList(t, worlds[0].env, "-deps", "./...") {
		folder, own := strings.CutPrefix(p.ImportPath, Module)
		folder = strings.TrimPrefix(folder, "/")
		if !own || slices.Contains(beside, folder) || !slices.ContainsFunc(top, func(f string) bool { return below(folder, f) }) {
			continue
		}
		for _, dep := range p.Deps {
			if !standard(dep) && !inModule(dep) && !foreign(dep, []string{sys}) {
				t.Errorf("%s depends on %s: the library needs the standard library and %s only", p.ImportPath, dep, sys)
			}
		}
	}
}

func TestCheckFindsEachKindOfFault(t *testing.T) {
	for _, tc := range []struct {
		name string
		p    Package
		want string // part of the only line; "" for none
	}{
		{"root may use internal", Package{Path: Module, Imports: []string{"context", Module + "/internal/rail", sys + "/unix"}}, ""},
		{"root must not use kv", Package{Path: Module, Imports: []string{Module + "/kv"}}, "imports " + Module + "/kv"},
		{"provider must not use the root", Package{Path: Module + "/provider/tcp", Imports: []string{Module}}, "not allowed"},
		{"internal must not use the root", Package{Path: Module + "/internal/rail", Imports: []string{Module}}, "not allowed"},
		{"kv must not use internal", Package{Path: Module + "/kv", Imports: []string{Module + "/internal/cpu"}}, "not allowed"},
		{"kv must not use x/sys", Package{Path: Module + "/kv/simllm", Imports: []string{sys + "/unix"}}, "not allowed"},
		{"kv may use kv and the root", Package{Path: Module + "/kv/simllm", Imports: []string{Module + "/kv", Module}}, ""},
		{"command may use its libraries", Package{Path: Module + "/cmd/hawser", Imports: []string{"github.com/alecthomas/kong"}}, ""},
		{"command must not use others", Package{Path: Module + "/cmd/hawser", Imports: []string{"github.com/spf13/cobra"}}, "cobra"},
		{"mem must not use provider", Package{Path: Module + "/mem", Imports: []string{Module + "/provider"}}, "not allowed"},
		{"provider may use topo", Package{Path: Module + "/provider/verbs", Imports: []string{Module + "/topo"}}, ""},
		{"topo must not use provider", Package{Path: Module + "/topo", Imports: []string{Module + "/provider"}}, "not allowed"},
		{"unsafe where it is allowed", Package{Path: Module + "/provider/shm", Imports: []string{"unsafe"}}, ""},
		{"unsafe elsewhere", Package{Path: Module + "/kv", Imports: []string{"unsafe"}}, "imports unsafe"},
		{"cgo", Package{Path: Module + "/mem", Cgo: true}, "uses cgo"},
		{"tests may use test libraries", Package{Path: Module + "/mem", TestImports: []string{"go.uber.org/goleak"}}, ""},
		{"tests must not use others", Package{Path: Module + "/mem", TestImports: []string{"github.com/stretchr/testify"}}, "testify"},
		{"folder without a rule", Package{Path: Module + "/util"}, "no rule"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			lines := check(tc.p)
			if tc.want == "" && len(lines) != 0 || tc.want != "" && (len(lines) != 1 || !strings.Contains(lines[0], tc.want)) {
				t.Errorf("check(%+v): got %q, want a line with %q", tc.p, lines, tc.want)
			}
		})
	}
}
