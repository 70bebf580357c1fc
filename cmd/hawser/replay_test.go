package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-project/hawser/internal/proc"
	"github.com/hawser-project/hawser/internal/wire"
	"github.com/hawser-project/hawser/kv/simllm"
	"github.com/hawser-project/hawser/provider/ofi"
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

// TestReplayOverLibfabric moves the same requests over a network that is not ours.
func TestReplayOverLibfabric(t *testing.T) {
	if _, err := ofi.New(ofi.Options{Provider: "tcp"}).Devices(t.Context()); err != nil {
		t.Skipf("libfabric cannot be used here: %v", err) // in CI the tests of package ofi fail then
	}
	stdout, stderr, code := tool(t, small("ofi:tcp")...)
	if code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	r := decodeJSON(t, stdout)
	if number(t, r, "verified_requests") != 12 || number(t, r, "corrupt_bytes") != 0 || number(t, r, "leaked_pages") != 0 || r["path"] != "ofi:tcp" {
		t.Errorf("%v", r)
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

// TestKilledPrefillerFailsItsRequests has no other prefiller. It also shows that a fault that was asked for is no failure of the tool.
func TestKilledPrefillerFailsItsRequests(t *testing.T) {
	startsMany(t)
	for _, network := range []string{"shm", "tcp"} {
		t.Run(network, func(t *testing.T) {
			log := filepath.Join(t.TempDir(), "log")
			stdout, stderr, code := tool(t, small(network, "--requests", "40", "--speed", "5", "--kill-prefiller", "300ms", "--log", log)...)
			if code != exitOK {
				t.Fatalf("exit code %d: %s", code, stderr)
			}
			r := decodeJSON(t, stdout)
			if number(t, r, "failed") == 0 || number(t, r, "peer_death_ms") <= 0 {
				t.Errorf("%v failed, death noticed after %v ms: want some of both", r["failed"], r["peer_death_ms"])
			}
			if causes := r["causes"].(map[string]any); len(causes) != 1 || causes["peer down"] != r["failed"] {
				said, err := os.ReadFile(log)
				t.Errorf("causes are %v, want only \"peer down\"; log (%v):\n%s", causes, err, said)
			}
		})
	}
}

func TestFaultThatNeverCameIsSaid(t *testing.T) {
	failsWith(t, []string{"before the fault"}, "kv", "replay", "--requests", "3", "--speed", "50", "--pool", "128MiB", "--kill-prefiller", "1h")
}

// TestEndsOfChildrenAreJudged feeds a session with the ends of its children.
func TestEndsOfChildrenAreJudged(t *testing.T) {
	died := errors.New("died")
	for _, tc := range []struct {
		name     string
		prefill  bool // whose end it is
		killed   bool // by the session
		err      error
		reported bool
		want     error
	}{
		{"decoder with its report", false, false, io.EOF, true, nil},
		{"decoder without", false, false, io.EOF, false, errEndedEarly},
		{"decoder that died", false, false, died, true, died},
		{"prefiller that was drained", true, false, io.EOF, true, nil},
		{"prefiller that was not", true, false, io.EOF, true, errPrefillEnded},
		{"prefiller without", true, false, io.EOF, false, errEndedEarly},
		{"prefiller that died", true, false, died, false, died},
		{"killed prefiller", true, true, died, false, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			child, err := proc.Start(proc.Spec{Name: "child", Path: "/bin/true"})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = child.Stop(0) }()
			w, other := &worker{child: child, prefill: tc.prefill, killed: tc.killed}, &worker{child: child}
			s := &session{decoders: []*worker{other}, running: 2}
			if tc.prefill {
				s.prefillers = []*worker{w}
			} else {
				s.decoders = append(s.decoders, w)
			}
			if tc.reported {
				w.decoded, w.served = new(decoded), &simllm.PrefillReport{Drained: tc.want == nil}
			}
			if err := s.take(childEvent{from: w, err: tc.err}); !errors.Is(err, tc.want) || (err == nil) != (tc.want == nil) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			if s.running != 1 || s.ending {
				t.Errorf("%d children run, all decoders have ended: %v", s.running, s.ending)
			}
			other.decoded = new(decoded)
			if err := s.take(childEvent{from: other, err: io.EOF}); err != nil || s.ending == (!tc.prefill && tc.err == nil) {
				t.Errorf("end of the last decoder: %v, all have ended: %v", err, s.ending)
			}
		})
	}
}

// TestEndedPrefillerEndsTheReplay ends the prefiller as somebody else would, not by a flag.
func TestEndedPrefillerEndsTheReplay(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(sig.String(), func(t *testing.T) {
			cmd, id := command(t, "kv", "replay", "--requests", "100000", "--speed", "10", "--pool", "512MiB")
			var errs bytes.Buffer
			cmd.Stderr = &errs
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			prefill := awaitChildren(t, id, 2)["prefill-0"]
			if err := syscall.Kill(prefill, sig); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			if code := cmd.ProcessState.ExitCode(); code != exitFailure || strings.Count(errs.String(), "hawser: ") != 1 {
				t.Errorf("exit code %d, stderr %q: want a failure and one line", code, errs.String())
			}
		})
	}
}

