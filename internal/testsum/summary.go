package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// Summary is what a run of tests came to.
type Summary struct {
	Name    string   `json:"name"`
	Passed  int      `json:"passed"`
	Failed  int      `json:"failed"`
	Skipped int      `json:"skipped"`
	Skips   []string `json:"skips,omitempty"` // "package.Test: reason"
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

	ImportPath string // build events carry this instead of Package
}

// summarize reads events until the end and prints what a person needs of them, and lines that start with live as they come.
func summarize(events io.Reader, out io.Writer, live string) (Summary, error) {
	s := summary{out: out, live: live, text: map[string][]string{}, failed: map[string]int{}}
	in := bufio.NewReader(events)
	for {
		line, err := in.ReadBytes('\n')
		if len(line) > 0 {
			s.take(line)
		}
		if errors.Is(err, io.EOF) {
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
	text   map[string][]string // output of what has not ended: test, or package under "package."
	failed map[string]int      // failed tests of a package
}

func (s *summary) take(line []byte) {
	var e event
	if json.Unmarshal(line, &e) != nil || e.Action == "" {
		fmt.Fprintf(s.out, "%s", line) // go test prints some errors as plain text
		return
	}
	key := e.Package + "." + e.Test
	switch e.Action {
	case "output":
		if s.live != "" && strings.HasPrefix(e.Output, s.live) {
			fmt.Fprint(s.out, e.Output)
			return
		}
		s.text[key] = append(s.text[key], e.Output)
	case "build-output":
		fmt.Fprint(s.out, e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			s.endPackage(e, s.text[key])
		} else {
			s.endTest(e, s.text[key])
		}
		delete(s.text, key)
	}
}

func (s *summary) endTest(e event, text []string) {
	switch e.Action {
	case "pass":
		s.Passed++
	case "fail":
		s.Failed++
		s.failed[e.Package]++
		for _, t := range text {
			fmt.Fprint(s.out, t)
		}
	case "skip":
		s.Skipped++
		skip := fmt.Sprintf("%s.%s: %s", e.Package, e.Test, reason(text))
		s.Skips = append(s.Skips, skip)
		fmt.Fprintf(s.out, "skip %s\n", skip)
	}
}

func (s *summary) endPackage(e event, text []string) {
	switch {
	case e.Action == "skip":
		return // no test files
	case e.Action == "pass":
		fmt.Fprintf(s.out, "ok   %s  %.1fs\n", e.Package, e.Elapsed)
		return
	case s.failed[e.Package] == 0:
		s.Failed++ // it did not build, or it died outside any test
	}
	for key, lines := range s.text { // a panic leaves its text with a test that never ended
		if strings.HasPrefix(key, e.Package+".Test") || strings.HasPrefix(key, e.Package+".Fuzz") {
			text = append(lines, text...)
			delete(s.text, key)
		}
	}
	for _, t := range text {
		fmt.Fprint(s.out, t)
	}
	fmt.Fprintf(s.out, "FAIL %s  %.1fs\n", e.Package, e.Elapsed)
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

func readCounts(file string) (Summary, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return Summary{}, fmt.Errorf("read counts: %w", err)
	}
	var total Summary
	for line := range strings.Lines(string(data)) {
		var s Summary
		if err := json.Unmarshal([]byte(line), &s); err != nil {
			return Summary{}, fmt.Errorf("read counts %s: %w", file, err)
		}
		total.Passed += s.Passed
		total.Failed += s.Failed
		total.Skipped += s.Skipped
		for _, skip := range s.Skips {
			total.Skips = append(total.Skips, s.Name+": "+skip)
		}
	}
	return total, nil
}
