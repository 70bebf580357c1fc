package hawser

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/hawser-project/hawser/internal/cpu"
	"github.com/hawser-project/hawser/internal/rail"
	"github.com/hawser-project/hawser/internal/record"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/sim"
)

// The worker gets a thread of its own where that can help, and nowhere else.
func TestWhereTheWorkerRuns(t *testing.T) {
	node, err := cpu.Of([]int{2, 3})
	if err != nil {
		t.Fatal(err)
	}
	near := func(n int) (cpu.Set, error) { // node 1 is one of several; node 2 cannot be read
		switch n {
		case 1:
			return node, nil
		case 2:
			return cpu.Set{}, os.ErrPermission
		}
		return cpu.Set{}, nil
	}
	nowhere, elsewhere, there := provider.Device{NUMA: -1}, provider.Device{NUMA: 0}, provider.Device{NUMA: 1}
	for _, tc := range []struct {
		name  string
		poll  PollMode
		cores int
		rails []provider.Device
		want  thread
	}{
		{"few cores", PollAdaptive, 2, []provider.Device{there}, thread{node: -1}},
		{"few cores, busy", PollBusy, 3, []provider.Device{there}, thread{node: -1}},
		{"many cores", PollAdaptive, 4, []provider.Device{nowhere, there}, thread{own: true, cpus: node, node: 1}},
		{"many cores, event", PollEvent, 64, []provider.Device{there}, thread{own: true, cpus: node, node: 1}},
		{"the first card that says something decides", PollAdaptive, 64, []provider.Device{elsewhere, there}, thread{node: -1}},
		{"no card says anything", PollAdaptive, 64, []provider.Device{nowhere}, thread{node: -1}},
		{"no card says anything, busy", PollBusy, 64, []provider.Device{nowhere}, thread{own: true, node: -1}},
	} {
		got, err := chooseThread(&Options{Poll: tc.poll}, tc.rails, tc.cores, near)
		if err != nil || got != tc.want {
			t.Errorf("%s: own %v, %d processors, node %d (%v)", tc.name, got.own, got.cpus.Count(), got.node, err)
		}
	}
	if _, err := chooseThread(&Options{}, []provider.Device{{NUMA: 2}}, 64, near); !errors.Is(err, os.ErrPermission) {
		t.Errorf("a node that cannot be read: %v", err)
	}
	for _, cpus := range [][]int{{-1}, {cpu.MaxCPU + 1}, {cpu.MaxCPU}} {
		if _, err := chooseThread(&Options{CPUs: cpus}, nil, 64, near); !errors.Is(err, ErrInvalid) {
			t.Errorf("cpus %v: %v", cpus, err)
		}
	}
}

// firstCPU is a processor that this process may use.
func firstCPU(t *testing.T) int {
	t.Helper()
	set, err := cpu.Allowed()
	if err != nil {
		t.Fatal(err)
	}
	for c := range cpu.MaxCPU + 1 {
		if set.IsSet(c) {
			return c
		}
	}
	t.Fatal("no processor")
	return 0
}

// A worker that is kept on a processor has a thread there, and GOMAXPROCS is higher by one until the engine is closed.
func TestWorkerIsKeptOnItsCPUs(t *testing.T) {
	f := sim.New(sim.Config{})
	for _, mode := range []PollMode{PollAdaptive, PollBusy, PollEvent} {
		t.Run(mode.String(), func(t *testing.T) {
			procs, c := runtime.GOMAXPROCS(0), firstCPU(t)
			want, err := cpu.Of([]int{c})
			if err != nil {
				t.Fatal(err)
			}
			e, err := Open(t.Context(), Options{Providers: []provider.Provider{f.Provider("own " + mode.String())}, Poll: mode, CPUs: []int{c}})
			if err != nil {
				t.Fatal(err)
			}
			if n := runtime.GOMAXPROCS(0); n != procs+1 {
				t.Errorf("GOMAXPROCS is %d, was %d", n, procs)
			}
			for range 100 {
				var on cpu.Set
				if !e.worker.group.Call(func(*rail.Group) { on, err = cpu.Allowed() }) {
					t.Fatal("the engine is closed")
				}
				e.Stats() // comes after it
				if err != nil || on != want {
					t.Fatalf("the worker may run on %d processors (%v)", on.Count(), err)
				}
			}
			if err := e.Close(context.Background()); err != nil {
				t.Error(err)
			}
			if n := runtime.GOMAXPROCS(0); n != procs {
				t.Errorf("GOMAXPROCS is %d, was %d", n, procs)
			}
		})
	}
	before := runtime.GOMAXPROCS(0)
	if _, err := Open(t.Context(), Options{Providers: []provider.Provider{f.Provider("x")}, CPUs: []int{cpu.MaxCPU}}); !errors.Is(err, ErrInvalid) {
		t.Fatalf("a processor that is not there: %v", err)
	}
	if n := runtime.GOMAXPROCS(0); n != before {
		t.Errorf("GOMAXPROCS is %d after an Open that failed, was %d", n, before)
	}
}

// How long a worker that finds nothing goes on looking is what the modes are about.
func TestWhenAWorkerIsTired(t *testing.T) {
	for mode, want := range map[PollMode][2]bool{PollAdaptive: {false, true}, PollBusy: {false, false}, PollEvent: {true, true}} {
		w := &worker{mode: mode, recorder: record.New(0)}
		var idle int64
		first := w.tired(&idle)
		idle = record.Now() - int64(2*spinTime)
		if later := w.tired(&idle); first != want[0] || later != want[1] {
			t.Errorf("%s: tired %v at first, %v after %v", mode, first, later, 2*spinTime)
		}
	}
}

// mainTests are those that the engine has to pass however its workers look for work and wherever they run.
const mainTests = "^(TestWriteLandsAndIsCounted|TestRailsDoNotChangeCounts|TestMessagesBothWaysWithSender|TestQueueReportsEachCookieOnce|" +
	"TestManyGoroutinesSubmit|TestFencedPeerCannotWrite|TestClosedEngineRefusesAndEndsWaits|TestEnginesLeaveNothingBehind|" +
	"TestWaitersLoseNoWake|TestBusyWorkerWakesItsWaiters|TestEveryReaderIsWoken|TestCloseDrains|TestSubmitsRaceWithClose)$"

// The main tests again, in each mode, with one processor and with two, with and without a thread for each worker.
func TestEngineInEveryMode(t *testing.T) {
	t.Parallel()
	for _, flags := range []string{
		"-poll=busy -test.cpu=1", "-poll=event -test.cpu=2", "-poll=adaptive -pin -test.cpu=2", "-poll=busy -pin -test.cpu=1", "-poll=event -pin -test.cpu=1",
	} {
		t.Run(flags, func(t *testing.T) {
			args := append(strings.Fields(flags), "-test.run="+mainTests, "-test.timeout=4m")
			out, err := exec.CommandContext(t.Context(), os.Args[0], args...).CombinedOutput()
			if err != nil || !strings.Contains(string(out), "PASS") {
				t.Fatalf("%v\n%s", err, out)
			}
		})
	}
}
