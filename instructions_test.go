//go:build instructions

package hawser

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	signals "os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/internal/rail"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/shm"
	"github.com/hawser-project/hawser/provider/tcp"
)

// How many instructions an operation takes, from submit over the worker and the network to its end and its count, both sides together,
// without the kernel's. Callgrind counts them, on a processor that it makes up, so that they are the same on every machine. Nothing
// counts at the same time: the test steps both workers by hand, in one goroutine.

var instructionsUpdate = flag.Bool("instructions.update", false, "record the counts of this run")

const (
	recordedFile = "testdata/instructions.txt"

	// tolerance is by how much a count may rise above the recorded one, a part of it. Counts of one build differ by less than 0.005; the
	// rest is for other versions of the compiler.
	tolerance = 0.02

	// socketTolerance is tolerance over tcp, where the kernel decides how often a socket is looked at in vain: 3 % apart.
	socketTolerance = 0.06

	// rounds is how often each scenario is counted. The smallest count is taken: beats and other goroutines can only add to one.
	rounds = 20

	childEnv = "HAWSER_INSTRUCTIONS_CHILD"
)

// scenario is one way to use two engines.
type scenario struct {
	name  string
	times int // how often one round does it
	ops   int // operations in each
	make  func(t *testing.T) *stepped
}

var scenarios = []scenario{
	{"shm: a look for work", 500, 1, func(t *testing.T) *stepped { return stepPair(t, shm.New()).idle() }},
	{"shm: write 8 B with imm", 250, 1, func(t *testing.T) *stepped { return stepPair(t, shm.New()).write(1) }},
	{"shm: write 8 B with imm, 64 at once", 8, 64, func(t *testing.T) *stepped { return stepPair(t, shm.New()).write(64) }},
	{"shm: signal", 250, 1, func(t *testing.T) *stepped { return stepPair(t, shm.New()).signal() }},
	{"shm: 64 pages of 64 B with imms", 8, 64, func(t *testing.T) *stepped { return stepPair(t, shm.New()).writePages(64) }},
	{"tcp: write 8 B with imm", 100, 1, func(t *testing.T) *stepped { return stepPair(t, tcp.New()).write(1) }},
	{"tcp: write 8 B with imm, 64 at once", 8, 64, func(t *testing.T) *stepped { return stepPair(t, tcp.New()).write(64) }},
	{"mock: 56 prepared targets", 8, benchPeers, func(t *testing.T) *stepped { return stepMock(t, true) }},
	{"mock: 56 writes to 56 peers", 8, benchPeers, func(t *testing.T) *stepped { return stepMock(t, false) }},
}

func TestInstructions(t *testing.T) {
	if os.Getenv(childEnv) != "" {
		countScenarios(t)
		return
	}
	if runtime.GOARCH != "amd64" {
		t.Skip("counts are recorded for amd64, this is " + runtime.GOARCH)
	}
	if _, err := exec.LookPath("valgrind"); err != nil {
		t.Skip("valgrind is not installed: " + err.Error())
	}
	seen := underCallgrind(t)
	if *instructionsUpdate {
		writeRecorded(t, seen)
	}
	recorded := readRecorded(t)
	for i, s := range scenarios {
		got, want := seen[i], recorded[s.name]
		fmt.Printf("instructions: %6.0f  %s\n", got, s.name)
		tolerance := tolerance
		if strings.HasPrefix(s.name, "tcp") {
			tolerance = socketTolerance
		}
		switch {
		case want == 0:
			t.Errorf("%s: %.0f instructions, none are recorded: make instructions UPDATE=1", s.name, got)
		case got > want*(1+tolerance):
			t.Errorf("%s: %.0f instructions, %.0f are recorded, %+.1f %%, at most %+.0f %% is allowed; if it has to be: make instructions UPDATE=1",
				s.name, got, want, 100*(got/want-1), 100*tolerance)
		case got < want*(1-tolerance):
			fmt.Printf("instructions: %.0f were recorded, %+.1f %%: keep the gain with make instructions UPDATE=1\n", want, 100*(got/want-1))
		}
	}
}

