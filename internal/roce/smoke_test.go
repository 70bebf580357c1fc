//go:build vm

package roce

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// hang bounds every wait of a test: it guards against hangs and asserts nothing. Emulated machines are slow.
const hang = 60 * time.Second

func TestMain(m *testing.M) {
	if os.Getenv("HAWSER_VM_RANK") == "" {
		fmt.Fprintln(os.Stderr, "these tests change the network of the machine: run them in a virtual machine, make test-verbs")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// run runs a program of the VM.
func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// pairs returns the devices that reach each other within this VM.
func pairs(t testing.TB) [][2]string {
	t.Helper()
	var all [][2]string
	for _, word := range strings.Fields(os.Getenv("HAWSER_VM_PAIRS")) {
		a, b, _ := strings.Cut(word, "=")
		all = append(all, [2]string{a, b})
	}
	if len(all) == 0 {
		t.Fatal("this VM has no pair of devices")
	}
	return all
}

func TestDevicesAreUp(t *testing.T) {
	for _, p := range pairs(t) {
		for _, dev := range p {
			if out := run(t, "ibv_devinfo", "-d", dev); !strings.Contains(out, "PORT_ACTIVE") {
				t.Errorf("%s: %s", dev, out)
			}
		}
	}
}

// Each device reaches the other one of its pair, by the tool of libibverbs.
func TestPairsReachEachOther(t *testing.T) {
	for i, p := range pairs(t) {
		args := func(dev string) []string {
			return []string{"-d", dev, "-g", "1", "-n", "100", "-p", fmt.Sprint(18515 + i)}
		}
		server := exec.Command("ibv_rc_pingpong", args(p[0])...)
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = server.Process.Kill()
			_ = server.Wait() // it has ended, or is of no use
		})
		var out []byte
		eventually(t, fmt.Sprintf("pingpong of %v", p), func() bool { // it fails until the server listens
			var err error
			out, err = exec.Command("ibv_rc_pingpong", append(args(p[1]), "127.0.0.1")...).CombinedOutput()
			return err == nil
		})
		if !strings.Contains(string(out), "100 iters") {
			t.Errorf("%v: %s", p, out)
		}
	}
}

// eventually polls a condition that no event announces.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(hang); !cond(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, hang)
		}
	}
}
