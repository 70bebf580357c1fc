package versus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-project/hawser/internal/proc"
)

// driverEnv makes the test binary a driver; stateEnv names a folder where it leaves its pid and says what it does.
const (
	driverEnv = "HAWSER_VERSUS_DRIVER"
	stateEnv  = "HAWSER_VERSUS_STATE"
)

func TestMain(m *testing.M) {
	role := os.Getenv(driverEnv)
	if role == "" {
		os.Exit(m.Run())
	}
	var err error
	switch name, _, _ := strings.Cut(role, " "); name {
	case "receiver":
		err = Receive(context.Background())
	case "child":
		signal.Ignore(syscall.SIGTERM)
		time.Sleep(hangTime)
	case "hawser":
		err = Drive(context.Background(), Ours, proc.Spec{Env: []string{driverEnv + "=receiver"}}, os.Stdin, os.Stdout)
	default:
		err = serve(&fake{role: role, state: os.Getenv(stateEnv)}, os.Stdin, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// fake is a driver that does nothing. Its role is what it does wrong, or "fast", or the seconds of its samples.
type fake struct {
	role, state string
	samples     int
}

// hangTime is for how long a role hangs: far beyond the limits of the tests.
const hangTime = time.Hour

func (f *fake) open(Opening) (reply, error) {
	f.leave(os.Getpid())
	switch f.role {
	case "refuses":
		return reply{}, errors.New("no such network here")
	case "hangs in open":
		time.Sleep(hangTime)
	case "leaves a child", "dies before its child":
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), driverEnv+"=child")
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr // so that neither ends with the driver
		if err := cmd.Start(); err != nil {
			return reply{}, err
		}
		f.leave(cmd.Process.Pid)
	}
	return reply{Name: f.role, Version: "1", Settings: "none"}, nil
}

// leave notes a pid.
func (f *fake) leave(pid int) {
	if err := os.WriteFile(filepath.Join(f.state, strconv.Itoa(pid)), nil, 0o600); err != nil {
		panic(err)
	}
}

func (f *fake) run(first uint64) (reply, error) {
	f.note(fmt.Sprintf("%s@%d", f.role, first))
	switch f.role {
	case "fails":
		return reply{}, errors.New("the network broke")
	case "dies", "dies before its child":
		fmt.Fprintln(os.Stderr, "assertion failed")
		os.Exit(3)
	case "crashes":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case "hangs":
		time.Sleep(hangTime)
	case "says nothing new":
		return reply{}, nil
	case "babbles":
		fmt.Println("{nonsense")
	case "alone":
		return reply{Seconds: 1}, f.othersStopped()
	}
	seconds := 1.0
	if list := strings.Fields(f.role); list[0] == "takes" {
		seconds, _ = strconv.ParseFloat(list[1+f.samples%(len(list)-1)], 64)
	}
	f.samples++
	return reply{Seconds: seconds, CPU: 2 * seconds, P50: seconds, P99: seconds, P999: seconds}, nil
}

// note appends a line to the log of all drivers.
func (f *fake) note(line string) {
	log, err := os.OpenFile(filepath.Join(f.state, "log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	defer func() { _ = log.Close() }()
	fmt.Fprintln(log, line)
}

// othersStopped waits for all other drivers to be stopped.
func (f *fake) othersStopped() error {
	for deadline := time.Now().Add(time.Minute); ; {
		running := 0
		for _, pid := range pids(f.state) {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			if pid != os.Getpid() && err == nil && !strings.Contains(string(stat), ") T ") {
				running++
			}
		}
		if running == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d other drivers run during a sample", running)
		}
		time.Sleep(time.Millisecond)
	}
}

func (f *fake) verify(moved uint64) (reply, error) {
	f.note(fmt.Sprintf("%s verified %d", f.role, moved))
	if f.role == "lies" {
		return reply{Corrupt: 8}, nil
	}
	return reply{}, nil
}

func (f *fake) close() error { return nil }

// pids are those that drivers left in a folder.
func pids(state string) []int {
	var all []int
	entries, _ := os.ReadDir(state)
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			all = append(all, pid)
		}
	}
	return all
}

