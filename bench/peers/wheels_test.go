package peers_test

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// wheelsPython names the Python that has the packages of requirements-*.txt.
const wheelsPython = "HAWSER_WHEELS_PYTHON"

// patience is a guard against hanging: shorter than the drivers wait for one another, so that waiting is not what ends them.
const patience = time.Minute

const (
	pageSize  = 64 << 10
	pageSlots = 64
	pageCount = 40 // of a sample; two samples go around the pool
	longCount = 100_000
)

type answer struct {
	OK                bool
	Why               string
	Settings, Version string
	Seconds, CPU, P50 float64
	Exposed           float64 // of layers
	Corrupt           int64
}

// wheel is a running driver in Python.
type wheel struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string // closed when the driver has closed its output
	ended chan error
}

func startWheel(t *testing.T, python, script string) *wheel {
	t.Helper()
	w := &wheel{t: t, cmd: exec.Command(python, script), lines: make(chan string, 1), ended: make(chan error, 1)}
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	w.cmd.Stderr = io.Discard
	var err error
	if w.in, err = w.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			w.lines <- s.Text()
		}
		close(w.lines)
		w.ended <- w.cmd.Wait()
	}()
	t.Cleanup(func() { _ = syscall.Kill(-w.cmd.Process.Pid, syscall.SIGKILL) })
	return w
}

func (w *wheel) tell(request map[string]any) {
	w.t.Helper()
	line, err := json.Marshal(request)
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.in.Write(append(line, '\n')); err != nil {
		w.t.Fatal(err)
	}
}

func (w *wheel) hear() answer {
	w.t.Helper()
	select {
	case line, open := <-w.lines:
		if !open {
			w.t.Fatal("the driver ended without an answer")
		}
		var a answer
		if err := json.Unmarshal([]byte(line), &a); err != nil {
			w.t.Fatalf("answer %q: %v", line, err)
		}
		return a
	case <-time.After(patience):
		w.t.Fatal("no answer")
	}
	panic("unreachable")
}

func (w *wheel) ask(request map[string]any) answer {
	w.t.Helper()
	w.tell(request)
	return w.hear()
}

// must asks what has to succeed.
func (w *wheel) must(request map[string]any) answer {
	w.t.Helper()
	a := w.ask(request)
	if !a.OK {
		w.t.Fatalf("%v: %s", request["op"], a.Why)
	}
	return a
}

// gone waits for the end of the driver and of what it started, and returns its exit code; -1 after a signal.
func (w *wheel) gone() int {
	w.t.Helper()
	select {
	case <-w.ended:
	case <-time.After(patience):
		w.t.Fatal("the driver did not end")
	}
	for start := time.Now(); !errors.Is(syscall.Kill(-w.cmd.Process.Pid, 0), syscall.ESRCH); time.Sleep(time.Millisecond) {
		if time.Since(start) > patience {
			w.t.Fatal("a process of the driver is left")
		}
	}
	return w.cmd.ProcessState.ExitCode()
}

// receiver is the process id of the driver's other half.
func (w *wheel) receiver() int {
	w.t.Helper()
	pid := strconv.Itoa(w.cmd.Process.Pid)
	children, err := os.ReadFile(filepath.Join("/proc", pid, "task", pid, "children"))
	if err != nil {
		w.t.Fatal(err)
	}
	child, err := strconv.Atoi(strings.TrimSpace(string(children)))
	if err != nil {
		w.t.Fatalf("children %q: %v", children, err)
	}
	return child
}

// busy waits until a process has used a few clock ticks more than now: the sample has begun.
func busy(t *testing.T, pid int) {
	t.Helper()
	used := func() int {
		stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
		if err != nil {
			t.Fatal(err)
		}
		fields := strings.Fields(string(stat[strings.LastIndex(string(stat), ")")+1:]))
		user, userErr := strconv.Atoi(fields[11]) // utime and stime, see proc(5)
		system, systemErr := strconv.Atoi(fields[12])
		if err := errors.Join(userErr, systemErr); err != nil {
			t.Fatal(err)
		}
		return user + system
	}
	const few = 5
	for start, first := time.Now(), used(); used() < first+few; time.Sleep(time.Millisecond) {
		if time.Since(start) > patience {
			t.Fatal("the sample does not begin")
		}
	}
}

