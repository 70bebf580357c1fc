//go:build processes

package main

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// TestProcessesAcceptance is the run that a release must pass: three prefillers, of which one is killed and one stopped for a while, two
// decoders, cancels, four times the load of the trace, for a minute. "make nightly" does it with as many generated requests as the published
// trace has.
func TestProcessesAcceptance(t *testing.T) {
	stdout, stderr, code := tool(t, "kv", "replay", "--prefillers", "3", "--decoders", "2", "--speed", "4", "--cancel", "5%",
		"--kill-prefiller", "10s", "--stop-prefiller", "20s", "--provider", "shm", "--duration", "60s", "--json", "-")
	if code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	r := decodeJSON(t, stdout)
	wants(t, r, clean)
	requests, done, cancelled := number(t, r, "requests"), number(t, r, "verified_requests"), number(t, r, "cancelled")
	if done+cancelled+number(t, r, "failed") != requests || requests < 500 {
		t.Errorf("%v requests: %v verified, %v cancelled, %v failed", requests, done, cancelled, r["failed"])
	}
	if wanted := requests - cancelled; done < 0.99*wanted {
		t.Errorf("%v of %v requests are done, want 99%%; causes %v", done, wanted, r["causes"])
	}
	if number(t, r, "peer_death_ms") <= 0 {
		t.Error("nobody noticed the death")
	}
	t.Logf("%v requests, %v verified, %v failed %v, %v cancelled, %v retried, %.3f GB/s, time to first token p50 %.1f ms, p99 %.1f ms, cancel p99 %.2f ms, death noticed after %.0f ms",
		requests, done, r["failed"], r["causes"], cancelled, r["retried"], number(t, r, "gb_per_s"), number(t, r, "ttft_p50_ms"), number(t, r, "ttft_p99_ms"), number(t, r, "cancel_p99_ms"), number(t, r, "peer_death_ms"))
}

// TestProcessesUnderFaults kills and stops prefillers at random times of a replay under load. Whatever the time, every request ends, and
// no byte or page is lost. With a single prefiller requests may fail, with two they do not.
func TestProcessesUnderFaults(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	chance := rand.New(rand.NewPCG(seed, 0))
	for _, network := range []string{"shm", "tcp"} {
		for _, fault := range []string{"--kill-prefiller", "--stop-prefiller"} {
			for prefillers := 1; prefillers <= 2; prefillers++ {
				at := time.Duration(500+chance.IntN(3000)) * time.Millisecond
				t.Run(fmt.Sprintf("%s%s/%d", network, fault, prefillers), func(t *testing.T) {
					t.Parallel() // a replay waits for most of its time
					stdout, stderr, code := tool(t, "kv", "replay", "--provider", network, "--requests", "150", "--speed", "10", "--pool", "512MiB",
						"--prefillers", fmt.Sprint(prefillers), "--decoders", "2", "--cancel", "10%", "--seed", fmt.Sprint(seed), fault, at.String(), "--json", "-")
					if code != exitOK {
						t.Fatalf("fault at %v: exit code %d: %s", at, code, stderr)
					}
					r := decodeJSON(t, stdout)
					wants(t, r, clean)
					failed := number(t, r, "failed")
					if sum := number(t, r, "verified_requests") + failed + number(t, r, "cancelled"); sum != number(t, r, "requests") {
						t.Errorf("%v requests ended, %v arrived", sum, r["requests"])
					}
					if prefillers > 1 && failed > 2 {
						t.Errorf("%v requests failed although there was another prefiller: %v", failed, r["causes"])
					}
					t.Logf("fault at %v: %v verified, %v failed %v, %v cancelled, %v retried, noticed after %.0f ms",
						at, r["verified_requests"], failed, r["causes"], r["cancelled"], r["retried"], number(t, r, "peer_death_ms"))
				})
			}
		}
	}
}

// TestProcessesVerifyATrace is a longer replay with several rails and cancelled requests.
func TestProcessesVerifyATrace(t *testing.T) {
	for _, network := range []string{"shm", "tcp"} {
		t.Run(network, func(t *testing.T) {
			t.Parallel()
			stdout, stderr, code := tool(t, "kv", "replay", "--provider", network, "--requests", "150", "--speed", "6", "--pool", "512MiB",
				"--prefillers", "2", "--decoders", "2", "--rails", "2,3", "--cancel", "5%", "--json", "-")
			if code != exitOK {
				t.Fatalf("exit code %d: %s", code, stderr)
			}
			r := decodeJSON(t, stdout)
			wants(t, r, clean)
			if number(t, r, "verified_requests")+number(t, r, "cancelled") != 150 {
				t.Errorf("%v verified and %v cancelled, want 150 in all", r["verified_requests"], r["cancelled"])
			}
		})
	}
}