// world is an environment for drivers of roles; ours has the role of the same name.
func world(t *testing.T, ours string, roles ...string) (Config, *Env, string) {
	t.Helper()
	state := t.TempDir()
	env, err := NewEnv("", func(driver string) (args, env []string) {
		if driver == Ours {
			driver = ours
		}
		return []string{os.Args[0]}, []string{driverEnv + "=" + driver, stateEnv + "=" + state}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Close(); err != nil {
			t.Error(err)
		}
		noneLeft(t, state)
	})
	// The limits are guards against hanging, so far beyond what a loaded machine needs.
	c := Config{Rounds: 3, Seed: 1, openLimit: time.Minute, runLimit: time.Minute}
	for _, role := range roles {
		c.Peers = append(c.Peers, Peer{Name: role, Go: role, Cases: everything})
	}
	c.Cases = []Case{{Path: "shm", Scenario: Pages, Size: 64, Pool: 256, Count: 8, Depth: 1, Batch: 1, Pings: 1}}
	return c, env, state
}

// noneLeft waits for all processes to be gone, zombies included.
func noneLeft(t *testing.T, state string) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for _, pid := range pids(state) {
		for {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			if err != nil || bytes.Contains(stat, []byte(") Z ")) { // somebody else's to wait for
				break
			}
			if time.Now().After(deadline) {
				t.Errorf("process %d is left behind", pid)
				_ = syscall.Kill(pid, syscall.SIGKILL)
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
}

// measure runs the only case of a config.
func measure(t *testing.T, c Config, env *Env) Result {
	t.Helper()
	var all []Result
	if err := Run(t.Context(), c, env, func(r Result) error { all = append(all, r); return nil }); err != nil {
		t.Fatal(err)
	}
	if len(all) != 1 || len(all[0].Rows) != len(c.Peers)+1 || all[0].Rows[0].Peer != Ours {
		t.Fatalf("got %d results, the first one with %d rows, want one with ours and %d peers", len(all), len(all[0].Rows), len(c.Peers))
	}
	return all[0]
}

func TestOrderRotatesAndAllDoTheSame(t *testing.T) {
	c, env, state := world(t, "good", "a", "b")
	measure(t, c, env)
	log, err := os.ReadFile(filepath.Join(state, "log"))
	if err != nil {
		t.Fatal(err)
	}
	want := "good@0 a@0 b@0 a@8 b@8 good@8 b@16 good@16 a@16 good@24 a@24 b@24"
	verified := " good verified 32 a verified 32 b verified 32"
	if got := strings.Join(strings.Fields(string(log)), " "); got != want+verified {
		t.Errorf("the drivers did\n%s, want\n%s", got, want+verified)
	}
}

func TestOnlyOneDriverRunsDuringASample(t *testing.T) {
	c, env, _ := world(t, "alone", "alone")
	for _, row := range measure(t, c, env).Rows {
		if row.Why != "" {
			t.Errorf("%s: %s", row.Peer, row.Why)
		}
	}
}

func TestRatiosAreMediansOverTheRounds(t *testing.T) {
	// The first sample, of the round that does not count, is far off.
	c, env, _ := world(t, "takes 100 1 2 4", "takes 1 2 2 16")
	rows := measure(t, c, env).Rows
	moved := float64(c.Cases[0].bytes()) / 1e9
	ours, theirs := rows[0], rows[1]
	if len(ours.Samples) != 3 || ours.Value.Median != moved/2 || ours.Value.Min != moved/4 || ours.Value.Max != moved || ours.Ratio != 0 || ours.Unit != "GB/s" {
		t.Errorf("ours is %+v, want 3 samples around %v GB/s and no ratio", ours, moved/2)
	}
	// Rounds: 2/1, 2/2, 16/4.
	if theirs.Ratio != 2 || theirs.RatioSpread.Min != 1 || theirs.RatioSpread.Max != 4 {
		t.Errorf("ratio is %v (%+v), want 2 (1 .. 4)", theirs.Ratio, theirs.RatioSpread)
	}
	if want := 2 * 2 / (float64(c.Cases[0].bytes()) / (1 << 30)); ours.CPU != want {
		t.Errorf("processor time is %v s/GiB, want %v", ours.CPU, want)
	}
}

func TestRatioOfLatencyIsOursByTheirs(t *testing.T) {
	c, env, _ := world(t, "takes 1 3", "takes 1 6")
	c.Rounds = 1
	c.Cases[0].Scenario = Latency
	rows := measure(t, c, env).Rows
	if rows[0].Value.Median != 3 || rows[0].Unit != "us" || rows[1].Ratio != 0.5 {
		t.Errorf("ours %v %s, ratio %v; want 3 us and 0.5", rows[0].Value.Median, rows[0].Unit, rows[1].Ratio)
	}
}

// A row beside a peer has its ratio to that one: own / theirs.
func TestRatioBesideAPeer(t *testing.T) {
	c, env, _ := world(t, "takes 1 3", "takes 1 6", "takes 1 4")
	c.Rounds = 1
	c.Peers[1].Beside = c.Peers[0].Name
	rows := measure(t, c, env).Rows
	if rows[2].Beside != rows[1].Peer || math.Abs(rows[2].Ratio-1.5) > 1e-9 || rows[1].Ratio != 2 {
		t.Errorf("rows beside each other: ratios %v and %v, want 2 and 1.5", rows[1].Ratio, rows[2].Ratio)
	}
	c.Peers[1].Beside = "nobody"
	if rows := measure(t, c, env).Rows; rows[2].Ratio != 0 || rows[2].Value.Median == 0 {
		t.Errorf("a row beside nobody: %+v, want a value without a ratio", rows[2])
	}
}

// Blocks of 8 bytes come in whole batches, and no more are in flight than queues hold.
func TestSmallBlocksFillBatches(t *testing.T) {
	all, err := Plan(Choice{Paths: []string{"tcp"}, Kinds: []string{KindHot}, Sizes: []uint64{8, 64 << 10}, Bytes: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if k := all[0]; k.Batch != maxBatch || k.Batch*k.Depth != windowBlocks || k.slots() < uint64(k.Batch) {
		t.Errorf("blocks of 8 bytes: %+v", k)
	}
	if k := all[1]; uint64(k.Batch*k.Depth)*k.Size != windowBytes || k.slots() != hotBlocks {
		t.Errorf("blocks of 64 KiB: %+v", k)
	}
}

// TestFaultyDriversAreRows: whatever a driver does, the others are measured, the table says why, and nothing is left behind.
func TestFaultyDriversAreRows(t *testing.T) {
	for _, tc := range []struct {
		role, why string
		limit     time.Duration // for an answer, where the driver will not give one
	}{
		{"refuses", "no such network here", 0},
		{"fails", "the network broke", 0},
		{"dies", "exit status 3: assertion failed", 0},
		{"crashes", "signal: killed", 0},
		{"lies", "8 bytes of the receiver's memory are wrong", 0},
		{"babbles", "answer: ", 0},
		{"says nothing new", "no measurement", 0},
		{"hangs", "no answer within", 5 * time.Second}, // the others have to answer within it too
		{"leaves a child", "", 0},
		{"dies before its child", "exit status 3: assertion failed", 0},
	} {
		t.Run(tc.role, func(t *testing.T) {
			t.Parallel()
			c, env, _ := world(t, "good", tc.role, "fast")
			if tc.limit > 0 {
				c.runLimit = tc.limit
			}
			rows := measure(t, c, env).Rows
			if got := rows[1]; !strings.Contains(got.Why, tc.why) || (got.Why == "") != (tc.why == "") {
				t.Errorf("the row says %q, want %q", got.Why, tc.why)
			} else if got.Why != "" && (got.Ratio != 0 || len(got.Samples) > 0) {
				t.Errorf("a row that says why has numbers: %+v", got)
			}
			if rows[0].Why != "" || rows[2].Why != "" || rows[2].Ratio != 1 {
				t.Errorf("the others suffer: %+v", rows)
			}
		})
	}
}

func TestDriverThatHangsInOpenIsARow(t *testing.T) {
	t.Parallel()
	c, env, _ := world(t, "good", "hangs in open")
	c.openLimit = 5 * time.Second // within which the others are open
	if why := measure(t, c, env).Rows[1].Why; !strings.Contains(why, "open: no answer within 5s") {
		t.Errorf("the row says %q", why)
	}
}

func TestPeerThatCannotBeHadIsARow(t *testing.T) {
	c, env, _ := world(t, "good")
	c.Peers = []Peer{
		{Name: "no source", Cases: everything, C: "absent.c"},
		{Name: "no program", Cases: everything, Go: "good", Under: func(*Env, Case) []string { return []string{"/nonexistent/mpirun"} }},
		{Name: "elsewhere", Cases: func(Case) bool { return false }, Go: "good"},
	}
	r := Result{}
	if err := Run(t.Context(), c, env, func(one Result) error { r = one; return nil }); err != nil {
		t.Fatal(err)
	}
	if len(r.Rows) != 3 {
		t.Fatalf("got %d rows, want ours and 2 peers", len(r.Rows))
	}
	if why := r.Rows[1].Why; !strings.Contains(why, "build no source") {
		t.Errorf("without a source the row says %q", why)
	}
	if why := r.Rows[2].Why; !strings.Contains(why, "no such file") {
		t.Errorf("without a program the row says %q", why)
	}
}

func TestWithoutOursThereAreNoRatios(t *testing.T) {
	c, env, _ := world(t, "fails", "good")
	rows := measure(t, c, env).Rows
	if rows[0].Why == "" || rows[1].Ratio != 0 || rows[1].Value.Median == 0 {
		t.Errorf("rows are %+v, want a reason, then a value without a ratio", rows)
	}
}

func TestCancelledRunLeavesNothing(t *testing.T) {
	c, env, _ := world(t, "good", "good", "leaves a child")
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	c.Progress = func(_ Case, step string) {
		if strings.HasPrefix(step, "round 2") {
			cancel(enough)
		}
	}
	if err := Run(ctx, c, env, func(Result) error { return nil }); !errors.Is(err, enough) {
		t.Errorf("got %v, want the cause of the context", err)
	}
	dir := env.dir
	if err := env.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left behind: %v", dir, err)
	}
}

func TestKeptEnvironmentStays(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "env")
	for range 2 { // the second time it is there
		env, err := NewEnv(dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := env.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(dir, "src", "c", "driver.c")); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPlanOfGoals(t *testing.T) {
	all, err := Plan(Choice{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, k := range all {
		names = append(names, fmt.Sprintf("%s %s %d", k.Path, k.Name(), k.Size))
		if k.Cold && k.Pool < 256<<20 {
			t.Errorf("%+v is not cold", k)
		}
	}
	for _, want := range []string{
		"shm pages, cold 65536", "shm pages, cold 1048576", "shm pages, cold 33554432", "shm foreign pages, cold 65536", "shm foreign pages, cold 1048576", "shm latency 8", "shm rate 8",
		"tcp pages, cold 65536", "tcp pages, hot 65536", "tcp pages, hot 1048576", "tcp latency 8", "tcp rate 8",
	} {
		if !slices.Contains(names, want) {
			t.Errorf("the plan is %q, without %q", names, want)
		}
	}
}

func TestChoiceNarrowsThePlan(t *testing.T) {
	got, err := Plan(Choice{Paths: []string{"shm"}, Kinds: []string{KindPages, KindHot}, Sizes: []uint64{4096}, Pool: 1 << 20, Bytes: 8192})
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0].Count != 2 || got[0].slots() != 256 || !got[0].Cold || got[1].Cold || got[1].slots() != hotBlocks {
		t.Errorf("the plan is %+v", got)
	}
	for _, bad := range []Choice{{Sizes: []uint64{7}}, {Sizes: []uint64{8}, Pool: 1 << 40}, {Paths: []string{"ib"}, Kinds: []string{KindRate}}} {
		if all, err := Plan(bad); err == nil {
			t.Errorf("Plan(%+v) is %+v, want an error", bad, all)
		}
	}
}

func TestChooseNamesThePeerThatIsUnknown(t *testing.T) {
	if peers, unknown := Choose([]string{"iperf3", "memcpy"}); unknown != "" || len(peers) != 2 {
		t.Errorf("got %d peers and %q unknown, want 2", len(peers), unknown)
	}
	if _, unknown := Choose([]string{"memcpy", "telegraph"}); unknown != "telegraph" {
		t.Errorf("got %q, want telegraph", unknown)
	}
}
