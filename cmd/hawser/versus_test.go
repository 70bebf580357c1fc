package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-project/hawser/bench/versus"
)

// tinyVersus is a comparison that takes a moment.
var tinyVersus = []string{"bench", "versus", "--path", "shm", "--scenario", "pages", "--size", "64KiB", "--pool", "1MiB", "--bytes", "1MiB", "--peers", "memcpy"}

func TestVersusComparesWithMemcpy(t *testing.T) {
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("gcc is not installed: the driver of memcpy cannot be built")
	}
	t.Setenv("TMPDIR", t.TempDir())
	stdout, stderr, code := tool(t, append([]string{"--json", "-"}, append(tinyVersus, "--rounds", "2")...)...)
	if code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	var r versus.Report
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Results) != 1 || len(r.Results[0].Rows) != 2 || r.Machine.Cores == 0 || r.Revision == "" || r.Congestion == "" {
		t.Fatalf("the report is %+v", r)
	}
	if row := r.Results[0].Rows[1]; row.Peer != "memcpy" || !(row.Ratio > 0) || len(row.Samples) != 2 || row.Version == "" {
		t.Errorf("the row of memcpy is %+v", row)
	}
	for _, want := range []string{"memcpy", "GB/s", "ratio", "64 KiB"} {
		if !strings.Contains(stderr, want) {
			t.Errorf("the table lacks %q:\n%s", want, stderr)
		}
	}
}

func TestVersusNamesWhatItDoesNotKnow(t *testing.T) {
	for _, tc := range []struct{ flag, value, want string }{
		{"--peers", "telegraph", "there are memcpy, libfabric"},
		{"--size", "7", "multiple of 8"},
		{"--rounds", "0", "want 1 or more"},
	} {
		_, stderr, code := tool(t, "bench", "versus", tc.flag, tc.value)
		if code != exitUsage || !strings.Contains(stderr, tc.want) {
			t.Errorf("%s %s: exit code %d, %q, want %d and %q", tc.flag, tc.value, code, stderr, exitUsage, tc.want)
		}
	}
}

// TestVersusInterruptedLeavesNothing interrupts the tool in the middle; command's cleanup looks for its processes.
func TestVersusInterruptedLeavesNothing(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	cmd, id := command(t, append(tinyVersus, "--rounds", "100000")...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	awaitDriver(t, id)
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != exitFailure {
		t.Errorf("the interrupted tool ended with %v", err)
	}
	if left, err := exec.Command("ls", "-A", tmp).Output(); err != nil || len(left) > 0 {
		t.Errorf("%s holds %q (%v)", tmp, left, err)
	}
}

// TestVersusKilledLeavesNoProcess: who stops its drivers must not leave them stopped for ever.
func TestVersusKilledLeavesNoProcess(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	cmd, id := command(t, append(tinyVersus, "--rounds", "100000")...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	awaitDriver(t, id)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
}

// awaitDriver waits for the last driver of tinyVersus.
func awaitDriver(t *testing.T, id string) {
	t.Helper()
	for deadline := time.Now().Add(hang); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		for _, pid := range processes(id) {
			if comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); string(comm) == "memcpy\n" {
				return
			}
		}
	}
	t.Fatal("the drivers did not start")
}
