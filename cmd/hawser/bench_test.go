package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hawser-project/hawser/bench"
)

// quickBench are arguments that make a scenario take no time.
var quickBench = map[string][]string{
	"imm":     {"--pings", "50", "--ops", "500"},
	"write":   {"--size", "64,4KiB", "--bytes", "64KiB"},
	"pages":   {"--size", "4KiB", "--bytes", "64KiB", "--hot"},
	"scatter": {"--size", "4KiB", "--bytes", "64KiB", "--targets", "1,5"},
	"barrier": {"--barriers", "50"},
	"message": {"--size", "8,4KiB", "--pings", "50", "--ops", "500"},
}

// benchJSON runs a scenario and returns its report, decoded twice.
func benchJSON(t *testing.T, args ...string) (r bench.Report, raw map[string]any) {
	t.Helper()
	stdout, stderr, code := tool(t, append(append([]string{"--json", "-", "bench"}, args...), "--rounds", "3")...)
	if code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	if !strings.Contains(stderr, "hawser") || !strings.Contains(stderr, "ratio") {
		t.Errorf("no table on standard error: %q", stderr)
	}
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatal(err)
	}
	return r, decodeJSON(t, stdout)
}

// TestBenchReportsEveryField is about what programs rely on.
func TestBenchReportsEveryField(t *testing.T) {
	for kind, args := range quickBench {
		t.Run(kind, func(t *testing.T) {
			r, raw := benchJSON(t, append([]string{kind, "--provider", "shm,tcp", "--poll", "event"}, args...)...)
			if r.Schema != bench.Schema || r.Machine.Cores < 1 || r.Revision == "" || len(r.Command) < 4 || r.Began.IsZero() || len(r.Rows) < 2 {
				t.Errorf("report is %+v", r)
			}
			for _, row := range r.Rows {
				if !(row.Ratio > 0) || row.Config.Poll != "event" || row.Config.Depth < 2 || len(row.Ours.Samples) != 3 || len(row.Yard.Samples) != 3 || row.Yard.Name == "" {
					t.Errorf("row is %+v", row)
				}
			}
			first := raw["rows"].([]any)[0].(map[string]any)
			for path, fields := range map[string]string{
				"":          "config path ours yardstick ratio ratio_of ratio_spread corrupt_bytes",
				"config":    "kind provider size pool bytes rounds depth batch pings rails peers poll cold seed",
				"path":      "wait",
				"ours":      "name samples gb_per_s ops_per_s cpu_s_per_gib cpu_us_per_op latency_us",
				"yardstick": "name samples gb_per_s ops_per_s cpu_s_per_gib cpu_us_per_op latency_us",
			} {
				of := first
				if path != "" {
					of = first[path].(map[string]any)
				}
				for _, f := range strings.Fields(fields) {
					if of[f] == nil {
						t.Errorf("row lacks %s.%s", path, f)
					}
				}
			}
			latency := first["ours"].(map[string]any)["latency_us"].(map[string]any)
			for _, f := range strings.Fields("count p50 p99 p999 rounds cdf") {
				if latency[f] == nil {
					t.Errorf("latency lacks %s", f)
				}
			}
		})
	}
}

// host is a network namespace in which commands are run; "" is that of the test.
type host string

func (h host) command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd, _ := command(t, args...)
	if h != "" {
		ip, err := exec.LookPath("ip")
		if err != nil {
			t.Fatal(err)
		}
		cmd.Path, cmd.Args = ip, append([]string{"ip", "netns", "exec", string(h), cmd.Path}, args...)
	}
	return cmd
}

