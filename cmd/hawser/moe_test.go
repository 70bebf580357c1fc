package main

import (
	"flag"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

var moeStrikes = flag.Int("moe.strikes", 1, "ranks that TestMoeKilled kills and stops, each")

// checked runs hawser moe check, which must find nothing.
func checked(t *testing.T, steps int, args ...string) map[string]any {
	t.Helper()
	stdout, stderr, code := tool(t, append([]string{"moe", "check", "--json", "-", "--steps", fmt.Sprint(steps)}, args...)...)
	if code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	r := decodeJSON(t, stdout)
	want := fmt.Sprintf("ok: %v of %d steps verified, 0 bytes differ\n", r["verified_steps"], steps)
	if !strings.HasSuffix(stderr, want) || number(t, r, "mismatched_bytes") != 0 {
		t.Errorf("%v, and it ends with %q", r, stderr)
	}
	return r
}

// TestMoeCheck: all routings, as processes and in one.
func TestMoeCheck(t *testing.T) {
	for name, args := range map[string][]string{
		"shm": {"--provider", "shm"},
		"tcp": {"--provider", "tcp", "--ranks", "3", "--experts", "7", "--topk", "3", "--dtype", "bf16"},
		"sim": {"--provider", "sim", "--dtype", "bf16"},
		"one": {"--ranks", "1", "--routing", "dup"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := checked(t, 150, args...)
			if number(t, r, "verified_steps") != 150 || number(t, r, "views") != 0 || number(t, r, "lost_steps") != 0 {
				t.Errorf("%v", r)
			}
		})
	}
}

// TestMoeFaults: with sim every fault strikes at every event.
func TestMoeFaults(t *testing.T) {
	r := checked(t, 5, "--provider", "sim", "--faults", "--ranks", "2", "--tokens", "2", "--experts", "3", "--topk", "2")
	if number(t, r, "faults") < 500 || number(t, r, "partial_steps") < 100 || number(t, r, "views") < 100 {
		t.Errorf("%v", r)
	}
}

// TestMoeKilled: ranks are killed at random; the others end their step without them, go on in a new view, and take them in again. Others
// are stopped for longer than anybody waits, and go on: they stay members.
func TestMoeKilled(t *testing.T) {
	startsMany(t)
	n := *moeStrikes
	r := checked(t, 300*(1+2*n), "--kill", fmt.Sprint(n), "--stop", fmt.Sprint(n), "--seed", fmt.Sprint(1+n))
	lost, verified := number(t, r, "lost_steps"), number(t, r, "verified_steps")
	if number(t, r, "faults") != float64(2*n) || number(t, r, "views") < float64(3*n) || verified < float64(150*(1+2*n)) {
		t.Errorf("%v verified, %v lost: %v", verified, lost, r)
	}
	if number(t, r, "named")+lost == 0 || number(t, r, "partial_steps")+lost == 0 || number(t, r, "recovered_ms") <= 0 {
		t.Errorf("nobody noticed who was killed, or it took no time: %v", r)
	}
}

// TestMoeInterrupted: Ctrl-C ends all ranks.
func TestMoeInterrupted(t *testing.T) {
	cmd, id := command(t, "moe", "check", "--steps", "1000000", "--hidden", "16")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(hang); len(processes(id)) < 5 && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != exitFailure {
		t.Errorf("%v, %v", err, exit)
	}
	if got := stderr.String(); !strings.HasSuffix(got, "hawser: interrupted\n") {
		t.Errorf("%q", got)
	}
}

// TestMoeUsage: what makes no sense is refused before anything starts.
func TestMoeUsage(t *testing.T) {
	for want, args := range map[string]string{
		"zipf[:s]":               "--routing zipf:99",
		"--faults needs":         "--faults",
		"--kill and --stop need": "--provider sim --kill 1",
		"top-k 5":                "--topk 5 --experts 4",
		"pigeon":                 "--provider pigeon",
		"ranks 0":                "--ranks 0",
		"--steps":                "--steps 0",
		"want 1 .. 64":           "--ranks 65",
		"--ranks 2":              "--ranks 1 --kill 1",
	} {
		_, stderr, code := tool(t, append([]string{"moe", "check"}, strings.Fields(args)...)...)
		if code != exitUsage || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: exit code %d, %q", args, code, stderr)
		}
	}
}

// TestMoeWrong: bytes that differ are a failure, with a line that shows it again.
func TestMoeWrong(t *testing.T) {
	c := &moeCheckCmd{Ranks: 2, Provider: "shm", Routing: "mix", Seed: 7, Tokens: 3, Hidden: 5, Experts: 4, TopK: 2, DType: "bf16"}
	err := c.failed(&wrongStep{12, 3, "row 1"}, 12)
	want := "moe check: 3 bytes differ: row 1: again: hawser moe check --ranks 2 --steps 12 --provider shm --routing mix --seed 7 --tokens 3 --hidden 5 --experts 4 --topk 2 --dtype bf16"
	if err.Error() != want {
		t.Errorf("%q, want %q", err, want)
	}
}
