package main

import (
	"bufio"
	"encoding/json"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// small is a replay that takes a second or two.
func small(network string, more ...string) []string {
	return append([]string{
		"kv", "replay", "--provider", network, "--requests", "12", "--speed", "20", "--pool", "256MiB", "--json", "-",
	}, more...)
}

// number reads a field of a report that must be a number.
func number(t *testing.T, report map[string]any, field string) float64 {
	t.Helper()
	v, ok := report[field].(float64)
	if !ok {
		t.Fatalf("field %q of the report is %v, want a number", field, report[field])
	}
	return v
}

func TestReplayVerifiesEveryRequest(t *testing.T) {
	for _, network := range []string{"shm", "tcp"} {
		t.Run(network, func(t *testing.T) {
			stdout, stderr, code := tool(t, small(network, "--rails", "2,3")...)
			if code != exitOK {
				t.Fatalf("exit code %d: %s", code, stderr)
			}
			r := decodeJSON(t, stdout)
			for field, want := range map[string]float64{
				"requests": 12, "verified_requests": 12, "failed": 0, "cancelled": 0, "corrupt_bytes": 0, "leaked_pages": 0, "quarantined_pages": 0,
			} {
				if got := number(t, r, field); got != want {
					t.Errorf("%s: got %v, want %v", field, got, want)
				}
			}
			if r["path"] != network {
				t.Errorf("path: got %v, want %s", r["path"], network)
			}
			for _, field := range []string{"bytes", "gb_per_s", "ttft_p50_ms", "ttft_p99_ms", "exposed_p50_us", "rss_mb"} {
				if got := number(t, r, field); got <= 0 {
					t.Errorf("%s: got %v, want more than 0", field, got)
				}
			}
			if number(t, r, "ttft_p50_ms") > number(t, r, "ttft_p99_ms") {
				t.Errorf("p50 %v is above p99 %v", r["ttft_p50_ms"], r["ttft_p99_ms"])
			}
		})
	}
}

func TestCancelledRequestsLeakNothing(t *testing.T) {
	stdout, stderr, code := tool(t, small("shm", "--requests", "40", "--cancel", "50%")...)
	if code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	r := decodeJSON(t, stdout)
	if number(t, r, "cancelled") == 0 || number(t, r, "verified_requests")+number(t, r, "cancelled") != 40 {
		t.Errorf("%v cancelled and %v verified, want some and 40 in all", r["cancelled"], r["verified_requests"])
	}
}

// TestKilledPrefillerFailsItsRequests also shows that a fault that was asked for is no failure of the tool.
func TestKilledPrefillerFailsItsRequests(t *testing.T) {
	for _, network := range []string{"shm", "tcp"} {
		t.Run(network, func(t *testing.T) {
			stdout, stderr, code := tool(t, small(network, "--requests", "40", "--speed", "5", "--kill-prefiller", "300ms")...)
			if code != exitOK {
				t.Fatalf("exit code %d: %s", code, stderr)
			}
			r := decodeJSON(t, stdout)
			if number(t, r, "failed") == 0 || number(t, r, "peer_death_ms") <= 0 {
				t.Errorf("%v failed, death noticed after %v ms: want some of both", r["failed"], r["peer_death_ms"])
			}
			for cause := range r["causes"].(map[string]any) {
				if cause != "peer down" {
					t.Errorf("cause %q, want only \"peer down\": %v", cause, r["causes"])
				}
			}
		})
	}
}

func TestFaultThatNeverCameIsSaid(t *testing.T) {
	failsWith(t, []string{"before the fault"}, "kv", "replay", "--requests", "3", "--speed", "50", "--pool", "128MiB", "--kill-prefiller", "1h")
}

// TestPrefillAndDecodeApart runs the two sides as a person would.
func TestPrefillAndDecodeApart(t *testing.T) {
	cmd, _ := command(t, "kv", "prefill", "--pool", "256MiB", "--json", "-")
	out := pipe(t, cmd)
	var first struct{ Address string }
	if err := json.Unmarshal([]byte(out.line()), &first); err != nil || first.Address == "" {
		t.Fatalf("prefill printed %+v (%v), want an address", first, err)
	}
	stdout, stderr, code := tool(t, "kv", "decode", "--from", first.Address, "--requests", "5", "--speed", "20", "--pool", "256MiB", "--json", "-")
	if r := decodeJSON(t, stdout); code != exitOK || number(t, r, "verified_requests") != 5 {
		t.Fatalf("decode: exit code %d, %s", code, stderr)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	last := out.line()
	if err := cmd.Wait(); err != nil {
		t.Errorf("prefill ended with %v", err)
	}
	if r := decodeJSON(t, last); number(t, r, "done") != 5 || number(t, r, "leaked_pages") != 0 {
		t.Errorf("prefill reported %v", r)
	}
}

// lines reads what a running command prints.
type lines struct {
	t *testing.T
	r *bufio.Reader
}

func pipe(t *testing.T, cmd *exec.Cmd) lines {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return lines{t, bufio.NewReader(out)}
}

func (l lines) line() string {
	l.t.Helper()
	s, err := l.r.ReadString('\n')
	if err != nil {
		l.t.Fatalf("read output: %v, after %q", err, s)
	}
	return s
}

// TestSignalsLeaveNothingBehind interrupts a replay that has two children; command checks that none is left.
func TestSignalsLeaveNothingBehind(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(sig.String(), func(t *testing.T) {
			cmd, id := command(t, "kv", "replay", "--requests", "100000", "--pool", "256MiB")
			errs, err := cmd.StderrPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			for deadline := time.Now().Add(hang); len(processes(id)) < 3; {
				if time.Now().After(deadline) {
					t.Fatal("the children never started")
				}
			}
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			said, _ := io.ReadAll(errs)
			err = cmd.Wait()
			if sig == syscall.SIGKILL {
				return
			}
			if code := cmd.ProcessState.ExitCode(); code != exitFailure || !strings.HasSuffix(string(said), "hawser: interrupted\n") {
				t.Errorf("exit code %d (%v), stderr %q", code, err, said)
			}
		})
	}
}

func TestBenchReportsARatio(t *testing.T) {
	for _, kind := range []string{"write", "pages", "imm"} {
		args := []string{"bench", kind, "--provider", "shm,tcp", "--rounds", "1", "--json", "-"}
		if kind == "imm" {
			args = append(args, "--pings", "100")
		} else {
			args = append(args, "--size", "64KiB", "--bytes", "16MiB")
		}
		t.Run(kind, func(t *testing.T) {
			stdout, stderr, code := tool(t, args...)
			if code != exitOK {
				t.Fatalf("exit code %d: %s", code, stderr)
			}
			r := decodeJSON(t, stdout)
			rows, ok := r["rows"].([]any)
			if !ok || len(rows) != 2 {
				t.Fatalf("rows are %v, want two", r["rows"])
			}
			for _, row := range rows {
				row := row.(map[string]any)
				if number(t, row, "ratio") <= 0 || number(t, row, "corrupt_bytes") != 0 {
					t.Errorf("ratio %v, corrupt bytes %v", row["ratio"], row["corrupt_bytes"])
				}
			}
			if m := r["machine"].(map[string]any); number(t, m, "cores") < 1 || m["cpu"] == "" {
				t.Errorf("machine is %v", m)
			}
		})
	}
}