// serveBench starts a server and returns its address. It is interrupted at the end of the test, and must take that well.
func (h host) serveBench(t *testing.T, args ...string) (addr string) {
	t.Helper()
	cmd := h.command(t, append([]string{"--json", "-"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGINT)
		if err := cmd.Wait(); err != nil {
			t.Errorf("server: %v", err)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var ready struct{ Addrs []string }
	if err := json.Unmarshal([]byte(line), &ready); err != nil || len(ready.Addrs) == 0 {
		t.Fatalf("server said %q: %v", line, err)
	}
	return ready.Addrs[0]
}

func keyFile(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte("a secret of tests\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestBenchServesClients(t *testing.T) {
	key := keyFile(t)
	addr := host("").serveBench(t, "bench", "serve", "--listen", "127.0.0.2:0", "--cluster-key-file", key)
	other := host("").serveBench(t, "bench", "pages", "--server", "--listen", "127.0.0.1:0", "--cluster-key-file", key) // the other spelling
	for _, args := range [][]string{
		append([]string{"pages", "--client", addr}, quickBench["pages"]...),
		append([]string{"imm", "--client", other}, quickBench["imm"]...),
		append([]string{"barrier", "--client", addr + "," + other}, quickBench["barrier"]...),
		append([]string{"write", "--provider", "shm", "--client", other}, quickBench["write"]...),
	} {
		r, _ := benchJSON(t, append(args, "--cluster-key-file", key)...)
		if got, want := len(r.Rows[0].Path.Receivers), r.Rows[0].Config.Peers; got != want {
			t.Errorf("%v: %d receivers, want %d", args, got, want)
		}
	}
	failsWith(t, []string{"cluster key", addr}, "bench", "imm", "--client", addr)
}

func TestBenchClientWithoutServerIsTold(t *testing.T) {
	failsWith(t, []string{"127.0.0.1:1", "is the other side running?"}, "bench", "imm", "--client", "127.0.0.1:1")
	failsWith(t, []string{"nowhere", "want host:port"}, "bench", "imm", "--client", "nowhere")
}

// TestBenchBetweenTwoHosts runs server and client in two network namespaces with a cable between them.
func TestBenchBetweenTwoHosts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("the ip command is missing: apt-get install iproute2")
	}
	ip := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	var hosts [2]host
	for i := range hosts {
		name := fmt.Sprintf("hawserbench%d-%d", i, os.Getpid())
		if out, err := exec.Command("ip", "netns", "add", name).CombinedOutput(); err != nil {
			t.Skipf("no network namespaces here: ip netns add: %v: %s", err, out)
		}
		t.Cleanup(func() { ip("netns", "del", name) })
		hosts[i] = host(name)
	}
	ip("-n", string(hosts[0]), "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", string(hosts[1]))
	for i, h := range hosts {
		ip("-n", string(h), "addr", "add", fmt.Sprintf("10.78.0.%d/24", i+1), "dev", "cable")
		ip("-n", string(h), "link", "set", "cable", "up")
		ip("-n", string(h), "link", "set", "lo", "up")
	}
	key := keyFile(t)
	hosts[0].serveBench(t, "bench", "serve", "--listen", "10.78.0.1:7411", "--cluster-key-file", key)
	for kind, args := range quickBench {
		cmd := hosts[1].command(t, append([]string{"--json", "-", "bench", kind, "--client", "10.78.0.1:7411", "--cluster-key-file", key, "--rounds", "3"}, args...)...)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil {
			t.Errorf("%s: %v: %s", kind, err, errs.String())
			continue
		}
		var r bench.Report
		if err := json.Unmarshal(out.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		for _, row := range r.Rows {
			if !(row.Ratio > 0) || row.Config.Provider != "tcp" || len(row.Path.Devices) != 1 || row.Path.Devices[0] != "10.78.0.2" || row.CorruptBytes != 0 {
				t.Errorf("%s: row is %+v", kind, row)
			}
		}
	}
}

// TestInterruptedBenchLeavesNothing interrupts a long run; command looks for processes that are left.
func TestInterruptedBenchLeavesNothing(t *testing.T) {
	cmd, _ := command(t, "bench", "barrier", "--processes", "3", "--rounds", "1000", "--barriers", "1000")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil { // it has begun
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, out)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != exitFailure || errs.String() != "hawser: interrupted\n" {
		t.Errorf("exit code %d, %q", code, errs.String())
	}
}

// TestBenchKV refuses what there is not, and its JSON has goals.
func TestBenchKV(t *testing.T) {
	for _, args := range [][]string{{"B9"}, {"B1", "--rounds", "0"}, {"B1", "--procs", "-1"}} {
		if _, stderr, code := tool(t, append([]string{"bench", "kv"}, args...)...); code != exitUsage {
			t.Errorf("%v: exit code %d: %s", args, code, stderr)
		}
	}
	stdout, stderr, code := tool(t, "--json", "-", "bench", "kv", "b7", "--short", "--rounds", "1", "--row", "no pages")
	var r kvBenchReport
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != exitOK {
		t.Fatalf("%v, exit code %d: %s", err, code, stderr)
	}
	if len(r.Tables) != 1 || r.Tables[0].Benchmark != "B7" || len(r.Tables[0].Rows) != 1 || r.Tables[0].Rows[0].Values[0].Goal == "" || r.Machine.Cores < 1 {
		t.Errorf("report is %+v", r)
	}
}