// mark is where callgrind notes what it has counted, and begins anew.
//
//go:noinline
func mark() { marks++ }

var marks int

// countScenarios counts under callgrind.
func countScenarios(t *testing.T) {
	signals.Ignore(unix.SIGPIPE) // callgrind of Debian 12 does not survive a handler that ran on another stack
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			w := s.make(t)
			err := w.each(func() error {
				for range s.times { // pools, tables and buffers reach their size
					if err := w.once(); err != nil {
						return err
					}
				}
				for range rounds {
					mark()
					for range s.times {
						if err := w.once(); err != nil {
							return err
						}
					}
					mark()
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// stepped is two engines, or one over a mock, whose workers stand still but for what once makes them do.
type stepped struct {
	engines []*Engine
	groups  []*rail.Group // of the engines, while each counts
	q       *Queue
	done    []Done
	counter *Counter
	counted uint64
	src     *Region
	dst     *Remote
	once    func() error
}

// each counts f with all workers held.
func (w *stepped) each(f func() error) error {
	if len(w.groups) == len(w.engines) {
		return f()
	}
	return w.engines[len(w.groups)].worker.do(func(g *rail.Group) error {
		w.groups = append(w.groups, g)
		return w.each(f)
	})
}

// settle steps until n operations have ended and n immediates have been counted.
func (w *stepped) settle(ends int, imms uint64) error {
	w.counted += imms
	for ends > 0 || w.counter != nil && w.counter.Load() < w.counted {
		for _, g := range w.groups {
			g.Step()
		}
		n := w.q.Poll(w.done)
		for i := range n {
			if err := w.done[i].Err; err != nil {
				return err
			}
		}
		ends -= n
	}
	return nil
}

// stepPair is two engines over one network, with memory of 4096 bytes each.
func stepPair(t *testing.T, p provider.Provider) *stepped {
	o := Options{Providers: providers(p), PeerTimeout: time.Minute}
	a, b := openEngine(t, o), openEngine(t, o)
	w := &stepped{engines: []*Engine{a, b}, q: a.NewQueue(64), done: make([]Done, 64), counter: b.Counter(1)}
	dst, err := b.Alloc(4096, MemOptions{})
	if err == nil {
		w.src, err = a.Alloc(4096, MemOptions{})
	}
	if err == nil {
		w.dst, err = a.Import(context.Background(), dst.Descriptor(dst.All(), RightWrite))
	}
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// idle is one Step of each side that finds nothing.
func (w *stepped) idle() *stepped {
	w.once = func() error {
		for _, g := range w.groups {
			g.Step()
		}
		return nil
	}
	return w
}

func (w *stepped) write(n int) *stepped {
	write := Write{Src: w.src.Slice(0, 8), Dst: w.dst.Slice(0, 8), Imm: Imm(1)}
	w.once = func() error {
		for range n {
			if err := w.q.Write(write, 0); err != nil {
				return err
			}
		}
		return w.settle(n, uint64(n))
	}
	return w
}

func (w *stepped) signal() *stepped {
	w.once = func() error {
		if err := w.q.Signal(Signal{To: w.dst.Peer(), Imm: 1}, 0); err != nil {
			return err
		}
		return w.settle(1, 1)
	}
	return w
}

func (w *stepped) writePages(n int) *stepped {
	pages := WritePages{PageLen: 64, Src: Pages{Region: w.src, Stride: 64}, Dst: RemotePages{Remote: w.dst, Stride: 64}, Imm: Imm(1)}
	for i := range n {
		pages.Src.Indices = append(pages.Src.Indices, uint32(i))
		pages.Dst.Indices = append(pages.Dst.Indices, uint32(n-1-i))
	}
	w.once = func() error {
		if err := w.q.WritePages(pages, 0); err != nil {
			return err
		}
		return w.settle(1, uint64(n))
	}
	return w
}

// stepMock is a batch of 256 bytes for each of 56 peers, over a network that costs nothing.
func stepMock(t *testing.T, prepared bool) *stepped {
	e, _, remotes := mockWorld(t, benchPeers)
	w := &stepped{engines: []*Engine{e}, q: e.NewQueue(benchPeers), done: make([]Done, benchPeers)}
	src, err := e.Alloc(1<<16, MemOptions{Heap: true})
	if err != nil {
		t.Fatal(err)
	}
	scatter := Scatter{Src: src.All(), Imm: Imm(1)}
	for i, r := range remotes {
		scatter.Targets = append(scatter.Targets, Target{Dst: r.All(), SrcOff: uint64(i) * 256, Len: 256})
	}
	tmpl, err := e.Prepare(scatter)
	if err != nil {
		t.Fatal(err)
	}
	args := tmpl.Args()
	w.once = func() error {
		if prepared {
			if err := w.q.Submit(tmpl, args, 0); err != nil {
				return err
			}
			return w.settle(1, 0)
		}
		for i := range scatter.Targets {
			g := &scatter.Targets[i]
			if err := w.q.Write(Write{Src: src.Slice(g.SrcOff, g.Len), Dst: g.Dst, Imm: scatter.Imm}, 0); err != nil {
				return err
			}
		}
		return w.settle(benchPeers, 0)
	}
	return w
}

// underCallgrind counts all scenarios, in instructions an operation.
func underCallgrind(t *testing.T) []float64 {
	t.Helper()
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute) // a guard against hangs
	defer cancel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, "valgrind", "--tool=callgrind", "--dump-before=*.mark", "--callgrind-out-file="+filepath.Join(dir, "out"),
		self, "-test.run=^TestInstructions$", "-test.count=1", "-test.timeout=4m")
	cmd.Env = append(os.Environ(), childEnv+"=1", "GOMAXPROCS=1", "GOGC=off", "GODEBUG=asyncpreemptoff=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	seen := make([]float64, len(scenarios))
	part := 0 // callgrind numbers its files from 1
	for i, s := range scenarios {
		least := math.Inf(1)
		for range rounds {
			part += 2 // what led to the first mark does not count
			n, err := total(filepath.Join(dir, "out."+strconv.Itoa(part)))
			if err != nil {
				t.Fatalf("%s: %v (go test strips the symbols that callgrind needs, but with -o)", s.name, err)
			}
			least = min(least, n)
		}
		seen[i] = least / float64(s.times*s.ops)
	}
	return seen
}

// total is the sum of a file of callgrind.
func total(path string) (float64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(text) {
		if n, ok := bytes.CutPrefix(line, []byte("totals: ")); ok {
			return strconv.ParseFloat(string(bytes.TrimSpace(n)), 64)
		}
	}
	return 0, fmt.Errorf("%s: no totals", path)
}

func readRecorded(t *testing.T) map[string]float64 {
	t.Helper()
	text, err := os.ReadFile(recordedFile)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		count, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.ParseFloat(count, 64)
		if err != nil {
			t.Fatalf("%s: %v", recordedFile, err)
		}
		out[strings.TrimSpace(name)] = n
	}
	return out
}

func writeRecorded(t *testing.T, seen []float64) {
	t.Helper()
	lines := []string{
		"# Instructions an operation takes, both sides together; made by make instructions UPDATE=1 with " + runtime.Version() + ", " + runtime.GOARCH + ".",
	}
	for i, s := range scenarios {
		lines = append(lines, fmt.Sprintf("%6.0f  %s", seen[i], s.name))
	}
	if err := os.WriteFile(recordedFile, []byte(strings.Join(slices.Concat(lines, []string{""}), "\n")), 0o644); err != nil {
		t.Fatal(err)
	}
}