// awaitChildren waits until a replay has all of its n children, and returns their process ids by name.
func awaitChildren(t *testing.T, id string, n int) map[string]int {
	t.Helper()
	for deadline := time.Now().Add(hang); ; {
		found := map[string]int{}
		for _, pid := range processes(id) {
			line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if words := strings.Split(string(line), "\x00"); len(words) > 4 && words[3] == "--child" {
				found[strings.TrimPrefix(words[4], "--name=")] = pid
			}
		}
		if len(found) == n {
			return found
		}
		if time.Now().After(deadline) {
			t.Fatal("the children never started")
		}
		time.Sleep(time.Millisecond)
	}
}

// TestPrefillAndDecodeApart runs the two sides as a person would: on one host with the printed address, and as on two hosts, which
// find each other by addresses of their own and a shared key.
func TestPrefillAndDecodeApart(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte("a secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name            string
		prefill, decode []string
		path            string
	}{
		{"one host", nil, nil, "shm"},
		{
			"two addresses",
			[]string{"--provider", "tcp", "--device", "127.0.0.2", "--listen", "127.0.0.2:0", "--cluster-key-file", key},
			[]string{"--provider", "tcp", "--device", "127.0.0.3,127.0.0.4", "--cluster-key-file", key},
			"tcp",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cmd, _ := command(t, append([]string{"kv", "prefill", "--pool", "256MiB", "--json", "-"}, tc.prefill...)...)
			out := pipe(t, cmd)
			var first struct{ Address string }
			if err := json.Unmarshal([]byte(out.line()), &first); err != nil || first.Address == "" {
				t.Fatalf("prefill printed %+v (%v), want an address", first, err)
			}
			decode := []string{"kv", "decode", "--from", first.Address, "--requests", "5", "--speed", "20", "--pool", "256MiB", "--json", "-"}
			stdout, stderr, code := tool(t, append(decode, tc.decode...)...)
			if code != exitOK {
				t.Fatalf("decode: exit code %d: %s", code, stderr)
			}
			if r := decodeJSON(t, stdout); number(t, r, "verified_requests") != 5 || r["path"] != tc.path {
				t.Errorf("decode: %v verified over %v", r["verified_requests"], r["path"])
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
		})
	}
}

// TestClusterKeyIsProved connects by host:port, which uses the network also on one host, with the right key and a wrong one.
func TestClusterKeyIsProved(t *testing.T) {
	dir := t.TempDir()
	file := func(name, secret string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(secret), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	right, wrong := file("right", "a secret"), file("wrong", "another")
	port := freePort(t)
	cmd, _ := command(t, "kv", "prefill", "--pool", "256MiB", "--json", "-", "--provider", "tcp", "--cluster-key-file", right,
		"--listen", "0.0.0.0:"+port, "--advertise", "127.0.0.2:"+port)
	out := pipe(t, cmd)
	if listen := listenAddrs(t, out.line()); !slices.Equal(listen, []string{"127.0.0.2:" + port}) {
		t.Errorf("peers are told %v, want what --advertise says", listen)
	}
	decode := []string{"kv", "decode", "--provider", "tcp", "--from", "127.0.0.2:" + port, "--requests", "2", "--speed", "20", "--pool", "256MiB"}
	failsWith(t, []string{"key"}, append(decode, "--cluster-key-file", wrong)...)
	failsWith(t, []string{"key"}, decode...)
	if _, stderr, code := tool(t, append(decode, "--cluster-key-file", right)...); code != exitOK {
		t.Errorf("exit code %d with the right key: %s", code, stderr)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if r := decodeJSON(t, out.line()); number(t, r, "attempts") != 2 {
		t.Errorf("prefill reported %v, want 2 attempts", r)
	}
	_ = cmd.Wait()
}

// listenAddrs is where peers are told to connect by the first line of a prefiller.
func listenAddrs(t *testing.T, line string) []string {
	t.Helper()
	var first struct{ Address string }
	if err := json.Unmarshal([]byte(line), &first); err != nil {
		t.Fatal(err)
	}
	a, err := wire.ParseAddr(first.Address)
	if err != nil {
		t.Fatal(err)
	}
	return a.Listen
}

// freePort is a port that nobody used a moment ago.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
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
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(sig.String(), func(t *testing.T) {
			cmd, id := command(t, "kv", "replay", "--requests", "100000", "--pool", "512MiB", "--trace-out", filepath.Join(t.TempDir(), "trace"))
			cmd.Env = append(cmd.Env, "TMPDIR="+t.TempDir()) // who is killed cannot remove his folder
			errs, err := cmd.StderrPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			awaitChildren(t, id, 2)
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			said, _ := io.ReadAll(errs)
			err = cmd.Wait()
			if sig == syscall.SIGKILL {
				noneLeft(t, id)
				for said, deadline := "", time.Now().Add(hang); !strings.Contains(said, "no prefiller or decoder of this user runs here"); {
					if _, said, _ = tool(t, "kv", "ps"); time.Now().After(deadline) { // it removes the sockets of processes that are gone
						t.Fatal(said)
					}
				}
			}
			if left, _ := filepath.Glob(filepath.Join(os.Getenv("XDG_RUNTIME_DIR"), "hawser", "*")); len(left) > 0 {
				t.Errorf("%v are left behind", left)
			}
			if sig == syscall.SIGKILL {
				return
			}
			if code := cmd.ProcessState.ExitCode(); code != exitFailure || !strings.HasSuffix(string(said), "hawser: interrupted\n") {
				t.Errorf("exit code %d (%v), stderr %q", code, err, said)
			}
		})
	}
}
