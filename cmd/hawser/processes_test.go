//go:build processes

package main

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// TestProcessesUnderFaults kills and stops the prefiller at random times of a replay under load. Whatever the time, every request
// ends, and no byte or page is lost.
func TestProcessesUnderFaults(t *testing.T) {
	const rounds = 3
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	chance := rand.New(rand.NewPCG(seed, 0))
	for _, network := range []string{"shm", "tcp"} {
		for _, fault := range []string{"--kill-prefiller", "--stop-prefiller"} {
			for i := range rounds {
				at := time.Duration(500+chance.IntN(3000)) * time.Millisecond
				t.Run(fmt.Sprintf("%s%s/%d", network, fault, i), func(t *testing.T) {
					t.Parallel() // a replay waits for most of its time
					stdout, stderr, code := tool(t, "kv", "replay", "--provider", network, "--requests", "150", "--speed", "10", "--pool", "512MiB",
						"--cancel", "10%", "--seed", fmt.Sprint(seed+uint64(i)), fault, at.String(), "--json", "-")
					if code != exitOK {
						t.Fatalf("fault at %v: exit code %d: %s", at, code, stderr)
					}
					r := decodeJSON(t, stdout)
					if sum := number(t, r, "verified_requests") + number(t, r, "failed") + number(t, r, "cancelled"); sum != number(t, r, "requests") {
						t.Errorf("%v requests ended, %v arrived", sum, r["requests"])
					}
					t.Logf("fault at %v: %v verified, %v failed %v, %v cancelled, noticed after %.0f ms",
						at, r["verified_requests"], r["failed"], r["causes"], r["cancelled"], number(t, r, "peer_death_ms"))
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
				"--rails", "2,3", "--cancel", "5%", "--json", "-")
			if code != exitOK {
				t.Fatalf("exit code %d: %s", code, stderr)
			}
			r := decodeJSON(t, stdout)
			if number(t, r, "verified_requests")+number(t, r, "cancelled") != 150 {
				t.Errorf("%v verified and %v cancelled, want 150 in all", r["verified_requests"], r["cancelled"])
			}
		})
	}
}
