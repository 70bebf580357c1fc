package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// What is kept of the output of a failure: its beginning says what went wrong first, its end what came of it. A line may be the
// input of a fuzz target.
const (
	firstLines = 12
	lastLines  = 30
	longest    = 16 << 10 // bytes of a line
)

// shorten cuts lines, which end in a newline each but the last, to their beginning and their end.
func shorten(lines []string) string {
	var b strings.Builder
	for i, l := range lines {
		if l == "" || strings.HasPrefix(l, "=== ") {
			continue
		}
		if i == firstLines && len(lines) > firstLines+lastLines {
			fmt.Fprintf(&b, "... %d lines ...\n", len(lines)-firstLines-lastLines)
		}
		if i >= firstLines && i < len(lines)-lastLines {
			continue
		}
		if len(l) > longest {
			l = fmt.Sprintf("%s... %d bytes ...\n", l[:longest], len(l)-longest)
		}
		b.WriteString(l)
		if !strings.HasSuffix(l, "\n") && i == len(lines)-1 {
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// module is left out where a package is one of many in a line.
const module = "github.com/hawser-project/"

// short is a package as a reader knows it: "hawser/provider/shm".
func short(pkg string) string { return strings.TrimPrefix(pkg, module) }

// printGrouped prints the skips of one package: a line for each reason, with the tests that gave it.
func printGrouped(out io.Writer, skips []Skip) {
	tests := map[string][]string{}
	for _, s := range skips {
		tests[s.Reason] = append(tests[s.Reason], s.Test)
	}
	for _, reason := range slices.Sorted(maps.Keys(tests)) {
		fmt.Fprintf(out, "     skipped %d x %q: %s\n", len(tests[reason]), reason, siblings(tests[reason]))
	}
}

// siblings joins the names of tests, those of one parent in braces.
func siblings(tests []string) string {
	under := map[string][]string{}
	for _, t := range tests {
		at := strings.LastIndexByte(t, '/') + 1
		under[t[:at]] = append(under[t[:at]], t[at:])
	}
	var all []string
	for _, parent := range slices.Sorted(maps.Keys(under)) {
		names := strings.Join(under[parent], ", ")
		if len(under[parent]) > 1 && parent != "" {
			names = "{" + names + "}"
		}
		all = append(all, parent+names)
	}
	return strings.Join(all, ", ")
}

// printSkips prints a line for each reason, with how many tests of which packages gave it in which runs. The tests are named where a
// run tells of the package.
func printSkips(out io.Writer, runs []Summary) {
	counts := map[string]map[string]map[string]int{} // by reason, run and package
	total := map[string]int{}
	var order []string // of runs
	for _, r := range runs {
		if !slices.Contains(order, r.Name) {
			order = append(order, r.Name)
		}
		for _, s := range r.Skips {
			if counts[s.Reason] == nil {
				counts[s.Reason] = map[string]map[string]int{}
			}
			if counts[s.Reason][r.Name] == nil {
				counts[s.Reason][r.Name] = map[string]int{}
			}
			counts[s.Reason][r.Name][short(s.Package)]++
			total[s.Reason]++
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(counts)) {
		var where []string
		for _, run := range order {
			packages := counts[reason][run]
			var in []string
			for _, pkg := range slices.Sorted(maps.Keys(packages)) {
				if pkg != "" {
					in = append(in, fmt.Sprintf("%s %d", pkg, packages[pkg]))
				}
			}
			switch {
			case len(in) > 0:
				where = append(where, run+" ("+strings.Join(in, ", ")+")")
			case len(packages) > 0:
				where = append(where, run)
			}
		}
		fmt.Fprintf(out, "skipped %d x %q: %s\n", total[reason], reason, strings.Join(where, "; "))
	}
}

// printFailures prints what the failures said, and then what failed by name.
func printFailures(out io.Writer, runs []Summary) {
	var names []string
	for _, r := range runs {
		for _, f := range r.Failures {
			name := strings.TrimSpace(r.Name + " " + short(f.Name))
			names = append(names, name)
			if !onlyForChildren(f, r.Failures) {
				fmt.Fprintf(out, "\n--- failed: %s\n%s", name, f.Output)
			}
		}
	}
	if len(names) > 0 {
		fmt.Fprintln(out)
	}
	for _, name := range names {
		fmt.Fprintf(out, "failed: %s\n", name)
	}
}

// onlyForChildren says that a test failed because subtests did, and said nothing else.
func onlyForChildren(f Failure, all []Failure) bool {
	for line := range strings.Lines(f.Output) {
		if !strings.HasPrefix(strings.TrimSpace(line), "--- FAIL: ") {
			return false
		}
	}
	return slices.ContainsFunc(all, func(o Failure) bool { return strings.HasPrefix(o.Name, f.Name+"/") })
}
