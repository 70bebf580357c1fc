package main

import (
	"bufio"
	"context"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// wants checks numbers of a report.
func wants(t *testing.T, r map[string]any, want map[string]float64) {
	t.Helper()
	for field, n := range want {
		if got := number(t, r, field); got != n {
			t.Errorf("%s: got %v, want %v", field, got, n)
		}
	}
}

// clean is what a replay must report whatever happened.
var clean = map[string]float64{"corrupt_bytes": 0, "leaked_pages": 0, "quarantined_pages": 0}

func TestReplayOfManyProcesses(t *testing.T) {
	dir := t.TempDir()
	events, drawing := filepath.Join(dir, "trace.json"), filepath.Join(dir, "timeline.svg")
	stdout, stderr, code := tool(t, small("shm", "--prefillers", "2", "--decoders", "2", "--requests", "40", "--cancel", "10%", "--trace-out", events, "--timeline", drawing)...)
	if code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	r := decodeJSON(t, stdout)
	wants(t, r, clean)
	wants(t, r, map[string]float64{"requests": 40, "failed": 0, "prefillers": 2, "decoders": 2})
	if number(t, r, "verified_requests")+number(t, r, "cancelled") != 40 {
		t.Errorf("%v verified and %v cancelled, want 40 in all", r["verified_requests"], r["cancelled"])
	}
	checkTrace(t, events, int(number(t, r, "attempts")))
	checkDrawing(t, drawing)
}

// checkTrace wants that both sides tell of every attempt, each from its beginning to its end, and of what they have computed.
func checkTrace(t *testing.T, path string, attempts int) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var all []traceEvent
	if err := json.Unmarshal(data, &all); err != nil {
		t.Fatal(err)
	}
	open, side, layers, processes := map[string]int{}, map[byte]int{}, 0, 0
	requests := map[string]map[byte]bool{}
	for _, e := range all {
		switch e.Phase {
		case "b":
			open[e.ID]++
			side[e.ID[0]]++
			if requests[e.Args.Request] == nil {
				requests[e.Args.Request] = map[byte]bool{}
			}
			requests[e.Args.Request][e.ID[0]] = true
		case "e":
			open[e.ID]--
		case "X":
			layers++
			if len(e.Args.Parts) == 0 {
				t.Errorf("%s is of no prompt", e.Name)
			}
		case "M":
			processes++
		}
	}
	for id, n := range open {
		if n != 0 {
			t.Errorf("attempt %s: begun but for %d times as often as ended", id, n)
		}
	}
	if side['d'] != attempts || side['p'] == 0 || side['p'] > attempts || layers == 0 || processes != 4 {
		t.Errorf("%d attempts of decoders, %d of prefillers, %d layers, %d processes; there were %d attempts", side['d'], side['p'], layers, processes, attempts)
	}
	both := 0
	for _, sides := range requests {
		if len(sides) == 2 {
			both++
		}
	}
	if both < attempts/2 {
		t.Errorf("of %d requests both sides are seen, there were %d attempts", both, attempts)
	}
}

// checkDrawing wants a well-formed file with a bar for each layer, computed and landed.
func checkDrawing(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	bars := map[string]int{}
	for d := xml.NewDecoder(f); ; {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "rect" {
			for _, a := range e.Attr {
				if a.Name.Local == "fill" {
					bars[a.Value]++
				}
			}
		}
	}
	if bars["#3b6fb6"] < 8 || bars["#d98032"] != bars["#3b6fb6"] {
		t.Errorf("%v: want at least 8 layers, each computed and landed", bars)
	}
}

// TestRequestsSurviveTheirPrefillers kills one prefiller, stops another and adds one.
func TestRequestsSurviveTheirPrefillers(t *testing.T) {
	startsMany(t)
	for _, network := range []string{"shm", "tcp"} {
		t.Run(network, func(t *testing.T) {
			stdout, stderr, code := tool(t, small(network, "--prefillers", "3", "--requests", "60", "--speed", "6",
				"--kill-prefiller", "400ms", "--stop-prefiller", "700ms", "--join", "500ms")...)
			if code != exitOK {
				t.Fatalf("exit code %d: %s", code, stderr)
			}
			r := decodeJSON(t, stdout)
			wants(t, r, clean)
			wants(t, r, map[string]float64{"requests": 60, "verified_requests": 60, "prefillers": 4})
			if faults := r["faults"].([]any); len(faults) != 3 || number(t, r, "peer_death_ms") <= 0 {
				t.Errorf("faults %v, death noticed after %v ms", faults, r["peer_death_ms"])
			}
		})
	}
}

