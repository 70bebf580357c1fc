package kvbench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// replayed is what is used of the report of hawser kv replay.
type replayed struct {
	Requests int     `json:"requests"`
	Verified int     `json:"verified_requests"`
	Failed   int     `json:"failed"`
	Corrupt  uint64  `json:"corrupt_bytes"`
	Leaked   int     `json:"leaked_pages"`
	TTFT50   float64 `json:"ttft_p50_ms"`
	TTFT99   float64 `json:"ttft_p99_ms"`
	Exposed  float64 `json:"exposed_p50_us"`
	Exposed9 float64 `json:"exposed_p99_us"`
	Rate     float64 `json:"gb_per_s"`
	CPU      float64 `json:"cpu_s_per_gib"`
}

// runReplays is B3: 2 prefillers, 2 decoders, all content checked. A round takes seconds, so there is one of each speed.
func runReplays(ctx context.Context, c Config) (rows []Row, err error) {
	requests, speeds := 60, []string{"1", "2", "4"}
	if c.Short {
		requests, speeds = 6, []string{"4"}
	}
	for _, speed := range speeds {
		c.Tell("speed " + speed)
		r, err := replay(ctx, append(c.Replay, "--geometry", "mini", "--prefillers", "2", "--decoders", "2", "--requests", fmt.Sprint(requests), "--speed", speed))
		if err != nil {
			return rows, err
		}
		one := func(name, unit string, x float64) Value { return value(name, unit, []float64{x}) }
		rows = append(rows, Row{
			Name: fmt.Sprintf("mini at %sx, 2 prefillers, 2 decoders", speed),
			Values: []Value{
				one("time to first token p50", "ms", r.TTFT50), one("p99", "ms", r.TTFT99), one("exposed p50", "us", r.Exposed),
				one("exposed p99", "us", r.Exposed9), one("rate", "GB/s", r.Rate), one("CPU, content and checks included", "s/GiB", r.CPU),
			},
			Note: fmt.Sprintf("%d requests, %d verified, %d failed, %d corrupt bytes, %d pages leaked", r.Requests, r.Verified, r.Failed, r.Corrupt, r.Leaked),
		})
	}
	return rows, nil
}

func replay(ctx context.Context, args []string) (r replayed, err error) {
	exe, err := os.Executable()
	if err != nil {
		return r, err
	}
	cmd := exec.CommandContext(ctx, exe, append(args, "--json", "-")...)
	var out, text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &text
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = closeLimit
	if err := cmd.Run(); err != nil {
		return r, fmt.Errorf("replay: %w: %s", err, text.String())
	}
	return r, json.Unmarshal(out.Bytes(), &r)
}
