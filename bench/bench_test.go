package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-project/hawser/internal/proc"
)

// receiverEnv makes the test binary the receiving process.
const receiverEnv = "HAWSER_BENCH_RECEIVER"

func TestMain(m *testing.M) {
	if role := os.Getenv(receiverEnv); role != "" {
		switch role {
		case misled:
			filter(func(line string) string { return strings.Replace(line, `"seed":1`, `"seed":2`, 1) })
		case deserter:
			filter(func(line string) string {
				if strings.Contains(line, `"kind":"`+msgWork+`"`) {
					fmt.Printf("{\"kind\":%q}\n", msgGo)
					time.Sleep(300 * time.Millisecond) // the writes are done in one
					os.Exit(0)
				}
				return line
			})
		}
		if err := Serve(context.Background()); err != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// Roles of a receiver.
const (
	misled   = "misled"   // takes another seed than the sender, and so another content, for the right one
	deserter = "deserter" // says that it is ready, lets the sender write, and ends without an answer
)

// filter changes what the sender says before the receiver reads it.
func filter(change func(line string) string) {
	in, out, err := os.Pipe()
	if err != nil {
		os.Exit(1)
	}
	sender := os.Stdin
	os.Stdin = in
	go func() {
		for lines := bufio.NewScanner(sender); lines.Scan(); {
			_, _ = fmt.Fprintln(out, change(lines.Text()))
		}
		_ = out.Close()
	}()
}

func receiving() proc.Spec { return proc.Spec{Env: []string{receiverEnv + "=1"}} }

// BenchmarkScenario reports what the tool's bench prints; ns/op is a whole sample and means nothing.
func BenchmarkScenario(b *testing.B) {
	for _, kind := range []Kind{Imm, Write, Pages, Scatter, Message, Barrier} {
		for _, network := range []string{"shm", "tcp"} {
			sizes := []uint64{4 << 10, 64 << 10, 1 << 20}
			switch kind {
			case Imm, Barrier:
				sizes = []uint64{immSize}
			case Message:
				sizes = sizes[:2]
			}
			for _, size := range sizes {
				b.Run(fmt.Sprintf("%s/%s/%d", kind, network, size), func(b *testing.B) {
					row, err := Run(b.Context(), Config{Kind: kind, Provider: network, Size: size, Rounds: min(b.N, maxRounds), Pings: 1000}, receiving(), nil)
					if err != nil {
						b.Fatal(err)
					}
					b.ReportMetric(row.Ratio, "ratio")
					b.ReportMetric(row.Ours.OpsPerS.Median, "ops/s")
					b.ReportMetric(row.Ours.Latency.P50, "p50-us")
					if kind != Imm && kind != Barrier {
						b.ReportMetric(row.Ours.GBPerS.Median, "GB/s")
					}
				})
			}
		}
	}
}

// small is a config of a scenario that takes no time.
func small(kind Kind, network string) Config {
	c := Config{Kind: kind, Provider: network, Size: 10_001, Pool: 1 << 20, Bytes: 1 << 20, Rounds: 3, Pings: 100, Rails: 2}
	switch kind {
	case Imm, Barrier:
		c.Pool, c.Bytes = immPool, immPool
	case Scatter:
		c.Batch = 7
	}
	return c
}

func TestRunMeasuresBothSides(t *testing.T) {
	for kind, k := range scenarios {
		for _, network := range []string{"shm", "tcp"} {
			for _, peers := range []int{1, 3} {
				if peers > 1 && !k.group {
					continue
				}
				t.Run(fmt.Sprintf("%s %s %d", kind, network, peers), func(t *testing.T) {
					c := small(kind, network)
					c.Peers = peers
					var rounds int
					row, err := Run(t.Context(), c, receiving(), func(round, _ int) { rounds += min(round, 1) })
					if err != nil {
						t.Fatal(err)
					}
					if rounds != 3 {
						t.Errorf("%d rounds, want 3", rounds)
					}
					checkRow(t, row)
				})
			}
		}
	}
}

// checkRow looks at a row of a config of small.
func checkRow(t *testing.T, row Row) {
	t.Helper()
	if len(row.Ours.Samples) != 3 || len(row.Yard.Samples) != 3 {
		t.Errorf("%d and %d samples, want 3 of each", len(row.Ours.Samples), len(row.Yard.Samples))
	}
	if !(row.Ratio > 0 && row.Ours.OpsPerS.Min > 0 && row.Yard.OpsPerS.Min > 0 && row.Ours.CPUPerOp > 0) || row.CorruptBytes != 0 {
		t.Errorf("row is %+v", row)
	}
	if moves := row.Config.Kind != Barrier; (row.Ours.GBPerS.Min > 0) != moves || (row.Ours.CPUPerGiB > 0) != moves {
		t.Errorf("%v GB/s, %v CPU s/GiB", row.Ours.GBPerS, row.Ours.CPUPerGiB)
	}
	l := row.Ours.Latency
	if !(l.P50 > 0 && l.P50 <= l.P99 && l.P99 <= l.P999) || len(l.Rounds) != 3 || l.Count < 3 || len(l.CDF) == 0 {
		t.Errorf("latency is %+v", l)
	}
	if trips := row.RatioOf == OfLatency; trips != (row.Yard.Latency.Count > 0) || trips != (l.CPUPerTrip > 0) {
		t.Errorf("ratio of %s, the yardstick's latency is %+v", row.RatioOf, row.Yard.Latency)
	}
	if tcp := row.Config.Provider == tcpName; tcp != (row.Path.Congestion != "") || row.Path.Wait == "" {
		t.Errorf("path is %+v", row.Path)
	}
}

func TestRunNamesTheReceiversFault(t *testing.T) {
	c := Config{Kind: Write, Provider: "shm", Size: 1 << 10, Rounds: 1}
	_, err := Run(t.Context(), c, proc.Spec{Path: "/bin/false"}, nil)
	var exit *proc.ExitError
	if !errors.As(err, &exit) || !strings.Contains(err.Error(), "receiver") {
		t.Errorf("got %v, want the receiver's exit", err)
	}
}

func TestWrongContentIsFound(t *testing.T) {
	for _, kind := range []Kind{Write, Pages, Scatter, Imm, Message} {
		t.Run(string(kind), func(t *testing.T) {
			c := small(kind, "shm")
			c.Seed = 1
			row, err := Run(t.Context(), c, proc.Spec{Env: []string{receiverEnv + "=" + misled}}, nil)
			if !errors.Is(err, ErrCorrupt) || row.CorruptBytes == 0 {
				t.Errorf("got %v and %d corrupt bytes, want ErrCorrupt and some", err, row.CorruptBytes)
			}
		})
	}
}

// TestReceiverThatDiesIsNamedOnce kills the receiver in mid-run.
func TestReceiverThatDiesIsNamedOnce(t *testing.T) {
	c := Config{Kind: Write, Provider: "shm", Size: 1 << 10, Pool: 1 << 20, Bytes: 1 << 20, Rounds: maxRounds}
	_, err := Run(t.Context(), c, receiving(), func(round, _ int) {
		if round == 1 {
			killReceiver(t)
		}
	})
	var exit *proc.ExitError
	if !errors.As(err, &exit) || strings.Count(err.Error(), "receiver: signal: killed") != 1 {
		t.Errorf("got %v, want the receiver's end, once", err)
	}
}

// TestReceiverThatLeavesEndsTheRun: nothing but the end of its process tells that its answer will not come.
func TestReceiverThatLeavesEndsTheRun(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	c := Config{Kind: Write, Provider: "shm", Size: 1 << 10, Pool: 1 << 20, Bytes: 64 << 10, Rounds: 1}
	_, err := Run(ctx, c, proc.Spec{Env: []string{receiverEnv + "=" + deserter}}, nil)
	if err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want that the receiver ended", err)
	}
}

// killReceiver kills the only child of this process.
func killReceiver(t *testing.T) {
	t.Helper()
	children, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range children {
		pids, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended
		}
		for _, pid := range strings.Fields(string(pids)) {
			if n, err := strconv.Atoi(pid); err == nil {
				_ = syscall.Kill(n, syscall.SIGKILL)
			}
		}
	}
}

// TestReceiverRefusesWhatNoSenderSends gives the receiving process requests that are wrong or out of order.
func TestReceiverRefusesWhatNoSenderSends(t *testing.T) {
	for _, kind := range []string{msgOpen, msgJoin, msgWork, msgVerify, "nonsense"} {
		t.Run(kind, func(t *testing.T) {
			spec := receiving()
			spec.Name = "receiver"
			c, err := proc.Start(spec)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Send(kind, openRequest{}); err != nil {
				t.Fatal(err)
			}
			_, err = c.Next(t.Context())
			if err == nil || !strings.HasPrefix(err.Error(), "receiver: bench: ") {
				t.Errorf("got %v, want an error of the receiver", err)
			}
			_ = c.Stop(0)
		})
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("enough")
	c := Config{Kind: Write, Provider: "shm", Size: 1 << 10, Pool: 1 << 20, Rounds: maxRounds}
	_, err := Run(ctx, c, receiving(), func(int, int) { cancel(stop) })
	if !errors.Is(err, stop) {
		t.Errorf("got %v, want the cause of the context", err)
	}
}
