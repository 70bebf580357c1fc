package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// mainEnv makes the test binary the tool. Its children are this binary too, and inherit the variable.
const mainEnv = "HAWSER_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(mainEnv) != "" {
		main()
	}
	os.Exit(inOwnFolder(m.Run))
}

// inOwnFolder gives the admin sockets of all tests a folder of their own.
func inOwnFolder(f func() int) int {
	dir, err := os.MkdirTemp("", "hw")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	os.Setenv("XDG_RUNTIME_DIR", dir)
	return f()
}

// hang ends a test whose command does not.
const hang = 2 * time.Minute

// command is the tool as a process of its own. id marks it and its children in their environment.
func command(t *testing.T, args ...string) (cmd *exec.Cmd, id string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	t.Cleanup(cancel)
	id = fmt.Sprintf("%s=%s-%d", mainEnv, strings.ReplaceAll(t.Name(), "/", "-"), time.Now().UnixNano())
	cmd = exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), id)
	t.Cleanup(func() { noneLeft(t, id) })
	return cmd, id
}

// tool runs the tool to its end.
func tool(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd, _ := command(t, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("hawser %s: %v", strings.Join(args, " "), err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// noneLeft waits for all processes of a command to be gone.
func noneLeft(t *testing.T, id string) {
	t.Helper()
	deadline := time.Now().Add(hang)
	for {
		left := processes(id)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("processes %v are left behind", left)
			for _, pid := range left {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// processes finds those whose environment has id.
func processes(id string) (pids []int) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		env, err := os.ReadFile(filepath.Join(dir, "environ")) // empty for a process that has ended
		if err != nil || !bytes.Contains(env, []byte(id+"\x00")) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// decodeJSON decodes all of what the tool printed.
func decodeJSON(t *testing.T, text string) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("output is no JSON object: %v\n%s", err, text)
	}
	return v
}

func TestUsageErrorsAreOneLine(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{nil, "expected one of"},
		{[]string{"nonsense"}, "nonsense"},
		{[]string{"kv", "replay", "--provider", "pigeon"}, "--provider"},
		{[]string{"kv", "replay", "--pool", "much"}, "--pool"},
		{[]string{"kv", "replay", "--geometry", "gpt-9"}, "mini, qwen3-8b, qwen3-235b-tp4"},
		{[]string{"kv", "replay", "--scale", "2"}, "--scale"},
		{[]string{"kv", "replay", "--layer-time", "soon"}, "--layer-time"},
		{[]string{"kv", "replay", "--speed", "0"}, "--speed"},
		{[]string{"kv", "replay", "--token-time", "0"}, "--token-time"},
		{[]string{"kv", "replay", "--cancel", "200%"}, "--cancel"},
		{[]string{"kv", "replay", "--rails", "0,1"}, "--rails"},
		{[]string{"kv", "replay", "--speed", "inf"}, "--speed"},
		{[]string{"kv", "replay", "--requests=-1"}, "--requests"},
		{[]string{"kv", "replay", "--pool", "0"}, "--pool: 0 B, want 512 KiB"},
		{[]string{"kv", "replay", "--pool", "10TiB"}, "--pool: 10 TiB, want 512 KiB .. 512 GiB"},
		{[]string{"kv", "replay", "--pool", "4MiB"}, "request 1 of the trace has"},
		{[]string{"kv", "replay", "--log", "/nonexistent/x"}, "--log"},
		{[]string{"kv", "replay", "--kill-prefiller=-1s"}, "--kill-prefiller"},
		{[]string{"kv", "replay", "--stop-prefiller=-1s"}, "--stop-prefiller"},
		{[]string{"kv", "replay", "--kill-prefiller", "1s", "--stop-prefiller", "1s"}, "--kill-prefiller"},
		{[]string{"kv", "replay", "--join=-1s"}, "--join"},
		{[]string{"kv", "replay", "--prefillers", "0"}, "--prefillers"},
		{[]string{"kv", "replay", "--decoders", "65"}, "--decoders"},
		{[]string{"kv", "replay", "--decoders", "9", "--requests", "3"}, "--decoders"},
		{[]string{"kv", "replay", "--src-tp", "3"}, "--src-tp"},
		{[]string{"kv", "replay", "--dst-page=-1"}, "--dst-page"},
		{[]string{"kv", "replay", "--geometry", "/nonexistent/x.json"}, "--geometry"},
		{[]string{"kv", "decode", "--registry", "etcd:x"}, "file:PATH"},
		{[]string{"kv", "prefill", "--metrics", "nowhere"}, "--metrics"},
		{[]string{"kv", "prefill", "--admin", "/nonexistent/x.sock"}, "--admin"},
		{[]string{"kv", "prefill", "--trace-out", "/nonexistent/x"}, "--trace-out"},
		{[]string{"kv", "drain", "--wait=-1s"}, "--wait"},
		{[]string{"kv", "decode"}, "--from"},
		{[]string{"kv", "decode", "--from", ""}, "--from"},
		{[]string{"kv", "decode", "--from", "127.0.0.1:1", "--pool", "4MiB"}, "raise --pool"},
		{[]string{"kv", "prefill", "--rails", "0"}, "--rails"},
		{[]string{"kv", "prefill", "--rails", "65"}, "--rails"},
		{[]string{"kv", "prefill", "--provider", "tcp", "--rails", "33", "--device", "127.0.0.1,127.0.0.2"}, "--rails"},
		{[]string{"kv", "prefill", "--device", "127.0.0.2"}, "--device needs --provider"},
		{[]string{"kv", "prefill", "--provider", "pigeon"}, "--provider"},
		{[]string{"kv", "prefill", "--listen", "nowhere"}, "want host:port"},
		{[]string{"kv", "prefill", "--listen", "0.0.0.0:0"}, "--cluster-key-file"},
		{[]string{"kv", "prefill", "--listen", "localhost.example:0"}, "--cluster-key-file"},
		{[]string{"kv", "prefill", "--cluster-key-file", "/nonexistent/x"}, "--cluster-key-file"},
		{[]string{"kv", "prefill", "--cluster-key-file", "/dev/null"}, "--cluster-key-file"},
		{[]string{"demo", "--requests", "1"}, "--requests"},
		{[]string{"bench", "pages", "--provider", ""}, "--provider"},
		{[]string{"bench", "pages", "--provider", "pigeon"}, "--provider"},
		{[]string{"bench", "pages", "--rounds", "0"}, "--rounds"},
		{[]string{"bench", "pages", "--rails", "0"}, "--rails"},
		{[]string{"bench", "pages", "--rails", "65"}, "65 rails"},
		{[]string{"bench", "pages", "--cold", "--pool", "1MiB", "--size", "64KiB"}, "is not cold"},
		{[]string{"bench", "imm", "--pings", "0"}, "--pings"},
		{[]string{"bench", "imm", "--ops=-1"}, "--ops"},
		{[]string{"bench", "imm", "--poll", "often"}, "--poll"},
		{[]string{"bench", "message", "--size", "64KiB,65KiB"}, "at most 65536"},
		{[]string{"bench", "message", "--pings", "0"}, "--pings"},
		{[]string{"bench", "scatter", "--targets", "0"}, "--targets"},
		{[]string{"bench", "scatter", "--targets", "5000"}, "5000 targets"},
		{[]string{"bench", "scatter", "--peers=-1"}, "--peers"},
		{[]string{"bench", "scatter", "--peers", "65"}, "65 receiving processes"},
		{[]string{"bench", "barrier", "--processes", "1"}, "--processes"},
		{[]string{"bench", "barrier", "--processes", "66"}, "65 receiving processes"},
		{[]string{"bench", "barrier", "--barriers", "0"}, "--barriers"},
		{[]string{"bench", "barrier", "--processes", "3", "--client", "127.0.0.1:1"}, "--client: 1 servers for 2"},
		{[]string{"bench", "pages", "--client", "127.0.0.1:1,127.0.0.1:2"}, "is between two"},
		{[]string{"bench", "pages", "--client", "127.0.0.1:1", "--server"}, "--server"},
		{[]string{"bench", "pages", "--client", "127.0.0.1:1", "--cluster-key-file", "/nonexistent/x"}, "--cluster-key-file"},
		{[]string{"bench", "pages", "--server", "--listen", "0.0.0.0:0"}, "--cluster-key-file"},
		{[]string{"bench", "serve", "--listen", "0.0.0.0:0"}, "--cluster-key-file"},
		{[]string{"bench", "serve", "--listen", "nowhere"}, "want host:port"},
		{[]string{"bench", "serve", "--max-pool", "0"}, "--max-pool"},
		{[]string{"bench", "pages", "--cold", "--hot"}, "--cold"},
		{[]string{"bench", "write", "--size", "0"}, "block size is 0"},
		{[]string{"version", "--json", "/nonexistent/x"}, "--json"},
		{[]string{"doctor", "--provider", "pigeon"}, "--provider"},
		{[]string{"doctor", "--provider", ""}, "--provider"},
		{[]string{"doctor", "--timeout", "0"}, "--timeout"},
		{[]string{"doctor", "--sysfs", "/nonexistent"}, "--sysfs"},
		{[]string{"doctor", "--sysfs", "/tmp", "--provider", "shm"}, "--provider"},
	} {
		t.Run(strings.Join(tc.args, " "), func(t *testing.T) {
			stdout, stderr, code := tool(t, tc.args...)
			if code != exitUsage || stdout != "" {
				t.Errorf("exit code %d and output %q, want %d and none", code, stdout, exitUsage)
			}
			if !strings.HasPrefix(stderr, "hawser: ") || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, tc.want) {
				t.Errorf("got %q, want one line that begins with \"hawser: \" and has %q", stderr, tc.want)
			}
		})
	}
}

func TestHelpIsNoFailure(t *testing.T) {
	stdout, stderr, code := tool(t, "kv", "replay", "--help")
	if code != exitOK || !strings.Contains(stdout, "--kill-prefiller") || stderr != "" {
		t.Errorf("exit code %d, stderr %q, stdout:\n%s", code, stderr, stdout)
	}
}

func TestVersionAndTopoAsJSON(t *testing.T) {
	stdout, _, code := tool(t, "version", "--json", "-")
	if v := decodeJSON(t, stdout); code != exitOK || v["go"] == "" || v["revision"] == "" {
		t.Errorf("version: exit code %d, %v", code, v)
	}
	stdout, stderr, code := tool(t, "--json", "-", "topo")
	v := decodeJSON(t, stdout)
	providers, ok := v["providers"].([]any)
	if code != exitOK || !ok || len(providers) < 2 {
		t.Fatalf("topo: exit code %d, providers %v", code, v["providers"])
	}
	if !strings.Contains(stderr, "tcp") {
		t.Errorf("with --json - the table belongs on standard error; there is %q", stderr)
	}
}

func TestJSONGoesToAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "v.json")
	stdout, _, code := tool(t, "version", "--json", file)
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if v := decodeJSON(t, string(data)); code != exitOK || v["version"] == "" || !strings.HasPrefix(stdout, "hawser ") {
		t.Errorf("exit code %d, file %v, stdout %q", code, v, stdout)
	}
}