func TestReplayBetweenShapes(t *testing.T) {
	startsMany(t)
	for _, tc := range [][]string{
		{"--geometry", "llama3-70b-tp8", "--scale", "0.02", "--src-tp", "4", "--dst-tp", "1"},
		{"--geometry", "deepseek-v3", "--scale", "0.02", "--src-tp", "8", "--dst-tp", "1"},
		{"--src-page", "64", "--dst-page", "128", "--calls"},
	} {
		t.Run(strings.Join(tc, " "), func(t *testing.T) {
			stdout, stderr, code := tool(t, small("shm", append(tc, "--requests", "8", "--pool", "1GiB", "--layer-time", "1ms")...)...)
			if code != exitOK {
				t.Fatalf("exit code %d: %s", code, stderr)
			}
			r := decodeJSON(t, stdout)
			wants(t, r, clean)
			wants(t, r, map[string]float64{"verified_requests": 8})
		})
	}
}

// TestAdminSockets lists, cancels and drains what a replay runs.
func TestAdminSockets(t *testing.T) {
	startsMany(t)
	dir := t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", dir)
	failsWith(t, []string{"no prefiller or decoder of this user runs here"}, "kv", "ps")
	// Layers are slow, so that there is something to see.
	cmd, id := command(t, "kv", "replay", "--prefillers", "2", "--requests", "100000", "--layer-time", "30ms", "--pool", "512MiB", "--json", "-")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pids := awaitChildren(t, id, 3)
	for {
		live := awaitAttempt(t)
		_, stderr, code := tool(t, "kv", "cancel", live.Request)
		if code == exitOK {
			break
		}
		if !strings.Contains(stderr, fmt.Sprintf("no request %q runs here", live.Request)) { // it may be ready by now
			t.Fatalf("cancel: exit code %d: %s", code, stderr)
		}
	}
	failsWith(t, []string{`no request "nobody" runs here`}, "kv", "cancel", "nobody")
	failsWith(t, []string{"3 processes run here"}, "kv", "drain")
	for _, child := range []string{"prefill-0", "decode-0"} { // the requests go to the other prefiller
		socket := adminPath(filepath.Join(dir, "hawser"), pids[child])
		if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("socket of %s: %v, %v, want mode 0600", child, info, err)
		}
		if _, stderr, code := tool(t, "kv", "drain", "--admin", socket); code != exitOK {
			t.Errorf("drain of %s: exit code %d: %s", child, code, stderr)
		}
	}
	said, err := io.ReadAll(out)
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the replay ended with %v", err)
	}
	r := decodeJSON(t, string(said))
	wants(t, r, clean)
	wants(t, r, map[string]float64{"cancelled": 1, "failed": 0})
	if n := number(t, r, "verified_requests"); n == 0 || n+1 != number(t, r, "requests") {
		t.Errorf("%v of %v requests verified, want all but the one that was cancelled", n, r["requests"])
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "hawser", "*")); len(left) > 0 {
		t.Errorf("%v are left behind", left)
	}
}

// awaitAttempt waits until kv ps shows an attempt of the decoder that is written to.
func awaitAttempt(t *testing.T) attemptRow {
	t.Helper()
	for deadline := time.Now().Add(hang); time.Now().Before(deadline); {
		stdout, stderr, code := tool(t, "kv", "ps", "--json", "-")
		if code != exitOK {
			t.Logf("ps: %s", stderr) // a process may just have begun
			continue
		}
		var r psResult
		if err := json.Unmarshal([]byte(stdout), &r); err != nil {
			t.Fatal(err)
		}
		for _, a := range r.Attempts {
			if a.Process == "decode-0" && a.State == "active" {
				return a
			}
		}
	}
	t.Fatal("no attempt is ever live")
	return attemptRow{}
}

// TestRegistry starts a decoder before its prefillers, which it finds in a file. It looks at the metrics of both sides, too.
func TestRegistry(t *testing.T) {
	startsMany(t)
	file := filepath.Join(t.TempDir(), "prefillers")
	registry, ports := "--registry=file:"+file, [2]string{freePort(t), freePort(t)}
	decode, _ := command(t, "kv", "decode", registry, "--requests", "200", "--speed", "10", "--pool", "512MiB", "--json", "-", "--metrics", ":"+ports[0])
	out := pipe(t, decode)
	for _, name := range []string{"one", "two"} {
		prefill, _ := command(t, "kv", "prefill", registry, "--name", name, "--pool", "512MiB", "--json", "-", "--metrics", ":"+ports[1])
		if name == "two" {
			prefill.Args = slices.DeleteFunc(prefill.Args, func(a string) bool { return a == "--metrics" || a == ":"+ports[1] })
		}
		lines := pipe(t, prefill)
		lines.line()
		defer func() {
			if err := prefill.Process.Signal(syscall.SIGTERM); err != nil {
				t.Error(err)
			}
			_ = decodeJSON(t, lines.line())
			if err := prefill.Wait(); err != nil {
				t.Errorf("prefiller %s ended with %v", name, err)
			}
		}()
	}
	awaitMetric(t, ports[0], `hawser_kv_attempts_total{role="decode",outcome="ready"}`)
	awaitMetric(t, ports[0], `hawser_kv_ttft_seconds_count`)
	awaitMetric(t, ports[0], `hawser_kv_credits{peer="one"}`)
	awaitMetric(t, ports[1], `hawser_kv_bytes_total{dir="out"}`)
	awaitMetric(t, ports[1], `hawser_kv_layer_post_seconds_count`)
	said, err := io.ReadAll(out.r)
	if err != nil {
		t.Fatal(err)
	}
	if err := decode.Wait(); err != nil {
		t.Errorf("decoder ended with %v", err)
	}
	r := decodeJSON(t, string(said))
	wants(t, r, clean)
	wants(t, r, map[string]float64{"verified_requests": 200})
	t.Cleanup(func() { // after the prefillers
		l, err := (&fileRegistry{file}).read()
		if err != nil || len(l.Prefillers) != 0 {
			t.Errorf("%+v, %v: want nobody in the registry at the end", l, err)
		}
	})
}

