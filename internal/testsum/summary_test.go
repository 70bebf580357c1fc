package main

import (
	"bytes"
	"errors"
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
{"Action":"fail","Package":"m/b","Elapsed":0}
{"Action":"output","Package":"m/c","Test":"TestPanics","Output":"panic: boom\n"}
{"Action":"fail","Package":"m/c","Elapsed":0}
{"Action":"skip","Package":"m/none"}
{"Action":"pass","Package":"m/d","Elapsed":2}
not json
`

func TestSummarizeCountsEverything(t *testing.T) {
	var out bytes.Buffer
	s, err := summarize(strings.NewReader(events), &out, "long: ")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := s.line(), "1 passed, 3 failed, 1 skipped"; got != want {
		t.Errorf("line: got %q, want %q", got, want)
	}
	if want := []string{"m/a.TestNoVM: needs a VM"}; !slices.Equal(s.Skips, want) {
		t.Errorf("skips: got %q, want %q", s.Skips, want)
	}
	for _, want := range []string{
		"skip m/a.TestNoVM: needs a VM", "got 1, want 2", "undefined: x", "panic: boom", "FAIL m/a", "ok   m/d", "not json", "long: half of it",
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

func TestCountsAddUp(t *testing.T) {
	file := filepath.Join(t.TempDir(), "counts")
	for _, s := range []Summary{
		{Passed: 2, Skipped: 1, Skips: []string{"a.TestX: no gcc"}},
		{Passed: 3, Failed: 1},
	} {
		if err := appendCounts(file, "unit", s); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	if code := printTotal(&out, file); code != 1 {
		t.Errorf("exit code with a failure: got %d, want 1", code)
	}
	if got, want := out.String(), "skipped: unit: a.TestX: no gcc\n5 passed, 1 failed, 1 skipped\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if code := printTotal(&out, filepath.Join(t.TempDir(), "absent")); code != 1 {
		t.Errorf("exit code without a counts file: got %d, want 1", code)
	}
}
