package main

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// A test that waits for something within a bound can fail because the machine did something else meanwhile. Where the run is asked to, a
// few tests that failed run again, each by itself, againTimes times: one that passes all of them is flaky. It is told as such at the end of
// everything, with what it said, and costs the run nothing. What cannot come of the time is never tried again: races, panics, tests
// that did not end, packages that did not build.
const (
	againTimes = 3
	againMost  = 3 // tests: more than that have a cause in common
)

// failedTest is the package and the test in the name of a Failure.
var failedTest = regexp.MustCompile(`^(.+?)\.((?:Test|Fuzz|Example)\w*)(?:/.*)?$`)

// never are words in the output of failures that nothing excuses.
var never = []string{"race detected", "DATA RACE", "panic:", "fatal error:", "SIG"}

// test is a test of the top level.
type test struct{ pkg, name string }

// retriable lists the tests that failed, none when something failed that must not be tried again.
func retriable(failures []Failure) []test {
	var all []test
	for _, f := range failures {
		m := failedTest.FindStringSubmatch(f.Name)
		if m == nil || strings.Contains(f.Name, " ") || slices.ContainsFunc(never, func(w string) bool { return strings.Contains(f.Output, w) }) {
			return nil
		}
		if t := (test{m[1], m[2]}); !slices.Contains(all, t) {
			all = append(all, t)
		}
	}
	if len(all) > againMost {
		return nil
	}
	return all
}

// argsFor are the arguments of a run changed to those of one of its tests.
func argsFor(args []string, t test) []string {
	var out []string
	placed := false
	for _, a := range args {
		switch {
		case a != "." && !strings.HasPrefix(a, "./") && !strings.HasPrefix(a, module):
			out = append(out, a)
		case !placed: // the last of two flags counts
			out = append(out, "-run=^"+t.name+"$", fmt.Sprintf("-count=%d", againTimes), t.pkg)
			placed = true
		}
	}
	return out
}

// tryAgain runs what failed again and moves what passes then from the failures to the flaky ones.
func tryAgain(out io.Writer, live string, args []string, sum Summary, err error) (Summary, error) {
	for _, t := range retriable(sum.Failures) {
		fmt.Fprintf(out, "again: %s.%s, %d times\n", t.pkg, t.name, againTimes)
		if got, err := run(out, live, argsFor(args, t)); err != nil || got.Failed > 0 || got.Passed < againTimes {
			continue
		}
		sum.forgive(t)
	}
	if len(sum.Flaky) > 0 && sum.Failed == 0 {
		err = nil
	}
	return sum, err
}

// forgive counts a test and its subtests as passed.
func (s *Summary) forgive(t test) {
	s.Failures = slices.DeleteFunc(s.Failures, func(f Failure) bool {
		m := failedTest.FindStringSubmatch(f.Name)
		if m == nil || (test{m[1], m[2]}) != t {
			return false
		}
		s.Failed--
		s.Passed++
		s.Flaky = append(s.Flaky, f)
		return true
	})
}

// printFlaky prints what flaky tests said, and names them.
func printFlaky(out io.Writer, runs []Summary) {
	for _, r := range runs {
		for _, f := range r.Flaky {
			if !onlyForChildren(f, r.Flaky) {
				fmt.Fprintf(out, "\n--- flaky: %s %s failed, then passed %d of %d times by itself\n%s", r.Name, short(f.Name), againTimes, againTimes, f.Output)
			}
		}
	}
}
