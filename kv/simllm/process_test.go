package simllm

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv"
	"github.com/hawser-project/hawser/kv/trace"
)

// childEnv makes the test binary a prefiller over the network that it names.
const childEnv = "HAWSER_TEST_PREFILLER"

func TestMain(m *testing.M) {
	if network := os.Getenv(childEnv); network != "" {
		if err := child(network); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// child serves until its standard input ends. It prints its address.
func child(network string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	eng, err := hawser.Open(ctx, hawser.Options{Name: "prefill", Require: network})
	if err != nil {
		return err
	}
	fmt.Println(eng.Addr())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	// Slow layers, so that requests are under way when the parent strikes.
	if _, err := Prefill(ctx, eng, PrefillConfig{Geometry: childGeometry, Pool: childPool, Layer: LayerTime{A: 20}}); err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(context.Background(), time.Minute) // a guard against hanging
	defer stop()
	return eng.Close(ctx)
}

var childGeometry, _ = kv.BuiltinGeometry("mini")

const childPool = 256 << 20

func startChild(t *testing.T, network string) (addr string, signal func(syscall.Signal)) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childEnv+"="+network)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line), func(s syscall.Signal) {
		if err := cmd.Process.Signal(s); err != nil {
			t.Error(err)
		}
	}
}

// struck is what Decode says about a run in which the prefiller was killed or stopped.
type struck struct {
	Report
	struck time.Time
}

// strike runs 40 requests that arrive within two seconds, and strikes when some of them are done.
func strike(t *testing.T, network string, sig syscall.Signal, down func(signal func(syscall.Signal))) struck {
	t.Helper()
	addr, signal := startChild(t, network)
	var requests []trace.Request
	for i := range 40 {
		requests = append(requests, trace.Request{Arrival: time.Duration(i) * 50 * time.Millisecond, Input: 3000 + 100*i, Output: 5})
	}
	eng := openEngine(t, "decode", network)
	if down != nil {
		defer eng.OnPeer(func(ev hawser.PeerEvent) {
			if ev.Kind == hawser.PeerDown {
				down(signal)
			}
		})()
	}
	s := struck{}
	var err error
	s.Report, err = Decode(t.Context(), eng, DecodeConfig{
		Geometry: childGeometry, Pool: childPool, From: addr, Requests: requests, Log: testLog(),
		Progress: func(p DecodeProgress) {
			if s.struck.IsZero() && p.Done > 2 {
				s.struck = time.Now()
				signal(sig)
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// deathGuard is in milliseconds. It guards against a death that nobody notices; how fast it is noticed depends on what else the
// machine does (a killed process first gives back its memory, then its sockets): the log says it, and a test of the engine
// holds it for small processes.
const deathGuard = 15000

func TestKilledPrefiller(t *testing.T) {
	t.Parallel()
	for _, network := range networks {
		t.Run(network, func(t *testing.T) {
			t.Parallel()
			r := strike(t, network, syscall.SIGKILL, nil)
			if !r.SetKill(r.struck) {
				t.Fatal("no peer-down event after the kill")
			}
			t.Logf("%+v", r)
			check(t, r)
			if r.PeerDeath > deathGuard {
				t.Errorf("the death was noticed after %.0f ms", r.PeerDeath)
			}
		})
	}
}

func TestStoppedPrefiller(t *testing.T) {
	t.Parallel()
	for _, network := range networks {
		t.Run(network, func(t *testing.T) {
			t.Parallel()
			var once sync.Once
			done := make(chan struct{})
			r := strike(t, network, syscall.SIGSTOP, func(signal func(syscall.Signal)) {
				once.Do(func() {
					time.AfterFunc(2*time.Second, func() {
						signal(syscall.SIGCONT) // it goes on with what it knew
						close(done)
					})
				})
			})
			if !r.SetKill(r.struck) {
				t.Fatal("no peer-down event after the stop")
			}
			t.Logf("%+v", r)
			check(t, r)
			if r.PeerDeath > deathGuard {
				t.Errorf("the stop was noticed after %.0f ms", r.PeerDeath)
			}
			<-done
		})
	}
}

// check: every request has ended, some well, those that did not make it because the peer is down, and no page is lost.
func check(t *testing.T, r struck) {
	t.Helper()
	if r.Requests != 40 || r.Done+r.Failed != 40 || r.Done < 3 || r.Failed == 0 || r.Causes["peer down"] != r.Failed {
		t.Errorf("want 40 requests that are done, or failed because the peer is down")
	}
	if !r.Clean() {
		t.Errorf("want nothing corrupt, leaked or quarantined")
	}
}