func opening(t *testing.T, scenario, transport string) map[string]any {
	t.Helper()
	q := map[string]any{
		"op": "open", "scenario": scenario, "transport": transport, "size": 8, "pool": 64 << 10, "count": 500, "depth": 8, "batch": 1,
		"pings": 50, "seed": 7, "congestion": "cubic",
	}
	if scenario == "pages" {
		pages(t, q, pageSlots)
	}
	return q
}

// pages turns an opening to pages of a pool of so many slots.
func pages(t *testing.T, q map[string]any, slots int) {
	t.Helper()
	var order []byte
	from, to := rand.Perm(slots), rand.Perm(slots)
	for i := range slots {
		order = binary.LittleEndian.AppendUint32(order, uint32(from[i]))
		order = binary.LittleEndian.AppendUint32(order, uint32(to[i]))
	}
	path := filepath.Join(t.TempDir(), "order")
	if err := os.WriteFile(path, order, 0o600); err != nil {
		t.Fatal(err)
	}
	q["scenario"], q["order"] = "pages", path
	q["size"], q["pool"], q["count"], q["depth"], q["batch"] = pageSize, pageSize*slots, pageCount, 3, 6
}

// shared is the names in /dev/shm that a library may have left there.
func shared(t *testing.T) string {
	t.Helper()
	names, err := filepath.Glob("/dev/shm/*ucx*")
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(names)
}

// wheels runs a test for both drivers and both transports.
func wheels(t *testing.T, test func(t *testing.T, python, script, transport string)) {
	python := os.Getenv(wheelsPython)
	if python == "" {
		t.Skipf("%s does not name a Python with the packages of requirements-*.txt", wheelsPython)
	}
	for _, script := range []string{"nixl.py", "mooncake.py"} {
		for _, transport := range []string{"shm", "tcp"} {
			t.Run(script+"/"+transport, func(t *testing.T) {
				before := shared(t)
				test(t, python, script, transport)
				if after := shared(t); after != before {
					t.Errorf("/dev/shm has %s, had %s", after, before)
				}
			})
		}
	}
}

func TestWheelMovesPages(t *testing.T) {
	wheels(t, func(t *testing.T, python, script, transport string) {
		w := startWheel(t, python, script)
		w.must(opening(t, "pages", transport))
		moved := 0
		for range 2 {
			if a := w.must(map[string]any{"op": "run", "first": moved}); a.Seconds <= 0 || a.CPU <= 0 {
				t.Errorf("answer to run: %+v", a)
			}
			moved += pageCount
			if a := w.must(map[string]any{"op": "verify", "moved": moved}); a.Corrupt != 0 {
				t.Errorf("%d bytes are wrong after %d blocks", a.Corrupt, moved)
			}
			if moved < pageSlots {
				// One block more than moved is one whose bytes all differ from what it would have left.
				if a := w.must(map[string]any{"op": "verify", "moved": moved + 1}); a.Corrupt < pageSize/2 {
					t.Errorf("only %d bytes are wrong of a block that did not move", a.Corrupt)
				}
			}
		}
		_ = w.in.Close()
		if code := w.gone(); code != 0 {
			t.Errorf("exit code %d", code)
		}
	})
}

func TestWheelMovesLayers(t *testing.T) {
	wheels(t, func(t *testing.T, python, script, transport string) {
		const layers, writes, size = 3, 40, 32 << 10
		var rows []byte
		from, to := rand.Perm(layers*writes), rand.Perm(layers*writes)
		for i := range layers * writes {
			for _, x := range []int{i / writes, from[i] * size, to[i] * size, size} {
				rows = binary.LittleEndian.AppendUint64(rows, uint64(x))
			}
		}
		path := filepath.Join(t.TempDir(), "layers")
		if err := os.WriteFile(path, rows, 0o600); err != nil {
			t.Fatal(err)
		}
		w := startWheel(t, python, script)
		w.must(map[string]any{
			"op": "open", "scenario": "layers", "transport": transport, "size": 8, "pool": layers * writes * size, "target": (layers*writes + 1) * size,
			"order": path, "seed": 7,
		})
		for _, whole := range []bool{false, true} {
			a := w.must(map[string]any{"op": "run", "layer_ns": 2_000_000, "whole": whole})
			if a.Exposed <= 0 || a.Seconds < a.Exposed+layers*0.002-1e-9 || a.CPU <= 0 {
				t.Errorf("answer to run: %+v", a)
			}
			if a := w.must(map[string]any{"op": "verify"}); a.Corrupt != 0 {
				t.Errorf("%d bytes are wrong", a.Corrupt)
			}
		}
		if a := w.must(map[string]any{"op": "verify"}); a.Corrupt < layers*writes*size/2 {
			t.Errorf("only %d bytes are wrong of what did not move", a.Corrupt)
		}
	})
}

