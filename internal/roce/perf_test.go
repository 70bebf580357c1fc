//go:build vm

package roce

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/hawser-project/hawser/bench"
)

// What the pages benchmark is compared on: one device on both sides, as far as emulation goes.
const (
	perfPage   = 64 << 10
	perfPages  = 128 // of a sample
	perfWindow = 32  // in flight
	perfBatch  = 8
	perfPool   = 4 << 20
)

// Pages over verbs beside the same loop in C and beside ib_write_bw, in turns, in one boot. The ratios are printed, not asserted: emulation is
// noisy, and ib_write_bw reckons in cycles of a clock that emulation makes unsteady: sometimes it says 0. That no card was ever without a
// receive request is asserted of ours: the loop in C, whose window counts what was sent, may run out of them when its reader sleeps.
func TestPagesBesideC(t *testing.T) {
	dev := pairs(t, 1)[0].dev[0]
	sides := []struct {
		name string
		run  func(t *testing.T, dev string) float64
	}{{"hawser", runHawser}, {"C", runLoop}, {"ib_write_bw", runPerftest}}
	rates, missed := map[string][]float64{}, map[string]uint64{}
	alternations := 7
	if testing.Short() {
		alternations = 1
	}
	for i := range alternations + 1 {
		for k := range sides {
			s := sides[(i+k)%len(sides)]
			before := notReady(t, dev)
			rate := s.run(t, dev)
			missed[s.name] += notReady(t, dev) - before
			if i > 0 { // the first of each translates its code
				rates[s.name] = append(rates[s.name], rate/1e6)
			}
		}
	}
	for _, s := range sides {
		fmt.Printf("roce: %-12s MB/s %.1f, receiver not ready %d times\n", s.name, rates[s.name], missed[s.name])
	}
	for _, other := range []string{"C", "ib_write_bw"} {
		var ratio []float64
		for i, rate := range rates[other] {
			if rate > 0 {
				ratio = append(ratio, rates["hawser"][i]/rate)
			}
		}
		if slices.Sort(ratio); len(ratio) > 0 {
			fmt.Printf("roce: hawser / %s: median %.2f, %.2f to %.2f\n", other, ratio[len(ratio)/2], ratio[0], ratio[len(ratio)-1])
		}
	}
	if n := missed["hawser"]; n != 0 {
		t.Errorf("cards met a receiver without receive requests %d times", n)
	}
}

func runHawser(t *testing.T, dev string) float64 {
	t.Helper()
	file := filepath.Join(t.TempDir(), "result.json")
	run(t, tool(t, "hawser"), "bench", "pages", "--provider", "verbs", "--device", dev+"/1", "--size", strconv.Itoa(perfPage),
		"--pool", strconv.Itoa(perfPool), "--bytes", strconv.Itoa(perfPages*perfPage), "--batch", strconv.Itoa(perfBatch),
		"--depth", strconv.Itoa(perfWindow/perfBatch), "--rounds", "1", "--json", file)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return hawserRate(t, text)
}

func runLoop(t *testing.T, dev string) float64 {
	t.Helper()
	args := []string{dev, dev}
	for _, n := range []int{perfPage, perfPool, perfWindow, perfBatch, perfPages} {
		args = append(args, strconv.Itoa(n))
	}
	return number(t, run(t, tool(t, "verbs_loop"), args...))
}

// runPerftest writes the same page again and again, without immediates.
func runPerftest(t *testing.T, dev string) float64 {
	t.Helper()
	args := []string{"-d", dev, "-x", "1", "-F", "-s", strconv.Itoa(perfPage), "-n", strconv.Itoa(perfPages), "-t", strconv.Itoa(perfWindow), "-p", "18600"}
	server := exec.Command("ib_write_bw", args...)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = server.Process.Kill()
		_ = server.Wait() // it has ended, or is of no use
	}()
	var out string
	eventually(t, "ib_write_bw", func() bool { // it fails until the server listens
		var err error
		out, err = command("ib_write_bw", append(args, "127.0.0.1")...)
		return err == nil
	})
	for line := range strings.Lines(out) {
		// bytes, iterations, peak, average (MiB/s), rate
		if f := strings.Fields(line); len(f) == 5 && f[0] == strconv.Itoa(perfPage) {
			return number(t, f[3]) * (1 << 20)
		}
	}
	t.Fatalf("ib_write_bw says nothing that is known here:\n%s", out)
	return 0
}

func number(t *testing.T, text string) float64 {
	t.Helper()
	x, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// hawserRate finds the bytes per second of the only sample.
func hawserRate(t *testing.T, text []byte) float64 {
	t.Helper()
	var r bench.Report
	if err := json.Unmarshal(text, &r); err != nil || len(r.Rows) != 1 {
		t.Fatalf("%v: %.500s", err, text)
	}
	if r.Rows[0].CorruptBytes != 0 {
		t.Errorf("%d bytes are wrong", r.Rows[0].CorruptBytes)
	}
	return r.Rows[0].Ours.GBPerS.Median * 1e9
}