// awaitMetric waits until a metric is above 0.
func awaitMetric(t *testing.T, port, name string) {
	t.Helper()
	said := ""
	for deadline := time.Now().Add(hang); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		answer, err := http.Get("http://127.0.0.1:" + port + "/metrics")
		if err != nil {
			continue // it has not begun to listen
		}
		body, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		said = string(body)
		for line := range strings.Lines(said) {
			if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+" "); ok && value != "0" {
				return
			}
		}
	}
	t.Fatalf("%s is never above 0:\n%s", name, said)
}

func TestRegistryKeepsWhatOthersWrite(t *testing.T) {
	r, err := openRegistry("file:" + filepath.Join(t.TempDir(), "list"))
	if err != nil {
		t.Fatal(err)
	}
	const writers = 8
	done := make(chan error, writers)
	for i := range writers {
		go func() { done <- r.put(instance{Name: fmt.Sprint(i), Address: fmt.Sprint("addr", i), PID: i}) }()
	}
	for range writers {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if err := r.put(instance{Name: "3", Address: "again", PID: 33}); err != nil { // it was started again
		t.Error(err)
	}
	if err := r.remove("3", 3); err != nil { // and the one before ends only now
		t.Error(err)
	}
	l, err := r.read()
	if err != nil || len(l.Prefillers) != writers || !slices.Contains(l.Prefillers, instance{"3", "again", 33}) {
		t.Errorf("%+v, %v: want %d instances, and the new one of name 3", l, err, writers)
	}
	if err := os.WriteFile(r.path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := r.read(); err == nil || !strings.Contains(err.Error(), r.path) {
		t.Errorf("got %v for a broken file, want its name", err)
	}
}

// idleTarget has nothing.
type idleTarget struct{}

func (idleTarget) process() processRow         { return processRow{} }
func (idleTarget) attempts(func(attemptRow))   {}
func (idleTarget) drain(context.Context) error { return nil }
func (idleTarget) cancel(string) int           { return 0 }
func (idleTarget) metrics(*metricWriter)       {}

// TestAdminRefusesNonsense speaks to a socket as no client of ours does.
func TestAdminRefusesNonsense(t *testing.T) {
	a, err := startAdmin(filepath.Join(t.TempDir(), "s"), idleTarget{})
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	c, err := net.Dial("unix", a.l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	lines := bufio.NewReader(c)
	for call, want := range map[string]string{"hello": "no call", `{"op":"reboot"}`: "want ps, drain or cancel", `{"op":"cancel","request":"x"}`: "no request"} {
		if _, err := fmt.Fprintln(c, call); err != nil {
			t.Fatal(err)
		}
		var end adminEnd
		line, err := lines.ReadBytes('\n')
		if err != nil || json.Unmarshal(line, &end) != nil || !strings.Contains(end.Error, want) {
			t.Errorf("%s: got %s (%v), want %q", call, line, err, want)
		}
	}
}

// TestAdminTakesOverItsOwnPlace: a killed process, in a container for example, had the same id.
func TestAdminTakesOverItsOwnPlace(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	dir, err := adminDir()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: adminPath(dir, os.Getpid())})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	a, err := startAdmin("", idleTarget{})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.close(); err != nil {
		t.Error(err)
	}
}

// startsMany leaves tests of many processes out of short runs, and to those without the race detector, which sees one process at a time, and makes each of
// them so slow that they do little: packages kv and kv/simllm run the same code under it.
func startsMany(t *testing.T) {
	t.Helper()
	if raced {
		t.Skip("not under the race detector: its processes are too slow to meet their faults")
	}
	if testing.Short() {
		t.Skip("-short leaves out what starts many processes")
	}
}