func TestWheelGoesAroundASmallPool(t *testing.T) {
	wheels(t, func(t *testing.T, python, script, transport string) {
		const slots = 4
		q := opening(t, "pages", transport)
		pages(t, q, slots)
		q["batch"], q["depth"], q["count"] = slots, 32, 4000
		w := startWheel(t, python, script)
		w.must(q)
		w.must(map[string]any{"op": "run", "first": 0})
		if a := w.must(map[string]any{"op": "verify", "moved": 4000}); a.Corrupt != 0 {
			t.Errorf("%d bytes are wrong", a.Corrupt)
		}
	})
}

func TestWheelCountsAndAnswersMessages(t *testing.T) {
	wheels(t, func(t *testing.T, python, script, transport string) {
		for _, scenario := range []string{"latency", "rate"} {
			w := startWheel(t, python, script)
			w.must(opening(t, scenario, transport))
			for i := range 2 {
				a := w.must(map[string]any{"op": "run", "first": i * 500})
				if a.Seconds <= 0 || scenario == "latency" && a.P50 <= 0 {
					t.Errorf("%s: answer to run: %+v", scenario, a)
				}
			}
			_ = w.in.Close()
			if code := w.gone(); code != 0 {
				t.Errorf("%s: exit code %d", scenario, code)
			}
		}
	})
}

func TestWheelThatLosesItsReceiverSaysSo(t *testing.T) {
	wheels(t, func(t *testing.T, python, script, transport string) {
		w := startWheel(t, python, script)
		q := opening(t, "pages", transport)
		q["count"] = longCount // it is lost on the way
		w.must(q)
		child := w.receiver()
		w.tell(map[string]any{"op": "run", "first": 0})
		busy(t, child)
		if err := syscall.Kill(child, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if a := w.hear(); a.OK || a.Why == "" {
			t.Errorf("answer to run: %+v", a)
		}
		if code := w.gone(); code == 0 {
			t.Error("exit code 0")
		}
	})
}

func TestWheelEndsAtASignal(t *testing.T) {
	wheels(t, func(t *testing.T, python, script, transport string) {
		w := startWheel(t, python, script)
		q := opening(t, "pages", transport)
		q["count"] = longCount
		w.must(q)
		w.tell(map[string]any{"op": "run", "first": 0})
		busy(t, w.receiver())
		if err := w.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		w.gone()
	})
}

func TestWheelWithoutItsPackageSaysSo(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skipf("no python3: %v", err)
	}
	for _, script := range []string{"nixl.py", "mooncake.py"} {
		w := startWheel(t, python, script)
		if a := w.ask(map[string]any{"op": "run", "first": 0}); a.OK || !strings.Contains(a.Why, "no case is open") {
			t.Errorf("%s: answer to run before open: %+v", script, a)
		}
		q := opening(t, "latency", "tcp")
		q["size"] = 12
		if a := w.ask(q); a.OK || !strings.Contains(a.Why, "multiple of 8") {
			t.Errorf("%s: answer to open with 12 bytes: %+v", script, a)
		}
		if a := w.ask(opening(t, "latency", "tcp")); a.OK || !strings.Contains(a.Why, "no package") {
			t.Skipf("this python3 has the package of %s: %+v", script, a)
		}
		_ = w.in.Close()
		if code := w.gone(); code != 0 {
			t.Errorf("%s: exit code %d", script, code)
		}
	}
}
