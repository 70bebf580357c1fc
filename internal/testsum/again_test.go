package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestWhatIsTriedAgain(t *testing.T) {
	const pkg = module + "hawser/provider/shm"
	for _, tc := range []struct {
		name     string
		failures []Failure
		want     []test
	}{
		{"a test and its subtest are one", []Failure{{pkg + ".TestA/b.c", "late"}, {pkg + ".TestA", ""}}, []test{{pkg, "TestA"}}},
		{"a race", []Failure{{pkg + ".TestA", "testing.go: race detected during execution of test"}}, nil},
		{"a panic beside", []Failure{{pkg + ".TestA", "late"}, {pkg + " TestB did not end", "panic: x"}}, nil},
		{"a build", []Failure{{pkg, "undefined: x"}}, nil},
		{"too many", []Failure{{pkg + ".TestA", ""}, {pkg + ".TestB", ""}, {pkg + ".TestC", ""}, {pkg + ".TestD", ""}}, nil},
	} {
		if got := retriable(tc.failures); !slices.Equal(got, tc.want) {
			t.Errorf("%s: got %v, want %v", tc.name, got, tc.want)
		}
	}
	got := argsFor([]string{"-tags", "vm", "-run", "^TestX", "./a", "./b", "-leak", "1s"}, test{pkg, "TestA"})
	if want := "-tags vm -run ^TestX -run=^TestA$ -count=3 " + pkg + " -leak 1s"; strings.Join(got, " ") != want {
		t.Errorf("arguments %q, want %q", got, want)
	}
}

// A test that fails once is flaky; one that always fails, or fails again once in three times, has failed.
func TestFlakyAndBroken(t *testing.T) {
	dir := t.TempDir()
	code := `package m
import ("os"; "testing")
func nth() int { f, _ := os.OpenFile("n", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644); f.Write([]byte{1}); f.Close(); b, _ := os.ReadFile("n"); return len(b) }
func TestOften(t *testing.T) { if n := nth(); n == 1 || n == SECOND { t.Error("number", n) } }
`
	for second, want := range map[string]string{"1": "1 passed, 0 failed, 0 skipped", "3": "0 passed, 1 failed, 0 skipped"} {
		for name, text := range map[string]string{"go.mod": "module m\n", "m_test.go": strings.Replace(code, "SECOND", second, 1)} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.RemoveAll(filepath.Join(dir, "n")); err != nil {
			t.Fatal(err)
		}
		t.Chdir(dir)
		var out bytes.Buffer
		sum, err := judge(run(&out, "", []string{"-vet=off", "."}))
		sum, err = tryAgain(&out, "", []string{"-vet=off", "."}, sum, err)
		if sum.line() != want || (err == nil) != (sum.Failed == 0) {
			t.Errorf("fails again as run %s: %s, error %v; want %s\n%s", second, sum.line(), err, want, &out)
		}
		if flaky := len(sum.Flaky) == 1 && strings.Contains(sum.Flaky[0].Output, "number 1"); flaky != (second == "1") {
			t.Errorf("flaky: %+v", sum.Flaky)
		}
	}
}
