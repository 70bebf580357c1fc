//go:build vm

package roce

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// hang bounds every wait of a test: it guards against hangs and asserts nothing. Emulated machines are slow.
const hang = 60 * time.Second

func TestMain(m *testing.M) {
	rank := os.Getenv("HAWSER_VM_RANK")
	switch {
	case rank == "":
		fmt.Fprintln(os.Stderr, "these tests change the network of the machine: run them in a virtual machine, make test-verbs")
		os.Exit(1)
	case os.Getenv(childEnv) != "":
		os.Exit(child(os.Getenv(childEnv)))
	case rank != "0":
		os.Exit(other())
	}
	os.Exit(m.Run())
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	t.Cleanup(cancel)
	return ctx
}

// run runs a program of the VM.
func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := command(name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func command(name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// pair is two devices that reach each other within this VM, over a cable of their own.
type pair struct {
	number int
	dev    [2]string // names of devices, without port
}

// netdev is the end of the cable that a device lies on.
func (p pair) netdev(side int) string { return string("ab"[side]) + strconv.Itoa(p.number) }

// addr is the address of a device's end of the cable.
func (p pair) addr(side int) string { return fmt.Sprintf("10.77.%d.%d", p.number, side+1) }

// link takes the cable down, or up again; it is up at the end of the test.
func (p pair) link(t testing.TB, state string) error {
	if state == "down" {
		t.Cleanup(func() {
			if err := p.set("up"); err != nil {
				t.Error(err)
			}
			eventually(t, "cable of "+p.dev[0], func() bool { return p.up() })
		})
	}
	return p.set(state)
}

func (p pair) set(state string) error {
	_, err := command("ip", "link", "set", p.netdev(0), state)
	return err
}

// up reports whether both devices have a link.
func (p pair) up() bool {
	for _, dev := range p.dev {
		state, err := os.ReadFile("/sys/class/infiniband/" + dev + "/ports/1/state")
		if err != nil || !strings.Contains(string(state), "ACTIVE") {
			return false
		}
	}
	return true
}

// bad makes the cable lose and delay, in both directions, until mend.
func (p pair) bad(how ...string) (mend func() error, err error) {
	for side := range 2 {
		if _, err := command("tc", append([]string{"qdisc", "add", "dev", p.netdev(side), "root", "netem", "limit", "10000"}, how...)...); err != nil {
			return nil, err
		}
	}
	return func() error {
		for side := range 2 {
			if _, err := command("tc", "qdisc", "del", "dev", p.netdev(side), "root"); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

// pairs returns the first n pairs of this VM.
func pairs(t testing.TB, n int) []pair {
	t.Helper()
	all := allPairs()
	if len(all) < n {
		t.Fatalf("this VM has %d pairs of devices, the test needs %d", len(all), n)
	}
	return all[:n]
}

func allPairs() []pair {
	var all []pair
	for i, word := range strings.Fields(os.Getenv("HAWSER_VM_PAIRS")) {
		a, b, _ := strings.Cut(word, "=")
		all = append(all, pair{i, [2]string{a, b}})
	}
	return all
}

// counters returns the sum of each counter of the devices' hardware.
func counters(t testing.TB, devices ...string) map[string]uint64 {
	t.Helper()
	sum := map[string]uint64{}
	for _, dev := range devices {
		files, err := filepath.Glob("/sys/class/infiniband/" + dev + "/ports/1/hw_counters/*")
		if err != nil || len(files) == 0 {
			t.Fatalf("%s has no counters: %v", dev, err)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
			if err != nil {
				continue // lifespan is no count
			}
			sum[filepath.Base(f)] += n
		}
	}
	return sum
}

// notReady is how often the devices met a peer without a receive request, or had none themselves.
func notReady(t testing.TB, devices ...string) uint64 {
	t.Helper()
	c := counters(t, devices...)
	var n uint64
	found := 0
	for name, v := range c {
		if strings.Contains(name, "rnr") {
			found++
			n += v
		}
	}
	if found < 3 { // sent, received, given up
		t.Fatalf("counters of receivers that are not ready: %d of %v", found, c)
	}
	return n
}

// eventually polls a condition that no event announces.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	if err := await(what, cond); err != nil {
		t.Fatal(err)
	}
}

func await(what string, cond func() bool) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(hang); !cond(); <-tick.C {
		if time.Now().After(end) {
			return fmt.Errorf("%s: not within %v", what, hang)
		}
	}
	return nil
}