// TestLostOutputIsAFailure prints to a device that takes nothing.
func TestLostOutputIsAFailure(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("there is no /dev/full: ", err)
	}
	defer full.Close()
	for _, args := range [][]string{{"version"}, {"version", "--json", "-"}, {"version", "--json", "/dev/full"}, {"topo"}} {
		cmd, _ := command(t, args...)
		var errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = full, &errs
		_ = cmd.Run()
		if code := cmd.ProcessState.ExitCode(); code != exitFailure || !strings.Contains(errs.String(), "no space left on device") {
			t.Errorf("%v: exit code %d, %q", args, code, errs.String())
		}
	}
}

// failsWith runs a command that must fail with one clear line.
func failsWith(t *testing.T, want []string, args ...string) {
	t.Helper()
	stdout, stderr, code := tool(t, append(args, "--json", "-")...)
	if code != exitFailure || stdout != "" {
		t.Errorf("exit code %d and output %q, want %d and none", code, stdout, exitFailure)
	}
	line := stderr[max(0, strings.LastIndex(strings.TrimSuffix(stderr, "\n"), "\n")+1):]
	if !strings.HasPrefix(line, "hawser: ") || strings.Count(stderr, "hawser: ") != 1 {
		t.Errorf("got %q, want one line that begins with \"hawser: \"", stderr)
	}
	for _, w := range want {
		if !strings.Contains(line, w) {
			t.Errorf("error %q lacks %q", line, w)
		}
	}
}

