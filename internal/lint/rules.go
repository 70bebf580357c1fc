package lint

import (
	"fmt"
	"slices"
	"strings"
)

// Module is the path of this module.
const Module = "github.com/hawser-project/hawser"

// sys is the only foreign module below the commands.
const sys = "golang.org/x/sys"

// Package is what a rule needs to know of one package of the module.
type Package struct {
	Path        string   // import path; "" below Module is the root
	Imports     []string // of the code itself
	TestImports []string // of its tests
	Cgo         bool
}

// rule says what the packages below one folder may import. The first rule that fits a package is its rule.
type rule struct {
	folder string   // "": the root package alone
	own    []string // folders of this module
	others []string // foreign modules
}

// rules go from the top down: cmd, bench -> kv, weights -> hawser -> internal -> provider, mem, topo.
var rules = []rule{
	{"cmd", []string{"", "bench", "internal", "kv", "mem", "moe", "provider", "reshard", "topo", "weights"}, []string{sys, "github.com/alecthomas/kong", "github.com/jedib0t/go-pretty/v6"}},
	{"bench/chart", nil, []string{"gonum.org/v1/plot"}},
	{"bench/compare", []string{"bench"}, []string{"golang.org/x/perf"}},
	{"bench/kvbench", []string{"", "bench", "internal", "kv", "mem", "provider"}, []string{sys}},
	{"bench/weightbench", []string{"", "bench", "internal", "mem", "moe", "provider", "reshard", "weights"}, []string{sys}},
	{"bench/moebench", []string{"", "bench", "internal", "mem", "moe", "provider"}, []string{sys}},
	{"bench", []string{"", "internal", "mem", "provider"}, []string{sys}},
	{"kv", []string{"", "kv", "internal/invariants"}, nil},
	{"weights/weightsim", []string{"internal", "provider", "reshard", "weights/proto", "weights/schedule"}, []string{sys}},
	{"weights", []string{"", "internal/invariants", "moe/numeric", "reshard", "weights"}, []string{"github.com/cespare/xxhash/v2"}},
	{"reshard", []string{"internal/invariants", "moe/numeric", "reshard"}, nil},
	{"moe/numeric", nil, []string{sys}},
	{"moe/moesim", []string{"internal", "moe", "provider"}, []string{sys}},
	{"moe", []string{"", "internal/invariants", "moe"}, nil},
	{"examples", []string{"", "kv", "mem", "provider"}, nil},
	{"internal", []string{"internal", "mem", "provider", "topo"}, []string{sys}},
	{"provider", []string{"internal", "mem", "provider", "topo"}, []string{sys}},
	{"mem", []string{"internal", "mem"}, []string{sys}},
	{"topo", nil, []string{sys}},
	{"", []string{"internal", "mem", "provider", "topo"}, []string{sys}},
}

// testLibraries are what the tests of any package may import in addition to the packages of this module.
var testLibraries = []string{
	"github.com/cockroachdb/datadriven", "github.com/google/go-cmp", "go.uber.org/goleak", "pgregory.net/rapid", sys,
}

// unsafeFolders may import unsafe: where memory is shared with other processes, or laid out for them.
var unsafeFolders = []string{"mem", "internal/dl", "internal/imm", "internal/ring", "internal/wire", "provider/ofi", "provider/shm", "provider/tcp", "provider/verbs"}

// cgoFolders may use cgo: they load libraries that the machine need not have. Each builds without cgo, too.
var cgoFolders = []string{"internal/dl", "provider/ofi", "provider/verbs"}

// check returns what p does against the rules, each as one line.
func check(p Package) []string {
	folder := strings.TrimPrefix(strings.TrimPrefix(p.Path, Module), "/")
	i := slices.IndexFunc(rules, func(r rule) bool { return below(folder, r.folder) })
	if i < 0 {
		return []string{fmt.Sprintf("%s: no rule in internal/lint says what this folder may import", p.Path)}
	}
	var bad []string
	for _, imp := range p.Imports {
		if !rules[i].allows(imp) && !same(folder, imp) {
			bad = append(bad, fmt.Sprintf("%s imports %s: not allowed below %q", p.Path, imp, rules[i].folder))
		}
	}
	for _, imp := range p.TestImports {
		if !rules[i].allows(imp) && !inModule(imp) && !foreign(imp, testLibraries) {
			bad = append(bad, fmt.Sprintf("tests of %s import %s: not among the test libraries", p.Path, imp))
		}
	}
	if slices.Contains(p.Imports, "unsafe") && !slices.ContainsFunc(unsafeFolders, func(f string) bool { return below(folder, f) }) {
		bad = append(bad, fmt.Sprintf("%s imports unsafe: only %s may", p.Path, strings.Join(unsafeFolders, ", ")))
	}
	if p.Cgo && !slices.Contains(cgoFolders, folder) {
		bad = append(bad, fmt.Sprintf("%s uses cgo: only %s may", p.Path, strings.Join(cgoFolders, ", ")))
	}
	return bad
}

func (r rule) allows(imp string) bool {
	if standard(imp) {
		return true
	}
	if inModule(imp) {
		folder := strings.TrimPrefix(strings.TrimPrefix(imp, Module), "/")
		return slices.ContainsFunc(r.own, func(f string) bool { return below(folder, f) })
	}
	return foreign(imp, r.others)
}

// below reports whether folder is f or inside it. The root, "", holds itself alone.
func below(folder, f string) bool {
	return folder == f || f != "" && strings.HasPrefix(folder, f+"/")
}

// same reports whether imp is in the top folder of folder: parts of one command may import each other.
func same(folder, imp string) bool {
	top, _, _ := strings.Cut(folder, "/")
	return top != "" && below(strings.TrimPrefix(imp, Module+"/"), top)
}

// standard reports whether imp is of the standard library: the first element of no other path lacks a dot.
func standard(imp string) bool {
	first, _, _ := strings.Cut(imp, "/")
	return !strings.Contains(first, ".")
}

func inModule(imp string) bool { return imp == Module || strings.HasPrefix(imp, Module+"/") }

func foreign(imp string, modules []string) bool {
	return slices.ContainsFunc(modules, func(m string) bool { return imp == m || strings.HasPrefix(imp, m+"/") })
}
