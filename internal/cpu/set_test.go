package cpu

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

func setOf(t *testing.T, cpus ...int) Set {
	t.Helper()
	s, err := Of(cpus)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestListsOfProcessors(t *testing.T) {
	for text, want := range map[string][]int{"": nil, "0": {0}, "0-3,8": {0, 1, 2, 3, 8}, "5-5,1023": {5, 1023}} {
		if got, err := parseList(text); err != nil || got != setOf(t, want...) {
			t.Errorf("list %q: %v", text, err)
		}
	}
	for _, text := range []string{"x", "1-", "-1", "3-2", "0-1024", "1,,2"} {
		if _, err := parseList(text); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("list %q: error %v", text, err)
		}
	}
	if _, err := Of([]int{1024}); err == nil {
		t.Error("processor 1024 fits into a set")
	}
	if _, err := Of([]int{-1}); err == nil {
		t.Error("processor -1 fits into a set")
	}
}

// Near is empty unless a node has some of the thread's processors and not all of them.
func TestNearIsEmptyWhenThereIsNothingToChoose(t *testing.T) {
	allowed, err := Allowed()
	if err != nil {
		t.Fatal(err)
	}
	var first int
	for !allowed.IsSet(first) {
		first++
	}
	dir := t.TempDir()
	for node, text := range map[string]string{"node0": "0-1023\n", "node1": "\n", "node2": "nonsense\n", "node3": strconv.Itoa(first) + "\n"} {
		if err := os.MkdirAll(filepath.Join(dir, node), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, node, "cpulist"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, node := range []int{-1, 0, 1, 9} {
		if s, err := near(dir, node); err != nil || s.Count() != 0 {
			t.Errorf("node %d: %d processors, %v", node, s.Count(), err)
		}
	}
	if _, err := near(dir, 2); err == nil {
		t.Error("nonsense was read as a list")
	}
	s, err := near(dir, 3)
	if want := setOf(t, first); err != nil || s != want && allowed.Count() > 1 {
		t.Errorf("node 3: %d processors, %v", s.Count(), err)
	}
}

// A locked goroutine runs where it was told to, and its thread is as before afterwards.
func TestLockPinsAndUnlockUndoesIt(t *testing.T) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // so that before and after are about the same thread
		defer runtime.UnlockOSThread()
		before, err := Allowed()
		if err != nil {
			t.Error(err)
			return
		}
		for c := range MaxCPU + 1 {
			if !before.IsSet(c) {
				continue
			}
			unlock, err := Lock(setOf(t, c))
			if err != nil {
				t.Error(err)
				return
			}
			if now, err := Allowed(); err != nil || now != setOf(t, c) {
				t.Errorf("pinned to %d: %d processors, %v", c, now.Count(), err)
			}
			unlock()
			if now, err := Allowed(); err != nil || now != before {
				t.Errorf("after unlock: %d processors, %v", now.Count(), err)
			}
		}
		if _, err := Lock(setOf(t, MaxCPU)); err == nil && !before.IsSet(MaxCPU) {
			t.Error("pinned to a processor that is not there")
		}
	}()
	<-done
}

func TestRaiseAndLower(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(before)
	want := func(n int) {
		t.Helper()
		if got := runtime.GOMAXPROCS(0); got != n {
			t.Fatalf("GOMAXPROCS is %d, want %d", got, n)
		}
	}
	a, b := Raise(), Raise()
	want(before + 2)
	a()
	a()
	want(before + 1)
	b()
	want(before)

	a = Raise()
	runtime.GOMAXPROCS(before + 5) // the user's decision stands
	a()
	want(before + 5)
	a = Raise()
	want(before + 6)
	a()
	want(before + 5)
}
