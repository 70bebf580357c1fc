package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

// Summary is what a run of tests came to: a line of the counts file.
type Summary struct {
	Name     string    `json:"name"`
	Passed   int       `json:"passed"`
	Failed   int       `json:"failed"`
	Skipped  int       `json:"skipped"`
	Skips    []Skip    `json:"skips,omitempty"`
	Failures []Failure `json:"failures,omitempty"`
	Flaky    []Failure `json:"flaky,omitempty"` // counted as passed
}

// Skip is a test that was skipped. Package and Test are empty where a whole run was.
type Skip struct {
	Package string `json:"package,omitempty"`
	Test    string `json:"test,omitempty"`
	Reason  string `json:"reason"`
}

// Failure is what a test said that failed. Name is empty where the run is not one of tests.
type Failure struct {
	Name   string `json:"name,omitempty"` // "package.Test"
	Output string `json:"output"`         // shortened
}

func (s Summary) line() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", s.Passed, s.Failed, s.Skipped)
}

func (s Summary) ran() bool { return s.Passed+s.Failed+s.Skipped > 0 }

// event is one line of "go test -json" (go doc cmd/test2json).
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
	Elapsed float64

	ImportPath  string // build events carry this instead of Package
	FailedBuild string // the ImportPath of the build that made a package fail
}

// summarize reads events until the end and prints what a person needs of them, and lines that start with live as they come.
func summarize(events io.Reader, out io.Writer, live string) (Summary, error) {
	s := summary{out: out, live: live, open: map[string]*running{}, builds: map[string][]string{}}
	in := bufio.NewReader(events)
	for {
		line, err := in.ReadBytes('\n')
		if len(line) > 0 {
			s.take(line)
		}
		if errors.Is(err, io.EOF) {
			for _, name := range slices.Sorted(maps.Keys(s.open)) { // go test was ended
				s.endPackage(event{Action: "fail", Package: name, Output: "was ended"})
			}
			return s.Summary, nil
		}
		if err != nil {
			return s.Summary, fmt.Errorf("read test events: %w", err)
		}
	}
}

type summary struct {
	Summary

	out    io.Writer
	live   string              // prefix of progress lines; empty for none
	open   map[string]*running // packages that have not ended
	builds map[string][]string // output of the compiler, by import path
}

// running is a package that has not ended.
type running struct {
	text   []string            // its output outside of tests
	tests  map[string][]string // output of the tests that have begun and not ended
	skips  []Skip
	failed int
}

func (s *summary) take(line []byte) {
	var e event
	if json.Unmarshal(line, &e) != nil || e.Action == "" {
		fmt.Fprintf(s.out, "%s", line) // go test prints some errors as plain text
		return
	}
	if e.Action == "build-output" {
		fmt.Fprint(s.out, e.Output)
		s.builds[e.ImportPath] = append(s.builds[e.ImportPath], e.Output)
		return
	}
	if e.Package == "" {
		return
	}
	p := s.open[e.Package]
	if p == nil {
		p = &running{tests: map[string][]string{}}
		s.open[e.Package] = p
	}
	switch e.Action {
	case "output":
		switch {
		case s.live != "" && strings.HasPrefix(e.Output, s.live):
			fmt.Fprint(s.out, e.Output)
		case e.Test == "":
			p.text = append(p.text, e.Output)
		default:
			p.tests[e.Test] = append(p.tests[e.Test], e.Output)
		}
	case "pass", "fail", "skip":
		if e.Test == "" {
			s.endPackage(e)
		} else {
			s.endTest(e, p)
		}
	}
}

func (s *summary) endTest(e event, p *running) {
	text := p.tests[e.Test]
	delete(p.tests, e.Test)
	switch e.Action {
	case "pass":
		s.Passed++
	case "fail":
		p.failed++
		s.fail(e.Package+"."+e.Test, text)
	case "skip":
		s.Skipped++
		p.skips = append(p.skips, Skip{e.Package, e.Test, reason(text)})
	}
}

// fail counts a failure, prints all that it said, and keeps the ends of it.
func (s *summary) fail(name string, text []string) {
	s.Failed++
	for _, t := range text {
		fmt.Fprint(s.out, t)
	}
	s.Failures = append(s.Failures, Failure{name, shorten(text)})
}

func (s *summary) endPackage(e event) {
	p := s.open[e.Package]
	delete(s.open, e.Package)
	switch e.Action {
	case "skip":
		return // no test files
	case "pass":
		fmt.Fprintf(s.out, "ok   %s  %.1fs\n", e.Package, e.Elapsed)
	default:
		s.unfinished(e, p)
		fmt.Fprintf(s.out, "FAIL %s  %.1fs\n", e.Package, e.Elapsed)
	}
	printGrouped(s.out, p.skips)
	s.Skips = append(s.Skips, p.skips...)
}

// unfinished tells what a package that failed said outside of tests that failed: it did not build, or it died, or was ended.
func (s *summary) unfinished(e event, p *running) {
	var text []string
	text = append(text, s.builds[e.FailedBuild]...)
	name := e.Package
	for _, test := range slices.Sorted(maps.Keys(p.tests)) { // a panic leaves its text with tests that never ended
		text = append(text, p.tests[test]...)
		name += " " + test + " did not end;"
	}
	text = append(text, p.text...)
	if e.Output != "" {
		text = append(text, e.Package+" "+e.Output+"\n")
	}
	if p.failed == 0 || len(p.tests) > 0 {
		s.fail(strings.TrimSuffix(name, ";"), text)
		return
	}
	for _, t := range text {
		fmt.Fprint(s.out, t)
	}
}

// reason is what t.Skip printed: the last line of the test's output, without the file and line before it.
func reason(text []string) string {
	for _, t := range slices.Backward(text) {
		t = strings.TrimSpace(t)
		if t == "" || strings.HasPrefix(t, "=== ") || strings.HasPrefix(t, "--- ") {
			continue
		}
		if _, after, ok := strings.Cut(t, ".go:"); ok {
			if _, said, ok := strings.Cut(after, ": "); ok {
				t = said
			}
		}
		return t
	}
	return "no reason given"
}

func appendCounts(file, name string, s Summary) error {
	s.Name = name
	line, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("counts of %s: %w", name, err)
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("counts of %s: %w", name, err)
	}
	_, werr := f.Write(append(line, '\n'))
	if err := errors.Join(werr, f.Close()); err != nil {
		return fmt.Errorf("counts of %s: %w", name, err)
	}
	return nil
}

func readCounts(file string) (runs []Summary, err error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read counts: %w", err)
	}
	for line := range strings.Lines(string(data)) {
		var s Summary
		if err := json.Unmarshal([]byte(line), &s); err != nil {
			return nil, fmt.Errorf("read counts %s: %w", file, err)
		}
		runs = append(runs, s)
	}
	return runs, nil
}
