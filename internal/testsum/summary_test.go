package main

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const events = `{"Action":"start","Package":"m/a"}
{"Action":"run","Package":"m/a","Test":"TestGood"}
{"Action":"output","Package":"m/a","Test":"TestGood","Output":"chatter\n"}
{"Action":"output","Package":"m/a","Test":"TestGood","Output":"long: half of it\n"}
{"Action":"pass","Package":"m/a","Test":"TestGood"}
{"Action":"output","Package":"m/a","Test":"TestNoVM","Output":"    vm_test.go:9: seed 4711\n"}
{"Action":"output","Package":"m/a","Test":"TestNoVM","Output":"    vm_test.go:12: needs a VM\n"}
{"Action":"output","Package":"m/a","Test":"TestNoVM","Output":"--- SKIP: TestNoVM (0.00s)\n"}
{"Action":"skip","Package":"m/a","Test":"TestNoVM"}
{"Action":"output","Package":"m/a","Test":"TestBad","Output":"    a_test.go:9: got 1, want 2\n"}
{"Action":"fail","Package":"m/a","Test":"TestBad"}
{"Action":"output","Package":"m/a","Output":"FAIL\tm/a\n"}
{"Action":"fail","Package":"m/a","Elapsed":0.5}
{"ImportPath":"m/b","Action":"build-output","Output":"b.go:1: undefined: x\n"}
{"Action":"fail","Package":"m/b","Elapsed":0,"FailedBuild":"m/b"}
{"Action":"run","Package":"m/c","Test":"TestPanics"}
{"Action":"output","Package":"m/c","Test":"TestPanics","Output":"panic: boom\n"}
{"Action":"fail","Package":"m/c","Elapsed":0}
{"Action":"skip","Package":"m/none"}
{"Action":"pass","Package":"m/d","Elapsed":2}
{"Action":"start","Package":"m/e"}
{"Action":"output","Package":"m/e","Test":"TestHangs","Output":"last words\n"}
not json
`

func TestSummarizeCountsEverything(t *testing.T) {
	var out bytes.Buffer
	s, err := summarize(strings.NewReader(events), &out, "long: ")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := s.line(), "1 passed, 4 failed, 1 skipped"; got != want {
		t.Errorf("line: got %q, want %q", got, want)
	}
	if want := []Skip{{"m/a", "TestNoVM", "needs a VM"}}; !slices.Equal(s.Skips, want) {
		t.Errorf("skips: got %q, want %q", s.Skips, want)
	}
	for i, want := range [][2]string{
		{"m/a.TestBad", "got 1, want 2"},
		{"m/b", "undefined: x"},
		{"m/c TestPanics did not end", "panic: boom"},
		{"m/e TestHangs did not end", "last words\nm/e was ended"},
	} {
		if i >= len(s.Failures) || s.Failures[i].Name != want[0] || !strings.Contains(s.Failures[i].Output, want[1]) {
			t.Errorf("failure %d is not %q with %q: %+v", i, want[0], want[1], s.Failures)
		}
	}
	for _, want := range []string{
		`skipped 1 x "needs a VM": TestNoVM`, "got 1, want 2", "undefined: x", "panic: boom", "FAIL m/a", "ok   m/d", "not json",
		"long: half of it", "FAIL m/e",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("output lacks %q:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "chatter") {
		t.Errorf("output of a passing test was printed:\n%s", out.String())
	}
}

func TestBrokenRunIsAFailure(t *testing.T) {
	broken := errors.New("go test: exit status 2")
	for _, tc := range []struct {
		sum    Summary
		err    error
		failed int
		broken bool
	}{
		{Summary{Passed: 1}, nil, 0, false},
		{Summary{Skipped: 1}, nil, 0, false},
		{Summary{}, nil, 1, true},
		{Summary{Passed: 1}, broken, 1, true},
		{Summary{Passed: 1, Failed: 2}, broken, 2, true},
	} {
		sum, err := judge(tc.sum, tc.err)
		if sum.Failed != tc.failed || (err != nil) != tc.broken {
			t.Errorf("%+v, %v: got %d failed and %v", tc.sum, tc.err, sum.Failed, err)
		}
	}
}

func TestEndOfARunSaysWhatFailed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "counts")
	gcc := Skip{"m/a", "TestX", "no gcc"}
	for _, s := range []Summary{
		{Name: "test", Passed: 2, Skipped: 3, Skips: []Skip{gcc, {"m/b", "TestY", "no gcc"}, {"m/a", "TestZ", "no network"}}},
		{Name: "race", Passed: 3, Failed: 2, Skipped: 1, Skips: []Skip{gcc}, Failures: []Failure{
			{"m/a.TestBad/one", "    a_test.go:9: got 1\n--- FAIL: TestBad/one (0.00s)\n"}, {"m/a.TestBad", "--- FAIL: TestBad (0.00s)\n"},
		}},
		{Name: "lint", Skipped: 1, Skips: []Skip{{Reason: "not built"}}},
	} {
		if err := appendCounts(file, s.Name, s); err != nil {
			t.Fatal(err)
		}
	}
	if code := noteFailure(file, "fuzz FuzzX", strings.NewReader("it broke")); code != 0 {
		t.Errorf("exit code of a note: got %d", code)
	}
	var out bytes.Buffer
	if code := printTotal(&out, file); code != 1 {
		t.Errorf("exit code with a failure: got %d, want 1", code)
	}
	const want = `skipped 3 x "no gcc": test (m/a 1, m/b 1); race (m/a 1)
skipped 1 x "no network": test (m/a 1)
skipped 1 x "not built": lint

--- failed: race m/a.TestBad/one
    a_test.go:9: got 1
--- FAIL: TestBad/one (0.00s)

--- failed: fuzz FuzzX
it broke

failed: race m/a.TestBad/one
failed: race m/a.TestBad
failed: fuzz FuzzX
5 passed, 3 failed, 5 skipped
`
	if got := out.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if code := printTotal(&out, filepath.Join(t.TempDir(), "absent")); code != 1 {
		t.Errorf("exit code without a counts file: got %d, want 1", code)
	}
}

func TestNamesOfSkippedTestsAreGrouped(t *testing.T) {
	var out bytes.Buffer
	printGrouped(&out, []Skip{{"m", "TestC/P/A", "slow"}, {"m", "TestB", "slow"}, {"m", "TestC/P/B", "slow"}, {"m", "TestD/x", "no VM"}})
	const want = "     skipped 1 x \"no VM\": TestD/x\n     skipped 3 x \"slow\": TestB, TestC/P/{A, B}\n"
	if got := out.String(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestLongOutputKeepsItsEnds(t *testing.T) {
	var lines []string
	for i := range 100 {
		lines = append(lines, fmt.Sprintf("line %d\n", i))
	}
	lines[99] = strings.Repeat("x", 2*longest)
	got := shorten(lines)
	for _, want := range []string{"line 0\n", "line 11\n... 58 lines ...\nline 70\n", "x... 16384 bytes ...\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("lacks %q:\n%s", want, got)
		}
	}
	if n := strings.Count(got, "\n"); n != firstLines+1+lastLines {
		t.Errorf("%d lines", n)
	}
}