func TestMalformedTraceNamesTheLine(t *testing.T) {
	file := filepath.Join(t.TempDir(), "broken.jsonl")
	content := `{"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}
{"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [1]}
`
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	failsWith(t, []string{file + ":2"}, "kv", "replay", "--pool", "64MiB", "--trace", file)
	failsWith(t, []string{file + ":2"}, "kv", "decode", "--from", "127.0.0.1:1", "--pool", "64MiB", "--trace", file)
	failsWith(t, []string{"no such file"}, "kv", "replay", "--pool", "64MiB", "--trace", file+".gone")
}

func TestTooLittleMemoryIsSaid(t *testing.T) {
	failsWith(t, []string{"not enough memory"}, "kv", "replay", "--pool", "500GiB", "--requests", "1")
	failsWith(t, []string{"not enough memory"}, "bench", "pages", "--pool", "10TiB", "--size", "1MiB")
}

func TestPortInUseIsSaid(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	failsWith(t, []string{"another process has this port", l.Addr().String()}, "kv", "prefill", "--listen", l.Addr().String())
}

func TestPeerThatSpeaksGarbageIsRefused(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write(bytes.Repeat([]byte("HTTP/1.1 400 Bad Request\r\n"), 100))
			_ = c.Close()
		}
	}()
	defer func() { l.Close(); <-served }()
	failsWith(t, []string{l.Addr().String()}, "kv", "decode", "--from", l.Addr().String(), "--requests", "1", "--pool", "64MiB")
}

func TestNobodyAtTheAddressIsSaid(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	failsWith(t, []string{addr, "is the other side running?"}, "kv", "decode", "--from", addr, "--requests", "1", "--pool", "64MiB")
	failsWith(t, nil, "kv", "decode", "--from", "not an address", "--requests", "1", "--pool", "64MiB")
}
